/*
 * The command line as data: verbs and flags from their tables, and the values that a call gave them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_OPTIONS_H
#define ESP_PROGRAM_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum esp_verb_id {
#define V(id, name, alias, summary, args, least, most, text, examples) VERB_##id,
#include "program/verbs.def"
#undef V
    N_VERBS
};

enum esp_opt_id {
#define O(id, name, alias, letter, type, arg, def, least, most, group, verbs, help) OPT_##id,
#include "program/options.def"
#undef O
    N_OPTS
};

enum esp_opt_type {
    OPT_TYPE_BOOL,     /* --x, --no-x, --x=on|off */
    OPT_TYPE_COUNT,    /* given n times */
    OPT_TYPE_INT,      /* least..most */
    OPT_TYPE_FLOAT,    /* least..most */
    OPT_TYPE_SIZE,     /* bytes: 512M, 1.5GiB */
    OPT_TYPE_SIZES,    /* SIZE, DEVICE=SIZE, or several with commas between */
    OPT_TYPE_DURATION, /* seconds: 30s, 5m, 1h, 200ms */
    OPT_TYPE_STRING,
    OPT_TYPE_ENUM,
    OPT_TYPE_FILE,
    OPT_TYPE_INTS,    /* comma list, each least..most */
    OPT_TYPE_STRINGS, /* repeatable; least..most bound the length in bytes */
    OPT_TYPE_MAYBE    /* --x or --x=VALUE */
};

struct esp_verb {
    enum esp_verb_id id;
    const char *name;
    const char *alias; /* or NULL */
    const char *summary;
    const char *args;
    int least; /* positional arguments */
    int most;  /* -1: any number */
    const char *text;
    const char *examples;
};

struct esp_opt {
    enum esp_opt_id id;
    const char *name;
    const char *alias; /* second long name or NULL */
    char letter;       /* or 0 */
    enum esp_opt_type type;
    const char *arg; /* placeholder, or a|b|c for ENUM */
    const char *def; /* text or NULL */
    double least, most;
    const char *group;
    uint32_t verbs; /* bit per verb */
    const char *help;
};

enum { MAX_OPT_LIST = 64 };

struct esp_opt_value {
    bool given;                     /* by flag or environment; else the default text was parsed */
    bool from_env;                  /* given by the environment */
    bool from_file;                 /* given by the configuration file */
    bool on;                        /* BOOL */
    int64_t i;                      /* INT, COUNT; ENUM: index of the value */
    double f;                       /* FLOAT, DURATION */
    uint64_t size;                  /* SIZE; SIZES: of the entry without a name, 0 without one */
    const char *s;                  /* STRING, FILE, ENUM, SIZES, MAYBE (NULL: without value) */
    const char *list[MAX_OPT_LIST]; /* STRINGS; SIZES: names, each ending with = */
    int64_t ints[MAX_OPT_LIST];     /* INTS; SIZES: of list */
    size_t n;
};

struct esp_options {
    const struct esp_verb *verb;
    struct esp_opt_value v[N_OPTS];
    const char **args; /* positional arguments, borrowed from argv */
    size_t n_args;
};

const struct esp_verb *esp_verb_get(enum esp_verb_id id);
/* By name or alias; NULL when unknown. */
const struct esp_verb *esp_verb_find(const char *name);
const struct esp_opt *esp_opt_get(enum esp_opt_id id);
bool esp_opt_for(const struct esp_opt *o, const struct esp_verb *v);
/* Name of the environment twin ("ESPALIER_TOP_P") in buf. Flags of type BOOL named help have none: returns
 * false. */
bool esp_opt_env_name(const struct esp_opt *o, char *buf, size_t cap);

/*
 * Parse argv[0..argc) behind the verb. Values point into argv and the environment. ESP_EINVAL: the message is
 * the whole complaint, with the nearest match for unknown names. With --help present, counts of arguments are
 * not checked.
 */
esp_status esp_options_parse(struct esp_options *out, const struct esp_verb *verb, int argc, char **argv,
                             esp_error *err);
void esp_options_free(struct esp_options *o);
/*
 * Settings of a configuration file for what neither flag nor environment gave. text[0..len) is changed and
 * must outlive o; name stands in messages. Lines are "flag = value", # comments, and [profile NAME] begins a
 * part that counts only when profile says so (NULL: none). ESP_EINVAL naming the line.
 */
esp_status esp_options_file(struct esp_options *o, char *text, const char *name, const char *profile,
                            esp_error *err);
/* The same anew: what an earlier reading of a file gave goes back to its default first. */
esp_status esp_options_file_again(struct esp_options *o, char *text, const char *name, const char *profile,
                                  esp_error *err);
/* The message for a verb that is not known: later work, or a near miss. */
esp_status esp_verb_refuse(const char *name, esp_error *err);

/* Set a value from text; env says that it came from the environment, for messages. ESP_EINVAL. */
esp_status esp_opt_set(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                       esp_error *err);

/* "1.5GiB" to bytes, "5m" to seconds; false when malformed. */
bool esp_parse_size(const char *s, uint64_t *out);
bool esp_parse_duration(const char *s, double *seconds);
bool esp_parse_int(const char *s, int64_t *out);
bool esp_parse_float(const char *s, double *out);

/* Index of the candidate nearest to word within a third of its length, or -1. */
int esp_nearest(const char *word, const char *const *candidates, size_t n);

#endif
