#!/bin/sh
# Unpack the arm64 builds of the third-party libraries into build/arm64-sysroot, with apt's lists kept there as well: no
# foreign architecture is added to the system and root is not needed.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

root=$PWD/build/arm64-sysroot
[ -f "$root/.complete" ] && exit 0
rm -rf "$root"
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial" "$root/debs"
: >"$root/apt/status"
options="-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State=$root/apt -o Dir::State::lists=$root/apt/lists
    -o Dir::State::status=$root/apt/status -o Dir::Cache=$root/apt/cache -o APT::Sandbox::User="
# shellcheck disable=SC2086  # a list of options
{
    # Other sources of this machine need not offer arm64: what counts is whether the packages can be had.
    apt-get $options update || true
    cd "$root/debs"
    apt-get $options download libjansson4 libjansson-dev libpcre2-8-0 libpcre2-dev libutf8proc2 libutf8proc-dev \
        libcmocka0 libcmocka-dev
}
for deb in *.deb; do
    dpkg-deb -x "$deb" "$root"
done
: >"$root/.complete"
