# SPDX-License-Identifier: Apache-2.0
"""Compares a run file of stacks_job.py with the job's own report.

Usage: check_host.py RUN.db JOB.json
"""
import json
import sqlite3
import sys

db = sqlite3.connect(sys.argv[1])
job = json.load(open(sys.argv[2]))
failures = 0


def show(title, sql, *values):
    print(f"\n{title}")
    for row in db.execute(sql, values):
        print("  " + "  ".join(str(v) for v in row))


def check(what, ok):
    global failures
    failures += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}")


def lines_of(condition):
    sql = f"""SELECT COALESCE(s.top_line, '(no Python)'), COUNT(*) FROM events e LEFT JOIN stack_traces s
              USING (stack_id) WHERE {condition} GROUP BY 1 ORDER BY 2 DESC LIMIT 8"""
    return db.execute(sql).fetchall()


print("sessions", db.execute("SELECT events_seen, events_stored, events_lost FROM sessions").fetchone())
main = db.execute("SELECT pid FROM processes ORDER BY started LIMIT 1").fetchone()[0]
for what, condition in {
    "alloc": "op = 'cudaMalloc' AND bytes >= 67108864",
    "sync": "op = 'cudaDeviceSync'",
    "sleep": "op = 'sched_switch' AND wait = 'sleep' AND duration_ns > 1500000",
}.items():
    found = lines_of(condition)
    print(what, job["lines"][what], found)
    check(f"{what}: the top line is the job's", bool(found) and job["lines"][what] in found[0][0])
launches = lines_of("class = 'launch'")
print("launches", launches)
check("launches are at the line that makes them", any(job["lines"]["launch"] in line for line, _ in launches))
show("launches by thread: with and without Python", """
    SELECT e.tid, t.name, COUNT(*), SUM(e.stack_id IS NOT NULL) FROM events e LEFT JOIN thread_time t USING (pid, tid)
    WHERE class = 'launch' GROUP BY e.tid""")
show("processes", "SELECT pid, name, parent FROM processes ORDER BY pid LIMIT 20")
workers = [n for (n,) in db.execute("SELECT name FROM process_names WHERE name LIKE 'pt_data_worker%' ORDER BY 1")]
check(f"data workers have names and numbers: {workers}", len(workers) == job["workers"] and workers[0].endswith(":0"))
show("samples of the workers' lines", """
    SELECT s.top_line, COUNT(*) FROM events e JOIN stack_traces s USING (stack_id) WHERE op = 'cpu_sample'
    AND e.pid IN (SELECT pid FROM process_names WHERE name LIKE 'pt_data_worker%') GROUP BY 1 ORDER BY 2 DESC LIMIT 4""")
show("the main thread's waits", """
    SELECT reason, wait, COUNT(*), SUM(duration_ns) / 1000000 FROM off_cpu WHERE tid = ?
    GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 8""", main)
worst = db.execute("""SELECT MAX(ABS(on_cpu_ns + ready_ns + blocked_ns - lifetime_ns) * 1.0 / lifetime_ns), COUNT(*)
                      FROM thread_time WHERE lifetime_ns > 0""").fetchone()
print("threads", worst[1], "largest share of a lifetime not accounted for", worst[0])
check("every thread's times add up within 0.1 %", worst[0] <= 0.001)
show("GPU every second", """SELECT second, rate_percent, memory_used / 1000000, sm_mhz, power_mw / 1000, temperature_c
    FROM gpu_seconds LIMIT 6""")
busy = db.execute("SELECT COUNT(*), AVG(percent) FROM gpu_busy").fetchone()
check(f"NVML's own samples: {busy}", busy[0] > 5)
show("GPU memory by process", "SELECT DISTINCT pid, MAX(bytes) / 1000000 FROM gpu_processes GROUP BY pid")
show("loss", "SELECT cause, op, SUM(count) FROM loss GROUP BY 1, 2")
show("machine", """SELECT second, user_ns / 1000000, system_ns / 1000000, idle_ns / 1000000, load1, pressure_cpu_ns
    FROM system_seconds LIMIT 3""")
print("failures:", failures)
sys.exit(failures > 0)
