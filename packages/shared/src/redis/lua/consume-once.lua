-- Marks a code or a token of the authorization server as used; the first one to come does.
-- KEYS 1 marker, 2 the thing itself (same slot)
-- ARGV 1 now (epoch milliseconds)
-- -> 1: used by this call; 0: it had been used before; -1: there is no such thing
local ttl = redis.call('PTTL', KEYS[2])
if ttl == -2 then return -1 end
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) end
  return 1
end
return 0
