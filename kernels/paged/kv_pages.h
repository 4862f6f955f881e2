/* The KV cache in pages, as every backend keeps it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_PAGES_H
#define DQ_KV_PAGES_H

#include "engine/backend.h"
#include "kv/kv.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- Key factor ----
 * The factor of the keys' Gram matrix that leverages (backend.h) are made with, in f64 on the
 * host. Private to kernels. */

/* right[cols][ld] = U^-1, an upper triangle with zeros below, of gram + e I = U'U (backend.h), read
 * from gram's upper triangle. work[2][cols][ld]. False: values are not finite. */
bool dq_key_factor(float *right, double *work, const double *gram, int64_t cols, int64_t ld);

/* ---- KV pages ----
 * The bookkeeping of a paged KV cache: sequences, forks, which tokens a page holds and when they
 * become codes. All of it is on the host; what pages hold lies in the backend's memory. Private to
 * kernels. */

enum { DQ_K, DQ_V };

/* Codes of one KV head on the pages of its layer and group. */
typedef struct dq_kv_head_codes {
    int bits;
    int64_t at; /* bytes before them, of the heads before it */
} dq_kv_head_codes;

/* Keys or values of a page: arrays hold its group's KV heads in turn; NULL: none. The backend owns
 * the memory and alone knows how tokens lie in `plain` and `codes`. */
typedef struct dq_kv_arrays {
    void *plain;    /* unquantized, in dq_kv.dense; form.plain_floats a head */
    uint8_t *codes; /* dq_kv_code_bytes together */
    /* [heads][form.n_scales * DQ_PAGE_TOKENS] or [n_sets][heads][form.set_scales]; wide: f32 */
    void *scale;
    void *sinks; /* the same [n_sinks][head_dim] a head: what is never coded in a page that is */
    bool wide;
    bool overflow;  /* while codes are made: a scale or low stays f32 (kv.h) */
    uint8_t n_sets; /* that there is room for, DQ_PAGE_TOKENS at most */
} dq_kv_arrays;

/* DQ_PAGE_TOKENS tokens of one (sequence, layer, KV head group). Forks share pages; a shared page
 * is copied before tokens are written to it. Slots from a list's count on may hold what another
 * holder appended or a rewind left. Codes follow from unquantized values of a slot, or of a set,
 * which stands whole in one page, whoever makes them, so they are added to shared pages too. */
typedef struct dq_kv_page {
    int32_t holders;
    int32_t agreed; /* holders that will not read coded slots unquantized again */
    /* per-channel codes: bit i: slot i is the first of a set, which ends at the next */
    uint64_t begins;
    uint8_t n_sinks; /* slots before the first one with codes; 0 without codes */
    uint8_t index;   /* among the pages of one allocation */
    int16_t coded;   /* slots n_sinks .. coded-1 have codes */
    int16_t due;     /* while codes are made: what `coded` becomes */
    uint16_t place;  /* whose widths its codes have: dq_kv_place */
    dq_kv_arrays arrays[2];
    int32_t pos[DQ_PAGE_TOKENS];
} dq_kv_page;

typedef struct dq_kv_slab dq_kv_slab; /* kv_pages.c */

/* The tokens of one (sequence, layer, group), positions ascending. */
typedef struct dq_kv_list {
    dq_kv_page **page;
    int64_t n_pages, capacity; /* n_pages * DQ_PAGE_TOKENS >= count */
    int64_t count;
    int32_t agreed;    /* leading pages in whose `agreed` this list counts */
    int32_t since;     /* a query at a lower position would see what has left its window */
    int32_t compacted; /* positions sink .. compacted-1 are held as codes only */
    int32_t own;       /* the device's; 0: nothing */
} dq_kv_list;

_Static_assert(sizeof(dq_kv_page) == DQ_KV_PAGE_INDEX && sizeof(dq_kv_list) == DQ_KV_LIST_INDEX &&
                   sizeof(dq_kv_page *) == DQ_KV_POINTER_INDEX,
               "what kv_size.h foretells");

/* Slots coded .. due-1 of a group's page get codes: on both sides, or one (side >= 0). */
typedef struct dq_kv_job {
    dq_kv_page *page;
    int group, side;
    dq_kv_list *list; /* in which it is page `index` */
    int64_t index;
} dq_kv_job;

/* Rows that are appended to a layer; positions and pages for them are there. */
typedef struct dq_kv_new_rows {
    int layer;
    const dq_batch *batch;
    dq_mat k, v;
    bool written;
    /* The device keeps views of them: pages that will hold codes alone have no unquantized part,
     * and codes are made from k and v. */
    bool viewed;
} dq_kv_new_rows;

/* What a backend does with the memory of pages. Functions that return false have set b->err. */
typedef struct dq_kv_device {
    bool (*blocks_new)(dq_backend *b, void **p, int64_t n, int64_t bytes); /* all n or none */
    void (*block_free)(dq_backend *b, void *p); /* NULL allowed; after an error too */
    void (*block_copy)(dq_backend *b, void *dst, const void *src, int64_t bytes);
    /* The new unquantized part of a page with codes: slots 0 .. n-1 of all heads from their
     * sinks, zeros after them. */
    void (*reopen)(dq_backend *b, const dq_kv *kv, dq_kv_page *p, int group, int side, int64_t n);
    /* rows: into the last slots of each list, unless they are `written`. Where the first slot of a
     * page is among them, slots without a token become zero. DQ_MISMATCH for a finite number that
     * kv->dense would make infinite; then there may be codes of it. NULL: none.
     * Then codes and scales of all jobs; of a page without codes (`coded` is n_sinks) sinks are
     * copied, too, and what has no token becomes zero. Where a scale or low of a side that is not
     * wide stays f32, its `overflow` is set and that side's codes may be left half made; else it
     * is cleared. */
    bool (*fill)(dq_backend *b, const dq_kv *kv, const dq_kv_new_rows *rows, const dq_kv_job *jobs,
                 int64_t n);
    /* Whether the device itself keeps what the rows that are about to be appended read, till they
     * have been attended to. NULL: it does not. */
    bool (*keeps_views)(const dq_backend *b, const dq_kv *kv, int layer, const dq_batch *batch,
                        dq_num reads);
    void (*widen)(dq_backend *b, float *to, const void *f16, int64_t n);
    /* Tokens kept[0 .. n-1] of the list become slots 0 .. n-1 of a new page that has the parts
     * they need; what has no token becomes zero. */
    bool (*move)(dq_backend *b, const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *from,
                 const int32_t *kept, int64_t n);
    /* From page `index` on a list has other pages, or pages with other arrays, sinks or sets; list
     * NULL: any list may. NULL: the device keeps nothing about lists. */
    void (*changed)(const dq_kv *kv, const dq_kv_list *list, int64_t index);
    /* A list ends, and what its `own` stands for with it. NULL as `changed`. */
    void (*list_free)(const dq_kv *kv, const dq_kv_list *list);
} dq_kv_device;

struct dq_kv {
    dq_backend *b;
    const dq_kv_device *device;
    const dq_head_order *map;
    dq_kv_spec spec;
    bool has_codes, by_page;
    dq_dtype dense; /* of what is not coded: DQ_F32, DQ_F16 or DQ_BF16 */
    int dense_bytes;
    int n_layers;
    int64_t v_cols; /* head_dim, padded to a multiple of 16 with zeros */
    dq_kv_page_form form[2];
    float dither[DQ_PAGE_TOKENS]; /* of values, by position; 0: none */
    bool by_layer; /* widths differ by layer or map: a place is a layer and group, else a group */
    dq_kv_head_codes
        *codes; /* [places][2][max_heads + 1]; after the last head of a group its end */
    int max_heads;
    int *slot;        /* [n_kv] index of a KV head inside its group */
    int *heads;       /* [n_groups] KV heads of each group */
    dq_kv_list **seq; /* [n_seq] of [n_layers * n_groups]; NULL: free handle */
    int32_t n_seq;
    int32_t lowest;   /* no free handle is below it */
    void *own;        /* the device's */
    dq_kv_slab *kept; /* memory of pages that no page is in */
    int n_kept;
    dq_kv_bytes bytes; /* kept up to date by every change, but for tokens and tokens_coded */
};

/* Runs of channels of a head that have a scale, or a step and a low, for each token. */
static inline int64_t dq_kv_runs(const dq_kv_page_form *form)
{
    return form->has_lows ? form->n_scales / 2 : form->n_scales;
}

static inline dq_kv_list *dq_kv_list_of(const dq_kv *kv, int32_t seq, int layer, int group)
{
    return &kv->seq[seq][layer * kv->map->n_groups + group];
}

static inline int32_t dq_kv_pos(const dq_kv_list *list, int64_t i)
{
    return list->page[i / DQ_PAGE_TOKENS]->pos[i % DQ_PAGE_TOKENS];
}

/* What a page keeps for the slot-th head of its group. */
static inline void *dq_kv_plain_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return (uint8_t *)p->arrays[side].plain + slot * kv->form[side].plain_floats * kv->dense_bytes;
}

/* Of a page's slot-th head; of the end of its heads, too. */
static inline const dq_kv_head_codes *dq_kv_head_codes_of(const dq_kv *kv, const dq_kv_page *p,
                                                          int side, int slot)
{
    return &kv->codes[(2 * p->place + side) * (kv->max_heads + 1) + slot];
}

static inline uint8_t *dq_kv_codes_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return p->arrays[side].codes + dq_kv_head_codes_of(kv, p, side, slot)->at;
}

static inline int dq_kv_bits_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return dq_kv_head_codes_of(kv, p, side, slot)->bits;
}

static inline void *dq_kv_sinks_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return (uint8_t *)p->arrays[side].sinks +
           (int64_t)slot * p->n_sinks * kv->map->head_dim * kv->dense_bytes;
}

/* How many sets of per-channel codes begin in the first n slots. */
static inline int dq_kv_sets(const dq_kv_page *p, int64_t n)
{
    int sets = 0;
    for (uint64_t x = n < 64 ? p->begins & ((1ull << n) - 1) : p->begins; x; x &= x - 1) sets++;
    return sets;
}

/* The slot after the set that begins at `slot`, `end` at most. */
static inline int64_t dq_kv_set_end(const dq_kv_page *p, int64_t slot, int64_t end)
{
    do slot++;
    while (slot < end && !(p->begins >> slot & 1));
    return slot;
}

/* Index in a side's numbers of the first of a set and the group's slot-th head. */
static inline int64_t dq_kv_set_at(const dq_kv *kv, int group, int side, int set, int slot)
{
    return ((int64_t)set * kv->heads[group] + slot) * kv->form[side].set_scales;
}

static inline int64_t dq_kv_slots(int64_t index, int64_t page)
{
    const int64_t n = index - page * DQ_PAGE_TOKENS;
    return n < 0 ? 0 : n > DQ_PAGE_TOKENS ? DQ_PAGE_TOKENS : n;
}

/* How many tokens stand at positions <= t: what a query at t sees. */
int64_t dq_kv_visible(const dq_kv_list *list, int32_t t);
/* How many of the first tokens a query at t does not see any more; window as in dq_attn. */
int64_t dq_kv_hidden(const dq_kv_list *list, int window, int32_t t);
/* The list from the page of the first token that a query at t sees; its pages are the list's. */
dq_kv_list dq_kv_seen(const dq_kv_list *list, int window, int32_t t);
/* How many tokens a query at position t reads as codes, sinks counted with them: it reads tokens
 * 0 .. n-1 of the list as codes, except for sinks, and all others unquantized. */
int64_t dq_kv_coded_index(const dq_kv *kv, const dq_kv_list *list, int32_t t);
/* The same for a whole list. False: DQ_BUG in b->err: a token that is read unquantized has only
 * codes, or one that is read as codes has none. */
bool dq_kv_read_as_at(dq_backend *b, const dq_kv *kv, const dq_kv_list *list, int32_t t,
                      int64_t *coded_end);

/* Consecutive rows of one sequence, at most DQ_PAGE_TOKENS where attention works on blocks. */
typedef struct dq_kv_rows {
    int seq;            /* index in the batch */
    int64_t first, n;   /* rows of the batch */
    const int32_t *pos; /* of row `first` */
} dq_kv_rows;

/* Rows first .. first+n-1 of a block read the same tokens as codes. */
typedef struct dq_kv_span {
    int64_t first, n, coded_end;
} dq_kv_span;

/* Cuts a block, whose rows share a tile of positions, by what they read as codes: 1 or 2 spans. */
int dq_kv_spans(dq_kv_span span[2], const dq_kv *kv, const dq_kv_list *list,
                const dq_kv_rows *rows);
/* The same for one page, where both spans may read alike. */
int dq_kv_page_spans(dq_kv_span out[2], const dq_kv_span *span, int n, int64_t page);

/* ---- Operations of backend.h, on the host but for what `device` does. */
dq_kv *dq_kv_pages_new(dq_backend *b, const dq_head_order *map, int n_layers,
                       const dq_kv_spec *spec, const dq_kv_device *device);
void dq_kv_pages_free(dq_backend *b, dq_kv *kv);
int32_t dq_kv_pages_seq_new(dq_backend *b, dq_kv *kv);
int32_t dq_kv_pages_fork(dq_backend *b, dq_kv *kv, int32_t seq);
void dq_kv_pages_seq_free(dq_backend *b, dq_kv *kv, int32_t seq);
void dq_kv_pages_append(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                        dq_mat v, dq_num reads);
void dq_kv_pages_rewind(dq_backend *b, dq_kv *kv, int32_t seq, int32_t length);
void dq_kv_pages_keep(dq_backend *b, dq_kv *kv, int32_t seq, int layer, int group,
                      const int32_t *kept, int64_t n);
void dq_kv_pages_compact(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, int window);
int64_t dq_kv_pages_count(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                          int32_t *pos);
dq_kv_bytes dq_kv_pages_bytes(dq_backend *b, const dq_kv *kv);
/* Sets b->err: a layer has a number of this magnitude, which `dense` would make
 * infinite. */
void dq_kv_refuse_range(dq_backend *b, dq_dtype dense, int layer, float beyond);
/* True; else DQ_BUG in b->err. */
bool dq_kv_pages_known(dq_backend *b, const dq_kv *kv, int32_t seq);
/* Whether a row at t would read a token unquantized that is held as codes only. */
bool dq_kv_lost(const dq_kv *kv, const dq_kv_list *list, int32_t t);

/* ---- Span rows ----
 * The rows of a call that count for spans (observe.h), where their masses stand, and the class of
 * every token that they may see. Private to kernels. */

/* Masses are [n][n_out][n_classes]; row `row` of the batch, of sequence i, has the record
 * at[i] + row - dq_attention_spans_first(i). */
typedef struct dq_span_rows {
    int64_t n;   /* rows that count */
    int64_t *at; /* [n_seq + 1] */
    /* Where a list's classes start in label; none where no row of the sequence counts. */
    int64_t *key; /* [n_seq * n_groups + 1] */
    uint8_t *label;
    size_t row_bytes; /* of the masses of one row */
} dq_span_rows;

/* False with the sticky error set and nothing to free; classes that do not exist are a DQ_BUG. */
bool dq_span_rows_new(dq_backend *b, dq_span_rows *s, const dq_attend_args *args);
void dq_span_rows_free(dq_span_rows *s); /* zeroes too */
/* Records before those of each sequence: at[n_seq + 1]. */
void dq_span_rows_place(int64_t *at, const dq_attention_spans *spans, const dq_batch *batch);
/* sums[n_seq][n_out] += masses row by row in order, so that cutting a pass never shows. */
void dq_span_rows_add(dq_span_share *sums, const int64_t *at, int n_seq, int n_out, int n_classes,
                      const dq_span_mass *mass);

#endif
