-- Records how far the listening stream has been written, if this stream is still the listening one.
--
-- KEYS[1] session   ARGV[1] owner 'pod|stream'   ARGV[2] last entry id written
-- Returns 1 when it was recorded, 0 when the stream has been replaced
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'cursor', ARGV[2])
return 1
