#!lua name=@LIBRARY@
-- queue.lua - how a job moves; queue.h says what each function promises.
--
-- KEYS[1] is the base B of one model's queue. All else is derived from it:
--   B:j:<id>    hash    a job: no TTL while it is open, then a small record that expires
--   B:w         zset    waiting: <group><id> by start tag, so that a group lies together
--   B:d         zset    delayed: id by the time it comes back
--   B:l         zset    leased: id by the lease's end
--   B:x         zset    dead: id by time
--   B:f         zset    tenants by finish tag, those ahead of the virtual time
--   B:tc        hash    open jobs a tenant
--   B:m         hash    v: virtual time; tokens: of the waiting jobs; groups, claims: counters;
--                       lost: leases that were lost
--   B:wk        zset    engines by the time until which they count as alive
--   B:wr        hash    tokens a second of those engines that know it
--   B:ev        stream  jobs that are over: j id, s state, w ms from enqueued to the last claim,
--                       t ms from there to the end (-1: never claimed)
--   B:bell      list    wakes engines
--   B:n:<name>  string  which engine holds a fixed name
--   B:p:<id>    string  a dead job's payload, for some hours
--
-- Times are Redis' own, in milliseconds: engines' clocks do not matter. Functions of two versions
-- may run on one queue during a deployment, so names carry the version, and a change of this layout
-- needs a new base and a new number in the name. Every loop has a bound: while a function runs, all
-- of Redis waits. A job's hash may be gone (removed by hand, lost in a failover): what of it still
-- lies in the sets is dropped where it is met, and never made a job again.
-- Lua trap: `..` writes large numbers as 1.7e+12; redis.call() writes them in full.

local HOUR = 3600000
local KEEP = { done = HOUR, expired = HOUR, cancelled = HOUR, dead = 7 * 24 * HOUR }
local KEEP_DEAD_PAYLOAD = 6 * HOUR
local DEAD_MAX = 10000
local EVENTS_MAX = 65536
local BELL_MAX = 16
local GROUP_MAX = 32 -- JOB_GROUP_MAX
local GROUP_DIGITS = 12
local SWEEP_LEASES, SWEEP_DELAYED, SWEEP_OLD = 64, 128, 64
local ENGINES_MAX = 256 -- whose rates are summed
local NAMED_LEASES = 1024
local SOLO_AFTER = 2 -- losses
local BACKOFF_FIRST, BACKOFF_MAX = 500, 30000
local OPEN = { waiting = true, delayed = true, leased = true }

local function now()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function key(b, id)
    return b .. ':j:' .. id
end

local function ring(b)
    if redis.call('LLEN', b .. ':bell') < BELL_MAX then
        redis.call('RPUSH', b .. ':bell', '1')
    end
end

local function new_group(b)
    return string.format('%0' .. GROUP_DIGITS .. 'x', redis.call('HINCRBY', b .. ':m', 'groups', 1))
end

local function virtual_time(b)
    return tonumber(redis.call('HGET', b .. ':m', 'v') or '0')
end

-- With the last open job the tags lose their meaning: nobody waits who could be overtaken. And the
-- counts are right again, whatever became of jobs that vanished.
local function begin_anew_if_idle(b)
    if redis.call('EXISTS', b .. ':w', b .. ':d', b .. ':l') == 0 then
        redis.call('UNLINK', b .. ':f', b .. ':tc')
        redis.call('HDEL', b .. ':m', 'v', 'tokens')
    end
end

-- One open job of a tenant less; it is in none of the sets any more.
local function count_out(b, tenant)
    if redis.call('HINCRBY', b .. ':tc', tenant, -1) <= 0 then
        redis.call('HDEL', b .. ':tc', tenant)
    end
    begin_anew_if_idle(b)
end

-- Drops what a set still has of a job that is not there. Nobody knows whose it was and what it cost.
local function drop(b, set, member)
    redis.call('ZREM', b .. set, member)
    begin_anew_if_idle(b)
end

local function enter_waiting(b, id)
    local j = key(b, id)
    local f = redis.call('HMGET', j, 'group', 'tag', 'tokens')
    redis.call('HSET', j, 'state', 'waiting')
    redis.call('ZADD', b .. ':w', f[2], f[1] .. id)
    redis.call('HINCRBY', b .. ':m', 'tokens', f[3])
end

local function leave_waiting(b, id, group, tokens)
    redis.call('ZREM', b .. ':w', group .. id)
    redis.call('HINCRBY', b .. ':m', 'tokens', -tokens)
end

-- The job is over and in none of the sets any more. The prompt goes; of a done job the token stays,
-- so that its engine may repeat a `complete` whose answer it never saw.
local function finish(b, id, t, state, err)
    local j = key(b, id)
    local f = redis.call('HMGET', j, 'tenant', 'payload', 'enqueued', 'started')
    local waited = f[4] and math.max(0, f[4] - f[3]) or -1
    local took = f[4] and math.max(0, t - f[4]) or -1
    redis.call('HSET', j, 'state', state, 'error', err, 'finished', t)
    redis.call('HDEL', j, 'payload', 'cancel')
    if state ~= 'done' then
        redis.call('HDEL', j, 'token')
    end
    if state == 'dead' then
        redis.call('SET', b .. ':p:' .. id, f[2] or '', 'PX', KEEP_DEAD_PAYLOAD)
        redis.call('ZADD', b .. ':x', t, id)
        redis.call('ZREMRANGEBYRANK', b .. ':x', 0, -DEAD_MAX - 1)
    end
    redis.call('PEXPIRE', j, KEEP[state])
    redis.call('XADD', b .. ':ev', 'MAXLEN', '~', EVENTS_MAX, '*', 'j', id, 's', state, 'w', waited,
               't', took)
    count_out(b, f[1])
end

-- Whether `token` is the claim that holds the job: the fence before every write of an engine.
local function holds(b, id, token)
    local f = redis.call('HMGET', key(b, id), 'state', 'token')
    return f[1] == 'leased' and f[2] == token, f[1], f[2]
end

-- Ends a lease that brought no result. A job keeps its tag and so is among the first when it is
-- back; there is no jitter in the delay, which would tear groups apart.
local function unlease(b, id, t, delay)
    local j = key(b, id)
    redis.call('ZREM', b .. ':l', id)
    redis.call('HDEL', j, 'token')
    if redis.call('HGET', j, 'cancel') then
        finish(b, id, t, 'cancelled', '')
    elseif delay > 0 then
        redis.call('HSET', j, 'state', 'delayed')
        redis.call('ZADD', b .. ':d', t + delay, id)
    else
        enter_waiting(b, id)
        ring(b)
    end
end

local function retry(b, id, t, err, max_deliveries, delay)
    local j = key(b, id)
    local f = redis.call('HMGET', j, 'attempt', 'cancel')
    local attempt = tonumber(f[1] or '1')
    if attempt >= max_deliveries and not f[2] then
        redis.call('ZREM', b .. ':l', id)
        return finish(b, id, t, 'dead', err)
    end
    redis.call('HSET', j, 'error', err)
    unlease(b, id, t, delay or math.min(BACKOFF_MAX, BACKOFF_FIRST * 2 ^ (attempt - 1)))
end

-- The engine is gone. One prompt may be what kills it: lost twice, a job leaves its group and runs
-- alone, so that the innocent get through and the guilty one dies alone.
local function lose(b, id, t, max_deliveries, delay)
    local j = key(b, id)
    redis.call('HINCRBY', b .. ':m', 'lost', 1)
    if redis.call('HINCRBY', j, 'lost', 1) == SOLO_AFTER then
        redis.call('HSET', j, 'solo', 1, 'group', new_group(b))
    end
    retry(b, id, t, 'lease_lost', max_deliveries, delay)
end

local function sweep(b, t, max_deliveries)
    local n = 0
    for _, id in ipairs(redis.call('ZRANGE', b .. ':l', '-inf', t, 'BYSCORE', 'LIMIT', 0,
                                   SWEEP_LEASES)) do
        if redis.call('HGET', key(b, id), 'state') == 'leased' then
            lose(b, id, t, max_deliveries)
            n = n + 1
        else
            drop(b, ':l', id)
        end
    end
    for _, id in ipairs(redis.call('ZRANGE', b .. ':d', '-inf', t, 'BYSCORE', 'LIMIT', 0,
                                   SWEEP_DELAYED)) do
        if redis.call('HGET', key(b, id), 'state') == 'delayed' then
            redis.call('ZREM', b .. ':d', id)
            enter_waiting(b, id)
            n = n + 1
        else
            drop(b, ':d', id)
        end
    end
    if n > 0 then
        ring(b)
    end
    local old = redis.call('ZRANGE', b .. ':x', '-inf', t - KEEP.dead, 'BYSCORE', 'LIMIT', 0,
                           SWEEP_OLD)
    if #old > 0 then
        redis.call('ZREM', b .. ':x', unpack(old))
    end
    return n
end

-- What the live engines compute together, as far as they know.
local function tokens_per_s(b, t)
    local live = redis.call('ZRANGE', b .. ':wk', '(' .. string.format('%.0f', t), '+inf',
                            'BYSCORE', 'LIMIT', 0, ENGINES_MAX)
    local sum = 0
    if #live > 0 then
        for _, rate in ipairs(redis.call('HMGET', b .. ':wr', unpack(live))) do
            sum = sum + tonumber(rate or '0')
        end
    end
    return string.format('%.17g', sum)
end

-- ---- the service's side ----

local function join(b, id, deadline)
    local j = key(b, id)
    local old = tonumber(redis.call('HGET', j, 'deadline'))
    if old ~= 0 and (deadline == 0 or deadline > old) then
        redis.call('HSET', j, 'deadline', deadline)
    end
    redis.call('HDEL', j, 'cancel')
    redis.call('HINCRBY', j, 'interest', 1)
end

local function add(b, id, t, group, tag, tenant, deadline, tokens, payload)
    local j = key(b, id)
    redis.call('DEL', j, b .. ':p:' .. id) -- DEL, as HSET would keep the old record's expiry
    redis.call('ZREM', b .. ':x', id)
    redis.call('HSET', j, 'tenant', tenant, 'group', group, 'tag', tag, 'tokens', tokens,
               'payload', payload, 'deadline', deadline, 'enqueued', t, 'attempt', 0, 'lost', 0,
               'interest', 1)
    enter_waiting(b, id)
    redis.call('HINCRBY', b .. ':tc', tenant, 1)
end

-- tenant weight lifetime max_open max_tenant force, then id tokens payload of each job.
-- Answers outcome, tokens ahead, tokens a second, then state, joined, error of each job.
local function submit(keys, args)
    local b, t = keys[1], now()
    local tenant, weight, lifetime = args[1], tonumber(args[2]), tonumber(args[3])
    local deadline = lifetime > 0 and t + lifetime or 0
    local max_open, max_tenant, force = tonumber(args[4]), tonumber(args[5]), args[6] == '1'

    -- look at all before touching one: all or none
    local new, cost, jobs = 0, 0, {}
    local seen = {}
    for i = 7, #args, 3 do
        local id = args[i]
        local job = { id = id, tokens = tonumber(args[i + 1]), payload = args[i + 2] }
        local f = redis.call('HMGET', key(b, id), 'state', 'error')
        job.state, job.error = f[1], f[2] or ''
        job.again = seen[id] -- the same prompt twice in one request: one job, one interest
        -- expired and cancelled say something of who asked, not of the prompt
        job.over = not force and (job.state == 'done' or job.state == 'dead')
        if not job.again and not job.over and not OPEN[job.state] then
            job.new = true
            new = new + 1
            cost = cost + job.tokens
        end
        seen[id] = true
        jobs[#jobs + 1] = job
    end

    -- start-time fair queueing: a group starts where its tenant's last one ends, or now
    local tag = math.max(virtual_time(b), tonumber(redis.call('ZSCORE', b .. ':f', tenant) or '0'))
    local waiting = redis.call('ZCARD', b .. ':w')
    local ahead = 0
    if waiting > 0 then -- as many tokens as that share of the queue has on average
        ahead = math.floor(tonumber(redis.call('HGET', b .. ':m', 'tokens') or '0') *
                           redis.call('ZCOUNT', b .. ':w', '-inf', tag) / waiting)
    end
    local rate = tokens_per_s(b, t)
    if new > 0 then
        if tonumber(redis.call('HGET', b .. ':tc', tenant) or '0') + new > max_tenant then
            return { 'tenant_full', ahead, rate }
        end
        if waiting + redis.call('ZCARD', b .. ':d') + new > max_open then
            return { 'full', ahead, rate }
        end
    end

    local out = { 'queued', ahead, rate }
    local group = new > 0 and new_group(b)
    for _, job in ipairs(jobs) do
        local joined = 1
        if job.new then
            add(b, job.id, t, group, tag, tenant, deadline, job.tokens, job.payload)
            joined = 0
        elseif OPEN[job.state] and not job.again then
            join(b, job.id, deadline)
        end
        out[#out + 1] = job.over and job.state or redis.call('HGET', key(b, job.id), 'state')
        out[#out + 1] = job.over and 0 or joined
        out[#out + 1] = job.over and job.error or ''
    end
    if new > 0 then
        redis.call('ZADD', b .. ':f', tag + cost / weight, tenant)
        ring(b)
    end
    return out
end

-- id of each job. Answers of each state, attempt, place, enqueued, started, finished, error, tenant.
local function status(keys, args)
    local b, out = keys[1], {}
    for i, id in ipairs(args) do
        local f = redis.call('HMGET', key(b, id), 'state', 'attempt', 'enqueued', 'started',
                             'finished', 'error', 'tenant', 'group')
        if f[1] then
            local place = f[1] == 'waiting' and redis.call('ZRANK', b .. ':w', f[8] .. id) or -1
            out[i] = { f[1], tonumber(f[2]), place, tonumber(f[3]), tonumber(f[4] or '0'),
                       tonumber(f[5] or '0'), f[6] or '', f[7] }
        else
            out[i] = { 'none' }
        end
    end
    return out
end

-- id. Answers the state it is in now.
local function cancel(keys, args)
    local b, id, t = keys[1], args[1], now()
    local j = key(b, id)
    local f = redis.call('HMGET', j, 'state', 'interest', 'group', 'tokens')
    if not OPEN[f[1]] then
        return f[1] or 'none'
    end
    local interest = math.max(0, tonumber(f[2]) - 1)
    redis.call('HSET', j, 'interest', interest)
    if interest > 0 then
        return f[1]
    end
    if f[1] == 'leased' then -- its engine has it, and is told when it renews
        redis.call('HSET', j, 'cancel', 1)
        return 'leased'
    end
    if f[1] == 'waiting' then
        leave_waiting(b, id, f[3], f[4])
    else
        redis.call('ZREM', b .. ':d', id)
    end
    finish(b, id, t, 'cancelled', '')
    return 'cancelled'
end

-- ---- the engine's side ----

-- The jobs of the group that begins at window[i], without those that are over their deadline.
-- Returns them, what they cost, and where the next group begins.
local function read_group(b, t, window, i)
    local group = string.sub(window[i], 1, GROUP_DIGITS)
    local jobs, cost = {}, 0
    while i <= #window and string.sub(window[i], 1, GROUP_DIGITS) == group do
        local id = string.sub(window[i], GROUP_DIGITS + 1)
        local f = redis.call('HMGET', key(b, id), 'state', 'deadline', 'tokens', 'solo', 'tag')
        local deadline, tokens = tonumber(f[2] or '0'), tonumber(f[3] or '0')
        if f[1] ~= 'waiting' then
            drop(b, ':w', window[i])
        elseif deadline ~= 0 and deadline < t then
            leave_waiting(b, id, group, tokens)
            finish(b, id, t, 'expired', 'deadline')
        else
            jobs[#jobs + 1] = { id = id, group = group, deadline = deadline, tokens = tokens,
                                solo = f[4] == '1', tag = tonumber(f[5]) }
            cost = cost + tokens
        end
        i = i + 1
    end
    return jobs, cost, i
end

-- The number in the token counts claims, not attempts: those begin anew when a job is released or
-- forced, and a token must never come back.
local function lease(b, t, job, owner, lease_end)
    local j = key(b, job.id)
    local token = string.format('%s:%.0f', owner, redis.call('HINCRBY', b .. ':m', 'claims', 1))
    local attempt = redis.call('HINCRBY', j, 'attempt', 1)
    leave_waiting(b, job.id, job.group, job.tokens)
    redis.call('HSET', j, 'state', 'leased', 'token', token, 'started', t)
    redis.call('ZADD', b .. ':l', lease_end, job.id)
    local f = redis.call('HMGET', j, 'payload', 'enqueued')
    return { job.id, token, attempt, job.solo and 1 or 0, job.tokens, job.deadline,
             math.max(0, t - f[2]), f[1] or '' }
end

-- An engine is there until `lease_end`, and computes so many tokens a second (0: not known); what
-- is known of engines that are gone is forgotten.
local function see_engine(b, t, owner, lease_end, rate)
    redis.call('ZADD', b .. ':wk', lease_end, owner)
    if tonumber(rate) > 0 then
        redis.call('HSET', b .. ':wr', owner, rate)
    else
        redis.call('HDEL', b .. ':wr', owner)
    end
    local gone = redis.call('ZRANGE', b .. ':wk', '-inf', t, 'BYSCORE', 'LIMIT', 0, SWEEP_OLD)
    if #gone > 0 then
        redis.call('ZREM', b .. ':wk', unpack(gone))
        redis.call('HDEL', b .. ':wr', unpack(gone))
    end
end

-- owner budget max_jobs lease_ms tokens_per_s max_deliveries
local function claim(keys, args)
    local b, t, owner = keys[1], now(), args[1]
    local budget, max_jobs = tonumber(args[2]), tonumber(args[3])
    local lease_end = t + tonumber(args[4])

    see_engine(b, t, owner, lease_end, args[5])
    sweep(b, t, tonumber(args[6]))

    -- a group that begins among the first max_jobs lies in the window as a whole
    local window = redis.call('ZRANGE', b .. ':w', 0, max_jobs + GROUP_MAX - 1)
    local out, tokens, v, i = {}, 0, virtual_time(b), 1
    local function take(job)
        out[#out + 1] = lease(b, t, job, owner, lease_end)
        tokens = tokens + job.tokens
        v = math.max(v, job.tag)
    end
    while i <= math.min(#window, max_jobs) and #out < max_jobs do
        local jobs, cost
        jobs, cost, i = read_group(b, t, window, i)
        local fits = tokens + cost <= budget and #out + #jobs <= max_jobs
        if #jobs == 0 then
            -- all expired: on to the next group
        elseif fits and not jobs[1].solo then
            for _, job in ipairs(jobs) do
                take(job)
            end
        else
            -- Leave it whole for the next claim, unless this one is still empty: then it would not
            -- fit there either. A job over the whole budget goes alone, as a solo job does.
            if #out == 0 then
                for _, job in ipairs(jobs) do
                    if #out > 0 and (tokens + job.tokens > budget or #out == max_jobs) then
                        break
                    end
                    take(job)
                end
            end
            break
        end
    end

    if #out > 0 then
        redis.call('HSET', b .. ':m', 'v', v)
        -- who is not ahead of the virtual time begins there anyway
        local behind = redis.call('ZRANGE', b .. ':f', '-inf', v, 'BYSCORE', 'LIMIT', 0, SWEEP_OLD)
        if #behind > 0 then
            redis.call('ZREM', b .. ':f', unpack(behind))
        end
    end
    if redis.call('EXISTS', b .. ':w') == 1 then
        ring(b)
    end
    return out
end

-- owner lease_ms, then id token of each job
local function renew(keys, args)
    local b, t = keys[1], now()
    local lease_end = t + tonumber(args[2])
    local out = {}
    redis.call('ZADD', b .. ':wk', lease_end, args[1])
    for i = 3, #args, 2 do
        local id = args[i]
        if not holds(b, id, args[i + 1]) then
            out[#out + 1] = 'stale'
        else
            redis.call('ZADD', b .. ':l', lease_end, id)
            out[#out + 1] = redis.call('HGET', key(b, id), 'cancel') and 'cancelled' or 'ok'
        end
    end
    return out
end

-- id token of each job; the results are in the cache already
local function complete(keys, args)
    local b, t, out = keys[1], now(), {}
    for i = 1, #args, 2 do
        local id, claimed = args[i], args[i + 1]
        local ours, state, token = holds(b, id, claimed)
        if ours then
            redis.call('ZREM', b .. ':l', id)
            finish(b, id, t, 'done', '')
        end
        out[#out + 1] = (ours or state == 'done' and token == claimed) and 'ok' or 'stale'
    end
    return out
end

-- id token permanent error max_deliveries
local function fail(keys, args)
    local b, id, t = keys[1], args[1], now()
    if not holds(b, id, args[2]) then
        return 'stale'
    end
    if args[3] == '1' then
        redis.call('ZREM', b .. ':l', id)
        finish(b, id, t, 'dead', args[4])
    else
        retry(b, id, t, args[4], tonumber(args[5]))
    end
    return 'ok'
end

-- id token
local function release(keys, args)
    local b, id = keys[1], args[1]
    if not holds(b, id, args[2]) then
        return 'stale'
    end
    redis.call('HINCRBY', key(b, id), 'attempt', -1)
    unlease(b, id, now(), 0)
    return 'ok'
end

-- owner instance lock_ms max_deliveries. Answers -1 when another has the name.
local function take_name(keys, args)
    local b, t, owner, n = keys[1], now(), args[1], 0
    local lock = b .. ':n:' .. owner
    local holder = redis.call('GET', lock)
    if holder and holder ~= args[2] then
        return -1
    end
    redis.call('SET', lock, args[2], 'PX', args[3])
    if holder then
        return 0
    end
    for _, id in ipairs(redis.call('ZRANGE', b .. ':l', 0, NAMED_LEASES - 1)) do
        local token = redis.call('HGET', key(b, id), 'token') or ''
        if string.match(token, '^(.*):%d+$') == owner then
            lose(b, id, t, tonumber(args[4]), 0)
            n = n + 1
        end
    end
    return n
end

-- owner instance
local function drop_name(keys, args)
    local lock = keys[1] .. ':n:' .. args[1]
    if redis.call('GET', lock) == args[2] then
        redis.call('DEL', lock)
    end
    return 0
end

-- Answers waiting, delayed, leased, dead, waiting tokens, wait of the next in line, engines, leases
-- lost, tokens a second.
local function depth(keys)
    local b, t = keys[1], now()
    local m = redis.call('HMGET', b .. ':m', 'tokens', 'lost')
    local first = redis.call('ZRANGE', b .. ':w', 0, 0)[1]
    local since = first and
        redis.call('HGET', key(b, string.sub(first, GROUP_DIGITS + 1)), 'enqueued')
    return { redis.call('ZCARD', b .. ':w'), redis.call('ZCARD', b .. ':d'),
             redis.call('ZCARD', b .. ':l'), redis.call('ZCARD', b .. ':x'),
             tonumber(m[1] or '0'), since and math.max(1, t - tonumber(since)) or 0,
             redis.call('ZCOUNT', b .. ':wk', t + 1, '+inf'), tonumber(m[2] or '0'),
             tokens_per_s(b, t) }
end

-- Only new work is refused when Redis is full: what runs must be able to end.
redis.register_function('@LIBRARY@_submit', submit)
local function register(name, callback, ...)
    redis.register_function {
        function_name = '@LIBRARY@_' .. name,
        callback = callback,
        flags = { 'allow-oom', ... },
    }
end
register('status', status, 'no-writes')
register('depth', depth, 'no-writes')
register('cancel', cancel)
register('claim', claim)
register('renew', renew)
register('complete', complete)
register('fail', fail)
register('release', release)
-- What an engine says when it was told that nobody wants its job: unlease() looks once more, as
-- someone may have joined since.
register('cancelled', release)
register('take_name', take_name)
register('drop_name', drop_name)
register('sweep', function(keys, args)
    return sweep(keys[1], now(), tonumber(args[1]))
end)
