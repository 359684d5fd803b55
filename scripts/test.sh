#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests. The tests trace real processes on a real kernel, so a machine that does something else at the wrong
# moment can make one fail that is right: a few test programs that failed get a second chance, whole, and that is said. What fails
# twice, or in more than three programs, is broken.
set -u
cargo=${1:-cargo}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
most=3

# The exit code of the first part of a pipe, which sh does not keep.
run() {
  { "$cargo" test --release --locked --no-fail-fast "$@" 2>&1 && echo "all passed" >"$log.code"; } | tee "$log"
  [ -f "$log.code" ] && rm -f "$log.code"
}

run && exit 0
# Cargo lists them in the end, one a line: `-p gpuwhy --test budget`
failed=$(sed -n 's/^    `\(-p .*\)`$/\1/p' "$log")
count=$(printf '%s' "$failed" | grep -c .)
[ "$count" -ge 1 ] && [ "$count" -le $most ] || exit 1
echo
echo "failed once, and tried again:"
printf '%s\n' "$failed"
echo
printf '%s\n' "$failed" | {
  code=0
  while read -r target; do
    # shellcheck disable=SC2086 # flags and their values
    "$cargo" test --release --locked --no-fail-fast $target </dev/null || code=1
  done
  exit $code
} || exit 1
echo "passed the second time:"
printf '%s\n' "$failed"
