-- A pod has nobody any more who wants to hear. If it was the one that listens, another one is told to.
--
-- KEYS[1] ear   ARGV[1] pod   ARGV[2] user id   ARGV[3] session id
-- Returns the pod that listens now, or ''
redis.call('HDEL', KEYS[1], 'p:' .. ARGV[1])
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then return '' end
if owner ~= ARGV[1] then return owner end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 2) == 'p:' then
    local heir = string.sub(field, 3)
    redis.call('HSET', KEYS[1], 'owner', heir)
    redis.call('PUBLISH', 'viaduct:pod:' .. heir, 'ear\n' .. ARGV[2] .. '\n' .. ARGV[3] .. '\nlisten')
    return heir
  end
end
redis.call('DEL', KEYS[1])
return ''
