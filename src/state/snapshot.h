/*
 * State files: the tokens of a text, the keys and values of every attention layer cut to what ran, and the
 * recurrent states of its checkpoints. One form serves saved sequences and the prefix cache's disk tier.
 * Every offset follows from the counts, so the header states counts and hashes and a reader accepts one
 * placing only: a file with any byte changed, cut or added is refused. doc/engine.md describes the bytes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_STATE_SNAPSHOT_H
#define ESP_STATE_SNAPSHOT_H

#include "state/prefix.h"

/* What a file must have been made with: the key decides, about says it to people (one line). */
struct esp_snapshot_key {
    uint64_t ns;
    const char *about;
};

/*
 * Write text (n = 0 and no checkpoints are fine) and all n_token >= text->n tokens to path: into path.tmp,
 * synced, renamed, folder synced, so path is whole or as before. *bytes is its size. Errors: ESP_EIO,
 * ESP_ENOMEM, ESP_EUNSUPPORTED (device memory that the host cannot read).
 */
struct esp_snapshot_text {
    const struct esp_prefix_path *path;
    const int32_t *tokens; /* [n_token]; the first path->n are path->tokens */
    uint32_t n_token;
};
esp_status esp_snapshot_write(const char *path, const struct esp_state_pools *p,
                              const struct esp_snapshot_key *key, const struct esp_snapshot_text *text,
                              uint64_t *bytes, esp_error *err);

struct esp_snapshot;

/*
 * Open path: header, sizes and tokens are checked, keys and states not yet. ESP_EFORMAT: damaged, saying
 * what; ESP_EINVAL: made with another model or setting, saying both; ESP_ENOTFOUND, ESP_EIO, ESP_ENOMEM.
 */
esp_status esp_snapshot_open(struct esp_snapshot **out, const char *path, const struct esp_layout *layout,
                             const struct esp_snapshot_key *key, esp_error *err);
void esp_snapshot_close(struct esp_snapshot *f); /* NULL is a no-op */

struct esp_snapshot_info {
    const int32_t *tokens; /* [n_token] */
    uint32_t n_token;
    uint32_t n;                                      /* of them covered by keys and values */
    const struct esp_prefix_checkpoint *checkpoints; /* [n_checkpoint], ascending; slots are ESP_NO_SLOT */
    uint32_t n_checkpoint;
    uint64_t bytes;
};
void esp_snapshot_describe(const struct esp_snapshot *f, struct esp_snapshot_info *out);
/* Check every byte that open() has not. ESP_EFORMAT names the part. */
esp_status esp_snapshot_verify(const struct esp_snapshot *f, esp_error *err);
/*
 * Copy checkpoint number c into pages (covering its n positions, owned alone) and slot (ditto; ESP_NO_SLOT
 * without recurrent layers). ESP_EUNSUPPORTED as for write.
 */
esp_status esp_snapshot_fill(const struct esp_snapshot *f, struct esp_state_pools *p, uint32_t c,
                             const uint32_t *pages, uint32_t slot, esp_error *err);

#endif
