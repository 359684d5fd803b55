-- The kernel's part of `events`: each time off the CPU, and the wake-up in it. Names are literals, so that a filter on
-- another op skips these tables; LEFT JOIN, so that SQLite leaves out the lookups a query has no use for.
UNION ALL
SELECT
    f.start,
    f.duration,
    x.pid,
    x.tid,
    CAST('sched_switch' AS TEXT),
    CAST('sched_switch' AS TEXT),
    CAST('kernel' AS TEXT),
    CAST('sched' AS TEXT),
    CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS INTEGER),
    CAST(NULL AS TEXT),
    CAST(NULL AS INTEGER),
    CAST(COALESCE(f.weight, 1) AS INTEGER),
    x.stack,
    x.unfinished,
    x.reason,
    x.wait,
    x.syscall,
    f.ready,
    w.woken_by,
    w.pid,
    w.tid,
    CAST(f.cpus & 65535 AS INTEGER)
FROM off_ AS f LEFT JOIN off_context_ AS x ON x.id = f.context LEFT JOIN waker_ AS w ON w.id = f.waker
UNION ALL
SELECT
    CAST(f.start + f.duration - f.ready AS INTEGER),
    CAST(0 AS INTEGER),
    x.pid,
    x.tid,
    CAST('sched_wakeup' AS TEXT),
    CAST('sched_wakeup' AS TEXT),
    CAST('kernel' AS TEXT),
    CAST('sched' AS TEXT),
    CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS INTEGER),
    CAST(NULL AS TEXT),
    CAST(NULL AS INTEGER),
    CAST(COALESCE(f.weight, 1) AS INTEGER),
    CAST(NULL AS INTEGER),
    CAST(0 AS INTEGER),
    x.reason,
    x.wait,
    x.syscall,
    f.ready,
    w.woken_by,
    w.pid,
    w.tid,
    CAST(f.cpus & 65535 AS INTEGER)
FROM off_ AS f CROSS JOIN off_context_ AS x ON x.id = f.context LEFT JOIN waker_ AS w ON w.id = f.waker
WHERE f.waker > 0 AND x.unfinished = 0
