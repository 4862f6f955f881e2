/* golden: reading the reference outputs beside a test checkpoint (tests/golden/common.py).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GOLDEN_H
#define DQ_GOLDEN_H

#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "tests/rigs/suite.h"

#include <stdio.h>
#include <string.h>

typedef struct golden {
    dq_os_map map;
    dq_arena *arena;
    dq_tensor *tensor;
    int64_t count;
} golden;

static inline golden golden_open(const char *folder)
{
    golden g;
    char path[4096];
    dq_err err = {0};
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    g.arena = dq_arena_new();
    if (dq_os_map_open(&g.map, path, &err) != DQ_OK ||
        dq_safetensors_parse(&g.tensor, &g.count, g.map.data, g.map.bytes, g.arena, &err) != DQ_OK)
        fail_msg("%s", err.text);
    return g;
}

static inline void golden_close(golden *g)
{
    dq_os_map_close(&g->map);
    dq_arena_free(g->arena);
}

/* NULL when absent. Data may be unaligned. */
static inline const dq_tensor *golden_find(const golden *g, const char *name)
{
    for (int64_t i = 0; i < g->count; i++) {
        if (strcmp(g->tensor[i].name, name) == 0) return &g->tensor[i];
    }
    return NULL;
}

/* Element i of a tensor of 4-byte values. */
static inline float golden_f32(const dq_tensor *t, int64_t i)
{
    float x;
    memcpy(&x, (const char *)t->data + 4 * i, 4);
    return x;
}

static inline int32_t golden_i32(const dq_tensor *t, int64_t i)
{
    int32_t x;
    memcpy(&x, (const char *)t->data + 4 * i, 4);
    return x;
}

#endif
