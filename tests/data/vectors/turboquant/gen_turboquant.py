#!/usr/bin/env python3
"""Scalar reference for TurboQuant KV coding and generator of the JSON vectors here.

Pure standard library.  Every binary32 operation is emulated by doing it in binary64
and rounding once; for + - * / and sqrt this is exactly the IEEE binary32 result.
Run:  python3 gen_turboquant.py   (rewrites the *.json files beside it)
"""
import json, math, os, random, struct

HERE = os.path.dirname(os.path.abspath(__file__))
T = json.load(open(os.path.join(HERE, "tables.json")))
SIGNS = {int(k): v for k, v in T["signs"].items()}
LM = {int(k): (v["centroids"], v["boundaries"]) for k, v in T["lloyd_max"].items()}
G = 32

# ---------- number formats ----------
def f32(x):
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)

def f16_bits(x):
    if x != x: return 0x7E00
    if math.isinf(x): return 0x7C00 | (0x8000 if x < 0 else 0)
    try:
        return struct.unpack("<H", struct.pack("<e", x))[0]
    except OverflowError:
        return 0x7C00 | (0x8000 if x < 0 else 0)

def f16_val(b): return struct.unpack("<e", struct.pack("<H", b))[0]

def bf16_bits(x):
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    if x != x: return 0x7FC0 | (u >> 31 << 15)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16) & 0xFFFF

def bf16_val(b): return struct.unpack("<f", struct.pack("<I", b << 16))[0]

def rint(x):  # round half to even, keeps inf/nan
    if x != x or math.isinf(x): return x
    return math.copysign(float(round(x)), x)             # keeps -0.0

def fdiv(a, b):
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return f32(a / b)

# ---------- packing: flat LSB-first bit stream ----------
def pack(codes, bits):
    acc = n = 0; out = bytearray()
    for c in codes:
        acc |= (c & ((1 << bits) - 1)) << n; n += bits
        while n >= 8: out.append(acc & 255); acc >>= 8; n -= 8
    assert n == 0
    return bytes(out)

def unpack(data, bits, count):
    v = int.from_bytes(data, "little")
    return [(v >> (i * bits)) & ((1 << bits) - 1) for i in range(count)]

# ---------- signed Walsh-Hadamard ----------
def hadamard(x):
    d = len(x); x = list(x)
    m, n = (12, d // 12) if d % 12 == 0 else (1, d)
    for base in range(0, d, n):
        h = 1
        while h < n:
            for i in range(0, n, 2 * h):
                for j in range(base + i, base + i + h):
                    a, b = x[j], x[j + h]
                    x[j], x[j + h] = f32(a + b), f32(a - b)
            h *= 2
    if m == 12:
        for i in range(n):
            col = [x[k * n + i] for k in range(12)]
            for r, row in enumerate(T["hadamard12"]):
                acc = 0.0
                for s, v in zip(row, col): acc = f32(acc + v) if s > 0 else f32(acc - v)
                x[r * n + i] = acc
    s = f32(1 / math.sqrt(d))
    return [f32(v * s) for v in x]

def forward(x): return hadamard([f32(v * s) for v, s in zip(x, SIGNS[len(x)])])
def inverse(y): return [f32(v * s) for v, s in zip(hadamard(y), SIGNS[len(y)])]

# ---------- keys ----------
def key_limits(bits): return (-127, 127, 254.0) if bits == 8 else (0, (1 << bits) - 1, float((1 << bits) - 1))
EPS = f32(1e-8)

def key_group_params(x, bits):
    lo, hi, span = key_limits(bits)
    mn, mx = min(x), max(x)
    s = fdiv(f32(mx - mn), span)
    se = f32(s + EPS)
    z = rint(fdiv(f32(mx + mn), f32(2 * se))) if bits == 8 else rint(fdiv(mn, se))
    return mn, mx, s, se, z

def key_group_ref(x, bits):
    lo, hi, _ = key_limits(bits)
    _, _, s, se, z = key_group_params(x, bits)
    codes = [int(min(max(rint(f32(fdiv(v, se) - z)), lo), hi)) for v in x]
    return codes, f16_bits(s), f16_bits(z)

def key_group_safe(x, bits):
    """Product encoder: reference bytes when well conditioned, otherwise a refit."""
    x = [0.0 if v != v else min(max(v, -65504.0), 65504.0) for v in x]
    lo, hi, span = key_limits(bits)
    mn, mx, s, _, z = key_group_params(x, bits)
    if mn == 0 and mx == 0: return [0] * len(x), 0, 0
    if s >= 2.0 ** -14 and abs(z) <= 2048: return key_group_ref(x, bits)
    anchor = f32(0.5 * f32(mn + mx)) if bits == 8 else mn
    rng = f32(mx - mn)
    need = min(max(f32(rng / (span - u)), f32(abs(anchor) / (2046.0 * u))) for u in (1, 2, 4, 8, 16, 32) if u < span)
    sb = f16_bits(max(need, 2.0 ** -24))
    if f16_val(sb) < need: sb += 1                       # round the scale up
    sv = f16_val(sb)
    if bits == 8:
        zb = f16_bits(rint(fdiv(anchor, sv)))            # nearest binary16
    else:
        t = math.floor(fdiv(anchor, sv)); zb = f16_bits(float(t))
        if f16_val(zb) > t: zb += 1 if zb & 0x8000 else -1   # binary16 at or below t
    z = f16_val(zb)
    codes = [int(min(max(rint(f32(fdiv(v, sv) - z)), lo), hi)) for v in x]
    refit = (codes, sb, zb)
    ref = key_group_ref(x, bits)                         # keep it when finite and no worse
    err = lambda e: max((abs(f32(a - b)) if math.isfinite(b) else math.inf) for a, b in zip(x, key_group_decode(*e)))
    return ref if err(ref) <= err(refit) else refit

def key_group_decode(codes, sb, zb):
    s, z = f16_val(sb), f16_val(zb)
    out = []
    for c in codes:
        t = c + z if math.isinf(z) or z != z else f32(c + z)
        out.append(math.nan if (math.isinf(t) and s == 0) else (t * s if math.isinf(t) else f32(t * s)))
    return out

# ---------- values ----------
def value_group_ref(y, bits):
    ss = f32(sum(v * v for v in y))          # summation order is not normative
    rms = f32(math.sqrt(f32(ss / G)))
    den = f32(rms + EPS)
    b = LM[bits][1]
    n = [fdiv(v, den) for v in y]
    codes = [sum(1 for t in b if v > t) for v in n]
    return codes, f16_bits(rms), rms, n

def value_group_decode(codes, sb, bits):
    s, c = f16_val(sb), LM[bits][0]
    return [f32(c[k] * s) for k in codes]

# ---------- whole vectors ----------
def enc_key(x, bits, fn=key_group_ref):
    codes, sb, zb = [], [], []
    for g in range(0, len(x), G):
        c, s, z = fn(x[g:g + G], bits); codes += c; sb.append(s); zb.append(z)
    return codes, sb, zb

def dec_key(codes, sb, zb):
    out = []
    for g in range(len(sb)): out += key_group_decode(codes[g * G:(g + 1) * G], sb[g], zb[g])
    return out

def enc_value(x, bits):
    y = forward(x); codes, sb, rms, norm = [], [], [], []
    for g in range(0, len(x), G):
        c, s, r, n = value_group_ref(y[g:g + G], bits); codes += c; sb.append(s); rms.append(r); norm += n
    return y, codes, sb, rms, norm

def dec_value_rotated(codes, sb, bits):
    out = []
    for g in range(len(sb)): out += value_group_decode(codes[g * G:(g + 1) * G], sb[g], bits)
    return out

def ls_scale(y, codes, bits):
    """Optional product scale: least squares fit of the group to its centroids."""
    c = [LM[bits][0][k] for k in codes]; n = sum(t * t for t in c)
    return f16_bits(max(sum(a * b for a, b in zip(y, c)) / n, 0.0))

# ---------- hex helpers (all little-endian) ----------
def h32(v): return struct.pack("<%df" % len(v), *v).hex()
def h16(b): return struct.pack("<%dH" % len(b), *b).hex()
def i8(c): return struct.pack("%db" % len(c), *c).hex()

def key_bytes(codes, bits): return struct.pack("%db" % len(codes), *codes) if bits == 8 else pack(codes, bits)

# ---------- margins: how far the data is from every rounding decision ----------
def key_margin(x, bits):
    m = 1.0; lo, hi, _ = key_limits(bits)
    for g in range(0, len(x), G):
        xs = x[g:g + G]; mn, mx, s, se, z = key_group_params(xs, bits)
        zr = (mx + mn) / (2 * se) if bits == 8 else mn / se
        m = min(m, abs(abs(zr - math.floor(zr)) - 0.5))
        for v in xs:
            t = v / se - z
            if lo - 0.4 < t < hi + 0.4: m = min(m, abs(abs(t - math.floor(t)) - 0.5))
    return m

def value_margin(norm, sb, rms, bits):
    m = min(abs(v - t) for v in norm for t in LM[bits][1])
    r = 1.0
    for s, q in zip(sb, rms):
        a, b = f16_val(s), q
        nxt = f16_val(s + 1); prv = f16_val(s - 1)
        r = min(r, abs(b - (a + nxt) / 2) / b, abs(b - (a + prv) / 2) / b)
    return m, r

def sample(rng, d, kind):
    v = [rng.gauss(0, 1) for _ in range(d)]
    if kind == "k":
        for c in rng.sample(range(d), max(1, d // 32)): v[c] = v[c] * 6 + 9
    else:
        for c in rng.sample(range(d), max(1, d // 64)): v[c] *= 8
    return [bf16_val(bf16_bits(f32(t))) for t in v]

def dump(name, obj):
    with open(os.path.join(HERE, name), "w") as f: json.dump(obj, f, indent=1); f.write("\n")

def encode_file(d, combos, seed):
    cases = []
    for kb, vb in combos:
        rng = random.Random(seed * 1000 + kb * 16 + vb)
        while True:
            k = sample(rng, d, "k")
            if key_margin(k, kb) > 2e-4: break
        while True:
            v = sample(rng, d, "v"); y, vc, vs, rms, norm = enc_value(v, vb)
            m, r = value_margin(norm, vs, rms, vb)
            if m > (2e-5 if vb < 8 else 3e-6) and r > 3e-6: break
        kc, ks, kz = enc_key(k, kb); kd = dec_key(kc, ks, kz)
        assert enc_key(k, kb, key_group_safe) == (kc, ks, kz)
        yr = dec_value_rotated(vc, vs, vb); vd = inverse(yr)
        kp, vp = key_bytes(kc, kb), pack(vc, vb)
        assert kb == 8 or unpack(kp, kb, d) == kc
        assert unpack(vp, vb, d) == vc
        cases.append({
            "k_bits": kb, "v_bits": vb,
            "k_in_bf16": h16([bf16_bits(t) for t in k]),
            "k_codes": kc, "k_packed": kp.hex(), "k_scale_f16": h16(ks), "k_zero_f16": h16(kz),
            "k_out_f32": h32(kd), "k_out_bf16": h16([bf16_bits(t) for t in kd]),
            "v_in_bf16": h16([bf16_bits(t) for t in v]),
            "v_rot_f32": h32(y), "v_codes": vc, "v_packed": vp.hex(), "v_scale_f16": h16(vs),
            "v_scale_least_squares_f16": h16([ls_scale(y[g:g + G], vc[g:g + G], vb) for g in range(0, d, G)]),
            "v_outrot_f32": h32(yr), "v_outrot_bf16": h16([bf16_bits(t) for t in yr]),
            "v_out_f32": h32(vd), "v_out_bf16": h16([bf16_bits(t) for t in vd]),
            "bytes_per_token_head": len(kp) + len(vp) + 6 * d // G,
            "min_key_rounding_margin": key_margin(k, kb), "min_boundary_margin": m, "min_f16_scale_margin_rel": r,
        })
    dump("encode_d%d.json" % d, {"head_dim": d, "cases": cases})

def fwht_file():
    cases = []
    for d in (64, 96, 128, 256, 512):
        ints = [float((i * 37 + 11) % 17 - 8) for i in range(d)]
        y = forward(ints)
        cases.append({"head_dim": d, "x": [int(t) for t in ints], "forward_f32": h32(y), "inverse_of_forward_f32": h32(inverse(y)),
                      "forward_of_e1_signs": [0 if t == 0 else (1 if t > 0 else -1) for t in forward([1.0 if i == 1 else 0.0 for i in range(d)])]})
    dump("fwht.json", {"cases": cases})

def pack_file():
    rng = random.Random(7); cases = []
    for bits in (2, 3, 4, 5):
        n = 32
        for codes in ([(i * 5 + 3) % (1 << bits) for i in range(n)], [(1 << bits) - 1] * n, [rng.randrange(1 << bits) for _ in range(n)],
                      [(1 << bits) - 1 if i == 2 else 0 for i in range(n)]):
            p = pack(codes, bits); assert unpack(p, bits, n) == codes
            cases.append({"bits": bits, "codes": codes, "packed": p.hex()})
    cases.append({"bits": 8, "codes": [0, 1, 127, 128, 255], "packed": "00017f80ff"})
    cases.append({"bits": 8, "signed_codes": [0, 1, -1, 127, -127], "packed": "0001ff7f81"})
    dump("pack.json", {"cases": cases})

def edge_file():
    rng = random.Random(11)
    def bf(v): return bf16_val(bf16_bits(f32(v)))
    blocks = {
        "constant_0.5": [0.5] * 32, "constant_-3": [-3.0] * 32, "zero": [0.0] * 32, "negative_zero": [-0.0] * 32,
        "constant_1e-5": [f32(1e-5)] * 32,
        "two_level_large_offset": [bf(100.0) if i % 2 else bf(100.5) for i in range(32)],
        "offset_1000_range_1": [f32(1000 + i / 31) for i in range(32)],
        "tiny_range_subnormal_scale": [f32(1e-3 * (i - 16) / 16) for i in range(32)],
        "micro_range": [f32(1e-7 * (i - 16)) for i in range(32)],
        "large_1e5": [f32(1e5 * rng.uniform(-1, 1)) for _ in range(32)],
        "huge_bf16": [bf(1e30 * rng.uniform(-1, 1)) for _ in range(32)],
        "one_spike": [0.0] * 31 + [240.0],
        "all_negative": [f32(-5 - 0.1 * i) for i in range(32)],
        "nan_inside": [math.nan if i == 3 else float(i) for i in range(32)],
        "inf_inside": [math.inf if i == 3 else float(i) for i in range(32)],
    }
    keys = []
    for name, x in blocks.items():
        for bits in (8, 4, 2):
            e = {"name": name, "bits": bits, "x_f32": h32(x)}
            if all(math.isfinite(v) for v in x):
                c, s, z = key_group_ref(x, bits); d = key_group_decode(c, s, z)
                e["reference"] = {"codes": c, "scale_f16": "%04x" % s, "zero_f16": "%04x" % z, "out_has_nan_or_inf": not all(math.isfinite(v) for v in d)}
            c, s, z = key_group_safe(x, bits); d = key_group_decode(c, s, z)
            assert all(math.isfinite(v) for v in d), name
            e["product"] = {"codes": c, "scale_f16": "%04x" % s, "zero_f16": "%04x" % z, "out_f32": h32(d)}
            xs = [0.0 if v != v else min(max(v, -65504.0), 65504.0) for v in x]
            e["product"]["max_abs_err_vs_sanitised"] = max(abs(a - b) for a, b in zip(xs, d))
            assert e["product"]["max_abs_err_vs_sanitised"] <= 0.502 * f16_val(s) + max(abs(v) for v in xs) * 2.0 ** -11 + 1e-12 or bits < 8, name
            e["product"]["encoding"] = "reference" if "reference" in e and (c, "%04x" % s, "%04x" % z) == (e["reference"]["codes"], e["reference"]["scale_f16"], e["reference"]["zero_f16"]) else "refit or sanitised"
            keys.append(e)
    vals = []
    for name, x in {"zero": [0.0] * 64, "one_hot_1": [1.0 if i == 5 else 0.0 for i in range(64)], "constant_1": [1.0] * 64,
                    "signs_64_times_2": [2.0 * s for s in SIGNS[64]], "tiny_1e-9": [f32(1e-9 * (i - 31)) for i in range(64)]}.items():
        for bits in (3, 4):
            y, c, s, rms, norm = enc_value(x, bits); yr = dec_value_rotated(c, s, bits)
            vals.append({"name": name, "bits": bits, "x_f32": h32(x), "rot_f32": h32(y), "codes": c, "scale_f16": h16(s),
                         "outrot_f32": h32(yr), "out_f32": h32(inverse(yr))})
    ties = []
    for bits in (2, 3, 4, 5):
        b = LM[bits][1]
        ties.append({"bits": bits, "normalised_f32": h32(b), "codes": [sum(1 for t in b if v > t) for v in b]})
    dump("edge.json", {"key_groups": keys, "value_vectors_d64": vals, "boundary_ties": ties})

def attention_file():
    out = []
    for d, kb, vb, hq, tk in ((64, 8, 3, 2, 5), (96, 8, 4, 3, 4), (128, 4, 4, 2, 6)):
        rng = random.Random(500 + d); scale = 1 / math.sqrt(d)
        ks = [sample(rng, d, "k") for _ in range(tk)]; vs = [sample(rng, d, "v") for _ in range(tk)]
        q = [[bf16_val(bf16_bits(f32(rng.gauss(0, 1)))) for _ in range(d)] for _ in range(hq)]
        kd, yr = [], []
        enc = []
        for k, v in zip(ks, vs):
            kc, s, z = enc_key(k, kb); kd.append(dec_key(kc, s, z))
            _, vc, s2, _, _ = enc_value(v, vb); yr.append(dec_value_rotated(vc, s2, vb))
            enc.append({"k_packed": key_bytes(kc, kb).hex(), "k_scale_f16": h16(s), "k_zero_f16": h16(z), "v_packed": pack(vc, vb).hex(), "v_scale_f16": h16(s2)})
        rows = []
        for qi in q:
            sc = [scale * sum(a * b for a, b in zip(qi, k)) for k in kd]; m = max(sc); e = [math.exp(t - m) for t in sc]; tot = sum(e)
            w = [t / tot for t in e]
            acc = [sum(w[t] * yr[t][j] for t in range(tk)) for j in range(d)]
            rows.append({"weights": w, "out_rotated": acc, "out": inverse([f32(t) for t in acc])})
        out.append({"head_dim": d, "k_bits": kb, "v_bits": vb, "kv_heads": 1, "q_heads": hq, "tokens": tk, "scale": scale,
                    "k_in_bf16": [h16([bf16_bits(t) for t in k]) for k in ks], "v_in_bf16": [h16([bf16_bits(t) for t in v]) for v in vs],
                    "q_bf16": [h16([bf16_bits(t) for t in qi]) for qi in q], "encoded": enc, "rows": rows,
                    "tolerance_abs": 2e-5, "note": "binary64 softmax over binary32 decoded K and rotated V; no bf16 rounding of K, V, scores or weights"})
    dump("attention.json", {"cases": out})

if __name__ == "__main__":
    allc = [(8, 3), (8, 4), (8, 8), (8, 2), (4, 4), (4, 3), (5, 5), (2, 2)]
    encode_file(64, allc, 64); encode_file(128, allc, 128)
    encode_file(96, [(8, 3), (4, 4)], 96); encode_file(256, [(8, 3), (4, 4), (5, 5)], 256); encode_file(512, [(8, 3)], 512)
    fwht_file(); pack_file(); edge_file(); attention_file()
    print("ok")
