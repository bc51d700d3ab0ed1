/*
 * KL divergence of a model with keys, values and states kept in many ways from the same model with exact
 * ones, which runs once for all of them. bench/kv_quality.py calls it.
 *
 *   bench_kv_kl MODEL IDS WINDOW WAY...     IDS: a file of int32; WAY: KV, KV@START or state=STATE
 *
 * Prints a JSON array of one object a way.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/quantize.h"

enum { MOST = 64, MAX_IDS = 1 << 24 };

/* Cuts at @. */
static esp_compare_cache way(char *text)
{
    char *at = strchr(text, '@');

    if (strncmp(text, "state=", 6) == 0)
        return (esp_compare_cache){.state = text + 6};
    if (at)
        *at++ = 0;
    return (esp_compare_cache){.kv = text, .kv_start = at ? (uint32_t)strtoul(at, NULL, 10) : 0};
}

static bool tell(void *user, const char *what, const char *item, double done, double total)
{
    (void)user;
    (void)item;
    fprintf(stderr, "%s %.0f of %.0f\n", what, done, total);
    return true;
}

static int compare(char **argv, int n, const int32_t *ids, size_t n_id)
{
    esp_compare_cache caches[MOST];
    const char *models[MOST];
    esp_comparison out[MOST];
    const esp_compare_opts o = {
        .window = (uint32_t)strtoul(argv[3], NULL, 10), .threads = 1, .caches = caches, .progress = tell};
    esp_error err;

    for (int i = 0; i < n; i++) {
        models[i] = argv[1];
        caches[i] = way(argv[4 + i]);
    }
    if (esp_compare(argv[1], models, (size_t)n, ids, n_id, &o, out, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int i = 0; i < n; i++)
        printf("%c{\"tokens\":%llu,\"kl\":%.9g,\"kl_p99\":%.9g,\"agreement\":%.9g,\"base_nll\":%.9g,\"nll\":%"
               ".9g}\n",
               i ? ',' : '[', (unsigned long long)out[i].tokens, out[i].kl_mean, out[i].kl_p99,
               out[i].agreement, out[i].base_nll, out[i].other_nll);
    puts("]");
    return 0;
}

int main(int argc, char **argv)
{
    int32_t *ids = malloc(MAX_IDS * sizeof *ids);
    FILE *f = argc > 4 ? fopen(argv[2], "rb") : NULL;
    size_t n = 0;
    int code = 2;

    if (ids && f)
        n = fread(ids, sizeof *ids, MAX_IDS, f);
    if (n && argc - 4 <= MOST)
        code = compare(argv, argc - 4, ids, n);
    else
        fprintf(stderr, "usage: bench_kv_kl MODEL IDS WINDOW WAY... (at most %d ways)\n", MOST);
    if (f)
        fclose(f);
    free(ids);
    return code;
}
