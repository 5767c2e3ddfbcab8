-- Moves an elicitation one step, forward only. `completed` has a script of its own, because it writes more.
-- `exchanging -> opened` is the one step back; it is reserved for secrets that are refused and typed again.
--
-- KEYS[1] record
-- ARGV[1] new state   ARGV[2] now, ms   ARGV[3] reason or ''   ARGV[4] seconds that an ended record is kept
-- ARGV[5] milliseconds of grace that a running exchange has past `expiresAtMs`   ARGV[6] user id   ARGV[7] elicitation id
-- ARGV[8] '' or the only state to move from   ARGV[9…] further fields and values
-- Returns false when there is none, else { 'moved' | 'already' | 'refused', state before }
local NEXT = {
  created = { opened = 1, declined = 1, cancelled = 1, failed = 1, expired = 1 },
  opened = { authorized = 1, declined = 1, cancelled = 1, failed = 1, expired = 1 },
  authorized = { exchanging = 1, cancelled = 1, failed = 1, expired = 1 },
  exchanging = { failed = 1, expired = 1 },
}
local ENDS = { declined = 1, cancelled = 1, failed = 1, expired = 1 }
local record = redis.call('HMGET', KEYS[1], 'state', 'expiresAtMs', 'waiters')
local from, to, now = record[1], ARGV[1], tonumber(ARGV[2])
if not from then return false end
if from == to then return { 'already', from } end
if not (NEXT[from] and NEXT[from][to]) or (ARGV[8] ~= '' and ARGV[8] ~= from) then return { 'refused', from } end
local ends = tonumber(record[2])
if from == 'authorized' or from == 'exchanging' then ends = ends + tonumber(ARGV[5]) end
local over = now >= ends
if to == 'expired' and not over then return { 'refused', from } end
-- A record whose time is over can only end.
if over and not ENDS[to] then return { 'refused', from } end
local fields = { 'state', to, 'updatedAtMs', ARGV[2], 'at:' .. to, ARGV[2] }
if ARGV[3] ~= '' then fields[#fields + 1] = 'reason'; fields[#fields + 1] = ARGV[3] end
for i = 9, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', KEYS[1], unpack(fields))
-- Whoever claims the exchange has read the code; nobody shall find it a second time.
if ENDS[to] or to == 'exchanging' then redis.call('HDEL', KEYS[1], 'code') end
if ENDS[to] then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  for pod in string.gmatch(record[3] or '', '%S+') do
    redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'elicitation\n' .. ARGV[6] .. '\n' .. ARGV[7] .. '\n')
  end
end
return { 'moved', from }
