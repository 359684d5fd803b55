-- The views `events` and `inner_events`, which differ in one bit: $VIEW and $INNER are filled in by schema.rs.
-- CROSS JOIN keeps SQLite from turning the loops around: calls are scanned once, in order of time, and the
-- two small tables are looked up by row id.

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
    CASE WHEN o.arg0_is_bytes AND c.arg0 >= 0 THEN c.arg0 END AS bytes,
    CASE WHEN o.arg1_is_direction THEN
        CASE c.arg1 WHEN 0 THEN 'HtoH' WHEN 1 THEN 'HtoD' WHEN 2 THEN 'DtoH' WHEN 3 THEN 'DtoD' WHEN 4 THEN 'default' END
    END AS direction,
    CASE WHEN x.flags & 2 = 0 THEN x.ret END AS ret,
    COALESCE(c.weight, 1) AS weight,
    c.stack AS stack_id,
    (x.flags >> 1) & 1 AS unfinished
FROM call_ AS c CROSS JOIN context_ AS x ON x.id = c.context CROSS JOIN op_ AS o ON o.id = x.op
WHERE x.flags & 1 = $INNER;
