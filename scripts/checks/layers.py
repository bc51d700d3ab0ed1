#!/usr/bin/env python3
"""A room includes only rooms on lower lines of the picture in doc/ARCHITECTURE.md, itself, and public headers.

SPDX-License-Identifier: MIT
"""
import re

from tree import Report, files, read

LINES = [
    ["base"],
    ["formats"],
    ["kernels"],
    ["graph", "dist"],
    ["backend", "io"],
    ["model", "state", "sample", "text", "grammar", "media"],
    ["engine"],
    ["serve", "quantize", "train"],
    ["program"],
]
LEVEL = {room: i for i, rooms in enumerate(LINES) for room in rooms}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)

r = Report()
for path in files(".c", ".h", ".cu", ".cuh", ".def", ".inc", under=("src/", "include/")):
    parts = path.split("/")
    room = "public" if parts[0] == "include" else parts[1]
    text = read(path)
    if room != "public" and room not in LEVEL:
        r.bad(path, 1, f"'{room}' is not a room; rooms: {' '.join(LEVEL)}")
        continue
    for m in INCLUDE.finditer(text):
        quote, name = m.groups()
        line = text.count("\n", 0, m.start()) + 1
        target = name.split("/")[0]
        if target == "espalier":
            continue
        if quote == "<":
            if target in LEVEL and "/" in name:
                r.bad(path, line, f'<{name}>: write our own headers in quotes')
            continue
        if room == "public":
            r.bad(path, line, f'"{name}": a public header includes only espalier/ and the standard library')
        elif "/" not in name or ".." in name:
            r.bad(path, line, f'"{name}": write the path from src/, as "{room}/{name}"')
        elif target not in LEVEL:
            r.bad(path, line, f'"{name}": no room is called {target}')
        elif target != room and LEVEL[target] >= LEVEL[room]:
            r.bad(path, line, f'"{name}": {room} (line {LEVEL[room]}) must not include {target} (line {LEVEL[target]})')
r.end()
