/*
 * The prefix cache of an engine: which positions get a checkpoint, what a sequence takes over from earlier
 * texts, and the tier of files below. All of it changes time and never tokens; whatever fails here (memory,
 * files) is a miss. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_CACHE_H
#define ESP_ENGINE_CACHE_H

#include "engine/engine.h"
#include "state/prefix.h"
#include "state/snapshot.h"

struct esp_disk; /* below */

struct esp_cache {
    struct esp_prefix *tree;
    struct esp_disk *disk; /* NULL: none */
    struct esp_cache_identity id;
    uint64_t hits, hit_tokens, miss_new, miss_checkpoint, saved, restored, failed;
    uint32_t *pages; /* scratch of a restore: those of one sequence */
};

void esp_cache_identify(const struct esp_engine *g, struct esp_cache_identity *out);
/* Namespace of a sequence with these options: the engine's, and what else its states depend on. adapters: key
 * of their revisions and scales, 0 without. Digests of media would be mixed in here. */
uint64_t esp_cache_namespace(const struct esp_cache_identity *id, const esp_seq_opts *o, uint64_t adapters);

/* g->cache as the options ask; NULL when they ask for none. */
esp_status esp_cache_open(struct esp_engine *g, esp_error *err);
/* Saves what has no file yet. */
void esp_cache_close(struct esp_engine *g);

/* Take over the longest cached part of s's text when it is more than s has itself; fill
 * s->usage.cached_tokens and s->junction. */
void esp_cache_lookup(struct esp_seq *s);
/* Whether a running sequence is about to reach a checkpoint that s could use, far beyond what it can use now.
 */
bool esp_cache_worth_waiting(const struct esp_seq *s);
/* First position behind `at` where s should keep a checkpoint; UINT32_MAX: none. */
uint32_t esp_cache_next(const struct esp_seq *s, uint32_t at);
/* Keep the present state of s. */
void esp_cache_store(struct esp_seq *s);
/* Give something back; false when there is nothing. */
bool esp_cache_evict(struct esp_engine *g, enum esp_prefix_want what);
/* Take n_page pages and, for models with recurrent layers, a slot (else ESP_NO_SLOT), from the cache if need
 * be. */
bool esp_cache_take(struct esp_engine *g, uint32_t n_page, uint32_t *pages, uint32_t *slot);
/* Save one text that has no file; false when there is none. */
bool esp_cache_save_one(struct esp_engine *g);
void esp_cache_stats(const struct esp_engine *g, esp_stats *out);

/* ---- disk.c: the tier of files ---- */

/*
 * Files in dir/NAMESPACE of the engine, in hexadecimal. Headers are read now; damaged files go to
 * quarantine/, half-written ones are removed, foreign ones stay as they are. ESP_EIO when the folder cannot
 * be made or read.
 */
esp_status esp_disk_open(struct esp_disk **out, const char *dir, uint64_t max_bytes,
                         const struct esp_cache_identity *id, struct esp_state_pools *pools, esp_error *err);
void esp_disk_close(struct esp_disk *d);
/* Write one text; older files that it contains go, then the oldest until all fit. */
esp_status esp_disk_save(struct esp_disk *d, const struct esp_prefix_path *path, esp_error *err);
/* Deepest checkpoint in a file at or before limit on this text; 0: none. */
uint32_t esp_disk_find(const struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t limit);
/*
 * Read the checkpoint at position `at`, which esp_disk_find() reported, into pages (covering its positions)
 * and slot, all taken by the caller; *to->base is the state's. Every byte of the file is checked first; a
 * damaged file goes to quarantine and is an error.
 */
struct esp_disk_place {
    const uint32_t *pages;
    uint32_t slot;
    uint32_t *base;
};
esp_status esp_disk_restore(struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t at,
                            const struct esp_disk_place *to, esp_error *err);
/* Visit every file's text. bytes: of the file; used: its time. */
struct esp_disk_text {
    uint64_t ns;
    const int32_t *tokens; /* [n] */
    uint32_t n;
    const uint32_t *checkpoints; /* [n_checkpoint] positions */
    uint32_t n_checkpoint;
    uint64_t bytes;
    int64_t used; /* seconds since 1970 */
};
void esp_disk_each(const struct esp_disk *d, void (*fn)(void *user, const struct esp_disk_text *),
                   void *user);
/* Remove the file of exactly this text; false when there is none. */
bool esp_disk_drop(struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t n);
uint64_t esp_disk_bytes(const struct esp_disk *d);

#endif
