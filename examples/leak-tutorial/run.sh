#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Traces a healthy job, a leak, a job that runs out of memory, and the fix; then compares them.
# Usage: examples/leak-tutorial/run.sh [--sim | --gpu] [--out FOLDER]
#   --sim   on gpuwhy's simulated GPU, with a stand-in for PyTorch (needs nothing installed)
#   --gpu   on a GPU, with PyTorch (default: the GPU if PyTorch sees one, else the simulated GPU)
#   --out   folder for the run files (default: leak-tutorial in the current folder)
# $GPUWHY names the binary (default: target/release/gpuwhy, then gpuwhy in $PATH). Needs root or sudo.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=leak-tutorial
mode=
while [ $# -gt 0 ]; do
  case $1 in
    --sim | --gpu) mode=${1#--} ;;
    --out) out=${2:?--out needs a folder} && shift ;;
    *) sed -n '4,8s/^# //p' "$0" && exit 2 ;;
  esac
  shift
done
gpuwhy=${GPUWHY:-$here/../../target/release/gpuwhy}
[ -x "$gpuwhy" ] || gpuwhy=$(command -v gpuwhy) || { echo "gpuwhy not found: run make build, or set GPUWHY to its path" >&2 && exit 2; }
# The full path, because sudo may search another $PATH.
python=$(command -v "${PYTHON:-python3}") || { echo "${PYTHON:-python3} not found: install it, or set PYTHON to its path" >&2 && exit 2; }
if [ -z "$mode" ]; then
  mode=sim
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null && mode=gpu
fi
mkdir -p "$out"
limit_mb=256
settings=()
if [ "$mode" = sim ]; then
  "$gpuwhy" demo --unpack "$out/simulated-gpu" >/dev/null
  sim=$(cd "$out/simulated-gpu" && pwd)
  settings=("LD_LIBRARY_PATH=$sim" "SIMGPU_LIB=$sim" "PYTHONPATH=$here/simulated/site-packages:$sim/site-packages")
  settings+=(PYTHONDONTWRITEBYTECODE=1)
fi
root=()
[ "$(id -u)" = 0 ] || root=(sudo)

bold='' plain=''
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] && bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

# trace RUN_FILE [ARGUMENTS OF train.py]
trace() {
  local db=$1 && shift
  echo "\$ gpuwhy trace --db $db -- python3 train.py $*"
  "${root[@]}" env "${settings[@]}" "$gpuwhy" trace --quiet --budget none --db "$out/$db" -- "$python" "$here/train.py" "$@" \
    2>"$out/${db%.db}.log"
}

show() {
  echo "\$ gpuwhy memory $*"
  (cd "$out" && "$gpuwhy" memory "$@")
}

rm -f "$out"/{healthy,leaky,oom,fixed}.db
say "1. Healthy: the script as it was"
trace healthy.db --remember nothing
say "2. The leak: someone wants to inspect the outputs later"
trace leaky.db --remember tensors
show --db leaky.db --leaks
say "3. More steps run out of memory (limited to $limit_mb MB here)"
[ "$mode" = sim ] && settings+=("SIMGPU_MEM=${limit_mb}M")
code=0
trace oom.db --remember tensors --steps 100000 --limit-mb $limit_mb || code=$?
[ "$code" -ne 0 ] && [ "$code" -ne 125 ] || { echo "train.py ended with exit code $code: it should have run out of memory" >&2 && exit 1; }
[ "$mode" = sim ] && unset 'settings[-1]'
grep -i 'OutOfMemoryError' "$out/oom.log" | tail -1
show --db oom.db --oom
say "4. The fix: keep a number instead of a tensor"
trace fixed.db --remember numbers
say "5. What changed"
show --compare healthy.db leaky.db fixed.db
