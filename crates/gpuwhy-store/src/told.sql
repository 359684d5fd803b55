-- What libraries tell beside their calls, tables and views. Times are nanoseconds since the run began.

-- One row for each report of PyTorch's allocator; the row id is its time, as in call_.
CREATE TABLE tensor_ (
    start INTEGER PRIMARY KEY,
    context INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    address INTEGER NOT NULL,
    allocated INTEGER NOT NULL,
    reserved INTEGER NOT NULL
);

CREATE TABLE communicator_ (
    at INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    tid INTEGER NOT NULL,
    op INTEGER NOT NULL,
    device INTEGER,
    handle INTEGER NOT NULL,
    id INTEGER,
    ranks INTEGER,
    rank INTEGER,
    parent INTEGER,
    color INTEGER,
    key INTEGER,
    PRIMARY KEY (pid, handle, at)
) WITHOUT ROWID;

-- Calls that exchange data between ranks, with what call_ has no room for.
CREATE TABLE transfer_ (
    at INTEGER NOT NULL,
    duration INTEGER NOT NULL,
    context INTEGER NOT NULL,
    bytes INTEGER,
    communicator INTEGER,
    sequence INTEGER,
    peer INTEGER
);

CREATE TABLE function_ (
    pid INTEGER NOT NULL,
    handle INTEGER NOT NULL,
    at INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (pid, handle, at)
) WITHOUT ROWID;

CREATE TABLE unwatched_ (
    pid INTEGER NOT NULL,
    library TEXT NOT NULL,
    path TEXT NOT NULL,
    from_ns INTEGER NOT NULL,
    to_ns INTEGER NOT NULL
);

-- What was done to keep within the budget. op -1: what is no op. input: in which of the merged runs. pid NULL: all
-- processes. The view is in governor.sql.
CREATE TABLE governor_ (
    at INTEGER NOT NULL,
    op INTEGER NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    input INTEGER NOT NULL DEFAULT 0,
    pid INTEGER
);

CREATE VIEW allocations AS
SELECT
    t.start AS timestamp,
    x.pid AS pid,
    x.tid AS tid,
    x.device AS device,
    o.name AS op,
    t.bytes AS bytes,
    t.address AS address,
    t.allocated AS allocated,
    t.reserved AS reserved,
    x.stack AS stack_id
FROM tensor_ AS t CROSS JOIN context_ AS x ON x.id = t.context CROSS JOIN op_ AS o ON o.id = x.op;

CREATE VIEW communicators AS
SELECT c.at AS timestamp, c.pid AS pid, c.tid AS tid, o.function AS function, c.device AS device,
    c.handle AS communicator, c.id AS id, c.ranks AS ranks, c.rank AS rank, c.parent AS parent, c.color AS color, c.key AS key
FROM communicator_ AS c CROSS JOIN op_ AS o ON o.id = c.op;

CREATE VIEW collectives AS
SELECT
    t.at AS timestamp,
    t.duration AS duration_ns,
    x.pid AS pid,
    x.tid AS tid,
    o.name AS op,
    x.device AS device,
    x.stream AS stream,
    t.bytes AS bytes,
    t.communicator AS communicator,
    c.rank AS rank,
    c.ranks AS ranks,
    c.id AS id,
    t.sequence AS sequence,
    t.peer AS peer,
    CASE WHEN x.flags & 2 = 0 THEN x.ret END AS ret,
    x.stack AS stack_id
FROM transfer_ AS t CROSS JOIN context_ AS x ON x.id = t.context CROSS JOIN op_ AS o ON o.id = x.op
LEFT JOIN communicator_ AS c ON t.sequence IS NOT NULL AND c.pid = x.pid AND c.handle = t.communicator AND c.at = (
    SELECT MAX(b.at) FROM communicator_ AS b WHERE b.pid = x.pid AND b.handle = t.communicator AND b.at <= t.at);

CREATE VIEW functions AS
SELECT pid, handle, name, at AS timestamp FROM function_;

-- A graph's handle may be used again once it is destroyed: launches count for the newest that was made before them.
CREATE VIEW graphs AS
WITH made AS (
    SELECT x.pid AS pid, c.arg1 AS exec, c.arg0 AS graph, c.start AS at, c.duration AS took,
        LEAD(c.start, 1, 9223372036854775807) OVER (PARTITION BY x.pid, c.arg1 ORDER BY c.start) AS until
    FROM call_ AS c CROSS JOIN context_ AS x ON x.id = c.context CROSS JOIN op_ AS o ON o.id = x.op
    WHERE o.name GLOB 'cu*GraphInstantiate*' AND x.flags = 0 AND x.ret = 0
), launched AS (
    SELECT x.pid AS pid, c.arg0 AS exec, c.start AS at, c.duration AS took, COALESCE(c.weight, 1) AS weight
    FROM call_ AS c CROSS JOIN context_ AS x ON x.id = c.context CROSS JOIN op_ AS o ON o.id = x.op
    WHERE o.name GLOB 'cu*GraphLaunch' AND x.flags = 0 AND x.ret = 0
)
SELECT m.pid AS pid, m.exec AS exec, m.graph AS graph, m.at AS instantiated_at, m.took AS instantiate_ns,
    COALESCE(SUM(l.weight), 0) AS launches, MIN(l.at) AS first_launch, MAX(l.at) AS last_launch,
    COALESCE(SUM(l.weight * l.took), 0) AS launch_ns
FROM made AS m LEFT JOIN launched AS l ON l.pid = m.pid AND l.exec = m.exec AND l.at > m.at AND l.at < m.until
GROUP BY m.pid, m.exec, m.at;

CREATE VIEW unwatched AS
SELECT pid, library, path, from_ns, to_ns, to_ns - from_ns AS duration_ns
FROM (SELECT pid, library, path, from_ns, NULLIF(to_ns, 9223372036854775807) AS to_ns FROM unwatched_);
