/*
 * Memory nodes of a machine with several (NUMA): which threads belong to which node, and where memory lies.
 * Threads are held to a node, not to one processor, so that other programs on the machine can still push them
 * aside. Nothing that is computed depends on it.
 *
 * The topology comes from hwloc, which is loaded when it is asked for. HWLOC_SYNTHETIC ("numa:2 core:4 pu:1")
 * gives it another machine to describe, for tests; then nothing is bound.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_NODES_H
#define ESP_BASE_NODES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_nodes;

enum { ESP_MAX_NODES = 64 };

/*
 * how: "off"; "spread", over all nodes whose processors this process may use; "node:N", on that one, by the
 * system's number; "auto" or NULL, spread where it can be. *out is NULL when there is nothing to place:
 * off, or a machine with one node. ESP_EINVAL for other words and unknown nodes; ESP_EDEVICE without hwloc,
 * unless how is auto.
 */
esp_status esp_nodes_open(struct esp_nodes **out, const char *how, esp_error *err);
void esp_nodes_close(struct esp_nodes *n); /* NULL is fine, here and below */

/* Nodes in use, at least 1; with NULL 1. */
uint32_t esp_nodes_count(const struct esp_nodes *n);
/* Cores of the nodes in use; 0 with NULL. */
uint32_t esp_nodes_cores(const struct esp_nodes *n);
/*
 * The first of n_thread threads that belongs to node i: they are dealt out in order, by the nodes' cores. i
 * may be the count, which gives n_thread. The same share of a weight's outputs lies in the node's memory.
 */
uint32_t esp_nodes_first(const struct esp_nodes *n, uint32_t i, uint32_t n_thread);
uint32_t esp_nodes_of(const struct esp_nodes *n, uint32_t tid, uint32_t n_thread);

/* Hold the calling thread to node i. */
void esp_nodes_enter(const struct esp_nodes *n, uint32_t i);
/* Put whole pages of bytes into node i's memory, what has been touched as well. */
void esp_nodes_place(const struct esp_nodes *n, const void *p, size_t bytes, uint32_t i);
/* The same, page by page over all nodes in use. */
void esp_nodes_spread(const struct esp_nodes *n, const void *p, size_t bytes);

#endif
