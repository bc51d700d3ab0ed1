#!/usr/bin/env python3
"""Functions that doc/STYLE.md bans, everywhere or outside their rooms.

SPDX-License-Identifier: MIT
"""
import re

from tree import Report, code, files, read

# names, where they are allowed all the same, what to use
RULES = [
    ("sprintf vsprintf strcpy strcat strncpy strncat stpcpy", (), "esp_strbuf_*, snprintf or memcpy with a known length"),
    ("strtok strtok_r", (), "a loop over spans"),
    ("atoi atol atoll atof sscanf fscanf scanf", (), "strtol and friends with an end pointer and errno"),
    ("gets", (), "esp_read_file"),
    ("rand srand random srandom rand_r drand48", (), "a generator with the seed in its arguments"),
    ("abort setjmp sigsetjmp longjmp siglongjmp alloca", (), "an esp_status"),
    ("exit _exit _Exit quick_exit atexit", ("src/program/",), "an esp_status; programs end in src/program"),
    ("malloc calloc realloc free reallocarray aligned_alloc posix_memalign strdup strndup asprintf vasprintf",
     ("src/base/mem.c", "src/program/"), "an arena or base/mem.h"),
    ("printf vprintf puts putchar perror", ("src/program/",), "esp_fail, or the log hook"),
]
FPRINTF = re.compile(r"\bv?f(?:printf|puts|putc|write)\s*\([^;]*\b(?:stdout|stderr)\b")

r = Report()
for path in files(".c", ".h", ".cu", ".cuh", ".inc", ".def", under=("src/", "include/")):
    text = code(read(path))
    for names, allowed, instead in RULES:
        if path.startswith(tuple(allowed)):
            continue
        # a member or a pointer to function of that name is somebody else's
        for m in re.finditer(r"(?<![\w.>*])(" + "|".join(names.split()) + r")\s*\(", text):
            r.bad(path, text.count("\n", 0, m.start()) + 1, f"{m.group(1)}() is banned here; use {instead}")
    if not path.startswith(("src/program/", "src/base/status.c")):
        for m in FPRINTF.finditer(text):
            r.bad(path, text.count("\n", 0, m.start()) + 1, "the library does not print")
r.end()
