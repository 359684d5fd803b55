#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests. The tests trace real processes on a real kernel, so a machine that does something else at the wrong
# moment can make one fail that is right: tests that failed, if they are in a few programs only, are run again by themselves, one
# after another, up to twice, and that is said. What fails three times, or in many programs, is broken.
set -u
cargo=${1:-cargo}
first=$(mktemp)
trap 'rm -f "$first" "$first.code"' EXIT
most=5
tries=2

# Runs cargo's tests, and says whether all passed: the exit code of a pipe's first part, which sh does not keep.
run() {
  rm -f "$first.code"
  { "$cargo" test --release --locked --no-fail-fast "$@" 2>&1 && : >"$first.code"; } </dev/null
}
passed() { [ -f "$first.code" ]; }

# The tests of a program (`-p gpuwhy --test budget`) that failed in the first run. None for a program that was cut off, and for
# those that are no files under tests/: they are run again whole.
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
    echo "try $try of $1: ${names:-all of it}" | tr '\n' ' '
    echo
    # shellcheck disable=SC2086 # flags and their values; names, which are no patterns
    run $1 -- --test-threads=1 ${names:+--exact $names}
    passed && return 0
  done
  return 1
}

run | tee "$first"
passed && exit 0
# Cargo lists them in the end, one a line.
programs=$(sed -n 's/^    `\(-p .*\)`$/\1/p' "$first")
count=$(printf '%s' "$programs" | grep -c .)
[ "$count" -ge 1 ] && [ "$count" -le $most ] || exit 1
echo
echo "failed, and tried again:"
printf '%s\n' "$programs" | {
  while read -r program; do
    again "$program" || exit 1
  done
} || exit 1
echo
echo "passed when tried again:"
printf '%s\n' "$programs"
