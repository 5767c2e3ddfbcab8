-- Takes a point of each limit, in the form of rate-limiter-flexible, so that both count the same keys.
--
-- KEYS[1…] counters   ARGV[i] window of counter i, seconds
-- Returns { consumed, milliseconds until the window ends } per counter, in one flat list
local reply = {}
for i = 1, #KEYS do
  local consumed = redis.call('INCR', KEYS[i])
  local left = redis.call('PTTL', KEYS[i])
  if left < 0 then
    left = ARGV[i] * 1000
    redis.call('PEXPIRE', KEYS[i], left)
  end
  reply[2 * i - 1] = consumed
  reply[2 * i] = left
end
return reply
