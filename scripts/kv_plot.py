#!/usr/bin/env python3
"""Turn the output of bench/kv_quality.py into the picture and the table of doc/quality.md on keys and values.

    scripts/kv_plot.py kv.json doc/quality_kv.svg > table.md

SPDX-License-Identifier: MIT
"""
import json
import math
import sys

COLORS = {"affine": "#c44", "turbo": "#27c", "turbo :least": "#292", "turbo :own": "#a3a"}
W, H, L, B, T, R = 720, 440, 80, 50, 20, 150


def family(name):
    if name.startswith("q"):
        return "affine"
    return "turbo" + (" :" + name.split(":")[2] if name.count(":") == 2 else "") if name.startswith("turbo") else ""


rows = json.load(open(sys.argv[1]))
shown = [r for r in rows if r["kind"] == "kv" and family(r["name"])]
x0, x1 = 300, max(r["bytes"] for r in shown) * 1.1
y0 = math.floor(min(math.log10(r["kl"]) for r in shown))
y1 = math.ceil(max(math.log10(r["kl"]) for r in shown) * 2) / 2


def px(v):
    return L + (v - x0) / (x1 - x0) * (W - L - R)


def py(v):
    return H - B - (math.log10(v) - y0) / (y1 - y0) * (H - B - T)


out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{W}" height="{H}" font-family="sans-serif" font-size="12">',
       '<rect width="100%" height="100%" fill="white"/>']
for e in range(y0, math.ceil(y1) + 1):
    if e <= y1:
        out.append(f'<line x1="{L}" x2="{W - R}" y1="{py(10.0 ** e):.1f}" y2="{py(10.0 ** e):.1f}" stroke="#ddd"/>'
                   f'<text x="{L - 6}" y="{py(10.0 ** e) + 4:.1f}" text-anchor="end">{10.0 ** e:g}</text>')
for k in range(400, int(x1) + 1, 200):
    out.append(f'<line x1="{px(k):.1f}" x2="{px(k):.1f}" y1="{T}" y2="{H - B}" stroke="#eee"/>'
               f'<text x="{px(k):.1f}" y="{H - B + 18}" text-anchor="middle">{k}</text>')
out.append(f'<text x="{(L + W - R) / 2}" y="{H - 10}" text-anchor="middle">bytes of a token (bf16: 2048)</text>'
           f'<text x="16" y="{H / 2}" text-anchor="middle" transform="rotate(-90 16 {H / 2})">mean KL to exact keys and values, nats</text>')
for i, (name, color) in enumerate(COLORS.items()):
    points = [r for r in shown if family(r["name"]) == name]
    for r in points:
        ring = f'fill="none" stroke="{color}" stroke-width="1.5"' if ":" in name else f'fill="{color}"'
        out.append(f'<circle cx="{px(r["bytes"]):.1f}" cy="{py(r["kl"]):.1f}" r="{6 if name.endswith("own") else 4}" {ring}/>')
        if name in ("affine", "turbo"):
            label = r["name"].replace("turbo:", "")
            side = f'x="{px(r["bytes"]) - 5:.1f}" y="{py(r["kl"]) + 15:.1f}" text-anchor="end"' if name == "affine" else \
                f'x="{px(r["bytes"]) + 6:.1f}" y="{py(r["kl"]) - 5:.1f}"'
            out.append(f'<text {side} fill="{color}">{label}</text>')
    out.append(f'<circle cx="{W - R + 20}" cy="{T + 14 + 20 * i}" r="4" fill="{color}"/>'
               f'<text x="{W - R + 30}" y="{T + 18 + 20 * i}">{name}</text>')
out.append("</svg>")
open(sys.argv[2], "w").write("\n".join(out) + "\n")

for kind, title in (("kv", "scheme | bytes a token"), ("start", "scheme | bytes a coded token"), ("state", "state | bytes a sequence")):
    print(f"| {title} | KL | p99 | agreement | perplexity |\n|---|---|---|---|---|---|")
    for r in rows:
        if r["kind"] == kind:
            kl = f'{r["kl"]:.7f}' if r["kl"] >= 5e-8 else f'{r["kl"]:.1e}'
            print(f'| {r["name"]} | {r["bytes"]:,} | {kl} | {r["kl_p99"]:.4f} | {r["agreement"]:.4f} | {math.exp(r["nll"]):.3f} |')
    print()
