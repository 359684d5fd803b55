# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the load benchmark: from calls made, kept and lost to a row of its table."""
import contextlib
import sqlite3

# The calls that simjob makes. A run file also has the kernel's events of the job's threads.
CALLS = "layer IN ('runtime', 'driver')"
UNPROBED_SETUP = 4 * 4  # calls before and after a load of 4 threads that neither tool records
START_AND_END = 1  # calls/s asked for where what starting and ending costs is measured


class Impossible(Exception):
    """Figures that contradict each other."""


def calls_in(run_file):
    """Calls in a run file, and calls that gpuwhy counted as lost; keys are columns of a row."""
    with contextlib.closing(sqlite3.connect(f"file:{run_file}?mode=ro", uri=True)) as connection:
        def number(sql):
            return connection.execute(sql).fetchone()[0] or 0

        # Loss without an op counts, because it may be calls.
        of_calls = f"(op IS NULL OR op IN (SELECT op FROM ops WHERE {CALLS}))"
        return {
            "kept": number(f"SELECT SUM(weight) FROM events WHERE {CALLS}"),
            "lost_by_its_own_count": number(f"SELECT SUM(count) FROM loss WHERE loses_event AND {of_calls}"),
        }


def load_row(tool, rate, done, recorded):
    """A row of the load table. `done`: simjob's report. `recorded`: the tool's figures, empty without a tool."""
    row = {"tool": tool, "rate": rate, "kept": None, "lost_by_its_own_count": None}
    row |= {"cpu_s": 0, "decode_s": 0, "memory_bytes": 0, "file_bytes": 0, **recorded}
    made = done["calls"] + done["setup_calls"] - UNPROBED_SETUP
    lost = None if row["kept"] is None else made - row["kept"]
    # perf sometimes records a few calls per million too many, for an unknown reason. That is not loss.
    if tool == "perf" and lost is not None:
        lost = max(lost, 0)
    if lost is not None and lost < 0:
        raise Impossible(f"{tool} recorded {row['kept']:,} calls of {made:,} that were made")
    seconds = done["seconds"]
    row |= {"calls": made, "lost": lost, "per_second": done["calls"] / seconds, "job_ns_per_call": done["cpu_ns_per_call"]}
    row["cpu_percent"] = row["cpu_s"] / seconds * 100
    row["cpu_to_rows_percent"] = (row["cpu_s"] + row["decode_s"]) / seconds * 100
    row["bytes_per_call"] = row["file_bytes"] / row["kept"] if row["kept"] else None
    return row


def lossless_rate(rows):
    """The highest rate that gpuwhy recorded without loss, calls/s; None if it lost calls at every rate. A run of START_AND_END is not a load."""
    loads = (row for row in rows if row["tool"] == "gpuwhy" and row["rate"] != START_AND_END)
    return max((row["per_second"] for row in loads if row["lost"] == 0), default=None)
