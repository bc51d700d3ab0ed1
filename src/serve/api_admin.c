/*
 * What an administrator may tell the server: end in order, read the keys again, log more or less.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/keys.h"
#include "serve/life.h"
#include "serve/route.h"

void esp_admin_drain(struct esp_call *c)
{
    c->s->asked_to_end = true; /* with the next turn of the clock: this answer goes out first */
    esp_reply_json(c, 202, json_pack("{s:s}", "status", "draining"));
}

void esp_admin_sleep(struct esp_call *c)
{
    if (!esp_life_ask_sleep(c->s))
        esp_api_fail(&c->e, "not_implemented", NULL, "this server cannot load its model again");
    else if (c->s->life.asked) /* with the turn of the clock at which nothing runs */
        esp_reply_json(c, 202, json_pack("{s:s}", "status", "falling asleep"));
    else
        esp_reply_json(c, 200, json_pack("{s:s}", "status", "sleeping"));
}

void esp_admin_wake(struct esp_call *c)
{
    esp_life_wake(c->s);
    esp_life_touch(c->s);
    if (esp_life_asleep(c->s))
        esp_reply_json(c, 202, json_pack("{s:s}", "status", "waking"));
    else
        esp_reply_json(c, 200, json_pack("{s:s}", "status", "awake"));
}

void esp_admin_reload_keys(struct esp_call *c)
{
    esp_error err;

    if (esp_server_reload_keys(c->s, &err) == ESP_OK) {
        esp_reply_json(c, 200, json_pack("{s:b}", "reloaded", 1));
        return;
    }
    esp_hide_path(&err, c->s->o.api_key_file);
    esp_api_fail(&c->e, "invalid_value", NULL, "the keys stay as they were: %s", err.message);
}

void esp_admin_log_level(struct esp_call *c)
{
    static const char *const words[] = {"error", "warning", "info"};
    struct esp_fields f;
    int level = 0;

    esp_fields_init(&f, c->body, "", &c->e);
    if (!esp_field_word(&f, "level", "error|warning|info", &level) && !c->e.http)
        esp_api_fail(&c->e, "missing_field", "level", "level: error, warning or info");
    if (c->e.http)
        return;
    c->s->log_level = (enum esp_log_amount)level;
    esp_reply_json(c, 200, json_pack("{s:s}", "level", words[level]));
}

void esp_get_fit(struct esp_call *c)
{
    json_t *v = c->s->o.fit ? c->s->o.fit(c->s->o.user) : NULL;

    if (v)
        esp_reply_json(c, 200, v);
    else
        esp_api_fail(&c->e, "not_implemented", NULL, "this program keeps no account of its memory");
}
