/*
 * Every limit on input, in one table: what a file, request or template may ask for before it is refused. Each
 * has the reason for its value. Raise one here, not at its use.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_LIMITS_H
#define ESP_BASE_LIMITS_H

#include <stdint.h>

/* clang-format off */
#define ESP_LIMIT_JSON_BYTES       (256u << 20) /* tokenizer.json of a 250k vocabulary is 20 MiB */
#define ESP_LIMIT_JSON_DEPTH       128          /* api.md of the project: requests; files stay below 20 */
#define ESP_LIMIT_HEADER_BYTES     (100u << 20) /* safetensors' own limit on its JSON header */
#define ESP_LIMIT_CONFIG_BYTES     (16u << 20)  /* config.json with a quantization override per module: < 1 MiB */
#define ESP_LIMIT_TENSORS          1000000u     /* 397B MoE with one tensor per expert: about 100,000 */
#define ESP_LIMIT_SHARDS           4096u
#define ESP_LIMIT_DIMS             8u
#define ESP_LIMIT_LAYERS           1024u
#define ESP_LIMIT_HIDDEN           65536u
#define ESP_LIMIT_VOCAB            4194304u
#define ESP_LIMIT_TOKEN_BYTES      4096u        /* one token; the longest known is a few hundred spaces */
#define ESP_LIMIT_ADDED_TOKENS     16384u       /* Qwen3.5 has 33; some families reserve thousands */
#define ESP_LIMIT_SPLIT_PATTERN    16384u       /* bytes of a pre-tokenizer's pattern; known ones are below 400 */
#define ESP_LIMIT_SPLIT_STAGES     8u           /* patterns in a Sequence */
#define ESP_LIMIT_SPLIT_STEPS      200000000u   /* PCRE2's match limit for one piece; bounds hostile patterns */
#define ESP_LIMIT_TEMPLATE_BYTES   (1u << 20)
#define ESP_LIMIT_TEMPLATE_STEPS   20000000u    /* a 1,000-message conversation takes about 100,000 */
#define ESP_LIMIT_TEMPLATE_DEPTH   64           /* nested blocks, parentheses, macro calls */
#define ESP_LIMIT_TEMPLATE_OUTPUT  (64u << 20) /* 16 times the text of a million tokens */
#define ESP_LIMIT_TEMPLATE_FRAMES  256          /* nested evaluations: 256 fit a 256 KiB stack */
#define ESP_LIMIT_TEMPLATE_RANGE   100000u      /* items of one range(), as the usual Jinja sandbox has it */
#define ESP_LIMIT_TEMPLATE_MEMORY  (256u << 20) /* values of one rendering: four times the longest output */
#define ESP_LIMIT_TEXT_BYTES       (1u << 30)   /* one tokenizer input */
#define ESP_LIMIT_STATE_HEADER     (4u << 20)   /* of a state file: 100 bytes a layer and a checkpoint, of each at most 1024 */
#define ESP_LIMIT_STATE_CHECKPOINTS 16384u      /* kept by one prefix cache; shares of one page are counted in 16 bits */
#define ESP_LIMIT_CACHE_FILES      65536u       /* in one cache folder; 32 GiB of 0.5 MiB files */
#define ESP_LIMIT_MARKS            4096u        /* message ends of one request */
#define ESP_LIMIT_GRAMMAR_BYTES    (1u << 20)   /* source text of a grammar or regular expression */
#define ESP_LIMIT_GRAMMAR_RULES    65536u       /* a schema of 256 KiB has at most about 30,000 subschemas */
#define ESP_LIMIT_GRAMMAR_STATES   1048576u     /* before determinization; 10,000 enum values of 40 bytes: 410,000 */
#define ESP_LIMIT_GRAMMAR_DFA      262144u      /* states after it, 20 bytes each; also the pairs of an intersection */
#define ESP_LIMIT_GRAMMAR_EDGES    2097152u     /* of all those states, 8 bytes each */
#define ESP_LIMIT_GRAMMAR_STEPS    40000000u    /* of compiling: below 2 s on one core */
#define ESP_LIMIT_GRAMMAR_REPEAT   1048576u     /* {m,n}, maxLength, maxItems */
#define ESP_LIMIT_GRAMMAR_MEMORY   (256u << 20) /* while compiling */
#define ESP_LIMIT_GRAMMAR_DEPTH    120 /* open rules at one place of the output: what comes out nests less than JSON_DEPTH */
#define ESP_LIMIT_GRAMMAR_NESTING  64           /* parentheses in a grammar or regular expression */
#define ESP_LIMIT_GRAMMAR_WAYS     512          /* readings of one output that are followed side by side */
#define ESP_LIMIT_SCHEMA_BYTES     (256u << 10)
#define ESP_LIMIT_SCHEMA_DEPTH     64
#define ESP_LIMIT_SCHEMA_ENUM      10000u
#define ESP_LIMIT_TOOLS            1024u
#define ESP_LIMIT_QUEUE            65536u       /* requests that wait in front of an engine */
#define ESP_LIMIT_ADAPTER_BYTES    (UINT64_C(1) << 40) /* of all that an engine uses: rank 1024 of the largest shape is 0.1 TiB */
#define ESP_LIMIT_DRAFTS           32u          /* drafts of one row and step; beyond ten few texts agree */
#define ESP_LIMIT_FORCED           64u          /* tokens of a step that constraints decide; each is an event */
#define ESP_LIMIT_TURN_BYTES       (64u << 20)  /* one answer of a model: a million tokens of code stay below 8 MiB */
#define ESP_LIMIT_HTTP_HEAD        (64u << 10)  /* request line and headers; browsers' cookies stay below 16 KiB */
#define ESP_LIMIT_HTTP_URI         (16u << 10)
#define ESP_LIMIT_THREADS          1024u
/* clang-format on */

#endif
