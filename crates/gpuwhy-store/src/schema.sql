-- The base tables: integer coded, small, written by gpuwhy alone. Their names end in an underscore and may
-- change with the run file's version; people and tools read the views. What the kernel tells of threads, and what
-- is sampled every second, is in host.sql.
-- Times are nanoseconds since the run began unless the name says otherwise.

-- One row, the run. What is not known (yet) is NULL.
CREATE TABLE session_ (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version TEXT NOT NULL,
    start_unix_ns INTEGER NOT NULL,
    start_monotonic_ns INTEGER NOT NULL,
    stop_unix_ns INTEGER,
    duration_ns INTEGER,
    stop_reason TEXT,
    command TEXT,
    flags TEXT,
    gpu TEXT,
    driver TEXT,
    cuda TEXT,
    cpu TEXT,
    cores INTEGER,
    memory_bytes INTEGER,
    kernel TEXT,
    python TEXT,
    events_seen INTEGER NOT NULL DEFAULT 0,
    events_stored INTEGER NOT NULL DEFAULT 0,
    events_lost INTEGER NOT NULL DEFAULT 0,
    seconds_missing INTEGER NOT NULL DEFAULT 0,
    samples_missing INTEGER NOT NULL DEFAULT 0,
    own_cost TEXT,
    thinned INTEGER NOT NULL DEFAULT 0,
    max_size INTEGER
);

-- The op table of the gpuwhy that wrote the file, so that the file explains itself.
CREATE TABLE op_ (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    function TEXT NOT NULL,
    layer TEXT NOT NULL,
    class TEXT NOT NULL,
    arg0_is_bytes INTEGER NOT NULL,
    arg1_is_direction INTEGER NOT NULL,
    arg0 TEXT NOT NULL,
    arg1 TEXT NOT NULL
);

CREATE TABLE cause_ (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    loses_event INTEGER NOT NULL
);

-- One row for every pid that has an event, named or not. number: its place among siblings of the same name.
CREATE TABLE process_ (
    pid INTEGER PRIMARY KEY,
    name TEXT,
    started INTEGER,
    ended INTEGER,
    parent INTEGER,
    container TEXT,
    command TEXT,
    number INTEGER
);

-- What repeats from call to call. The writer's memory of these is bounded, so the same values may stand
-- under more than one id. flags: bit 0 inner, bit 1 unfinished. stream: the handle's bits.
CREATE TABLE context_ (
    id INTEGER PRIMARY KEY,
    flags INTEGER NOT NULL,
    op INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    tid INTEGER NOT NULL,
    device INTEGER,
    stream INTEGER,
    ret INTEGER NOT NULL,
    stack INTEGER
);

-- One row a call. The row id is the time of its start, so rows lie in order of time and a range of time is
-- a range of rows, without an index. weight NULL is 1.
CREATE TABLE call_ (
    start INTEGER PRIMARY KEY,
    duration INTEGER NOT NULL,
    context INTEGER NOT NULL,
    arg0 INTEGER,
    arg1 INTEGER,
    weight INTEGER
);

-- Exact aggregates of the outermost calls, by the second in which they ended. device -1: not known.
CREATE TABLE second_ (
    second INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    op INTEGER NOT NULL,
    device INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    total_ns INTEGER NOT NULL,
    max_ns INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    histogram BLOB NOT NULL,
    PRIMARY KEY (second, pid, op, device)
) WITHOUT ROWID;

-- op -1: not known.
CREATE TABLE loss_ (
    second INTEGER NOT NULL,
    cause INTEGER NOT NULL,
    op INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (second, cause, op)
) WITHOUT ROWID;

CREATE TABLE library_ (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    library TEXT NOT NULL,
    inode TEXT NOT NULL,
    functions INTEGER NOT NULL,
    attached_at INTEGER NOT NULL,
    note TEXT
);

-- The id is a hash of the frames, so the same stack has the same id in every run.
CREATE TABLE stack_ (
    id INTEGER PRIMARY KEY,
    frames TEXT NOT NULL,
    top_line TEXT
);

-- An answer: about the run's time from from_ns to to_ns. finding is the whole of it, JSON.
CREATE TABLE causal_chain_ (
    id INTEGER PRIMARY KEY,
    detected_at INTEGER NOT NULL,
    severity TEXT NOT NULL,
    kind TEXT NOT NULL,
    summary TEXT NOT NULL,
    root_cause TEXT,
    explanation TEXT,
    recommendations TEXT,
    pid INTEGER,
    lost_ns INTEGER,
    tid INTEGER,
    from_ns INTEGER,
    to_ns INTEGER,
    finding TEXT
);
