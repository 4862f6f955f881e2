/* fused_decode_sets: per-channel codes in int8 attention of few rows. A warp reads a page; it rounds the rows anew for every set of the
 * page, a single row by eight sets at once, and what a set adds to a row is a part of its own. See fused_decode.cu, fused_sets.cuh.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_DECODE_SETS_CUH
#define DQ_FUSED_DECODE_SETS_CUH

#include "kernels/cuda/device/fused_decode.cuh"
#include "kernels/cuda/device/fused_sets.cuh"

/* -------------------------------------------------------------------------------------- scores */

/* A warp's rows of queries, rounded by a set; or one row, by as many sets. */
struct set_queries {
    int8_t code[MAX_DECODE_ROWS * 128];
    float scale[MAX_DECODE_ROWS], base[MAX_DECODE_ROWS];
    int32_t sum[MAX_DECODE_ROWS];
};

/* Strips of the tokens of a page that rows read unquantized. */
DQ_DEVICE void put_plain(const dq_attention_units *u, const fused_job *j, int page, bool coded)
{
    int n = slots_of(j->w->keys, page), sinks = j->pages[page].n_sinks;
    for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
        for (int r = 0; r < j->w->n; r++) {
            if (coded && t >= sinks && t < code_end(j, 0, page, r)) continue;
            strip_of(u, j->w, j->strip[0], r)[page * DQ_PAGE_SLOTS + t] =
                dq_mul_rn(token_plain(u, j, page, t, r), u->scale);
        }
    }
}

/* Strip of token t and row r, of which slot `slot` of q has what acc was made with. */
DQ_DEVICE void put_score(const dq_attention_units *u, const fused_job *j, const set_queries *q,
                         int32_t acc, int bits, int page, int t, int slot, int r)
{
    if (t >= code_end(j, 0, page, r)) return;
    float x = dq_s32_f32(acc - q->sum[slot] * (1 << (bits - 1)));
    x = dq_add_rn(dq_mul_rn(x, q->scale[slot]), q->base[slot]);
    strip_of(u, j->w, j->strip[0], r)[page * DQ_PAGE_SLOTS + t] = dq_mul_rn(x, u->scale);
}

/* Strips of token t and the rows that read it as a code, from a head's codes. */
DQ_DEVICE void put_code(const dq_attention_units *u, const fused_job *j, const set_queries *q,
                        const uint8_t *codes, int bits, int page, int t)
{
    const dq_page_form *f = &u->form[0];
    int32_t acc[MAX_DECODE_ROWS] = {};
    for (int block = 0; block < f->cols / 16; block++) {
        dq_u4 k = key_cell(codes, bits, f->cols, block, t);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++) {
            if (r >= j->w->n) break;
            acc[r] =
                multiply_cell(acc[r], dq_load16(q->code + (block * MAX_DECODE_ROWS + r) * 16), k);
        }
    }
    DQ_UNROLL
    for (int r = 0; r < MAX_DECODE_ROWS; r++) {
        if (r >= j->w->n) break;
        put_score(u, j, q, acc[r], bits, page, t, r, r);
    }
}

/* Strips of a page's codes and a single row: a quad of lanes rounds it by a set, a lane has a token. */
DQ_DEVICE void put_single(const dq_attention_units *u, const fused_job *j, set_queries *mine,
                          const key_numbers *k, int page)
{
    const rounded_queries to = {mine->code, mine->scale, mine->sum, MAX_DECODE_ROWS};
    const uint8_t *codes = dq_page_codes(k->form, k->page, 0, k->head);
    int n = slots_of(j->w->keys, page), n_sets = dq_page_ones(k->page->begins);
    int quad = (int)dq_lane() / 4;
    for (int from = 0; from < n_sets; from += MAX_DECODE_ROWS) {
        DQ_WARP_SYNC(decode_single_read); /* what eight sets before rounded has been read */
        round_row_by_set(&to, mine->base, k, from + quad < n_sets ? from + quad : n_sets - 1,
                         query_of(u, j, 0, 0), quad);
        DQ_WARP_SYNC(decode_single_rounded); /* the row is rounded by eight sets */
        for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
            int slot = dq_page_set_of(k->page, t) - from;
            if (slot < 0 || slot >= MAX_DECODE_ROWS) continue;
            int32_t acc = 0;
            for (int block = 0; block < k->form->cols / 16; block++)
                acc = multiply_cell(acc,
                                    dq_load16(mine->code + (block * MAX_DECODE_ROWS + slot) * 16),
                                    key_cell(codes, k->bits, k->form->cols, block, t));
            put_score(u, j, mine, acc, k->bits, page, t, slot, 0);
        }
    }
}

/* Strips, of tokens that the unit has. */
DQ_KERNEL_BLOCKS(THREADS, 4) decode_scores_sets(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(set_queries, rows, [WARPS]);
    if (!open_split(job, &u, u.q_first)) return;
    const dq_page_form *f = &u.form[0];
    set_queries *mine = rows + dq_warp();
    const rounded_queries to = {mine->code, mine->scale, mine->sum, MAX_DECODE_ROWS};
    const int row = (int)dq_lane() / 4;
    const float *q = query_of(&u, job, 0, row < job->w->n ? row : 0);
    for (int page = -1; next_page(job, &page);) {
        const dq_page *p = job->pages + page;
        bool coded = is_coded(job, p, 0, page);
        int n = slots_of(job->w->keys, page), head = job->key[0];
        put_plain(&u, job, page, coded);
        if (!coded) continue;
        const key_numbers k = {f, p, NULL, head, dq_page_bits(f, p, 0, head)};
        if (job->w->n == 1) {
            put_single(&u, job, mine, &k, page);
            continue;
        }
        for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set) && set.first < n;) {
            DQ_WARP_SYNC(decode_set_read); /* rows of the set before have been read */
            round_row_by_set(&to, mine->base, &k, set.index, q, row);
            DQ_WARP_SYNC(decode_set_rounded); /* rows are rounded */
            int end = set.end < n ? set.end : n;
            for (int t = set.first + (int)dq_lane(); t < end; t += DQ_WARP)
                put_code(&u, job, mine, dq_page_codes(f, p, 0, head), k.bits, page, t);
        }
    }
}

/* -------------------------------------------------------------------------------------- values */

/* Sums over the tokens of a page, of which a lane has x[i] of token lane + 32 i, in the order of fold_sums. By a warp. */
DQ_DEVICE float fold_page(const float x[2])
{
    bool upper = dq_lane() >= 16;
    float a = dq_shfl_xor(x[0], 16u), b = dq_shfl_xor(x[1], 16u);
    float sum = dq_add_rn(dq_add_rn(0.0f, upper ? a : x[0]), upper ? x[0] : a);
    sum = dq_add_rn(dq_add_rn(sum, upper ? b : x[1]), upper ? x[1] : b);
    for (unsigned o = 8; o; o >>= 1) sum = dq_add_rn(sum, dq_shfl_xor(sum, o));
    return sum;
}

/* D of row r in a set: bytes, its sum and that of D times dither. */
DQ_DEVICE void round_set_row(decode_page *to, pair *sums, const dq_attention_units *u,
                             const fused_job *j, int page, const dq_page_set *set, int r)
{
    const dq_page *p = j->pages + page;
    int end = code_end(j, 1, page, r), seen = visible_of(u, j->w, r) - page * DQ_PAGE_SLOTS;
    float e[2], dithered[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i;
        bool in = t >= set->first && t < set->end && t < end && t < seen;
        e[i] = in ? to->d[r][t] : 0.0f;
        dithered[i] = dq_mul_rn(e[i], dq_page_dither(&u->form[1], p, 1, t));
    }
    row_bytes(to, e, r);
    float base = fold_page(e), less = p->dither >= 0 ? fold_page(dithered) : 0.0f;
    if (dq_lane() == 0) sums[r] = pair{base, less};
}

/* What a set adds to rows, to [rows][width]. */
DQ_DEVICE void add_set(float *to, decode_page *d, pair *sums, const dq_attention_units *u,
                       const fused_job *j, int page, const dq_page_set *set)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int width = j->n_slabs * f->dim;
    DQ_WARP_SYNC(decode_set_bytes_read); /* D is there; bytes of the set before have been read */
    for (int r = 0; r < j->w->n; r++) round_set_row(d, sums, u, j, page, set, r);
    DQ_WARP_SYNC(decode_set_bytes_there); /* D is there in bytes */
    for (int i = (int)dq_lane(); i < width; i += DQ_WARP) {
        int head = j->value[i / f->dim], c = i % f->dim, bits = dq_page_bits(f, p, 1, head);
        int64_t at = (int64_t)(set->index * p->heads + head) * f->set_numbers;
        pair number = set_number(f, p->side[1].scale, p->wide[1], at, bits, c);
        int32_t sum[MAX_DECODE_ROWS];
        channel_sums(sum, d, f, bits, dq_page_codes(f, p, 1, head), c, j->w->n,
                     sixteens_of(set->first, set->end));
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++)
            if (r < j->w->n)
                to[r * width + i] =
                    set_part(sum[r], d->scale[r], sums[r].y, sums[r].x, number.x, number.y);
    }
}

DQ_KERNEL(THREADS) decode_values_sets(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(decode_page, pages, [WARPS]);
    DQ_SHARED(pair, sums, [WARPS * MAX_DECODE_ROWS]);
    DQ_SHARED(row_known, known, [MAX_DECODE_ROWS]);
    if (!open_split(job, &u, u.o_first)) return;
    if ((int)dq_thread() < job->w->n) know_row(known + dq_thread(), &u, job, (int)dq_thread());
    DQ_SYNC(decode_set_rows_known); /* rows are known */
    decode_page *d = pages + dq_warp();
    for (int page = -1; next_page(job, &page);) {
        const dq_page *p = job->pages + page;
        if (!is_coded(job, p, 1, page)) continue;
        page_difference(d, &u, job, known, page);
        for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set);)
            add_set(part_of(&u, job->w, (int)dq_block_y(), p->first_set + set.index), d,
                    sums + dq_warp() * MAX_DECODE_ROWS, &u, job, page, &set);
    }
}

#endif
