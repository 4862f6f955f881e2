/* kv_size: the bytes that a compressed KV cache holds where a context ends, foretold from its settings, and the most tokens that fit
 * into a share of what all take in 16 bits. Which widths such a size gets: results/real/README.md, "Equal bytes".
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_SIZE_H
#define DQ_KV_SIZE_H

#include "kv/kv_page.h"

/* Of a model. */
typedef struct dq_kv_shape {
    int n_layers, n_groups, n_kv, head_dim; /* a group has n_kv / n_groups heads */
} dq_kv_shape;

/* Of all tokens of a context at two bytes an element. */
int64_t dq_kv_size_whole(const dq_kv_shape *m, int64_t context);
/* At most, where every layer and group keeps `kept` tokens of a context, or as many on average where they share by score: pages,
 * sinks, what is not coded yet, index, and the lows and steps of the pages of keys that tokens come from, which all may have kept one.
 * Scales that f16 cannot hold are not foretold. Not for a budget by heads, nor for widths by layer. */
int64_t dq_kv_size_bytes(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context, int64_t kept);
/* The most tokens, fewer than all, that a group can keep so that this is at most `bytes`. 0: not even one beside what always
 * stays fits, and *least (may be NULL) is the fewest bytes that such a cache has. */
int64_t dq_kv_size_tokens(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context, double bytes,
                          int64_t *least);
/* The shortest decimal fraction of which dq_evict_budget makes `kept` of a context. */
double dq_kv_size_share(int64_t kept, int64_t context);

/* What a size is made of, the largest first. */
typedef struct dq_kv_size_row {
    double size;
    int bits;   /* of keys and values */
    int recent; /* -1: as usual */
} dq_kv_size_row;
enum { DQ_KV_SIZE_ROWS = 4 };
extern const dq_kv_size_row dq_kv_size_rows[DQ_KV_SIZE_ROWS];
/* The nearest row that is at most a tenth larger (a little less than 1/2 is better made of 8 bits than of 4); the last one where all
 * are. */
int dq_kv_size_first(double size);

/* What a size comes to, for contexts of so many tokens. */
typedef struct dq_kv_size {
    double size;
    int64_t context;
    bool recent; /* recent tokens are given, which rows leave then */
} dq_kv_size;
typedef struct dq_kv_sized {
    dq_kv_size of;
    dq_kv_size_row row;
    double keep;  /* 1: all tokens */
    double share; /* of the bytes that all take in 16 bits, at most */
} dq_kv_sized;

/* "1/8" or ".125", above 0 and below 1; with "@2048" after it for contexts of so many tokens, else *context is 0. DQ_USAGE. */
enum { DQ_KV_SIZE_CONTEXT = 1 << 24 }; /* tries of all numbers of tokens take a second */
dq_status dq_kv_size_parse(double *size, int64_t *context, const char *text, dq_err *err);

#endif
