#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what a command prints on a terminal as an SVG, for the documentation.

    gpuwhy explain run.db | scripts/terminal_svg.py 'gpuwhy explain' > docs/explain.svg

Severity labels and the headline get the colours of the terminal. Reads standard input; the argument is the prompt.
"""

import re
import sys
from html import escape

FONT = 13
LINE = 19
CHARACTER = 7.85
MARGIN = 18
COLOURS = {"CRITICAL": "#ff6b6b", "HIGH": "#ff6b6b", "MEDIUM": "#e5c07b", "LOW": "#d7dae0"}


def spans(line, is_bold):
    """The line as SVG text: a coloured label, then the rest."""
    label = re.match(r"(CRITICAL|HIGH|MEDIUM|LOW)\b", line)
    if label:
        colour = COLOURS[label.group(1)]
        rest = escape(line[label.end() :])
        return f'<tspan fill="{colour}" font-weight="bold">{label.group(1)}</tspan><tspan>{rest}</tspan>'
    weight = ' font-weight="bold"' if is_bold else ""
    is_dim = line.startswith(("More: ", "python3 "))
    fill = ' fill="#8b93a1"' if is_dim else ""
    return f"<tspan{weight}{fill}>{escape(line)}</tspan>"


def drawing(prompt, lines):
    """The SVG of a prompt and the lines below it."""
    width = round(max(len(line) for line in [*lines, prompt]) * CHARACTER) + 2 * MARGIN
    height = (len(lines) + 2) * LINE + 2 * MARGIN
    paragraph = 0
    rows = [f'<tspan fill="#98c379">$</tspan> <tspan>{escape(prompt)}</tspan>', ""]
    for line in lines:
        paragraph += line == ""
        # The second paragraph is the verdict.
        rows.append(spans(line, is_bold=paragraph == 1))
    texts = [
        f'<text x="{MARGIN}" y="{MARGIN + (at + 1) * LINE - 5}" xml:space="preserve">{row}</text>'
        for at, row in enumerate(rows)
        if row
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{FONT}" fill="#d7dae0">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#1e2127"/>',
            *texts,
            "</svg>",
        ]
    )


if __name__ == "__main__":
    print(drawing(sys.argv[1], sys.stdin.read().rstrip("\n").split("\n")))
