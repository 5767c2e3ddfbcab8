-- Replaces an upstream session after the upstream forgot it (404), unless another pod has done so.
--
-- KEYS[1] session   KEYS[2] upstream hash
-- ARGV[1] upstream session id that was refused, or '' when there was none   ARGV[2] TTL, seconds   ARGV[3…] fields and values
-- Returns { 1 } when replaced, else { 0, sid, pv, era, caps } of what is there now; false when the session is gone
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local now = redis.call('HMGET', KEYS[2], 'sid', 'pv', 'era', 'caps')
if (now[1] or '') ~= ARGV[1] then return { 0, now[1], now[2], now[3], now[4] } end
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[2], ARGV[2])
return { 1 }
