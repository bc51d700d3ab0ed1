#!/bin/sh
# Unpack the arm64 builds of the third-party libraries into build/arm64-sysroot, with apt's lists kept there as well: no
# foreign architecture is added to the system and root is not needed.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

root=$PWD/build/arm64-sysroot
wanted=$(scripts/deps.sh --list run test)
[ -f "$root/.complete" ] && [ "$(cat "$root/.complete")" = "$wanted" ] && exit 0
rm -rf "$root"
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial" "$root/debs"
: >"$root/apt/status"
options="-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State=$root/apt -o Dir::State::lists=$root/apt/lists
    -o Dir::State::status=$root/apt/status -o Dir::Cache=$root/apt/cache -o APT::Sandbox::User="
# The development packages that the build asks for, and what they directly depend on; the C library is the cross compiler's,
# and line editing stays out: the program works without.
dev=$(scripts/deps.sh --list run test | grep '^lib.*-dev$' | grep -vE '^(libc6|libedit)-dev$')
# shellcheck disable=SC2086  # lists of options and packages
{
    # Other sources of this machine need not offer arm64: what counts is whether the packages can be had.
    apt-get $options update || true
    libraries=$(apt-cache $options depends $dev | sed -n 's/^ *Depends: \(lib[^:<]*\).*/\1/p' | grep -vE '^libc6' | sort -u)
    cd "$root/debs"
    apt-get $options download $dev $libraries
}
for deb in *.deb; do
    dpkg-deb -x "$deb" "$root"
done
echo "$wanted" >"$root/.complete"
