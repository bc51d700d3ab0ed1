#!/usr/bin/env python3
"""The tables of doc/quality.md on keys and values and on states: the demo model under every scheme against itself with
exact ones.

    bench/kv_quality.py [--build build/release] [--work build/quality] [--tokens N] [--jobs N] > kv.json

Each scheme runs over the first N tokens of the validation text (0: all) in windows of 4096, from an empty state each.
Needs nothing but Python, the program and bench_kv_kl. scripts/kv_plot.py makes the picture and the tables of it.

SPDX-License-Identifier: MIT
"""
import argparse
import json
import os
import struct
import subprocess
import sys

SCHEMES = ["bf16", "q8:g32", "q8", "q6", "q4:g32", "q4", "q4:g128"]
SCHEMES += [f"turbo:k{k}v{v}" for k, v in ((8, 8), (8, 4), (8, 3), (8, 2), (5, 4), (4, 4), (4, 3), (2, 2))]
SCHEMES += [f"turbo:k{k}v{v}:least" for k, v in ((8, 5), (8, 4), (8, 3), (8, 2), (5, 5), (5, 4), (4, 5), (4, 4), (4, 3), (4, 2))]
SCHEMES += [f"turbo:k{k}v{v}:own" for k, v in ((8, 8), (8, 4), (4, 4))]
STARTS = [("turbo:k4v3:least", n) for n in (4, 64, 512)]
STATES = ["bf16", "q8"]


def flat(source, target, n):
    """The first n ids of an array of any shape, as bare int32."""
    with open(source, "rb") as f:
        f.read(8)
        f.read(struct.unpack("<H", f.read(2))[0])
        data = f.read(4 * n) if n else f.read()
    with open(target, "wb") as f:
        f.write(data)


def fit(program, model, row):
    flags = ["--state", row["name"]] if row["kind"] == "state" else ["--kv", row["name"].split(",")[0]]
    done = subprocess.run([program, "fit", model, "-c", "4096", *flags, "--json"], capture_output=True, text=True)
    if not done.stdout:
        sys.exit(done.stderr[-2000:])
    terms = json.loads(done.stdout)["terms"]
    return terms["state_per_row" if row["kind"] == "state" else "kv_per_token"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build/release")
    p.add_argument("--model", default="models/demo")
    p.add_argument("--data", default="models/demo-golden/val.npy")
    p.add_argument("--work", default="build/quality")
    p.add_argument("--tokens", type=int, default=0)
    p.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, which share the schemes")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    data = os.path.join(a.work, "kv.ids")
    flat(a.data, data, a.tokens)
    rows = [{"kind": "kv", "name": s, "way": s} for s in SCHEMES]
    rows += [{"kind": "start", "name": f"{s}, {n} exact", "way": f"{s}@{n}"} for s, n in STARTS]
    rows += [{"kind": "state", "name": s, "way": "state=" + s} for s in STATES]
    running = []
    for i in range(a.jobs):
        mine = rows[i::a.jobs]
        if mine:
            ways = [r.pop("way") for r in mine]
            running.append((mine, subprocess.Popen([a.build + "/bench_kv_kl", a.model, data, "4096", *ways],
                                                   stdout=subprocess.PIPE, text=True)))
    for row in rows:
        row["bytes"] = fit(a.build + "/espalier", a.model, row)
    for mine, process in running:
        out = process.communicate()[0]
        if process.returncode:
            sys.exit("bench_kv_kl failed")
        for row, result in zip(mine, json.loads(out)):
            row.update(result)
    json.dump(rows, sys.stdout, indent=1)
    print()


main()
