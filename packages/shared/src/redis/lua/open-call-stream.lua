-- A call's answer becomes a stream: from here on it is in the log and survives its client's disconnect.
--
-- KEYS[1] session   KEYS[2] log   KEYS[3] call streams
-- ARGV[1] call stream id   ARGV[2] owner 'pod|stream'   ARGV[3] JSON: holder, request id, upstream, scopes
-- ARGV[4] '1' for a priming event (2025-11-25)   ARGV[5] longest log   ARGV[6] TTL, seconds   ARGV[7] scopes
-- Returns false when the session is gone, else the id of the priming entry or ''
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3], ARGV[1] .. ':o', ARGV[2])
redis.call('EXPIRE', KEYS[3], ARGV[6])
if ARGV[4] ~= '1' then return '' end
local fields = { 's', ARGV[1], 'm', '' }
if ARGV[7] ~= '' then fields[5] = 'c'; fields[6] = ARGV[7] end
local id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', unpack(fields))
redis.call('EXPIRE', KEYS[2], ARGV[6])
return id
