#!/bin/sh
# Run the static checks and close with one line: check.sh [names]. Each check prints file:line of what it refuses.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/.." || exit 2
mkdir -p build/logs

all='layers.py banned.py size.py files.py links.py deps.py symbols.py headers.sh format.sh man.sh cppcheck.sh tidy.sh'
passed=0 failed=0 skipped=0
for check in ${*:-$all}; do
    log=build/logs/check-$check.log
    case $check in
    *.py) python3 -B "scripts/checks/$check" >"$log" 2>&1 ;;
    *) "scripts/checks/$check" >"$log" 2>&1 ;;
    esac
    case $? in
    0) passed=$((passed + 1)) verdict=ok ;;
    77) skipped=$((skipped + 1)) verdict=skipped ;;
    *) failed=$((failed + 1)) verdict=FAILED ;;
    esac
    printf '%-8s %s\n' $verdict "${check%.*}"
    sed 's/^/         /' "$log" | head -n 200
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
