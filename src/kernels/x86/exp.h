/*
 * exp, sigmoid, silu and softplus on vectors; included after vec_avx2.h or vec_avx512.h. exp is
 * within 1.1 ulp of the exact value for normal results, sigmoid within 2.4, softplus within 2.8 (every
 * seventh float tried); exp is exactly 1 at 0, 0 from -104 down, infinity above 88.73, NaN stays NaN.
 * Reduction by multiples of ln 2 in two parts, polynomial of degree 7 (Cephes' expf coefficients: S. Moshier,
 * netlib).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_EXP_H
#define ESP_KERNELS_X86_EXP_H

V_INLINE vf vf_exp(vf x)
{
    /* constants first: max and min return their second operand for NaN */
    const vf in = vf_min(vf_set1(90.0f), vf_max(vf_set1(-106.0f), x));
    const vf n = vf_round(vf_mul(in, vf_set1(1.44269504f)));
    const vf hi = vf_fnma(n, vf_set1(0.693359375f), in);
    const vf r = vf_fnma(n, vf_set1(-2.12194440e-4f), hi);
    vf p = vf_set1(1.9875691500e-4f);

    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), r);
    return vf_scale2(vf_add(p, vf_set1(1.0f)), n);
}

/* 1 / (1 + exp(-x)), by exp(-|x|) so that nothing overflows and small results keep their digits. */
V_INLINE vf vf_sigmoid(vf x)
{
    const vf one = vf_set1(1.0f);
    const vf e = vf_exp(vf_sub(vf_zero(), vf_abs(x)));

    return vf_div(vf_select(vf_ge(x, vf_zero()), one, e), vf_add(one, e));
}

V_INLINE vf vf_silu(vf x)
{
    return vf_mul(x, vf_sigmoid(x));
}

/*
 * log(1 + exp(x)) = max(x, 0) + log1p(e), e = exp(-|x|) <= 1; log1p(e) = 2 atanh(z), z = e / (2 + e) <= 1/3,
 * by its series: the first term left out is below z^16 / 17 = 1.4e-9 of the first one.
 */
V_INLINE vf vf_softplus(vf x)
{
    const vf e = vf_exp(vf_sub(vf_zero(), vf_abs(x)));
    const vf z = vf_div(e, vf_add(vf_set1(2.0f), e));
    const vf zz = vf_mul(z, z);
    vf p = vf_set1(1.0f / 15);

    p = vf_fma(p, zz, vf_set1(1.0f / 13));
    p = vf_fma(p, zz, vf_set1(1.0f / 11));
    p = vf_fma(p, zz, vf_set1(1.0f / 9));
    p = vf_fma(p, zz, vf_set1(1.0f / 7));
    p = vf_fma(p, zz, vf_set1(1.0f / 5));
    p = vf_fma(p, zz, vf_set1(1.0f / 3));
    p = vf_fma(vf_mul(p, zz), z, z);
    p = vf_fma(p, vf_set1(2.0f), vf_max(vf_zero(), x));
    return vf_select(vf_gt(x, vf_set1(20.0f)), x, p);
}

#endif
