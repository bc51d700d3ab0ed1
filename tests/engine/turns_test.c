/*
 * Conversations through the chat template on the bundled model, as a server runs them: every turn is a new
 * sequence with the whole conversation as its prompt and marks at the ends of messages. What can be reused
 * is the common beginning with the turn before; of it 95 % must be, in long and short turns, and in a new
 * process over the files of the first one. After an edit what stands before it is reused up to the last
 * checkpoint. Answers are those of an engine without a cache.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "espalier/espalier.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TURNS = 5 };
#else
enum { TURNS = 20 };
#endif
enum { N_NEW = 12, CONTEXT = 4096, WORDS = 92, MAX_MARKS = 2 * TURNS + 8 };

static esp_model *model;
static const char *program;

struct talk {
    json_t *messages;
    size_t marks[MAX_MARKS], n_mark; /* ends of messages, in tokens */
    esp_token text[CONTEXT];         /* of the turn before, with its answer */
    size_t n_text;
    char answer[1024];
    /* of the last turn */
    size_t n_prompt, cached, possible;
};

static esp_engine *open_engine(const char *dir, uint32_t checkpoints, uint32_t per_path)
{
    esp_engine_opts o = {.context = CONTEXT,
                         .max_seqs = 1,
                         .kv_tokens = 3 * CONTEXT,
                         .checkpoints = checkpoints,
                         .checkpoints_per_path = per_path,
                         .cache_dir = dir};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

/* The first n messages as the model reads them; open: with the beginning of an answer. */
static size_t render(const struct talk *t, size_t n, bool open, esp_token *out)
{
    const esp_chat_opts opts = {.no_generation_prompt = !open};
    json_t *part = json_array();
    char *text;
    size_t len;
    esp_error err;

    for (size_t i = 0; i < n; i++)
        json_array_append(part, json_array_get(t->messages, i));
    text = json_dumps(part, JSON_COMPACT);
    test_ok(esp_tokenize_chat(model, text, &opts, out, CONTEXT, &len, &err), &err);
    assert_true(len < CONTEXT - N_NEW);
    free(text);
    json_decref(part);
    return len;
}

static void say(struct talk *t, const char *role, const char *text)
{
    json_array_append_new(t->messages, json_pack("{s:s,s:s}", "role", role, "content", text));
}

/* What a user says: many words or few, others in every turn. */
static void ask(struct talk *t, int turn)
{
    static const char *const words[] = {"river",   "stone", "candle", "garden", "winter", "house",
                                        "letter",  "road",  "window", "ship",   "forest", "silver",
                                        "morning", "book",  "horse",  "fire"};
    const int n = turn % 4 == 3 ? 2 : WORDS;
    char text[2048] = "Repeat:";
    size_t len = strlen(text);

    for (int i = 0; i < n; i++)
        len +=
            (size_t)snprintf(text + len, sizeof text - len, " %s", words[(turn * 5 + i * (turn + 3)) % 16]);
    say(t, "user", text);
}

static void mark(struct talk *t, size_t at)
{
    if (t->n_mark && t->marks[t->n_mark - 1] >= at)
        return;
    assert_true(t->n_mark < MAX_MARKS);
    t->marks[t->n_mark++] = at;
}

static void answer(struct talk *t, esp_engine *g, esp_seq *s)
{
    size_t len = 0;
    bool done = false;
    esp_error err;

    test_ok(esp_seq_generate(s, N_NEW, &err), &err);
    while (!done) {
        esp_event e[4];
        size_t n;

        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            size_t k;

            assert_int_not_equal(e[i].finish, ESP_FINISH_FAILED);
            done |= e[i].finish != ESP_FINISH_NONE;
            if (e[i].token < 0)
                continue;
            t->text[t->n_text++] = e[i].token;
            test_ok(esp_token_bytes(model, e[i].token, t->answer + len, sizeof t->answer - len - 1, &k, &err),
                    &err);
            len += k;
        }
    }
    t->answer[len] = 0;
}

/* Let the model answer what the messages end with. */
static void turn(struct talk *t, esp_engine *g)
{
    static esp_token ids[CONTEXT];
    const size_t n_message = json_array_size(t->messages);
    size_t n = render(t, n_message, true, ids);
    esp_usage u;
    esp_error err;
    esp_seq *s;

    if (n_message > 1)
        mark(t, render(t, n_message - 1, false, t->text + t->n_text));
    mark(t, render(t, n_message, false, t->text + t->n_text));
    for (t->possible = 0; t->possible < n - 1 && t->possible < t->n_text;)
        if (ids[t->possible] != t->text[t->possible])
            break;
        else
            t->possible++;
    memcpy(t->text, ids, n * sizeof *ids);
    t->n_text = t->n_prompt = n;
    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    test_ok(esp_seq_append(s, ids, n, &err), &err);
    test_ok(esp_seq_set_marks(s, t->marks, t->n_mark, &err), &err);
    answer(t, g, s);
    esp_seq_usage(s, &u);
    t->cached = u.cached_tokens;
    esp_seq_close(s);
}

/* The same turn without a cache gives the same answer. */
static void check_cold(const struct talk *t)
{
    static struct talk cold;
    esp_engine *g = open_engine(NULL, 0, 0);

    cold = (struct talk){.messages = t->messages};
    turn(&cold, g);
    assert_int_equal(cold.cached, 0);
    assert_string_equal(cold.answer, t->answer);
    esp_engine_close(g);
}

/* Replace what the user said in turn k, and drop all behind it. */
static void edit(struct talk *t, size_t k)
{
    while (json_array_size(t->messages) > 2 * k)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    while (t->n_mark > 2 * k)
        t->n_mark--;
    say(t, "user", "Spell: garden");
}

static size_t last_mark(const struct talk *t, size_t at)
{
    size_t best = 0;

    for (size_t i = 0; i < t->n_mark; i++)
        best = t->marks[i] <= at ? t->marks[i] : best;
    return best;
}

static size_t run_turns(struct talk *t, esp_engine *g, int turns)
{
    size_t cached = 0, possible = 0;

    for (int i = 0; i < turns; i++) {
        ask(t, i);
        turn(t, g);
        say(t, "assistant", t->answer);
        if (i) {
            cached += t->cached;
            possible += t->possible;
            if (t->cached * 100 < t->possible * 90) /* the short ones, too */
                fail_msg("turn %d: %zu of %zu tokens", i, t->cached, t->possible);
        }
    }
    assert_true(t->n_prompt > (size_t)turns * 80);
    if (cached * 100 < possible * 95)
        fail_msg("%zu of %zu tokens were reused", cached, possible);
    return cached;
}

/* What the second process does: one turn more, then an edit in the middle. Its numbers go to the first. */
static int second_process(const char *dir)
{
    static struct talk t;
    char path[512];
    esp_engine *g = open_engine(dir, 32, 0);

    snprintf(path, sizeof path, "%.400s/talk.json", dir);
    test_ok(esp_json_load(&t.messages, path, 1 << 20, 0, NULL), NULL);
    t.n_text = render(&t, json_array_size(t.messages), false, t.text); /* all that the files can hold */
    ask(&t, TURNS);
    turn(&t, g);
    printf("%zu %zu ", t.cached, t.possible);
    say(&t, "assistant", t.answer);
    edit(&t, TURNS / 2);
    turn(&t, g);
    check_cold(&t);
    printf("%zu %zu\n", t.cached, t.possible);
    esp_engine_close(g);
    json_decref(t.messages);
    return 0;
}

static void restart(const struct talk *t, const char *dir)
{
    char path[512], line[1400];
    size_t got[4];
    FILE *f;

    snprintf(path, sizeof path, "%.400s/talk.json", dir);
    assert_int_equal(json_dump_file(t->messages, path, 0), 0);
    snprintf(line, sizeof line, "'%.500s' again '%.400s'", program, dir);
    f = popen(line, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_int_equal(pclose(f), 0);
    for (int i = 0; i < 4; i++) {
        char *at = i ? strchr(line, ' ') : line;

        got[i] = strtoul(at, &at, 10);
        memmove(line, at, strlen(at) + 1);
    }
    if (got[0] * 100 < got[1] * 95)
        fail_msg("a new process: %zu of %zu tokens", got[0], got[1]);
    assert_true(got[2] <= got[3] && got[2] > 0);
    if (got[3] - got[2] > 400) /* 16 checkpoints on a text of 2500 tokens */
        fail_msg("a new process after an edit: %zu of %zu tokens", got[2], got[3]);
}

static void test_conversation(void **state)
{
    static struct talk t;
    const char *dir = test_tmpdir();
    esp_engine *g = open_engine(dir, 32, 0);
    esp_stats st;

    (void)state;
    t.messages = json_array();
    run_turns(&t, g, TURNS);
    json_array_remove(t.messages, json_array_size(t.messages) - 1);
    check_cold(&t);
    say(&t, "assistant", t.answer);
    esp_engine_stats(g, &st);
    assert_true(st.cache_hits >= TURNS - 1);
    esp_engine_close(g); /* writes the files */
    restart(&t, dir);
    json_decref(t.messages);
}

/* With room for every checkpoint an edit goes back to the very end of the message before it. */
static void test_edit(void **state)
{
    static struct talk t;
    esp_engine *g = open_engine(NULL, 40, 40);

    (void)state;
    t.messages = json_array();
    run_turns(&t, g, TURNS < 8 ? TURNS : 8);
    for (size_t k = 4; k > 0; k--) {
        edit(&t, k);
        turn(&t, g);
        assert_true(t.possible > last_mark(&t, t.possible));
        assert_int_equal(t.cached, last_mark(&t, t.possible));
        check_cold(&t);
        say(&t, "assistant", t.answer);
    }
    esp_engine_close(g);
    json_decref(t.messages);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversation), cmocka_unit_test(test_edit)};
    esp_error err;
    int failed;

    program = argv[0];
    if (esp_model_open(&model, test_path("models/demo"), &(esp_model_opts){.threads = 2}, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    failed = argc == 3 ? second_process(argv[2]) : cmocka_run_group_tests(tests, NULL, NULL);
    esp_model_close(model);
    return failed;
}
