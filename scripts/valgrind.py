#!/usr/bin/env python3
"""Run a choice of ctest's programs under valgrind: valgrind.py BUILD_DIR [REGEX]

The choice is what touches hostile bytes and hand-made memory; whole-model tests (state.oracle is one) would take hours.
Each program has a limit, and all together a budget: what no longer fits is listed as skipped, never silently left out.

SPDX-License-Identifier: MIT
"""
import json
import re
import subprocess
import sys
import time

EACH_S, ALL_S = 120, 480
build = sys.argv[1]
choice = re.compile(sys.argv[2] if len(sys.argv) > 2 else r"^(?!state\.oracle)(base|formats|graph|io|text|sample|state|fuzz)\.")

plan = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
tests = [t for t in json.loads(plan.stdout)["tests"] if choice.search(t["name"]) and t.get("command")]
begin = time.monotonic()
count = {"passed": 0, "failed": 0, "skipped": 0}
for test in tests:
    cwd = next((p["value"] for p in test.get("properties", []) if p["name"] == "WORKING_DIRECTORY"), None)
    start = time.monotonic()
    left = ALL_S - (start - begin)
    output = ""
    if left < 5:
        verdict, output = "skipped", "the time for all is used up"
    else:
        command = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite",
                   "--trace-children=no", *test["command"]]
        try:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace",
                                  timeout=min(EACH_S, left))
            verdict = "passed" if done.returncode == 0 else "skipped" if done.returncode == 77 else "failed"
            output = (done.stdout + done.stderr)[-6000:] if verdict == "failed" else ""
        except subprocess.TimeoutExpired:
            verdict, output = "skipped", f"not finished after {min(EACH_S, left):.0f} s"
    count[verdict] += 1
    print(f"{verdict:8} {test['name']} {time.monotonic() - start:.1f} s {output}", flush=True)
if not tests:
    print("no test matches")
    count["failed"] = 1
print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
sys.exit(1 if count["failed"] else 0)
