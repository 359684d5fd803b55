#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what building, testing or measuring gpuwhy needs and this machine lacks. Asks apt only then.
set -eu

missing=""
need() { # package, then a test that succeeds when it is there
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}
header() { printf '#include <%s>\n' "$1" | cc -E - ; }
static_lib() { [ -f "$(cc -print-file-name="$1")" ]; }

command -v cargo >/dev/null 2>&1 || {
  echo "gpuwhy is built with Rust, and there is no cargo in PATH: install it from https://rustup.rs" >&2
  exit 1
}
need gcc command -v cc
need g++ command -v c++
need clang command -v clang
need llvm command -v llvm-strip
need libelf-dev header gelf.h
need libelf-dev static_lib libelf.a
need zlib1g-dev header zlib.h
need zlib1g-dev static_lib libz.a
need pkg-config command -v pkg-config
need python3 command -v python3
# Tests and measurements compare with perf.
[ "${1:-build}" = build ] || need linux-perf command -v perf

[ -z "$missing" ] && exit 0
command -v apt-get >/dev/null 2>&1 || {
  echo "please install these first:$missing (names as in Debian)" >&2
  exit 1
}
missing=$(printf '%s\n' $missing | sort -u)
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing:" $missing
$sudo apt-get update -qq
# Ubuntu has no linux-perf; its perf comes with the kernel's tools.
if [ "${1:-build}" != build ] && ! apt-cache show linux-perf >/dev/null 2>&1; then
  missing=$(printf '%s\n' $missing | sed 's/^linux-perf$/linux-tools-generic/')
fi
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq $missing
