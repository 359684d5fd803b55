#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares gpuwhy's counts with torch.profiler's and measures the cost of tracing. Needs a GPU, PyTorch and root.
# Usage: tests/gpu/run.sh [GPUWHY] [SIMDIR]   (SIMDIR: libraries and simjob of the simulated stack, optional)
set -uo pipefail
here=$(dirname "$(realpath "$0")")
gpuwhy=$(realpath "${1:-$here/../../target/release/gpuwhy}") || exit 1
sim=${2:+$(realpath "$2")}
cd "$here" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
section() { printf '\n== %s\n' "$*"; }

section "machine"
date -u +%F
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
uname -r
"$gpuwhy" check

count() { # name, extra environment, extra arguments
  section "counts: $1"
  env $2 "$gpuwhy" trace --quiet --db "$work/$1.db" -- python3 count_calls.py --steps 100 --profile $3 --out "$work/$1.json" || failed=1
  python3 compare.py "$work/$1.db" "$work/$1.json" || failed=1
  "$gpuwhy" query --db "$work/$1.db" "SELECT device, layer, COUNT(*) AS calls FROM events GROUP BY device, layer"
  "$gpuwhy" query --db "$work/$1.db" "SELECT library, functions, note, path FROM libraries"
  "$gpuwhy" query --db "$work/$1.db" "SELECT cause, SUM(count) AS n FROM loss GROUP BY cause"
}
count plain "A=1" ""
count graph "A=1" "--graph"
count malloc-async "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync" ""
count expandable "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" ""
"$gpuwhy" query --db "$work/plain.db" "SELECT gpu, driver, cuda, cpu, cores, python, command, events_seen, events_lost FROM sessions"
"$gpuwhy" query --db "$work/plain.db" "SELECT direction, COUNT(*), SUM(bytes) FROM events WHERE class='copy' GROUP BY 1"
"$gpuwhy" query --db "$work/plain.db" "SELECT op, COUNT(*) AS calls, SUM(bytes) AS bytes, SUM(bytes IS NULL) AS unknown FROM events WHERE class IN ('alloc','free') GROUP BY 1"

section "a running process, by pid"
ROUNDS=200 python3 throughput.py > /dev/null & job=$!
until grep -q libcudart /proc/$job/maps; do sleep 0.1; done
sleep 3
"$gpuwhy" trace --pid $job --duration 3s --db "$work/pid.db" || failed=1
kill $job; wait $job
[ "$("$gpuwhy" query --db "$work/pid.db" --csv "SELECT COUNT(*) > 10000 FROM events" | tail -1 | tr -d '\r')" = 1 ] || failed=1

section "cost in a launch-bound loop, µs per launch (without, with, without, with, …)"
for round in 1 2 3; do
  without=$(python3 throughput.py)
  with=$("$gpuwhy" trace --quiet --db "$work/cost.db" -- python3 throughput.py 2>"$work/err")
  echo "without $without  with $with"
done
tail -3 "$work/err"

if [ -n "$sim" ]; then
  section "cost of a call on the simulated stack, CPU ns (untraced, bystander, traced)"
  job="env LD_LIBRARY_PATH=$sim $sim/simjob --cudart $sim/libcudart.so.13 --calls 1000000"
  for round in 1 2 3; do
    none=$($job | grep -o '"cpu_ns_per_call":[0-9.]*')
    LD_LIBRARY_PATH=$sim "$gpuwhy" trace --quiet --db "$work/by.db" -- sleep 4 2>/dev/null & by=$!
    sleep 1.5
    bystander=$($job | grep -o '"cpu_ns_per_call":[0-9.]*')
    wait $by
    traced=$(LD_LIBRARY_PATH=$sim "$gpuwhy" trace --quiet --db "$work/sim.db" -- ${job#env * } 2>/dev/null | grep -o '"cpu_ns_per_call":[0-9.]*')
    echo "none $none  bystander $bystander  traced $traced"
  done
fi
section "result"
[ $failed = 0 ] && echo "all as expected" || echo "something differs, see above"
exit $failed
