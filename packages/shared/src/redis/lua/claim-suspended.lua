-- A retry takes a round of a suspended call, once, on whichever pod it came to. That pod follows the call from now
-- on, and the holder is told.
--
-- KEYS[1] suspended call   KEYS[2] continuation
-- ARGV[1] round   ARGV[2] pod that follows   ARGV[3] TTL, seconds   ARGV[4] user id   ARGV[5] call id
-- Returns false when there is none or this round is not open (any more), else the id of the entry after which the
-- continuation goes on
local s = redis.call('HMGET', KEYS[1], 'state', 'round', 'holder', 'at')
if s[1] ~= 'asking' or s[2] ~= ARGV[1] then return false end
redis.call('HSET', KEYS[1], 'state', 'running', 'follower', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('XTRIM', KEYS[2], 'MINID', s[4])
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
if s[3] ~= ARGV[2] then
  redis.call('PUBLISH', 'viaduct:pod:' .. s[3], 'call\n' .. ARGV[4] .. '\n' .. ARGV[5] .. '\nclaimed ' .. ARGV[1])
end
return s[4]
