-- The public interface, documented in docs/run-file.md. Plain SQL: any SQLite client can read it.
-- The two views of events are in calls.sql, those of threads and samples in host_views.sql,
-- those of answers in findings.sql, the run itself in sessions.sql.

CREATE VIEW process_names AS
SELECT pid, COALESCE(name || ':' || number, name, 'pid ' || pid) AS name FROM process_;

CREATE VIEW processes AS
SELECT pid, COALESCE(name || ':' || number, name, 'pid ' || pid) AS name, started, ended, parent, container, command
FROM process_;

CREATE VIEW threads AS
SELECT pid, tid FROM context_ UNION SELECT pid, tid FROM off_context_ UNION SELECT pid, tid FROM thread_;

CREATE VIEW ops AS
SELECT name AS op, function, layer, class, arg0, arg1 FROM op_;

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
