#!/bin/sh
# Every public header compiles alone, as C99 and as C++, with both compilers.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/../.." || exit 2

status=0
for header in include/espalier/*.h; do
    name=${header#include/}
    for compiler in 'gcc -std=c99 -x c' 'clang -std=c99 -x c' 'g++ -std=c++11 -x c++' 'clang++ -std=c++11 -x c++'; do
        # shellcheck disable=SC2086  # compiler and its options
        if ! printf '#include <%s>\n#include <%s>\n' "$name" "$name" |
            $compiler -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only -; then
            echo "$header:1: does not compile alone with $compiler"
            status=1
        fi
    done
done
exit $status
