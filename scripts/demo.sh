#!/bin/sh
# Let the bundled model answer one prompt, and say how to go on.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

program=build/release/espalier
if [ ! -x $program ]; then
    echo "make demo: $program is not built: this checkout has no src/program" >&2
    exit 1
fi
if [ ! -f models/demo/config.json ]; then
    echo "make demo: models/demo is missing; it belongs to the checkout" >&2
    exit 1
fi
printf '\n> %s\n' "$PROMPT"
$program run models/demo "$PROMPT"
printf '\n'
echo "Another prompt:  make demo PROMPT=\"Spell: garden\""
echo "Chat on:         $program chat models/demo"
