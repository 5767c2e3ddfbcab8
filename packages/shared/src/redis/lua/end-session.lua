-- Ends a session on every pod: its keys go, and each pod that holds one of its streams is told once.
--
-- KEYS[1] session   KEYS[2] log   KEYS[3] call streams   KEYS[4] listeners   KEYS[5] pending   KEYS[6…] upstream hashes
-- ARGV[1] OAuth client id, or '' for the system itself   ARGV[2] endpoint   ARGV[3] user id   ARGV[4] session id
-- Returns false when it is not there (or not the caller's), else { { sid, pv } per upstream hash, … }
local s = redis.call('HMGET', KEYS[1], 'cid', 'ep')
if not s[1] then return false end
if ARGV[1] ~= '' and (s[1] ~= ARGV[1] or s[2] ~= ARGV[2]) then return false end
local pods = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do pods[string.match(member, '^[^|]+')] = true end
local streams = redis.call('HGETALL', KEYS[3])
for i = 1, #streams, 2 do
  if string.sub(streams[i], -2) == ':o' then
    pods[string.match(streams[i + 1], '^[^|]+')] = true
  else
    local ok, meta = pcall(cjson.decode, streams[i + 1])
    if ok and meta.holder then pods[meta.holder] = true end
  end
end
local reply = {}
for i = 6, #KEYS do reply[#reply + 1] = redis.call('HMGET', KEYS[i], 'sid', 'pv') end
redis.call('DEL', unpack(KEYS))
for pod in pairs(pods) do
  redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'ended\n' .. ARGV[3] .. '\n' .. ARGV[4] .. '\n')
end
return reply
