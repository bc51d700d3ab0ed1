#!/usr/bin/env python3
"""The shared library exports exactly what public headers declare with ESP_API; other external names begin with esp_.

SPDX-License-Identifier: MIT
"""
import re
import subprocess
import sys

from tree import Report, code, files, read

build = sys.argv[1] if len(sys.argv) > 1 else "build/release"


def nm(*args):
    out = subprocess.run(["nm", "--defined-only", *args], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in out.splitlines()]
    return {row[2] for row in rows if len(row) == 3 and row[1] in "TDBRVWGSCi"}


r = Report()
declared = {}
for path in files(".h", under=("include/",)):
    text = code(read(path))
    for m in re.finditer(r"^[ \t]*(?!#)[^#\n]*\bESP_API\b[^;{]*?\b(\w+)\s*\(", text, re.M):
        declared[m.group(1)] = (path, text.count("\n", 0, m.start(1)) + 1)

exported = nm("-D", f"{build}/libespalier.so")
for name in sorted(exported - declared.keys()):
    r.bad(f"{build}/libespalier.so", 1, f"exports {name}, which no public header declares with ESP_API")
for name in sorted(declared.keys() - exported):
    r.bad(*declared[name], f"{name} is declared with ESP_API but not exported")
for name in sorted(nm("-g", f"{build}/libespalier.a")):
    # t_*: recording functions of graph/tape.h, short so that model files read like the formula (doc/STYLE.md)
    if not name.startswith(("esp_", "t_", "__odr_asan", "__asan", "__tsan")):
        r.bad(f"{build}/libespalier.a", 1, f"external symbol {name} does not begin with esp_")
r.end()
