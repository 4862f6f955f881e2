/* The settings of a KV cache, and of attention logits, as numbers; what a cache of them takes;
 * which tokens it keeps. The cache itself lives in the backend (engine/backend.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_H
#define DQ_KV_H

#include "base/base.h"
#include "base/json.h"
#include "record/record.h"

/* Which tokens of a KV cache are worth keeping. A policy is one function over columns of numbers
 * about tokens and never sees a tensor; a new one is one row of the table. */

/* About the n tokens of one (sequence, layer, KV head group), positions ascending; unneeded columns
 * are NULL. */
typedef struct dq_token_columns {
    int64_t n;
    const int32_t *pos;
    /* sums over query rows and output heads of the group, see dq_columns in backend.h */
    const double *mass[2], *lambda_mass, *diff; /* one map: the second's are zero or NULL */
    const double *key_norm;                     /* sum of |k|^2 over the group's key heads */
    const double *key_cosine;                   /* sum over the group's key heads, see backend.h */
    const double *key_leverage;                 /* see backend.h */
    const double *peak; /* of rows that read the prefix again, see dq_columns in backend.h */
    const double *gate; /* ln of that peak, foretold: see "Gates" */
    /* of this layer and group: dq_kv_policy_seed */
    uint64_t seed;
} dq_token_columns;

enum { /* columns, as bits of dq_kv_policy.needs */
       DQ_NEEDS_MASS1 = 1,
       DQ_NEEDS_MASS2 = 2,
       DQ_NEEDS_LAMBDA_MASS = 4,
       DQ_NEEDS_DIFF = 8,
       DQ_NEEDS_KEY_NORM = 16,
       DQ_NEEDS_PEAK = 32, /* the prefix is read again after itself, see runner.h */
       DQ_NEEDS_KEY_COSINE = 64,
       DQ_NEEDS_KEY_LEVERAGE = 128,
       DQ_NEEDS_GATES = 256, /* the model has gates, see "Gates" */
       /* sums over query rows: a window of rows applies, and sequences must be observed */
       DQ_NEEDS_ATTENTION = DQ_NEEDS_MASS1 | DQ_NEEDS_MASS2 | DQ_NEEDS_LAMBDA_MASS | DQ_NEEDS_DIFF
};

/* How a budget is divided among layers and groups. */
typedef enum dq_kv_budget {
    DQ_KV_BUDGET_UNIFORM,  /* the same everywhere */
    DQ_KV_BUDGET_ADAPTIVE, /* global by layer, at least a fifth of equal shares. arXiv 2407.11550 */
    DQ_KV_BUDGET_GLOBAL,   /* groups of all layers share one pool by score. arXiv 2505.23416 */
    DQ_KV_BUDGET_HEADS,    /* by need of the whole context, see "Heads". arXiv 2410.10819 */
    DQ_KV_BUDGET_USUAL     /* only in a request: the policy's own, dq_kv_budget_for */
} dq_kv_budget;
typedef struct dq_kv_policy {
    const char *name;  /* "h2o" */
    const char *about; /* one line, with its source */
    unsigned needs;
    int64_t window; /* last rows of the prefix whose attention counts; 0: all */
    int pool;       /* odd width of the maximum over neighbouring positions; 1: none */
    bool draws;     /* at random: a seed says something */
    /* scores of all layers and groups share a unit: a shared budget compares them directly */
    bool common;
    dq_kv_budget budget[2]; /* where nobody names one: on one map, on two */
    bool baseline;          /* there to compare the others with; these stand last */
    /* score[n]: larger is kept first, before pooling; call dq_kv_policy_score. NULL: a container
     * names a policy that this program lacks. */
    void (*score)(double *score, const struct dq_kv_policy *p, const dq_token_columns *c);
} dq_kv_policy;

/* streaming, h2o, snapkv, knorm, random, diff, kvzip, kvzap, keydiff, leverage, and for comparison
 * a1, a2, sum. */
extern const dq_kv_policy dq_kv_policies[];
extern const int dq_kv_n_policies;
/* The default; every device has it. results/real and results/kv. */
#define DQ_POLICY_USUAL "keydiff"
/* The default policy, or with gates theirs. */
const dq_kv_policy *dq_kv_policy_usual(bool gates);
/* Replaces DQ_KV_BUDGET_USUAL by the policy's own for n_maps. */
dq_kv_budget dq_kv_budget_for(dq_kv_budget b, const dq_kv_policy *p, int n_maps);
/* DQ_USAGE with the names: unknown. */
const dq_kv_policy *dq_kv_policy_find(const char *name, dq_err *err);
/* An unknown policy has only its name: it can be shown, not used. NULL: memory. */
const dq_kv_policy *dq_kv_policy_stored(const char *name, dq_arena *a, dq_err *err);
/* By name; two NULLs are the same. */
bool dq_kv_policy_same(const dq_kv_policy *a, const dq_kv_policy *b);

/* Per layer and group; not per sequence, whose handles depend on batching. */
uint64_t dq_kv_policy_seed(uint64_t seed, int layer, int group);

/* Tokens kept whatever their score: positions below `sink`, and the last `recent` before `end`. */
typedef struct dq_kv_protected {
    int sink, recent;
    int32_t end; /* position of the next row */
} dq_kv_protected;
int64_t dq_kv_policy_protected(const int32_t *pos, int64_t n, dq_kv_protected safe);

/* score[c->n]: the policy's numbers with NaN as -infinity, then pooled: the maximum over
 * unprotected tokens within pool / 2 positions, as a sink's large mass says nothing about its
 * neighbours. */
void dq_kv_policy_score(double *score, const dq_kv_policy *p, const dq_token_columns *c,
                        dq_kv_protected safe);

enum { DQ_KV_BUDGETS = 4 };
/* "uniform", "adaptive", "global", "heads", and "usual", which cannot be asked for */
extern const char *const dq_kv_budget_name[DQ_KV_BUDGETS + 1];

typedef struct dq_pool_group {
    const double *score;
    const int32_t *pos;
    int64_t n;
} dq_pool_group;

/* Groups that share a budget. */
typedef struct dq_pool {
    const dq_pool_group *group; /* [n_groups] those without tokens take no part */
    int n_groups;
    int64_t budget; /* tokens of a group on average */
    dq_kv_protected safe;
    /* scores compare directly; else as shares of the summed magnitudes of the group's unprotected
     * tokens */
    bool common;
    /* a group keeps at least this part (1 / floor, rounded up) of the unprotected tokens that
     * `budget` would leave it; 0: none */
    int floor;
    /* Tokens of a page. Groups compete for pages by the best token that each would hold, until
     * these hold the budget, then their tokens for the places on them: less than a page of room
     * stays empty, but on pages that protected tokens begin. The floor begins no page for a part of
     * it. 0: for tokens alone. */
    int page;
} dq_pool;
enum { DQ_KV_ADAPTIVE_FLOOR = 5 };

/* Tokens that each group keeps, protected ones included. *gap: as dq_kv_policy_gap, at the pool's
 * cut. */
dq_status dq_kv_budget_of_groups(int64_t *share, double *gap, const dq_pool *pool, dq_err *err);

/* Chooses what is kept: protected tokens and the best-scoring others up to `budget` tokens in all,
 * ties to the lower position. A budget below the protected keeps those all the same. Fills kept[]
 * with ascending indices, *n_kept with how many. budget >= n keeps everything. Scores may be
 * infinite; NaN counts as -infinity. */
dq_status dq_kv_policy_keep(int32_t *kept, int64_t *n_kept, const double *score, const int32_t *pos,
                            int64_t n, int64_t budget, dq_kv_protected safe, dq_err *err);

/* Gap between the last kept and the first dropped score, relative to the larger magnitude: how sure
 * the choice is. INFINITY: nothing was chosen by score. Pooling makes neighbours tie, with gap
 * 0. */
double dq_kv_policy_gap(const int32_t *kept, int64_t n_kept, const double *score,
                        const int32_t *pos, int64_t n, dq_kv_protected safe);

/* ---- Heads ----
 * Which groups of KV heads need the whole context, as a text: all groups of a model in order of
 * need, layer.group with commas between, "1.0,1.1,0.0,0.1". Groups before a / share what may be
 * kept, "1.0,1.1/0.0,0.1"; at the end it says that all do. Retrieval and streaming heads are
 * DuoAttention's, arXiv 2410.10819. */

enum { DQ_KV_HEADS_TEXT = 8192 /* bytes of a text, with its 0 */, DQ_KV_HEADS_MAX = 1024 };

typedef struct dq_kv_heads_group {
    int16_t layer, group;
} dq_kv_heads_group;

typedef struct dq_kv_heads {
    dq_kv_heads_group at[DQ_KV_HEADS_MAX]; /* the first needs most */
    int n;                                 /* at least 1 */
    int sharing;                           /* groups before the /; 0: there is none */
} dq_kv_heads;

/* DQ_USAGE: not such a text, or a group twice. */
dq_status dq_kv_heads_parse(dq_kv_heads *out, const char *text, dq_err *err);
/* DQ_MISMATCH: not the groups of a model of n_layers, n_full of which have n_groups each. */
dq_status dq_kv_heads_fit(const dq_kv_heads *r, int n_layers, int n_groups, int n_full,
                          dq_err *err);

/* share[layer * n_groups + group] = tokens that each group of `pool`, all of a model that
 * dq_kv_heads_fit has seen, keeps, its protected ones among them. What the budget leaves beside
 * protected tokens is given in order of need: tokens are dealt out one by one to those before the
 * /, as long as they lack some; what is left then goes to the first that lack tokens, as many as
 * they lack. */
void dq_kv_budget_of_heads(int64_t *share, const dq_pool *pool, const dq_kv_heads *r, int n_groups);

/* ---- Widths ----
 * Widths of the codes of a KV cache by layer, and of keys by map, as a text: the layers' entries
 * with | between them, keys and values with : between them, the widths of the first and of the
 * second map's keys with + between them: "3|5+3:3|6". An entry for several layers says so,
 * "4*6|5+3"; one that ends with * is for those that are left, and an entry alone is for all. */

enum { DQ_KV_LISTS = 240 /* bytes of a text, with its 0 */, DQ_KV_RUNS = 64 };

typedef struct dq_kv_run {
    int layers;  /* 0: those that are left, -1: all */
    int bits[2]; /* of the first and of the second map; alike where nothing else is said */
} dq_kv_run;

typedef struct dq_kv_widths {
    dq_kv_run run[2][DQ_KV_RUNS]; /* keys, values */
    int n[2];                     /* at least 1 */
} dq_kv_widths;

/* DQ_USAGE: a malformed text, an unknown width, values by map, or 16 bits for some layers of a side
 * only. */
dq_status dq_kv_widths_parse(dq_kv_widths *out, const char *text, dq_err *err);
/* Resolves it for n_layers: runs have their layers, neighbours differ, a single one is for all.
 * DQ_MISMATCH: another number of layers. */
dq_status dq_kv_widths_fit(dq_kv_widths *w, int n_layers, dq_err *err);
/* The form that dq_kv_widths_parse reads. DQ_USAGE: longer than DQ_KV_LISTS. */
dq_status dq_kv_widths_text(char text[DQ_KV_LISTS], const dq_kv_widths *w, dq_err *err);

bool dq_kv_widths_uniform(const dq_kv_widths *w, int side);
bool dq_kv_widths_by_map(const dq_kv_widths *w);
int dq_kv_widths_largest(const dq_kv_widths *w, int side);
/* After dq_kv_widths_fit; both maps have as many keys. */
double dq_kv_widths_mean(const dq_kv_widths *w, int side);
int dq_kv_widths_of(const dq_kv_widths *w, int side, int layer, int map);

/* What a KV cache stores and evicts, as numbers: widths, windows, budgets, bytes. The cache itself
 * lives in the backend (backend.h). */

enum { DQ_PAGE_TOKENS = 64 }; /* tokens per page */

/* The arithmetic of a product. */
typedef enum dq_num {
    DQ_NUM_F32,
    DQ_NUM_BF16,
    DQ_NUM_INT8,
    DQ_NUM_F16 /* of attention alone: what dq_backend_math makes of the two before */
} dq_num;
typedef struct dq_math {
    dq_num linear, qk, pv, kv;
} dq_math;
bool dq_math_same(dq_math a, dq_math b);
enum { DQ_NUMS = 3 };                                         /* that can be asked for */
extern const char *const dq_num_name[DQ_NUMS + 1];            /* "f32", "bf16", "int8", "f16" */
#define DQ_NUM_WORDS .words = dq_num_name, .n_words = DQ_NUMS /* of a row (record.h) */

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

/* Defaults; sinks and recent tokens, which every list keeps, fill a page. */
enum { DQ_KV_GROUP = 32, DQ_KV_SINK = 4, DQ_KV_RECENT = DQ_PAGE_TOKENS - DQ_KV_SINK };

/* The type of keys and values that are not codes. */
typedef enum dq_kv_dense {
    DQ_KV_F32,
    DQ_KV_F16,
    DQ_KV_BF16,
    DQ_KV_DENSE_AUTO /* of a dq_kv_config alone: the type of 16 bits, dq_model_kv_dense */
} dq_kv_dense;
enum { DQ_KV_DENSE_TYPES = 3 };                                   /* that a dq_kv_spec can have */
extern const char *const dq_kv_dense_name[DQ_KV_DENSE_TYPES + 1]; /* "f32", "f16", "bf16", "auto" */

/* Storage of keys and values, and what is evicted of them. Width 16 is not coded: numbers of the
 * math type `num`, rounded to `dense`; in f32 what is printed calls that width 32
 * (dq_kv_shown_bits). A cache has one storage for its life; it does not look at `evict`, which is
 * for who runs it (runner.h).
 *
 * With `dense` of two bytes keys and values are rounded to it, to nearest even, when they are
 * appended, and codes are made of the rounded numbers. An append of a finite number that would
 * become infinite fails (DQ_MISMATCH).
 *
 * Which form a query reads goes by positions alone, as if tokens had arrived one by one: at
 * position t the tokens of positions sink .. dq_kv_coded_end(t) - 1 are read as codes, all others
 * unquantized. Prefill, chunks and decoding are therefore equal. The rule holds after eviction too,
 * by a token's original position.
 *
 * Per-token codes: one scale per token and head at 8 and 6 bits, one per `group` channels below
 * (the last group of a head may be short); scale = absmax / Qmax rounded to f16 (f32 where f16
 * would be subnormal or infinite), code = clamp(rint(x / scale), +-Qmax). head_dim is padded with
 * zeros to a multiple of 16.
 *
 * Per-channel codes: a set of tokens has for each channel of a head its own low = least and step =
 * (largest - least) / (2^b - 1), both rounded to f16; f32 where f16 would make the step subnormal
 * or infinite, or move the low so far that an element is more than half a step from what its code
 * says (where step is 0: at all). code = clamp(rint((x - low) / step), 0, 2^b - 1), 0 where step is
 * 0; read back as code * step + low. A range that f32 cannot hold makes both NaN. Dithered: step =
 * (largest - least) / (2^b - 2), low = least - step / 2, code = clamp(rint((x - low) / step + d),
 * 0, 2^b - 1), read back as (code - d) * step + low, d = dq_kv_dither(position of the token). A set
 * is the tokens of a sequence, layer and head group that are due at once (64p .. 64p+63, but sinks
 * and what was evicted before) and stand in one page of the cache.
 *
 * Mixed: keys are per-channel codes. Values have for each token and run of 2 `group` channels a low
 * and a step, stored by the same rule; read back as (code - 2^(b-1)) * step + middle, middle =
 * 2^(b-1) * step + low.
 *
 * 6 bits are a plane of the 4 low bits and one of the 2 high bits, 5 bits one of 4 and one of 1, 3
 * bits one of 2 and one of 1. */
typedef struct dq_kv_spec {
    dq_num num;
    int k_bits; /* 16, 8, 6 or 4; per channel also 5, 3, 2; the largest of `widths` */
    int v_bits; /* 16, 8, 6, 4, 3 or 2; per-channel codes: 5 too. The same */
    char widths
        [DQ_KV_LISTS]; /* per-channel codes by layer and map (dq_kv_widths_fit); empty: alike */
    int group; /* per-token codes: channels per scale at <= 4 bits; mixed: per stored number */
    dq_kv_quant quant;
    dq_kv_dense dense;
    bool rotate_k, rotate_v; /* normalized Hadamard over head_dim: on Q and K after RoPE, on V */
    int sink;                /* tokens at positions below it are never coded and never evicted */
    int recent;              /* a page is coded once its last token is this far after */
    dq_evict_spec evict;     /* stands last, see kv.c */
} dq_kv_spec;

extern const dq_kv_spec dq_kv_plain; /* 32:32: nothing coded, rounded, rotated or evicted */

/* Widths of keys and values as printed, "8:4" or "3|5+3:3|6"; returns text. */
enum { DQ_KV_TEXT = DQ_KV_LISTS + 32 };
const char *dq_kv_spec_widths(char text[DQ_KV_TEXT], const dq_kv_spec *s);
/* Adds what is unusual about codes, the dense type and rotation, "8:4 per-channel bf16 rotated". */
const char *dq_kv_codes_text(char text[DQ_KV_TEXT], const dq_kv_spec *s);
/* Mean over layers and heads; `widths` must be resolved for a model. */
double dq_kv_mean_bits(const dq_kv_spec *s, bool values);
/* The same as in results: 32 where nothing is coded and numbers stay f32. */
double dq_kv_shown_bits(const dq_kv_spec *s, bool values);
/* Nothing is coded, rounded, rotated or evicted: sequences run in one pass. */
bool dq_kv_spec_is_plain(const dq_kv_spec *s);
/* As head_dim before a model is known: allows what some head_dim allows. */
enum { DQ_KV_ANY_DIM = 0 };
/* DQ_USAGE: unknown widths, groups or windows, or widths by layer of per-token codes; DQ_MISMATCH:
 * rotation needs a power of two. Eviction is not checked. */
dq_status dq_kv_check(const dq_kv_spec *spec, int head_dim, dq_err *err);
/* DQ_MISMATCH: this program lacks the policy. DQ_USAGE: neither or both of a share in (0, 1] and
 * tokens, tokens below sink + recent, negative numbers, an eviction without a policy, or a budget
 * by heads without heads. */
dq_status dq_evict_check(const dq_kv_spec *spec, dq_err *err);
/* Tokens of a prefix that are kept in each layer and group, before they are redistributed:
 * ceil(keep * prefix) or `tokens`, raised to sink + recent, at most prefix. *raised (may be NULL):
 * whether sink + recent was more than a share asked for. */
int64_t dq_evict_budget(const dq_kv_spec *spec, int64_t prefix, bool *raised);
/* Rows that count, 0: all; the policy must be set. */
int64_t dq_evict_window(const dq_evict_spec *evict);
/* First position that a query at position t reads unquantized, sinks aside. */
int32_t dq_kv_coded_end(const dq_kv_spec *spec, int32_t t);
/* The first position that reads further tokens as codes than one that reads those before `end`. */
int64_t dq_kv_coded_until(const dq_kv_spec *spec, int32_t end);
/* 1, except where per-channel codes of an incomplete page would be due. */
int dq_kv_ahead(const dq_kv_spec *spec);
/* How many tokens a query at position t reads, and as codes: of n ascending positions; in a layer
 * with a window (0: none) of all in it, whether the cache still has them or not. */
void dq_kv_reads(const dq_kv_spec *spec, int window, int32_t t, const int32_t *pos, int64_t n,
                 int64_t *reads, int64_t *coded);
/* Tokens of the first n that a layer caches: the pages of a window; 0: all. */
int64_t dq_kv_window_cached(int window, int64_t n);
bool dq_kv_has_codes(const dq_kv_spec *spec);
bool dq_kv_token_widths(int k_bits, int v_bits);
/* Whether a token's codes depend on other tokens, or would if its keys were coded. */
bool dq_kv_by_page(const dq_kv_spec *spec);
/* Whether coded keys (values) have numbers for each channel of a set. */
bool dq_kv_by_channel(const dq_kv_spec *spec, bool values);
/* Values of at least 4 bits are dithered. */
bool dq_kv_dithers(const dq_kv_spec *spec);
/* In steps, from -1/2 to 1/2: frac(t (sqrt 5 - 1) / 2 + 1/4) - 1/2 for place t of a position in its
 * page. */
float dq_kv_dither(int32_t position);
/* Mean bytes of a coded token in one KV head, K and V, with f16 scales; per-channel codes count a
 * full set of DQ_PAGE_TOKENS; dense numbers count dq_kv_dense_bytes. */
double dq_kv_token_bytes(const dq_kv_spec *spec, int head_dim);
/* Bytes of a dense element in the CPU backend. */
int dq_kv_dense_bytes(const dq_kv_spec *spec);

/* Allocated bytes, padding and page tails included. */
typedef struct dq_kv_bytes {
    int64_t codes, scales, unquantized, index;
    int64_t tokens;       /* sum over sequences, layers and groups of tokens held */
    int64_t tokens_coded; /* those of them that are held as codes only */
} dq_kv_bytes;

/* How attention logits are rounded before softmax: their width, and which share a scale. */

/* For the query rows of a pass and the keys they see: A = max |S| over the group, c = clamp(rint(S
 * * (Qmax / A)), +-Qmax), S' = c * (A / Qmax), both quotients one f32 division; A = 0 gives S' = 0.
 * Entries that a row does not see never count. */
typedef enum dq_granularity {
    DQ_GRANULARITY_TENSOR, /* one sequence: all query heads (both maps) and rows of the layer */
    DQ_GRANULARITY_HEAD,   /* one sequence and query head */
    DQ_GRANULARITY_ROW,    /* one row of one query head */
    DQ_GRANULARITY_TILE    /* positions floor(t/64) x floor(s/64) of one query head */
} dq_granularity;
enum { DQ_GRANULARITIES = 4 };
extern const char *const
    dq_granularity_name[DQ_GRANULARITIES]; /* "per-tensor", "per-head", "per-row", "per-tile" */

typedef struct dq_logit_spec {
    int bits; /* 2..8, or 16: not rounded */
    dq_granularity granularity;
} dq_logit_spec;
extern const dq_logit_spec dq_logit_plain; /* 16 bits, granularity tensor */

/* False, with *out unchanged: no such width or granularity. */
bool dq_logit_parse(dq_logit_spec *out, int64_t bits, const char *granularity);

static inline bool dq_logit_rounds(dq_logit_spec s)
{
    return s.bits < 16;
}

/* Whether rows of a sequence depend on each other, so that nothing can be computed ahead. */
static inline bool dq_logit_ties_rows(dq_logit_spec s)
{
    return dq_logit_rounds(s) && s.granularity != DQ_GRANULARITY_ROW;
}

/* Whether the largest logit of all rows is needed before the first is rounded. */
static inline bool dq_logit_needs_absmax(dq_logit_spec s)
{
    return dq_logit_rounds(s) &&
           (s.granularity == DQ_GRANULARITY_TENSOR || s.granularity == DQ_GRANULARITY_HEAD);
}

static inline bool dq_logit_by_tile(dq_logit_spec s)
{
    return dq_logit_rounds(s) && s.granularity == DQ_GRANULARITY_TILE;
}

/* At 16 bits the granularity does not matter. */
static inline bool dq_logit_same(dq_logit_spec a, dq_logit_spec b)
{
    return a.bits == b.bits && (!dq_logit_rounds(a) || a.granularity == b.granularity);
}

/* ---- Gates ----
 * How much a second pass would look at a token, foretold from what the cache holds of it. For each
 * layer and group of KV heads a linear model of ln(peak + DQ_KV_GATES_FLOOR), where peak is what
 * runner.h notes: one pass then ranks tokens as two do. KVzap (arXiv 2601.07891) foretells
 * the same from hidden states, which are gone once the cache is there; keys and values are linear
 * in them.
 *
 * Features of a token, of each KV head of its group: the key before RoPE (head_dim), the value
 * (head_dim), |key|, ln |value|; then ln(1 + position) and 1. */

#define DQ_KV_GATES_FLOOR 1e-6

/* List i = layer * n_groups + group has weight[at[i]] .. weight[at[i + 1]] - 1, one per feature. */
typedef struct dq_kv_gates {
    int n_layers, n_groups, head_dim;
    const int *heads;  /* [n_groups] KV heads of each group */
    const int64_t *at; /* [n_layers * n_groups + 1] */
    double *weight;
    /* text of the file (the caller's), its SHA-256, and its model's fingerprint; else NULL and
     * "" */
    const char *text;
    size_t len;
    char sha256[65], model[65];
} dq_kv_gates;

int64_t dq_kv_gates_features(int heads, int head_dim);
/* f[features] of one token. row[2 * heads * head_dim]: the heads' keys, then values. */
void dq_kv_gates_describe(double *f, const float *row, int heads, int head_dim, int32_t pos);

/* Zero weights for a model's groups; heads[n_groups] is copied. DQ_RESOURCE. */
dq_status dq_kv_gates_new(dq_kv_gates **out, int n_layers, int n_groups, int head_dim,
                          const int *heads, dq_arena *a, dq_err *err);
/* score[n] of a list's tokens; row[n][2 * heads * head_dim]. DQ_RESOURCE. */
dq_status dq_kv_gates_score(double *score, const dq_kv_gates *g, int list, const float *row,
                            const int32_t *pos, int64_t n, dq_err *err);

struct dq_row_writer;
/* Members of a file (dq-gates/1, FORMAT.md), which may have others, and back; `text` must outlive
 * it. DQ_DAMAGED by name: missing, malformed or not finite. */
void dq_kv_gates_rows(struct dq_row_writer *w, const dq_kv_gates *g);
dq_status dq_kv_gates_parse(dq_kv_gates **out, const char *text, size_t len, const char *where,
                            dq_arena *a, dq_err *err);
/* DQ_MISMATCH: the model has other layers, groups or heads. */
dq_status dq_kv_gates_fit(const dq_kv_gates *g, const dq_kv_gates *model, dq_err *err);

/* A request for a KV cache, before a model is known, as on a command line or in a container; for a
 * model it becomes a dq_kv_spec. */

typedef enum dq_rotate {
    DQ_ROTATE_AUTO, /* per-token codes of <= 4 bits and per-channel keys, if possible */
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
    /* last, see kv.c; the policy may come from dq_kv_policy_stored */
    dq_evict_spec evict;
} dq_kv_config;

extern const dq_kv_config
    dq_kv_config_plain; /* 32:32, nothing evicted; the defaults of everything else but `dense` */
bool dq_kv_config_same(const dq_kv_config *a, const dq_kv_config *b);
/* Old files without codes and eviction have the former default of 64 recent tokens, which becomes
 * today's. */
void dq_kv_config_renew(dq_kv_config *c);
/* The first field that differs; NULL: none. */
const char *dq_kv_config_differs(const dq_kv_config *a, const dq_kv_config *b);

/* What `quant` stands for on a model of n_maps; 0: not known, as 1. DQ_KV_QUANT_AUTO is mixed on
 * one map (results/real); on two per-token codes where tokens are evicted, as the numbers of a
 * page's channels weigh the more, the fewer of its tokens are left, and per-channel codes where
 * none are, or per-token codes have no such widths (results/kv); and per-token codes, by name,
 * where nothing is coded. */
dq_kv_quant dq_kv_config_quant(const dq_kv_config *c, int n_maps);

/* What a setting acts on, and what is there. */
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

/* "8", "8:4", or by layer. 32 is 16 with f32 for what is not coded. DQ_USAGE. */
dq_status dq_kv_config_set_widths(dq_kv_config *c, const char *text, dq_err *err);
/* Groups of KV heads in order of need, as in dq_kv_heads_parse. DQ_USAGE. */
dq_status dq_kv_config_set_heads(dq_kv_config *c, const char *text, dq_err *err);
/* As n_layers or n_maps: no model is known yet. */
enum { DQ_KV_ANY_LAYERS = 0, DQ_KV_ANY_MAPS = 0 };
/* Resolves widths for n_layers; equal ones become k_bits and v_bits. DQ_MISMATCH. */
dq_status dq_kv_config_fit(dq_kv_config *c, int n_layers, dq_err *err);

/* What is asked as a model with n_layers, n_maps and heads of head_dim takes it, rotation resolved,
 * and codes named by what they are: per-channel codes where dithering leaves all values alone. *out
 * is filled in any case; fails as dq_kv_check and dq_kv_config_fit do. What is evicted is checked
 * by dq_evict_check. */
dq_status dq_kv_config_spec(dq_kv_spec *out, const dq_kv_config *c, dq_num num, int head_dim,
                            int n_layers, int n_maps, dq_err *err);
/* DQ_DAMAGED: widths, windows or shares that no container may have. */
dq_status dq_kv_config_check(const dq_kv_config *c, dq_err *err);

/* As in a recipe, and back; an unknown policy goes to the arena. */
json_t *dq_kv_config_json(const dq_kv_config *c);
dq_status dq_kv_config_read(dq_kv_config *out, const json_t *o, dq_arena *a, dq_err *err);
/* As in a file by people: the same keys, all optional with their defaults; `widths` may be any text
 * of --kv-bits. DQ_DAMAGED with the key: unknown, a wrong value, or without effect. */
dq_status dq_kv_config_file(dq_kv_config *out, const json_t *o, dq_err *err);

/* ---- Settings one by one ----
 * The settings of a KV cache one by one. A row of the table says where a setting stands in
 * dq_kv_config and dq_kv_spec, how it is named, and what it acts on; options and their help, JSON,
 * HDF5 attributes, columns of a CSV, equality and the key of a resumed run go through the rows. */

typedef enum dq_kv_type {
    DQ_KV_INT,      /* int */
    DQ_KV_WIDTH,    /* the same; 0 in dq_kv_config where widths say, and results list the mean */
    DQ_KV_LONG,     /* int64_t, or uint64_t below 2^63 */
    DQ_KV_ROWS,     /* int64_t; -1: as the policy says */
    DQ_KV_SHARE,    /* double */
    DQ_KV_WORD,     /* an enum with names */
    DQ_KV_ROTATE,   /* the same in dq_kv_config; rotate_k and rotate_v in dq_kv_spec */
    DQ_KV_POLICY,   /* const dq_kv_policy * */
    DQ_KV_BY_LAYER, /* char[DQ_KV_LISTS]; empty: none */
    DQ_KV_BY_GROUP  /* char[DQ_KV_HEADS_TEXT]; the same */
} dq_kv_type;

typedef struct dq_kv_field {
    const char *name;  /* key of JSON, attribute of HDF5 */
    const char *about; /* a sentence of schemas */
    dq_kv_type type;
    size_t config, spec; /* offsets in the two structs */
    unsigned applies;    /* any of DQ_KV_CODES ... it needs to say something; 0: it always does */
    bool or_other;       /* one of several ways to say one thing: 0 where another says it */
    bool later;          /* came after the first files: what is usual is not written */
    const char *const *words; /* [n_words] of a word */
    int n_words;
    /* The option: its place in --help from 1 on (0: none), name, value and text, with {default} and
     * {names} filled in. Numbers lie in [min, max]; dq eval sweeps comma-separated lists, as
     * texts. */
    int option_place;
    const char *option, *value, *help;
    double min, max;
    bool swept;
    int column_place; /* in a CSV from 1 on, for ever: a new one goes to the end; rotate has two */
    const char *column[2]; /* their titles */
} dq_kv_field;

enum { DQ_KV_FIELDS = 17, DQ_KV_OPTIONS = 15, DQ_KV_COLUMNS = 18 };
extern const dq_kv_field dq_kv_fields[DQ_KV_FIELDS]; /* in the order of JSON and HDF5 */

/* Index of the field with this place of an option, or of a column's title, from 1 on. */
int dq_kv_field_of_option(int place);
const char *dq_kv_field_title(int place);
bool dq_kv_field_stored(const dq_kv_field *f, const dq_kv_config *c);

typedef enum dq_kv_form { DQ_KV_AS_INTEGER, DQ_KV_AS_REAL, DQ_KV_AS_TEXT } dq_kv_form;
dq_kv_form dq_kv_field_form(const dq_kv_field *f);
/* By the form of the field. */
typedef struct dq_kv_value {
    int64_t integer; /* of a word, its index */
    double real;
    const char
        *text; /* NULL: no policy, no widths by layer, no heads; set: a word's index counts */
} dq_kv_value;
dq_kv_value dq_kv_field_get(const dq_kv_field *f, const dq_kv_config *c);
/* DQ_DAMAGED, naming the field: an unknown word or a long text; an unknown policy goes to the
 * arena. */
dq_status dq_kv_field_set(const dq_kv_field *f, dq_kv_config *c, dq_kv_value v, dq_arena *a,
                          dq_err *err);

/* What settings are read from, as in dq_kv_config_read. */
typedef struct dq_kv_reader {
    void *arg;
    bool (*has)(void *arg, const char *name);
    dq_status (*read)(void *arg, const dq_kv_field *f, dq_kv_value *v, dq_err *err);
    const char *where; /* stands before messages but those of `read` */
} dq_kv_reader;
dq_status dq_kv_config_take(dq_kv_config *out, const dq_kv_reader *r, dq_arena *a, dq_err *err);

bool dq_kv_spec_same(const dq_kv_spec *a, const dq_kv_spec *b);
/* A column of dq_kv_spec: a text (number NaN), or NULL and the number, NaN where the setting has no
 * effect. */
const char *dq_kv_spec_column(double *number, const dq_kv_spec *s, int place);
/* As in results and keys of resumed runs, null where a setting has no effect; s NULL: described. */
void dq_kv_spec_rows(dq_row_writer *w, const dq_kv_spec *s);
json_t *dq_kv_spec_json(const dq_kv_spec *s);
/* For rows whose value dq_kv_spec_json or dq_kv_config_json has made. */
#define DQ_KV_SPEC   .def = "kv_spec", .describe = dq_kv_spec_describe
#define DQ_KV_CONFIG .def = "kv_config", .describe = dq_kv_config_describe
void dq_kv_spec_describe(dq_row_writer *w);
void dq_kv_config_describe(dq_row_writer *w);
void dq_kv_config_file_describe(dq_row_writer *w); /* of a recipe, in which each may lack */

/* How a page stores the tokens of one KV head, and its bytes: what every backend allocates and
 * "Bytes" predicts. */

/* How all pages store keys, or values. */
typedef struct dq_kv_page_form {
    int bits;         /* the largest, where layers or heads differ */
    int group;        /* channels per scale; the last run of a head may be shorter */
    int64_t n_scales; /* per token and head: scales, or steps then lows; 0: per-channel */
    bool has_lows;
    /* per-channel codes, per set and head: a step for each channel, then a low; else 0 */
    int64_t set_scales;
    int64_t plain_floats; /* of one head and page, each of dq_kv_dense_bytes */
    int64_t code_bytes;   /* of one head and page; 0: 16 bits */
} dq_kv_page_form;
dq_kv_page_form dq_kv_page_form_of(const dq_kv_spec *spec, bool values, int head_dim);
/* Per head and page with n_sets of per-channel codes; two bytes each, or four with `wide`. */
int64_t dq_kv_page_scale_bytes(const dq_kv_page_form *form, int64_t n_sets, bool wide);

/* Bytes of a page's positions, counts and pointers; of a list's; and of a pointer per page of its
 * capacity. */
enum { DQ_KV_PAGE_INDEX = 360, DQ_KV_LIST_INDEX = 48, DQ_KV_POINTER_INDEX = 8 };
/* Pages that a list of n has capacity for. */
int64_t dq_kv_page_capacity(int64_t n);

/* Predicted bytes of a compressed KV cache where a context ends, and the most tokens that fit a
 * share of 16 bits. Widths for a size: results/real/README.md, "Equal bytes". */

typedef struct dq_kv_shape {
    int n_layers, n_groups, n_kv, head_dim; /* a group has n_kv / n_groups heads */
    int n_windows, window;                  /* layers with a window, of n_layers; its tokens */
} dq_kv_shape;

/* Bytes of all tokens of a context at two bytes per element; of what a window holds. */
int64_t dq_kv_size_whole(const dq_kv_shape *m, int64_t context);
/* At most, where every group of a layer without a window keeps `kept` tokens of a context, or as
 * many on average where they share by score: pages, sinks, what is not coded yet, index, and
 * the lows and steps of the pages of keys that tokens come from, which all may have kept one.
 * Scales that f16 cannot hold are not foretold. Not for a budget by heads, nor for widths by
 * layer. */
int64_t dq_kv_size_bytes(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context, int64_t kept);
/* The most tokens per group, fewer than all, that need at most `bytes`. 0: not even one beside the
 * protected ones fits, and *least (NULL allowed) is the least such a cache needs. */
int64_t dq_kv_size_tokens(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context, double bytes,
                          int64_t *least);
/* The shortest decimal fraction from which dq_evict_budget makes `kept` of a context. */
double dq_kv_size_share(int64_t kept, int64_t context);

/* Candidates for a size, largest first. */
typedef struct dq_kv_size_row {
    double size;
    int bits;   /* of keys and values */
    int recent; /* -1: as usual */
} dq_kv_size_row;
enum { DQ_KV_SIZE_ROWS = 4 };
extern const dq_kv_size_row dq_kv_size_rows[DQ_KV_SIZE_ROWS];
/* The first row at most a tenth larger than the size (just below 1/2, 8 bits are better than 4);
 * else the last. */
int dq_kv_size_first(double size);

/* The result for contexts of so many tokens. */
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

dq_status dq_kv_size_parse(double *size, int64_t *context, const char *text, dq_err *err);

#endif
