#!/bin/sh
# Configure once and build a preset, quietly: build.sh PRESET [--tests] [--only TARGET] [cmake -D options]
#
# The stamp is the preset's own build.ninja: once it exists Ninja re-runs CMake by itself when a build file or a glob
# changed. A build folder that belongs to another place (a moved or copied checkout) is started afresh.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

preset=$1
shift
tests=OFF
if [ "${1-}" = --tests ]; then
    tests=ON
    shift
fi
target=all
if [ "${1-}" = --only ]; then
    target=$2
    shift 2
fi
dir=build/$preset
log=build/logs/$preset.log
cache=$dir/CMakeCache.txt
mkdir -p build/logs

quietly() { # show the end of the log only when the command fails
    if ! "$@" >"$log" 2>&1; then
        grep -vE '^\[[0-9]+/[0-9]+\] ' "$log" | tail -n 60 >&2 # without Ninja's progress
        echo "failed: $* (whole log: $log)" >&2
        exit 1
    fi
}

if [ -f "$cache" ] && ! grep -q "^CMAKE_HOME_DIRECTORY:INTERNAL=$PWD\$" "$cache"; then
    rm -rf "$dir"
fi
# Tests once on stay on: going back and forth between make demo and make test would rebuild nothing but confuse.
if [ -f "$dir/build.ninja" ] && grep -q '^ESPALIER_TESTS:BOOL=ON' "$cache"; then
    tests=ON
    configured=yes
elif [ -f "$dir/build.ninja" ] && [ $tests = OFF ]; then
    configured=yes
else
    configured=no
fi
if [ $configured = no ] || [ $# -gt 0 ]; then
    echo "configuring $preset"
    quietly cmake --preset "$preset" -DESPALIER_TESTS=$tests "$@"
fi
echo "building $preset"
quietly cmake --build "$dir" --target "$target" -j "${JOBS:-$(nproc)}"
