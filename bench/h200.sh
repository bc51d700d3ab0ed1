#!/bin/sh
# Check and time the CUDA backend on a machine with a device.
#   bench/h200.sh pack DIR            build here, and collect programs and their libraries into DIR
#   bench/h200.sh run DIR [SHAPE FORMAT]...   on the machine with the device, from the checkout's root: check, then time
# A machine with a device often lacks the -dev packages of the libraries; so the programs are built elsewhere and carried.
# Logs go to $OUT (default DIR/out); the last thing printed is the table.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/.." || exit 2
verb=${1:-} dir=${2:-}
[ -n "$dir" ] || { echo "usage: bench/h200.sh pack|run DIR" >&2; exit 2; }
programs='test_cuda_ops test_cuda_open test_state_oracle test_model_tiny_text test_engine_demo bench_cuda'

if [ "$verb" = pack ]; then
    cmake --preset cuda -DESPALIER_CUDA_ARCHS=90a >/dev/null || exit 1
    # shellcheck disable=SC2086
    cmake --build build/cuda --target $programs espalier_cuda >/dev/null || exit 1
    mkdir -p "$dir"
    for p in $programs espalier_cuda.so; do
        strip -o "$dir/$p" "build/cuda/$p" || exit 1
    done
    for p in $programs; do
        ldd "build/cuda/$p"
    done | sed -n 's/.*=> \(\/[^ ]*\(jansson\|pcre2\|utf8proc\|xxhash\|cmocka\)[^ ]*\).*/\1/p' | sort -u | while read -r lib; do
        cp -L "$lib" "$dir/"
    done
    du -sh "$dir"
    exit 0
fi

shift 2
out=${OUT:-$dir/out}
mkdir -p "$out"
dir=$(cd "$dir" && pwd) || exit 2
export LD_LIBRARY_PATH="$dir" ESPALIER_TEST_ROOT="$PWD" ESPALIER_CUDA_LIBRARY="$dir/espalier_cuda.so"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

check() { # NAME COMMAND...
    name=$1
    shift
    start=$(date +%s)
    timeout 200 "$@" >"$out/$name.log" 2>&1
    case $? in
    0) verdict=ok ;;
    77) verdict=skipped ;;
    *) verdict=FAILED ;;
    esac
    echo "$verdict $name ($(($(date +%s) - start)) s)"
    [ $verdict = ok ] || grep -E 'ERROR|differs|instead|skipped|bit|FAILED|rror' "$out/$name.log" | head -n 12
}
if [ -z "${SKIP_CHECKS:-}" ]; then
    check ops "$dir/test_cuda_ops"
    check open env -u ESPALIER_CUDA_LIBRARY "$dir/test_cuda_open"
    export ESPALIER_TEST_DEVICE=cuda
    check tiny_text "$dir/test_model_tiny_text"
    check oracle "$dir/test_state_oracle"
    check demo "$dir/test_engine_demo"
    unset ESPALIER_TEST_DEVICE
fi
if [ -n "${SANITIZE:-}" ] && command -v compute-sanitizer >/dev/null; then
    ESPALIER_TEST_FILTER=test_shapes check memcheck compute-sanitizer --tool memcheck --error-exitcode 1 "$dir/test_cuda_ops"
    ESPALIER_TEST_FILTER=test_shapes check racecheck compute-sanitizer --tool racecheck --error-exitcode 1 "$dir/test_cuda_ops"
fi
[ -n "${SKIP_BENCH:-}" ] || "$dir/bench_cuda" "$@" 2>"$out/bench.err" | tee "$out/bench.txt"
