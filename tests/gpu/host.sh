#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests the host's side and Python lines on a machine with a GPU and PyTorch: traces stacks_job.py and compares with the job's
# own report. Then compares the job's speed with and without tracing.
# Usage: host.sh GPUWHY [STEPS]
set -eu
gpuwhy=$(realpath "$1")
steps=${2:-400}
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
chmod 755 .

"$gpuwhy" check || true
"$gpuwhy" trace --verbose --quiet --db run.db -- python3 "$here/stacks_job.py" "$steps" >job.out
tail -n 1 job.out >job.json
python3 "$here/check_host.py" run.db job.json || echo "NOT AS EXPECTED"
"$gpuwhy" stacks --db run.db --op cudaMalloc --limit 3 || true
"$gpuwhy" stacks --db run.db --op cpu_sample --by line --limit 5 || true

echo
echo "steps a second, in turns"
for round in 1 2; do
  python3 "$here/stacks_job.py" "$steps" | tail -n 1 | sed 's/,.*//; s/^/untraced   /'
  for flags in "" "--no-stack" "--no-host" "--no-host --no-stack"; do
    rm -f t.db
    # shellcheck disable=SC2086
    "$gpuwhy" trace --verbose --quiet $flags --db t.db -- python3 "$here/stacks_job.py" "$steps" 2>err.txt | tail -n 1 |
      sed "s/,.*//; s/^/traced $flags   /"
    grep itself err.txt
  done
done
