/*
 * The one file that knows libxxhash. XXH3's output is fixed since 0.8.0, so hashes may be stored on disk.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/hash.h"

#include <xxhash.h>

uint64_t esp_hash(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}
