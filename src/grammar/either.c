/*
 * Front ends joined: a text of a form, or calls of tools instead. The rules of both go into one grammar,
 * whose root may call either; no front end knows of the other.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "grammar/front.h"
#include "grammar/masks.h"

esp_status esp_front_finish(struct esp_grammar **out, const struct esp_vocab *v, struct esp_front *f,
                            esp_status s, esp_error *err)
{
    if (s != ESP_OK)
        return s;
    s = esp_grammar_create(out, v, &f->ir, f->what, err);
    if (s == ESP_EFORMAT && *f->never.message) /* the cause rather than the effect */
        s = esp_fail(err, ESP_EFORMAT, "%s", f->never.message);
    esp_ir_free(&f->ir);
    return s;
}

static esp_status front_form(struct esp_front *f, const struct esp_grammar_form *form, esp_error *err)
{
    switch (form->kind) {
    case ESP_GRAMMAR_GBNF:
        return esp_front_gbnf(f, form->text, form->len, err);
    case ESP_GRAMMAR_REGEX:
        return esp_front_regex(f, form->text, form->len, err);
    case ESP_GRAMMAR_CHOICE:
        return esp_front_choice(f, form->choice, form->n_choice, err);
    default:
        return esp_front_schema(f, form->schema, form->flags, err);
    }
}

/* Give ir the rules of from; the number of from's root there. */
static uint32_t append(struct esp_ir *ir, const struct esp_ir *from)
{
    const uint32_t by = ir->n_rule;

    for (uint32_t i = 0; i < from->n_rule; i++)
        (void)esp_ir_declare(ir, from->rule[i].name, strlen(from->rule[i].name), from->rule[i].at);
    for (uint32_t i = 0; ir->failed == ESP_OK && i < from->n_rule; i++) {
        const struct esp_ir_rule *r = &from->rule[i];
        struct esp_nfa b;

        if (r->flags & ESP_IR_BOTH) {
            esp_ir_both(ir, by + i, by + r->both[0], by + r->both[1]);
            ir->rule[by + i].flags |= r->flags;
            continue;
        }
        esp_nfa_begin(&b, ir);
        esp_nfa_copy(&b, r->state, r->n_state, by);
        esp_nfa_end(&b, by + i, r->frag, r->flags);
    }
    return by + from->root;
}

static esp_status join(struct esp_front *f, const struct esp_front *form, const struct esp_front *calls,
                       esp_error *err)
{
    uint32_t root[2];
    struct esp_frag one, other;
    struct esp_nfa b;

    memset(f, 0, sizeof *f);
    f->what = form->what;
    f->never = form->never;
    ESP_TRY(esp_ir_init(&f->ir, err));
    f->ir.root = esp_ir_declare(&f->ir, "answer", 6, 0);
    root[0] = append(&f->ir, &form->ir);
    root[1] = append(&f->ir, &calls->ir);
    esp_nfa_begin(&b, &f->ir);
    one = esp_nfa_call(&b, root[0]);
    other = esp_nfa_call(&b, root[1]);
    esp_nfa_end(&b, f->ir.root, esp_nfa_alt(&b, one, other), 0);
    return ESP_OK; /* a failure is in the rules, and compiling them says it */
}

esp_status esp_grammar_either(struct esp_grammar **out, const struct esp_vocab *v,
                              const struct esp_grammar_form *form, const struct esp_grammar_calls *calls,
                              esp_error *err)
{
    struct esp_front a, b, f;
    esp_status s;

    ESP_TRY(front_form(&a, form, err));
    s = esp_front_tools(&b, v, calls->tool, calls->n, calls->flags, err);
    if (s == ESP_OK) {
        s = join(&f, &a, &b, err);
        esp_ir_free(&b.ir);
    }
    esp_ir_free(&a.ir);
    return esp_front_finish(out, v, &f, s, err);
}
