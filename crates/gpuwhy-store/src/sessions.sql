-- The run. The view is documented in docs/run-file.md; its last two columns are new in version 3.

CREATE VIEW sessions AS
SELECT
    strftime('%Y-%m-%dT%H:%M:%fZ', start_unix_ns / 1e9, 'unixepoch') AS start,
    strftime('%Y-%m-%dT%H:%M:%fZ', stop_unix_ns / 1e9, 'unixepoch') AS stop,
    COALESCE(duration_ns, (SELECT MAX(last) FROM (
        SELECT MAX(start) AS last FROM call_ UNION ALL SELECT MAX(start) FROM off_))) AS duration_ns,
    gpu, driver, cuda, cpu, cores, memory_bytes, kernel, python, command, flags,
    events_seen, events_stored, events_lost, seconds_missing, samples_missing, stop_reason, version, own_cost,
    start_unix_ns, start_monotonic_ns, thinned, max_size
FROM session_;
