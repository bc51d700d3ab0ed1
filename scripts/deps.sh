#!/bin/sh
# Make sure that what a purpose needs is there: deps.sh [--list] run|test|check|ci ... (--list: print package names only)
#
# Every need is probed by what it must be able to do (a command, a pkg-config module, a header), not by a package list:
# so a self-built cmake counts, nothing is asked of apt when all is there, and no network is needed then. What is missing
# is installed with apt-get as root; others get the exact command and exit status 2. doc/dependencies.md gives reasons.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

have_command() { command -v "$1" >/dev/null 2>&1; }
have_module() { # module, package: without pkg-config the package manager knows
    if have_command pkg-config; then
        pkg-config --exists "$1"
    else
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$2" 2>/dev/null)" = installed ]
    fi
}
have_libc() { echo '#include <stdio.h>' | ${CC:-cc} -E -o /dev/null - 2>/dev/null; }
have_library() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$1 "; } # loaded at run time
have_arm64_libc() { echo '#include <stdio.h>' | aarch64-linux-gnu-gcc -E -o /dev/null - 2>/dev/null; }
have_venv() { /usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null; }
have_clang_rt() { echo 'int main(void){return 0;}' | clang -fsanitize=address -x c -o /dev/null - 2>/dev/null; }

# One line a need: package, then the probe.
needs() {
    case $1 in
    run)
        echo "gcc have_command ${CC:-cc}"
        echo "libc6-dev have_libc"
        echo "cmake have_command cmake"
        echo "ninja-build have_command ninja"
        echo "pkg-config have_command pkg-config"
        echo "libjansson-dev have_module jansson libjansson-dev"
        echo "libpcre2-dev have_module libpcre2-8 libpcre2-dev"
        echo "libutf8proc-dev have_module libutf8proc libutf8proc-dev"
        echo "libxxhash-dev have_module libxxhash libxxhash-dev"
        echo "libopenblas0 have_library libopenblas.so.0"
        echo "libhwloc-dev have_module hwloc libhwloc-dev"
        echo "libedit-dev have_module libedit libedit-dev"
        echo "libseccomp-dev have_module libseccomp libseccomp-dev"
        echo "libevent-dev have_module libevent_core libevent-dev"
        echo "libsqlite3-dev have_module sqlite3 libsqlite3-dev"
        ;;
    test)
        echo "libcmocka-dev have_module cmocka libcmocka-dev"
        ;;
    check)
        echo "python3 have_command python3"
        echo "git have_command git"
        echo "clang have_command clang"
        echo "clang-format have_command clang-format"
        echo "clang-tidy have_command clang-tidy"
        echo "cppcheck have_command cppcheck"
        echo "pmccabe have_command pmccabe"
        echo "mandoc have_command mandoc"
        echo "g++ have_command g++"
        ;;
    ci)
        echo "python3-venv have_venv"
        echo "curl have_command curl"
        echo "valgrind have_command valgrind"
        echo "gcc-aarch64-linux-gnu have_command aarch64-linux-gnu-gcc"
        echo "libc6-dev-arm64-cross have_arm64_libc"
        echo "qemu-user have_command qemu-aarch64"
        echo "libclang-rt-dev have_clang_rt"
        ;;
    *)
        echo "deps.sh: unknown purpose '$1'; known: run test check ci" >&2
        exit 2
        ;;
    esac
}

missing() {
    for purpose in "$@"; do
        needs "$purpose" | while read -r package probe; do
            $probe >/dev/null 2>&1 || printf '%s ' "$package"
        done
    done
}

list=no
if [ "${1-}" = --list ]; then
    list=yes
    shift
fi
for purpose in "$@"; do
    [ $list = no ] || needs "$purpose" | while read -r package probe; do echo "$package"; done
    needs "$purpose" >/dev/null # an unknown word stops here, not inside a pipe
done
[ $list = no ] || exit 0
packages=$(missing "$@")
packages=${packages% }
[ -n "$packages" ] || exit 0

if ! have_command apt-get; then
    echo "Missing, by their Debian names: $packages" >&2
    echo "This system has no apt-get; install what these packages contain, then run make again." >&2
    exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Some packages are missing. Install them as root, then run make again:" >&2
    echo "    apt-get install --no-install-recommends $packages" >&2
    exit 2
fi

echo "installing with apt-get: $packages"
mkdir -p build/logs
log=build/logs/deps.log
export DEBIAN_FRONTEND=noninteractive
# A failing update is not the end: the lists may be fresh enough, and install then says what is wrong.
apt-get -q -o DPkg::Lock::Timeout=300 update >"$log" 2>&1 || true
# shellcheck disable=SC2086  # a list of words
if ! apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages >>"$log" 2>&1; then
    tail -n 25 "$log" >&2
    echo "apt-get could not install: $packages (whole log: $log)" >&2
    exit 2
fi
left=$(missing "$@")
if [ -n "$left" ]; then
    echo "Installed, but still not usable: $left(log: $log)" >&2
    exit 2
fi
