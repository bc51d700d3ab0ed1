/*
 * espalier: the program. Finds the verb, parses its flags, runs it, and turns the outcome into an exit code.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"

#include "program/machine.h"
#include "program/model_find.h"
#include "program/output.h"
#include "program/page.h"
#include "program/verbs.h"

#ifndef ESP_COMMIT
#define ESP_COMMIT "unknown"
#endif

const char *esp_program_commit(void)
{
    return ESP_COMMIT;
}

const char *esp_program_compiler(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

static int print_version(void)
{
    struct esp_machine m;

    esp_machine_read(&m);
    esp_out_printf("espalier %s\ncommit: %s\ncompiler: %s\ncpu: %s\nfeatures: %s\ndevices: cpu\n",
                   esp_version(), ESP_COMMIT, esp_program_compiler(), m.cpu, m.features);
    return 0;
}

static int print_models(void)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 20);
    esp_model_list(&b);
    esp_out_write(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
    return 0;
}

/* The page of the verb called name, or with NULL that of the program. */
static int print_page(const char *name, void (*print)(const struct esp_verb *))
{
    const struct esp_verb *v = name ? esp_verb_find(name) : NULL;
    esp_error err = {0};

    if (name && !v && strcmp(name, "espalier") != 0)
        return esp_report(esp_verb_refuse(name, &err), &err);
    print(v);
    return 0;
}

static int print_completion(const char *shell)
{
    if (esp_complete_script(shell))
        return 0;
    return esp_report_as(ESP_EXIT_USAGE, "usage", "no completion for '%s'; bash, zsh and fish have one",
                         shell);
}

static int dispatch(const struct esp_options *o)
{
    if (o->v[OPT_HELP].on)
        return print_page(o->verb->name, esp_help_page);
    switch (o->verb->id) {
    case VERB_RUN:
        return esp_verb_run(o);
    case VERB_GENERATE:
        return esp_verb_generate(o);
    case VERB_TOKENIZE:
        return esp_verb_tokenize(o);
    case VERB_DETOKENIZE:
        return esp_verb_detokenize(o);
    case VERB_PERPLEXITY:
        return esp_verb_perplexity(o);
    case VERB_EVAL:
        return esp_verb_eval(o);
    case VERB_QUANTIZE:
        return esp_verb_quantize(o);
    case VERB_CONVERT:
        return esp_verb_convert(o);
    case VERB_INSPECT:
        return esp_verb_inspect(o);
    case VERB_BENCH:
        return esp_verb_bench(o);
    case VERB_FIT:
        return esp_verb_fit(o);
    case VERB_PS:
        return esp_verb_ps(o);
    case VERB_STOP:
        return esp_verb_stop(o);
    case VERB_SERVE:
        return esp_verb_serve(o);
    case VERB_DEVICES:
        return esp_verb_devices(o);
    case VERB_COMPLETION:
        return print_completion(o->args[0]);
    case VERB_HELP:
        return print_page(o->n_args ? o->args[0] : NULL, esp_help_page);
    case N_VERBS:
        break;
    }
    return ESP_EXIT_FAILURE;
}

/* Whether errors of the parser itself should be JSON; the flags are not parsed yet. */
static bool wants_json(int argc, char **argv)
{
    const char *env = getenv("ESPALIER_JSON");
    bool json = env && (strcmp(env, "1") == 0 || strcmp(env, "on") == 0);

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        if (strcmp(argv[i], "--no-json") == 0)
            json = false;
    }
    return json;
}

static int run_verb(const struct esp_verb *verb, int argc, char **argv)
{
    struct esp_out_settings settings = {.verb = verb->name, .json = wants_json(argc, argv)};
    struct esp_options o;
    esp_error err = {0};
    esp_status s;
    int code;

    esp_out_set(&settings);
    s = esp_options_parse(&o, verb, argc - 2, argv + 2, &err);
    if (s == ESP_OK) {
        settings.json = o.v[OPT_JSON].on;
        settings.verbosity = o.v[OPT_QUIET].on ? -1 : (int)o.v[OPT_VERBOSE].i;
        settings.progress = (enum esp_progress_mode)o.v[OPT_PROGRESS].i;
        settings.color = (enum esp_color_mode)o.v[OPT_COLOR].i;
        esp_out_set(&settings);
        code = dispatch(&o);
    } else {
        code = esp_report(s, &err);
    }
    esp_options_free(&o);
    return code;
}

/* Flags in place of a verb. */
static int run_flag(int argc, char **argv)
{
    const char *flag = argv[1];

    if (strcmp(flag, "--version") == 0 || strcmp(flag, "-V") == 0)
        return print_version();
    if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0) {
        esp_help_overview(false);
        return 0;
    }
    if (strcmp(flag, "--man") == 0) /* for the build: writes the manual pages */
        return print_page(argc > 2 ? argv[2] : NULL, esp_man_page);
    if (strcmp(flag, "--list-models") == 0) /* for completion scripts */
        return print_models();
    return esp_report_as(ESP_EXIT_USAGE, "usage",
                         "'%s' stands where a verb belongs; 'espalier --help' lists the verbs", flag);
}

static int run(int argc, char **argv)
{
    const struct esp_out_settings settings = {.json = wants_json(argc, argv)};
    const struct esp_verb *verb;
    esp_error err = {0};

    esp_out_set(&settings);
    if (argc < 2) {
        esp_help_overview(true);
        return ESP_EXIT_USAGE;
    }
    if (argv[1][0] == '-')
        return run_flag(argc, argv);
    verb = esp_verb_find(argv[1]);
    if (!verb)
        return esp_report(esp_verb_refuse(argv[1], &err), &err);
    return run_verb(verb, argc, argv);
}

int main(int argc, char **argv)
{
    esp_signals_install();
    return esp_out_finish(run(argc, argv));
}
