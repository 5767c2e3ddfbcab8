-- Creates a session, with the upstream session that its initialize opened.
--
-- KEYS[1] session   KEYS[2…] upstream hashes
-- ARGV[1] TTL, seconds   ARGV[2] TTL of upstream hashes   ARGV[3] number n of session fields and values
-- ARGV[4 … 3+n] fields and values   then per upstream: m, m fields and values
-- Returns 1
local n = tonumber(ARGV[3])
redis.call('HSET', KEYS[1], unpack(ARGV, 4, 3 + n))
redis.call('EXPIRE', KEYS[1], ARGV[1])
local at = 4 + n
for i = 2, #KEYS do
  local m = tonumber(ARGV[at])
  if m > 0 then
    redis.call('HSET', KEYS[i], unpack(ARGV, at + 1, at + m))
    redis.call('EXPIRE', KEYS[i], ARGV[2])
  end
  at = at + 1 + m
end
return 1
