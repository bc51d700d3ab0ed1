#!/usr/bin/env python3
"""A library that the build asks for is also installed by scripts/deps.sh and explained in doc/dependencies.md.

SPDX-License-Identifier: MIT
"""
import re

from tree import Report, files, read

r = Report()
probes = read("scripts/deps.sh")
page = read("doc/dependencies.md")
for path in files(".cmake", "CMakeLists.txt", under=("cmake/", "CMakeLists.txt")):
    text = read(path)
    found = [(m.group(1), m.start()) for m in re.finditer(r"\b([a-z][\w.+-]*)>=[\d.]+", text)]
    found += [(m.group(1), m.start()) for m in re.finditer(r"pkg_check_modules\([^)$]* ([a-z][\w.+-]*)\)", text)]
    for module, at in found:
        line = text.count("\n", 0, at) + 1
        if f"have_module {module} " not in probes:
            r.bad(path, line, f"{module} has no probe in scripts/deps.sh")
        if re.sub(r"^lib|-\d+$", "", module) not in page:
            r.bad(path, line, f"{module} has no row in doc/dependencies.md")
r.end()
