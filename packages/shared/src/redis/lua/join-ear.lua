-- A pod wants to hear what the upstream of an implicit session says on its own. One pod listens for all of them: the
-- first that asks, until it leaves or is found dead.
--
-- KEYS[1] ear   KEYS[2] log   ARGV[1] pod   ARGV[2] TTL, seconds   ARGV[3] pod that is known to be dead, or ''
-- Returns { pod that listens, last entry id of the log or '0-0' }
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner == ARGV[3] then
  redis.call('HDEL', KEYS[1], 'p:' .. owner)
  owner = false
end
if not owner then
  owner = ARGV[1]
  redis.call('HSET', KEYS[1], 'owner', owner)
end
redis.call('HSET', KEYS[1], 'p:' .. ARGV[1], '1')
redis.call('EXPIRE', KEYS[1], ARGV[2])
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return { owner, last and last[1] or '0-0' }
