/*
 * See the header. Threads inherit the set of the thread that starts them, so it is set once, before there are
 * any; counts of cores follow it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/cpu_mask.h"

#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

/* A decimal number below CPU_SETSIZE at *s; -1: there is none. */
static int number(const char **s)
{
    int n = -1;

    for (; isdigit((unsigned char)**s) && n < CPU_SETSIZE; (*s)++)
        n = (n < 0 ? 0 : n * 10) + (**s - '0');
    return n < CPU_SETSIZE ? n : -1;
}

static bool read_list(cpu_set_t *set, const char *s)
{
    for (;;) {
        const int first = number(&s);
        int last = first;

        if (*s == '-') {
            s++;
            last = number(&s);
        }
        if (first < 0 || last < first)
            return false;
        for (int i = first; i <= last; i++)
            CPU_SET((size_t)i, set);
        if (*s == '\0')
            return true;
        if (*s++ != ',')
            return false;
    }
}

/* Hexadecimal digits; the last one has processors 0 to 3. */
static bool read_bits(cpu_set_t *set, const char *s)
{
    const size_t len = strlen(s);

    if (len == 0 || len > CPU_SETSIZE / 4)
        return false;
    for (size_t i = 0; i < len; i++) {
        const char c = (char)tolower((unsigned char)s[len - 1 - i]);

        if (!isxdigit((unsigned char)c))
            return false;
        for (unsigned bit = 0; bit < 4; bit++)
            if ((unsigned)(isdigit((unsigned char)c) ? c - '0' : c - 'a' + 10) >> bit & 1)
                CPU_SET(4 * i + bit, set);
    }
    return true;
}

esp_status esp_cpu_mask_set(const char *text, esp_error *err)
{
    const bool bits = strncmp(text, "0x", 2) == 0 || strncmp(text, "0X", 2) == 0;
    cpu_set_t set, allowed;

    CPU_ZERO(&set);
    CPU_ZERO(&allowed);
    if (!(bits ? read_bits(&set, text + 2) : read_list(&set, text)) || CPU_COUNT(&set) == 0)
        return esp_fail(err, ESP_EINVAL,
                        "--cpu-mask: '%.200s' names no processors; a list such as 0-3,8 or bits such as 0xff "
                        "are accepted",
                        text);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return esp_fail(err, ESP_EIO, "--cpu-mask: the system does not say which processors there are: %s",
                        strerror(errno));
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set) && !CPU_ISSET(i, &allowed))
            return esp_fail(err, ESP_EINVAL, "--cpu-mask %.200s: this process may not run on processor %zu",
                            text, i);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return esp_fail(err, ESP_EIO, "--cpu-mask %.200s: %s", text, strerror(errno));
    return ESP_OK;
}
