/* kv_spec: what a KV cache stores and evicts, as numbers: widths, windows, budgets, bytes. The cache
 * itself lives in the backend (backend.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_SPEC_H
#define DQ_KV_SPEC_H

#include "kv/kv_heads.h"
#include "kv/kv_widths.h"

enum { DQ_PAGE_TOKENS = 64 }; /* tokens per page */

/* Which arithmetic runs. One word per product, as results report it. kv int8: codes are multiplied as they
 * are stored; only where K and V have at most 8 bits. */
typedef enum dq_num { DQ_NUM_F32, DQ_NUM_BF16, DQ_NUM_INT8 } dq_num;
typedef struct dq_math {
    dq_num linear, qk, pv, kv;
} dq_math;
bool dq_math_same(dq_math a, dq_math b);
enum { DQ_NUMS = 3 };
extern const char *const dq_num_name[DQ_NUMS]; /* "f32", "bf16", "int8" */

/* What is evicted of a context, and when. */
#define DQ_KV_KEEP_LEAST 1e-6 /* smaller shares are no tokens of any context */

typedef struct dq_evict_spec {
    const dq_kv_policy *policy; /* NULL: nothing is evicted */
    double keep;    /* share of the prefix that is kept, DQ_KV_KEEP_LEAST to 1; 0: `tokens` says */
    int64_t tokens; /* tokens kept; 0: `keep` says */
    int64_t every;  /* evict again after so many continuation tokens; 0: only once */
    int64_t window; /* rows that count; -1: as the policy says; 0: all */
    dq_kv_budget budget;
    char heads
        [DQ_KV_HEADS_TEXT]; /* what dq_kv_heads_parse reads; empty: none, and no budget by heads */
    uint64_t seed;          /* of a policy that draws */
} dq_evict_spec;
extern const dq_evict_spec dq_evict_none; /* keep 1, no policy */

/* How numbers become codes. */
typedef enum dq_kv_quant {
    DQ_KV_PER_TOKEN,   /* scales for each token */
    DQ_KV_PER_CHANNEL, /* for each channel and page */
    DQ_KV_DITHER, /* the same, and values of 4 bits and more dithered; without such values: page */
    DQ_KV_MIXED,  /* keys per channel, values per token with a low (arXiv 2402.02750, KIVI) */
    DQ_KV_QUANT_AUTO /* of a dq_kv_config alone, where dq_kv_config_quant says which */
} dq_kv_quant;
enum { DQ_KV_QUANTS = 4 }; /* that a dq_kv_spec can have */
extern const char *const
    dq_kv_quant_name[DQ_KV_QUANTS + 1]; /* "per-token", "per-channel", "dither", "mixed", "auto" */

/* Where nothing else is asked. */
/* Sinks and recent tokens, which every list keeps, fill a page. */
enum { DQ_KV_GROUP = 32, DQ_KV_SINK = 4, DQ_KV_RECENT = DQ_PAGE_TOKENS - DQ_KV_SINK };

/* What keys and values that are not codes are held in. */
typedef enum dq_kv_dense {
    DQ_KV_F32,
    DQ_KV_F16,
    DQ_KV_BF16,
    DQ_KV_DENSE_AUTO /* of a dq_kv_config alone: the type of 16 bits, dq_model_kv_dense */
} dq_kv_dense;
enum { DQ_KV_DENSE_TYPES = 3 };                                   /* that a dq_kv_spec can have */
extern const char *const dq_kv_dense_name[DQ_KV_DENSE_TYPES + 1]; /* "f32", "f16", "bf16", "auto" */

/* Storage of keys and values, and what is evicted of them. Width 16 is not coded: numbers of the math
 * type `num`, rounded to `dense`; in f32 what is printed calls that width 32 (dq_kv_shown_bits). A cache has one storage for its life; it does not look at `evict`, which is for who runs it (evict.h).
 *
 * With `dense` of two bytes keys and values are rounded to it, to nearest even, when they are appended, and codes are made of
 * the rounded numbers. An append of a finite number that would become infinite fails (DQ_MISMATCH).
 *
 * Which form a query reads goes by positions alone, as if tokens had arrived one by one: at position t
 * the tokens of positions sink .. dq_kv_coded_end(t) - 1 are read as codes, all others unquantized.
 * Prefill, chunks and decoding are therefore equal. The rule holds after eviction too, by a token's
 * original position.
 *
 * Per-token codes: one scale per token and head at 8 and 6 bits, one per `group` channels below (the last group of
 * a head may be short); scale = absmax / Qmax rounded to f16 (f32 where f16 would be subnormal or
 * infinite), code = clamp(rint(x / scale), +-Qmax). head_dim is padded with zeros to a multiple of 16.
 *
 * Per-channel codes: a set of tokens has for each channel of a head its own low = least and step = (largest - least) / (2^b - 1),
 * both rounded to f16; f32 where f16 would make the step subnormal or infinite, or move the low so far that an element is more
 * than half a step from what its code says (where step is 0: at all). code = clamp(rint((x - low) / step), 0, 2^b - 1), 0 where
 * step is 0; read back as code * step + low. A range that f32 cannot hold makes both NaN. Dithered: step = (largest - least) /
 * (2^b - 2), low = least - step / 2, code = clamp(rint((x - low) / step + d), 0, 2^b - 1), read back as (code - d) * step + low, d =
 * dq_kv_dither(position of the token). A set is the tokens of a sequence, layer and head group that are due at once
 * (64p .. 64p+63, but sinks and what was evicted before) and stand in one page of the cache.
 *
 * Mixed: keys are per-channel codes. Values have for each token and run of 2 `group` channels a low and a step, stored by the same
 * rule; read back as (code - 2^(b-1)) * step + middle, middle = 2^(b-1) * step + low.
 *
 * 6 bits are a plane of the 4 low bits and one of the 2 high bits, 5 bits one of 4 and one of 1, 3 bits one of 2 and one of
 * 1. */
typedef struct dq_kv_spec {
    dq_num num;
    int k_bits; /* 16, 8, 6 or 4; per-channel codes: 5, 3 and 2 too. The largest, where `widths` says more */
    int v_bits; /* 16, 8, 6, 4, 3 or 2; per-channel codes: 5 too. The same */
    char widths
        [DQ_KV_LISTS]; /* per-channel codes: by layer and map, as dq_kv_widths_fit leaves them; empty: alike */
    int group; /* per-token codes: channels per scale at <= 4 bits; of mixed ones per stored number of values */
    dq_kv_quant quant;
    dq_kv_dense dense;
    bool rotate_k, rotate_v; /* normalized Hadamard over head_dim: on Q and K after RoPE, on V */
    int sink;                /* tokens at positions below it are never coded and never evicted */
    int recent;              /* a page is coded once its last token is this far after */
    dq_evict_spec evict;     /* stands last, see kv_field.c */
} dq_kv_spec;

extern const dq_kv_spec dq_kv_plain; /* 32:32: nothing coded, rounded, rotated or evicted */

/* The widths of keys and values as everything printed has them, "8:4" or "3|5+3:3|6"; returns text. */
enum { DQ_KV_TEXT = DQ_KV_LISTS + 32 };
const char *dq_kv_spec_widths(char text[DQ_KV_TEXT], const dq_kv_spec *s);
/* With what is not usual about codes, what is not coded and the rotation after them, "8:4 per-channel bf16 rotated". */
const char *dq_kv_codes_text(char text[DQ_KV_TEXT], const dq_kv_spec *s);
/* Of keys or values, the mean over layers and heads; `widths` must be those of a model. */
double dq_kv_mean_bits(const dq_kv_spec *s, bool values);
/* The same as results list it: 32 where nothing is coded and numbers stay f32. */
double dq_kv_shown_bits(const dq_kv_spec *s, bool values);
/* Whether `auto` rotates keys (values) of so many bits, where head_dim is a power of two. */
bool dq_kv_auto_rotates(dq_kv_quant code, int bits, bool values);
/* Nothing is coded, rounded, rotated or evicted: sequences run in one pass. */
bool dq_kv_spec_is_plain(const dq_kv_spec *s);
/* As a head_dim: no model is known yet, and what some head_dim allows is allowed. */
enum { DQ_KV_ANY_DIM = 0 };
/* DQ_USAGE for widths, groups or windows that do not exist, widths by layer of per-token codes; DQ_MISMATCH for a rotation of a head_dim
 * that is no power of two. Eviction is not looked at. */
dq_status dq_kv_check(const dq_kv_spec *spec, int head_dim, dq_err *err);
/* DQ_MISMATCH: a policy that this program does not have. DQ_USAGE: neither a share in (0, 1] nor tokens,
 * both, tokens below sink + recent, negative numbers, an eviction without a policy, a budget by heads without them. */
dq_status dq_evict_check(const dq_kv_spec *spec, dq_err *err);
/* Tokens of a prefix that are kept in each layer and group, before they are redistributed:
 * ceil(keep * prefix) or `tokens`, raised to sink + recent, at most prefix. *raised (may be NULL):
 * whether sink + recent was more than a share asked for. */
int64_t dq_evict_budget(const dq_kv_spec *spec, int64_t prefix, bool *raised);
/* Rows that count, 0: all; as asked, or as the policy, which there must be, says. */
int64_t dq_evict_window(const dq_evict_spec *evict);
/* First position that a query at position t reads unquantized, sinks aside. */
int32_t dq_kv_coded_end(const dq_kv_spec *spec, int32_t t);
/* How many rows after the last one codes are made for, and policies read keys for: 1, but where per-channel codes of a page that
 * is not full would be due. */
int dq_kv_ahead(const dq_kv_spec *spec);
/* How many of the n ascending positions a query at position t reads, and how many of these as codes. */
void dq_kv_reads(const dq_kv_spec *spec, int32_t t, const int32_t *pos, int64_t n, int64_t *reads,
                 int64_t *coded);
/* Whether something is stored as codes at all. */
bool dq_kv_has_codes(const dq_kv_spec *spec);
/* Widths of keys and values that per-token codes have. */
bool dq_kv_token_widths(int k_bits, int v_bits);
/* Whether the codes of a token depend on others, or would if its keys were coded. */
bool dq_kv_by_page(const dq_kv_spec *spec);
/* Whether keys (values) that are coded have numbers for each channel of a set. */
bool dq_kv_by_channel(const dq_kv_spec *spec, bool values);
/* Values of dq_kv_spec are dithered, where they have at least 4 bits. */
bool dq_kv_dithers(const dq_kv_spec *spec);
/* In steps, from -1/2 to 1/2: frac(t (sqrt 5 - 1) / 2 + 1/4) - 1/2 for place t of a position in its page. */
float dq_kv_dither(int32_t position);
/* Bytes of one coded token in one KV head (the mean of all), K and V, with f16 scales and, of per-channel codes, in a set of
 * DQ_PAGE_TOKENS tokens; what is not coded counts dq_kv_dense_bytes per element. */
double dq_kv_token_bytes(const dq_kv_spec *spec, int head_dim);
/* Bytes of an element that is not coded, as the CPU backend holds it. */
int dq_kv_dense_bytes(const dq_kv_spec *spec);

/* What a cache holds, as allocated: padding and page tails included. */
typedef struct dq_kv_bytes {
    int64_t codes, scales, unquantized, index;
    int64_t tokens;       /* sum over sequences, layers and groups of tokens held */
    int64_t tokens_coded; /* those of them that are held as codes only */
} dq_kv_bytes;

#endif
