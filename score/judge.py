# SPDX-License-Identifier: Apache-2.0
"""Judges an explanation: its top finding, its lost time, and its bounds of the GPU's idle time."""

import dataclasses

TOLERANCE = 0.10  # of a finding's lost time, as a share of the true idle time
SERIOUS = ("medium", "high", "critical")
LEAST_SHARE = 0.25  # of the steady time: a trouble must cost this much
MOST_SHARE = 0.03  # of the steady time: a control may idle this much; more would be a finding of medium severity


@dataclasses.dataclass
class Row:
    """One line of the table. `wrong` has the reasons why it is wrong; empty if it is right."""

    case: str
    number: int
    true_share: float = 0.0
    top: str = "-"
    lost_ns: int = 0
    true_ns: int = 0
    bounds: str = "-"
    wrong: list = dataclasses.field(default_factory=list)


def pair(finding):
    """Kind and root cause."""
    return finding["kind"], finding["root_cause"]["kind"]


def serious(explanation):
    """Findings that a user would act on."""
    return [finding for finding in explanation["findings"] if finding["severity"] in SERIOUS]


def lines_in(finding):
    """Every file:line that a finding names."""
    named = [finding["root_cause"].get("line")] + [link.get("line") for link in finding["chain"]]
    for line in filter(None, named):
        file, _, number = line.rpartition(":")
        if number.isdigit():
            yield file.rsplit("/", 1)[-1], int(number)


def names_a_line(finding, lines):
    """Whether the finding names one of the lines to blame."""
    return any(
        file == name and first <= number <= last for file, number in lines_in(finding) for name, first, last in lines
    )


def text_of(finding):
    """All text of a finding."""
    root = finding["root_cause"]
    parts = [finding["title"], root.get("name"), root.get("detail")]
    parts += [link[key] for link in finding["chain"] for key in ("who", "what", "state")]
    return " ".join(filter(None, parts))


def judge_bounds(row, explanation, truth):
    """Copies may count as work or not: idle time is time without a kernel, or time without any work."""
    start = explanation["start_monotonic_ns"]
    without_kernel, without_work = truth.idle(start + explanation["from_ns"], start + explanation["to_ns"])
    least, most = explanation["gpu_idle_min_ns"], explanation["gpu_idle_max_ns"]
    if least is None or most is None:
        row.wrong.append("no bounds of the idle time")
        return
    row.bounds = f"{least / 1e9:.2f}≤{without_kernel / 1e9:.2f}≤{most / 1e9:.2f}"
    if least > without_kernel or most < without_work:
        row.wrong.append("true idle time outside of the bounds")


def judge_control(row, explanation):
    """A healthy job must get no finding of medium severity or worse."""
    found = serious(explanation)
    if found:
        row.top = " ← ".join(pair(found[0]))
        row.lost_ns = found[0]["lost_ns"]
        row.wrong += [f"false finding {finding['kind']} ({finding['severity']})" for finding in found]
    elif explanation["findings"]:
        row.top = explanation["findings"][0]["kind"]


def judge_cause(row, case, scene, job, top):
    """The top finding must name the right trouble, the process behind it and the line."""
    row.top = " ← ".join(pair(top))
    if pair(top) not in [tuple(expected) for expected in case.expected]:
        row.wrong.append("expected " + " or ".join(" ← ".join(expected) for expected in case.expected))
    if scene.names and not any(name in (top["root_cause"].get("name") or "") for name in scene.names):
        row.wrong.append(f"does not name {scene.names[0]}")
    lines = [line for trouble in case.troubles for line in job["lines"].get(trouble, [])]
    if lines and not names_a_line(top, lines):
        row.wrong.append("does not name the line")
    if case.says and case.says.lower() not in text_of(top).lower():
        row.wrong.append(f"does not say {case.says}")


def judge_lost(row, case, found, truth, begin, end):
    """One trouble: the top finding must cost all of the idle time. Two: both findings together must."""
    row.true_ns = truth.steady_idle(begin, end)
    row.lost_ns = found[0]["lost_ns"]
    if case.shares_gpu:  # not idle time: at most what other processes took
        row.true_ns = truth.taken()
        if row.lost_ns > (1 + TOLERANCE) * row.true_ns:
            row.wrong.append("lost more than the other process took")
        return
    if len(case.troubles) > 1:
        expected = [tuple(one) for one in case.expected]
        row.lost_ns = sum(finding["lost_ns"] for finding in found if pair(finding) in expected)
        missing = set(expected) - {pair(finding) for finding in found}
        row.wrong += ["misses " + " ← ".join(one) for one in sorted(missing)]
    if abs(row.lost_ns - row.true_ns) > TOLERANCE * row.true_ns:
        row.wrong.append(f"lost is {row.lost_ns / max(1, row.true_ns):.0%} of the true idle time")


def judge(case, number, scene, job, truth, explanation):
    """The row of one run."""
    row = Row(case.name, number, true_share=truth.share(), true_ns=truth.steady_idle())
    judge_bounds(row, explanation, truth)
    if case.control:
        judge_control(row, explanation)
        return row
    found = explanation["findings"]
    if not found:
        row.wrong.append("no finding")
        return row
    start = explanation["start_monotonic_ns"]
    judge_cause(row, case, scene, job, found[0])
    judge_lost(row, case, found, truth, start + explanation["from_ns"], start + explanation["to_ns"])
    return row


def sane(case, truth):
    """Why a run cannot be judged: the job did not have its trouble. None if it can be judged."""
    share = truth.share()
    if case.control and share > MOST_SHARE:
        return f"the control idled {share:.1%}"
    if case.shares_gpu and truth.taken() < LEAST_SHARE * (truth.last - truth.first):
        return "the other process took too little of the GPU"
    if not case.control and not case.shares_gpu and share < LEAST_SHARE:
        return f"the trouble cost only {share:.0%}"
    return None
