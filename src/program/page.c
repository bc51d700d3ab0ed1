/*
 * The walk over verbs and flags that makes a manual page.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/page.h"

#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"

static const struct {
    const char *term, *text;
} exit_codes[] = {
    {"0", "Success."},
    {"1", "Failure while running, such as a full disk."},
    {"2", "Wrong usage."},
    {"3", "A model or file is missing, ambiguous or invalid."},
    {"4", "It does not fit into the memory or the context."},
    {"5", "A device is missing or failed."},
    {"7", "A check failed: perplexity --max, bench --baseline, inspect --check."},
    {"130", "Interrupted by Ctrl-C. A second Ctrl-C ends the program at once."},
    {"141", "The reader of standard output went away."},
    {"143", "Ended by SIGTERM."},
};

/* Call para for every line of text. */
static void paragraphs(const struct esp_page_writer *w, const char *text)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 16);
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, "\n");

        esp_strbuf_clear(&b);
        esp_strbuf_add(&b, p, n);
        w->para(esp_strbuf_str(&b));
        p += n + (p[n] == '\n');
    }
    esp_strbuf_free(&b);
}

static void flag(const struct esp_page_writer *w, const struct esp_opt *o)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 16);
    esp_strbuf_puts(&b, o->help);
    if (o->type == OPT_TYPE_ENUM) {
        esp_strbuf_puts(&b, " One of ");
        for (const char *p = o->arg; *p;) {
            const size_t n = strcspn(p, "|");

            esp_strbuf_add(&b, p, n);
            p += n + (p[n] == '|');
            if (*p)
                esp_strbuf_puts(&b, strchr(p, '|') ? ", " : " or ");
        }
        esp_strbuf_putc(&b, '.');
    }
    if (o->type == OPT_TYPE_BOOL && o->def && strcmp(o->def, "on") == 0)
        esp_strbuf_printf(&b, " On by default; --no-%s switches it off.", o->name);
    else if (o->def && o->type != OPT_TYPE_BOOL && o->type != OPT_TYPE_COUNT)
        esp_strbuf_printf(&b, " Default: %s.", o->def);
    w->flag(o, esp_strbuf_str(&b));
    esp_strbuf_free(&b);
}

/* Whether no flag of the verb before row i has its group; rows of a group need not be neighbours. */
static bool opens_group(const struct esp_verb *verb, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        const struct esp_opt *before = esp_opt_get((enum esp_opt_id)k);

        if (esp_opt_for(before, verb) && strcmp(before->group, esp_opt_get((enum esp_opt_id)i)->group) == 0)
            return false;
    }
    return true;
}

static void flags(const struct esp_page_writer *w, const struct esp_verb *verb)
{
    w->section("OPTIONS");
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = esp_opt_get((enum esp_opt_id)i);

        if (!esp_opt_for(o, verb) || !opens_group(verb, i))
            continue;
        w->group(o->group);
        w->list(true);
        for (size_t k = i; k < N_OPTS; k++) {
            const struct esp_opt *other = esp_opt_get((enum esp_opt_id)k);

            if (esp_opt_for(other, verb) && strcmp(other->group, o->group) == 0)
                flag(w, other);
        }
        w->list(false);
    }
}

static void environment(const struct esp_page_writer *w, const struct esp_verb *verb)
{
    w->section("ENVIRONMENT");
    w->list(true);
    w->item("ESPALIER_NAME",
            "Every flag has a twin in the environment: its name in capitals, with _ for -, such as "
            "ESPALIER_TOP_P for --top-p. The flag wins. Flags without a value take on or off.");
    if (!verb || esp_opt_for(esp_opt_get(OPT_MODEL), verb)) {
        w->item("HF_HUB_CACHE", "Where downloaded models are looked for. Default: hub below HF_HOME.");
        w->item("HF_HOME", "Default: ~/.cache/huggingface.");
    }
    if (!verb || verb->id == VERB_RUN)
        w->item("XDG_STATE_HOME",
                "The history of conversations is kept in espalier/history below it. Default: "
                "~/.local/state.");
    w->item("NO_COLOR", "When set, no colours.");
    w->list(false);
}

static void exit_status(const struct esp_page_writer *w)
{
    w->section("EXIT STATUS");
    w->list(true);
    for (size_t i = 0; i < sizeof exit_codes / sizeof *exit_codes; i++)
        w->item(exit_codes[i].term, exit_codes[i].text);
    w->list(false);
}

static void program_page(const struct esp_page_writer *w)
{
    const char *pages[N_VERBS];
    char names[N_VERBS][32];

    w->head("espalier", "run language models of the Qwen3.5 class");
    w->synopsis("VERB", "[ARGUMENTS] [FLAGS]");
    w->section("DESCRIPTION");
    w->para("Runs hybrid language models, whose layers are mostly gated linear attention, on the processor. "
            "Results go to "
            "standard output, everything else to standard error.");
    w->para("MODEL is a folder with config.json, a Hub name such as org/name, or a unique part of the name "
            "of a downloaded "
            "model. The verbs are:");
    w->list(true);
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);
        char term[64], text[128];

        snprintf(term, sizeof term, "%s", v->name);
        snprintf(text, sizeof text, "%c%s%s%s%s.", v->summary[0] - 'a' + 'A', v->summary + 1,
                 v->alias ? " (also " : "", v->alias ? v->alias : "", v->alias ? ")" : "");
        w->item(term, text);
    }
    w->list(false);
    w->para("The flags of a verb are in its own page: espalier help VERB. The flag --version prints the "
            "version, the "
            "compiler and what the processor offers.");
    environment(w, NULL);
    exit_status(w);
    w->section("EXAMPLES");
    w->code("espalier run models/demo \"Repeat: river stone candle garden\"\nespalier chat models/demo");
    for (size_t i = 0; i < N_VERBS; i++) {
        snprintf(names[i], sizeof names[i], "espalier-%s", esp_verb_get((enum esp_verb_id)i)->name);
        pages[i] = names[i];
    }
    w->see(pages, N_VERBS);
}

void esp_page_walk(const struct esp_page_writer *w, const struct esp_verb *verb)
{
    static const char *const overview[] = {"espalier"};
    char name[64];

    if (!verb) {
        program_page(w);
        return;
    }
    snprintf(name, sizeof name, "espalier-%s", verb->name);
    w->head(name, verb->summary);
    w->synopsis(verb->name, verb->args);
    w->section("DESCRIPTION");
    paragraphs(w, verb->text);
    if (verb->alias) {
        char text[96];

        snprintf(text, sizeof text, "The verb may also be written %s.", verb->alias);
        w->para(text);
    }
    flags(w, verb);
    environment(w, verb);
    exit_status(w);
    w->section("EXAMPLES");
    w->code(verb->examples);
    w->see(overview, 1);
}
