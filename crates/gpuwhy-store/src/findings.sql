-- Where threads' time went, and the answers. The views are documented in docs/run-file.md. New in version 2.

-- Where a thread's time went, by state and the op it was in (-1: none). One life of a thread id has one `since`.
CREATE TABLE ledger_ (
    pid INTEGER NOT NULL,
    tid INTEGER NOT NULL,
    since INTEGER NOT NULL,
    state TEXT NOT NULL,
    op INTEGER NOT NULL,
    ns INTEGER NOT NULL,
    PRIMARY KEY (pid, tid, since, state, op)
) WITHOUT ROWID;

CREATE VIEW ledger AS
SELECT
    l.pid AS pid,
    l.tid AS tid,
    COALESCE(
        (SELECT t.name FROM thread_ AS t WHERE t.pid = l.pid AND t.tid = l.tid ORDER BY t.since DESC LIMIT 1),
        (SELECT n.name FROM process_names AS n WHERE n.pid = l.pid)
    ) AS name,
    l.state AS state,
    o.name AS op,
    l.ns AS ns
FROM (SELECT pid, tid, state, op, SUM(ns) AS ns FROM ledger_ GROUP BY pid, tid, state, op) AS l
LEFT JOIN op_ AS o ON o.id = l.op;

CREATE VIEW causal_chains AS
SELECT
    id, detected_at, severity, kind, summary, root_cause, explanation, recommendations, pid, tid, lost_ns, finding
FROM causal_chain_ AS c
-- A later answer about the same part of the run replaces the earlier one here; in the table both stay.
WHERE detected_at = (
    SELECT MAX(n.detected_at) FROM causal_chain_ AS n WHERE n.from_ns IS c.from_ns AND n.to_ns IS c.to_ns);
