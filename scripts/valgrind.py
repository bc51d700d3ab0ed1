#!/usr/bin/env python3
"""Run a choice of ctest's programs under valgrind: valgrind.py BUILD_DIR [REGEX]

The choice is what touches hostile bytes and hand-made memory; whole-model tests (state.oracle is one) would take hours, and
text.tok_hostile and fuzz.request never ended within their limit: the address sanitizer has them whole.
As many run at a time as there are processors. Each has a limit, and all together a budget: what no longer fits is listed as
skipped, never silently left out.

SPDX-License-Identifier: MIT
"""
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

EACH_S, ALL_S = 120, 480
build = sys.argv[1]
choice = re.compile(sys.argv[2] if len(sys.argv) > 2 else r"^(?!state\.oracle|text\.tok_hostile|fuzz\.request)(base|formats|graph|io|text|sample|state|fuzz)\.")

plan = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
tests = [t for t in json.loads(plan.stdout)["tests"] if choice.search(t["name"]) and t.get("command")]
begin = time.monotonic()


def run(test):
    """Verdict, seconds, and what a failed program said."""
    cwd = next((p["value"] for p in test.get("properties", []) if p["name"] == "WORKING_DIRECTORY"), None)
    start = time.monotonic()
    left = ALL_S - (start - begin)
    if left < 5:
        return "skipped", 0, "the time for all is used up"
    command = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite",
               "--trace-children=no", *test["command"]]
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=min(EACH_S, left))
    except subprocess.TimeoutExpired:
        return "skipped", time.monotonic() - start, f"not finished after {min(EACH_S, left):.0f} s"
    verdict = "passed" if done.returncode == 0 else "skipped" if done.returncode == 77 else "failed"
    return verdict, time.monotonic() - start, (done.stdout + done.stderr)[-6000:] if verdict == "failed" else ""


count = {"passed": 0, "failed": 0, "skipped": 0}
with ThreadPoolExecutor(os.cpu_count()) as pool:
    for test, (verdict, seconds, output) in zip(tests, pool.map(run, tests)):
        count[verdict] += 1
        print(f"{verdict:8} {test['name']} {seconds:.1f} s {output}", flush=True)
if not tests:
    print("no test matches")
    count["failed"] = 1
print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
sys.exit(1 if count["failed"] else 0)
