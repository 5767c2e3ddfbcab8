-- KEYS[1] key   ARGV[1] expected value   Returns 1 when it was deleted
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
