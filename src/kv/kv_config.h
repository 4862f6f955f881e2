/* kv_config: what somebody asks of a KV cache, before a model is known: as a command line says it and as a
 * container remembers it. What it means for a model is a dq_kv_spec.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_CONFIG_H
#define DQ_KV_CONFIG_H

#include "base/json.h"
#include "kv/kv_spec.h"

typedef enum dq_rotate {
    DQ_ROTATE_AUTO, /* where head_dim is a power of two: per-token codes of at most 4 bits, and keys as per-channel codes */
    DQ_ROTATE_ON,   /* both, whatever their widths */
    DQ_ROTATE_OFF
} dq_rotate;
enum { DQ_ROTATES = 3 };
extern const char *const dq_rotate_name[DQ_ROTATES]; /* "auto", "on", "off" */

typedef struct dq_kv_config {
    int k_bits, v_bits;       /* as in dq_kv_spec; 0: `widths` says */
    char widths[DQ_KV_LISTS]; /* what dq_kv_widths_parse reads; empty: none */
    int group, sink, recent;
    dq_kv_quant quant; /* or DQ_KV_QUANT_AUTO */
    dq_kv_dense dense; /* or DQ_KV_DENSE_AUTO */
    dq_rotate rotate;
    /* stands last, see kv_field.c. The policy may be one of dq_kv_policy_stored */
    dq_evict_spec evict;
} dq_kv_config;

extern const dq_kv_config
    dq_kv_config_plain; /* 32:32, nothing evicted; the defaults of everything else but `dense` */
bool dq_kv_config_same(const dq_kv_config *a, const dq_kv_config *b);
/* Files where nothing is coded or evicted may have 64 recent tokens, once the default: it becomes the one of now. */
void dq_kv_config_renew(dq_kv_config *c);
/* The name of the first field that is not the same; NULL: none. */
const char *dq_kv_config_differs(const dq_kv_config *a, const dq_kv_config *b);

/* What `quant` stands for on a model of n_maps; 0: not known, as 1. DQ_KV_QUANT_AUTO is mixed on one map (results/real); on two
 * per-token codes where tokens are evicted, as the numbers of a page's channels weigh the more, the fewer of its tokens are left,
 * and per-channel codes where none are, or per-token codes have no such widths (results/kv); and per-token codes, by name, where nothing
 * is coded. */
dq_kv_quant dq_kv_config_quant(const dq_kv_config *c, int n_maps);

/* What a setting acts on, and what of that there is. */
enum {
    DQ_KV_CODES = 1, /* something is stored as codes */
    DQ_KV_NARROW =
        2, /* several numbers for each token: per-token codes of at most 4 bits, or mixed ones */
    DQ_KV_EVICTS = 4,
    DQ_KV_SUMS = 8, /* the policy reads sums over rows of attention */
    DQ_KV_DRAWS = 16,
    DQ_KV_BY_HEADS = 32, /* the budget goes by heads */
    DQ_KV_BY_GATES = 64  /* the policy needs gates */
};
unsigned dq_kv_config_uses(const dq_kv_config *c, int n_maps); /* as above */

/* Widths of options: "8", "8:4", or by layer. 32 is 16 with f32 for what is not coded, which no other width sets. DQ_USAGE. */
dq_status dq_kv_config_set_widths(dq_kv_config *c, const char *text, dq_err *err);
/* Groups of KV heads in order of need, as dq_kv_heads_parse reads them. DQ_USAGE. */
dq_status dq_kv_config_set_heads(dq_kv_config *c, const char *text, dq_err *err);
/* As n_layers: no model is known yet. */
enum { DQ_KV_ANY_LAYERS = 0, DQ_KV_ANY_MAPS = 0 };
/* As a model of n_layers holds them: how many layers each width is for, or where they are all alike plain k_bits and v_bits.
 * DQ_MISMATCH. */
dq_status dq_kv_config_fit(dq_kv_config *c, int n_layers, dq_err *err);

/* What is asked as a model with n_layers, n_maps and heads of head_dim takes it, rotation resolved, and codes named by what they
 * are: per-channel codes where dithering leaves all values alone. *out is filled in any case;
 * fails as dq_kv_check and dq_kv_config_fit do. What is evicted is checked by dq_evict_check. */
dq_status dq_kv_config_spec(dq_kv_spec *out, const dq_kv_config *c, dq_num num, int head_dim,
                            int n_layers, int n_maps, dq_err *err);
/* Widths, windows and shares that no container may ask for are DQ_DAMAGED. */
dq_status dq_kv_config_check(const dq_kv_config *c, dq_err *err);

/* As a recipe holds it, and back; a policy that is not known goes to the arena. */
json_t *dq_kv_config_json(const dq_kv_config *c);
dq_status dq_kv_config_read(dq_kv_config *out, const json_t *o, dq_arena *a, dq_err *err);
/* As a file that people write holds it: the same keys, of which each may be left out and then has its default; `widths` may
 * be any text of --kv-bits and stand alone. DQ_DAMAGED with the key that is unknown, has a wrong value, or says nothing. */
dq_status dq_kv_config_file(dq_kv_config *out, const json_t *o, dq_err *err);

#endif
