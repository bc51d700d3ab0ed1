#!/bin/sh
# The checks and the front door must be able to fail: small made-up trees, one fault each, and what has to be said about it.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/.." || exit 2

here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# expect STATUS TEXT COMMAND...: the command ends so and prints TEXT (a fixed string; empty: anything)
expect() {
    wanted=$1 text=$2
    shift 2
    output=$("$@" 2>&1)
    got=$?
    if [ $got -eq "$wanted" ] && printf '%s\n' "$output" | grep -qF -- "$text"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "status $got instead of $wanted, or no \"$text\": $*"
        printf '%s\n' "$output" | head -n 12 | sed 's/^/    /'
    fi
}

# tree: an empty checkout with the check scripts; file PATH: a source with a correct head, then standard input
tree() {
    rm -rf "$work/t"
    mkdir -p "$work/t/scripts"
    cp -r scripts/checks "$work/t/scripts/"
    rm -rf "$work/t/scripts/checks/__pycache__"
    git -c init.defaultBranch=main init -q "$work/t"
}
file() {
    mkdir -p "$work/t/$(dirname "$1")"
    {
        printf '/* Made up. SPDX-License-Identifier: MIT */\n'
        cat
    } >"$work/t/$1"
}
check() { # name: run a check inside the made-up tree
    python3 -B "$work/t/scripts/checks/$1.py"
}
body() { # n: a function of n + 3 lines
    echo "int esp_f(int a)"
    echo "{"
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) print "    a += " i ";" }'
    echo "    return a; }"
}
decisions() {
    echo "int esp_f(int a)"
    echo "{"
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) print "    if (a == " i ") a++;" }'
    echo "    return a; }"
}

# ---- layers ---------------------------------------------------------------------------------------------------------
tree
printf '#include "base/mem.h"\n#include "io/x.h"\n#include "espalier/status.h"\n#include <stdio.h>\n' | file src/io/x.c
expect 0 '' check layers
printf '\n#include "text/span.h"\n' | file src/io/x.c
expect 1 'src/io/x.c:3: "text/span.h": io (line 4) must not include text (line 5)' check layers
printf '#include "backend/backend.h"\n' | file src/io/x.c
expect 1 'io (line 4) must not include backend (line 4)' check layers
printf '#include "x.h"\n' | file src/io/x.c
expect 1 'src/io/x.c:2:' check layers
printf '' | file src/nowhere/x.c
expect 1 "'nowhere' is not a room" check layers
tree
printf '#include "base/mem.h"\n' | file include/espalier/x.h
expect 1 'include/espalier/x.h:2:' check layers

# ---- banned functions -----------------------------------------------------------------------------------------------
tree
printf '/* malloc( */ const char *s = "strcpy(";\nvoid f(void) { x->free(y); (*free)(y); my_printf(z); snprintf(a, 1, "b"); }\n' | file src/io/x.c
printf 'void f(void) { printf("x"); exit(1); }\n' | file src/program/x.c
printf 'void f(void) { free(malloc(1)); }\n' | file src/base/mem.c
expect 0 '' check banned
printf 'void f(void)\n{\n    strcpy(a, b);\n}\n' | file src/program/x.c
expect 1 'src/program/x.c:4: strcpy()' check banned
tree
printf 'void f(void) { free(a); }\n' | file src/io/x.c
expect 1 'src/io/x.c:2: free()' check banned
printf 'void f(void) { exit(1); }\n' | file src/io/x.c
expect 1 'exit()' check banned
printf 'void f(void) { fprintf(stderr, "x"); }\n' | file src/io/x.c
expect 1 'does not print' check banned

# ---- size -----------------------------------------------------------------------------------------------------------
tree
body 77 | file src/io/x.c
expect 0 '' check size
body 78 | file src/io/x.c
expect 1 'src/io/x.c:2: esp_f has 81 lines' check size
{
    echo '/* long: a table of cases */'
    body 78
} | file src/io/x.c
expect 0 '' check size
decisions 14 | file src/io/x.c
expect 0 '' check size
decisions 15 | file src/io/x.c
expect 1 'complexity 16' check size
awk 'BEGIN { for (i = 0; i < 900; i++) print "/* */" }' | file src/io/x.c
expect 1 '901 lines, at most 900' check size
awk 'BEGIN { for (i = 0; i < 600; i++) print "/* */" }' | file src/io/x.c
expect 0 'warning: 601 lines' check size

# ---- files ----------------------------------------------------------------------------------------------------------
tree
printf 'int esp_x;\n' | file src/io/x.c
expect 1 'README.md' check files
echo '# io' >"$work/t/src/io/README.md"
expect 0 '' check files
awk 'BEGIN { for (i = 0; i < 31; i++) print i }' >"$work/t/src/io/README.md"
expect 1 'src/io/README.md:31:' check files
echo '# io' >"$work/t/src/io/README.md"
echo 'int esp_x;' >"$work/t/src/io/y.c"
expect 1 "src/io/y.c:1: no 'SPDX" check files
printf 'int esp_x; /* in /%s/me */\n' home | file src/io/y.c
expect 1 'src/io/y.c:2:' check files
printf '\n/* TO%s: later */\n' DO | file src/io/y.c
expect 1 'src/io/y.c:3: TO' check files
printf '/* %0108d */\n' 0 | file src/io/y.c
expect 1 'src/io/y.c:2: 114 columns' check files

# ---- links ----------------------------------------------------------------------------------------------------------
tree
printf '# A b\n[x](b.md#two-words) [y](#a-b) [z](https://example.org/)\n```\n[no](nothing)\n```\n' >"$work/t/a.md"
printf '## Two words\n' >"$work/t/b.md"
expect 0 '' check links
printf '\n[x](c.md)\n' >"$work/t/a.md"
expect 1 'a.md:2: c.md: no such file' check links
printf '[x](b.md#three)\n' >"$work/t/a.md"
expect 1 'no heading' check links

# ---- the closing line of a test run ---------------------------------------------------------------------------------
mkdir "$work/ctest"
suite() { cat >"$work/ctest/CTestTestfile.cmake"; }
run_tests() { scripts/test.sh "$work/ctest"; }
echo 'add_test(a /bin/true)' | suite
expect 0 '1 passed, 0 failed, 0 skipped' run_tests
printf 'add_test(a /bin/true)\nadd_test(b /bin/sh -c "exit 77")\nset_tests_properties(b PROPERTIES SKIP_RETURN_CODE 77)\n' | suite
expect 0 '1 passed, 0 failed, 1 skipped' run_tests
printf 'add_test(a /bin/true)\nadd_test(b /bin/false)\nadd_test(c /nonexistent)\n' | suite
expect 1 '1 passed, 2 failed, 0 skipped' run_tests
printf '' | suite
expect 1 '0 passed, 1 failed, 0 skipped' run_tests

# ---- packages: a path on which only what we put there exists ---------------------------------------------------------
mkdir -p "$work/bin" "$work/front"
cp -r scripts "$work/front/"
for tool in sh dirname mkdir id tail sed cat printf; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done
deps() { (cd "$work/front" && PATH=$work/bin scripts/deps.sh "$@"); }
fake() { # NAME: a program from standard input
    rm -f "$work/bin/$1"
    cat >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
expect 2 'no apt-get' deps run
echo '#!/bin/sh' | fake apt-get
printf '#!/bin/sh\necho 1000\n' | fake id
expect 2 'apt-get install --no-install-recommends gcc libc6-dev cmake ninja-build pkg-config libjansson-dev' deps run
printf '#!/bin/sh\necho 0\n' | fake id
expect 2 'still not usable: gcc' deps run
printf '#!/bin/sh\nexit 1\n' | fake apt-get
expect 2 'could not install: libcmocka-dev' deps test
expect 2 "unknown purpose 'nonsense'" deps nonsense
for tool in cc cmake ninja pkg-config; do
    printf '#!/bin/sh\nexit 0\n' | fake $tool
done
ln -s "$(command -v grep)" "$work/bin/grep"
printf '#!/bin/sh\nprintf "\\tlibopenblas.so.0 (libc6,x86-64)\\n"\n' | fake ldconfig
printf '#!/bin/sh\necho called >%s\n' "$work/called" | fake apt-get
expect 0 '' deps run test
expect 1 '' test -e "$work/called" # nothing missing: apt is not called

cd "$here" || exit 2
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
