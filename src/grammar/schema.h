/*
 * Reading JSON Schema. Every subschema becomes a rule, made from a queue, so that depth and recursion of a
 * schema cost no stack; equal subschemas (by their text) are one rule. A subschema with what it refers to and
 * what it must satisfy besides (allOf) is a list of objects, which are brought together in one struct of
 * constraints before anything is written. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_SCHEMA_H
#define ESP_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "grammar/ir.h"

enum esp_schema_type {
    ESP_SCHEMA_NULL = 1,
    ESP_SCHEMA_BOOLEAN = 2,
    ESP_SCHEMA_INTEGER = 4,
    ESP_SCHEMA_NUMBER = 8, /* with a fraction or not */
    ESP_SCHEMA_STRING = 16,
    ESP_SCHEMA_ARRAY = 32,
    ESP_SCHEMA_OBJECT = 64,
    ESP_SCHEMA_ANY = 127
};

/* Rules that any schema may call. */
enum esp_schema_basic {
    ESP_BASIC_WS, /* between tokens */
    ESP_BASIC_SP, /* behind a colon */
    ESP_BASIC_VALUE,
    ESP_BASIC_OBJECT,
    ESP_BASIC_ARRAY,
    ESP_BASIC_STRING,
    ESP_BASIC_NUMBER,
    ESP_BASIC_INTEGER,
    ESP_BASIC_COUNT
};

enum { ESP_SCHEMA_CONJUNCTS = 256 };

/* What all objects of one list ask for, together. References are borrowed. */
struct esp_schema_node {
    const char *path; /* for messages */
    const json_t *part[ESP_SCHEMA_CONJUNCTS];
    uint32_t n_part;
    unsigned types;
    bool typed; /* types were given, not guessed */
    bool nullable;
    const json_t *values; /* enum, or an array with const; NULL: none */
    json_t *own_values;   /* the same if it had to be made */
    /* Integers. */
    bool has_min, has_max;
    int64_t min, max;
    const char *bound; /* keyword of a bound, for messages */
    /* Strings. */
    uint32_t min_length, max_length; /* ESP_IR_NONE: no end */
    const char *pattern[8], *format[8];
    uint32_t n_pattern, n_format;
    /* Arrays. */
    uint32_t min_items, max_items;
};

struct esp_schema {
    struct esp_ir *ir;
    const json_t *root;
    unsigned flags;                  /* esp_schema_flags */
    uint32_t basic[ESP_BASIC_COUNT]; /* rule + 1, 0: not made yet */
    struct esp_schema_job {
        uint32_t rule;
        const json_t *schema;
        const char *path;
    } * job; /* [n_job]; those below done are written */
    uint32_t n_job, cap_job, done;
    uint32_t *slot; /* [n_slot] job + 1 by text */
    uint64_t *hash; /* [n_job] */
    uint32_t n_slot, cap_hash;
    struct esp_schema_text_rule { /* strings with conditions, each kind once */
        uint32_t min, max, rule;
        const char *pattern, *format;
        bool raw;
    } * text;
    uint32_t n_text, cap_text;
    json_t *kept;      /* array: schemas made on the way */
    size_t text_bytes; /* of all schemas that were compared */
};

esp_status esp_schema_begin(struct esp_schema *s, struct esp_ir *ir, const json_t *root, unsigned flags,
                            esp_error *err);
/* The rule for schema, which lives as long as root or was given to esp_schema_keep. */
esp_status esp_schema_rule(struct esp_schema *s, const json_t *schema, const char *path, uint32_t *rule,
                           esp_error *err);
/* Write all rules that were asked for. *never, zeroed before, gets why the first of those without any text
 * has none. */
esp_status esp_schema_run(struct esp_schema *s, esp_error *never, esp_error *err);
void esp_schema_end(struct esp_schema *s);
/* Size and depth of a schema from outside. */
esp_status esp_schema_check(const json_t *schema, esp_error *err);

/* ---- between the files ---- */

/* j as compact text (esp_free), numbers with so many digits; NULL without memory. */
char *esp_schema_text(const json_t *j, size_t digits);
/* j is s's from now on; false without memory (j is gone). */
bool esp_schema_keep(struct esp_schema *s, json_t *j);
/* "parent/key" in the arena, key escaped as in a JSON pointer; parent when there is no memory. */
const char *esp_schema_path(struct esp_schema *s, const char *parent, const char *key);
void esp_schema_index(char out[16], uint32_t i);
uint32_t esp_schema_basic(struct esp_schema *s, enum esp_schema_basic which);
esp_status esp_schema_unsupported(const char *path, const char *key, const char *why, esp_error *err);
esp_status esp_schema_bad(const char *path, const char *key, const char *why, esp_error *err);
esp_status esp_schema_never(const char *path, const char *why, esp_error *err);

/* schema_read.c: the list of objects that schema stands for, and what they say together. */
esp_status esp_schema_gather(struct esp_schema *s, const json_t *schema, struct esp_schema_node *n,
                             esp_error *err);
esp_status esp_schema_read(struct esp_schema_node *n, esp_error *err);
/* Whether key is one that the room understands or ignores; see the table there. */
bool esp_schema_is_annotation(const char *key);

/* schema_text.c: one rule each, or the beginning of one, written into b. */
esp_status esp_schema_string(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                             struct esp_frag *out, esp_error *err);
/* The text of a string without quotes and escapes, as a parameter of a call holds it. */
esp_status esp_schema_raw_string(struct esp_schema *s, const struct esp_schema_node *n, uint32_t *rule,
                                 esp_error *err);
struct esp_frag esp_schema_integer(struct esp_nfa *b, const struct esp_schema_node *n);
void esp_schema_write_basic(struct esp_schema *s, enum esp_schema_basic which, uint32_t rule);

/* schema_parts.c */
esp_status esp_schema_object(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                             struct esp_frag *out, esp_error *err);
esp_status esp_schema_array(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                            struct esp_frag *out, esp_error *err);
/* The properties that an object may have, in order, with the schema of each. */
struct esp_schema_member {
    const char *name;
    const json_t *schema;
    bool required;
};
struct esp_schema_members {
    struct esp_schema_member *m; /* [n], in the arena */
    uint32_t n, cap;
    bool more;            /* others too */
    const json_t *others; /* schema of those; NULL: any value */
};
esp_status esp_schema_list_members(struct esp_schema *s, const struct esp_schema_node *n,
                                   struct esp_schema_members *out, esp_error *err);

#endif
