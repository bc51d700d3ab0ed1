#!/usr/bin/env python3
"""The table of doc/quality.md: quantize the demo model in many ways and compare each with the source on validation text.

    bench/quality.py [--program build/release/espalier] [--work build/quality] [--rows N] > quality.json

MLPs are coded, everything else stays bf16, so that rows differ in what is under test alone. --rows limits the validation
windows for a quick look; 0 is all 64. Needs nothing but Python and the program.

SPDX-License-Identifier: MIT
"""
import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys

KEEP = ["--keep", "*attn*=bf16"]
VARIANTS = []


def add(name, family, *flags):
    VARIANTS.append((name, family, list(flags)))


for bits in (2, 3, 4):
    add(f"rtn {bits} g64", "rtn", "--method", "rtn", "--bits", str(bits))
    add(f"gptq {bits} g64", "gptq", "--bits", str(bits))
for bits in (3, 4):
    add(f"gptq {bits} g64 act-order", "gptq act-order", "--bits", str(bits), "--act-order")
    add(f"gptq {bits} g128", "gptq", "--bits", str(bits), "--group", "128")
for bpw in (3.0, 3.5, 4.0):
    add(f"gptq mixed {bpw}", "gptq mixed", "--target-bpw", str(bpw))
T = ["--method", "trellis"]
for bits in (2, 3, 4):
    add(f"trellis {bits}", "trellis", *T, "--bits", str(bits))
    add(f"trellis {bits}, no feedback", "no feedback", *T, "--bits", str(bits), "--no-feedback")
    add(f"trellis {bits}, rms scales", "rms scales", *T, "--bits", str(bits), "--trellis-scale", "rms")
    add(f"trellis {bits}, neither", "neither", *T, "--bits", str(bits), "--trellis-scale", "rms", "--no-feedback")
    add(f"trellis {bits}, fold", "fold", *T, "--bits", str(bits), "--fold", "on")
for bpw in (2.5, 3.0, 3.5, 4.0):
    add(f"trellis mixed {bpw}", "trellis mixed", *T, "--target-bpw", str(bpw + 0.0625))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", default="build/release/espalier")
    p.add_argument("--model", default="models/demo")
    p.add_argument("--data", default="models/demo-golden/val.npy")
    p.add_argument("--work", default="build/quality")
    p.add_argument("--rows", default="0")
    p.add_argument("--only", default="", help="names that contain this")
    a = p.parse_args()
    program = shlex.split(a.program)
    variants = [v for v in VARIANTS if a.only in v[0]]

    os.makedirs(a.work, exist_ok=True)
    rows, folders = [], []
    for i, (name, family, flags) in enumerate(variants):
        out = os.path.join(a.work, f"{i:02d}")
        for d in (out, out + ".work"):
            shutil.rmtree(d, ignore_errors=True)
        q = run([*program, "quantize", a.model, "-o", out, "--no-eval", "--json", "--progress", "none", "--stats",
                 os.path.join(a.work, "stats"), *KEEP, *flags])
        rows.append({"name": name, "family": family, "bpw": q["bpw"], "bytes": q["bytes"], "seconds": q["seconds"],
                     "mlp_bytes": sum(t["bytes"] for t in q["tensors"] if ".mlp." in t["name"]),
                     "loss": sum(t.get("loss", 0) for t in q["tensors"]) / max(1, q["quantized"])})
        folders.append(out)
        print(f"{name:28s} {q['bpw']:6.3f} bpw {q['bytes']:10d} bytes", file=sys.stderr, flush=True)
    kl = run([*program, "perplexity", a.model, "--data", a.data, "--chunks", a.rows, "--json", "--progress", "none",
              *(x for f in folders for x in ("--kl", f))])["comparisons"]
    for row, k in zip(rows, kl):
        row.update({n: k[n] for n in ("kl", "kl_p50", "kl_p95", "kl_p99", "agreement", "ppl", "base_ppl", "tokens")})
    json.dump(rows, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
