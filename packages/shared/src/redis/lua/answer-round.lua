-- Keeps a client's answer for the pod whose call waits for it: the first answer wins, whichever pod it arrives at.
-- The record makes way for the answer, so that a late or a second one finds nothing to answer.
--
-- KEYS[1] session   KEYS[2] pending
-- ARGV[1] OAuth client id   ARGV[2] endpoint   ARGV[3] gateway's request id   ARGV[4] answer, beginning with '='
-- ARGV[5] pod id of the caller   ARGV[6] user id   ARGV[7] session id   ARGV[8] TTL, seconds
-- Returns false when nobody waits, else the round; another pod than the caller's has been told
local s = redis.call('HMGET', KEYS[1], 'cid', 'ep')
if not s[1] or s[1] ~= ARGV[1] or s[2] ~= ARGV[2] then return false end
local record = redis.call('HGET', KEYS[2], ARGV[3])
if not record or string.sub(record, 1, 1) ~= '{' then return false end
local waiting = cjson.decode(record)
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[8])
if waiting.holder ~= ARGV[5] then
  redis.call('PUBLISH', 'viaduct:pod:' .. waiting.holder,
    'answered\n' .. ARGV[6] .. '\n' .. ARGV[7] .. '\n' .. waiting.round)
end
return waiting.round
