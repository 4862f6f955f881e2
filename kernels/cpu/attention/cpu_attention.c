/* Attention of one row. Query heads that share a KV head are rows of one product with its keys,
 * and what output heads make of their maps rows of one product with its values: a page's codes are
 * made ready and read once for all of them. Maps are subtracted a page at a time, on their way
 * into the product. Rows of a product do not depend on each other, so every bit is that of a
 * larger block.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include "base/os.h"
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/kv/cpu_kv.h"
#include "kernels/paged/kv_pages.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Rows first .. first + rows - 1 of what a block sees of a page. */
static inline void scale_page(const dq_simd *simd, float *s, int64_t ld, int64_t first,
                              int64_t rows, int64_t page, const dq_cpu_scaled *scaled, float *top)
{
    for (int64_t r = first; r < first + rows; r++, s += ld) {
        const int64_t from = dq_kv_slots(scaled->hidden[r], page),
                      to = dq_kv_slots(scaled->visible[r], page);
        const float max = simd->scale_max(s + from, to - from, scaled->scale);
        top[r] = page == 0 || max > top[r] ? max : top[r];
    }
}

/* D of an output head: by[0] p[0] - by[1] p[1], p[0] where there is no second map. */
typedef struct dq_cpu_token_map {
    int out;
    const float *p[2];
    float by[2];
} dq_cpu_token_map;
/* ---- "CPU attention tasks": how a call is cut for threads. It never shows in the results. */
/* Rows first .. end-1 of a sequence for output heads out_first .. out_end-1 of one group. */
typedef struct dq_cpu_task {
    int seq;
    int64_t first, end;
    int out_first, out_end, group;
} dq_cpu_task;

/* ---- CPU attention token ---- */

enum { MAX_ROWS = 64 }; /* of all products of a page */

/* Scratch: rows of queries, or of y, by KV heads; what a page makes of them or takes; D. */
static int64_t token_floats(const dq_attend_args *args, int64_t heads)
{
    const dq_head_order *map = args->attn->map;
    return heads * (map->n_slabs * (map->head_dim + DQ_PAGE_TOKENS) + DQ_PAGE_TOKENS);
}

/* Indices of head[n], those of equal heads one after the other. */
static void order_heads(int *order, const int *head, int n)
{
    int done = 0;
    for (int i = 0; i < n; i++) {
        bool before = false;
        for (int k = 0; k < i; k++) before = before || head[k] == head[i];
        for (int k = i; k < n && !before; k++) {
            if (head[k] == head[i]) order[done++] = k;
        }
    }
}

static int run_end(const int *order, const int *head, int i, int n)
{
    int end = i + 1;
    while (end < n && head[order[end]] == head[order[i]]) end++;
    return end;
}

/* Floats from one of s[order[first]] .. s[order[end - 1]] to the next; 0: not always as many. */
static int64_t rows_apart(float *const *s, const int *order, int first, int end)
{
    int64_t apart = DQ_PAGE_TOKENS;
    for (int i = first + 1; i < end; i++) {
        const int64_t next = s[order[i]] - s[order[i - 1]];
        if (i > first + 1 && next != apart) return 0;
        apart = next;
    }
    return apart;
}

/* Rows of scores are longer than near caches, so a page's columns are far when its turn comes. */
static void fetch_row(const float *s, int64_t page)
{
    for (int64_t i = 0; i < DQ_PAGE_TOKENS; i += 16) DQ_KV_FETCH(s + page * DQ_PAGE_TOKENS + i);
}

/* ---- "CPU attention token": of one row; heads that share a KV head are rows of one product. */
/* As dq_cpu_scores. token: token_floats. */
static void token_scores(const dq_cpu *cpu, float *const *s, const dq_attend_args *args,
                         const dq_kv_rows *row, const dq_kv_list *list, const int *head,
                         int n_heads, int64_t keys, const dq_cpu_scaled *scaled, float *scratch,
                         float *token)
{
    const dq_head_order *map = args->attn->map;
    const int64_t d = map->head_dim;
    float *x = token, *product = token + n_heads * d;
    int key[MAX_ROWS] = {0}, order[MAX_ROWS];
    dq_kv_span span[2];
    dq_kv_spans(span, args->kv, list, row);
    for (int i = 0; i < n_heads; i++) key[i] = map->key[head[i]];
    order_heads(order, key, n_heads);
    for (int i = 0; i < n_heads; i++)
        memcpy(x + i * d, args->q.p + row->first * args->q.cols + head[order[i]] * d,
               (size_t)d * sizeof *x);
    const dq_simd_int8_rows q =
        dq_cpu_round_rows(cpu, args, x, d, n_heads, dq_cpu_rounded_at(args, scratch));
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int64_t slots = dq_kv_slots(keys, p);
        for (int i = 0, end; i < n_heads; i = end) {
            end = run_end(order, key, i, n_heads);
            const dq_cpu_page page = dq_cpu_open_page(cpu, args, list, p, DQ_K, key[order[i]],
                                                      span->coded_end, slots, end - i, scratch);
            const int64_t apart = rows_apart(s, order, i, end);
            float *to = apart ? s[order[i]] + p * DQ_PAGE_TOKENS : product;
            const int64_t ld = apart ? apart : DQ_PAGE_TOKENS;
            dq_cpu_rows_times_keys(cpu, to, ld, args, x + i * d, d, end - i, &q, i, &page, scratch);
            for (int k = i; k < end; k++, to += ld) {
                if (slots < keys - p * DQ_PAGE_TOKENS) fetch_row(s[order[k]], p + 1);
                scale_page(cpu->simd, to, 0, 0, 1, p, scaled, scaled->top[order[k]]);
                if (!apart)
                    memcpy(s[order[k]] + p * DQ_PAGE_TOKENS, to, (size_t)slots * sizeof *product);
            }
        }
    }
}

/* D of n slots from `first` on; those of the page after it, where there is one, are asked for. */
static void map_page(const dq_simd *simd, float *d, const dq_cpu_token_map *m, int64_t first,
                     int64_t n, bool more)
{
    for (int i = 0; more && i < 2 && m->p[i]; i++) fetch_row(m->p[i] + first, 1);
    if (m->p[1])
        simd->diff(d, m->p[0] + first, m->p[1] + first, n, m->by[0], m->by[1]);
    else
        memcpy(d, m->p[0] + first, (size_t)n * sizeof *d);
}

/* Rows of output heads order[n] / slabs in d[][DQ_PAGE_TOKENS]: in place, or copied to `own`. */
static const float *rows_of(float *own, const float *d, const int *order, int n, int slabs)
{
    const int first = order[0] / slabs;
    bool follow = true;
    for (int k = 1; k < n; k++) follow = follow && order[k] / slabs == first + k;
    if (follow) return d + first * DQ_PAGE_TOKENS;
    for (int k = 0; k < n; k++)
        memcpy(own + k * DQ_PAGE_TOKENS, d + order[k] / slabs * DQ_PAGE_TOKENS,
               DQ_PAGE_TOKENS * sizeof *own);
    return own;
}

/* y = D V in the places of n output heads, y[n_out][n_slabs * head_dim]; keys > 0. */
static void cpu_token_values(const dq_cpu *cpu, float *y, const dq_attend_args *args,
                             const dq_kv_rows *row, const dq_kv_list *list,
                             const dq_cpu_token_map *m, int n, int64_t keys, float *scratch,
                             float *token)
{
    const dq_head_order *map = args->attn->map;
    const int64_t d = map->head_dim;
    const int slabs = map->n_slabs, n_rows = n * slabs;
    float *sum = token, *own = token + n_rows * d, *maps = own + n_rows * DQ_PAGE_TOKENS;
    int head[MAX_ROWS] = {0}, order[MAX_ROWS];
    dq_kv_span span[2];
    dq_kv_spans(span, args->kv, list, row);
    for (int e = 0; e < n_rows; e++) head[e] = map->head[m[e / slabs].out].v[e % slabs];
    order_heads(order, head, n_rows);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int64_t slots = dq_kv_slots(keys, p);
        for (int i = 0; i < n; i++)
            map_page(cpu->simd, maps + i * DQ_PAGE_TOKENS, &m[i], p * DQ_PAGE_TOKENS, slots,
                     slots < keys - p * DQ_PAGE_TOKENS);
        for (int i = 0, end; i < n_rows; i = end) {
            end = run_end(order, head, i, n_rows);
            const dq_cpu_page page = dq_cpu_open_page(cpu, args, list, p, DQ_V, head[order[i]],
                                                      span->coded_end, slots, end - i, scratch);
            dq_cpu_times_values(cpu, sum + i * d, d, args,
                                rows_of(own, maps, order + i, end - i, slabs), DQ_PAGE_TOKENS,
                                end - i, &page, p > 0, scratch);
        }
    }
    for (int i = 0; i < n_rows; i++) {
        const int e = order[i];
        memcpy(y + ((int64_t)m[e / slabs].out * slabs + e % slabs) * d, sum + i * d,
               (size_t)d * sizeof *y);
    }
}

/* ---- CPU attention int8 ----
 * Products of attention with pages of the cache, in f32 and in integers.
 *
 * In int8 arithmetic no code is read back. A query row is rounded to 8 bits once per run of
 * channels that keys share a scale in; D, times the values' scales, to 16 bits per row and page: 8
 * would cost more than the codes of the values do, and a difference of maps needs two 8-bit
 * products anyway, as D in two bytes or as both maps. Sums of codes are exact; they are added in
 * f32 in the order of channels and pages. What lows of values add is a sum of D times middles for
 * each run, in f32. Per-channel codes have a step for each channel: a query row times a page's
 * steps is rounded for that page, D once for all channels, and what lows add is a sum over
 * channels, or of D, in f32. So a result depends on nothing but its own row. */

/* Floats that keep what follows on 64 bytes. */
static int64_t floats_of(int64_t bytes)
{
    return (bytes + 63) / 64 * 16;
}

/* Whether codes of `bits` are multiplied as they are. */
static bool in_int8(dq_num num, int bits)
{
    return num == DQ_NUM_INT8 && bits < 16;
}

static bool int8_keys(const dq_attend_args *args)
{
    return in_int8(args->math.qk, args->kv->form[DQ_K].bits);
}

static bool int8_values(const dq_attend_args *args)
{
    return in_int8(args->math.pv, args->kv->form[DQ_V].bits);
}

const char *dq_cpu_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, int head_dim,
                                 dq_math math)
{
    (void)head_dim;
    static const char *const name[2][2] = {{"attend", "attend with int8 values"},
                                           {"attend with int8 keys", "attend_int8"}};
    (void)b;
    const dq_num of[] = {math.qk, math.pv};
    for (int i = 0; i < 2; i++)
        if (of[i] != DQ_NUM_F32 && of[i] != DQ_NUM_INT8) return NULL;
    return name[in_int8(math.qk, kv->k_bits)][in_int8(math.pv, kv->v_bits)];
}

static int64_t block_floats(const dq_attend_args *args)
{
    const dq_kv *kv = args->kv;
    const int64_t d = kv->map->head_dim;
    int64_t keys = 0, values = 0;
    if (int8_keys(args)) keys = dq_simd_int8_key_bytes(d, kv->form[DQ_K].group);
    if (int8_values(args)) values = dq_simd_int8_value_bytes(kv->v_cols);
    return floats_of(keys > values ? keys : values);
}

static int64_t work_floats(const dq_attend_args *args)
{
    const dq_kv *kv = args->kv;
    int64_t sets = 0, sums = 0;
    if (kv->by_page && (int8_keys(args) || int8_values(args)))
        sets = floats_of(dq_simd_set_work_bytes(kv->map->head_dim));
    if (int8_values(args) && kv->form[DQ_V].n_scales)
        sums = floats_of(dq_simd_int8_work_bytes(dq_kv_runs(&kv->form[DQ_V])));
    return sets > sums ? sets : sums;
}

/* One query head of `rows` rows: codes, scales, sums. */
static int64_t query_floats(const dq_attend_args *args, int64_t rows)
{
    const dq_kv_page_form *form = &args->kv->form[DQ_K];
    if (!int8_keys(args) || form->set_scales) return 0;
    const int64_t codes = dq_simd_int8_padded(args->kv->map->head_dim, form->group);
    return floats_of(rows * codes) + 2 * floats_of(rows * form->n_scales * 4);
}

/* Scratch: what reading a page takes, a block, work of value_sums, query heads. */
static uint8_t *block_of(const dq_attend_args *args, float *scratch)
{
    return (uint8_t *)(scratch + dq_cpu_kv_scratch_floats(args->kv));
}

static float *work_of(const dq_attend_args *args, float *scratch)
{
    return scratch + dq_cpu_kv_scratch_floats(args->kv) + block_floats(args);
}

int64_t dq_cpu_score_floats(const dq_attend_args *args, int64_t rows, int64_t heads)
{
    return dq_cpu_kv_scratch_floats(args->kv) + block_floats(args) + work_floats(args) +
           heads * query_floats(args, rows);
}

/* ---- keys */

float *dq_cpu_rounded_at(const dq_attend_args *args, float *scratch)
{
    return work_of(args, scratch) + work_floats(args);
}

static void round_query(int8_t *code, float *scale, int32_t *sum, const dq_simd *simd,
                        const dq_attend_args *args, const float *q)
{
    const int64_t d = args->kv->map->head_dim, group = args->kv->form[DQ_K].group;
    for (int64_t c = 0; c < d; c += group) {
        const int64_t n = d - c < group ? d - c : group;
        *sum++ = dq_cpu_round8(simd, code, scale++, q + c, n);
        code += (n + 3) / 4 * 4;
    }
}

dq_simd_int8_rows dq_cpu_round_rows(const dq_cpu *cpu, const dq_attend_args *args, const float *x,
                                    int64_t ldx, int64_t n, float *at)
{
    const dq_kv_page_form *form = &args->kv->form[DQ_K];
    if (!int8_keys(args) || form->set_scales) return (dq_simd_int8_rows){0};
    const int64_t ld = dq_simd_int8_padded(args->kv->map->head_dim, form->group);
    int8_t *code = (int8_t *)at;
    float *scale = at + floats_of(n * ld);
    int32_t *sum = (int32_t *)(void *)(scale + floats_of(n * form->n_scales * 4));
    memset(code, 0, (size_t)(n * ld));
    for (int64_t r = 0; r < n; r++)
        round_query(code + r * ld, scale + r * form->n_scales, sum + r * form->n_scales, cpu->simd,
                    args, x + r * ldx);
    return (dq_simd_int8_rows){.code = code, .ld = ld, .scale = scale, .sum = sum};
}

void dq_cpu_round_queries(dq_simd_int8_rows *q, const dq_cpu *cpu, const dq_attend_args *args,
                          const dq_kv_rows *rows, const int *head, int n_heads, float *scratch)
{
    const int64_t d = args->kv->map->head_dim;
    float *at = dq_cpu_rounded_at(args, scratch);
    for (int i = 0; i < n_heads; i++, at += query_floats(args, rows->n))
        q[i] = dq_cpu_round_rows(cpu, args, args->q.p + rows->first * args->q.cols + head[i] * d,
                                 args->q.cols, rows->n, at);
}

/* A page from its view. Slots after the coded ones need the f32 product of all before them. */
static void page_of(dq_cpu_page *page, const dq_kv *kv, const dq_cpu_kv_view *v, int64_t n)
{
    page->plain = v->plain;
    page->n_plain = v->plain ? n : 0;
    if (!v->form || v->first == v->end) return;
    if (v->end >= n && v->plain) page->n_plain = v->first;
    if (v->sets) {
        page->kind = DQ_CPU_SETS;
        page->sets = (dq_simd_set_page){.sets = v->sets,
                                        .bits = v->bits,
                                        .dim = kv->map->head_dim,
                                        .cols = kv->v_cols,
                                        .begins = v->begins,
                                        .first = v->first,
                                        .end = v->end,
                                        .dither = v->dither};
        return;
    }
    page->kind = DQ_CPU_CODED;
    page->coded.scale = v->scale;
    page->coded.middle = v->middle;
    page->coded.bits = v->bits;
    page->coded.dim = kv->map->head_dim;
    page->coded.group = v->form->group;
    page->coded.n = dq_kv_runs(v->form);
    page->coded.first = v->first;
    page->coded.end = v->end;
}

/* A block that many rows share, or the codes themselves. */
static void give_codes(dq_cpu_page *page, const dq_cpu_kv_view *v, uint8_t *block, int64_t rows)
{
    const bool few = rows <= DQ_PAGES_FEW;
    const uint8_t *codes = few ? v->codes : NULL, *next = few ? v->next : NULL;
    if (page->kind == DQ_CPU_CODED) {
        page->coded.block = block;
        page->coded.codes = codes;
        page->coded.next = next;
    } else {
        page->sets.block = block;
        page->sets.codes = codes;
        page->sets.next = next;
    }
}

/* What few rows read as it is held; NULL: not this page. */
static const void *half_page(const dq_kv *kv, const dq_kv_list *list, int64_t page, int side,
                             int head, int64_t coded_end, int64_t rows)
{
    enum { FEW = 6 }; /* rows that gemm_half makes f32 once for */
    return rows > FEW ? NULL : dq_cpu_kv_half_page(kv, list, page, side, head, coded_end);
}

dq_cpu_page dq_cpu_open_page(const dq_cpu *cpu, const dq_attend_args *args, const dq_kv_list *list,
                             int64_t page, int side, int head, int64_t coded_end, int64_t n,
                             int64_t rows, float *scratch)
{
    const dq_kv *kv = args->kv;
    dq_cpu_page p = {.half = half_page(kv, list, page, side, head, coded_end, rows), .n_plain = n};
    if (p.half) return p;
    if (!(side == DQ_K ? int8_keys(args) : int8_values(args))) {
        p.plain = dq_cpu_kv_read(cpu->simd, kv, list, page, side, head, coded_end, scratch);
        return p;
    }
    const dq_cpu_kv_view v =
        dq_cpu_kv_view_page(cpu->simd, kv, list, page, side, head, coded_end, scratch);
    uint8_t *block = block_of(args, scratch);
    page_of(&p, kv, &v, n);
    if (!v.form || v.end <= v.first) return p;
    give_codes(&p, &v, block, rows);
    if (rows > DQ_PAGES_FEW && side == DQ_K)
        cpu->pages->key_block(block, v.codes, v.next, v.bits, kv->map->head_dim, v.form->group);
    if (rows > DQ_PAGES_FEW && side == DQ_V)
        cpu->pages->value_block(block, v.codes, v.next, v.bits, kv->v_cols);
    return p;
}

void dq_cpu_rows_times_keys(const dq_cpu *cpu, float *s, int64_t ld, const dq_attend_args *args,
                            const float *x, int64_t ldx, int64_t m, const dq_simd_int8_rows *q,
                            int64_t first, const dq_cpu_page *page, float *scratch)
{
    const int64_t d = args->attn->map->head_dim;
    if (page->half)
        cpu->simd->gemm_half(s, ld, x, ldx, page->half, args->kv->dense, DQ_PAGE_TOKENS, m,
                             page->n_plain, d, false);
    else if (page->n_plain)
        cpu->simd->gemm(s, ld, x, ldx, page->plain, DQ_PAGE_TOKENS, m, page->n_plain, d, false);
    if (page->kind == DQ_CPU_SETS)
        cpu->pages->set_scores(s, ld, x, ldx, m, &page->sets, work_of(args, scratch));
    if (page->kind != DQ_CPU_CODED) return;
    const dq_simd_int8_rows own = {.code = q->code + first * q->ld,
                                   .ld = q->ld,
                                   .scale = q->scale + first * page->coded.n,
                                   .sum = q->sum + first * page->coded.n};
    cpu->pages->key_scores(s, ld, &own, m, &page->coded);
}

void dq_cpu_times_keys(const dq_cpu *cpu, float *s, int64_t ld, const dq_attend_args *args,
                       const dq_kv_rows *rows, const dq_kv_span *a, int head,
                       const dq_simd_int8_rows *q, const dq_cpu_page *page, float *scratch)
{
    const float *x =
        args->q.p + (rows->first + a->first) * args->q.cols + head * args->attn->map->head_dim;
    dq_cpu_rows_times_keys(cpu, s, ld, args, x, args->q.cols, a->n, q, a->first, page, scratch);
}

/* ---- values */

static void times_plain(const dq_cpu *cpu, float *y, int64_t ldy, const dq_attend_args *args,
                        const float *d, int64_t ldd, int64_t m, const dq_cpu_page *page, bool add)
{
    const int64_t dim = args->attn->map->head_dim, cols = args->kv->v_cols;
    for (int64_t c = 0; c < dim; c += DQ_TILE_N) {
        const int64_t n = dim - c < DQ_TILE_N ? dim - c : DQ_TILE_N;
        if (page->half)
            cpu->simd->gemm_half(y + c, ldy, d, ldd, (const uint16_t *)page->half + c,
                                 args->kv->dense, cols, m, n, page->n_plain, add);
        else
            cpu->simd->gemm(y + c, ldy, d, ldd, page->plain + c, cols, m, n, page->n_plain, add);
    }
}

void dq_cpu_times_values(const dq_cpu *cpu, float *y, int64_t ldy, const dq_attend_args *args,
                         const float *d, int64_t ldd, int64_t m, const dq_cpu_page *page, bool add,
                         float *scratch)
{
    const int64_t dim = args->attn->map->head_dim;
    if (page->n_plain) {
        times_plain(cpu, y, ldy, args, d, ldd, m, page, add);
    } else if (!add) {
        for (int64_t r = 0; r < m; r++) memset(y + r * ldy, 0, (size_t)dim * sizeof *y);
    }
    if (page->kind == DQ_CPU_SETS)
        cpu->pages->set_sums(y, ldy, d, ldd, m, &page->sets, work_of(args, scratch));
    if (page->kind == DQ_CPU_CODED)
        cpu->pages->value_sums(y, ldy, d, ldd, m, &page->coded, work_of(args, scratch));
}

/* ---- CPU attention tasks ----
 * How attention is cut for threads. A KV head group that is one task reads every page once for all
 * its heads; where groups would leave threads idle, single rows are cut into as few parts of its
 * heads as keep threads busy, blocks of rows, to which the codes are little beside the products,
 * into output heads. */

/* Sums over rows are added in one order: their tasks own a sequence and KV head group whole. */
static bool whole_sequences(const dq_attend_args *args)
{
    return args->columns || args->measure || args->look;
}

static int group_of_out(const dq_head_order *map, int out)
{
    return map->group[map->head[out].v[0]];
}

/* Output heads after `out` that share its second map stay in its task where heads are tasks. */
static int share_end(const dq_head_order *map, int out)
{
    int end = out + 1;
    if (map->n_maps < 2) return end;
    while (end < map->n_out && map->head[end].q[1] == map->head[out].q[1] &&
           group_of_out(map, end) == group_of_out(map, out)) {
        end++;
    }
    return end;
}

/* The output heads of a group, in as many parts or as many as it has heads. */
static int64_t cut_group(dq_cpu_task *list, const dq_head_order *map, const dq_cpu_task *whole,
                         int parts)
{
    int64_t n = 0;
    int heads = 0, done = 0;
    for (int out = 0; out < map->n_out; out++) heads += group_of_out(map, out) == whole->group;
    for (int out = 0, first = 0; out < map->n_out && done < heads; out++) {
        if (group_of_out(map, out) != whole->group) continue;
        done++;
        if (done < heads && (int64_t)done * parts < (n + 1) * heads) continue;
        if (list) {
            list[n] = *whole;
            list[n].out_first = first;
            list[n].out_end = out + 1;
        }
        first = out + 1;
        n++;
    }
    return n;
}

/* Cuts one tile of rows, or all rows of a sequence, into tasks. */
static int64_t cut_rows(dq_cpu_task *list, const dq_head_order *map, const dq_kv_rows *rows,
                        int parts)
{
    int64_t n = 0;
    dq_cpu_task whole = {.seq = rows->seq, .first = rows->first, .end = rows->first + rows->n};
    for (int g = 0; parts > 0 && g < map->n_groups; g++) {
        whole.group = g;
        n += cut_group(list ? list + n : NULL, map, &whole, parts);
    }
    for (int out = 0; parts == 0 && out < map->n_out; n++) {
        const int next = share_end(map, out);
        if (list)
            list[n] =
                (dq_cpu_task){rows->seq, rows->first, whole.end, out, next, group_of_out(map, out)};
        out = next;
    }
    return n;
}

/* Fills list (NULL: only counts); returns how many tasks there are. */
static int64_t list_tasks(dq_cpu_task *list, const dq_attend_args *args, int parts)
{
    const dq_batch *batch = args->batch;
    int64_t n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int64_t first = batch->cu_rows[i], end = batch->cu_rows[i + 1]; end > first;) {
            dq_kv_rows rows = {i, first, end - first, batch->pos + first};
            if (!whole_sequences(args)) dq_cpu_rows_last_tile(&rows, batch, i, first, end);
            end = rows.first;
            n += cut_rows(list ? list + n : NULL, args->attn->map, &rows, parts);
        }
    }
    return n;
}

/* Into how many parts each KV head group is cut; 0: into its output heads. */
static int task_parts(const dq_attend_args *args, int threads)
{
    const int64_t n = list_tasks(NULL, args, 1);
    if (whole_sequences(args) || n >= 2 * (int64_t)threads) return 1;
    if (args->batch->n_rows > args->batch->n_seq) return 0;
    if (n % threads == 0) return 1;
    return (int)(((n < threads ? 1 : 2) * threads + n - 1) / n);
}

/* ---- CPU attention ----
 * Attention over the paged cache. How a page's codes are multiplied stands in
 * "CPU attention int8"; everything else is f32.
 *
 * A task walks blocks of rows of one sequence. For a block it holds S of one or two query heads
 * for all keys the block sees (memory linear in the context), turns rows into exp(S - max),
 * subtracts the maps, and multiplies once with V. Every value of a row is made by a chain of
 * operations whose order depends on the row's own keys only; so rows do not depend on blocks,
 * calls or threads. */

enum {
    /* 64 MiB at most: every block reads keys and values of long contexts from memory. */
    BLOCK_FLOATS = 1 << 24,
    LEAST_ROWS = 16,
    /* Output heads are taken together while scores of many rows fit a second-level cache, 1 MiB. */
    NEAR_FLOATS = 1 << 18,
    MAX_SLOTS = 32
};

int64_t dq_cpu_block_rows(int64_t keys, int64_t buffers)
{
    int64_t rows = DQ_PAGE_TOKENS;
    while (rows > LEAST_ROWS && rows * buffers * keys > BLOCK_FLOATS) rows /= 2;
    return rows;
}

int64_t dq_cpu_row_floats(int64_t keys)
{
    /* The 16 keep rows of a block from falling into the same cache sets. */
    return (keys + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS + 16;
}

void dq_cpu_rows_last_tile(dq_kv_rows *rows, const dq_batch *batch, int seq, int64_t first,
                           int64_t end)
{
    const int32_t tile = batch->pos[end - 1] / DQ_PAGE_TOKENS;
    rows->seq = seq;
    rows->first = end - 1;
    while (rows->first > first && batch->pos[rows->first - 1] / DQ_PAGE_TOKENS == tile)
        rows->first--;
    rows->n = end - rows->first;
    rows->pos = batch->pos + rows->first;
}

/* next[i]: the next index with head[i], n after the last; again[i]: an earlier one has it too. */
static void chain_heads(int *next, bool *again, const int *head, int n)
{
    for (int i = 0; i < n; i++) again[i] = false;
    for (int i = 0; i < n; i++) {
        next[i] = i + 1;
        while (next[i] < n && head[next[i]] != head[i]) next[i]++;
        if (next[i] < n) again[next[i]] = true;
    }
}

void dq_cpu_scores(const dq_cpu *cpu, float *const *s, int64_t ld, const dq_attend_args *args,
                   const dq_kv_rows *rows, const dq_kv_list *list, const int *head, int n_heads,
                   int64_t keys, const dq_cpu_scaled *scaled, float *scratch)
{
    dq_kv_span span[2], at[2];
    const int n_spans = dq_kv_spans(span, args->kv, list, rows);
    int key[MAX_SLOTS], next[MAX_SLOTS];
    bool again[MAX_SLOTS];
    dq_simd_int8_rows q[MAX_SLOTS];
    for (int i = 0; i < n_heads; i++) key[i] = args->attn->map->key[head[i]];
    chain_heads(next, again, key, n_heads);
    dq_cpu_round_queries(q, cpu, args, rows, head, n_heads, scratch);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int n_at = dq_kv_page_spans(at, span, n_spans, p);
        for (int e = 0; e < n_heads * n_at; e++) {
            const dq_kv_span *a = &at[e % n_at];
            const int i = e / n_at;
            if (again[i]) continue;
            const dq_cpu_page page =
                dq_cpu_open_page(cpu, args, list, p, DQ_K, key[i], a->coded_end,
                                 dq_kv_slots(keys, p), DQ_PAGE_TOKENS, scratch);
            for (int h = i; h < n_heads; h = next[h]) {
                float *to = s[h] + a->first * ld + p * DQ_PAGE_TOKENS;
                dq_cpu_times_keys(cpu, to, ld, args, rows, a, head[h], &q[h], &page, scratch);
                if (scaled)
                    scale_page(cpu->simd, to, ld, a->first, a->n, p, scaled, scaled->top[h]);
            }
        }
    }
}

/* Scratch of a thread. A slot holds one query head's rows by keys: S, then exp(S - max). */
typedef struct scratch {
    float *slot[MAX_SLOTS];
    int n_slots;
    double sum[MAX_SLOTS][DQ_PAGE_TOKENS];
    float by[MAX_SLOTS][DQ_PAGE_TOKENS][2];
    int64_t hidden[DQ_PAGE_TOKENS], visible[DQ_PAGE_TOKENS]; /* a row sees what lies between */
    int32_t *edge; /* tile granularity: end of each run of keys in one tile of positions */
    int64_t n_edges;
    float *read;    /* pages on their way into products */
    float *token;   /* of "CPU attention token" */
    int kept, held; /* slot that still holds second map `held` from the bundle before; -1: none */
} scratch;

/* Output heads that are computed together, so that every page is read once for all of them. */
typedef struct bundle {
    int n_outs, out[MAX_SLOTS];
    int first[MAX_SLOTS], second[MAX_SLOTS];       /* slots of each output head's maps */
    int n_fresh, slot[MAX_SLOTS], head[MAX_SLOTS]; /* query heads to compute, and where */
} bundle;

typedef struct work {
    const dq_cpu *cpu;
    const dq_simd *simd;
    const dq_attend_args *args;
    dq_mat dst;
    dq_head_measure *measure; /* [n_seq * n_out], NULL: none */
    dq_head_profile *look;    /* the same */
    dq_span_rows spans;
    dq_span_mass *mass; /* [spans.n][n_out][n_classes], NULL: none */
} work;

static void round_run(const dq_simd *simd, float *x, int64_t n, float absmax, float qmax)
{
    if (absmax == 0.0f) {
        memset(x, 0, (size_t)n * sizeof *x);
    } else {
        simd->round_to_grid(x, n, qmax / absmax, qmax, absmax / qmax);
    }
}

/* A block holds all rows of the call whose positions share a tile: its maxima are the tile's. */
static void round_tiles(const work *w, scratch *s, float *x, int64_t ld, int64_t rows, float qmax)
{
    int64_t begin = 0;
    for (int64_t e = 0; e < s->n_edges; begin = s->edge[e++]) {
        float max[DQ_PAGE_TOKENS] = {0};
        for (int64_t r = 0; r < rows; r++) {
            const int64_t from = begin > s->hidden[r] ? begin : s->hidden[r];
            const int64_t end = s->edge[e] < s->visible[r] ? s->edge[e] : s->visible[r];
            if (from < end) max[r] = w->simd->absmax(x + r * ld + from, end - from);
        }
        float absmax = w->simd->absmax(max, rows);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t from = begin > s->hidden[r] ? begin : s->hidden[r];
            const int64_t end = s->edge[e] < s->visible[r] ? s->edge[e] : s->visible[r];
            if (from < end) round_run(w->simd, x + r * ld + from, end - from, absmax, qmax);
        }
    }
}

/* exp(S - max) in a slot, zero where a row sees nothing; row by row while it is in a near cache. */
static void softmax_rows(const work *w, scratch *s, int slot, int64_t ld, const dq_kv_rows *rows,
                         int head, int64_t keys, const float *largest)
{
    const dq_logit_spec logit = w->args->logit;
    const bool rounds = dq_logit_rounds(logit) && (!w->args->rounds || w->args->rounds[head]);
    const bool tiles = rounds && dq_logit_by_tile(logit);
    const float qmax = (float)((1 << (logit.bits - 1)) - 1);
    float *x = s->slot[slot];
    if (tiles) round_tiles(w, s, x, ld, rows->n, qmax);
    for (int64_t r = 0; r < rows->n; r++) {
        float *row = x + r * ld + s->hidden[r];
        const int64_t n = s->visible[r] - s->hidden[r];
        float top = tiles ? w->simd->max(row, n) : largest[r];
        if (rounds && !tiles) {
            const dq_attend_args *args = w->args;
            const float absmax = args->logit.granularity == DQ_GRANULARITY_ROW
                                     ? w->simd->absmax(row, n)
                                     : args->absmax[rows->seq * args->attn->map->n_q + head];
            round_run(w->simd, row, n, absmax, qmax);
            round_run(w->simd, &top, 1, absmax, qmax);
        }
        s->sum[slot][r] = w->simd->exp_sum(row, row, n, top);
        memset(x + r * ld, 0, (size_t)s->hidden[r] * sizeof *row);
        memset(row + n, 0, (size_t)(keys - s->visible[r]) * sizeof *row);
    }
}

/* y += D V of one page, for slab e of a bundle (slabs of its output heads one after the other). */
static void times_page(const work *w, const scratch *s, int64_t ld, const dq_kv_rows *rows,
                       const dq_kv_span *a, const bundle *u, int e, const dq_cpu_page *page,
                       int64_t p)
{
    const dq_head_order *map = w->args->attn->map;
    const int i = e / map->n_slabs;
    const int64_t column = ((int64_t)u->out[i] * map->n_slabs + e % map->n_slabs) * map->head_dim;
    float *y = w->dst.p + (rows->first + a->first) * w->dst.cols + column;
    const float *d = s->slot[u->first[i]] + a->first * ld + p * DQ_PAGE_TOKENS;
    dq_cpu_times_values(w->cpu, y, w->dst.cols, w->args, d, ld, a->n, page, p > 0, s->read);
}

static void times_values(const work *w, const scratch *s, int64_t ld, const dq_kv_rows *rows,
                         const dq_kv_list *list, const bundle *u, int64_t keys)
{
    const dq_head_order *map = w->args->attn->map;
    const int n_slabs = u->n_outs * map->n_slabs;
    dq_kv_span span[2], at[2];
    const int n_spans = dq_kv_spans(span, w->args->kv, list, rows);
    int head[2 * MAX_SLOTS], next[2 * MAX_SLOTS];
    bool again[2 * MAX_SLOTS];
    for (int e = 0; e < n_slabs; e++)
        head[e] = map->head[u->out[e / map->n_slabs]].v[e % map->n_slabs];
    chain_heads(next, again, head, n_slabs);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int n_at = dq_kv_page_spans(at, span, n_spans, p);
        for (int i = 0; i < u->n_outs; i++) {
            /* P1 - lambda P2; a single map stays exp(S - max): y is divided instead. */
            if (w->args->attn->map->n_maps == 1) continue;
            for (int64_t r = 0; r < rows->n; r++) {
                float *p1 = s->slot[u->first[i]] + r * ld + p * DQ_PAGE_TOKENS;
                const float *p2 = s->slot[u->second[i]] + r * ld + p * DQ_PAGE_TOKENS;
                w->simd->diff(p1, p1, p2, dq_kv_slots(s->visible[r], p), s->by[i][r][0],
                              s->by[i][r][1]);
            }
        }
        for (int i = 0; i < n_slabs * n_at; i++) {
            const dq_kv_span *a = &at[i % n_at];
            const int first = i / n_at;
            if (again[first]) continue;
            const dq_cpu_page page =
                dq_cpu_open_page(w->cpu, w->args, list, p, DQ_V, head[first], a->coded_end,
                                 dq_kv_slots(keys, p), DQ_PAGE_TOKENS, s->read);
            for (int e = first; e < n_slabs; e = next[e])
                times_page(w, s, ld, rows, a, u, e, &page, p);
        }
    }
}

/* The division that a single map still needs, the values' rotation undone, norm and scale. */
static void finish(const work *w, const scratch *s, const dq_kv_rows *rows, int out, int first)
{
    const dq_attn *attn = w->args->attn;
    const int64_t width = (int64_t)attn->map->n_slabs * attn->map->head_dim;
    for (int64_t r = 0; r < rows->n; r++) {
        float *y = w->dst.p + (rows->first + r) * w->dst.cols + out * width;
        if (s->visible[r] == 0) {
            memset(y, 0, (size_t)width * sizeof *y);
            continue;
        }
        if (attn->map->n_maps == 1) w->simd->scale(y, width, (float)(1.0 / s->sum[first][r]));
        for (int c = 0; w->args->kv->spec.rotate_v && c < width; c += attn->map->head_dim)
            dq_cpu_hadamard_run(y + c, attn->map->head_dim);
        if (attn->head_norm) {
            double mean = w->simd->sum_squares(y, width) / (double)width;
            float a = (float)(1.0 / sqrt(mean + (double)attn->norm_eps));
            w->simd->scale_gain(y, y, width, a, attn->gain);
        }
        if (attn->out_scale != 1.0f) w->simd->scale(y, width, attn->out_scale);
    }
}

static int fresh_slot(scratch *s, bundle *u, int *next, int head)
{
    if (*next == s->kept) ++*next;
    u->slot[u->n_fresh] = *next;
    u->head[u->n_fresh++] = head;
    return (*next)++;
}

/* Slot in which the bundle has, or will have, the second map of output head `out`; -1: none yet. */
static int second_slot(const dq_head_order *map, const scratch *s, const bundle *u, int out)
{
    if (map->head[out].q[1] == s->held) return s->kept;
    for (int i = 0; i < u->n_outs; i++) {
        if (map->head[u->out[i]].q[1] == map->head[out].q[1]) return u->second[i];
    }
    return -1;
}

/* Takes as many output heads, from *out on, as there are slots for; moves *out after them. */
static void next_bundle(bundle *u, scratch *s, const dq_head_order *map, const dq_cpu_task *t,
                        int *out)
{
    int next = 0;
    u->n_outs = u->n_fresh = 0;
    for (; *out < t->out_end; ++*out) {
        if (group_of_out(map, *out) != t->group) continue;
        if (u->n_outs == 0 && map->head[*out].q[1] != s->held) s->kept = s->held = -1;
        int second = map->n_maps == 2 ? second_slot(map, s, u, *out) : 0;
        int need = u->n_fresh + (s->kept >= 0) + 1 + (second < 0);
        if (need > s->n_slots) return;
        u->first[u->n_outs] = fresh_slot(s, u, &next, map->head[*out].q[0]);
        if (second < 0) second = fresh_slot(s, u, &next, map->head[*out].q[1]);
        u->second[u->n_outs] = second;
        u->out[u->n_outs++] = *out;
    }
}

static void token_values(const work *w, const scratch *s, const dq_kv_rows *row,
                         const dq_kv_list *list, const bundle *u, int64_t keys)
{
    dq_cpu_token_map map[MAX_SLOTS];
    for (int i = 0; i < u->n_outs; i++) {
        const int first = u->first[i], second = u->second[i];
        map[i] = (dq_cpu_token_map){.out = u->out[i], .p = {s->slot[first], NULL}};
        if (w->args->attn->map->n_maps == 1) continue;
        map[i].p[1] = s->slot[second];
        map[i].by[0] = s->by[i][0][0];
        map[i].by[1] = s->by[i][0][1];
    }
    cpu_token_values(w->cpu, w->dst.p + row->first * w->dst.cols, w->args, row, list, map,
                     u->n_outs, keys, s->read, s->token);
}

static void attend_bundle(const work *w, scratch *s, int64_t ld, const dq_kv_rows *rows,
                          const dq_kv_list *list, const bundle *u, int64_t keys)
{
    float *into[MAX_SLOTS], top[MAX_SLOTS][DQ_PAGE_TOKENS] = {{0}};
    const dq_cpu_scaled scaled = {w->args->attn->map->scale, s->hidden, s->visible, top};
    const bool token = rows->n == 1 && keys > 0;
    for (int i = 0; i < u->n_fresh; i++) into[i] = s->slot[u->slot[i]];
    if (token)
        token_scores(w->cpu, into, w->args, rows, list, u->head, u->n_fresh, keys, &scaled, s->read,
                     s->token);
    else
        dq_cpu_scores(w->cpu, into, ld, w->args, rows, list, u->head, u->n_fresh, keys, &scaled,
                      s->read);
    for (int i = 0; i < u->n_fresh; i++) {
        softmax_rows(w, s, u->slot[i], ld, rows, u->head[i], keys, top[i]);
    }
    /* all of them first: subtracting overwrites maps */
    for (int i = 0; (w->args->columns || w->measure || w->look || w->mass) && i < u->n_outs; i++) {
        dq_cpu_column_job job = {.args = w->args,
                                 .list = list,
                                 .rows = *rows,
                                 .out = u->out[i],
                                 .p = {s->slot[u->first[i]], NULL},
                                 .sum = {s->sum[u->first[i]], NULL},
                                 .ld = ld,
                                 .hidden = s->hidden,
                                 .visible = s->visible};
        if (w->args->attn->map->n_maps == 2) {
            job.p[1] = s->slot[u->second[i]];
            job.sum[1] = s->sum[u->second[i]];
        }
        if (w->args->columns) dq_cpu_count_columns(&job);
        const int64_t head = (int64_t)rows->seq * w->args->attn->map->n_out + job.out;
        if (w->measure) dq_cpu_measure(w->simd, &job, &w->measure[head]);
        if (w->look) dq_cpu_look(&job, &w->look[head]);
        if (w->mass) dq_cpu_count_spans(&job, w->mass, &w->spans);
    }
    if (w->dst.p) {
        for (int i = 0; i < u->n_outs; i++) {
            /* Both maps of an output head have a factor before they are subtracted. */
            const int first = u->first[i], second = u->second[i];
            if (w->args->attn->map->n_maps == 1) continue;
            for (int64_t r = 0; r < rows->n; r++) {
                s->by[i][r][0] = (float)(1.0 / s->sum[first][r]);
                s->by[i][r][1] =
                    (float)((double)dq_cpu_lambda(w->args, rows->first + r, u->out[i]) /
                            s->sum[second][r]);
            }
        }
        if (token)
            token_values(w, s, rows, list, u, keys);
        else
            times_values(w, s, ld, rows, list, u, keys);
        for (int i = 0; i < u->n_outs; i++) finish(w, s, rows, u->out[i], u->first[i]);
    }
    if (w->args->attn->map->n_maps == 2) {
        s->kept = u->second[u->n_outs - 1];
        s->held = w->args->attn->map->head[u->out[u->n_outs - 1]].q[1];
    }
}

static void attend_block(const work *w, scratch *s, int64_t ld, const dq_kv_rows *rows,
                         const dq_kv_list *list, const dq_cpu_task *t)
{
    const dq_head_order *map = w->args->attn->map;
    const int window = w->args->attn->window;
    for (int64_t r = 0; r < rows->n; r++) {
        s->hidden[r] = dq_kv_hidden(list, window, rows->pos[r]);
        s->visible[r] = dq_kv_visible(list, rows->pos[r]);
    }
    const int64_t keys = s->visible[rows->n - 1];
    if (dq_logit_by_tile(w->args->logit)) {
        /* Keys of one tile of positions are neighbours in the list, even after compaction. */
        s->n_edges = 0;
        for (int64_t i = 0; i < keys; i++) {
            if (i + 1 == keys ||
                dq_kv_pos(list, i + 1) / DQ_PAGE_TOKENS != dq_kv_pos(list, i) / DQ_PAGE_TOKENS) {
                s->edge[s->n_edges++] = (int32_t)(i + 1);
            }
        }
    }
    s->held = s->kept = -1;
    for (int out = t->out_first; out < t->out_end && !dq_os_stop_signal();) {
        bundle u;
        next_bundle(&u, s, map, t, &out);
        if (u.n_outs) attend_bundle(w, s, ld, rows, list, &u, keys);
    }
}

/* Rows per block and the scratch that goes with them, for the longest list of the call. */
typedef struct layout {
    int64_t keys, block_rows;
    int slots;
    size_t bytes;
} layout;

int64_t dq_cpu_max_keys(const dq_attend_args *args)
{
    int64_t max = 0;
    for (int i = 0; i < args->batch->n_seq; i++) {
        for (int g = 0; g < args->attn->map->n_groups; g++) {
            int64_t n = dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, g)->count;
            max = n > max ? n : max;
        }
    }
    /* of the page where the first row's window begins, up to the last row of its tile */
    const int64_t window = args->attn->window ? args->attn->window + 2 * DQ_PAGE_TOKENS : max;
    return max < window ? max : window;
}

static void run_task(const work *w, const dq_cpu_task *t, const layout *p, void *block)
{
    const dq_attend_args *args = w->args;
    const dq_kv_list *list =
        dq_kv_list_of(args->kv, args->batch->seq[t->seq], args->layer, t->group);
    const int64_t ld = dq_cpu_row_floats(p->keys), floats = p->block_rows * ld;
    scratch s;
    s.n_edges = 0;
    s.n_slots = p->slots;
    for (int i = 0; i < p->slots; i++) s.slot[i] = (float *)block + i * floats;
    s.read = (float *)block + p->slots * floats;
    s.token = s.read + dq_cpu_score_floats(args, p->block_rows, p->slots);
    s.edge = (int32_t *)(void *)(s.token + token_floats(args, p->slots));
    for (int64_t end = t->end; end > t->first;) {
        dq_kv_rows tile;
        dq_cpu_rows_last_tile(&tile, args->batch, t->seq, t->first, end);
        end = tile.first;
        for (int64_t done = 0; done < tile.n; done += p->block_rows) {
            dq_kv_rows rows = {.seq = t->seq, .first = tile.first + done, .pos = tile.pos + done};
            rows.n = tile.n - done < p->block_rows ? tile.n - done : p->block_rows;
            const dq_kv_list seen = dq_kv_seen(list, args->attn->window, *rows.pos);
            attend_block(w, &s, ld, &rows, &seen, t);
        }
    }
}

/* Tasks' results until all are done: a measure by sequence, masses by row of spans. */
static bool begin_observers(dq_backend *b, work *w)
{
    const dq_attend_args *args = w->args;
    const size_t n = (size_t)(args->batch->n_seq * args->attn->map->n_out);
    if (args->measure) w->measure = dq_block_new(n, sizeof *w->measure, &b->err);
    if (args->look) w->look = dq_block_new(n, sizeof *w->look, &b->err);
    if (b->err.code != DQ_OK) return false;
    if (args->spans) {
        if (!dq_span_rows_new(b, &w->spans, args)) return false;
        if (w->spans.n == 0) return true;
        w->mass = dq_block_new((size_t)w->spans.n, w->spans.row_bytes, &b->err);
    }
    return b->err.code == DQ_OK;
}

static void end_observers(dq_backend *b, work *w)
{
    const dq_attend_args *args = w->args;
    const int n_seq = args->batch->n_seq, n_out = args->attn->map->n_out;
    const bool done = b->err.code == DQ_OK;
    for (int i = 0; done && w->measure && i < n_seq * n_out; i++)
        dq_head_measure_merge(&args->measure[i % n_out], &w->measure[i]);
    for (int i = 0; done && w->look && i < n_seq * n_out; i++)
        dq_head_profile_merge(&args->look->head[i % n_out], &w->look[i]);
    if (done && w->mass)
        dq_span_rows_add(args->spans->sums, w->spans.at, n_seq, n_out, args->spans->n_classes,
                         w->mass);
    dq_block_free(w->measure);
    dq_block_free(w->look);
    dq_block_free(w->mass);
    dq_span_rows_free(&w->spans);
}

void dq_cpu_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    if (b->err.code != DQ_OK) return;
    if (args->columns && args->attn->window) {
        dq_fail(&b->err, DQ_BUG, "sums over the rows of a layer that has a window");
        return;
    }
    work w = {.cpu = dq_cpu_of(b), .simd = dq_cpu_of(b)->simd, .args = args, .dst = dst};
    const dq_head_order *map = args->attn->map;
    layout p = {.keys = dq_cpu_max_keys(args), .block_rows = DQ_PAGE_TOKENS, .slots = map->n_maps};
    const bool tiles = dq_logit_by_tile(args->logit);
    const int useful = map->n_q < MAX_SLOTS ? map->n_q : MAX_SLOTS;
    if (!tiles) p.block_rows = dq_cpu_block_rows(p.keys, map->n_maps);
    /* a block decides in which order sums are added; so it may not depend on the other sequences */
    if (!tiles && args->columns &&
        (args->columns->mass[0] || args->columns->mass[1] || args->columns->lambda_mass ||
         args->columns->diff))
        p.block_rows = LEAST_ROWS;
    if (args->batch->n_rows < p.block_rows) p.block_rows = args->batch->n_rows;
    const int64_t floats = p.block_rows * dq_cpu_row_floats(p.keys);
    const int64_t max = p.block_rows < LEAST_ROWS ? BLOCK_FLOATS : NEAR_FLOATS;
    while (p.slots < useful && (p.slots + 1) * floats <= max) p.slots++;
    p.bytes = (size_t)(p.slots * floats + dq_cpu_score_floats(args, p.block_rows, p.slots)) *
              sizeof(float);
    p.bytes += (size_t)token_floats(args, p.slots) * sizeof(float);
    p.bytes += (size_t)(p.keys + 16) * sizeof(int32_t);
    const int parts = task_parts(args, b->threads);
    const int64_t n = list_tasks(NULL, args, parts);
    dq_cpu_task *tasks = dq_cpu_shared(b, (size_t)(n + 1) * sizeof *tasks);
    if (!tasks || !dq_cpu_reserve(b, p.bytes)) return;
    if (begin_observers(b, &w)) {
        list_tasks(tasks, args, parts);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
        for (int64_t i = 0; i < n; i++) {
            run_task(&w, &tasks[i], &p, dq_cpu_of(b)->block[omp_get_thread_num()]);
        }
        dq_os_check_stop(&b->err);
    }
    end_observers(b, &w);
}
