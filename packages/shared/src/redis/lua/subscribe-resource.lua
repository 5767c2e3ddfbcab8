-- A session subscribes to a resource of an upstream without sessions, or does so no longer. The pod that holds the
-- session's listening stream is told, for it listens to that upstream.
--
-- KEYS[1] session   KEYS[2] upstream hash
-- ARGV[1] field of the subscription   ARGV[2] '1' to subscribe, '' to end it   ARGV[3] most fields of the hash
-- ARGV[4] TTL of the upstream hash, seconds   ARGV[5] pod id of the caller   ARGV[6] user id   ARGV[7] session id
-- ARGV[8] detail of the nudge
-- Returns false when the session is gone, else 'full', 'local' | 'remote' (where the stream is) or '' (no stream)
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
if ARGV[2] == '1' then
  if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[3]) then
    return 'full'
  end
  redis.call('HSET', KEYS[2], ARGV[1], '1')
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
redis.call('EXPIRE', KEYS[2], ARGV[4])
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner or owner == '' then return '' end
local pod = string.match(owner, '^[^|]+')
if pod == ARGV[5] then return 'local' end
redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'subscribed\n' .. ARGV[6] .. '\n' .. ARGV[7] .. '\n' .. ARGV[8])
return 'remote'
