-- Opens an elicitation, unless somebody has opened one for the same session and connection since the caller looked.
-- The caller has loaded what the pointer names and found it ended (or nothing there), and says so in ARGV[1].
--
-- KEYS[1] pointer to the unfinished one   KEYS[2] new record
-- ARGV[1] id that the pointer held, '' for none   ARGV[2] new id   ARGV[3] TTL of the pointer, seconds
-- ARGV[4] TTL of the record, seconds   ARGV[5…] fields and values
-- Returns '' when it was opened, else the id that the pointer holds now
local held = redis.call('GET', KEYS[1]) or ''
if held ~= ARGV[1] then return held end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
redis.call('HSET', KEYS[2], unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[2], ARGV[4])
return ''
