#!/bin/sh
# Compile the core's program of threads, from the SOURCES given, for 64-bit Arm, and
# run it under qemu-user where there is one. `make cross` knows the sources.
set -eu
cd "$(dirname "$0")/.."
compiler=aarch64-linux-gnu-gcc
core=popdist/engine/core
program=build/core-aarch64

if ! command -v $compiler >/dev/null; then
    echo "$compiler, which compiles the core for Arm, is not in PATH: on Debian," \
        "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross brings it." >&2
    exit 1
fi
mkdir -p build
# Static, so that qemu needs no libraries of Arm's.
$compiler @$core/flags -Werror -static -I$core "$@" -o $program
if command -v qemu-aarch64 >/dev/null; then
    qemu-aarch64 $program
else
    echo "Compiled, but not run: qemu-aarch64 (Debian's qemu-user) is not in PATH."
fi
