/*
 * Completion scripts for three shells, written from the tables. Model names come from the program itself when
 * the user presses the key: 'espalier --list-models' prints what has been downloaded.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/page.h"

#include <string.h>

#include "program/output.h"

static bool takes_file(const struct esp_opt *o)
{
    return o->type == OPT_TYPE_FILE;
}

static bool takes_word(const struct esp_opt *o)
{
    return o->type != OPT_TYPE_BOOL && o->type != OPT_TYPE_COUNT && o->type != OPT_TYPE_MAYBE;
}

/* "a|b" with another separator. */
static void put_values(const char *values, char separator)
{
    for (const char *p = values; *p; p++)
        esp_out_printf("%c", *p == '|' ? separator : *p);
}

static void put_verbs(const char *separator, bool aliases)
{
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);

        esp_out_printf("%s%s", i ? separator : "", v->name);
        if (aliases && v->alias)
            esp_out_printf("%s%s", separator, v->alias);
    }
}

static void put_pattern(const struct esp_verb *v, const char *separator)
{
    esp_out_printf("%s", v->name);
    if (v->alias)
        esp_out_printf("%s%s", separator, v->alias);
}

/* ---- bash ---- */

static void bash_flags(const struct esp_verb *v)
{
    esp_out_printf("        flags='");
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = esp_opt_get((enum esp_opt_id)i);

        if (!esp_opt_for(o, v))
            continue;
        esp_out_printf("--%s ", o->name);
        if (o->type == OPT_TYPE_BOOL && o->def && strcmp(o->def, "on") == 0)
            esp_out_printf("--no-%s ", o->name);
        if (o->letter)
            esp_out_printf("-%c ", o->letter);
    }
    esp_out_printf("'\n        case $prev in\n");
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = esp_opt_get((enum esp_opt_id)i);

        if (!esp_opt_for(o, v) || !takes_word(o))
            continue;
        esp_out_printf("        --%s", o->name);
        if (o->alias)
            esp_out_printf("|--%s", o->alias);
        if (o->letter)
            esp_out_printf("|-%c", o->letter);
        if (o->type == OPT_TYPE_ENUM) {
            esp_out_printf(") words='");
            put_values(o->arg, ' ');
            esp_out_printf("'; kind=words ;;\n");
        } else {
            esp_out_printf(") kind=%s ;;\n", o->id == OPT_MODEL ? "model" : takes_file(o) ? "file" : "none");
        }
    }
    esp_out_printf("        esac\n        ;;\n");
}

static void bash(void)
{
    esp_out_printf("# bash completion for espalier; load with: eval \"$(espalier completion bash)\"\n"
                   "_espalier()\n{\n"
                   "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                   "    local verb=${COMP_WORDS[1]} flags='' words='' kind=model\n"
                   "    [ \"$cur\" = = ] && cur=\n"
                   "    [ \"$prev\" = = ] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
                   "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                   "        COMPREPLY=($(compgen -W '");
    put_verbs(" ", true);
    esp_out_printf(" --help --version' -- \"$cur\"))\n        return\n    fi\n    case $verb in\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);

        esp_out_printf("    ");
        put_pattern(v, "|");
        esp_out_printf(")\n");
        if (v->id == VERB_COMPLETION)
            esp_out_printf("        words='bash zsh fish'; kind=words\n");
        if (v->id == VERB_HELP) {
            esp_out_printf("        words='");
            put_verbs(" ", true);
            esp_out_printf("'; kind=words\n");
        }
        bash_flags(v);
    }
    esp_out_printf(
        "    esac\n"
        "    case $cur in\n"
        "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")); return ;;\n"
        "    esac\n"
        "    case $kind in\n"
        "    words) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
        "    file) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
        "    model) COMPREPLY=($(compgen -W \"$(espalier --list-models 2>/dev/null)\" -- \"$cur\")\n"
        "                      $(compgen -d -- \"$cur\")) ;;\n"
        "    esac\n}\n"
        "complete -o filenames -F _espalier espalier\n");
}

/* ---- zsh ---- */

/* Help inside '...[...]' of _arguments: no quotes, brackets or colons. */
static void zsh_help(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'')
            esp_out_printf("'\\''");
        else if (strchr("[]:\\", *s))
            esp_out_printf("\\%c", *s);
        else
            esp_out_printf("%c", *s);
    }
}

static void zsh_action(const struct esp_opt *o)
{
    if (o->type == OPT_TYPE_ENUM) {
        esp_out_printf(":value:(");
        put_values(o->arg, ' ');
        esp_out_printf(")");
    } else if (o->id == OPT_MODEL) {
        esp_out_printf(":model:_espalier_model");
    } else if (takes_file(o)) {
        esp_out_printf(":file:_files");
    } else if (takes_word(o)) {
        esp_out_printf(":%s:", o->arg);
    }
}

static void zsh_flag(const struct esp_opt *o, const char *dashes, const char *name, const char *equals)
{
    const bool many = o->type == OPT_TYPE_STRINGS || o->type == OPT_TYPE_COUNT;

    esp_out_printf(" \\\n        '%s%s%s%s[", many ? "*" : "", dashes, name, equals);
    zsh_help(o->help);
    esp_out_printf("]");
    zsh_action(o);
    esp_out_printf("'");
}

static void zsh_verb(const struct esp_verb *v)
{
    esp_out_printf("    ");
    put_pattern(v, "|");
    esp_out_printf(")\n        _arguments -s");
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = esp_opt_get((enum esp_opt_id)i);
        const char letter[2] = {o->letter, 0};

        if (!esp_opt_for(o, v))
            continue;
        zsh_flag(o, "--", o->name, takes_word(o) ? "=" : o->type == OPT_TYPE_MAYBE ? "=-" : "");
        if (o->letter)
            zsh_flag(o, "-", letter, takes_word(o) ? "+" : "");
    }
    if (v->id == VERB_COMPLETION)
        esp_out_printf(" \\\n        '1:shell:(bash zsh fish)'");
    else if (v->id == VERB_HELP)
        esp_out_printf(" \\\n        '1:verb:_espalier_verb'");
    else if (v->most != 0)
        esp_out_printf(" \\\n        '1:model:_espalier_model' '*:file:_files'");
    esp_out_printf("\n        ;;\n");
}

static void zsh(void)
{
    esp_out_printf(
        "#compdef espalier\n# zsh completion for espalier; load with: eval \"$(espalier completion zsh)\"\n"
        "_espalier_model() {\n"
        "    compadd -- ${(f)\"$(espalier --list-models 2>/dev/null)\"}\n"
        "    _files -/\n}\n"
        "_espalier_verb() {\n    local -a verbs\n    verbs=(\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);

        esp_out_printf("        '%s:%s'\n", v->name, v->summary);
    }
    esp_out_printf("    )\n    _describe verb verbs\n}\n"
                   "_espalier() {\n"
                   "    if (( CURRENT == 2 )); then\n        _espalier_verb\n        return\n    fi\n"
                   "    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $verb in\n");
    for (size_t i = 0; i < N_VERBS; i++)
        zsh_verb(esp_verb_get((enum esp_verb_id)i));
    esp_out_printf("    esac\n}\n"
                   "if [ \"$funcstack[1]\" = _espalier ]; then\n    _espalier \"$@\"\nelse\n"
                   "    (( $+functions[compdef] )) && compdef _espalier espalier\nfi\n");
}

/* ---- fish ---- */

static void fish_text(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\')
            esp_out_printf("\\");
        esp_out_printf("%c", *s);
    }
}

static void fish_flag(const struct esp_verb *v, const struct esp_opt *o)
{
    esp_out_printf("complete -c espalier -n '__fish_seen_subcommand_from ");
    put_pattern(v, " ");
    esp_out_printf("' -l %s", o->name);
    if (o->letter)
        esp_out_printf(" -s %c", o->letter);
    if (o->type == OPT_TYPE_ENUM) {
        esp_out_printf(" -x -a '");
        put_values(o->arg, ' ');
        esp_out_printf("'");
    } else if (takes_file(o)) {
        esp_out_printf(" -r -F");
    } else if (takes_word(o)) {
        esp_out_printf(o->id == OPT_MODEL ? " -r -a '(espalier --list-models 2>/dev/null)'" : " -x");
    }
    esp_out_printf(" -d '");
    fish_text(o->help);
    esp_out_printf("'\n");
}

static void fish(void)
{
    esp_out_printf("# fish completion for espalier; load with: espalier completion fish | source\n"
                   "complete -c espalier -f -n __fish_use_subcommand -l version -d 'Print the version'\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);

        esp_out_printf("complete -c espalier -f -n __fish_use_subcommand -a %s -d '", v->name);
        fish_text(v->summary);
        esp_out_printf("'\n");
        for (size_t k = 0; k < N_OPTS; k++) {
            const struct esp_opt *o = esp_opt_get((enum esp_opt_id)k);

            if (esp_opt_for(o, v))
                fish_flag(v, o);
        }
        if (esp_opt_for(esp_opt_get(OPT_MODEL), v)) {
            esp_out_printf("complete -c espalier -n '__fish_seen_subcommand_from ");
            put_pattern(v, " ");
            esp_out_printf("' -a '(espalier --list-models 2>/dev/null)'\n");
        }
    }
    esp_out_printf("complete -c espalier -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n"
                   "complete -c espalier -f -n '__fish_seen_subcommand_from help' -a '");
    put_verbs(" ", true);
    esp_out_printf("'\n");
}

bool esp_complete_script(const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        bash();
    else if (strcmp(shell, "zsh") == 0)
        zsh();
    else if (strcmp(shell, "fish") == 0)
        fish();
    else
        return false;
    return true;
}
