#!/bin/sh
# Manual pages are well-formed: those in doc/man, and those that the program writes into build/release/man.
#
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/../.." || exit 2

set --
for page in doc/man/*.[1-9] build/release/man/*.[1-9]; do
    [ -f "$page" ] && set -- "$@" "$page"
done
[ $# -gt 0 ] || exit 77 # none yet
exec mandoc -T lint -W warning "$@"
