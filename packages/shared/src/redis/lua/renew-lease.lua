-- KEYS[1] lease   ARGV[1] holder's token   ARGV[2] milliseconds   Returns 1 while the lease is still the holder's
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
