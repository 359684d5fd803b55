#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests gpuwhy explain on a machine with a GPU and PyTorch: it must name planted problems, and its bounds must contain the
# idle time that a torch.profiler trace of the same run shows.
# Usage: tests/gpu/explain.sh [GPUWHY] [SCENARIO...]
set -uo pipefail
here=$(dirname "$(realpath "$0")")
gpuwhy=$(realpath "${1:-$here/../../target/release/gpuwhy}") || exit 1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
date -u +%F
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for scenario in ${*:-healthy never hog workers sync alloc launch}; do
  "$gpuwhy" trace --verbose --quiet --db "$work/$scenario.db" -- python3 "$here/explain_job.py" "$scenario" "$work/$scenario.json" > "$work/out" 2>&1 ||
    { tail -n 5 "$work/out"; failed=1; continue; }
  grep -i itself "$work/out"
  python3 "$here/explain_check.py" "$gpuwhy" "$work/$scenario.db" "$work/$scenario.json" || failed=1
  [ -z "${OUT:-}" ] || "$gpuwhy" explain --db "$work/$scenario.db" > "$OUT/$scenario.txt" 2>&1
done
exit $failed
