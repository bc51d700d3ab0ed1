/*
 * Another scaling of positions than the one that a config asks for: none, or YaRN with a factor. YaRN
 * stretches the slow dimensions of the rotation and sharpens attention by 0.1 ln(factor) + 1, as
 * config_parts.c reads it from files. Source: Peng et al., "YaRN: Efficient Context Window Extension of
 * Large Language Models", 2023.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FACTOR = 1024, MAX_LENGTH = 1 << 30 };

/* Positions that the model was trained with. */
static uint32_t trained(const struct esp_config *c)
{
    return c->rope.type == ESP_ROPE_YARN ? c->rope.original_max : c->max_position;
}

static void set_none(struct esp_config *c)
{
    struct esp_config_rope *r = &c->rope;

    c->max_position = trained(c);
    r->type = ESP_ROPE_DEFAULT;
    r->factor = r->beta_fast = r->beta_slow = r->attention_factor = 0;
    r->original_max = 0;
}

static void set_yarn(struct esp_config *c, double factor, uint32_t length)
{
    struct esp_config_rope *r = &c->rope;
    const double positions = factor * length;

    r->type = ESP_ROPE_YARN;
    r->factor = factor;
    r->original_max = length;
    r->beta_fast = 32;
    r->beta_slow = 1;
    r->attention_factor = 0.1 * log(factor) + 1;
    c->max_position = positions < MAX_LENGTH ? (uint32_t)positions : MAX_LENGTH;
}

/* "FACTOR" or "FACTOR:LENGTH" to the last byte. */
static bool read_yarn(const char *s, double *factor, uint32_t *length)
{
    char *end;
    unsigned long n;

    if (strspn(s, "0123456789.") == 0)
        return false;
    *factor = strtod(s, &end);
    if (!(*factor >= 1 && *factor <= MAX_FACTOR))
        return false;
    if (*end == '\0')
        return true;
    s = end + 1;
    if (*end != ':' || !*s || strlen(s) > 10 || strspn(s, "0123456789") != strlen(s))
        return false;
    n = strtoul(s, NULL, 10);
    *length = (uint32_t)n;
    return n >= 1 && n <= MAX_LENGTH;
}

esp_status esp_config_scale_rope(struct esp_config *c, const char *how, esp_error *err)
{
    uint32_t length = trained(c);
    double factor = 0;

    if (!how || strcmp(how, "model") == 0)
        return ESP_OK;
    if (strcmp(how, "none") == 0) {
        set_none(c);
        return ESP_OK;
    }
    if (strncmp(how, "yarn:", 5) != 0 || !read_yarn(how + 5, &factor, &length))
        return esp_fail(
            err, ESP_EINVAL,
            "rope scaling '%.100s': model, none and yarn:FACTOR[:LENGTH] with a factor of 1 to %d "
            "are accepted; models of this family know no other",
            how, MAX_FACTOR);
    set_yarn(c, factor, length);
    return ESP_OK;
}
