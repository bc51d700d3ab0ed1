#!/bin/sh
# Run the tests of a build folder and close with one line: test.sh DIR [--threads] [ctest options]
#
# The numbers come from ctest's own result file, so that a program that could not start counts as failed (ctest lists it
# beside the skipped ones) and a run without any test fails.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/.." || exit 2

dir=$1
shift
run=
if [ "${1-}" = --threads ]; then
    shift
    set -- -L threads "$@" # cmake/tests.cmake says which
    # Recent kernels randomize more address bits than this sanitizer's shadow map allows.
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        run="setarch $(uname -m) -R"
    fi
fi
# Answers are compared with the CPU's own; tests of devices name them.
export ESPALIER_DEVICE=cpu
results=$(cd "$dir" && pwd)/results.xml || exit 2
rm -f "$results"
$run ctest --test-dir "$dir" --output-on-failure --no-tests=ignore -j "${JOBS:-$(nproc)}" \
    --output-junit "$results" "$@"
status=$?

[ -f "$results" ] || {
    echo "no result file was written: ctest status $status" >&2
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
awk -v status=$status -v only="$*" '
    function attribute(line, key) {
        if (!match(line, " " key "=\"[^\"]*\""))
            return ""
        return substr(line, RSTART + length(key) + 3, RLENGTH - length(key) - 4)
    }
    /<testcase / {
        name = attribute($0, "name")
        state = attribute($0, "status")
        names[name] = state == "run" ? "passed" : state == "notrun" ? "failed" : state == "disabled" ? "skipped" : "failed"
    }
    /<skipped message="SKIP_/ { names[name] = "skipped" }
    END {
        for (name in names) {
            count[names[name]]++
            if (names[name] != "passed")
                print names[name] ": " name
        }
        if (count["passed"] + count["failed"] + count["skipped"] == 0) {
            print "no test ran" (only == "" ? "" : " (" only ")")
            count["failed"] = 1
        } else if (status != 0 && !count["failed"]) {
            print "ctest ended with status " status
            count["failed"] = 1
        }
        printf "%d passed, %d failed, %d skipped\n", count["passed"], count["failed"], count["skipped"]
        exit count["failed"] > 0
    }' "$results"
