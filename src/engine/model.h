/*
 * What a public model handle holds. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_MODEL_H
#define ESP_ENGINE_MODEL_H

#include "base/huge.h"
#include "base/nodes.h"
#include "espalier/espalier.h"
#include "kernels/kernels.h"
#include "model/net.h"
#include "text/template.h"
#include "text/tokenizer.h"

enum { ESP_MAX_END = ESP_CONFIG_MAX_EOS + 2 };

struct esp_model {
    struct esp_checkpoint *ck; /* NULL for random weights */
    struct esp_source *src;
    struct esp_net *net;
    struct esp_tokenizer *tok;   /* NULL: the folder has none */
    struct esp_template_set tpl; /* main NULL: none; tpl_error says why */
    esp_error tpl_error;
    enum esp_cpu_level level;
    uint32_t n_thread, n_batch; /* n_batch: of steps with many tokens of one text */
    enum esp_huge huge;
    struct esp_nodes *nodes;   /* NULL: nothing is placed */
    uint32_t end[ESP_MAX_END]; /* ids that end a turn */
    uint32_t n_end;
    bool shape_only;   /* no weights, or no expanded ones: plans only */
    bool expand;       /* src expands coded weights */
    uint64_t *allowed; /* bit set: the id has a token; NULL: all may be sampled */
};

/* ESP_ENOTFOUND with a hint when the model has no tokenizer. */
esp_status esp_model_need_tokenizer(const struct esp_model *m, esp_error *err);

#endif
