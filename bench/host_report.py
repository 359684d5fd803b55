# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/host.py. `python3 bench/host_report.py FILE` prints those of `bench/host.py --json FILE`."""
import json
import pathlib
import statistics
import sys

from report import over, text

SHOWN_PROGRAMS = 6
LABELS = {
    "bystander": "bystander: gpuwhy traces another",
    "perf bystander": "bystander: perf traces another",
    "sched only": "target: --host sched --no-stack",
    "no stacks": "target: --no-stack",
    "everything": "target: everything",
    "perf": "perf record -a",
}


def show(figures):
    print("gpuwhy's benchmark of the host, {date}: {cpu}, {cores} cores, Linux {kernel}, Python {python}".format(**figures["machine"]))
    print("load average before and after: {load:.2f}, {load_after:.2f}".format(**figures["machine"]))
    switches = show_switches(figures["switches"], figures["rounds"])
    show_programs(figures["programs"])
    show_bursts(figures["bursts"])
    sites = show_stacks(figures["stacks"], figures["starts"])
    show_starts(figures["starts"])
    show_training(figures["training"])
    show_aims(switches, figures["bursts"], sites)
    for problem in figures["problems"]:
        print(f"could not be measured: {problem}")


def middle(rows, key):
    found = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(found) if found else None


def differences(ways, way, base="untraced", key="ns"):
    """Differences round by round, because load on the machine is similar within a round."""
    return [a[key] - b[key] for a, b in zip(ways[way], ways[base])]


def added(ways, way, base="untraced", key="ns"):
    return statistics.median(found) if (found := differences(ways, way, base, key)) else None


def spread(found):
    """Half the distance between the quartiles: half of the rounds are within this of the middle."""
    if len(found) < 3:
        return None
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return (high - low) / 2


def show_switches(kinds, rounds):
    """Returns the ns that each way of tracing added to a switch, by kind."""
    print(f"\n1. CPU time added to a context switch, with its wake-up, ns (median of {rounds} rounds)\n")
    print(f"{'':36}" + "".join(f"{kind:>10}{'+-':>7}" for kind in kinds) + f"{'bytes':>9}{'lost':>8}")
    print(f"{'the switch itself, untraced':36}" + "".join(cells(ways, "untraced", False) for ways in kinds.values()))
    for way, label in LABELS.items():
        rows = [row for ways in kinds.values() for row in ways[way]]
        lost = sum(row.get("lost", 0) for row in rows)
        size = middle(kinds["C"][way], "bytes")
        line = f"{label:36}" + "".join(cells(ways, way, True) for ways in kinds.values())
        print(line + ("" if size is None else f"{size:>9.1f}{lost:>8,}"))
    found = {kind: {way: added(ways, way) for way in LABELS} for kind, ways in kinds.items()}
    for way in ("sched only", "everything"):
        ratios = "".join(f"{text(over(f[way], f['perf']), '.2f'):>10}{'':7}" for f in found.values())
        print(f"{f'{way} / perf record -a':36}{ratios}")
    return found


def cells(ways, way, difference):
    found = differences(ways, way) if difference else [row["ns"] for row in ways[way]]
    return f"{text(statistics.median(found) if found else None):>10}{text(spread(found)):>7}"


def show_programs(cases):
    print("\n2. The kernel's count of gpuwhy's BPF programs (they run for every thread of the machine)\n")
    if cases is None:
        print("not measured: bpftool is not installed, or the kernel does not count")
        return
    for case, found in cases.items():
        each = sum(row["ns"] for row in found["programs"]) / found["switches"]
        print(f"{case}: {found['switches']:,} switches, {each:,.0f} ns of programs per switch")
        for row in found["programs"][:SHOWN_PROGRAMS]:
            print(f"  {row['program']:28}{row['runs']:>10,} runs{row['ns'] / row['runs']:>8,.0f} ns each")


def show_bursts(ways):
    columns = ["switches/s", "made", "recorded", "missing", "lost", "of a core", "memory", "bytes"]
    rounds = max(map(len, ways.values()))
    print(f"\n3. As many switches as possible, a pair on every CPU, with gpuwhy ({rounds} rounds; counts are totals)\n")
    print(f"{'':12}" + "".join(f"{column:>12}" for column in columns))
    for way, rows in ways.items():
        cell = [text(middle(rows, "per_second")), text(total(rows, "made"))]
        if way != "untraced":
            share = over(total(rows, "cpu_s") * 100, total(rows, "seconds"))
            cell += [text(total(rows, "kept")), text(total(rows, "made") - total(rows, "kept")), text(total(rows, "lost"))]
            cell += [text(share, ".0f", " %"), text(over(middle(rows, "memory_bytes"), 1e6), ".0f", " MB")]
            cell.append(text(middle(rows, "bytes"), ".1f"))
        print(f"{way:12}" + "".join(f"{c:>12}" for c in cell))


def total(rows, key):
    return sum(row[key] for row in rows)


def show_stacks(cases, starts):
    """Returns the ns that stacks add to a call at a known site."""
    columns = ["untraced", "--no-stack", "everything", "by stacks", "+-", "stacks", "gpuwhy µs"]
    print("\n4. Python stacks: CPU time of a call, ns; and gpuwhy's own CPU time per new stack\n")
    print(f"{'':22}" + "".join(f"{column:>12}" for column in columns))
    # Startup also takes longer with stacks.
    start = over(added(starts, "everything", "--no-stack", "cpu_s"), 1)
    sites = {}
    for case, ways in cases.items():
        found = differences(ways, "everything", "no stacks")
        extra, stacks = statistics.median(found) if found else None, middle(ways["everything"], "stacks")
        cell = [text(middle(rows, "ns")) for rows in ways.values()] + [text(extra), text(spread(found)), text(stacks)]
        if not case.startswith("new"):
            sites[case] = extra
        elif found and start is not None:
            own = added(ways, "everything", "no stacks", "own_cpu_s") - start
            cell.append(text(over(own * 1e6, stacks), ".1f"))
        print(f"{case:22}" + "".join(f"{c:>12}" for c in cell))
    return sites


def show_starts(ways):
    print("\n5. gpuwhy trace -- true\n")
    for way, rows in ways.items():
        print(f"{way:12}{text(middle(rows, 'wall_s'), '.2f'):>8} s{text(middle(rows, 'cpu_s'), '.2f'):>8} s of CPU")


def show_training(scenarios):
    columns = ["steps/s", "traced", "CPU ms/step", "traced", "gpuwhy", "memory", "events/s", "CUDA/s", "switches/s", "kB/s", "lost"]
    print("\n6. A training job on the simulated GPU, traced with all defaults\n")
    print(f"{'':12}" + "".join(f"{column:>12}" for column in columns))
    for scenario, ways in scenarios.items():
        plain, traced = ways["untraced"], ways["traced"]
        share = [{"share": row["own_cpu_s"] / row["elapsed_s"] * 100} for row in traced]
        cell = [text(middle(rows, key), ".2f") for key in ("steps_per_s", "job_cpu_ms_per_step") for rows in (plain, traced)]
        cell += [text(middle(share, "share"), ".1f", " %"), text(over(middle(traced, "memory_bytes"), 1e6), ".0f", " MB")]
        cell += [text(middle(traced, key)) for key in ("events_per_s", "cuda_calls_per_s", "sched_switch_per_s")]
        cell += [text(over(middle(traced, "bytes_per_s"), 1e3)), text(sum(row["lost"] for row in traced))]
        print(f"{scenario:12}" + "".join(f"{c:>12}" for c in cell))


def show_aims(switches, bursts, sites):
    lines = [(f"a bystander's switch, µs: {kind}", 0.15, over(found["bystander"], 1e3)) for kind, found in switches.items()]
    lines += [(f"a target's switch, µs: {kind}", 1.2, over(found["everything"], 1e3)) for kind, found in switches.items()]
    rows = bursts["everything"]
    lost = max(total(rows, "lost"), total(rows, "made") - total(rows, "kept")) if rows else None
    lines.append((f"lost at {text(middle(rows, 'per_second'))} switches/s", 0, lost))
    lines += [(f"stacks, µs a call: {case}", 0.5, over(ns, 1e3)) for case, ns in sites.items()]
    print(f"\n7. Compared with the aims\n\n{'':40}{'aim':>8}{'gpuwhy':>12}")
    for label, aim, ours in lines:
        verdict = "" if ours is None else "met" if ours <= aim else "not met"
        print(f"{label:40}{f'<= {aim}':>8}{text(ours, ',.2f'):>12}  {verdict}")


if __name__ == "__main__":
    show(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
