#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares gpuwhy with PyTorch's own figures on a machine with a GPU: allocator, CUDA graphs, collectives, names.
# Usage: tests/gpu/capture.sh [GPUWHY]
set -uo pipefail
here=$(dirname "$(realpath "$0")")
gpuwhy=$(realpath "${1:-$here/../../target/release/gpuwhy}") || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
date -u +%F
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
run() { # NAME WHAT ALLOCATOR-OPTIONS
  echo "== $1"
  PYTORCH_CUDA_ALLOC_CONF="$3" PYTORCH_ALLOC_CONF="$3" "$gpuwhy" trace --verbose --quiet --budget none --db "$work/$1.db" -- \
    python3 "$here/capture_job.py" "$2" "$work/$1.json" > "$work/out" 2>&1 ||
    { tail -n 5 "$work/out"; failed=1; return; }
  grep -i -e itself -e overhead "$work/out"
  python3 "$here/capture_check.py" "$work/$1.db" "$work/$1.json" "$2" || failed=1
}
run memory memory ""
run expandable memory expandable_segments:True
run async memory backend:cudaMallocAsync
run graphs graphs ""
run collectives collectives ""
run names names ""
exit $failed
