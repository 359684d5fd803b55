-- The base tables of what the kernel tells of threads and of what is sampled every second. As in schema.sql: small,
-- written by gpuwhy alone, times are nanoseconds since the run began.

-- What repeats from one time off the CPU to the next, by name; the same values may stand under more than one id.
CREATE TABLE off_context_ (
    id INTEGER PRIMARY KEY,
    pid INTEGER NOT NULL,
    tid INTEGER NOT NULL,
    reason TEXT NOT NULL,
    wait TEXT,
    syscall TEXT,
    file TEXT,
    io_wait INTEGER NOT NULL,
    unfinished INTEGER NOT NULL,
    stack INTEGER
);

-- Who ended waits. Beside the context, since most threads are woken by many. Id 0 is nobody.
CREATE TABLE waker_ (
    id INTEGER PRIMARY KEY,
    woken_by TEXT,
    pid INTEGER,
    tid INTEGER
);
INSERT INTO waker_ (id) VALUES (0);

-- One row for each time off the CPU; the row id is the time of its start, as in call_.
-- cpus: the CPU it ran on next and, if that is another, (the CPU it left + 1) << 16. weight NULL is 1.
CREATE TABLE off_ (
    start INTEGER PRIMARY KEY,
    duration INTEGER NOT NULL,
    ready INTEGER NOT NULL,
    context INTEGER NOT NULL,
    waker INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    object INTEGER,
    timeout INTEGER,
    weight INTEGER
);

-- A part of a ready time, waiting for a CPU that the thread was moved away from. Small: threads are rarely moved
-- while they wait.
CREATE TABLE moved_wait_ (
    tid INTEGER NOT NULL,
    start INTEGER NOT NULL,
    duration INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    cpu INTEGER NOT NULL,
    PRIMARY KEY (tid, start)
) WITHOUT ROWID;

-- Who had a CPU for which a traced thread waited. Runs on one CPU do not overlap.
CREATE TABLE cpu_run_ (
    cpu INTEGER NOT NULL,
    start INTEGER NOT NULL,
    duration INTEGER NOT NULL,
    runner INTEGER NOT NULL,
    PRIMARY KEY (cpu, start)
) WITHOUT ROWID;

CREATE TABLE runner_ (
    id INTEGER PRIMARY KEY,
    pid INTEGER NOT NULL,
    tid INTEGER NOT NULL,
    name TEXT NOT NULL
);

-- A thread's time as the kernel summed it, one row for each life: a thread id that is used again has another `since`.
-- Times are NULL where the scheduler was not followed.
CREATE TABLE thread_ (
    pid INTEGER NOT NULL,
    tid INTEGER NOT NULL,
    since INTEGER NOT NULL,
    at INTEGER NOT NULL,
    born INTEGER NOT NULL,
    name TEXT NOT NULL,
    on_cpu_ns INTEGER,
    ready_ns INTEGER,
    blocked_ns INTEGER,
    throttled_ns INTEGER,
    switches INTEGER,
    page_allocations INTEGER NOT NULL,
    page_bytes INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    PRIMARY KEY (pid, tid, since)
) WITHOUT ROWID;

CREATE TABLE system_second_ (
    at INTEGER NOT NULL,
    span_ns INTEGER NOT NULL,
    user_ns INTEGER NOT NULL,
    system_ns INTEGER NOT NULL,
    iowait_ns INTEGER NOT NULL,
    idle_ns INTEGER NOT NULL,
    steal_ns INTEGER NOT NULL,
    cores INTEGER NOT NULL,
    load1 REAL,
    runnable INTEGER,
    memory_total INTEGER,
    memory_available INTEGER,
    swap_used INTEGER,
    swap_in INTEGER,
    swap_out INTEGER,
    pressure_cpu_ns INTEGER,
    pressure_memory_some_ns INTEGER,
    pressure_memory_full_ns INTEGER,
    pressure_io_some_ns INTEGER,
    pressure_io_full_ns INTEGER,
    input INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE process_second_ (
    at INTEGER NOT NULL,
    span_ns INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    user_ns INTEGER NOT NULL,
    system_ns INTEGER NOT NULL,
    resident INTEGER NOT NULL,
    anonymous INTEGER,
    swapped INTEGER,
    threads INTEGER NOT NULL,
    major_faults INTEGER NOT NULL,
    minor_faults INTEGER NOT NULL,
    read_bytes INTEGER,
    write_bytes INTEGER,
    page_allocations INTEGER,
    page_bytes INTEGER
);

-- Paths are long and repeat every second.
CREATE TABLE cgroup_ (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    version INTEGER NOT NULL,
    UNIQUE (path, version)
);

CREATE TABLE cgroup_second_ (
    at INTEGER NOT NULL,
    cgroup INTEGER NOT NULL,
    quota_ns INTEGER,
    period_ns INTEGER,
    periods INTEGER,
    throttled_periods INTEGER,
    throttled_ns INTEGER,
    usage_ns INTEGER,
    memory_used INTEGER,
    memory_limit INTEGER,
    oom_kills INTEGER
);

CREATE TABLE gpu_ (
    gpu INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    uuid TEXT NOT NULL,
    bus TEXT NOT NULL
);

CREATE TABLE gpu_second_ (
    at INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    rate_percent INTEGER,
    memory_rate_percent INTEGER,
    memory_used INTEGER,
    memory_total INTEGER,
    sm_mhz INTEGER,
    memory_mhz INTEGER,
    power_mw INTEGER,
    temperature_c INTEGER,
    throttle_reasons INTEGER
);

CREATE TABLE gpu_busy_ (
    at INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    percent INTEGER NOT NULL
);

CREATE TABLE gpu_process_ (
    at INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    bytes INTEGER,
    sm_percent INTEGER,
    name TEXT
);

CREATE TABLE gpu_error_ (
    at INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    xid INTEGER NOT NULL
);
