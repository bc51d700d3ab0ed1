#!/bin/sh
# clang-tidy with the tree's .clang-tidy, over what build/release compiles from src/. The analyzer follows TIDY_NODES states of
# a function at most (its own default is 225000, which takes four times as long for all files).
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/../.." || exit 2

[ -f build/release/compile_commands.json ] || {
    echo "build/release/compile_commands.json is missing: run make build first"
    exit 1
}
find src -name '*.c' | while read -r file; do # a file that this machine does not build has no compile command
    grep -q "\"file\": \"$PWD/$file\"" build/release/compile_commands.json && echo "$file"
done | xargs -P "${JOBS:-$(nproc)}" -n 4 clang-tidy --quiet -p build/release --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes="${TIDY_NODES:-50000}" \
    2>build/logs/tidy.err | grep -v '^$'
# grep fails when nothing was printed: nothing found is what we want
[ $? -eq 1 ] || exit 1
if grep -q 'error' build/logs/tidy.err; then
    cat build/logs/tidy.err
    exit 1
fi
