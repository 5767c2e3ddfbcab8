-- Takes the record of a request that an upstream made of the client: the first answer wins, on any pod.
--
-- KEYS[1] session   KEYS[2] pending   ARGV[1] OAuth client id   ARGV[2] endpoint   ARGV[3] gateway's request id
-- Returns false when there is none, else the JSON of the record
local s = redis.call('HMGET', KEYS[1], 'cid', 'ep')
if not s[1] or s[1] ~= ARGV[1] or s[2] ~= ARGV[2] then return false end
local record = redis.call('HGET', KEYS[2], ARGV[3])
if not record then return false end
redis.call('HDEL', KEYS[2], ARGV[3])
return record
