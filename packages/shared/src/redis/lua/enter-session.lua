-- Everything that a request of a session asks of Redis: takes a point of each limit (take-points.lua), then loads the
-- session and touches it. Who is over a limit takes the point and nothing else.
-- The OAuth client and the endpoint are compared here, so a foreign session is one that does not exist.
-- Touching is five writes, so it waits until a hundredth of the TTL has passed since the last time.
--
-- KEYS[1] session   KEYS[2] log   KEYS[3] call streams   KEYS[4] pending   KEYS[5…] counters, then upstream hashes
-- ARGV[1] OAuth client id   ARGV[2] endpoint   ARGV[3] TTL, seconds   ARGV[4] now, ms   ARGV[5] TTL of upstream hashes
-- ARGV[6] number of counters   then points and window (seconds) of each
-- Returns the shortest list that says it: who is over a limit gets { { consumed, ms left, … of each counter } };
-- no session is { 0 }, one that a later version wrote { 2 }; a session is { 1, pv, caps, level, info, created, then sid, pv, era, caps of each upstream }
local counters = tonumber(ARGV[6])
local taken = {}
local over = false
for i = 1, counters do
  local key = KEYS[4 + i]
  local consumed = redis.call('INCR', key)
  local left = redis.call('PTTL', key)
  if left < 0 then
    left = ARGV[6 + 2 * i] * 1000
    redis.call('PEXPIRE', key, left)
  end
  taken[2 * i - 1] = consumed
  taken[2 * i] = left
  over = over or consumed > tonumber(ARGV[5 + 2 * i])
end
if over then return { taken } end

local s = redis.call('HMGET', KEYS[1], 'cid', 'ep', 'pv', 'caps', 'level', 'info', 'created', 'seen', 'v')
if not s[1] or s[1] ~= ARGV[1] or s[2] ~= ARGV[2] then return { 0 } end
if s[9] ~= '1' then return { 2 } end
local touch = math.abs(ARGV[4] - (tonumber(s[8]) or 0)) >= ARGV[3] * 10
if touch then
  redis.call('HSET', KEYS[1], 'seen', ARGV[4])
  for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
end
local reply = { 1, s[3], s[4], s[5] or '', s[6] or '', s[7] }
for i = 5 + counters, #KEYS do
  local leg = redis.call('HMGET', KEYS[i], 'sid', 'pv', 'era', 'caps')
  for field = 1, 4 do reply[#reply + 1] = leg[field] end
  if touch then redis.call('EXPIRE', KEYS[i], ARGV[5]) end
end
return reply
