-- An upstream has said something on its own: for the other pods that want to hear it, it goes into the log of the
-- implicit session, and each is nudged.
--
-- KEYS[1] ear   KEYS[2] log   ARGV[1] pod of the caller   ARGV[2] message   ARGV[3] longest log   ARGV[4] TTL, seconds
-- ARGV[5] user id   ARGV[6] session id
-- Returns the number of pods nudged
local pods = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 2) == 'p:' and string.sub(field, 3) ~= ARGV[1] then pods[#pods + 1] = string.sub(field, 3) end
end
if #pods == 0 then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'm', ARGV[2], 'p', ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])
for _, pod in ipairs(pods) do
  redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'ear\n' .. ARGV[5] .. '\n' .. ARGV[6] .. '\nread')
end
return #pods
