#!/usr/bin/env python3
"""The table of doc/quality.md on keys and values: the demo model under every scheme against itself with exact ones.

    bench/kv_quality.py [--program build/release/espalier] [--work build/quality] [--tokens N] [--only PART] > kv.json

Each scheme runs over the first N tokens of the validation text in windows of 1024 and of 4096, from an empty state
each. Needs nothing but Python and the program.

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
SCHEMES += [f"turbo:k{k}v{v}:least" for k, v in ((8, 4), (8, 3), (8, 2))]
SCHEMES += [f"turbo:k{k}v{v}:own" for k, v in ((8, 8), (8, 4), (8, 3), (8, 2), (4, 4))]


def flat(source, target, n):
    """The first n ids of an array of any shape, as an array of one dimension."""
    with open(source, "rb") as f:
        f.read(8)
        f.read(struct.unpack("<H", f.read(2))[0])
        data = f.read(4 * n)
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % (len(data) // 4)
    head += " " * (117 - len(head)) + "\n"
    with open(target, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(" ".join(command) + "\n" + done.stderr[-2000:])
    return json.loads(done.stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", default="build/release/espalier")
    p.add_argument("--model", default="models/demo")
    p.add_argument("--data", default="models/demo-golden/val.npy")
    p.add_argument("--work", default="build/quality")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--only", default="", help="names that contain this")
    p.add_argument("--threads", default="0")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    data = os.path.join(a.work, "kv.npy")
    flat(a.data, data, a.tokens)
    rows = []
    for name in SCHEMES:
        if a.only not in name:
            continue
        fit = run(a.program, "fit", a.model, "--kv", name, "--json")
        row = {"name": name, "bytes": fit["terms"]["kv_per_token"], "ctx": {}}
        for ctx in (1024, 4096):
            c = run(a.program, "perplexity", a.model, "--data", data, "--kl", a.model, "--kv", name, "-c", str(ctx), "-t", a.threads, "--json")
            row["ctx"][ctx] = c["comparisons"][0]
        rows.append(row)
        print(name, row["bytes"], row["ctx"][1024], file=sys.stderr)
    json.dump(rows, sys.stdout, indent=1)


main()
