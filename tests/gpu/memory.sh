#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares `gpuwhy memory` with PyTorch's own figures on a machine with a GPU: peaks, checkpoints, eight leaks and their fixed
# twins, out of memory, a killed job, an attached job, and the live view with alerts. About three minutes.
# Usage: tests/gpu/memory.sh [GPUWHY [PATTERN...]]     BUDGET=none traces without a budget; KEEP=FOLDER keeps what failed
set -uo pipefail
here=$(dirname "$(realpath "$0")")
gpuwhy=$(realpath "${1:-$here/../../target/release/gpuwhy}") || exit 1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
budget=${BUDGET:-2%}
failed=0
checks() { # WHAT [NAME]
  python3 "$here/memory_check.py" "$gpuwhy" "$work/run.db" "$work/said.json" "$1" "$work" && return
  failed=1
  [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP/${2:-$1}" && cp -r "$work"/* "$KEEP/${2:-$1}"; }
}
trace() { # BUDGET COMMAND...
  local budget=$1
  shift
  rm -f "$work"/run.db* "$work/said.json"
  "$gpuwhy" trace --verbose --quiet --budget "$budget" --db "$work/run.db" -- "$@" > "$work/out" 2>&1
}
date -u +%F
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

for allocator in "" expandable_segments:True backend:cudaMallocAsync; do
  echo "== to the byte ${allocator:+with $allocator}"
  PYTORCH_CUDA_ALLOC_CONF="$allocator" PYTORCH_ALLOC_CONF="$allocator" \
    trace none python3 "$here/memory_job.py" exact "$work/said.json" || { tail -n 5 "$work/out"; failed=1; }
  checks "exact${allocator:+_${allocator%:*}}"
done

echo "== leaks and their fixed twins, budget $budget"
# A single "-" runs none of them.
[ $# -gt 0 ] || set -- list loss hook state autocast validation epoch graph
[ "$*" != - ] || set --
for pattern in "$@"; do
  for twin in leaky fixed; do
    trace "$budget" python3 "$here/memory_leaks.py" "$pattern" $twin "$work/said.json" || { tail -n 5 "$work/out"; failed=1; }
    grep -e sampling -e paused "$work/out" | head -n 3
    checks leak "$pattern-$twin"
  done
done

echo "== memory runs out"
trace none python3 "$here/memory_job.py" oom "$work/said.json" && { echo "  NOT the job should have failed"; failed=1; }
checks oom
"$gpuwhy" memory --oom --db "$work/run.db" | head -n 40

echo "== killed"
trace none python3 "$here/memory_job.py" killed "$work/said.json" &
for _ in $(seq 600); do [ -f "$work/said.json" ] && break; sleep 0.1; done
# By pid, because gpuwhy's arguments also contain its name.
kill -KILL "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$work/said.json")"
wait
checks killed

echo "== attached"
rm -f "$work"/run.db* "$work"/said.json*
LEAK_STEPS=1500 python3 "$here/memory_leaks.py" hook leaky "$work/said.json" & job=$!
until [ -f "$work/said.json.started" ] || ! kill -0 $job; do sleep 0.1; done
"$gpuwhy" trace --verbose --quiet --budget none --db "$work/run.db" --pid $job > "$work/out" 2>&1
wait $job
checks attached

echo "== while it runs"
rm -f "$work"/run.db* "$work"/{said.json,alerts,live.jsonl}
export LEAK_STEPS=2500
"$gpuwhy" memory --live --json --db "$work/run.db" > "$work/live.jsonl" & live=$!
"$gpuwhy" trace --verbose --quiet --budget none --db "$work/run.db" --alert leak --alert 'growth>200MB/s' \
  --on-alert "echo \$GPUWHY_ALERT_KIND \$GPUWHY_ALERT_TEXT >> $work/alerts" -- \
  python3 "$here/memory_leaks.py" hook leaky "$work/said.json" > "$work/out" 2>&1 || { tail -n 5 "$work/out"; failed=1; }
wait $live
checks live
exit $failed
