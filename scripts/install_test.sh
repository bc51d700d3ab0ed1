#!/bin/sh
# Install into an empty folder and build a small program against what was installed: through pkg-config with the shared
# and the static library, and through find_package. Programs in examples/ must build the same way.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make --no-print-directory install DESTDIR="$work/dest" PREFIX=/opt/espalier
root=$work/dest/opt/espalier
pc=$(find "$root" -name espalier.pc)
lib=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH

mkdir "$work/user"
cat >"$work/user/main.c" <<'C'
#include <espalier/status.h>
#include <string.h>

int main(void)
{
    return strcmp(esp_status_name(ESP_EFORMAT), "format");
}
C
cat >"$work/user/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.18)
project(user C)
find_package(espalier REQUIRED)
add_executable(user_shared main.c)
target_link_libraries(user_shared PRIVATE espalier::espalier)
add_executable(user_static main.c)
target_link_libraries(user_static PRIVATE espalier::espalier_static)
CMAKE

# shellcheck disable=SC2046  # lists of flags
{
    cc -std=c99 -o "$work/shared" "$work/user/main.c" $(pkg-config --cflags --libs espalier)
    LD_LIBRARY_PATH=$lib "$work/shared"
    echo "pkg-config, shared: builds and runs"
    cc -std=c99 -o "$work/static" "$work/user/main.c" $(pkg-config --cflags espalier) "$lib/libespalier.a" \
        $(pkg-config --static --libs-only-l --libs-only-other espalier | sed 's/-lespalier//g') $(pkg-config --libs-only-L jansson)
    "$work/static"
    echo "pkg-config, static: builds and runs"
    for example in examples/*.c; do
        [ -f "$example" ] || continue
        cc -std=c99 -Wall -Wextra -Werror -o "$work/example" "$example" $(pkg-config --cflags --libs espalier)
        echo "$example: builds against the installed library"
    done
}
cmake -S "$work/user" -B "$work/user/build" -G Ninja -DCMAKE_PREFIX_PATH="$root" >"$work/log" 2>&1 &&
    cmake --build "$work/user/build" >>"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
"$work/user/build/user_shared"
"$work/user/build/user_static"
echo "find_package, shared and static: builds and runs"

for file in include/espalier/*.h; do
    [ -f "$root/$file" ] || {
        echo "$file is not installed"
        exit 1
    }
done
if [ -x build/release/espalier ]; then
    LD_LIBRARY_PATH=$lib "$root/bin/espalier" --version
fi
! grep -rIl "$PWD" "$root" || {
    echo "installed text files name the build folder"
    exit 1
}
