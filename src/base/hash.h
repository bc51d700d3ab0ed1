/*
 * 64-bit hash for tables in memory and for chained keys: XXH3 behind two functions, so that a caller neither
 * sees the library nor depends on its version. Not cryptographic: a key that must resist an attacker is
 * compared in full.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_HASH_H
#define ESP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Hash of data[0..len). Another seed is another function: chain by passing the previous hash as seed. */
uint64_t esp_hash(const void *data, size_t len, uint64_t seed);

/* A bijection of 64 bits that spreads small integers over all of them; for tables keyed by ids. */
static inline uint64_t esp_hash_u64(uint64_t x)
{
    /* Stafford's variant 13 of the MurmurHash3 finalizer, as in SplitMix64 */
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#endif
