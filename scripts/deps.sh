#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs packages that building, testing or benchmarking gpuwhy needs. Runs apt only if one is missing.
# Usage: scripts/deps.sh [build | test | bench]
set -eu

missing=""
need() { # PACKAGE COMMAND...: the command succeeds if the package is installed
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}
header() { printf '#include <%s>\n' "$1" | cc -E - ; }
static_busybox() { command -v busybox && ! ldd "$(command -v busybox)"; }
static_lib() { [ -f "$(cc -print-file-name="$1")" ]; }

command -v cargo >/dev/null 2>&1 || {
  echo "cargo is not in PATH: install Rust from https://rustup.rs" >&2
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
# Tests and benchmarks compare with perf.
[ "${1:-build}" = build ] || need linux-perf command -v perf
# The MCP server is tested with the SDKs of Python and TypeScript, and with TLS.
if [ "${1:-build}" = test ]; then
  need python3-venv python3 -c 'import ensurepip'
  need nodejs command -v node
  need npm command -v npm
  need openssl command -v openssl
  # A test gives capabilities to a copy of gpuwhy.
  need libcap2-bin env PATH="$PATH:/usr/sbin:/sbin" sh -c 'command -v setcap'
  # A test opens the page of a memory bundle in a browser.
  need chromium command -v chromium
  # Tests boot other kernels in a virtual machine (tests/kernels).
  need qemu-system-x86 command -v qemu-system-x86_64
  need busybox-static static_busybox
fi

install_missing() {
  command -v apt-get >/dev/null 2>&1 || {
    echo "missing packages:$missing (Debian names): install them, then run make again" >&2
    exit 1
  }
  missing=$(printf '%s\n' $missing | sort -u)
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "installing:" $missing
  $sudo apt-get update -qq
  # On Ubuntu, perf is in linux-tools-generic.
  if [ "$1" != build ] && ! apt-cache show linux-perf >/dev/null 2>&1; then
    missing=$(printf '%s\n' $missing | sed 's/^linux-perf$/linux-tools-generic/')
  fi
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq $missing
}

# Installs a tool into target/tools unless it is up to date: copies of its lists in the folder equal the lists. The copies
# are made last, so that an interrupted installation is repeated. COMMAND runs in the empty folder.
tool() { # NAME LISTS COMMAND
  folder=$tools/$1 lists=$2 make=$3
  fresh=yes
  for list in $lists; do
    cmp -s "$wanted/$list" "$folder/.made-of/$list" || fresh=no
  done
  [ $fresh = yes ] && return
  echo "installing into $folder"
  rm -rf "$folder"
  mkdir -p "$folder"
  (cd "$folder" && "$make")
  mkdir "$folder/.made-of"
  for list in $lists; do
    cp "$wanted/$list" "$folder/.made-of/"
  done
}

python_client() {
  python3 -m venv .
  bin/pip install --quiet --disable-pip-version-check -r "$wanted/requirements.txt"
}

node_client() {
  cp "$wanted/package.json" "$wanted/package-lock.json" .
  npm ci --silent --no-audit --no-fund
}

[ -z "$missing" ] || install_missing "${1:-build}"
if [ "${1:-build}" = test ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  wanted=$root/crates/gpuwhy/tests/mcp
  target=${CARGO_TARGET_DIR:-target}
  case $target in
  /*) ;;
  *) target=$root/$target ;;
  esac
  tools=$target/tools
  tool mcp-python requirements.txt python_client
  tool mcp-node "package.json package-lock.json" node_client
fi
