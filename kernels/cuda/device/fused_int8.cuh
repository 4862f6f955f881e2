/* fused_int8: pages in products of bytes. Of 16 neighbouring tokens a lane holds the scores of
 * tokens 4 (lane % 4) .. +3, so that four rounded values of D are one word of the left operand of
 * D V. The columns of a product of 8 keys are chosen for this, with cells in different banks.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_INT8_CUH
#define DQ_FUSED_INT8_CUH

#include "kernels/cuda/device/fused.cuh"

/* Where things lie in a block's shared memory, in bytes. */
struct fused_space {
    int32_t q, q_scale, q_sum; /* queries: cells of 64 rows, [map][run][64] */
    int32_t q_base;            /* per-channel codes: [map][64] */
    /* Raw keys of odd pages lie raw_stride after those of even ones; 8-bit codes are cells already,
     * others are unpacked to `keys`. Values reuse the place. Scales are [head][run][64], or steps
     * and middles of a set of per-channel codes, [head][2][dim]. */
    int32_t raw_keys, raw_stride, keys, key_scale;
    int32_t raw_values, value_scale;
    /* Shares of lanes; half a page's D; D as [warp][16 tokens][16 rows], then [warp][32][lane]. */
    int32_t d;
    int32_t rows; /* row_stats */
    int32_t total;
};

/* Whether codes are cells as they come: of 8 bits on every page, and in a place of their own. */
DQ_BOTH bool are_cells(const dq_page_form *f)
{
    return f->bits == 8 && !f->set_numbers && !f->has_lows;
}

DQ_DEVICE int raw_keys(const fused_space *at, int page)
{
    return at->raw_keys + page % 2 * at->raw_stride;
}

/* Cells of a page's keys. */
DQ_DEVICE int key_cells(const fused_space *at, const dq_page_form *f, int page)
{
    return are_cells(f) ? raw_keys(at, page) : at->keys;
}

DQ_DEVICE int run_end(const dq_page_form *f, int g)
{
    int end = (g + 1) * f->group;
    return end < f->dim ? end : f->dim;
}

/* ---- queries */

/* Where codes of `rows` rows go: cells [channel / 16][row], scales and sums of codes [run][row]. */
struct rounded_queries {
    int8_t *code;
    float *scale;
    int32_t *sum;
    int32_t rows;
};

/* Row r by a warp, x NULL: zeros. Channels after dim, up to a multiple of 32, become zero. */
DQ_DEVICE void round_query(const rounded_queries *to, const dq_page_form *f, const float *x, int r)
{
    int lane = (int)dq_lane(), padded = (f->dim + 31) / 32 * 32;
    for (int g = 0; g < f->n_scales; g++) {
        int begin = g * f->group, end = run_end(f, g), sum = 0;
        uint32_t max = 0;
        for (int c = begin + lane; x && c < end; c += DQ_WARP) {
            uint32_t bits = dq_f32_bits(x[c]) & 0x7fffffffu;
            max = bits > max ? bits : max;
        }
        for (unsigned o = 16; o; o >>= 1) {
            uint32_t other = dq_shfl_xor(max, o);
            max = other > max ? other : max;
        }
        float scale = dq_div_rn(dq_bits_f32(max), 127.0f);
        if (max >= 0x7f800000u) scale = dq_bits_f32(0x7fc00000u);
        for (int c = begin + lane; c < end; c += DQ_WARP) {
            int code = x && scale > 0.0f ? dq_f32_s8(dq_div_rn(x[c], scale)) : 0;
            to->code[(c / 16 * to->rows + r) * 16 + c % 16] = (int8_t)code;
            sum += code;
        }
        for (unsigned o = 16; o; o >>= 1) sum += dq_shfl_xor(sum, o);
        if (lane != 0) continue;
        to->scale[g * to->rows + r] = scale;
        to->sum[g * to->rows + r] = sum;
    }
    for (int c = f->dim + lane; c < padded; c += DQ_WARP)
        to->code[(c / 16 * to->rows + r) * 16 + c % 16] = 0;
}

/* Every warp its own rows; nobody else reads them. */
DQ_DEVICE void round_queries(uint8_t *mem, const fused_space *at, const dq_attention_units *u,
                             const fused_job *j)
{
    const dq_page_form *f = &u->form[0];
    int padded = (f->dim + 31) / 32 * 32;
    for (int i = 0; i < j->n_maps * WARP_ROWS; i++) {
        int m = i / WARP_ROWS, r = WARP_ROWS * (int)dq_warp() + i % WARP_ROWS;
        rounded_queries to = {(int8_t *)mem + at->q + m * padded * TILE,
                              (float *)(mem + at->q_scale) + m * f->n_scales * TILE,
                              (int32_t *)(mem + at->q_sum) + m * f->n_scales * TILE, TILE};
        round_query(&to, f, r < j->w->n ? query_of(u, j, m, r) : NULL, r);
    }
    DQ_WARP_SYNC(queries_rounded);
}

/* ---- pages */

/* Which sixteens of a page's tokens hold some of first..end-1, from the lowest bit. */
enum { ALL_SIXTEENS = 15 };
DQ_DEVICE uint32_t sixteens_of(int first, int end)
{
    return (2u << (end - 1) / 16) - (1u << first / 16);
}

DQ_DEVICE void copy_bytes(uint8_t *to, const uint8_t *from, int bytes)
{
    for (int i = 16 * (int)dq_thread(); i < bytes; i += 16 * (int)dq_threads())
        dq_cp_async16(to + i, from + i);
}

/* Starts copies of codes of n heads and of their scales (SETS: of the numbers of the first set). */
template <bool WIDTHS, bool SETS>
DQ_DEVICE void fetch_page(uint8_t *to, const fused_job *j, const dq_page_form *f, int side,
                          int page, const int32_t *head, int n)
{
    const dq_page *p = j->pages + page;
    if (page < j->n_pages && is_coded(j, p, side, page)) {
        const dq_page_side *s = &p->side[side];
        int numbers = SETS ? f->set_numbers : f->n_scales * DQ_PAGE_SLOTS;
        int bytes = numbers * (p->wide[side] ? 4 : 2);
        for (int i = 0; i < n; i++) {
            const uint8_t *codes = WIDTHS ? dq_page_codes(f, p, side, head[i])
                                          : s->codes + (size_t)head[i] * (size_t)f->code_bytes;
            copy_bytes(to + i * f->code_bytes, codes,
                       WIDTHS ? DQ_PAGE_SLOTS * f->cols * dq_page_bits(f, p, side, head[i]) / 8
                              : f->code_bytes);
            copy_bytes(to + n * f->code_bytes + i * bytes,
                       (const uint8_t *)s->scale + (size_t)head[i] * (size_t)bytes, bytes);
        }
    }
    dq_cp_async_commit();
}

/* Cells of bytes from what fetch_page brought, unless they are there. */
template <bool WIDTHS>
DQ_DEVICE void unpack_codes(uint8_t *cells, const uint8_t *raw, const fused_job *j,
                            const dq_page_form *f, int side, int page, const int32_t *head, int n)
{
    int per = DQ_PAGE_SLOTS * f->cols / 16;
    const dq_page *p = j->pages + page;
    if (are_cells(f) || !is_coded(j, p, side, page)) return;
    for (int i = (int)dq_thread(); i < n * per; i += (int)dq_threads()) {
        const uint8_t *codes = raw + i / per * f->code_bytes;
        int k = i % per, bits = WIDTHS ? dq_page_bits(f, p, side, head[i / per]) : f->bits;
        dq_u4 x = side ? value_cell(codes, bits, f->cols, k / f->cols, k % f->cols)
                       : key_cell(codes, bits, f->cols, k / DQ_PAGE_SLOTS, k % DQ_PAGE_SLOTS);
        dq_store16(cells + 16 * i, x);
    }
}

/* What the code 0 stands for. */
DQ_DEVICE float middle_of(float step, float low, int bits)
{
    return dq_add_rn(low, dq_mul_rn((float)(1 << (bits - 1)), step));
}

/* Scales of n heads, [n][n_scales][64], from what fetch_page copied. LOWS: lows become middles. */
template <bool LOWS>
DQ_DEVICE void unpack_scales(float *scale, const uint8_t *raw, const fused_job *j,
                             const dq_page_form *f, int side, int page, const int32_t *head, int n)
{
    const dq_page *p = j->pages + page;
    const uint8_t *from = raw + n * f->code_bytes;
    const int per = f->n_scales * DQ_PAGE_SLOTS, steps = per / 2;
    if (!is_coded(j, p, side, page)) return;
    for (int i = (int)dq_thread(); i < n * per; i += (int)dq_threads()) {
        float x = dq_page_number_of(from, p->wide[side], i);
        if (LOWS && i % per >= steps)
            x = middle_of(dq_page_number_of(from, p->wide[side], i - steps), x,
                          dq_page_bits(f, p, side, head[i / per]));
        scale[i] = x;
    }
}

/* ---- products */
/* Of bytes by the warps of fused_int8.cu: query rows times keys, and D, rounded to 16 bits and
 * multiplied as two bytes, times values. Texts of masks are quoted by tests/simt/defects.tsv. */

/* A warp's rows times 32 tokens, channels c .. c + 31 within begin..end; sixteens: the halves. */
DQ_DEVICE void multiply_keys(int32_t acc[4][4], const uint8_t *q, const uint8_t *keys, int n_cells,
                             int half, int c, int begin, int end, uint32_t sixteens)
{
    int lane = (int)dq_lane(), matrix = lane / 8, i = lane % 8;
    uint32_t a[4], b[4];
    dq_ldmatrix_x4(
        a,
        q + ((c / 16 + matrix / 2) * TILE + WARP_ROWS * (int)dq_warp() + matrix % 2 * 8 + i) * 16);
    if (c < begin) a[0] = a[1] = 0;
    if (c + 16 >= end) a[2] = a[3] = 0;
    int cell = c / 16 + matrix % 2;
    if (cell >= n_cells) cell = n_cells - 1; /* meets zeros */
    DQ_UNROLL
    for (int p = 0; p < 2; p++) {
        if (!(sixteens >> p & 1)) continue;
        int t = 32 * half + token_of<false>(2 * p + matrix / 2, i / 2) + i % 2;
        dq_ldmatrix_x4(b, keys + (cell * DQ_PAGE_SLOTS + t) * 16);
        dq_mma_s8u8(acc[2 * p], a, b);
        dq_mma_s8u8(acc[2 * p + 1], a, b + 2);
    }
}

/* D times the scales of a run, in 16 bits: bytes of four tokens in a word. */
struct rounded_rows {
    uint32_t high[2][4], low[2][4];
    float scale[2];
};

/* D in registers, or parked (PARKED) as the lane's [32][DQ_WARP]; scale[64] with SCALES. */
struct lane_difference {
    const float (*d)[4];
    const float *parked, *scale;
};

template <bool PARKED, bool SCALES>
DQ_DEVICE float scaled(const lane_difference *x, const lane_page *at, int j, int i, int e)
{
    int t = token_of<false>(j, (int)dq_lane() % 4) + e;
    if (!is_code(at, i, t) || !sees(at, i, t)) return 0.0f;
    float d = PARKED ? x->parked[(4 * j + 2 * i + e) * DQ_WARP] : x->d[j][2 * i + e];
    return SCALES ? dq_mul_rn(d, x->scale[t]) : d;
}

/* Two rounded values as the lower halves of a word each, high and low bytes. */
DQ_DEVICE void round_pair(uint32_t *high, uint32_t *low, float x, float y, float r)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to integers */
    uint32_t a = dq_f32_bits(dq_add_rn(dq_mul_rn(x, r), magic));
    uint32_t b = dq_f32_bits(dq_add_rn(dq_mul_rn(y, r), magic));
    *low = dq_prmt(a, b, 0x0040);
    *high = dq_prmt(a + 128, b + 128, 0x0051); /* what remains is -128..127 */
}

/* sixteens: tokens elsewhere are no codes. */
template <bool PARKED, bool SCALES>
DQ_DEVICE void round_difference(rounded_rows *to, const lane_difference *d, const lane_page *at,
                                uint32_t sixteens)
{
    uint32_t order = (int)dq_lane() % 4 >> 1 ? 0x1054 : 0x5410;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t max = 0;
        DQ_UNROLL
        for (int j = 0; j < 8; j++) {
            if (!(sixteens >> j / 2 & 1)) continue;
            DQ_UNROLL
            for (int e = 0; e < 2; e++) {
                uint32_t bits = dq_f32_bits(scaled<PARKED, SCALES>(d, at, j, i, e)) & 0x7fffffffu;
                max = bits > max ? bits : max;
            }
        }
        uint32_t other = dq_shfl_xor(max, 1u);
        max = other > max ? other : max;
        other = dq_shfl_xor(max, 2u);
        max = other > max ? other : max;
        float peak = dq_bits_f32(max);
        bool real = max < 0x7f800000u, some = real && peak >= 0x1p-100f;
        to->scale[i] = some ? dq_div_rn(peak, 32512.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
        float r = some ? dq_div_rn(32512.0f, peak) : 0.0f; /* 127 * 256: both bytes are signed */
        DQ_UNROLL
        for (int b = 0; b < 4; b++) {
            uint32_t high[2] = {}, low[2] = {};
            DQ_UNROLL
            for (int k = 0; k < 2 && (sixteens >> b & 1); k++)
                round_pair(&high[k], &low[k], scaled<PARKED, SCALES>(d, at, 2 * b + k, i, 0),
                           scaled<PARKED, SCALES>(d, at, 2 * b + k, i, 1), r);
            to->high[b / 2][b % 2 * 2 + i] = dq_prmt(high[0], high[1], order);
            to->low[b / 2][b % 2 * 2 + i] = dq_prmt(low[0], low[1], order);
        }
    }
}

/* Sums of D times codes, of eight channels; outside `sixteens` D is zero. */
DQ_DEVICE void multiply_values(int32_t acc[4], const rounded_rows *d, const uint8_t *cells,
                               int cols, uint32_t sixteens)
{
    uint32_t b[4];
    DQ_UNROLL
    for (int i = 0; i < 4; i++) acc[i] = 0;
    dq_ldmatrix_x4(b, cells + ((int)dq_lane() / 8 * cols + (int)dq_lane() % 8) * 16);
    if (sixteens & 3) dq_mma_s8s8(acc, d->high[0], b);
    if (sixteens & 12) dq_mma_s8s8(acc, d->high[1], b + 2);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) acc[i] *= 256;
    if (sixteens & 3) dq_mma_s8s8(acc, d->low[0], b);
    if (sixteens & 12) dq_mma_s8s8(acc, d->low[1], b + 2);
}

/* ---- per-channel codes */
/* A set of tokens has for each channel a step and a middle, the value of code 0. A row of queries
 * times the steps is rounded to 8 bits; the row times the middles is added to its products. D of a
 * set is rounded once for all channels, and its sum brings the middles. Only the sixteens of a
 * page that hold tokens of the set are multiplied. A row's sums in f32 are the CPU's: 16 of every
 * sixteenth number, folded in halves, four in each lane of a quad. */

/* Folds a quad's 16 sums, of which a lane has 4 (lane % 4) .. +3. For all its lanes. */
DQ_DEVICE float fold_sums(const float sum[4])
{
    float x[4];
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = dq_add_rn(sum[i], dq_shfl_xor(sum[i], 2u));
        x[i] = dq_add_rn(x[i], dq_shfl_xor(x[i], 1u));
    }
    return dq_add_rn(dq_add_rn(x[0], x[2]), dq_add_rn(x[1], x[3]));
}

/* Step and middle of channel c < dim of a set, whose numbers begin at `at`. */
DQ_DEVICE pair set_number(const dq_page_form *f, const void *from, bool wide, int64_t at, int bits,
                          int c)
{
    float step = dq_page_number_of(from, wide, at + c);
    float low = dq_page_number_of(from, wide, at + f->dim + c);
    return pair{step, middle_of(step, low, bits)};
}

/* By all threads: numbers of n heads, [n][2][dim], as fetch_page copied them; raw NULL: any set. */
DQ_DEVICE void unpack_set(float *to, const uint8_t *raw, const fused_job *j, const dq_page_form *f,
                          int side, int page, int set, const int32_t *head, int n)
{
    const dq_page *p = j->pages + page;
    if (!is_coded(j, p, side, page)) return;
    for (int i = (int)dq_thread(); i < n * f->dim; i += (int)dq_threads()) {
        int k = i / f->dim, c = i % f->dim;
        int64_t at = (raw ? k : set * p->heads + head[k]) * f->set_numbers;
        pair x = set_number(f, raw ? raw + n * f->code_bytes : p->side[side].scale, p->wide[side],
                            at, dq_page_bits(f, p, side, head[k]), c);
        to[2 * k * f->dim + c] = x.x;
        to[(2 * k + 1) * f->dim + c] = x.y;
    }
}

/* Numbers at .. at+3 of a set, at a multiple of four, by one access. */
DQ_DEVICE void load_four(float x[4], const void *from, bool wide, int64_t at)
{
    if (wide) {
        dq_u4 a = dq_load16((const float *)from + at);
        const uint32_t bits[4] = {a.x, a.y, a.z, a.w};
        DQ_UNROLL
        for (int i = 0; i < 4; i++) x[i] = dq_bits_f32(bits[i]);
        return;
    }
    uint64_t a = dq_load8((const uint16_t *)from + at);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) x[i] = dq_f16_f32((uint16_t)(a >> 16 * i));
}

/* What rounds rows of queries; `first`: the first set's numbers, [2][dim], NULL: see the page. */
struct key_numbers {
    const dq_page_form *form;
    const dq_page *page;
    const float *first;
    int head, bits;
};

/* Of channels c .. c+3. */
DQ_DEVICE void load_numbers(float step[4], float middle[4], const key_numbers *k, int set, int c)
{
    if (set == 0 && k->first) {
        load_four(step, k->first, true, c);
        load_four(middle, k->first, true, k->form->dim + c);
        return;
    }
    int64_t at = (int64_t)(set * k->page->heads + k->head) * k->form->set_numbers + c;
    load_four(step, k->page->side[0].scale, k->page->wide[0], at);
    load_four(middle, k->page->side[0].scale, k->page->wide[0], at + k->form->dim);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) middle[i] = middle_of(step[i], middle[i], k->bits);
}

DQ_DEVICE void load_query(float x[4], const float *q)
{
    dq_u4 a = dq_load16_const(q);
    x[0] = dq_bits_f32(a.x);
    x[1] = dq_bits_f32(a.y);
    x[2] = dq_bits_f32(a.z);
    x[3] = dq_bits_f32(a.w);
}

/* The largest |q step| of a quad's row, and q times the middles. */
DQ_DEVICE void weigh_row(uint32_t *max, float *base, const key_numbers *k, int set, const float *q)
{
    float sum[4] = {};
    *max = 0;
    ROLLED
    for (int c = 4 * ((int)dq_lane() % 4); c < k->form->dim; c += 16) {
        float step[4], middle[4], x[4];
        load_numbers(step, middle, k, set, c);
        load_query(x, q + c);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t bits = dq_f32_bits(dq_mul_rn(x[i], step[i])) & 0x7fffffffu;
            *max = bits > *max ? bits : *max;
            sum[i] = dq_add_rn(sum[i], dq_mul_rn(x[i], middle[i]));
        }
    }
    *max = quad_max(*max);
    *base = fold_sums(sum);
}

/* A quad's row by a set's steps: codes, scale, sum of codes, and base, to row r of `to`. */
DQ_DEVICE void round_row_by_set(const rounded_queries *to, float *to_base, const key_numbers *k,
                                int set, const float *q, int r)
{
    int u = (int)dq_lane() % 4, sum = 0;
    uint32_t max;
    float base;
    weigh_row(&max, &base, k, set, q);
    float peak = dq_bits_f32(max);
    bool real = max < 0x7f800000u, some = real && peak >= 0x1p-100f;
    float by = some ? dq_div_rn(127.0f, peak) : 0.0f;
    ROLLED
    for (int c = 4 * u; c < k->form->dim; c += 16) {
        float step[4], middle[4], x[4];
        uint32_t word = 0;
        load_numbers(step, middle, k, set, c);
        load_query(x, q + c);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            int code = dq_f32_s8(dq_mul_rn(dq_mul_rn(x[i], step[i]), by));
            sum += code;
            word |= (uint32_t)(code & 255) << 8 * i;
        }
        *(uint32_t *)(to->code + (c / 16 * to->rows + r) * 16 + c % 16) = word;
    }
    sum += dq_shfl_xor(sum, 1u);
    sum += dq_shfl_xor(sum, 2u);
    if (u != 0) return;
    to->scale[r] = some ? dq_div_rn(peak, 127.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
    to->sum[r] = sum;
    to_base[r] = base;
}

/* ---- scores of sets */

/* S of 32 tokens, unscaled; a set that begins in a page's first half is rounded there for both. */
DQ_DEVICE void set_scores(float s[4][4], uint8_t *mem, const fused_space *at,
                          const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                          int page, int m, int half)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    int padded = (f->dim + 31) / 32 * 32, which = j->which[m], head = j->key[which];
    const uint8_t *cells = mem + at->keys + which * DQ_PAGE_SLOTS * f->cols;
    const rounded_queries to = {(int8_t *)mem + at->q + m * padded * TILE,
                                (float *)(mem + at->q_scale) + m * TILE,
                                (int32_t *)(mem + at->q_sum) + m * TILE, TILE};
    float *base = (float *)(mem + at->q_base) + m * TILE;
    const key_numbers k = {f, p, (const float *)(mem + at->key_scale) + 2 * which * f->dim, head,
                           dq_page_bits(f, p, 0, head)};
    ROLLED
    for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set);) {
        if (set.end <= 32 * half || set.first >= 32 * half + 32) continue;
        if (half == 0 || set.first >= 32) {
            DQ_WARP_SYNC(set_rows_read); /* rows of the set before have been read */
            ROLLED
            for (int r = l->row[0]; r <= l->row[1]; r += 8)
                round_row_by_set(&to, base, &k, set.index, query_of(u, j, m, r < j->w->n ? r : 0),
                                 r);
            DQ_WARP_SYNC(set_rows_rounded); /* rows are rounded */
        }
        int32_t acc[4][4] = {};
        ROLLED
        for (int c = 0; c < f->dim; c += 32)
            multiply_keys(acc, mem + at->q + m * padded * TILE, cells, f->cols / 16, half, c, 0,
                          f->dim, sixteens_of(set.first, set.end) >> 2 * half);
        DQ_UNROLL
        for (int i = 0; i < 16; i++) {
            int r = l->row[i / 2 % 2], t = 32 * half + token_of<false>(i / 4, (int)dq_lane() % 4);
            float x = dq_s32_f32(acc[i / 4][i % 4] - to.sum[r] * (1 << (k.bits - 1)));
            if (t + i % 2 >= set.first && t + i % 2 < set.end)
                s[i / 4][i % 4] = dq_add_rn(dq_mul_rn(x, to.scale[r]), base[r]);
        }
    }
}

/* ---- values of sets */

/* Sums of D, and of D times weight[64] (NULL: zero), over the tokens that row i reads as codes;
 * parked: the lane's D of the page, [32][DQ_WARP]. */
DQ_DEVICE void sum_codes(float *base, float *weighted, const float *parked, const float *weight,
                         const lane_page *at, uint32_t sixteens, int i)
{
    int u = (int)dq_lane() % 4, end = i ? at->end[1] : at->end[0];
    int seen = i ? at->seen[1] : at->seen[0];
    float sum[4] = {}, by_weight[4] = {};
    ROLLED
    for (int b = 0; b < 4; b++) {
        if (!(sixteens >> b & 1)) continue; /* zeros change no sum */
        DQ_UNROLL
        for (int k = 0; k < 4; k++) { /* in the order of tokens */
            int j = 2 * b + ((k / 2) ^ (u >> 1)), t = 16 * b + 4 * u + k;
            if (t < at->first || t >= end || t >= seen) continue;
            float x = parked[(4 * j + 2 * i + k % 2) * DQ_WARP];
            sum[k] = dq_add_rn(sum[k], x);
            if (weight) by_weight[k] = dq_add_rn(by_weight[k], dq_mul_rn(x, weight[t]));
        }
    }
    *base = fold_sums(sum);
    *weighted = weight ? fold_sums(by_weight) : 0.0f;
}

/* What a set's sum of D codes means in one channel. */
DQ_DEVICE float set_part(int32_t sum, float scale, float less, float base, float step, float middle)
{
    float x = dq_sub_rn(dq_mul_rn(dq_s32_f32(sum), scale), less);
    return dq_add_rn(dq_mul_rn(x, step), dq_mul_rn(middle, base));
}

/* o += D V of a set; slots of `at` outside the set or `sixteens` count as none. */
template <int NT>
DQ_DEVICE void set_values(float o[NT][4], const float *parked, const uint8_t *cells,
                          const float *numbers, const dq_page_form *f, const dq_page *p,
                          const lane_page *at, uint32_t sixteens, int n_slabs)
{
    rounded_rows rounded;
    const float *dither = p->dither >= 0 ? f->dither + p->dither * DQ_PAGE_SLOTS : NULL;
    float base[2], less[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) sum_codes(&base[i], &less[i], parked, dither, at, sixteens, i);
    const lane_difference d = {NULL, parked, NULL};
    round_difference<true, false>(&rounded, &d, at, sixteens);
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        if (8 * n >= n_slabs * f->dim) break;
        int slab = 8 * n >= f->dim, c = 8 * n - slab * f->dim;
        const float *at_slab = numbers + 2 * slab * f->dim + c + 2 * ((int)dq_lane() % 4);
        pair step = *(const pair *)at_slab, middle = *(const pair *)(at_slab + f->dim);
        int32_t acc[4];
        multiply_values(acc, &rounded, cells + (slab * DQ_PAGE_SLOTS * f->cols + c * 16), f->cols,
                        sixteens);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            float x = set_part(acc[i], rounded.scale[i / 2], less[i / 2], base[i / 2],
                               i % 2 ? step.y : step.x, i % 2 ? middle.y : middle.x);
            if (at->first < at->end[i / 2]) o[n][i] = dq_add_rn(o[n][i], x);
        }
    }
}

#endif
