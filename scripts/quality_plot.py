#!/usr/bin/env python3
"""Turn the output of bench/quality.py into the picture and the table of doc/quality.md.

    scripts/quality_plot.py quality.json doc/quality.svg > table.md

SPDX-License-Identifier: MIT
"""
import json
import math
import sys

COLORS = {"rtn": "#c44", "gptq": "#d80", "gptq mixed": "#a60", "neither": "#8bd", "trellis": "#139", "fold": "#292"}
NAMES = {"neither": "trellis, neither", "fold": "trellis, fold"}
W, H, L, B, T, R = 720, 440, 70, 50, 20, 160
rows = json.load(open(sys.argv[1]))
shown = [r for r in rows if r["family"] in COLORS]
x0, x1 = min(r["bpw"] for r in shown) - 0.1, max(r["bpw"] for r in shown) + 0.1
y0, y1 = math.floor(min(math.log10(r["kl"]) for r in shown) * 4) / 4, math.ceil(max(math.log10(r["kl"]) for r in shown) * 4) / 4


def px(v):
    return L + (v - x0) / (x1 - x0) * (W - L - R)


def py(v):
    return H - B - (math.log10(v) - y0) / (y1 - y0) * (H - B - T)


out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{W}" height="{H}" font-family="sans-serif" font-size="12">',
       '<rect width="100%" height="100%" fill="white"/>']
for e in range(-4, 2):
    for m in (1, 2, 5):
        v = m * 10.0 ** e
        if y0 <= math.log10(v) <= y1:
            out.append(f'<line x1="{L}" x2="{W - R}" y1="{py(v):.1f}" y2="{py(v):.1f}" stroke="#ddd"/>'
                       f'<text x="{L - 6}" y="{py(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
for k in range(2 * math.ceil(x0), 2 * math.floor(x1) + 1):
    out.append(f'<line x1="{px(k / 2):.1f}" x2="{px(k / 2):.1f}" y1="{T}" y2="{H - B}" stroke="#eee"/>'
               f'<text x="{px(k / 2):.1f}" y="{H - B + 18}" text-anchor="middle">{k / 2:g}</text>')
out.append(f'<text x="{(L + W - R) / 2}" y="{H - 10}" text-anchor="middle">bits per coded weight, scales included</text>'
           f'<text x="16" y="{H / 2}" text-anchor="middle" transform="rotate(-90 16 {H / 2})">mean KL to the bf16 model, nats</text>')
for i, (family, color) in enumerate((f, c) for f, c in COLORS.items() if any(r["family"] == f for r in shown)):
    points = sorted((r["bpw"], r["kl"]) for r in shown if r["family"] == family)
    path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
    out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.5" fill="{color}"/>' for x, y in points]
    out.append(f'<circle cx="{W - R + 20}" cy="{T + 14 + 20 * i}" r="4" fill="{color}"/>'
               f'<text x="{W - R + 30}" y="{T + 18 + 20 * i}">{NAMES.get(family, family)}</text>')
out.append("</svg>")
open(sys.argv[2], "w").write("\n".join(out) + "\n")

print("| variant | bits per weight | MLP bytes | model bytes | KL | p95 | agreement | perplexity |\n|---|---|---|---|---|---|---|---|")
for r in rows:
    print(f'| {r["name"]} | {r["bpw"]:.3f} | {r["mlp_bytes"]:,} | {r["bytes"]:,} | {r["kl"]:.5f} | {r["kl_p95"]:.4f} '
          f'| {r["agreement"]:.4f} | {r["ppl"]:.2f} |')
