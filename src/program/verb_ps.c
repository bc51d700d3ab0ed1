/*
 * ps and stop: the servers that run on this machine, and ending one in order.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/output.h"
#include "program/running.h"

static const char *text_of(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));

    return s ? s : "?";
}

int esp_verb_ps(const struct esp_options *o)
{
    json_t *list = esp_running_list(), *v;
    char size[32];
    size_t i;

    (void)o;
    if (esp_out_is_json()) {
        esp_out_json(json_pack("{s:o}", "servers", list));
        return 0;
    }
    json_array_foreach(list, i, v)
    {
        esp_out_printf("%-8lld %-28s %-24s %4lld rows  %s\n",
                       (long long)json_integer_value(json_object_get(v, "pid")), text_of(v, "url"),
                       text_of(v, "model"), (long long)json_integer_value(json_object_get(v, "rows")),
                       esp_format_bytes(size, sizeof size,
                                        (double)json_integer_value(json_object_get(v, "memory_bytes"))));
    }
    if (json_array_size(list) == 0)
        esp_say_info("no server is running");
    json_decref(list);
    return 0;
}

/* Whether the word means this server: its pid, URL, port or model. */
static bool means(const json_t *v, const char *word)
{
    char pid[32];
    const char *url = text_of(v, "url"), *port = strrchr(url, ':');

    snprintf(pid, sizeof pid, "%lld", (long long)json_integer_value(json_object_get(v, "pid")));
    return strcmp(word, pid) == 0 || strcmp(word, url) == 0 || strcmp(word, text_of(v, "model")) == 0 ||
           (port && strcmp(word, port + 1) == 0);
}

/* Wait until it is gone; false after the time. */
static bool wait_for(long pid, double seconds)
{
    const double until = esp_now() + seconds;

    while (kill((pid_t)pid, 0) == 0 || errno == EPERM) {
        if (esp_now() > until || esp_interrupted())
            return false;
        usleep(50000);
    }
    return true;
}

static int stop_one(const json_t *v, double seconds)
{
    const long pid = (long)json_integer_value(json_object_get(v, "pid"));

    if (kill((pid_t)pid, SIGTERM) != 0)
        return esp_report_as(ESP_EXIT_FAILURE, "i/o", "process %ld: %s", pid, strerror(errno));
    if (!wait_for(pid, seconds))
        return esp_report_as(ESP_EXIT_FAILURE, "state", "process %ld still ends its running answers", pid);
    if (esp_out_is_json())
        esp_out_json(json_pack("{s:I,s:s}", "stopped", (json_int_t)pid, "url", text_of(v, "url")));
    else
        esp_say_info("stopped %s at %s", text_of(v, "model"), text_of(v, "url"));
    return 0;
}

int esp_verb_stop(const struct esp_options *o)
{
    const char *word = o->n_args ? o->args[0] : NULL;
    json_t *list = esp_running_list(), *v, *found = NULL;
    size_t i, n = 0;
    int code;

    json_array_foreach(list, i, v)
    {
        if (word && !means(v, word))
            continue;
        found = v;
        n++;
    }
    if (n == 1)
        code = stop_one(found, o->v[OPT_WAIT].f);
    else if (n == 0)
        code = esp_report_as(ESP_EXIT_NOT_FOUND, "not found",
                             word ? "no server of this user is '%s' by process id, address, port or model; "
                                    "'espalier ps' lists them"
                                  : "no server of this user is running",
                             word);
    else
        code = esp_report_as(ESP_EXIT_NOT_FOUND, "not found",
                             "%zu servers match; name one by its process id, 'espalier ps' lists them", n);
    json_decref(list);
    return code;
}
