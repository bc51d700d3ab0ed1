/*
 * The tier of files by itself: what find() reports is what restore() gives or refuses, also when a file went
 * between the two; a longer text replaces the files that it contains, and only those.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "engine/cache.h"

enum { N = 40 };

static esp_model *model;
static esp_engine *engine;
static struct esp_disk *disk;
static uint32_t page, slots[3];
static int32_t text[2][N];

static uint8_t *slot_bytes(uint32_t slot)
{
    return (uint8_t *)engine->pools->mem.slots->host + (size_t)slot * engine->pools->mem.layout.slot_bytes;
}

/* Save text[which][0..n) with checkpoints at the positions given; the state at n is n repeated. */
static void save(int which, const uint32_t *at, uint32_t n_at)
{
    struct esp_prefix_checkpoint c[3];
    struct esp_prefix_path p = {.ns = 9,
                                .tokens = text[which],
                                .n = at[n_at - 1],
                                .pages = &page,
                                .n_page = 1,
                                .checkpoints = c,
                                .n_checkpoint = n_at};
    esp_error err;

    for (uint32_t i = 0; i < n_at; i++) {
        c[i] = (struct esp_prefix_checkpoint){.n = at[i], .slot = slots[i]};
        memset(slot_bytes(slots[i]), (int)at[i], engine->pools->mem.layout.slot_bytes);
    }
    test_ok(esp_disk_save(disk, &p, &err), &err);
}

static esp_status restore(int which, uint32_t at, esp_error *err)
{
    uint32_t base = 77;
    esp_status s;

    memset(slot_bytes(slots[2]), 0xee, 16);
    s = esp_disk_restore(disk, 9, text[which], at,
                         &(struct esp_disk_place){.pages = &page, .slot = slots[2], .base = &base}, err);
    if (s == ESP_OK) {
        assert_int_equal(base, 0);
        assert_int_equal(slot_bytes(slots[2])[5], at);
    } else {
        assert_int_equal(slot_bytes(slots[2])[5], 0xee);
    }
    return s;
}

static void open_disk(uint64_t bytes)
{
    esp_error err;

    test_ok(esp_disk_open(&disk, test_tmpdir(), bytes, &engine->identity, engine->pools, &err), &err);
}

static void test_gone_meanwhile(void **state)
{
    uint64_t one;
    esp_error err;

    (void)state;
    open_disk(UINT64_C(1) << 30);
    save(0, (uint32_t[]){10, 30}, 2);
    one = esp_disk_bytes(disk);
    esp_disk_close(disk);
    open_disk(2 * one + one / 2);
    save(0, (uint32_t[]){10, 30}, 2);
    text[1][20] ^= 1; /* the other text has its first 20 tokens in common */
    save(1, (uint32_t[]){10, 35}, 2);
    assert_int_equal(esp_disk_find(disk, 9, text[0], N), 30);
    assert_int_equal(esp_disk_find(disk, 9, text[0], 29), 10);
    assert_int_equal(esp_disk_find(disk, 8, text[0], N), 0);
    test_ok(restore(0, 30, &err), &err);
    test_ok(restore(0, 10, &err), &err);
    save(1, (uint32_t[]){10, 35}, 2); /* newer than the first text's file */
    text[1][0] ^= 1;
    save(1, (uint32_t[]){12, 36}, 2); /* and no room for all three: the first text's file goes */
    text[1][0] ^= 1;
    assert_int_equal(esp_disk_find(disk, 9, text[0], N), 10);
    test_refused(restore(0, 30, &err), ESP_ENOTFOUND, &err, "at 30");
    test_ok(restore(0, 10, &err), &err);
    esp_disk_close(disk);
}

static void test_contained(void **state)
{
    uint64_t before;

    (void)state;
    open_disk(UINT64_C(1) << 30);
    save(0, (uint32_t[]){10}, 1);
    before = esp_disk_bytes(disk);
    save(0, (uint32_t[]){10, 30}, 2); /* has all that the first file had */
    assert_true(esp_disk_bytes(disk) < 3 * before);
    save(0, (uint32_t[]){20, 40}, 2); /* lacks 10 and 30: both files stay */
    assert_int_equal(esp_disk_find(disk, 9, text[0], N), 40);
    assert_int_equal(esp_disk_find(disk, 9, text[0], 39), 30);
    assert_int_equal(esp_disk_find(disk, 9, text[0], 29), 20);
    assert_int_equal(esp_disk_find(disk, 9, text[0], 19), 10);
    esp_disk_close(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gone_meanwhile),
                                       cmocka_unit_test(test_contained)};
    esp_engine_opts o = {.context = 256, .max_seqs = 1};
    esp_error err;
    int failed;

    if (esp_model_open(&model, test_path("models/tiny-text"), &(esp_model_opts){.threads = 1}, &err) !=
            ESP_OK ||
        esp_engine_open(&engine, model, &o, &err) != ESP_OK ||
        esp_page_take(engine->pools, &page, &err) != ESP_OK)
        return 1;
    for (int i = 0; i < 3; i++)
        if (esp_slot_take(engine->pools, &slots[i], true, &err) != ESP_OK)
            return 1;
    for (int i = 0; i < N; i++)
        text[0][i] = text[1][i] = i;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_page_release(engine->pools, page);
    for (int i = 0; i < 3; i++)
        esp_slot_release(engine->pools, slots[i]);
    esp_engine_close(engine);
    esp_model_close(model);
    return failed;
}
