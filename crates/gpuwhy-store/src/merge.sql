-- Of which runs a file was merged; empty in one that was recorded. New in version 4. The view is documented in
-- docs/run-file.md.

CREATE TABLE merged_ (
    input INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    pid_offset INTEGER NOT NULL,
    cpu_offset INTEGER NOT NULL,
    gpu_offset INTEGER NOT NULL,
    clock_offset_ns INTEGER NOT NULL,
    start_unix_ns INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    stop_reason TEXT,
    command TEXT,
    gpu TEXT,
    cpu TEXT,
    cores INTEGER,
    memory_bytes INTEGER,
    kernel TEXT,
    version TEXT NOT NULL,
    events_stored INTEGER NOT NULL,
    events_lost INTEGER NOT NULL,
    thinned INTEGER NOT NULL
);

CREATE VIEW merged AS
SELECT
    input, path, pid_offset, cpu_offset, gpu_offset, clock_offset_ns,
    strftime('%Y-%m-%dT%H:%M:%fZ', start_unix_ns / 1e9, 'unixepoch') AS start, duration_ns, stop_reason, command,
    gpu, cpu, cores, memory_bytes, kernel, version, events_stored, events_lost, thinned
FROM merged_;

-- It names no process, CPU or GPU: input says of which run a row is.
CREATE VIEW system_seconds AS
SELECT
    at / 1000000000 AS second, at AS timestamp, span_ns, user_ns, system_ns, iowait_ns, idle_ns, steal_ns, cores,
    load1, runnable, memory_total, memory_available, swap_used, swap_in, swap_out, pressure_cpu_ns,
    pressure_memory_some_ns, pressure_memory_full_ns, pressure_io_some_ns, pressure_io_full_ns, input
FROM system_second_;
