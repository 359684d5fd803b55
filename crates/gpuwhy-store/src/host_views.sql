-- The public views of threads, CPUs and samples, documented in docs/run-file.md; that of the machine is in merge.sql.

CREATE VIEW off_cpu AS
SELECT
    f.start AS timestamp,
    f.duration AS duration_ns,
    x.pid AS pid,
    x.tid AS tid,
    x.reason AS reason,
    x.wait AS wait,
    x.file AS file,
    x.syscall AS syscall,
    f.object AS object,
    f.timeout AS timeout_ns,
    x.io_wait AS io_wait,
    f.duration - f.ready AS blocked_ns,
    f.ready AS ready_ns,
    w.woken_by AS woken_by,
    w.pid AS waker_pid,
    w.tid AS waker_tid,
    CASE WHEN f.cpus < 65536 THEN f.cpus ELSE (f.cpus >> 16) - 1 END AS left_cpu,
    f.cpus & 65535 AS cpu,
    x.unfinished AS unfinished,
    COALESCE(f.weight, 1) AS weight,
    x.stack AS stack_id
FROM off_ AS f LEFT JOIN off_context_ AS x ON x.id = f.context LEFT JOIN waker_ AS w ON w.id = f.waker;

CREATE VIEW cpu_runs AS
SELECT r.start AS timestamp, r.duration AS duration_ns, r.cpu AS cpu, n.pid AS pid, n.tid AS tid, n.name AS name
FROM cpu_run_ AS r LEFT JOIN runner_ AS n ON n.id = r.runner;

-- A moved part belongs to the time off the CPU that it overlaps. Because of ties that may be stored a few
-- nanoseconds late, the search begins a little before it.
CREATE VIEW cpu_waits AS
SELECT start AS timestamp, duration AS duration_ns, pid, tid, cpu FROM moved_wait_
UNION ALL
SELECT ended - last, last, pid, tid, cpu FROM (
    SELECT
        f.start + f.duration AS ended,
        f.ready - COALESCE((
            SELECT SUM(m.duration) FROM moved_wait_ AS m
            WHERE m.tid = x.tid AND m.start > f.start - 1000 AND m.start < f.start + f.duration
                AND m.start + m.duration > f.start AND m.pid = x.pid
        ), 0) AS last,
        x.pid AS pid, x.tid AS tid, f.cpus & 65535 AS cpu
    FROM off_ AS f CROSS JOIN off_context_ AS x ON x.id = f.context
    WHERE f.ready > 0 AND x.reason <> 'throttled'
) WHERE last > 0;

-- Runs on one CPU do not overlap: the first that matters is the last that began when the wait did, or before.
-- A thread does not wait for itself: that would be a row stored a nanosecond late because of a tie.
CREATE VIEW cpu_held AS
SELECT
    MAX(q.timestamp, r.start) AS timestamp,
    MIN(q.timestamp + q.duration_ns, r.start + r.duration) - MAX(q.timestamp, r.start) AS duration_ns,
    q.pid AS pid,
    q.tid AS tid,
    q.cpu AS cpu,
    n.pid AS holder_pid,
    n.tid AS holder_tid,
    n.name AS holder_name
FROM cpu_waits AS q
CROSS JOIN cpu_run_ AS r ON r.cpu = q.cpu
    AND r.start >= COALESCE(
        (SELECT MAX(b.start) FROM cpu_run_ AS b WHERE b.cpu = q.cpu AND b.start <= q.timestamp), q.timestamp)
    AND r.start < q.timestamp + q.duration_ns
    AND r.start + r.duration > q.timestamp
LEFT JOIN runner_ AS n ON n.id = r.runner
WHERE n.tid IS NOT q.tid;

-- A thread's name and end are those of its last life.
CREATE VIEW thread_time AS
SELECT
    t.pid AS pid,
    t.tid AS tid,
    (SELECT l.name FROM thread_ AS l WHERE l.pid = t.pid AND l.tid = t.tid ORDER BY l.since DESC LIMIT 1) AS name,
    SUM(t.at - t.since) AS lifetime_ns,
    SUM(t.on_cpu_ns) AS on_cpu_ns,
    SUM(t.ready_ns) AS ready_ns,
    SUM(t.blocked_ns) AS blocked_ns,
    SUM(t.throttled_ns) AS throttled_ns,
    SUM(t.switches) AS switches,
    MIN(t.since) AS since,
    MIN(t.born) AS born,
    (SELECT l.ended FROM thread_ AS l WHERE l.pid = t.pid AND l.tid = t.tid ORDER BY l.since DESC LIMIT 1) AS ended,
    SUM(t.page_allocations) AS page_allocations,
    SUM(t.page_bytes) AS page_bytes
FROM thread_ AS t GROUP BY t.pid, t.tid;

CREATE VIEW process_seconds AS
SELECT
    at / 1000000000 AS second, at AS timestamp, span_ns, pid, user_ns, system_ns, resident, anonymous, swapped,
    threads, major_faults, minor_faults, read_bytes, write_bytes, page_allocations, page_bytes
FROM process_second_;

CREATE VIEW cgroup_seconds AS
SELECT
    s.at / 1000000000 AS second, s.at AS timestamp, g.path AS path, g.version AS version, s.quota_ns AS quota_ns,
    s.period_ns AS period_ns, s.periods AS periods, s.throttled_periods AS throttled_periods,
    s.throttled_ns AS throttled_ns, s.usage_ns AS usage_ns, s.memory_used AS memory_used,
    s.memory_limit AS memory_limit, s.oom_kills AS oom_kills
FROM cgroup_second_ AS s LEFT JOIN cgroup_ AS g ON g.id = s.cgroup;

CREATE VIEW gpu_seconds AS
SELECT
    at / 1000000000 AS second, at AS timestamp, gpu, rate_percent, memory_rate_percent, memory_used, memory_total,
    sm_mhz, memory_mhz, power_mw, temperature_c, throttle_reasons
FROM gpu_second_;

CREATE VIEW gpu_busy AS
SELECT at AS timestamp, gpu, percent FROM gpu_busy_;

CREATE VIEW gpu_processes AS
SELECT at / 1000000000 AS second, at AS timestamp, gpu, pid, bytes, sm_percent, name FROM gpu_process_;

CREATE VIEW gpu_errors AS
SELECT at AS timestamp, gpu, xid FROM gpu_error_;

CREATE VIEW gpus AS
SELECT gpu, name, uuid, bus FROM gpu_;
