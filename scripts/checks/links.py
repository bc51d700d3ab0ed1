#!/usr/bin/env python3
"""Relative links in Markdown lead to a file, and their anchors to a heading.

SPDX-License-Identifier: MIT
"""
import os
import re

from tree import Report, files, read

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")


def slugs(text):
    """Anchors as the usual forges make them from headings."""
    out = set()
    for m in re.finditer(r"^#+ +(.*?)\s*$", text, re.M):
        s = re.sub(r"[^\w\- ]", "", m.group(1).lower().replace("`", "")).replace(" ", "-")
        while s in out:
            s += "-1"
        out.add(s)
    return out


r = Report()
for path in files(".md"):
    text = re.sub(r"```.*?```", lambda m: re.sub(r"[^\n]", " ", m.group()), read(path), flags=re.S)
    for m in LINK.finditer(text):
        target = m.group(1)
        line = text.count("\n", 0, m.start()) + 1
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not os.path.exists(full):
            r.bad(path, line, f"{target}: no such file ({full})")
        elif anchor and full.endswith(".md") and anchor not in slugs(read(full)):
            r.bad(path, line, f"{target}: no heading gives that anchor")
r.end()
