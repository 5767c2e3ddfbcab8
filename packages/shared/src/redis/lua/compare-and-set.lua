-- KEYS[1] key   ARGV[1] expected value, '' for "no such key"   ARGV[2] new value   ARGV[3] TTL, seconds
-- Returns 1 when it was set
local now = redis.call('GET', KEYS[1])
if (now or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
