/* fused_int8: pages in products of bytes. Of 16 neighbouring tokens a lane holds the scores of four
 * neighbours, tokens 4 (lane % 4) .. +3: then four rounded values of D are one word of the left side of
 * the product with values, whose bytes stand in the order of tokens. The columns of a product of 8 keys
 * are tokens chosen so, and so that their cells lie in different banks.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_INT8_CUH
#define DQ_FUSED_INT8_CUH

#include "kernels/cuda/device/fused_rows.cuh"

/* Where things lie in a block's shared memory, in bytes. */
struct fused_space {
    int32_t q, q_scale, q_sum; /* queries: cells of 64 rows, [map][run][64] */
    int32_t q_base;            /* per-channel codes: [map][64] */
    /* Keys as they come; pages with odd numbers raw_stride after the others, where codes of 8 bits are
     * cells already. Otherwise `keys` are the cells. Cells of values take their place, one page's. Scales are [head][run][64],
     * of per-channel codes steps and middles [head][2][dim] of a set. Where keys have per-channel codes, keys and values come to one place in turns. */
    int32_t raw_keys, raw_stride, keys, key_scale;
    int32_t raw_values, value_scale;
    /* shares of lanes; half a page's D; [warp][16 tokens][16 rows] of it, with per-channel codes after all of it, [warp][32][lane] */
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

/* -------------------------------------------------------------------------------------- queries */

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

/* --------------------------------------------------------------------------------------- pages */

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

/* Starts copies of codes and scales of n heads: heads one after the other, then their scales, or of per-channel codes (SETS) the
 * numbers of the page's first set. WIDTHS: pages may say how wide their codes are. */
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

/* Numbers of n heads, [n][n_scales][64], from what fetch_page brought after their codes. LOWS: lows become middles. */
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

#endif
