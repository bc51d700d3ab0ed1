#!/usr/bin/env python3
"""Every source file opens with a comment and its licence and has at most 110 columns, every room has a short README,
machine paths stay out.

SPDX-License-Identifier: MIT
"""
import os
import re
import unicodedata

from tree import Report, code, files, read

SPDX = "SPDX-License-Identifier: MIT"
# in two parts each, so that this file does not find itself
WORDS = ["/" + "work/", "/" + "root/", "/" + "home/", "/" + "Users/", "<<<" + "<<<<", ">>>" + ">>>>"]
OWNERLESS = re.compile(r"\b(TODO|FIXME)\b(?!\()")

r = Report()
sources = files(".c", ".h", ".cu", ".cuh", ".def", ".inc", under=("src/", "include/", "tests/", "fuzz/", "examples/", "bench/"))
for path in sources:
    text = read(path)
    head = text[:3000]
    if SPDX not in head:
        r.bad(path, 1, f"no '{SPDX}' in the opening comment")
    if path.endswith((".c", ".h", ".cu")) and not text.startswith("/*"):
        r.bad(path, 1, "a file starts with a comment that says what it is")
    if "\t" in text:
        r.bad(path, text[:text.index("\t")].count("\n") + 1, "a tab; the formatter uses spaces")
    if path.endswith((".c", ".h")) and "_tables." not in path:
        by_hand = False
        for i, line in enumerate(text.split("\n"), 1):
            by_hand = "clang-format off" in line or (by_hand and "clang-format on" not in line)
            columns = sum(not unicodedata.category(c).startswith("M") for c in line)  # marks take none
            if columns > 110 and not by_hand:
                r.bad(path, i, f"{columns} columns, at most 110; the formatter leaves comments as they are")
    for m in OWNERLESS.finditer(text):
        r.bad(path, text.count("\n", 0, m.start()) + 1, f"{m.group()} without an owner")

for path in files(".sh", ".py", ".cmake", under=("scripts/", ".ci/", "cmake/")):
    if not path.startswith("cmake/") and SPDX not in read(path)[:3000]:
        r.bad(path, 1, f"no '{SPDX}'")

rooms = sorted({p.split("/")[1] for p in files(under=("src/",)) if p.count("/") > 1})
for room in rooms:
    readme = f"src/{room}/README.md"
    if not os.path.exists(readme):
        r.bad(f"src/{room}", 1, "a room has a README.md of at most 30 lines")
    elif read(readme).count("\n") > 30:
        r.bad(readme, 31, "a room's README.md has at most 30 lines")

for path in files():
    if path.startswith("models/") or os.path.getsize(path) > 2 << 20:
        continue
    with open(path, "rb") as f:
        data = f.read()
    if b"\0" in data[:8192]:
        continue
    text = data.decode("utf-8", "replace")
    for word in WORDS:
        at = text.find(word)
        if at >= 0:
            r.bad(path, text.count("\n", 0, at) + 1, f"'{word}' belongs to a machine, not to the tree")
r.end()
