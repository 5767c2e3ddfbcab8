-- The holder of a suspended call appends what its upstream says next, and nudges the pod that follows.
--
-- KEYS[1] suspended call   KEYS[2] continuation
-- ARGV[1] kind: 'n' notification, 'q' questions, 'e' end, 'x' failure, 'c' a link has been followed to its end
-- ARGV[2] message   ARGV[3] pod of the caller   ARGV[4] longest continuation   ARGV[5] TTL, seconds
-- ARGV[6] user id   ARGV[7] call id   ARGV[8…] fields and values for the record
-- Returns false when the record is gone, else 'local' | 'remote' | 'stored'
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'k', ARGV[1], 'm', ARGV[2])
local kind = ARGV[1]
if kind == 'q' then
  redis.call('HSET', KEYS[1], 'state', 'asking', 'at', id, unpack(ARGV, 8))
elseif kind == 'e' or kind == 'x' then
  redis.call('HSET', KEYS[1], 'state', 'over')
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
local follower = redis.call('HGET', KEYS[1], 'follower')
if not follower then return 'stored' end
if follower == ARGV[3] then return 'local' end
redis.call('PUBLISH', 'viaduct:pod:' .. follower, 'call\n' .. ARGV[6] .. '\n' .. ARGV[7] .. '\nread')
return 'remote'
