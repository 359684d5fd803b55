-- The public interface, documented in docs/run-file.md. Plain SQL: any SQLite client can read it.
-- CROSS JOIN keeps SQLite from turning the loops around: calls are scanned once, in order of time, and the
-- two small tables are looked up by row id.

CREATE VIEW events AS
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
WHERE x.flags & 1 = 0;

CREATE VIEW inner_events AS
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
WHERE x.flags & 1 = 1;

CREATE VIEW process_names AS
SELECT pid, COALESCE(name, 'pid ' || pid) AS name FROM process_;

CREATE VIEW processes AS
SELECT pid, COALESCE(name, 'pid ' || pid) AS name, started, ended FROM process_;

CREATE VIEW threads AS
SELECT DISTINCT pid, tid FROM context_;

CREATE VIEW ops AS
SELECT name AS op, function, layer, class, arg0, arg1 FROM op_;

CREATE VIEW sessions AS
SELECT
    strftime('%Y-%m-%dT%H:%M:%fZ', start_unix_ns / 1e9, 'unixepoch') AS start,
    strftime('%Y-%m-%dT%H:%M:%fZ', stop_unix_ns / 1e9, 'unixepoch') AS stop,
    COALESCE(duration_ns, (SELECT MAX(start) FROM call_)) AS duration_ns,
    gpu, driver, cuda, cpu, cores, memory_bytes, kernel, python, command, flags,
    events_seen, events_stored, events_lost, seconds_missing, stop_reason, version, own_cost,
    start_unix_ns, start_monotonic_ns
FROM session_;

CREATE VIEW seconds AS
SELECT
    s.second AS second,
    s.pid AS pid,
    o.name AS op,
    o.function AS function,
    NULLIF(s.device, -1) AS device,
    s.calls AS calls,
    s.errors AS errors,
    s.total_ns AS total_ns,
    s.max_ns AS max_ns,
    s.bytes AS bytes,
    s.histogram AS histogram
FROM second_ AS s CROSS JOIN op_ AS o ON o.id = s.op;

CREATE VIEW loss AS
SELECT l.second AS second, c.name AS cause, o.name AS op, l.count AS count, c.loses_event AS loses_event
FROM loss_ AS l JOIN cause_ AS c ON c.id = l.cause LEFT JOIN op_ AS o ON o.id = l.op;

CREATE VIEW libraries AS
SELECT path, library, inode, functions, attached_at, note FROM library_;

CREATE VIEW stack_traces AS
SELECT id AS stack_id, frames, top_line FROM stack_;

CREATE VIEW causal_chains AS
SELECT id, detected_at, severity, kind, summary, root_cause, explanation, recommendations, pid, lost_ns
FROM causal_chain_;
