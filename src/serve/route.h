/*
 * The table of routes. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_ROUTE_H
#define ESP_SERVE_ROUTE_H

#include "serve/server.h"

enum esp_route_flags {
    ESP_ROUTE_PUBLIC = 1, /* no key */
    ESP_ROUTE_ADMIN = 2,
    ESP_ROUTE_EARLY = 4,  /* answered while loading and draining */
    ESP_ROUTE_BODY = 8,   /* the body is parsed as an object first */
    ESP_ROUTE_TEXT = 16,  /* only when the model has been loaded */
    ESP_ROUTE_ASLEEP = 32 /* answered also while it is away, and does not wake it */
};

struct esp_route {
    const char *method;
    const char *path; /* "*" is one segment, "**" the rest; both become params */
    void (*handle)(struct esp_call *c);
    unsigned flags;
    const char *about; /* one line, for GET /v1; NULL: an alias */
};

/* The route, with params filled; NULL with *allow ("" when the path is unknown) otherwise. *family is set by
 * the path. */
const struct esp_route *esp_route_find(const char *method, const char *path,
                                       char params[ESP_CALL_PARAMS][ESP_CALL_PARAM], char allow[64],
                                       enum esp_family *family);
const struct esp_route *esp_route_at(size_t i); /* NULL at the end */
int esp_route_index(const struct esp_route *r); /* -1 for NULL */

/* Handlers, by the file they are in. */
void esp_chat_completions(struct esp_call *c); /* api_chat.c */
void esp_completions(struct esp_call *c);      /* api_completions.c */
void esp_messages(struct esp_call *c);         /* api_messages.c */
void esp_count_tokens(struct esp_call *c);
void esp_responses(struct esp_call *c); /* api_responses.c */
void esp_response_tokens(struct esp_call *c);
void esp_get_response(struct esp_call *c);
void esp_get_response_items(struct esp_call *c);
void esp_delete_response(struct esp_call *c);
void esp_cancel_response(struct esp_call *c);
void esp_get_adapters(struct esp_call *c); /* adapters.c */
void esp_post_adapters(struct esp_call *c);
void esp_delete_adapter(struct esp_call *c);
void esp_get_available(struct esp_call *c);
void esp_load_lora(struct esp_call *c);
void esp_unload_lora(struct esp_call *c);
void esp_get_cache(struct esp_call *c); /* api_cache.c */
void esp_post_cache_prewarm(struct esp_call *c);
void esp_post_cache_save(struct esp_call *c);
void esp_post_cache_load(struct esp_call *c);
void esp_post_cache_flush(struct esp_call *c);
void esp_delete_cache(struct esp_call *c);
void esp_post_slot(struct esp_call *c);
void esp_admin_drain(struct esp_call *c); /* api_admin.c */
void esp_admin_sleep(struct esp_call *c);
void esp_admin_wake(struct esp_call *c);
void esp_admin_reload_keys(struct esp_call *c);
void esp_admin_log_level(struct esp_call *c);
void esp_get_fit(struct esp_call *c);
void esp_get_health(struct esp_call *c); /* api_info.c */
void esp_get_root(struct esp_call *c);
void esp_get_version(struct esp_call *c);
void esp_get_index(struct esp_call *c);
void esp_get_models(struct esp_call *c);
void esp_get_model(struct esp_call *c);
void esp_get_props(struct esp_call *c);
void esp_get_slots(struct esp_call *c);
void esp_get_stats(struct esp_call *c);
void esp_get_metrics(struct esp_call *c);
void esp_post_cancel(struct esp_call *c);
void esp_post_embeddings(struct esp_call *c);
void esp_post_later(struct esp_call *c);
void esp_tokenize_route(struct esp_call *c); /* api_text.c */
void esp_detokenize_route(struct esp_call *c);
void esp_apply_template(struct esp_call *c);
void esp_input_tokens(struct esp_call *c);

#endif
