-- Records a call that waits for its client's answers, while the pod that makes this record keeps it open upstream.
--
-- KEYS[1] suspended call   KEYS[2] session   KEYS[3] upstream hash
-- ARGV[1] TTL, seconds   ARGV[2] TTL that session and upstream hash must have at least, seconds   ARGV[3…] fields and values
-- Returns 1
redis.call('HSET', KEYS[1], 'state', 'asking', 'round', '1', 'at', '0-0', unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[1])
for i = 2, 3 do
  local left = redis.call('TTL', KEYS[i])
  if left >= 0 and left < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[i], ARGV[2]) end
end
return 1
