-- A pod waits for the end of an elicitation and wants one nudge when it comes. Noting it and reading the record
-- are one step, so no end falls between the two.
--
-- KEYS[1] record   ARGV[1] pod id
-- Returns false when there is none, else the record's fields and values
local waiters = redis.call('HGET', KEYS[1], 'waiters')
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
if not waiters then
  redis.call('HSET', KEYS[1], 'waiters', ARGV[1])
elseif not string.find(' ' .. waiters .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then
  redis.call('HSET', KEYS[1], 'waiters', waiters .. ' ' .. ARGV[1])
end
return redis.call('HGETALL', KEYS[1])
