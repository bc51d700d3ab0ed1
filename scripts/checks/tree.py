"""What the checks share: the list of files, C text without comments and strings, and one way to report.

SPDX-License-Identifier: MIT
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(ROOT)


def files(*suffixes, under=("",)):
    """Files of the checkout that git does not ignore, as sorted relative paths."""
    out = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True).stdout
    names = sorted(set(os.fsdecode(n) for n in out.split(b"\0") if n))
    return [n for n in names if n.startswith(tuple(under)) and n.endswith(suffixes or ("",)) and os.path.isfile(n)]


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def code(text):
    """text with comments and literals blanked; line numbers stay."""
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group())
    return TOKEN.sub(blank, text)


class Report:
    def __init__(self):
        self.n = 0

    def bad(self, path, line, message):
        print(f"{path}:{line}: {message}")
        self.n += 1

    def end(self):
        sys.exit(1 if self.n else 0)
