-- Somebody else has opened this elicitation's link. A record that is gone meanwhile is not made anew.
--
-- KEYS[1] elicitation   ARGV[1] user id of the stranger   ARGV[2] now, ms
-- Returns how often that was, 0 when there is no record
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'lastStranger', ARGV[1], 'lastStrangerAtMs', ARGV[2])
return redis.call('HINCRBY', KEYS[1], 'strangers', 1)
