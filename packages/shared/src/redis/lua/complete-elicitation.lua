-- The end of a flow, in one step: the credential is in the vault, the user's approval of this client is recorded,
-- the record says `completed`, and the client that asked is told. All or nothing, and once: a worker that was
-- frozen and comes back finds that its attempt is no longer the one, and writes nothing (cases R4).
--
-- KEYS[1] record   KEYS[2] vault entry   KEYS[3] consents   KEYS[4] session   KEYS[5] log
-- ARGV[1] state to come from: 'exchanging' (with a credential) or 'opened' (only the approval was missing)
-- ARGV[2] attempt that claimed the exchange, '' for 'opened'   ARGV[3] now, ms   ARGV[4] seconds that the record is kept
-- ARGV[5] sealed credential, '' to leave the vault alone   ARGV[6] TTL of vault and consents, seconds
-- ARGV[7] consent field, '' for none   ARGV[8] consent JSON   ARGV[9] message for the listening stream, '' when there is no session
-- ARGV[10] longest log   ARGV[11] TTL of the log, seconds   ARGV[12] user id   ARGV[13] session id   ARGV[14] elicitation id
-- ARGV[15] traceparent, '' for none: a line more in the nudges, which pods of before do not read
-- Returns false when there is none, else { 'completed' | 'already' | 'refused', state before, route or '' }
local trace = ARGV[15] ~= '' and '\n' .. ARGV[15] or ''
local record = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'waiters', 'expiresAtMs')
local from = record[1]
if not from then return false end
if from == 'completed' then return { 'already', from, '' } end
if from ~= ARGV[1] then return { 'refused', from, '' } end
if from == 'exchanging' and record[2] ~= ARGV[2] then return { 'refused', from, '' } end
if from == 'opened' then
  if tonumber(ARGV[3]) >= tonumber(record[4]) then return { 'refused', from, '' } end
  -- Only an approval: it must not end well for a credential that has been forgotten in between.
  if redis.call('EXISTS', KEYS[2]) == 0 then return { 'refused', from, '' } end
end
if ARGV[5] ~= '' then redis.call('SET', KEYS[2], ARGV[5], 'EX', ARGV[6]) end
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[7], ARGV[8])
  redis.call('EXPIRE', KEYS[3], ARGV[6])
end
redis.call('HSET', KEYS[1], 'state', 'completed', 'updatedAtMs', ARGV[3], 'at:completed', ARGV[3], 'action', 'approve')
redis.call('HDEL', KEYS[1], 'code')
redis.call('EXPIRE', KEYS[1], ARGV[4])
for pod in string.gmatch(record[3] or '', '%S+') do
  redis.call('PUBLISH', 'viaduct:pod:' .. pod, 'elicitation\n' .. ARGV[12] .. '\n' .. ARGV[14] .. '\n' .. trace)
end
if ARGV[9] == '' then return { 'completed', from, '' } end
if redis.call('EXISTS', KEYS[4]) == 0 then return { 'completed', from, '' } end
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[10], '*', 's', 'g', 'm', ARGV[9])
redis.call('EXPIRE', KEYS[5], ARGV[11])
local owner = redis.call('HGET', KEYS[4], 'owner')
if not owner then return { 'completed', from, 'stored' } end
redis.call('PUBLISH', 'viaduct:pod:' .. string.match(owner, '^[^|]+'),
  'event\n' .. ARGV[12] .. '\n' .. ARGV[13] .. '\ng' .. trace)
return { 'completed', from, 'remote' }
