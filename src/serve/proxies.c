/*
 * See the header. Each proxy adds the address that it saw at the end, so the list is read from there.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/proxies.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
static const uint8_t on_file[16] = "unix"; /* 756e:6978:: is nobody's: outside of what is handed out */

static bool read_address(uint8_t out[16], const char *text)
{
    if (strcmp(text, "unix") == 0) {
        memcpy(out, on_file, 16);
        return true;
    }
    memcpy(out, mapped, 12);
    return inet_pton(AF_INET, text, out + 12) == 1 || inet_pton(AF_INET6, text, out) == 1;
}

static bool read_bits(unsigned *out, const char *text, unsigned most)
{
    char *end;
    const unsigned long n = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end || n > most)
        return false;
    *out = (unsigned)n;
    return true;
}

esp_status esp_cidr_parse(struct esp_cidr *out, const char *text, esp_error *err)
{
    const char *slash = strchr(text, '/');
    const size_t len = slash ? (size_t)(slash - text) : strlen(text);
    char address[64];
    struct esp_cidr c = {.bits = 128};
    bool ok = len < sizeof address;

    if (ok) {
        memcpy(address, text, len);
        address[len] = '\0';
        ok = read_address(c.address, address);
    }
    if (ok && slash) {
        const bool v4 = !strchr(address, ':');

        ok = strcmp(address, "unix") != 0 && read_bits(&c.bits, slash + 1, v4 ? 32 : 128);
        c.bits += v4 ? 96 : 0;
    }
    if (!ok)
        return esp_fail(
            err, ESP_EINVAL,
            "trusted proxy '%.100s'; an address, a block such as 10.0.0.0/8 or fd00::/8, or unix is "
            "accepted",
            text);
    *out = c;
    return ESP_OK;
}

static bool has(const struct esp_cidr *c, const uint8_t address[16])
{
    const unsigned whole = c->bits / 8, rest = c->bits % 8;

    return memcmp(c->address, address, whole) == 0 &&
           (rest == 0 || ((c->address[whole] ^ address[whole]) >> (8 - rest)) == 0);
}

bool esp_cidr_has(const struct esp_cidr *list, size_t n, const char *address)
{
    uint8_t a[16];

    if (!read_address(a, address))
        return false;
    for (size_t i = 0; i < n; i++)
        if (has(&list[i], a))
            return true;
    return false;
}

/* The last address of text[0..len) without the space, port and brackets around it; false: there is none. */
static bool last_address(char out[64], const char *text, size_t *len)
{
    size_t end = *len, from, n;

    while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t'))
        end--;
    for (from = end; from > 0 && text[from - 1] != ',';)
        from--;
    *len = from ? from - 1 : 0;
    while (from < end && (text[from] == ' ' || text[from] == '\t'))
        from++;
    n = end - from;
    if (n == 0 || n >= 64)
        return false;
    memcpy(out, text + from, n);
    out[n] = '\0';
    if (out[0] == '[') { /* [v6] or [v6]:port */
        memmove(out, out + 1, n);
        out[strcspn(out, "]")] = '\0';
    } else if (strchr(out, '.') && strchr(out, ':') == strrchr(out, ':')) { /* v4:port */
        out[strcspn(out, ":")] = '\0';
    }
    return strcmp(out, "unix") != 0;
}

void esp_client_address(char *out, size_t cap, const struct esp_cidr *list, size_t n, const char *peer,
                        const char *forwarded)
{
    size_t len = forwarded ? strlen(forwarded) : 0;
    char one[64];
    uint8_t bytes[16];

    snprintf(out, cap, "%s", peer);
    while (len > 0 && esp_cidr_has(list, n, out)) {
        if (!last_address(one, forwarded, &len) || !read_address(bytes, one))
            return;
        snprintf(out, cap, "%s", one);
    }
}
