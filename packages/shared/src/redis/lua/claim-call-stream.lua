-- A client resumes a call's stream, on this pod from now on.
--
-- KEYS[1] session   KEYS[2] call streams
-- ARGV[1] OAuth client id   ARGV[2] endpoint   ARGV[3] call stream id   ARGV[4] owner 'pod|stream'   ARGV[5] TTL, seconds
-- ARGV[6] now, ms
-- Returns false when the session is not there (or not the caller's); '' when the call is over (what is in the
-- log is all there will be); else the JSON that open-call-stream recorded
local s = redis.call('HMGET', KEYS[1], 'cid', 'ep')
if not s[1] or s[1] ~= ARGV[1] or s[2] ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], 'seen', ARGV[6])
redis.call('EXPIRE', KEYS[1], ARGV[5])
local meta = redis.call('HGET', KEYS[2], ARGV[3])
if not meta then return '' end
redis.call('HSET', KEYS[2], ARGV[3] .. ':o', ARGV[4])
return meta
