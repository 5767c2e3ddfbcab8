-- Appends one message to a session's log and nudges the pod that holds the stream it belongs to.
-- The log is the truth; the nudge only says "read on" (invariant 4), so one PUBLISH is all an event costs.
--
-- KEYS[1] session hash   KEYS[2] log stream   KEYS[3] call streams hash
-- ARGV[1] stream: 'g' or a call stream's id   ARGV[2] message   ARGV[3] '1' when it is the stream's last
-- ARGV[4] longest log   ARGV[5] TTL of log and streams, seconds
-- ARGV[6] pod id of the caller, or '' when it holds no streams   ARGV[7] user id   ARGV[8] session id
-- ARGV[9] scopes that a replay of this entry needs, space separated
-- ARGV[10] traceparent, '' for none: a line more in the nudge, which pods of before do not read
-- Returns false when the session is gone, else { entry id, owner or '', 'local' | 'remote' | 'stored' }
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local stream = ARGV[1]
local fields = { 's', stream, 'm', ARGV[2] }
if ARGV[3] == '1' then fields[#fields + 1] = 'e'; fields[#fields + 1] = '1' end
if ARGV[9] ~= '' then fields[#fields + 1] = 'c'; fields[#fields + 1] = ARGV[9] end
local id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', unpack(fields))
redis.call('EXPIRE', KEYS[2], ARGV[5])
local owner
if stream == 'g' then
  owner = redis.call('HGET', KEYS[1], 'owner')
else
  owner = redis.call('HGET', KEYS[3], stream .. ':o')
  if ARGV[3] == '1' then redis.call('HDEL', KEYS[3], stream, stream .. ':o') end
end
if not owner then return { id, '', 'stored' } end
local pod = string.match(owner, '^[^|]+')
if pod == ARGV[6] then return { id, owner, 'local' } end
redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'event\n' .. ARGV[7] .. '\n' .. ARGV[8] .. '\n' .. stream
  .. (ARGV[10] ~= '' and '\n' .. ARGV[10] or ''))
return { id, owner, 'remote' }
