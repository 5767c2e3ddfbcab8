-- Nobody has answered in time: the record goes, unless a retry has just taken the round.
--
-- KEYS[1] suspended call   KEYS[2] continuation   ARGV[1] round
-- Returns 1 when it is over, 0 when the call goes on
local s = redis.call('HMGET', KEYS[1], 'state', 'round')
if s[1] and (s[1] ~= 'asking' or s[2] ~= ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
