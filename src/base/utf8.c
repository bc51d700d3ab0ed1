/*
 * UTF-8 decoding after RFC 3629, table-free: the second byte's range follows from the lead byte, all later
 * bytes are 80..BF. The maximal-subpart rule for replacements falls out of the same check.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/utf8.h"

/* Length that the lead byte announces, 0 if it cannot lead; lo and hi bound the second byte. */
static size_t lead_info(uint8_t b, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (b < 0x80)
        return 1;
    if (b >= 0xc2 && b <= 0xdf)
        return 2;
    if (b >= 0xe0 && b <= 0xef) {
        if (b == 0xe0)
            *lo = 0xa0; /* overlong */
        if (b == 0xed)
            *hi = 0x9f; /* surrogates */
        return 3;
    }
    if (b >= 0xf0 && b <= 0xf4) {
        if (b == 0xf0)
            *lo = 0x90; /* overlong */
        if (b == 0xf4)
            *hi = 0x8f; /* above U+10FFFF */
        return 4;
    }
    return 0;
}

/* Number of leading bytes of s that fit one character; *want is its full length (0: not even the first fits).
 */
static size_t valid_part(const char *s, size_t len, size_t *want)
{
    uint8_t lo, hi;
    size_t n = 1;

    *want = len ? lead_info((uint8_t)s[0], &lo, &hi) : 0;
    if (*want == 0)
        return 0;
    while (n < *want && n < len) {
        uint8_t b = (uint8_t)s[n];

        if (b < (n == 1 ? lo : 0x80) || b > (n == 1 ? hi : 0xbf))
            break;
        n++;
    }
    return n;
}

size_t esp_utf8_decode(const char *s, size_t len, uint32_t *cp)
{
    static const uint8_t lead_mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t want;
    uint32_t v;

    if (valid_part(s, len, &want) != want || want == 0)
        return 0;
    v = (uint8_t)s[0] & lead_mask[want];
    for (size_t i = 1; i < want; i++)
        v = v << 6 | ((uint8_t)s[i] & 0x3f);
    *cp = v;
    return want;
}

size_t esp_utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool esp_utf8_valid(const char *s, size_t len, size_t *at)
{
    size_t i = 0;

    while (i < len) {
        uint32_t cp;
        size_t n = esp_utf8_decode(s + i, len - i, &cp);

        if (n == 0) {
            if (at)
                *at = i;
            return false;
        }
        i += n;
    }
    return true;
}

size_t esp_utf8_incomplete_tail(const char *s, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        size_t want;
        size_t got = valid_part(s + len - back, back, &want);

        if (want > back && got == back)
            return back;
    }
    return 0;
}

size_t esp_utf8_bad_span(const char *s, size_t len)
{
    size_t want;
    size_t got = valid_part(s, len, &want);

    return got > 0 ? got : (len > 0);
}
