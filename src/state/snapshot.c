/*
 * Reading and writing state files. The placing of every part is computed by one function from counts alone;
 * writer and reader share it, and hashes run over the same pieces of memory in the same order on both sides.
 *
 * SPDX-License-Identifier: MIT
 */
#include "state/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strbuf.h"

#define ALIGN 4096u

static const char magic[8] = "ESPSTAT1";

struct preamble { /* the first bytes of a file, little-endian */
    char magic[8];
    uint32_t header_len, data_start;
    uint64_t header_hash;
};
_Static_assert(sizeof(struct preamble) == 24, "no padding");

/* ---- placing ---- */

/* Parts in file order: tokens, keys and values of each attention layer, the state of each checkpoint. */
struct placing {
    const struct esp_layout *l;
    uint32_t n_token, n, n_checkpoint;
};

static uint32_t n_part(const struct placing *g)
{
    return 1 + g->l->n_attn + (g->l->n_delta ? g->n_checkpoint : 0);
}

/* The first n rows of keys (which 0) or values of one head, as they lie in a file: exact ones, then coded. */
static size_t rows_bytes(const struct esp_layout *l, uint32_t layer, uint32_t which, uint32_t n)
{
    const struct esp_layout_kv *exact = &l->exact[layer], *coded = &l->layers[layer];
    const size_t n_exact = n < l->kv_start ? n : l->kv_start;

    return n_exact * (which ? exact->v_row : exact->k_row) +
           (n - n_exact) * (which ? coded->v_row : coded->k_row);
}

static size_t part_bytes(const struct placing *g, uint32_t part)
{
    if (part == 0)
        return (size_t)g->n_token * sizeof(int32_t);
    if (part <= g->l->n_attn)
        return g->l->n_kv_head * (rows_bytes(g->l, part - 1, 0, g->n) + rows_bytes(g->l, part - 1, 1, g->n));
    return g->l->slot_bytes;
}

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Pieces of a part: what is contiguous both in a file and in memory. */
static uint32_t n_piece(const struct placing *g, uint32_t part)
{
    if (part == 0)
        return 1;
    if (part <= g->l->n_attn)
        return g->l->n_kv_head * 2 * esp_layout_pages(g->l, g->n);
    return g->l->n_delta + (g->l->slot_bytes > g->l->tail_off); /* layers, and what lies behind them */
}

struct piece {
    size_t off, bytes;      /* in the part */
    uint32_t page;          /* attention: number in the text's table */
    size_t memory;          /* offset in that page or in the slot */
    uint32_t first, n_rows; /* attention: positions */
};

static struct piece piece_at(const struct placing *g, uint32_t part, uint32_t i)
{
    const struct esp_layout *l = g->l;
    const struct esp_layout_kv *at;
    uint32_t n_page = esp_layout_pages(l, g->n), plane, end;
    struct piece x = {.bytes = part_bytes(g, part)};

    if (part == 0)
        return x;
    if (part > l->n_attn) {
        x.bytes = i < l->n_delta ? l->slot_layer : l->slot_bytes - l->tail_off;
        x.off = x.memory = i * l->slot_layer;
        return x;
    }
    plane = i / n_page; /* head and K or V */
    x.page = i % n_page;
    at = esp_layout_kv_of(l, part - 1, x.page);
    x.first = (uint32_t)esp_layout_page_first(l, x.page);
    end = (uint32_t)esp_layout_page_first(l, x.page + 1);
    x.n_rows = (end < g->n ? end : g->n) - x.first;
    x.bytes = (size_t)x.n_rows * (plane % 2 ? at->v_row : at->k_row);
    x.off = plane / 2 * (rows_bytes(l, part - 1, 0, g->n) + rows_bytes(l, part - 1, 1, g->n)) +
            (plane % 2 ? rows_bytes(l, part - 1, 0, g->n) : 0) + rows_bytes(l, part - 1, plane % 2, x.first);
    x.memory = esp_layout_plane(at, plane / 2, plane % 2);
    return x;
}

static uint64_t chain(const void *data, size_t len, uint64_t before)
{
    return esp_hash(data, len, before);
}

/* ---- writing ---- */

struct source {
    struct placing g;
    const struct esp_state_pools *p;
    const struct esp_snapshot_text *t;
};

static const void *memory_of(const struct source *s, uint32_t part, const struct piece *x)
{
    const struct esp_pools *m = &s->p->mem;

    if (part == 0)
        return s->t->tokens;
    if (part <= m->layout.n_attn)
        return (const uint8_t *)m->pages->host + s->t->path->pages[x->page] * m->layout.page_bytes +
               x->memory;
    return (const uint8_t *)m->slots->host +
           s->t->path->checkpoints[part - 1 - m->layout.n_attn].slot * m->layout.slot_bytes + x->memory;
}

static uint64_t hash_part(const struct source *s, uint32_t part)
{
    uint64_t h = 0;

    for (uint32_t i = 0; i < n_piece(&s->g, part); i++) {
        struct piece x = piece_at(&s->g, part, i);

        h = chain(memory_of(s, part, &x), x.bytes, h);
    }
    return h;
}

/* Text for a JSON string: quotes, backslashes and controls never occur in what the engine says about itself.
 */
static void add_plain(struct esp_strbuf *b, const char *text)
{
    for (; *text; text++)
        esp_strbuf_putc(b, *text == '"' || *text == '\\' || (unsigned char)*text < 32 ? '?' : *text);
}

static void add_header(struct esp_strbuf *b, const struct source *s, const struct esp_snapshot_key *key)
{
    const struct esp_prefix_path *path = s->t->path;

    esp_strbuf_printf(b, "{\"version\":1,\"namespace\":\"%016" PRIx64 "\",\"about\":\"", key->ns);
    add_plain(b, key->about);
    esp_strbuf_printf(b, "\",\"tokens\":%u,\"coverage\":%u,\"checkpoints\":[", s->g.n_token, s->g.n);
    for (uint32_t i = 0; i < path->n_checkpoint; i++)
        esp_strbuf_printf(b, "%s[%u,%u]", i ? "," : "", path->checkpoints[i].n, path->checkpoints[i].base);
    esp_strbuf_puts(b, "],\"hashes\":[");
    for (uint32_t i = 0; i < n_part(&s->g); i++)
        esp_strbuf_printf(b, "%s\"%016" PRIx64 "\"", i ? "," : "", hash_part(s, i));
    esp_strbuf_puts(b, "]}");
}

static bool pad_to(FILE *f, size_t at, size_t to)
{
    static const char zeros[ALIGN];

    return fwrite(zeros, 1, to - at, f) == to - at;
}

static bool write_parts(FILE *f, const struct source *s, size_t at, uint64_t *bytes)
{
    for (uint32_t part = 0; part < n_part(&s->g); part++) {
        if (!pad_to(f, at, aligned(at)))
            return false;
        at = aligned(at);
        for (uint32_t i = 0; i < n_piece(&s->g, part); i++) {
            struct piece x = piece_at(&s->g, part, i);

            if (fwrite(memory_of(s, part, &x), 1, x.bytes, f) != x.bytes)
                return false;
        }
        at += part_bytes(&s->g, part);
    }
    *bytes = at;
    return true;
}

static bool write_file(const char *tmp, const struct source *s, const struct esp_strbuf *header,
                       uint64_t *bytes)
{
    struct preamble pre = {.header_len = (uint32_t)header->len,
                           .data_start = (uint32_t)aligned(sizeof pre + header->len),
                           .header_hash = esp_hash(header->data, header->len, 0)};
    FILE *f = fopen(tmp, "wb");
    bool ok;

    if (!f)
        return false;
    memcpy(pre.magic, magic, sizeof magic);
    ok = fwrite(&pre, sizeof pre, 1, f) == 1 && fwrite(header->data, 1, header->len, f) == header->len &&
         write_parts(f, s, sizeof pre + header->len, bytes) && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (fclose(f) != 0)
        ok = false;
    return ok;
}

/* Make the rename durable. Some file systems cannot sync folders; the file itself is synced. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? esp_strndup(path, (size_t)(slash - path) + 1) : esp_strndup(".", 1);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    esp_free(dir);
}

static esp_status replace(const char *path, const char *tmp, const struct source *s,
                          const struct esp_strbuf *header, uint64_t *bytes, esp_error *err)
{
    int e;

    errno = 0;
    if (write_file(tmp, s, header, bytes) && rename(tmp, path) == 0) {
        sync_folder(path);
        return ESP_OK;
    }
    e = errno;
    unlink(tmp);
    return esp_fail(err, ESP_EIO, "%s: cannot be written: %s", path, e ? strerror(e) : "write failed");
}

static esp_status host_only(const struct esp_state_pools *p, esp_error *err)
{
    if ((p->mem.layout.n_attn && !p->mem.pages->host) || (p->mem.layout.n_delta && !p->mem.slots->host))
        return esp_fail(err, ESP_EUNSUPPORTED, "state files need memory that the host can read, %s has none",
                        p->dev->name);
    return ESP_OK;
}

esp_status esp_snapshot_write(const char *path, const struct esp_state_pools *p,
                              const struct esp_snapshot_key *key, const struct esp_snapshot_text *text,
                              uint64_t *bytes, esp_error *err)
{
    struct source s = {.g = {.l = &p->mem.layout,
                             .n_token = text->n_token,
                             .n = text->path->n,
                             .n_checkpoint = text->path->n_checkpoint},
                       .p = p,
                       .t = text};
    struct esp_strbuf header, tmp;
    esp_status st;

    ESP_TRY(host_only(p, err));
    esp_strbuf_init(&header, ESP_LIMIT_STATE_HEADER);
    esp_strbuf_init(&tmp, 1u << 16);
    add_header(&header, &s, key);
    esp_strbuf_printf(&tmp, "%s.tmp", path);
    if (header.failed || tmp.failed)
        st = esp_fail(err, ESP_ENOMEM, "%s: no memory for its header", path);
    else
        st = replace(path, esp_strbuf_str(&tmp), &s, &header, bytes, err);
    esp_strbuf_free(&header);
    esp_strbuf_free(&tmp);
    return st;
}

/* ---- reading ---- */

struct esp_snapshot {
    struct esp_map map;
    struct esp_layout layout;
    struct placing g; /* its layout is the one above */
    struct esp_prefix_checkpoint *checkpoints;
    uint64_t *hashes; /* [n_part] */
    size_t data_start;
};

static esp_status damaged(const struct esp_snapshot *f, const char *what, esp_error *err)
{
    return esp_fail(err, ESP_EFORMAT, "%s: damaged state file: %s", f->map.name, what);
}

static bool get_count(const json_t *v, uint32_t max, uint32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return false;
    *out = (uint32_t)json_integer_value(v);
    return true;
}

static bool get_hex(const json_t *v, uint64_t *out)
{
    const char *s = json_string_value(v);

    *out = 0;
    if (!s || strlen(s) != 16)
        return false;
    for (; *s; s++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, *s);

        if (!d)
            return false;
        *out = *out << 4 | (uint64_t)(d - digits);
    }
    return true;
}

static esp_status check_key(const struct esp_snapshot *f, const json_t *root,
                            const struct esp_snapshot_key *key, esp_error *err)
{
    const char *about = json_string_value(json_object_get(root, "about"));
    uint64_t ns;
    uint32_t version;

    if (!get_count(json_object_get(root, "version"), UINT32_MAX, &version) ||
        !get_hex(json_object_get(root, "namespace"), &ns) || !about)
        return damaged(f, "version, namespace or about is missing", err);
    if (version != 1)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: state file of version %u, this build reads 1",
                        f->map.name, version);
    if (ns != key->ns)
        return esp_fail(err, ESP_EINVAL, "%s: made with another model or setting (%s); this engine has %s",
                        f->map.name, about, key->about);
    return ESP_OK;
}

static esp_status read_checkpoints(struct esp_snapshot *f, const json_t *list, esp_error *err)
{
    uint32_t before = 0;

    if (!json_is_array(list) || json_array_size(list) > ESP_LIMIT_STATE_CHECKPOINTS)
        return damaged(f, "no list of checkpoints", err);
    f->g.n_checkpoint = (uint32_t)json_array_size(list);
    f->checkpoints = esp_alloc_array(f->g.n_checkpoint, sizeof *f->checkpoints);
    if (!f->checkpoints)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", f->map.name);
    for (uint32_t i = 0; i < f->g.n_checkpoint; i++) {
        const json_t *pair = json_array_get(list, i);
        struct esp_prefix_checkpoint *c = &f->checkpoints[i];

        if (!get_count(json_array_get(pair, 0), f->g.n, &c->n) ||
            !get_count(json_array_get(pair, 1), c->n, &c->base) || c->n <= before ||
            c->base % ESP_CHUNK != 0 || c->n - c->base > ESP_CHUNK)
            return damaged(f, "a checkpoint that cannot be", err);
        c->slot = ESP_NO_SLOT;
        before = c->n;
    }
    if (before != f->g.n)
        return damaged(f, "the last checkpoint is not at the end", err);
    return ESP_OK;
}

static esp_status read_hashes(struct esp_snapshot *f, const json_t *list, esp_error *err)
{
    uint32_t n = n_part(&f->g);

    if (json_array_size(list) != n)
        return damaged(f, "a wrong number of hashes", err);
    f->hashes = esp_alloc_array(n, sizeof *f->hashes);
    if (!f->hashes)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", f->map.name);
    for (uint32_t i = 0; i < n; i++)
        if (!get_hex(json_array_get(list, i), &f->hashes[i]))
            return damaged(f, "a hash is not 16 hexadecimal digits", err);
    return ESP_OK;
}

/* Offset of a part in the file; of part n_part: the file's size. Counts are below 2^32, layouts below 2^40.
 */
static size_t part_off(const struct esp_snapshot *f, uint32_t part)
{
    size_t at = f->data_start, end = at;

    for (uint32_t i = 0; i < part; i++) {
        end = at + part_bytes(&f->g, i);
        at = aligned(end);
    }
    return part < n_part(&f->g) ? at : end;
}

static esp_status read_header(struct esp_snapshot *f, const json_t *root, const struct esp_snapshot_key *key,
                              esp_error *err)
{
    /* positions of a sequence fit int32 and its bytes the file, so no product below can wrap */
    uint32_t most =
        (uint32_t)(f->map.size / sizeof(int32_t) < INT32_MAX ? f->map.size / sizeof(int32_t) : INT32_MAX);

    ESP_TRY(check_key(f, root, key, err));
    if (!get_count(json_object_get(root, "tokens"), most, &f->g.n_token) ||
        !get_count(json_object_get(root, "coverage"), f->g.n_token, &f->g.n))
        return damaged(f, "counts of tokens are missing or larger than the file", err);
    ESP_TRY(read_checkpoints(f, json_object_get(root, "checkpoints"), err));
    ESP_TRY(read_hashes(f, json_object_get(root, "hashes"), err));
    if (part_off(f, n_part(&f->g)) != f->map.size)
        return esp_fail(err, ESP_EFORMAT, "%s: damaged state file: %zu bytes, its header promises %zu",
                        f->map.name, f->map.size, part_off(f, n_part(&f->g)));
    return ESP_OK;
}

static esp_status check_part(const struct esp_snapshot *f, uint32_t part, esp_error *err)
{
    size_t off = part_off(f, part), end = off + part_bytes(&f->g, part), next = part_off(f, part + 1);
    uint64_t h = 0;

    for (uint32_t i = 0; i < n_piece(&f->g, part); i++) {
        struct piece x = piece_at(&f->g, part, i);

        h = chain(f->map.data + off + x.off, x.bytes, h);
    }
    if (h != f->hashes[part])
        return esp_fail(err, ESP_EFORMAT, "%s: damaged state file: hash of part %u at offset %zu",
                        f->map.name, part, off);
    for (size_t i = end; i < next; i++)
        if (f->map.data[i])
            return esp_fail(err, ESP_EFORMAT, "%s: damaged state file: offset %zu should be zero",
                            f->map.name, i);
    return ESP_OK;
}

static esp_status read_all(struct esp_snapshot *f, const struct esp_snapshot_key *key, esp_error *err)
{
    struct preamble pre;
    const char *text;
    json_t *root;
    esp_status s;

    if (f->map.size < sizeof pre)
        return damaged(f, "shorter than its first line", err);
    memcpy(&pre, f->map.data, sizeof pre);
    text = (const char *)f->map.data + sizeof pre;
    if (memcmp(pre.magic, magic, sizeof magic) != 0)
        return esp_fail(err, ESP_EFORMAT, "%s: not a state file", f->map.name);
    if (pre.header_len > ESP_LIMIT_STATE_HEADER || pre.header_len > f->map.size - sizeof pre)
        return damaged(f, "its header is longer than the file", err);
    if (esp_hash(text, pre.header_len, 0) != pre.header_hash)
        return damaged(f, "hash of the header", err);
    if (pre.data_start != aligned(sizeof pre + pre.header_len) || pre.data_start > f->map.size)
        return damaged(f, "its data start elsewhere", err);
    f->data_start = pre.data_start;
    for (size_t i = sizeof pre + pre.header_len; i < f->data_start; i++)
        if (f->map.data[i])
            return damaged(f, "bytes behind the header", err);
    ESP_TRY(esp_json_parse(&root, text, pre.header_len, f->map.name, ESP_JSON_NO_DUPLICATES, err));
    s = read_header(f, root, key, err);
    json_decref(root);
    ESP_TRY(s);
    return check_part(f, 0, err);
}

esp_status esp_snapshot_open(struct esp_snapshot **out, const char *path, const struct esp_layout *layout,
                             const struct esp_snapshot_key *key, esp_error *err)
{
    struct esp_snapshot *f = esp_alloc(sizeof *f);
    esp_status s;

    if (!f)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
    f->layout = *layout;
    f->g.l = &f->layout;
    s = esp_map_open(&f->map, path, err);
    if (s == ESP_OK)
        s = read_all(f, key, err);
    if (s != ESP_OK) {
        esp_snapshot_close(f);
        return s;
    }
    *out = f;
    return ESP_OK;
}

void esp_snapshot_close(struct esp_snapshot *f)
{
    if (!f)
        return;
    esp_map_close(&f->map);
    esp_free(f->checkpoints);
    esp_free(f->hashes);
    esp_free(f);
}

void esp_snapshot_describe(const struct esp_snapshot *f, struct esp_snapshot_info *out)
{
    *out = (struct esp_snapshot_info){.tokens = (const int32_t *)(const void *)(f->map.data + f->data_start),
                                      .n_token = f->g.n_token,
                                      .n = f->g.n,
                                      .checkpoints = f->checkpoints,
                                      .n_checkpoint = f->g.n_checkpoint,
                                      .bytes = f->map.size};
}

esp_status esp_snapshot_verify(const struct esp_snapshot *f, esp_error *err)
{
    for (uint32_t part = 1; part < n_part(&f->g); part++)
        ESP_TRY(check_part(f, part, err));
    return ESP_OK;
}

static void fill_part(const struct esp_snapshot *f, struct esp_state_pools *p, uint32_t part, uint32_t n,
                      const uint32_t *pages)
{
    const uint8_t *from = f->map.data + part_off(f, part);
    uint8_t *host = p->mem.pages->host;

    for (uint32_t i = 0; i < n_piece(&f->g, part); i++) {
        struct piece x = piece_at(&f->g, part, i);
        uint32_t rows = x.first >= n ? 0 : n - x.first < x.n_rows ? n - x.first : x.n_rows;

        if (rows)
            memcpy(host + pages[x.page] * f->layout.page_bytes + x.memory, from + x.off,
                   rows * (x.bytes / x.n_rows));
    }
}

esp_status esp_snapshot_fill(const struct esp_snapshot *f, struct esp_state_pools *p, uint32_t c,
                             const uint32_t *pages, uint32_t slot, esp_error *err)
{
    uint32_t n_attn = f->layout.n_attn;

    ESP_TRY(host_only(p, err));
    ESP_ASSERT(c < f->g.n_checkpoint);
    for (uint32_t part = 1; part <= n_attn; part++)
        fill_part(f, p, part, f->checkpoints[c].n, pages);
    if (f->layout.n_delta)
        memcpy((uint8_t *)p->mem.slots->host + (size_t)slot * f->layout.slot_bytes,
               f->map.data + part_off(f, 1 + n_attn + c), f->layout.slot_bytes);
    return ESP_OK;
}
