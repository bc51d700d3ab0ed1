#!/usr/bin/env python3
"""The table of doc/quality.md: quantize the demo model in many ways and compare each with the source on validation text.

    bench/quality.py [--program build/release/espalier] [--work build/quality] [--rows N] > quality.json

MLPs are coded, everything else stays bf16, so that rows differ in what is under test alone. --rows limits the validation
windows for a quick look; 0 is all 64. Each finished row is a file in the work folder, so that an interrupted run goes on
where it was; remove the folder to begin anew. Needs nothing but Python and the program.

SPDX-License-Identifier: MIT
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

AT_ONCE = 6  # models compared in one run of the source
LAYERS = 8
MLP = ("gate_proj", "up_proj", "down_proj")
KEEP = ["--keep", "*attn*=bf16"]
VARIANTS = []


def add(name, family, *flags, recipe=None):
    VARIANTS.append((name, family, list(flags), recipe))


def alternate(bits):
    """Half of the layers with one bit less, without looking at anything."""
    return {f"model.language_model.layers.{n}.mlp.{m}": {"method": "trellis", "bits": bits + n % 2}
            for n in range(LAYERS) for m in MLP}


T = ["--method", "trellis"]


def affine(bits, group):
    add(f"rtn {bits} g{group}", "rtn", "--method", "rtn", "--bits", str(bits), "--group", str(group))
    add(f"gptq {bits} g{group}", "gptq", "--bits", str(bits), "--group", str(group))


def trellis(bits, parts=True):
    """Codes of so many bits, and with `parts` each ingredient on or off."""
    whole = bits == int(bits)
    target = [*T, "--target-bpw", str(bits + 0.0625)]  # row scales of this model's MLPs
    how = [*T, "--bits", str(bits)] if whole else target
    if not parts:
        add(f"trellis {bits}", "trellis", *how)
        if not whole:
            add(f"trellis {bits}, every other layer", "every other layer", *T, recipe=alternate(int(bits)))
        return
    add(f"trellis {bits}, no feedback", "no feedback", *how, "--no-feedback")
    add(f"trellis {bits}, feedback by block", "by block", *how, "--feedback-group", "256")
    add(f"trellis {bits}, rms scales", "rms scales", *how, "--trellis-scale", "rms")
    add(f"trellis {bits}, neither", "neither", *how, "--trellis-scale", "rms", "--no-feedback")
    add(f"trellis {bits}, fold", "fold", *how, "--fold", "on")


for bits in (3, 4, 2):
    affine(bits, 64)
    trellis(bits, parts=False)
for bits in (2.5, 3.5):
    trellis(bits, parts=False)
for bits in (3, 4):
    trellis(bits)
    affine(bits, 128)
    affine(bits, 32)
    add(f"gptq {bits} g64 act-order", "gptq act-order", "--bits", str(bits), "--act-order")
for bpw in (3.0, 3.5, 4.0):
    add(f"gptq mixed {bpw}", "gptq mixed", "--target-bpw", str(bpw))
for bits in (2, 2.5, 3.5):
    trellis(bits)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def slug(name):
    return re.sub("[^a-z0-9.]+", "-", name)


def make(a, program, name, flags, recipe):
    """Quantize into the work folder: folder and what is known of it."""
    out = os.path.join(a.work, slug(name))
    for d in (out, out + ".work"):
        shutil.rmtree(d, ignore_errors=True)
    if recipe:
        path = out + ".recipe.json"
        with open(path, "w") as f:
            json.dump({"tensors": recipe}, f)
        flags = [*flags, "--recipe", path]
    q = run([*program, "quantize", a.model, "-o", out, "--no-eval", "--json", "--progress", "none", "--threads", a.threads,
             "--stats", os.path.join(a.work, "stats"), *KEEP, *flags])
    row = {"name": name, "bpw": q["bpw"], "bytes": q["bytes"], "seconds": q["seconds"],
           "mlp_bytes": sum(t["bytes"] for t in q["tensors"] if ".mlp." in t["name"]),
           "loss": sum(t.get("loss", 0) for t in q["tensors"]) / max(1, q["quantized"])}
    print(f"{name:36s} {q['bpw']:6.3f} bpw {q['bytes']:10d} bytes", file=sys.stderr, flush=True)
    return out, row


def compare(a, program, made):
    kl = run([*program, "perplexity", a.model, "--data", a.data, "--chunks", a.rows, "--json", "--progress", "none",
              "--threads", a.threads, *(x for folder, _, _ in made for x in ("--kl", folder))])["comparisons"]
    for (folder, row, path), k in zip(made, kl):
        row.update({n: k[n] for n in ("kl", "kl_p50", "kl_p95", "kl_p99", "agreement", "ppl", "base_ppl", "tokens")})
        with open(path + ".part", "w") as f:
            json.dump(row, f)
        os.rename(path + ".part", path)
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{row['name']:36s} kl {row['kl']:.5f}", file=sys.stderr, flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", default="build/release/espalier")
    p.add_argument("--model", default="models/demo")
    p.add_argument("--data", default="models/demo-golden/val.npy")
    p.add_argument("--work", default="build/quality")
    p.add_argument("--rows", default="0")
    p.add_argument("--only", default="", help="names that contain this")
    p.add_argument("--finished", action="store_true", help="print the rows that are there, make none")
    p.add_argument("--threads", default="0")
    p.add_argument("--part", default="0/1", help="K/N: every N-th row from row K on, for several runs side by side")
    a = p.parse_args()
    program = shlex.split(a.program)
    part, parts = map(int, a.part.split("/"))
    variants = [v for v in VARIANTS if a.only in v[0]][part::parts]

    os.makedirs(a.work, exist_ok=True)
    rows, made = [], []
    for name, family, flags, recipe in variants:
        path = os.path.join(a.work, f"{slug(name)}.rows{a.rows}.json")
        if os.path.exists(path):
            with open(path) as f:
                row = json.load(f)
        elif a.finished:
            continue
        else:
            folder, row = make(a, program, name, flags, recipe)
            made.append((folder, row, path))
        row["family"] = family
        rows.append(row)
        if len(made) == AT_ONCE:
            compare(a, program, made)
            made = []
    if made:
        compare(a, program, made)
    json.dump(rows, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
