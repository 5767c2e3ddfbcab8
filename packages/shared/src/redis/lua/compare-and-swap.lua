-- As compare-and-set for what is there already; its time to live stays as it is.
--
-- KEYS[1] key   ARGV[1] expected value   ARGV[2] new value
-- Returns 1 when it was set
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
