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
programs='test_cuda_ops test_cuda_open test_cuda_coded test_cuda_kv test_state_oracle test_model_tiny_text test_model_mtp test_engine_demo test_engine_spec test_engine_adapter test_engine_schemes test_engine_few test_quantize_device bench_cuda bench_encode espalier'

if [ "$verb" = pack ]; then
    cmake --preset cuda -DESPALIER_CUDA_ARCHS=90a >/dev/null || exit 1
    # shellcheck disable=SC2086
    nice -n 5 cmake --build build/cuda --target $programs espalier_cuda >/dev/null || exit 1
    mkdir -p "$dir"
    for p in $programs espalier_cuda.so; do
        strip -o "$dir/$p" "build/cuda/$p" || exit 1
    done
    for p in $programs; do
        ldd "build/cuda/$p"
    done | sed -n 's/.*=> \(\/[^ ]*\(jansson\|pcre2\|utf8proc\|xxhash\|cmocka\|event\|edit\|seccomp\|sqlite\|bsd\|libmd\|tinfo\)[^ ]*\).*/\1/p' | sort -u | while read -r lib; do
        cp -L "$lib" "$dir/"
    done
    for lib in libopenblas.so.0 libgfortran.so.5 libquadmath.so.0; do # loaded by the quantizer when it is there
        found=$(ldconfig -p | sed -n "s/.*$lib .*=> //p" | head -n 1)
        [ -z "$found" ] || strip -o "$dir/$lib" "$found"
    done
    du -sh "$dir"
    exit 0
fi

shift 2
out=${OUT:-$dir/out}
mkdir -p "$out"
dir=$(cd "$dir" && pwd) || exit 2
export LD_LIBRARY_PATH="$dir" ESPALIER_TEST_ROOT="$PWD" ESPALIER_CUDA_LIBRARY="$dir/espalier_cuda.so"
begin=$(date +%s)
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

check() { # NAME SECONDS COMMAND...; the verdict goes to $out/NAME.verdict
    name=$1 limit=$2
    shift 2
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    case $? in
    0) verdict=ok ;;
    77) verdict=skipped ;;
    124 | 137) verdict="TIMEOUT after $limit s" ;;
    *) verdict=FAILED ;;
    esac
    echo "$verdict $name ($(($(date +%s) - start)) s)" >"$out/$name.verdict"
    [ "$verdict" = ok ] || grep -E 'ERROR|differs|instead|skipped|bit|FAILED|rror' "$out/$name.log" | head -n 6 >>"$out/$name.verdict"
}
ops() { # NAME FILTER
    check "$1" 120 env ESPALIER_TEST_FILTER="$2" "$dir/test_cuda_ops"
}
rm -f "$out"/*.verdict
if [ -z "${SKIP_CHECKS:-}" ]; then # side by side: most of their time is the CPU's, which they compare with
    ops formats test_formats &
    ops trellis test_trellis &
    ops trellis_mixed test_trellis_mixed &
    ops shapes test_shapes &
    ops cuts test_cuts &
    ops trellis_cuts test_trellis_cuts &
    ops term_cuts test_term_cuts &
    ops coded_cuts test_coded_cuts &
    ops wave_cuts test_wave_cuts &
    check kv 120 env ESPALIER_TEST_SKIP_CPU=1 "$dir/test_cuda_kv" &
    check schemes 120 env ESPALIER_TEST_DEVICE=cuda "$dir/test_engine_schemes" &
    check few 60 env ESPALIER_TEST_DEVICE=cuda "$dir/test_engine_few" &
    check open 20 env -u ESPALIER_CUDA_LIBRARY "$dir/test_cuda_open" &
    check coded 20 "$dir/test_cuda_coded" &
    check encoder 60 "$dir/test_quantize_device" &
    check tiny_text 60 env ESPALIER_TEST_DEVICE=cuda "$dir/test_model_tiny_text" &
    check draft 60 env ESPALIER_TEST_DEVICE=cuda "$dir/test_model_mtp" &
    check oracle 100 env ESPALIER_TEST_DEVICE=cuda "$dir/test_state_oracle" &
    check adapter 120 env ESPALIER_TEST_DEVICE=cuda "$dir/test_engine_adapter" &
    check spec 120 env ESPALIER_TEST_DEVICE=cuda "$dir/test_engine_spec" &
    check demo 60 env ESPALIER_TEST_DEVICE=cuda "$dir/test_engine_demo" &
    wait
    if grep -qsE '^(FAILED|TIMEOUT)' "$out"/*.verdict; then # does it come from kernels that start early?
        export ESPALIER_CUDA_EARLY=0
        check plain_cuts 40 env ESPALIER_TEST_FILTER='test_*cuts' "$dir/test_cuda_ops" &
        check plain_formats 40 env ESPALIER_TEST_FILTER=test_formats "$dir/test_cuda_ops" &
        check plain_trellis 40 env ESPALIER_TEST_FILTER=test_trellis "$dir/test_cuda_ops" &
        wait
        unset ESPALIER_CUDA_EARLY
    fi
    cat "$out"/*.verdict
fi
if [ -n "${SANITIZE:-}" ] && command -v compute-sanitizer >/dev/null; then
    export ESPALIER_TEST_FILTER=test_shapes
    check memcheck 300 compute-sanitizer --tool memcheck --error-exitcode 1 "$dir/test_cuda_ops"
    check racecheck 300 compute-sanitizer --tool racecheck --error-exitcode 1 "$dir/test_cuda_ops"
    cat "$out"/memcheck.verdict "$out"/racecheck.verdict
fi
if [ -z "${SKIP_BENCH:-}" ]; then
    timeout -k 5 40 "$dir/bench_encode" 2>"$out/encode.err" | tee "$out/encode.txt"
    tail -n 2 "$out/encode.err"
    left=$((${SECONDS_IN_ALL:-285} - ($(date +%s) - begin)))
    BENCH_SECONDS=$((left - 40)) timeout -k 5 "$left" "$dir/bench_cuda" "$@" 2>"$out/bench.err" | tee "$out/bench.txt"
    grep -v 'ready after' "$out/bench.err" | tail -n 5
fi
echo "$(($(date +%s) - begin)) s in all"
if grep -qsE '^(FAILED|TIMEOUT)' "$out"/*.verdict; then
    echo '!!!!!!!! CHECKS FAILED: the timings above are of wrong results !!!!!!!!'
    grep -hE '^(FAILED|TIMEOUT)' "$out"/*.verdict
    exit 1
fi
