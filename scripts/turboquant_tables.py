#!/usr/bin/env python3
"""Write src/formats/turboquant_tables.c: signs, the 12 x 12 transform and codebooks of TurboQuant.

The published codebooks are constants (tests/data/vectors/turboquant/tables.json). The own ones are the
Lloyd-Max quantizer of a normal variable, iterated here until nothing moves: symmetric by construction.

SPDX-License-Identifier: MIT
"""
import json
import math
import os
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DIMS = (64, 96, 128, 256, 512)
BITS = (2, 3, 4, 5, 8)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def threefry(key, counter):
    """Threefry-2x32, 20 rounds (Salmon and others, 2011)."""
    mask = 0xFFFFFFFF
    k = (key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = (counter[0] + k[0]) & mask, (counter[1] + k[1]) & mask
    turns = ((13, 15, 26, 6), (17, 29, 16, 24))
    for i in range(5):
        for t in turns[i % 2]:
            a = (a + b) & mask
            b = ((b << t | b >> (32 - t)) & mask) ^ a
        a = (a + k[(i + 1) % 3]) & mask
        b = (b + k[(i + 2) % 3] + i + 1) & mask
    return a, b


def signs(d):
    half = d // 2
    pairs = [threefry((0, 42), (i, half + i)) for i in range(half)]
    words = [p[0] for p in pairs] + [p[1] for p in pairs]
    return [1 if w >> 31 == 0 else -1 for w in words]


def density(x):
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def tail(x):
    return 0.5 * math.erfc(x / math.sqrt(2))


def lloyd_max(bits):
    """Positive centroids: c_i is the mean of a normal variable between the midpoints around it."""
    n = 1 << (bits - 1)
    # companding of a normal variable (Panter and Dite): quantiles of a normal of variance 3
    c = []
    for i in range(n):
        p, lo, hi = (i + 0.5) / (2 * n), 0.0, 12.0
        for _ in range(80):
            mid = (lo + hi) / 2
            lo, hi = (mid, hi) if 0.5 - tail(mid) < p else (lo, mid)
        c.append(math.sqrt(3) * lo)
    moved = 1.0
    while moved > 1e-12:
        edge = [0.0] + [(c[i] + c[i + 1]) / 2 for i in range(n - 1)] + [math.inf]
        d = [density(e) if e < math.inf else 0.0 for e in edge]
        t = [tail(e) if e < math.inf else 0.0 for e in edge]
        new = [(d[i] - d[i + 1]) / (t[i] - t[i + 1]) for i in range(n)]
        # a step beyond the new point: Lloyd's iteration alone needs 100,000 rounds at 8 bits
        step = 1.9 if n > 16 else 1.0
        moved = max(abs(a - b) for a, b in zip(c, new))
        c = [a + step * (b - a) for a, b in zip(c, new)]
    return c


def own(bits):
    c = [f32(x) for x in lloyd_max(bits)]
    c = [-x for x in reversed(c)] + c
    return c, [f32((a + b) / 2) for a, b in zip(c, c[1:])]


def rows(values, per, form):
    lines = [values[i:i + per] for i in range(0, len(values), per)]
    return "\n".join("    " + ", ".join(form(v) for v in line) + "," for line in lines)


def array(name, values):
    return "static const float %s[] = {\n%s\n};\n" % (name, rows(values, 6, lambda v: "%.9gF" % v if "." in "%.9g" % v or "e" in "%.9g" % v else "%.1fF" % v))


def main():
    with open(os.path.join(ROOT, "tests/data/vectors/turboquant/tables.json")) as f:
        t = json.load(f)
    out = ["""/*
 * Constants of TurboQuant: random signs (bit i of the words: element i is negated), the 12 x 12 Hadamard
 * matrix of heads of 96, and codebooks. Made by scripts/turboquant_tables.py; do not edit.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/turboquant_tables.h"

/* clang-format off */
"""]
    for d in DIMS:
        s = signs(d)
        if s != t["signs"][str(d)]:
            sys.exit("signs of %d differ from the published ones" % d)
        words = [sum(1 << j for j in range(32) if s[i + j] < 0) for i in range(0, d, 32)]
        out.append("const uint32_t esp_turbo_signs%d[] = {\n%s\n};\n" % (d, rows(words, 6, lambda w: "0x%08xu" % w)))
    out.append("const int8_t esp_turbo_hadamard12[12][12] = {\n%s\n};\n" %
               "\n".join("    {" + ", ".join("%d" % v for v in r) + "}," for r in t["hadamard12"]))
    for b in BITS:
        v = t["lloyd_max"][str(b)]
        c, e = own(b)
        out.append(array("published%d" % b, v["centroids"]))
        out.append(array("published_edges%d" % b, v["boundaries"]))
        out.append(array("own%d" % b, c))
        out.append(array("own_edges%d" % b, e))
    for name in ("published", "own"):
        body = ",\n".join("    [%d] = {%s%d, %s_edges%d}" % (b, name, b, name, b) for b in BITS)
        out.append("const struct esp_turbo_codebook esp_turbo_%s[9] = {\n%s,\n};\n" % (name, body))
    out.append("/* clang-format on */\n")
    with open(os.path.join(ROOT, "src/formats/turboquant_tables.c"), "w") as f:
        f.write("\n".join(out))


main()
