-- The browser is back from the third party. Everything is compared before anything is consumed: a stranger's
-- browser, or the user's other browser, leaves the flow as it was (invariants 8 and 11).
--
-- KEYS[1] flow   KEYS[2] record of the elicitation that the flow names
-- ARGV[1] hash of the browser session   ARGV[2] elicitation id   ARGV[3] now, ms   ARGV[4] new state: 'authorized',
-- 'declined' or 'failed'   ARGV[5] reason or ''   ARGV[6] seconds that an ended record is kept   ARGV[7] user id
-- ARGV[8…] fields and values for the record
-- Returns 'unknown' (no such flow), 'browser' (another browser's), 'claimed', or the state that the elicitation has
-- reached without this flow; that flow is consumed too, its code is worth nothing
local flow = redis.call('HMGET', KEYS[1], 'browser', 'elicitationId')
if not flow[1] or flow[2] ~= ARGV[2] then return 'unknown' end
if flow[1] ~= ARGV[1] then return 'browser' end
local record = redis.call('HMGET', KEYS[2], 'state', 'expiresAtMs', 'waiters')
redis.call('DEL', KEYS[1])
if not record[1] then return 'unknown' end
if record[1] ~= 'opened' then return record[1] end
local now = tonumber(ARGV[3])
if now >= tonumber(record[2]) then return 'expired' end
local fields = { 'state', ARGV[4], 'updatedAtMs', ARGV[3], 'at:' .. ARGV[4], ARGV[3] }
if ARGV[5] ~= '' then fields[#fields + 1] = 'reason'; fields[#fields + 1] = ARGV[5] end
for i = 8, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', KEYS[2], unpack(fields))
if ARGV[4] ~= 'authorized' then
  redis.call('EXPIRE', KEYS[2], ARGV[6])
  for pod in string.gmatch(record[3] or '', '%S+') do
    redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'elicitation\n' .. ARGV[7] .. '\n' .. ARGV[2] .. '\n')
  end
end
return 'claimed'
