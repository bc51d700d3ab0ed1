/*
 * Streams byte for byte: one transcript for every grammar of events that a client may meet, compared with the
 * one in tests/data/streams. What no two answers share is replaced first: random ids by their number, times,
 * the fingerprint, and the digits of log-probabilities, which differ between processors.
 *
 * ESPALIER_WRITE_STREAMS=FOLDER writes what comes to FOLDER. Read the difference before it becomes the file.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int start(void **state)
{
    (void)state;
    server_init(&shared);
    shared.o.sse_ping = -1; /* a slow machine pings */
    server_start(&shared);
    return 0;
}

#define ALWAYS    "'temperature':0,'seed':1,'stream':true,'cache_prompt':false,"
#define USER(t)   "'messages':[{'role':'user','content':'" t "'}]"
#define LOOK_UP   "Look up the word pencil."
#define WORD      "{'type':'object','properties':{'word':{'type':'string'}},'required':['word']}"
#define TOOL      "'tools':[{'type':'function','function':{'name':'look_up','parameters':" WORD "}}]"
#define CHAT_TOOL TOOL ",'tool_choice':'required','max_tokens':60,"
#define TYPED                                                                                                \
    "'tools':[{'type':'function','function':{'name':'set','strict':true,'parameters':{'type':'object',"      \
    "'properties':{'n':{'const':7},'on':{'const':true},'s':{'const':'a<b'},'l':{'const':[1,{'k':null}]}},"   \
    "'required':['n','on','s','l'],'additionalProperties':false}}}],'tool_choice':'required',"               \
    "'parallel_tool_calls':false,'max_tokens':120,"

static const struct {
    const char *name, *path, *body;
} streams[] = {
    {"chat", "/v1/chat/completions", USER("Spell: garden") ",'max_tokens':12"},
    {"chat_usage", "/v1/chat/completions",
     "'stream_options':{'include_usage':true},'max_tokens':2," USER("Spell: garden")},
    {"chat_thinking", "/v1/chat/completions", "'enable_thinking':true,'max_tokens':90," USER("Add: 12 + 7")},
    {"chat_hidden", "/v1/chat/completions",
     "'enable_thinking':true,'include_reasoning':false,'max_tokens':90," USER("Add: 12 + 7")},
    {"chat_call", "/v1/chat/completions", CHAT_TOOL USER(LOOK_UP)},
    {"chat_typed_call", "/v1/chat/completions", TYPED USER(LOOK_UP)},
    {"chat_choices", "/v1/chat/completions", "'n':2,'max_tokens':3," USER("Spell: garden")},
    {"chat_stop", "/v1/chat/completions",
     "'stop':['candle g'],'max_tokens':12," USER("Repeat: river candle garden")},
    {"chat_logprobs", "/v1/chat/completions",
     "'logprobs':true,'top_logprobs':1,'max_tokens':3," USER("Spell: garden")},
    {"completions", "/v1/completions", "'prompt':'Once upon a time','max_tokens':4"},
    {"completions_usage", "/v1/completions",
     "'prompt':'Once upon','max_tokens':2,'logprobs':1,'stream_options':{'include_usage':true}"},
    {"completions_echo", "/v1/completions", "'prompt':'Once upon','max_tokens':2,'echo':true"},
    {"responses", "/v1/responses", "'input':'Spell: garden','max_output_tokens':12"},
    {"responses_incomplete", "/v1/responses",
     "'input':'Spell: garden','max_output_tokens':2,'metadata':{'k':'v'}"},
    {"responses_thinking", "/v1/responses",
     "'input':'Add: 12 + 7','max_output_tokens':90,'reasoning':{'effort':'low','summary':'auto'},"
     "'include':['reasoning.encrypted_content']"},
    {"responses_call", "/v1/responses",
     "'input':'" LOOK_UP "','max_output_tokens':60,'tool_choice':'required',"
     "'tools':[{'type':'function','name':'look_up','parameters':" WORD "}]"},
    {"messages", "/v1/messages", "'max_tokens':12," USER("Spell: garden")},
    {"messages_thinking", "/v1/messages",
     "'max_tokens':90,'thinking':{'type':'enabled','budget_tokens':1024}," USER("Add: 12 + 7")},
    {"messages_call", "/v1/messages",
     "'max_tokens':60,'tool_choice':{'type':'any'},'tools':[{'name':'look_up','input_schema':" WORD
     "}]," USER(LOOK_UP)},
    {"messages_stop", "/v1/messages",
     "'max_tokens':12,'stop_sequences':['candle g']," USER("Repeat: river candle garden")},
    {"messages_length", "/v1/messages", "'max_tokens':2," USER("Spell: garden")},
};

/* ---- what every answer has for itself ---- */

/* Ids are a prefix and 24 letters and digits; sealed reasoning is longer. */
static const char *const prefixes[] = {"chatcmpl-", "cmpl-", "resp_",  "msg_",   "rs_",
                                       "fc_",       "call_", "toolu_", "espr1.", "sig_"};
static const char *const numbers[] = {
    "\"created\":", "\"created_at\":", "\"completed_at\":", "_ms\":", "_per_second\":", "logprob\":"};

struct ids {
    char *text[64];
    size_t n;
};

static size_t number_of(struct ids *ids, const char *s, size_t len)
{
    size_t i;

    for (i = 0; i < ids->n; i++)
        if (strlen(ids->text[i]) == len && strncmp(ids->text[i], s, len) == 0)
            return i;
    assert_true(ids->n < 64);
    ids->text[ids->n] = esp_alloc(len + 1);
    assert_non_null(ids->text[ids->n]);
    memcpy(ids->text[ids->n], s, len);
    ids->text[ids->n++][len] = '\0';
    return i;
}

/* An id at s: its length, and a number in its place. */
static size_t replace_id(struct esp_strbuf *out, struct ids *ids, const char *s)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const size_t skip = strlen(prefixes[i]);
        size_t len = skip;

        if (strncmp(s, prefixes[i], skip) != 0)
            continue;
        while (isalnum((unsigned char)s[len]) || s[len] == '_' || s[len] == '-' || s[len] == '.')
            len++;
        if (len < skip + 20)
            continue;
        esp_strbuf_printf(out, "%s#%zu", prefixes[i], number_of(ids, s, len));
        return len;
    }
    return 0;
}

/* Bytes of a number at s. */
static size_t number(const char *s)
{
    return strspn(s, "0123456789.-+eE");
}

/* A key at s whose number says nothing, or a number with many decimals: a sign in its place. */
static size_t replace_number(struct esp_strbuf *out, const char *s)
{
    const size_t len = number(s), whole = strcspn(s, ".");

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const size_t key = strlen(numbers[i]);

        if (strncmp(s, numbers[i], key) != 0 || number(s + key) == 0)
            continue;
        esp_strbuf_printf(out, "%s~", numbers[i]);
        return key + number(s + key);
    }
    if (whole > 0 && len > whole + 5) {
        esp_strbuf_putc(out, '~');
        return len;
    }
    return 0;
}

static char *plain(const char *s)
{
    static const char print[] = "\"system_fingerprint\":\"";
    struct esp_strbuf out;
    struct ids ids = {.n = 0};

    esp_strbuf_init(&out, 1 << 22);
    while (*s) {
        size_t n = replace_id(&out, &ids, s);

        if (n == 0)
            n = replace_number(&out, s);
        if (n == 0 && strncmp(s, print, sizeof print - 1) == 0) {
            n = sizeof print - 1 + strcspn(s + sizeof print - 1, "\"");
            esp_strbuf_printf(&out, "%s~", print);
        }
        if (n == 0)
            esp_strbuf_putc(&out, s[n++]);
        s += n;
    }
    for (size_t i = 0; i < ids.n; i++)
        esp_free(ids.text[i]);
    return esp_strbuf_take(&out);
}

/* ---- comparing ---- */

static char *kept(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct esp_strbuf b;
    char piece[4096];
    size_t n;

    if (!f)
        fail_msg("%s is missing", path);
    esp_strbuf_init(&b, 1 << 22);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        esp_strbuf_add(&b, piece, n);
    fclose(f);
    return esp_strbuf_take(&b);
}

static void compare(const char *name, const char *got)
{
    char path[160];
    char *want;
    size_t pos = 0, line = 1;

    snprintf(path, sizeof path, "tests/data/streams/%s.txt", name);
    want = kept(test_path(path));
    while (want[pos] && want[pos] == got[pos])
        line += want[pos++] == '\n';
    if (want[pos] || got[pos])
        fail_msg("%s, line %zu: '%.100s' where '%.100s' is kept", name, line, got + pos, want + pos);
    esp_free(want);
}

static void transcripts(void **state)
{
    const char *folder = getenv("ESPALIER_WRITE_STREAMS");

    (void)state;
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        struct reply r = client_postf(&shared, streams[i].path, 200, "{" ALWAYS "%s}", streams[i].body);
        char *text = plain(r.body), name[100];

        assert_string_equal(reply_header(&r, "Content-Type"), "text/event-stream");
        assert_string_equal(reply_header(&r, "Cache-Control"), "no-cache");
        assert_string_equal(reply_header(&r, "X-Accel-Buffering"), "no");
        snprintf(name, sizeof name, "%s.txt", streams[i].name);
        if (folder)
            test_write(folder, name, text, strlen(text));
        else
            compare(streams[i].name, text);
        esp_free(text);
        reply_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(transcripts)};

    return cmocka_run_group_tests(tests, start, stop);
}
