-- The views `events` and `inner_events`, filled in by schema.rs. They differ in one bit, and in what follows at the end:
-- the kernel's events (switches.sql) for the one, nothing for the other.
-- CROSS JOIN keeps SQLite from turning the loops around: calls are scanned once, in order of time, and the
-- two small tables are looked up by row id. The CASTs give a column the same type in every part: only then does
-- SQLite merge the parts in order of time instead of making all rows first.

CREATE VIEW $VIEW AS
SELECT
    c.start AS timestamp,
    c.duration AS duration_ns,
    x.pid AS pid,
    x.tid AS tid,
    o.name AS op,
    o.function AS function,
    o.layer AS layer,
    o.class AS class,
    x.device AS device,
    x.stream AS stream,
    c.arg0 AS arg0,
    c.arg1 AS arg1,
    CAST(CASE WHEN o.arg0_is_bytes AND c.arg0 >= 0 THEN c.arg0 END AS INTEGER) AS bytes,
    CAST(CASE WHEN o.arg1_is_direction THEN
        CASE c.arg1 WHEN 0 THEN 'HtoH' WHEN 1 THEN 'HtoD' WHEN 2 THEN 'DtoH' WHEN 3 THEN 'DtoD' WHEN 4 THEN 'default' END
    END AS TEXT) AS direction,
    CAST(CASE WHEN x.flags & 2 = 0 THEN x.ret END AS INTEGER) AS ret,
    CAST(COALESCE(c.weight, 1) AS INTEGER) AS weight,
    x.stack AS stack_id,
    CAST((x.flags >> 1) & 1 AS INTEGER) AS unfinished,
    CAST(NULL AS TEXT) AS reason,
    CAST(NULL AS TEXT) AS wait,
    CAST(NULL AS TEXT) AS syscall,
    CAST(NULL AS INTEGER) AS ready_ns,
    CAST(NULL AS TEXT) AS woken_by,
    CAST(NULL AS INTEGER) AS waker_pid,
    CAST(NULL AS INTEGER) AS waker_tid,
    CAST(NULL AS INTEGER) AS cpu
FROM call_ AS c CROSS JOIN context_ AS x ON x.id = c.context CROSS JOIN op_ AS o ON o.id = x.op
WHERE x.flags & 1 = $INNER
$REST;
