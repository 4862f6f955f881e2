/* cpu_kv: how the CPU backend's KV cache lies in memory, and how attention reads it. Private to
 * kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_KV_H
#define DQ_CPU_KV_H

#include "backend.h"
#include "cpu.h"

enum { DQ_K, DQ_V };

/* How all pages store their keys or their values. */
typedef struct dq_kv_form {
    int bits;
    int group;            /* channels per scale; the last run of a head may be shorter */
    int64_t n_scales;     /* per token and head */
    int64_t plain_floats; /* of one head and page */
    int64_t code_bytes;   /* of one head and page; 0: 16 bits */
} dq_kv_form;

/* Keys or values of a page, for every KV head of its group. Lines of codes are made of planes, see
 * simd_kv.h: a line of keys is one channel of all tokens, because attention wants keys transposed; a
 * line of values is one token. */
typedef struct dq_kv_part {
    float *plain; /* unquantized: keys [head_dim][DQ_PAGE], values [DQ_PAGE][v_cols]; NULL: none */
    uint8_t *codes; /* keys [v_cols][..64 codes], values [DQ_PAGE][..v_cols codes]; NULL: none */
    void
        *scale; /* f16, or f32 where `wide`: keys [n_scales][DQ_PAGE], values [DQ_PAGE][n_scales] */
    float *sinks; /* [n_sinks][head_dim]: what is never coded in a page that is */
    bool wide;
} dq_kv_part;

/* DQ_PAGE tokens of one (sequence, layer, KV head group). Forks share pages; a page with more than one
 * holder is copied before tokens are written to it. Slots at and after a list's count may hold what
 * another holder appended or what a rewind left: readers stop at the count. Codes follow from a slot's
 * unquantized values, whoever makes them, so they are added to shared pages too. */
typedef struct dq_kv_page {
    int32_t holders;
    int32_t agreed;  /* holders that will not read coded slots unquantized again */
    int32_t n_sinks; /* slots before the first one with codes; 0 without codes */
    int32_t coded;   /* slots n_sinks .. coded-1 have codes */
    int32_t due;     /* while codes are made: what `coded` becomes */
    bool odd[2];     /* while codes are made: a scale does not fit in f16 */
    dq_kv_part part[2];
    int32_t pos[DQ_PAGE];
} dq_kv_page;

/* The tokens of one (sequence, layer, group), positions ascending. */
typedef struct dq_kv_list {
    dq_kv_page **page;
    int64_t n_pages, capacity; /* n_pages * DQ_PAGE >= count */
    int64_t count;
    int64_t agreed;  /* leading pages in whose `agreed` this list counts */
    int32_t settled; /* positions sink .. settled-1 are held as codes only */
} dq_kv_list;

struct dq_kv {
    const dq_headmap *map;
    dq_kv_spec spec;
    bool has_codes;
    int n_layers;
    int64_t v_cols; /* head_dim, padded to a multiple of 16 with zeros */
    dq_kv_form form[2];
    int *slot;        /* [n_kv] index of a KV head inside its group */
    int *heads;       /* [n_groups] KV heads of each group */
    dq_kv_list **seq; /* [n_seq] of [n_layers * n_groups]; NULL: free handle */
    int32_t n_seq;
    dq_kv_bytes bytes; /* kept up to date by every change, but for tokens and tokens_coded */
};

static inline const dq_kv_list *dq_kv_list_of(const dq_kv *kv, int32_t seq, int layer, int group)
{
    return &kv->seq[seq][layer * kv->map->n_groups + group];
}

static inline int32_t dq_kv_pos(const dq_kv_list *list, int64_t i)
{
    return list->page[i / DQ_PAGE]->pos[i % DQ_PAGE];
}

/* What a page keeps for the slot-th head of its group. */
static inline float *dq_kv_plain_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return p->part[side].plain + slot * kv->form[side].plain_floats;
}

static inline uint8_t *dq_kv_codes_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return p->part[side].codes + slot * kv->form[side].code_bytes;
}

static inline float *dq_kv_sinks_of(const dq_kv *kv, const dq_kv_page *p, int side, int slot)
{
    return p->part[side].sinks + (int64_t)slot * p->n_sinks * kv->map->head_dim;
}

static inline int64_t dq_kv_slots(int64_t index, int64_t page)
{
    const int64_t n = index - page * DQ_PAGE;
    return n < 0 ? 0 : n > DQ_PAGE ? DQ_PAGE : n;
}

/* How many tokens stand at positions <= t: what a query at t sees. */
int64_t dq_kv_visible(const dq_kv_list *list, int32_t t);
/* How many tokens a query at position t reads as codes, sinks counted with them: it reads tokens
 * 0 .. n-1 of the list as codes, except for sinks, and all others unquantized. */
int64_t dq_kv_coded_index(const dq_kv *kv, const dq_kv_list *list, int32_t t);

/* ---- Reading. One page of one KV head as a query reads it that takes the tokens below index
 * `coded_end` of the list as codes: keys [head_dim][DQ_PAGE], values [DQ_PAGE][v_cols]. Where nothing is
 * coded this is the page itself, else scratch (dq_kv_scratch_floats(kv) floats) is filled; the result
 * is good until scratch is used again. Slots behind the list's count hold anything. */
const float *dq_kv_read_keys(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                             int64_t page, int head, int64_t coded_end, float *scratch);
const float *dq_kv_read_values(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                               int64_t page, int head, int64_t coded_end, float *scratch);
int64_t dq_kv_scratch_floats(const dq_kv *kv);

/* The same without reading codes back: which slots are read as codes, and the others as f32. */
typedef struct dq_kv_view {
    const float *plain; /* as above, zero where coded; NULL: nothing is read there */
    const uint8_t *codes;
    const uint8_t *next;    /* codes of the following page of the list; NULL: it has none */
    const float *scale;     /* [n_scales][DQ_PAGE]; of values zero where not coded */
    int64_t first, end;     /* slots read as codes; the same: none */
    const dq_kv_form *form; /* NULL: none */
} dq_kv_view;
dq_kv_view dq_kv_view_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                           int64_t page, int side, int head, int64_t coded_end, float *scratch);

/* Consecutive rows of one sequence, at most DQ_PAGE of them where attention works on blocks. */
typedef struct dq_rows {
    int seq;            /* index in the batch */
    int64_t first, n;   /* rows of the batch */
    const int32_t *pos; /* of row `first` */
} dq_rows;

/* Rows first .. first+n-1 of a block read the same tokens as codes. */
typedef struct dq_kv_span {
    int64_t first, n, coded_end;
} dq_kv_span;

/* Cuts a block, whose rows share a tile of positions, by what they read as codes: 1 or 2 spans. */
int dq_kv_spans(dq_kv_span span[2], const dq_kv *kv, const dq_kv_list *list, const dq_rows *rows);
/* The same for one page, where both spans may read alike. */
int dq_kv_page_spans(dq_kv_span out[2], const dq_kv_span *span, int n, int64_t page);

/* ---- cpu_kv_page.c: memory of pages. On one thread; kv->bytes follows. */
dq_kv_page *dq_kv_page_new(dq_backend *b, dq_kv *kv); /* without parts */
/* Unquantized parts; sinks among the first `at` slots come back into them. */
bool dq_kv_page_add_plain(dq_backend *b, dq_kv *kv, dq_kv_page *p, int group, int64_t at);
/* Codes and f16 scales, of zero; n_sinks slots are copied beside them. */
bool dq_kv_page_add_codes(dq_backend *b, dq_kv *kv, dq_kv_page *p, int group, int32_t n_sinks);
bool dq_kv_page_widen(dq_backend *b, dq_kv *kv, dq_kv_page *p, int group, int side);
dq_kv_page *dq_kv_page_copy(dq_backend *b, dq_kv *kv, const dq_kv_page *p, int group);
/* Forgets codes of slots from `at` on, which are written next. The page has its plain parts. */
void dq_kv_page_cut(dq_kv *kv, dq_kv_page *p, int group, int64_t at);
/* Frees what no holder reads any more. */
void dq_kv_page_relax(dq_kv *kv, dq_kv_page *p, int group);
void dq_kv_page_drop(dq_kv *kv, dq_kv_page *p, int group);

/* ---- cpu_kv_codes.c */
/* Codes and scales of slots coded .. due-1 of both sides, or of one (side >= 0), from their
 * unquantized values. Where a scale does not fit, odd[side] is set and that side is left as it was. */
void dq_kv_page_encode(const dq_simd *simd, const dq_kv *kv, dq_kv_page *p, int group, int side,
                       float *scratch);
/* Codes q[v_cols] and scales [n_scales] of token i, which has them. For tests. */
void dq_kv_token_codes(const dq_kv *kv, const dq_kv_list *list, int64_t i, int head, int side,
                       int8_t *q, float *scale);
/* Tokens kept[0..n-1] of the list become slots 0 .. n-1 of a page that has the parts they need. */
void dq_kv_page_move(const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *from,
                     const int32_t *kept, int64_t n, float *scratch);

/* ---- cpu_kv.c */
dq_kv *dq_cpu_kv_new(dq_backend *b, const dq_headmap *map, int n_layers, const dq_kv_spec *spec);
void dq_cpu_kv_free(dq_backend *b, dq_kv *kv);
int32_t dq_cpu_kv_seq_new(dq_backend *b, dq_kv *kv);
int32_t dq_cpu_kv_fork(dq_backend *b, dq_kv *kv, int32_t seq);
void dq_cpu_kv_seq_free(dq_backend *b, dq_kv *kv, int32_t seq);
void dq_cpu_kv_append(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                      dq_mat v);
void dq_cpu_kv_rewind(dq_backend *b, dq_kv *kv, int32_t seq, int32_t length);
void dq_cpu_kv_keep(dq_backend *b, dq_kv *kv, int32_t seq, int layer, int group,
                    const int32_t *kept, int64_t n);
void dq_cpu_kv_settle(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch);
void dq_cpu_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum);
int64_t dq_cpu_kv_count(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                        int32_t *pos);
dq_kv_bytes dq_cpu_kv_bytes(dq_backend *b, const dq_kv *kv);

#endif
