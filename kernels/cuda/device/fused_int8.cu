/* fused_int8: attention in one kernel, in int8. Codes are multiplied as stored, unsigned, while the
 * next page's keys are fetched; the sum of a query's codes times the offset is subtracted after. D
 * is rounded to 16 bits by row and run of scales and multiplied as two bytes; tokens that are read
 * unquantized are added in f32. tests/simt/defects.tsv quotes the text of masks.
 * Kernels on per-channel codes (KEY_SETS, VALUE_SETS) are instances of the same passes; mixed codes
 * have sets of keys alone, and their values have lows by token.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/fused_int8.cuh"

/* ---- scores */

/* S of the codes of 32 tokens, unscaled. keys, scale: of the head. */
DQ_DEVICE void coded_scores(float s[4][4], const uint8_t *mem, const fused_space *at,
                            const dq_page_form *f, const uint8_t *keys, const float *scale, int m,
                            int half)
{
    int lane = (int)dq_lane(), u = lane % 4, row = WARP_ROWS * (int)dq_warp() + lane / 4;
    const uint8_t *q = mem + at->q + m * ((f->dim + 31) / 32 * 32) * TILE;
    const float *q_scale = (const float *)(mem + at->q_scale) + m * f->n_scales * TILE + row;
    const int32_t *q_sum = (const int32_t *)(mem + at->q_sum) + m * f->n_scales * TILE + row;
    for (int g = 0; g < f->n_scales; g++) {
        int32_t acc[4][4] = {};
        int begin = g * f->group, end = run_end(f, g);
        ROLLED
        for (int c = begin / 32 * 32; c < end; c += 32)
            multiply_keys(acc, q, keys, f->cols / 16, half, c, begin, end, ALL_SIXTEENS);
        float factor[2] = {q_scale[g * TILE], q_scale[g * TILE + 8]};
        int32_t shift[2] = {q_sum[g * TILE] * (1 << (f->bits - 1)),
                            q_sum[g * TILE + 8] * (1 << (f->bits - 1))};
        DQ_UNROLL
        for (int k = 0; k < 4; k++) {
            pair key =
                *(const pair *)(scale + g * DQ_PAGE_SLOTS + 32 * half + token_of<false>(k, u));
            DQ_UNROLL
            for (int i = 0; i < 4; i++) {
                float x = dq_mul_rn(factor[i / 2], i % 2 ? key.y : key.x);
                x = dq_mul_rn(dq_s32_f32(acc[k][i] - shift[i / 2]), x);
                s[k][i] = g ? dq_add_rn(s[k][i], x) : x;
            }
        }
    }
}

/* acc[i][x]: row i times token t + x, channels in their order. */
DQ_DEVICE void multiply_plain(float acc[2][4], const float *const q[2], const float *const k[4],
                              int dim)
{
    ROLLED
    for (int c = 0; c < dim; c += 4) {
        dq_u4 a[2] = {dq_load16_const(q[0] + c), dq_load16_const(q[1] + c)};
        DQ_UNROLL
        for (int x = 0; x < 4; x++) {
            dq_u4 b = dq_load16_const(k[x] + c);
            DQ_UNROLL
            for (int i = 0; i < 2; i++) {
                acc[i][x] = dq_fma_rn(dq_bits_f32(a[i].x), dq_bits_f32(b.x), acc[i][x]);
                acc[i][x] = dq_fma_rn(dq_bits_f32(a[i].y), dq_bits_f32(b.y), acc[i][x]);
                acc[i][x] = dq_fma_rn(dq_bits_f32(a[i].z), dq_bits_f32(b.z), acc[i][x]);
                acc[i][x] = dq_fma_rn(dq_bits_f32(a[i].w), dq_bits_f32(b.w), acc[i][x]);
            }
        }
    }
}

/* S of tokens that rows read unquantized, in the place of what stands there. */
DQ_DEVICE void plain_scores(float s[4][4], const dq_attention_units *u, const fused_job *j,
                            const lane_rows *l, const lane_page *at, int page, int m, int half)
{
    if (32 * half >= at->first && 32 * half + 32 <= at->least_end) return; /* all are codes */
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    int quad = (int)dq_lane() % 4, high = quad >> 1;
    const float *q[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int row = l->row[i] < j->w->n ? l->row[i] : 0;
        q[i] = u->q + ((int64_t)(j->w->row + row) * u->n_q + j->query[m]) * f->dim;
    }
    DQ_UNROLL
    for (int b = 0; b < 2; b++) {
        int t = 32 * half + 16 * b + 4 * quad;
        bool any = false;
        DQ_UNROLL
        for (int i = 0; i < 2; i++)
            any = any || is_plain(at, i, t) || is_plain(at, i, t + 3) || is_plain(at, i, t + 1) ||
                  is_plain(at, i, t + 2);
        if (!any) continue;
        const float *k[4];
        DQ_UNROLL
        for (int x = 0; x < 4; x++) k[x] = plain_token(f, p, 0, j->key[j->which[m]], t + x);
        float acc[2][4] = {};
        multiply_plain(acc, q, k, f->dim);
        DQ_UNROLL
        for (int i = 0; i < 2; i++) {
            DQ_UNROLL
            for (int e = 0; e < 2; e++) { /* tokens t + e and t + 2 + e */
                float *first = &s[2 * b][2 * i + e], *second = &s[2 * b + 1][2 * i + e];
                bool p0 = is_plain(at, i, t + e), p2 = is_plain(at, i, t + 2 + e);
                float a = acc[i][e], c = acc[i][2 + e];
                *first = high ? (p2 ? c : *first) : (p0 ? a : *first);
                *second = high ? (p0 ? a : *second) : (p2 ? c : *second);
            }
        }
    }
}

/* S = scale * (q . k) of one map and 32 tokens. Of slots that a row does not see it is anything. */
template <bool SETS>
DQ_DEVICE void half_scores(float s[4][4], uint8_t *mem, const fused_space *at,
                           const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                           const lane_page *rows, int page, int m, int half)
{
    const dq_page_form *f = &u->form[0];
    int which = j->which[m];
    DQ_UNROLL
    for (int k = 0; k < 4; k++) {
        DQ_UNROLL
        for (int i = 0; i < 4; i++) s[k][i] = 0;
    }
    if (SETS && rows->coded) {
        set_scores(s, mem, at, u, j, l, page, m, half);
    } else if (rows->coded) {
        const uint8_t *keys = mem + key_cells(at, f, page);
        coded_scores(s, mem, at, f, keys + which * DQ_PAGE_SLOTS * f->cols,
                     (const float *)(mem + at->key_scale) + which * f->n_scales * DQ_PAGE_SLOTS, m,
                     half);
    }
    plain_scores(s, u, j, l, rows, page, m, half);
    DQ_UNROLL
    for (int k = 0; k < 4; k++) {
        DQ_UNROLL
        for (int i = 0; i < 4; i++) s[k][i] = dq_mul_rn(s[k][i], u->scale);
    }
}

/* The page's keys become ready for all, those of the next one (AHEAD) start on their way. */
template <bool SETS, bool AHEAD>
DQ_DEVICE void turn_to_keys(uint8_t *mem, const fused_space *at, const dq_attention_units *u,
                            const fused_job *j, int page)
{
    const dq_page_form *f = &u->form[0];
    const uint8_t *raw = mem + raw_keys(at, page);
    float *scale = (float *)(mem + at->key_scale);
    unpack_codes<SETS>(mem + at->keys, raw, j, f, 0, page, j->key, j->n_keys);
    if (SETS)
        unpack_set(scale, raw, j, f, 0, page, 0, j->key, j->n_keys);
    else
        unpack_scales<false>(scale, raw, j, f, 0, page, j->key, j->n_keys);
    DQ_SYNC(int8_key_cells); /* keys are cells of bytes */
    if (AHEAD)
        fetch_page<SETS, SETS>(mem + raw_keys(at, page + 1), j, f, 0, page + 1, j->key, j->n_keys);
}

/* ---- values */

/* o[n] += D V of eight channels. LOWS: then D times middles of a row, more[2]. */
template <bool LOWS>
DQ_DEVICE void add_values(float o[4], const rounded_rows *d, const float *more,
                          const uint8_t *cells, int cols)
{
    int32_t acc[4];
    multiply_values(acc, d, cells, cols, ALL_SIXTEENS);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        o[i] = dq_add_rn(o[i], dq_mul_rn(dq_s32_f32(acc[i]), d->scale[i / 2]));
        if (LOWS) o[i] = dq_add_rn(o[i], more[i / 2]);
    }
}

/* o += D V of a page's codes. scale: as unpack_scales; parked, with LOWS: as sum_codes. */
template <int NT, bool LOWS>
DQ_DEVICE void coded_values(float o[NT][4], const float d[8][4], const float *parked,
                            const uint8_t *cells, const float *scale, const dq_page_form *f,
                            const lane_page *at, int n_slabs)
{
    const int runs = LOWS ? f->n_scales / 2 : f->n_scales;
    for (int k = 0; k < n_slabs * runs; k++) {
        int slab = k / runs, g = k % runs;
        int begin = (slab * f->dim + g * f->group) / 16, end = (slab * f->dim + run_end(f, g)) / 16;
        const uint8_t *of_slab = cells + slab * DQ_PAGE_SLOTS * f->cols - slab * f->dim * 16;
        const float *step = scale + (slab * f->n_scales + g) * DQ_PAGE_SLOTS;
        rounded_rows rounded;
        float base, more[2] = {};
        DQ_UNROLL
        for (int i = 0; LOWS && i < 2; i++)
            sum_codes(&base, &more[i], parked, step + runs * DQ_PAGE_SLOTS, at, ALL_SIXTEENS, i);
        const lane_difference from = {d, parked, step};
        round_difference<LOWS, true>(&rounded, &from, at, ALL_SIXTEENS);
        DQ_UNROLL
        for (int n = 0; n < NT / 2; n++) {
            if (n < begin || n >= end) continue;
            add_values<LOWS>(o[2 * n], &rounded, more, of_slab + 16 * n * 16, f->cols);
            add_values<LOWS>(o[2 * n + 1], &rounded, more, of_slab + (16 * n + 8) * 16, f->cols);
        }
    }
}

/* D of 16 tokens from 16 b on to held[16][16], zero where a row reads codes or nothing. */
DQ_DEVICE void hold_plain(float *held, const float d[8][4], const lane_page *at, int b)
{
    int lane = (int)dq_lane(), u = lane % 4;
    DQ_WARP_SYNC(int8_held_read); /* what stood there has been read */
    DQ_UNROLL
    for (int k = 0; k < 4; k++) {
        if (k != b) continue;
        DQ_UNROLL
        for (int i = 0; i < 8; i++) {
            int j = 2 * k + i / 4, row = i / 2 % 2, t = token_of<false>(j, u) + i % 2;
            held[t % 16 * 16 + lane / 4 + 8 * row] =
                is_plain(at, row, t) ? d[j][2 * row + i % 2] : 0.0f;
        }
    }
    DQ_WARP_SYNC(int8_held_there); /* all rows are there */
}

/* o += D V over tokens that some row of the unit reads unquantized. */
template <int NT>
DQ_DEVICE void plain_values(float o[NT][4], const float d[8][4], float *held,
                            const dq_attention_units *u, const fused_job *j, const lane_page *at,
                            int page, int seen)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int lane = (int)dq_lane(), chunks = f->dim / 16;
    for (int b = 0; 16 * b < seen; b++) {
        if (16 * b >= at->first && 16 * b + 16 <= at->least_end) continue;
        hold_plain(held, d, at, b);
        for (int t = 16 * b; t < 16 * b + 16 && t < seen; t++) {
            if (t >= at->first && t < at->least_end) continue;
            float x = held[t % 16 * 16 + lane / 4], y = held[t % 16 * 16 + lane / 4 + 8];
            const float *v = plain_token(f, p, 1, j->value[0], t) + 2 * (lane % 4), *v2 = v;
            if (j->n_slabs == 2)
                v2 = plain_token(f, p, 1, j->value[1], t) + 2 * (lane % 4) - f->dim;
            DQ_UNROLL
            for (int n = 0; n < NT; n++) {
                if (n / 2 >= chunks * j->n_slabs) break;
                pair k = *(const pair *)((n / 2 < chunks ? v : v2) + 8 * n);
                o[n][0] = dq_fma_rn(x, k.x, o[n][0]);
                o[n][1] = dq_fma_rn(x, k.y, o[n][1]);
                o[n][2] = dq_fma_rn(y, k.x, o[n][2]);
                o[n][3] = dq_fma_rn(y, k.y, o[n][3]);
            }
        }
    }
}

/* ---- first pass */

/* Over all pages: the largest |S| of every map and row (MOST), or maxima and sums. */
template <bool MAX, bool SETS>
DQ_DEVICE void first_pass(uint8_t *mem, const fused_space *at, const dq_attention_units *u,
                          const fused_job *j, const lane_rows *l, const dq_fused_logits *round)
{
    const float low = MAX ? 0.0f : -INFINITY;
    row_stats *stats = (row_stats *)(mem + at->rows);
    float *shares = (float *)(mem + at->d);
    for (int m = 0; m < j->n_maps; m++) put_share(lane_share(shares, m), low, low, 0.0f, 0.0f);
    fetch_page<SETS, SETS>(mem + at->raw_keys, j, &u->form[0], 0, 0, j->key, j->n_keys);
    for (int page = 0; page < j->n_pages; page++) {
        DQ_CP_ASYNC_WAIT(0, int8_first_wait); /* the page */
        DQ_SYNC(int8_first_codes); /* codes of keys are there, and all have read the page before */
        turn_to_keys<SETS, true>(mem, at, u, j, page);
        if (page * DQ_PAGE_SLOTS >= l->max) continue;
        lane_page rows = page_of_lane(j, l, 0, page);
        for (int k = 0; k < 2 * j->n_maps; k++) {
            float s[4][4];
            float *share = lane_share(shares, k / 2);
            half_scores<SETS>(s, mem, at, u, j, l, &rows, page, k / 2, k % 2);
            if (MAX) {
                raise_max<false>(share, s, &rows, k % 2);
            } else {
                round_scores(s, l, stats->max[k / 2], round);
                add_exps<false>(share, s, &rows, k % 2);
            }
        }
    }
    for (int m = 0; m < j->n_maps; m++) join_shares<MAX>(stats, lane_share(shares, m), u, j, l, m);
    DQ_SYNC(int8_first_done); /* all have read the last page, and rows are known */
}

/* ---- second pass */

/* d = P1 - lambda P2, of one map exp(S - max); zero where a row sees nothing. */
DQ_DEVICE void page_difference(float d[8][4], uint8_t *mem, const fused_space *at,
                               const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                               const dq_fused_logits *round, int page)
{
    lane_page rows = page_of_lane(j, l, 0, page);
    const row_stats *stats = (const row_stats *)(mem + at->rows);
    float *parked = (float *)(mem + at->d) + dq_thread();
    DQ_UNROLL
    for (int half = 0; half < 2; half++) {
        DQ_UNROLL
        for (int i = 0; i < 16; i++) d[4 * half + i / 4][i % 4] = 0;
        for (int m = 0; m < j->n_maps; m++) {
            float s[4][4];
            half_scores<false>(s, mem, at, u, j, l, &rows, page, m, half);
            round_scores(s, l, stats->max[m], round);
            add_map<false>(d + 4 * half, s, stats, j, l, &rows, m, half);
        }
        DQ_UNROLL /* registers are scarce while scores are made */
            for (int i = 0; half == 0 && i < 16; i++) parked[i * THREADS] = d[i / 4][i % 4];
    }
    DQ_UNROLL
    for (int i = 0; i < 16; i++) d[i / 4][i % 4] = parked[i * THREADS];
}

/* The same where keys have per-channel codes, to parked[32][DQ_WARP] of the lane. */
DQ_DEVICE void set_difference(float *parked, uint8_t *mem, const fused_space *at,
                              const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                              const dq_fused_logits *round, int page)
{
    lane_page rows = page_of_lane(j, l, 0, page);
    const row_stats *stats = (const row_stats *)(mem + at->rows);
    ROLLED
    for (int k = 0; k < 2 * j->n_maps; k++) {
        int half = k / j->n_maps, m = k % j->n_maps;
        float s[4][4], d[4][4], *to = parked + 16 * half * DQ_WARP;
        half_scores<true>(s, mem, at, u, j, l, &rows, page, m, half);
        round_scores(s, l, stats->max[m], round);
        DQ_UNROLL
        for (int i = 0; i < 16; i++) d[i / 4][i % 4] = m ? to[i * DQ_WARP] : 0.0f;
        add_map<false>(d, s, stats, j, l, &rows, m, half);
        DQ_UNROLL
        for (int i = 0; i < 16; i++) to[i * DQ_WARP] = d[i / 4][i % 4];
    }
}

/* By all threads: o += D V, set by set; some: whether the warp has rows that see the page. */
template <int NT>
DQ_DEVICE void add_sets(float o[NT][4], const float *parked, const uint8_t *cells, float *numbers,
                        const dq_attention_units *u, const fused_job *j, const lane_page *rows,
                        int page, bool some)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    ROLLED
    for (dq_page_set set = dq_page_sets(p); rows->coded && dq_page_next_set(p, &set);) {
        if (set.index > 0) {
            DQ_SYNC(set_numbers_read); /* numbers of the set before have been read */
            unpack_set(numbers, NULL, j, f, 1, page, set.index, j->value, j->n_slabs);
            DQ_SYNC(set_numbers_there); /* those of this one are there */
        }
        lane_page own = *rows;
        own.first = set.first;
        DQ_UNROLL
        for (int i = 0; i < 2; i++) own.end[i] = set.end < rows->end[i] ? set.end : rows->end[i];
        if (some)
            set_values<NT>(o, parked, cells, numbers, f, p, &own, sixteens_of(set.first, set.end),
                           j->n_slabs);
    }
}

template <int NT, bool KEY_SETS, bool VALUE_SETS>
DQ_DEVICE void second_pass(float o[NT][4], uint8_t *mem, const fused_space *at,
                           const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                           const dq_fused_logits *round)
{
    const dq_page_form *keys = &u->form[0], *values = &u->form[1];
    float *scale = (float *)(mem + at->value_scale), *at_d = (float *)(mem + at->d);
    float *held = at_d + dq_warp() * 256 + (KEY_SETS ? 32 * THREADS : 0);
    float *parked = at_d + dq_warp() * 32 * DQ_WARP + dq_lane();
    fetch_page<KEY_SETS, KEY_SETS>(mem + at->raw_keys, j, keys, 0, 0, j->key, j->n_keys);
    for (int page = 0; page < j->n_pages; page++) {
        bool some = page * DQ_PAGE_SLOTS < l->max;
        float d[8][4];
        DQ_CP_ASYNC_WAIT(0, int8_second_wait); /* keys of the page */
        DQ_SYNC(int8_second_codes); /* keys are there, and all have read the values before */
        if (!KEY_SETS)
            fetch_page<false, false>(mem + at->raw_values, j, values, 1, page, j->value,
                                     j->n_slabs);
        turn_to_keys<KEY_SETS, !KEY_SETS>(mem, at, u, j, page);
        if (KEY_SETS) /* where the keys came */
            fetch_page<true, VALUE_SETS>(mem + at->raw_values, j, values, 1, page, j->value,
                                         j->n_slabs);
        if (KEY_SETS && some) set_difference(parked, mem, at, u, j, l, round, page);
        if (!KEY_SETS && some) page_difference(d, mem, at, u, j, l, round, page);
        /* of per-token codes the next keys may be on their way */
        DQ_CP_ASYNC_WAIT(KEY_SETS ? 0 : 1, int8_values_wait);
        DQ_SYNC(int8_values_codes); /* codes of values are there */
        const uint8_t *cells =
            mem + (are_cells(values) ? at->raw_values : key_cells(at, keys, page));
        unpack_codes<KEY_SETS>(mem + key_cells(at, keys, page), mem + at->raw_values, j, values, 1,
                               page, j->value, j->n_slabs);
        if (VALUE_SETS)
            unpack_set(scale, mem + at->raw_values, j, values, 1, page, 0, j->value, j->n_slabs);
        else
            unpack_scales<KEY_SETS>(scale, mem + at->raw_values, j, values, 1, page, j->value,
                                    j->n_slabs);
        DQ_SYNC(int8_value_cells); /* values are cells of bytes */
        if (KEY_SETS)
            fetch_page<true, true>(mem + at->raw_keys, j, keys, 0, page + 1, j->key, j->n_keys);
        lane_page rows = page_of_lane(j, l, 1, page);
        DQ_UNROLL
        for (int i = 0; KEY_SETS && i < 32; i++) d[i / 4][i % 4] = parked[i * DQ_WARP];
        if (some) plain_values<NT>(o, d, held, u, j, &rows, page, slots_of(l->max, page));
        if (VALUE_SETS)
            add_sets<NT>(o, parked, cells, scale, u, j, &rows, page, some);
        else if (some && rows.coded)
            coded_values<NT, KEY_SETS>(o, d, parked, cells, scale, values, &rows, j->n_slabs);
    }
}

/* ---- kernels */

/* NT: tiles of eight channels of the output head, at most. */
template <int NT, bool SETS, bool VALUE_SETS>
DQ_DEVICE void attend(uint8_t *mem, fused_job *job, dq_attention_units u, dq_attention_finish f,
                      dq_fused_logits round, fused_space at)
{
    if (!open_output(job, &u)) return;
    row_stats *stats = (row_stats *)(mem + at.rows);
    if (round.round == DQ_ROUND_GIVEN) given_max(stats, &u, job, &round);
    if (!SETS) round_queries(mem, &at, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, false);
    if (round.round == DQ_ROUND_ROW) first_pass<true, SETS>(mem, &at, &u, job, &l, &round);
    first_pass<false, SETS>(mem, &at, &u, job, &l, &round);
    float o[NT][4] = {};
    second_pass<NT, SETS, VALUE_SETS>(o, mem, &at, &u, job, &l, &round);
    float factor[2] = {1.0f, 1.0f};
    DQ_UNROLL
    for (int i = 0; i < 2; i++)
        if (job->n_maps == 1) factor[i] = stats->factor[0][l.row[i]];
    DQ_SYNC(int8_values_read); /* all have read their values */
    finish_rows<NT>(o, factor, job, &l, &f, (float *)(mem + at.d), u.form[1].dim);
}

template <int NT>
DQ_KERNEL_BLOCKS(THREADS, 2)
attend_int8(dq_attention_units u, dq_attention_finish f, dq_fused_logits round, fused_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    attend<NT, false, false>(mem, job, u, f, round, at);
}

template <int NT>
DQ_KERNEL_BLOCKS(THREADS, 2)
attend_int8_sets(dq_attention_units u, dq_attention_finish f, dq_fused_logits round, fused_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    attend<NT, true, true>(mem, job, u, f, round, at);
}

template <int NT>
DQ_KERNEL_BLOCKS(THREADS, 2)
attend_int8_mixed(dq_attention_units u, dq_attention_finish f, dq_fused_logits round,
                  fused_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    attend<NT, true, false>(mem, job, u, f, round, at);
}

template <bool SETS> DQ_KERNEL_BLOCKS(THREADS, 4) scores_int8(dq_attention_units u, fused_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_query(job, &u)) return;
    if (!SETS) round_queries(mem, &at, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, true);
    fetch_page<SETS, SETS>(mem + at.raw_keys, job, &u.form[0], 0, 0, job->key, 1);
    for (int page = 0; page < job->n_pages; page++) {
        DQ_CP_ASYNC_WAIT(0, int8_scores_wait); /* the only copy */
        DQ_SYNC(int8_scores_codes); /* codes of keys are there; all have read the page before */
        turn_to_keys<SETS, true>(mem, &at, &u, job, page);
        if (page * DQ_PAGE_SLOTS >= l.max) continue;
        lane_page rows = page_of_lane(job, &l, 0, page);
        for (int half = 0; half < 2; half++) {
            float s[4][4];
            half_scores<SETS>(s, mem, &at, &u, job, &l, &rows, page, 0, half);
            put_strip<false>(s, &u, job, &l, &rows, page, half);
        }
    }
}

template <bool SETS>
DQ_KERNEL_BLOCKS(THREADS, 4)
absmax_int8(dq_attention_units u, uint32_t *DQ_RESTRICT max, fused_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_query(job, &u)) return;
    if (!SETS) round_queries(mem, &at, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, false);
    dq_fused_logits none = {};
    first_pass<true, SETS>(mem, &at, &u, job, &l, &none);
    raise_absmax(max, (const row_stats *)(mem + at.rows), &u, job);
}

/* ---- launchers */

static int32_t take(int32_t *total, int64_t bytes)
{
    int32_t at = *total;
    *total += (int32_t)((bytes + 15) / 16 * 16);
    return at;
}

static fused_space space_of(const dq_attention_units *u, int maps, int slabs)
{
    const dq_page_form *k = &u->form[0], *v = &u->form[1];
    const bool sets = k->set_numbers > 0;
    const int64_t padded = (k->dim + 31) / 32 * 32;
    const int64_t q = (int64_t)maps * (sets ? 1 : k->n_scales) * TILE * 4;
    const int64_t numbers = sets ? (int64_t)maps * k->set_numbers * 4 : q;
    const int64_t cells = (int64_t)(maps > slabs ? maps : slabs) * DQ_PAGE_SLOTS * k->cols;
    const int64_t scales =
        (int64_t)slabs * (v->set_numbers ? v->set_numbers : v->n_scales * DQ_PAGE_SLOTS) * 4;
    const int64_t values = slabs * v->code_bytes + scales;
    int64_t keys = maps * k->code_bytes + numbers;
    if (sets && values > keys) keys = values; /* they take turns there */
    fused_space s = {};
    s.q = take(&s.total, maps * padded * TILE);
    s.q_scale = take(&s.total, q);
    s.q_sum = take(&s.total, q);
    if (sets) s.q_base = take(&s.total, q);
    s.raw_keys = take(&s.total, are_cells(k) && cells > keys ? cells : keys);
    if (are_cells(k)) {
        s.raw_stride = take(&s.total, cells > keys ? cells : keys) - s.raw_keys;
    } else {
        s.keys = take(&s.total, cells);
    }
    s.key_scale = take(&s.total, numbers);
    s.d = take(&s.total, (slabs && sets ? 40 : slabs ? 16 : 8) * THREADS * 4);
    s.rows = take(&s.total, sizeof(row_stats));
    if (slabs == 0) return s;
    s.raw_values = sets ? s.raw_keys : take(&s.total, values);
    s.value_scale = take(&s.total, scales);
    return s;
}

cudaError_t dq_fused_attend_int8(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                                 cudaStream_t s)
{
    const fused_space at = space_of(&u, u.n_maps, u.n_slabs);
    const int blocks = u.n * u.max_out, smem = at.total, tiles = u.n_slabs * u.form[1].dim / 8;
    if (u.form[1].has_lows) {
        if (tiles <= 8)
            DQ_FUSED_LAUNCH(attend_int8_mixed<8>, blocks, THREADS, smem, s, u, f, l, at);
        if (tiles <= 16)
            DQ_FUSED_LAUNCH(attend_int8_mixed<16>, blocks, THREADS, smem, s, u, f, l, at);
        DQ_FUSED_LAUNCH(attend_int8_mixed<32>, blocks, THREADS, smem, s, u, f, l, at);
    }
    if (u.form[0].set_numbers) {
        if (tiles <= 8) DQ_FUSED_LAUNCH(attend_int8_sets<8>, blocks, THREADS, smem, s, u, f, l, at);
        if (tiles <= 16)
            DQ_FUSED_LAUNCH(attend_int8_sets<16>, blocks, THREADS, smem, s, u, f, l, at);
        DQ_FUSED_LAUNCH(attend_int8_sets<32>, blocks, THREADS, smem, s, u, f, l, at);
    }
    if (tiles <= 8) DQ_FUSED_LAUNCH(attend_int8<8>, blocks, THREADS, smem, s, u, f, l, at);
    if (tiles <= 16) DQ_FUSED_LAUNCH(attend_int8<16>, blocks, THREADS, smem, s, u, f, l, at);
    DQ_FUSED_LAUNCH(attend_int8<32>, blocks, THREADS, smem, s, u, f, l, at);
}

cudaError_t dq_fused_scores_int8(dq_attention_units u, uint32_t *max, cudaStream_t s)
{
    const fused_space at = space_of(&u, 1, 0);
    const int blocks = u.n * u.max_q, smem = at.total;
    if (u.form[0].set_numbers) {
        if (max) DQ_FUSED_LAUNCH(absmax_int8<true>, blocks, THREADS, smem, s, u, max, at);
        DQ_FUSED_LAUNCH(scores_int8<true>, blocks, THREADS, smem, s, u, at);
    }
    if (max) DQ_FUSED_LAUNCH(absmax_int8<false>, blocks, THREADS, smem, s, u, max, at);
    DQ_FUSED_LAUNCH(scores_int8<false>, blocks, THREADS, smem, s, u, at);
}
