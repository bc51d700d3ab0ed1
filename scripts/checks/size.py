#!/usr/bin/env python3
"""Functions of at most 80 lines and complexity 15, files of at most 900 lines (a warning above 600).

Measured by pmccabe; a switch counts as one decision. A comment "long: REASON" just above a function, or on its first
lines, exempts it. Tests are exempt from the ceilings on files and complexity: a list of assertions has no hidden paths.

SPDX-License-Identifier: MIT
"""
import re
import subprocess

from tree import Report, files, read

MAX_LINES, MAX_COMPLEXITY, WARN_FILE, MAX_FILE = 80, 15, 600, 900

r = Report()
sources = [f for f in files(".c", ".h", ".cu", ".cuh", under=("src/", "include/", "tests/", "fuzz/")) if "_tables." not in f]
texts = {f: read(f).split("\n") for f in sources}

out = subprocess.run(["pmccabe", *[f for f in sources if not f.endswith((".cu", ".cuh"))]], capture_output=True, text=True).stdout
for row in out.splitlines():
    # modified complexity, traditional, statements, first line, lines, file(definition line): function
    m = re.match(r"(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(.+)\((\d+)\): (.*)$", row)
    if not m:
        continue
    complexity, first, lines, path, name = int(m[1]), int(m[4]), int(m[5]), m[6], m[8]
    if path.startswith("tests/"):
        complexity = 0
    if lines <= MAX_LINES and complexity <= MAX_COMPLEXITY:
        continue
    around = "\n".join(texts[path][max(0, first - 12):first + 2])
    if re.search(r"\blong: \S", around):
        continue
    if lines > MAX_LINES:
        r.bad(path, first, f"{name} has {lines} lines, at most {MAX_LINES}")
    if complexity > MAX_COMPLEXITY:
        r.bad(path, first, f"{name} has complexity {complexity}, at most {MAX_COMPLEXITY}")

for path, lines in texts.items():
    n = len(lines) - 1
    if n > MAX_FILE and not path.startswith("tests/"):
        r.bad(path, n, f"{n} lines, at most {MAX_FILE}")
    elif n > WARN_FILE:
        print(f"{path}:{n}: warning: {n} lines; a file of one idea stays below {WARN_FILE}")
r.end()
