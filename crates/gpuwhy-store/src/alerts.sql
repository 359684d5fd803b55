-- What people were alerted of while the run was recorded. New in version 5. The view is documented in docs/run-file.md.
-- value and threshold are in the unit of the rule: percent, bytes or bytes a second.
CREATE TABLE alert_ (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    cleared INTEGER,
    level TEXT NOT NULL,
    kind TEXT NOT NULL,
    rule TEXT NOT NULL,
    pid INTEGER,
    device INTEGER,
    gpu INTEGER,
    value REAL NOT NULL,
    threshold REAL,
    text TEXT NOT NULL
);

CREATE VIEW alerts AS
SELECT
    id, at AS at_ns, level, kind, rule, pid, device, gpu, value, threshold, text, cleared AS cleared_ns
FROM alert_;
