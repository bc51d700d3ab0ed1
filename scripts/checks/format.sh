#!/bin/sh
# clang-format leaves every source file as it is; format.sh --fix rewrites them. CUDA files are left alone: version 14
# breaks their launch brackets.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/../.." || exit 2

mkdir -p build
mode='--dry-run -Werror'
[ "${1-}" = --fix ] && mode=-i
# shellcheck disable=SC2086  # options
find src include tests fuzz examples bench \( -name '*.c' -o -name '*.h' \) ! -name '*_tables.[ch]' -print0 2>/dev/null |
    xargs -0 clang-format $mode 2>build/format.err
status=$?
grep -E '^[^ ]+:[0-9]+:' build/format.err
exit $status
