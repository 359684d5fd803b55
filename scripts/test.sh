#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests. They trace real processes on a real kernel, so other load on the machine can make a correct test fail.
# If tests fail in at most five programs, these tests run again, one at a time, up to twice, and the script says so.
# The run fails if a test fails three times, or if more programs have failed tests.
set -u
cargo=${1:-cargo}
first=$(mktemp)
trap 'rm -f "$first" "$first.code"' EXIT
most=5
tries=2

# Runs cargo's tests. The file $first.code exists if all passed, because sh drops the exit code of a pipe's first command.
run() {
  rm -f "$first.code"
  { "$cargo" test --release --locked --no-fail-fast "$@" 2>&1 && : >"$first.code"; } </dev/null
}
passed() { [ -f "$first.code" ]; }

# The failed tests of a program (`-p gpuwhy --test budget`) in the first run. Prints nothing for a program that was cut off,
# or that is not a file under tests/; such a program is repeated as a whole.
failed_of() {
  case $1 in *'--test '*) ;; *) return ;; esac
  awk -v file="tests/${1##*--test }.rs" '
    $1 == "Running" { is_it = $2 == file }
    is_it && /^test .* \.\.\. FAILED$/ { names = names " " $2 }
    is_it && /^test result:/ { print names }
  ' "$first"
}

again() {
  names=$(failed_of "$1")
  for try in $(seq 2 $((tries + 1))); do
    echo "try $try of $1: ${names:-all its tests}" | tr '\n' ' '
    echo
    # shellcheck disable=SC2086 # flags with values, and names, which are not patterns
    run $1 -- --test-threads=1 ${names:+--exact $names}
    passed && return 0
  done
  return 1
}

run | tee "$first"
passed && exit 0
# Cargo lists the failed programs at the end, one per line.
programs=$(sed -n 's/^    `\(-p .*\)`$/\1/p' "$first")
count=$(printf '%s' "$programs" | grep -c .)
[ "$count" -ge 1 ] && [ "$count" -le $most ] || exit 1
echo
echo "failed, now repeated:"
printf '%s\n' "$programs" | {
  while read -r program; do
    again "$program" || exit 1
  done
} || exit 1
echo
echo "passed when repeated:"
printf '%s\n' "$programs"
