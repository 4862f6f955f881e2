/* cpu_attention_int8: products of attention with pages of the cache, in f32 and in integers.
 *
 * In int8 arithmetic no code is read back. A query row is rounded to 8 bits once per run of channels that
 * keys share a scale in; D, times the values' scales, to 16 bits per row and page: 8 would cost more
 * than the codes of the values do, and a difference of maps needs two 8-bit products anyway, as D in two
 * bytes or as both maps. Sums of codes are exact; they are added in f32 in the order of channels and
 * pages. What lows of values add is a sum of D times middles for each run, in f32. Per-channel codes have a step for each channel: a query row times a page's steps is rounded for that page, D once for all
 * channels, and what lows add is a sum over channels, or of D, in f32. So a result depends on nothing but its own row.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include <string.h>

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

const char *dq_cpu_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, dq_math math,
                                 int64_t rows)
{
    static const char *const name[2][2] = {{"attend", "attend with int8 values"},
                                           {"attend with int8 keys", "attend_int8"}};
    (void)b;
    (void)rows;
    if (math.qk == DQ_NUM_BF16 || math.pv == DQ_NUM_BF16) return NULL;
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

/* ------------------------------------------------------------------------------------------ keys */

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

dq_cpu_page dq_cpu_open_keys(const dq_cpu *cpu, const dq_attend_args *args, const dq_kv_list *list,
                             int64_t page, int key, int64_t coded_end, int64_t n, int64_t rows,
                             float *scratch)
{
    const dq_kv *kv = args->kv;
    dq_cpu_page p = {.half = half_page(kv, list, page, DQ_K, key, coded_end, rows), .n_plain = n};
    if (p.half) return p;
    if (!int8_keys(args)) {
        p.plain = dq_cpu_kv_read_keys(cpu->simd, kv, list, page, key, coded_end, scratch);
        return p;
    }
    const dq_cpu_kv_view v =
        dq_cpu_kv_view_page(cpu->simd, kv, list, page, DQ_K, key, coded_end, scratch);
    page_of(&p, kv, &v, n);
    if (v.form && v.end > v.first) {
        give_codes(&p, &v, block_of(args, scratch), rows);
        if (rows > DQ_PAGES_FEW)
            cpu->pages->key_block(block_of(args, scratch), v.codes, v.next, v.bits,
                                  kv->map->head_dim, v.form->group);
    }
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

/* ---------------------------------------------------------------------------------------- values */

dq_cpu_page dq_cpu_open_values(const dq_cpu *cpu, const dq_attend_args *args,
                               const dq_kv_list *list, int64_t page, int head, int64_t coded_end,
                               int64_t n, int64_t rows, float *scratch)
{
    const dq_kv *kv = args->kv;
    dq_cpu_page p = {.half = half_page(kv, list, page, DQ_V, head, coded_end, rows), .n_plain = n};
    if (p.half) return p;
    if (!int8_values(args)) {
        p.plain = dq_cpu_kv_read_values(cpu->simd, kv, list, page, head, coded_end, scratch);
        return p;
    }
    const dq_cpu_kv_view v =
        dq_cpu_kv_view_page(cpu->simd, kv, list, page, DQ_V, head, coded_end, scratch);
    page_of(&p, kv, &v, n);
    if (v.form && v.end > v.first) {
        give_codes(&p, &v, block_of(args, scratch), rows);
        if (rows > DQ_PAGES_FEW)
            cpu->pages->value_block(block_of(args, scratch), v.codes, v.next, v.bits, kv->v_cols);
    }
    return p;
}

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
