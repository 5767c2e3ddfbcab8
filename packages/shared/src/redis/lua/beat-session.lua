-- An open stream keeps its session alive, and learns whether it has missed anything.
--
-- KEYS[1] session   KEYS[2] log   KEYS[3] call streams   KEYS[4] pending   KEYS[5] listeners   KEYS[6…] upstream hashes
-- ARGV[1] TTL, seconds   ARGV[2] TTL of upstream hashes
-- Returns false when the session is gone, else { owner of the listening stream or '', last entry id or '' }
if redis.call('EXPIRE', KEYS[1], ARGV[1]) == 0 then return false end
for i = 2, 5 do redis.call('EXPIRE', KEYS[i], ARGV[1]) end
for i = 6, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return { redis.call('HGET', KEYS[1], 'owner') or '', last and last[1] or '' }
