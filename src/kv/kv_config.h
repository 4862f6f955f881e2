/* kv_config: what somebody asks of a KV cache, before a model is known: as a command line says it
 * and as a container remembers it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_CONFIG_H
#define DQ_KV_CONFIG_H

#include "base/json.h"
#include "kv/kv_policy.h"
#include "kv/kv_spec.h"

typedef enum dq_rotate {
    DQ_ROTATE_AUTO, /* keys and values of at most 4 bits, where head_dim is a power of two */
    DQ_ROTATE_ON,   /* both, whatever their widths */
    DQ_ROTATE_OFF
} dq_rotate;
extern const char *const dq_rotate_name[3]; /* "auto", "on", "off" */

typedef struct dq_kv_settings {
    int k_bits, v_bits, group, sink, recent;
    dq_rotate rotate;
    const char *policy; /* name; NULL: nothing is evicted */
    /* the rest has a meaning with a policy only, as in dq_evict_spec */
    double keep;
    int64_t tokens, every, window;
    dq_kv_budget budget;
    uint64_t seed;
} dq_kv_settings;

extern const dq_kv_settings dq_kv_settings_plain; /* 16:16, nothing evicted */
bool dq_kv_settings_same(const dq_kv_settings *a, const dq_kv_settings *b);

/* The storage that the settings mean for heads of head_dim. DQ_USAGE and DQ_MISMATCH as dq_kv_check
 * has them. */
dq_status dq_kv_settings_spec(dq_kv_spec *out, const dq_kv_settings *s, dq_num num, int head_dim,
                              dq_err *err);
/* Widths, windows and shares that no container may ask for are DQ_DAMAGED. */
dq_status dq_kv_settings_check(const dq_kv_settings *s, dq_err *err);

/* As a recipe holds them, and back; the policy's name belongs to the object. */
json_t *dq_kv_settings_json(const dq_kv_settings *s);
dq_status dq_kv_settings_read(dq_kv_settings *out, const json_t *o, dq_err *err);
/* The index of `text` in three names. DQ_DAMAGED naming the key. */
dq_status dq_kv_settings_word(int *out, const char *text, const char *const names[3],
                              const char *key, dq_err *err);

#endif
