# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/run.py. `python3 bench/report.py FILE` prints those of `bench/run.py --json FILE`."""
import json
import pathlib
import sys

import figures

TOOLS = ["gpuwhy", "perf"]
AIMED_RATE = 100_000  # calls/s at which CPU, memory and bytes have their aims; a rate of 0 is full speed, 1 is idle


def show(every):
    print("gpuwhy's benchmark, {date}: {cpu}, {cores} cores, Linux {kernel}, {perf}".format(**every["machine"]))
    print("return-stack mitigation: {srso}; load average before: {load:.2f}".format(**every["machine"]))
    added = show_costs(every["cpu_ns_per_call"], every["rounds"])
    show_loads(every["loads"])
    show_aims(added, every["loads"])
    for problem in every["problems"]:
        print(f"could not be measured: {problem}")


def text(value, form=",.0f", unit=""):
    return "-" if value is None else f"{value:{form}}{unit}"


def over(a, b):
    return None if a is None or not b else a / b


def memory(row):
    return row["memory_bytes"] / 1e6


def show_costs(costs, rounds):
    """Returns the ns that each way of tracing added to a call, by case."""
    best = {case: {way: min(ns, default=None) for way, ns in ways.items()} for case, ways in costs.items()}
    added = {}
    for case, ways in best.items():
        base = ways["untraced"]
        added[case] = {way: None if None in (ns, base) else max(ns - base, 0) for way, ns in ways.items()}
    rows = [
        ("the call itself, untraced", lambda case: text(best[case]["untraced"])),
        ("bystander: entry trap, gpuwhy's filter", lambda case: text(added[case]["bystander"])),
        ("trap floor at the symbol, entry + return", lambda case: text(added[case]["floor"])),
        ("gpuwhy", lambda case: text(added[case]["gpuwhy"])),
        ("perf record", lambda case: text(added[case]["perf"])),
        ("gpuwhy / trap floor", lambda case: ratio(added[case], "gpuwhy", "floor")),
        ("gpuwhy / perf record", lambda case: ratio(added[case], "gpuwhy", "perf")),
    ]
    print(f"\n1. CPU time added to a call, ns (1 thread, best of {rounds})\n")
    print(f"{'':42}" + "".join(f"{case:>10}" for case in costs))
    for label, cell in rows:
        print(f"{label:42}" + "".join(f"{cell(case):>10}" for case in costs))
    return added


def ratio(added, a, b):
    return text(over(added[a], added[b]), ".2f")


def show_loads(rows):
    columns = ["calls/s", "reached", "lost", "job ns/call", "of a core", "memory", "bytes/call"]
    print("\n2. Load: 2 processes x 2 threads, mixed calls\n")
    print(f"{'':10}" + "".join(f"{column:>13}" for column in columns))
    for row in rows:
        print(f"{row['tool']:10}" + "".join(f"{cell:>13}" for cell in load_cells(row)))
        if row["tool"] == "gpuwhy" and row["lost_by_its_own_count"] != row["lost"]:
            print(f"{'':10}note: gpuwhy counted {row['lost_by_its_own_count']:,} lost")


def load_cells(row):
    if row["rate"] == 1:
        return ["start + end", "", "", "", text(row["cpu_s"], ".2f", " s"), text(memory(row), ".0f", " MB")]
    cells = [text(row["rate"]) if row["rate"] else "full speed", text(row["per_second"])]
    if row["tool"] == "untraced":
        return [*cells, "", text(row["job_ns_per_call"])]
    own = [text(row["cpu_percent"], ".0f", " %"), text(memory(row), ".0f", " MB")]
    return [*cells, text(row["lost"]), text(row["job_ns_per_call"]), *own, text(row["bytes_per_call"], ".1f")]


def show_aims(added, rows):
    def at(rate, figure):
        found = {row["tool"]: figure(row) for row in rows if row["rate"] == rate}
        return [found.get(tool) for tool in TOOLS]

    lines = [(f"added to a call, µs: {case}", 1.2, *(over(added[case][t], 1e3) for t in TOOLS)) for case in added]
    lines += [
        ("lost at 100k/s", 0, *at(AIMED_RATE, lambda row: row["lost"])),
        ("lost at full speed, %", None, *at(0, lambda row: over(row["lost"], row["calls"] / 100))),
        ("CPU at 100k/s, % of a core", 60, *at(AIMED_RATE, lambda row: row["cpu_percent"])),
        ("  until there are rows, %", None, *at(AIMED_RATE, lambda row: row["cpu_to_rows_percent"])),
        ("memory at 100k/s, MB", 150, *at(AIMED_RATE, memory)),
        ("memory at full speed, MB", 150, *at(0, memory)),
        ("bytes per call at 100k/s", 40, *at(AIMED_RATE, lambda row: row["bytes_per_call"])),
    ]
    print(f"\n3. Compared with the aims\n\n{'':34}{'aim':>8}{'gpuwhy':>10}{'':10}{'perf':>10}{'gpuwhy/perf':>13}")
    for label, aim, ours, perf in lines:
        verdict = "" if None in (aim, ours) else "met" if ours <= aim else "not met"
        limit = "" if aim is None else f"<= {aim}"
        measured = f"{text(ours, ',.2f'):>10}  {verdict:8}{text(perf, ',.2f'):>10}"
        print(f"{label:34}{limit:>8}{measured}{text(over(ours, perf), '.2f'):>13}")
    print("\nBelow 1 in the last column, gpuwhy is better.")
    whole = figures.lossless_rate(rows)
    print("gpuwhy lost calls at every rate tried." if whole is None else f"Highest rate gpuwhy recorded without loss here: {whole:,.0f} calls/s.")
    if added["launch"]["floor"]:
        print(f"The traps of an entry and a return alone add {added['launch']['floor'] / 1e3:.2f} µs on this machine.")
    print("perf records the entry and the return of a call as two events; here a pair counts as one call.")


if __name__ == "__main__":
    show(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
