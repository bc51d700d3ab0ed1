#!/bin/sh
# cppcheck over the library and the program; suppressions name their reason here.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/../.." || exit 2

mkdir -p build/cppcheck
# missingInclude*: the analysis does without system headers. unusedFunction is not enabled: a library's are used outside.
# invalidPointerCast: weights are bytes of a mapped file; io checks size and alignment before a kernel sees them.
# unmatchedSuppression: lines for code that a build leaves out.
exec cppcheck -q -j "${JOBS:-$(nproc)}" --cppcheck-build-dir=build/cppcheck --std=c11 --language=c \
    --enable=warning,portability,performance --inline-suppr --error-exitcode=1 --template='{file}:{line}: {id}: {message}' \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
    --suppress=invalidPointerCast -D_GNU_SOURCE -DESP_VERSION='"0"' -D__x86_64__ -D__GNUC__=12 -Iinclude -Isrc src
