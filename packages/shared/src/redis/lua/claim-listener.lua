-- Makes one open GET the listening stream of its session. The newest wins at once; the pod of the stream
-- before it is told, so that exactly one stream gets each message (2025-11-25 transports, Multiple Connections).
--
-- KEYS[1] session   KEYS[2] listeners
-- ARGV[1] OAuth client id   ARGV[2] endpoint   ARGV[3] owner 'pod|stream'   ARGV[4] now, ms   ARGV[5] TTL, seconds
-- ARGV[6] user id   ARGV[7] session id
-- Returns false when it is not there (or not the caller's), else { cursor or '', previous owner or '' }
local s = redis.call('HMGET', KEYS[1], 'cid', 'ep', 'cursor', 'owner')
if not s[1] or s[1] ~= ARGV[1] or s[2] ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'seen', ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
if s[4] then
  local before, now = string.match(s[4], '^[^|]+'), string.match(ARGV[3], '^[^|]+')
  if before ~= now then
    redis.call('PUBLISH', 'viaduct:pod:' .. before, 'moved\n' .. ARGV[6] .. '\n' .. ARGV[7] .. '\ng')
  end
end
return { s[3] or '', s[4] or '' }
