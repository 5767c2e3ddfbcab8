-- An open GET has closed. If it was the listening stream, the newest of the others takes its place.
--
-- KEYS[1] session   KEYS[2] listeners
-- ARGV[1] owner 'pod|stream'   ARGV[2] TTL, seconds   ARGV[3] user id   ARGV[4] session id
-- Returns the new owner, or '' when nobody listens now
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 then return '' end
redis.call('EXPIRE', KEYS[1], ARGV[2])
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return '' end
local heir = redis.call('ZREVRANGE', KEYS[2], 0, 0)[1]
if not heir then
  redis.call('HDEL', KEYS[1], 'owner')
  return ''
end
redis.call('HSET', KEYS[1], 'owner', heir)
redis.call('PUBLISH', 'viaduct:pod:' .. string.match(heir, '^[^|]+'),
  'inherited\n' .. ARGV[3] .. '\n' .. ARGV[4] .. '\n' .. string.match(heir, '[^|]+$'))
return heir
