#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows the device and context calls of a PyTorch job, in every layer, and how many calls have a known device.
# Usage: tests/gpu/contexts.sh GPUWHY
set -uo pipefail
here=$(dirname "$(realpath "$0")")
gpuwhy=$(realpath "${1:-$here/../../target/release/gpuwhy}") || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here" || exit 1
"$gpuwhy" trace --quiet --layers all --db "$work/all.db" -- python3 count_calls.py --steps 20 --out "$work/w.json"
"$gpuwhy" query --db "$work/all.db" "SELECT 'outer' AS kind, tid, function, arg0, arg1, device, ret, timestamp/1000 AS us FROM events WHERE class='device' UNION ALL SELECT 'inner', tid, function, arg0, arg1, device, ret, timestamp/1000 FROM inner_events WHERE class='device' ORDER BY 8 LIMIT 60"
"$gpuwhy" query --db "$work/all.db" "SELECT tid, device, COUNT(*) AS calls, MIN(timestamp)/1000 AS first_us FROM events GROUP BY 1, 2 ORDER BY 4"
"$gpuwhy" trace --quiet --db "$work/outer.db" -- python3 count_calls.py --steps 20 --out "$work/w.json"
"$gpuwhy" query --db "$work/outer.db" "SELECT tid, device, COUNT(*) AS calls FROM events GROUP BY 1, 2"
