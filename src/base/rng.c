/*
 * Philox4x32-10. Plain C without tables: one call costs about 20 multiplications, and is made once a token.
 *
 * Source: Salmon and others, SC 2011; see the header. Constants are those of the paper's table for four
 * 32-bit words.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/rng.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

enum { ROUNDS = 10 };

void esp_rng_words(const struct esp_rng_key *key, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)key->position, (uint32_t)(key->position >> 32), key->choice, key->draw};
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);

    for (int r = 0; r < ROUNDS; r++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];

        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* Weyl steps: golden ratio and sqrt(3) - 1 */
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

double esp_rng_uniform(const struct esp_rng_key *key)
{
    uint32_t w[4];

    esp_rng_words(key, w);
    return (double)(((uint64_t)w[1] << 32 | w[0]) >> 11) * 0x1p-53;
}

esp_status esp_rng_seed(uint64_t *out, esp_error *err)
{
    uint64_t seed;
    ssize_t n;

    do
        n = getrandom(&seed, sizeof seed, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof seed)
        return esp_fail(err, ESP_EIO, "random seed: the system gave %zd of %zu bytes: %s", n, sizeof seed,
                        n < 0 ? strerror(errno) : "short read");
    *out = seed;
    return ESP_OK;
}
