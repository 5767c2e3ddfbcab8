-- The one step back, exchanging -> opened: what the user typed was refused, and the same link takes another try.
-- The last try ends it.
--
-- KEYS[1] record
-- ARGV[1] attempt that claimed the exchange   ARGV[2] now, ms   ARGV[3] tries in all   ARGV[4] reason
-- ARGV[5] seconds that an ended record is kept   ARGV[6] user id   ARGV[7] elicitation id
-- Returns false when there is none, else { 'reopened' | 'failed' | 'refused', tries so far }
local record = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'tries', 'waiters')
if not record[1] then return false end
local tries = tonumber(record[3] or '0')
if record[1] ~= 'exchanging' or record[2] ~= ARGV[1] then return { 'refused', tries } end
tries = tries + 1
local to = tries >= tonumber(ARGV[3]) and 'failed' or 'opened'
redis.call('HSET', KEYS[1], 'state', to, 'updatedAtMs', ARGV[2], 'at:' .. to, ARGV[2], 'reason', ARGV[4],
  'tries', tries)
redis.call('HDEL', KEYS[1], 'code', 'attempt')
if to == 'opened' then return { 'reopened', tries } end
redis.call('EXPIRE', KEYS[1], ARGV[5])
for pod in string.gmatch(record[4] or '', '%S+') do
  redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'elicitation\n' .. ARGV[6] .. '\n' .. ARGV[7] .. '\n')
end
return { 'failed', tries }
