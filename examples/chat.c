/*
 * A conversation: chat MODEL, one message a line on standard input. The sequence is kept between turns and
 * cut back to what the new prompt shares with it, so that a turn costs its own tokens alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include <espalier/espalier.h>

#include <stdio.h>
#include <string.h>

enum { CONTEXT = 4096, TEXT = 65536 };

static char messages[TEXT] = "["; /* JSON, without the closing bracket */

/* Append a message, its text escaped; 0 when there is no room. */
static int add_message(const char *role, const char *text)
{
    size_t n = strlen(messages);

    if (n + 6 * strlen(text) + 64 > TEXT)
        return 0;
    n +=
        (size_t)snprintf(messages + n, TEXT - n, "%s{\"role\":\"%s\",\"content\":\"", n > 1 ? "," : "", role);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 32)
            n += (size_t)snprintf(messages + n, TEXT - n, "\\u%04x", *text);
        else
            messages[n++] = *text;
    }
    snprintf(messages + n, TEXT - n, "\"}");
    return 1;
}

/* Bring the sequence to the conversation's tokens. */
static esp_status set_prompt(const esp_model *model, esp_seq *seq, esp_error *err)
{
    static esp_token now[CONTEXT], before[CONTEXT];
    static char json[TEXT + 2];
    size_t n = 0, had = 0, common = 0;
    esp_status s;

    snprintf(json, sizeof json, "%s]", messages);
    s = esp_tokenize_chat(model, json, NULL, now, CONTEXT, &n, err);
    if (s == ESP_OK)
        s = esp_seq_tokens(seq, before, CONTEXT, &had, err);
    if (s != ESP_OK)
        return s;
    if (n > CONTEXT)
        n = CONTEXT; /* append will refuse what does not fit */
    while (common < had && common + 1 < n && now[common] == before[common])
        common++;
    s = esp_seq_rewind(seq, common, err);
    return s == ESP_OK ? esp_seq_append(seq, now + common, n - common, err) : s;
}

/* Generate, print, and keep the answer. */
static esp_status answer(const esp_model *model, esp_engine *engine, esp_seq *seq, esp_error *err)
{
    static char text[8192];
    esp_event event = {0};
    size_t len = 0, n;
    esp_status s = esp_seq_generate(seq, 200, err);

    while (s == ESP_OK && event.finish == ESP_FINISH_NONE) {
        s = esp_engine_step(engine, &event, 1, &n, err);
        if (s == ESP_OK && n == 1 && event.token >= 0 &&
            esp_token_bytes(model, event.token, text + len, sizeof text - 1 - len, &n, NULL) == ESP_OK &&
            n < sizeof text - 1 - len)
            len += n;
    }
    text[len] = 0;
    if (s == ESP_OK)
        printf("%s\n", text);
    if (s == ESP_OK && !add_message("assistant", text))
        fprintf(stderr, "the conversation is full\n");
    return s == ESP_OK ? esp_seq_snapshot(seq, err) : s;
}

int main(int argc, char **argv)
{
    esp_model *model = NULL;
    esp_engine *engine = NULL;
    esp_seq *seq = NULL;
    esp_engine_opts eo = {0};
    esp_error err = {0};
    char line[4096];
    esp_status s;

    if (argc != 2)
        return fprintf(stderr, "usage: chat MODEL\n"), 2;
    eo.context = CONTEXT;
    s = esp_model_open(&model, argv[1], NULL, &err);
    if (s == ESP_OK)
        s = esp_engine_open(&engine, model, &eo, &err);
    if (s == ESP_OK)
        s = esp_seq_open(&seq, engine, NULL, &err);
    while (s == ESP_OK && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!add_message("user", line))
            break;
        s = set_prompt(model, seq, &err);
        if (s == ESP_OK)
            s = answer(model, engine, seq, &err);
    }
    if (s != ESP_OK)
        fprintf(stderr, "%s\n", err.message);
    esp_seq_close(seq);
    if (engine)
        esp_engine_close(engine);
    if (model)
        esp_model_close(model);
    return s != ESP_OK;
}
