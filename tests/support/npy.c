/*
 * See npy.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/npy.h"

int32_t *test_npy(const char *path, uint32_t *rows, uint32_t *cols)
{
    FILE *f = fopen(path, "rb");
    unsigned char head[10];
    char dict[512];
    uint32_t len;
    int32_t *v;

    assert_non_null(f);
    assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
    assert_memory_equal(head, "\x93NUMPY\x01\x00", 8);
    len = head[8] | (uint32_t)head[9] << 8;
    assert_true(len < sizeof dict);
    assert_int_equal(fread(dict, 1, len, f), len);
    dict[len] = 0;
    assert_non_null(strstr(dict, "'<i4'"));
    assert_int_equal(sscanf(strchr(dict, '('), "(%u, %u)", rows, cols), 2);
    v = malloc((size_t)*rows * *cols * sizeof *v);
    assert_non_null(v);
    assert_int_equal(fread(v, sizeof *v, (size_t)*rows * *cols, f), (size_t)*rows * *cols);
    fclose(f);
    return v;
}
