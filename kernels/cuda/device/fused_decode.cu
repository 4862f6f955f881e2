/* fused_decode: int8 attention of few rows per sequence, bound by the bytes of pages. Scores and values
 * are launches of their own: scores of a token and query head cost four bytes to keep, far less than
 * its codes. A warp reads a page; for scores a lane is a token, for values a channel.
 *
 * Every sum has the order of attend_int8, so that the results are its own bit for bit, however blocks share
 * the pages. Sums of codes are exact, and what they add to a row, page by page, is kept until it is its turn.
 * Three chains cannot be cut, but are short: a sum of exps is four lanes' (decode_sums), the unquantized
 * tokens of a page are added to the sum of the pages before (decode_join), and so is a norm.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/fused_decode_sets.cuh"

/* -------------------------------------------------------------------------------------- scores */

/* S of token t and all rows from its codes, unscaled. */
DQ_DEVICE void token_codes(float s[MAX_DECODE_ROWS], const dq_attention_units *u,
                           const fused_job *j, const rounded_queries *q, int page, int t)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    const uint8_t *codes = p->side[0].codes + (size_t)j->key[0] * (size_t)f->code_bytes;
    for (int g = 0; g < f->n_scales; g++) {
        int32_t acc[MAX_DECODE_ROWS] = {};
        for (int block = g * f->group / 16; block < run_end(f, g) / 16; block++) {
            dq_u4 k = key_cell(codes, f->bits, f->cols, block, t);
            DQ_UNROLL
            for (int r = 0; r < MAX_DECODE_ROWS; r++) {
                if (r >= j->w->n) break;
                acc[r] = multiply_cell(acc[r],
                                       dq_load16(q->code + (block * MAX_DECODE_ROWS + r) * 16), k);
            }
        }
        float key = dq_page_scale(f, p, 0, j->key[0], t, g);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++) {
            if (r >= j->w->n) break;
            int32_t shift = q->sum[g * MAX_DECODE_ROWS + r] * (1 << (f->bits - 1));
            float x = dq_mul_rn(dq_s32_f32(acc[r] - shift),
                                dq_mul_rn(q->scale[g * MAX_DECODE_ROWS + r], key));
            s[r] = g ? dq_add_rn(s[r], x) : x;
        }
    }
}

/* Strips, of tokens that the unit has. */
DQ_KERNEL(THREADS) decode_scores(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(int8_t, code, [MAX_DECODE_ROWS * 128]);
    DQ_SHARED(float, scale, [MAX_DECODE_ROWS * 8]);
    DQ_SHARED(int32_t, sum, [MAX_DECODE_ROWS * 8]);
    if (!open_split(job, &u, u.q_first)) return;
    rounded_queries q = {code, scale, sum, MAX_DECODE_ROWS};
    for (int r = (int)dq_warp(); r < job->w->n; r += WARPS)
        round_query(&q, &u.form[0], query_of(&u, job, 0, r), r);
    DQ_SYNC(decode_queries); /* queries are rounded */
    for (int page = -1; next_page(job, &page);) {
        bool coded = is_coded(job, job->pages + page, 0, page);
        int n = slots_of(job->w->keys, page), sinks = job->pages[page].n_sinks;
        for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
            float s[MAX_DECODE_ROWS] = {};
            if (coded && t >= sinks) token_codes(s, &u, job, &q, page, t);
            DQ_UNROLL
            for (int r = 0; r < MAX_DECODE_ROWS; r++) {
                if (r >= job->w->n) break;
                if (!coded || t < sinks || t >= code_end(job, 0, page, r))
                    s[r] = token_plain(&u, job, page, t, r);
                strip_of(&u, job->w, job->strip[0], r)[page * DQ_PAGE_SLOTS + t] =
                    dq_mul_rn(s[r], u.scale);
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------- sums */

/* The k-th token that lane q of a quad of attend_int8 adds of half page h. */
DQ_DEVICE int token_at(int h, int q, int k)
{
    return 32 * h + token_of<false>(k / 2, q) + k % 2;
}

/* The largest |S| of a row, NaN above all. held[WARPS]. */
DQ_DEVICE float row_max(const float *row, int seen, uint32_t *held)
{
    uint32_t max = 0;
    for (int t = (int)dq_thread(); t < seen; t += THREADS) {
        uint32_t bits = dq_f32_bits(row[t]) & 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(max, o);
        max = other > max ? other : max;
    }
    if (dq_lane() == 0) held[dq_warp()] = max;
    DQ_SYNC(decode_max); /* maxima of warps are there */
    for (int i = 0; i < WARPS; i++) max = held[i] > max ? held[i] : max;
    return dq_bits_f32(max);
}

DQ_DEVICE void round_strip(float *row, int seen, float absmax, float qmax)
{
    float r = dq_div_rn(qmax, absmax), step = dq_div_rn(absmax, qmax);
    for (int t = (int)dq_thread(); t < seen; t += THREADS)
        row[t] = on_grid(row[t], absmax, r, step, qmax);
    DQ_SYNC(decode_rounded); /* the row is rounded */
}

/* Grid: rows, query heads of a group, units. A thread is a lane of a quad and a half page: its exps are
 * relative to the maximum that the lane knows there, and the first warp adds them in order. */
DQ_KERNEL(THREADS) decode_sums(dq_attention_units u, dq_fused_logits round)
{
    enum { HALVES = THREADS / 4 };
    DQ_SHARED(uint32_t, held, [WARPS]);
    DQ_SHARED(float, max, [THREADS]);
    DQ_SHARED(float, top, [THREADS + 4]);
    DQ_SHARED(float, sum, [THREADS]);
    DQ_SHARED(float, factor, [THREADS]);
    const dq_attention_unit *w = u.unit + dq_block_z();
    int r = (int)dq_block_x(), i = (int)dq_block_y(), me = (int)dq_thread(), q = me % 4;
    if (r >= w->n || i >= heads_of(u.q_first, w->group)) return;
    float *row = strip_of(&u, w, i, r), run = -INFINITY, total = 0;
    int seen = visible_of(&u, w, r);
    if (round.round == DQ_ROUND_GIVEN)
        round_strip(row, seen,
                    round.absmax[w->seq * u.n_q + u.q_head[u.q_first[w->group] + i].head],
                    round.qmax);
    if (round.round == DQ_ROUND_ROW) round_strip(row, seen, row_max(row, seen, held), round.qmax);
    for (int first = 0; 32 * first < seen; first += HALVES) {
        float own = -INFINITY, s = 0;
        for (int k = 0; k < 8; k++) {
            int t = token_at(first + me / 4, q, k);
            if (t < seen) own = dq_max(own, row[t]);
        }
        max[me] = own;
        DQ_SYNC(decode_maxima); /* maxima are there */
        for (int h = 0; dq_warp() == 0 && h < HALVES; h++) {
            if (dq_lane() < 4) top[4 * h + q] = run;
            run = dq_max(run, max[4 * h + q]);
        }
        if (me < 4) top[THREADS + q] = run;
        DQ_SYNC(decode_tops); /* maxima are those of all before, too */
        float old = top[me], now = top[me + 4];
        for (int k = 0; k < 8; k++) {
            int t = token_at(first + me / 4, q, k);
            if (t < seen) s = dq_add_rn(s, exp_less(row[t], now));
        }
        sum[me] = s;
        factor[me] = old != now ? exp_less(old, now) : 1.0f;
        DQ_SYNC(decode_sums_there); /* sums are there */
        for (int h = 0; dq_warp() == 0 && h < HALVES; h++)
            total = dq_add_rn(dq_mul_rn(total, factor[4 * h + q]), sum[4 * h + q]);
    }
    if (dq_warp() != 0) return;
    lane_sums a = {{run, run}, {total, total}};
    join_sums(&a);
    if (me == 0) *sums_of(&u, w, i, r) = pair{a.top[0], a.sum[0]};
}

/* -------------------------------------------------------------------------------------- values */

/* Row r times the scales of one run; tokens that it reads otherwise become zero. LOWS: *more becomes what middles add. */
template <bool LOWS>
DQ_DEVICE void round_row(decode_page *to, float *more, const dq_attention_units *u,
                         const fused_job *j, int page, int slab, int g, int r)
{
    const dq_page *p = j->pages + page;
    const dq_page_form *f = &u->form[1];
    int end = code_end(j, 1, page, r), seen = visible_of(u, j->w, r) - page * DQ_PAGE_SLOTS;
    int head = j->value[slab];
    float e[2], by_middle[2] = {};
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i;
        e[i] = 0;
        if (t < p->n_sinks || t >= end || t >= seen) continue;
        float step = dq_page_scale(f, p, 1, head, t, g);
        e[i] = dq_mul_rn(to->d[r][t], step);
        if (LOWS)
            by_middle[i] = dq_mul_rn(
                to->d[r][t], middle_of(step, dq_page_scale(f, p, 1, head, t, f->n_scales / 2 + g),
                                       dq_page_bits(f, p, 1, head)));
    }
    row_bytes(to, e, r);
    if (!LOWS) return;
    float sum = fold_page(by_middle);
    if (dq_lane() == 0) *more = sum;
}

/* y[r] = D V of one channel from codes. */
DQ_DEVICE void channel_codes(float y[MAX_DECODE_ROWS], const decode_page *d, const dq_page_form *f,
                             int bits, const uint8_t *codes, int c, int n)
{
    int32_t sum[MAX_DECODE_ROWS];
    channel_sums(sum, d, f, bits, codes, c, n, ALL_SIXTEENS);
    DQ_UNROLL
    for (int r = 0; r < MAX_DECODE_ROWS; r++)
        if (r < n) y[r] = dq_mul_rn(dq_s32_f32(sum[r]), d->scale[r]);
}

/* What a page's codes add to rows in a run of channels, to [rows][part_width]. */
template <bool LOWS>
DQ_DEVICE void add_channels(float *to, decode_page *d, const dq_attention_units *u,
                            const fused_job *j, int page, int slab, int g)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int head = j->value[slab], bits = LOWS ? dq_page_bits(f, p, 1, head) : f->bits;
    const uint8_t *codes = LOWS ? dq_page_codes(f, p, 1, head)
                                : p->side[1].codes + (size_t)head * (size_t)f->code_bytes;
    int width = part_width(u), sums = j->n_slabs * f->dim + slab * dq_page_runs(f);
    DQ_WARP_SYNC(decode_bytes_read); /* D is there; bytes of the run before have been read */
    for (int r = 0; r < j->w->n; r++)
        round_row<LOWS>(d, to + r * width + sums + g, u, j, page, slab, g, r);
    DQ_WARP_SYNC(decode_bytes_there); /* D is there, and in bytes */
    for (int c = g * f->group + (int)dq_lane(); c < run_end(f, g); c += DQ_WARP) {
        float y[MAX_DECODE_ROWS] = {};
        channel_codes(y, d, f, bits, codes, c, j->w->n);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++)
            if (r < j->w->n) to[r * width + slab * f->dim + c] = y[r];
    }
}

template <bool LOWS> DQ_KERNEL(THREADS) decode_values(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(decode_page, held, [WARPS]);
    DQ_SHARED(row_known, known, [MAX_DECODE_ROWS]);
    if (!open_split(job, &u, u.o_first)) return;
    if ((int)dq_thread() < job->w->n) know_row(known + dq_thread(), &u, job, (int)dq_thread());
    DQ_SYNC(decode_rows_known); /* rows are known */
    decode_page *d = held + dq_warp();
    for (int page = -1; next_page(job, &page);) {
        if (!is_coded(job, job->pages + page, 1, page)) continue;
        float *to = part_of(&u, job->w, (int)dq_block_y(), page);
        page_difference(d, &u, job, known, page);
        const int runs = LOWS ? u.form[1].n_scales / 2 : u.form[1].n_scales;
        for (int k = 0; k < u.n_slabs * runs; k++)
            add_channels<LOWS>(to, d, &u, job, page, k / runs, k % runs);
    }
}

/* ------------------------------------------------------------------------------------- joining */

/* Normalized Hadamard transform of every run of dim values, by all threads. */
DQ_DEVICE void unrotate(float *y, int width, int dim)
{
    for (int step = 1; step < dim; step *= 2) {
        for (int i = (int)dq_thread(); i < width / 2; i += THREADS) {
            int at = i / step * 2 * step + i % step;
            float lo = y[at], hi = y[at + step];
            y[at] = dq_add_rn(lo, hi);
            y[at + step] = dq_sub_rn(lo, hi);
        }
        DQ_SYNC(join_unrotate_stage); /* this stage is done */
    }
    float norm = dq_div_rn(1.0f, dq_sqrt_rn((float)dim));
    for (int i = (int)dq_thread(); i < width; i += THREADS) y[i] = dq_mul_rn(y[i], norm);
    DQ_SYNC(join_unrotate_done); /* for who reads other elements */
}

/* 1 / root mean square, the sum in four parts as a quad of attend_int8 has them. */
DQ_DEVICE float inverse_rms(const float *y, int width, float eps)
{
    float s = 0;
    for (int c = 2 * ((int)dq_lane() % 4); c < width; c += 8) {
        s = dq_fma_rn(y[c], y[c], s);
        s = dq_fma_rn(y[c + 1], y[c + 1], s);
    }
    s = dq_add_rn(s, dq_shfl_xor(s, 1u));
    s = dq_add_rn(s, dq_shfl_xor(s, 2u));
    float mean = dq_div_rn(s, (float)width);
    return dq_div_rn(1.0f, dq_sqrt_rn(dq_add_rn(mean, eps)));
}

/* y += D V of the tokens of a page that row r reads unquantized, for a thread's channels. By all threads;
 * d[64] in shared memory. */
DQ_DEVICE void add_plain(float y[2], float *d, const dq_attention_units *u, const fused_job *j,
                         const row_known *known, int page, int r, int first, int end, int seen)
{
    const dq_page_form *f = &u->form[1];
    int width = j->n_slabs * f->dim;
    DQ_SYNC(join_plain_read); /* D of the page before has been read */
    if (dq_thread() < DQ_PAGE_SLOTS)
        d[dq_thread()] = difference_at(u, j, known, r, page * DQ_PAGE_SLOTS + (int)dq_thread());
    DQ_SYNC(join_plain_there); /* D is there, for who adds unquantized tokens */
    for (int t = 0; t < seen; t++) {
        if (t >= first && t < end) continue;
        DQ_UNROLL
        for (int k = 0; k < 2; k++) {
            int c = (int)dq_thread() + k * THREADS;
            if (c >= width) continue;
            float v = plain_token(f, j->pages + page, 1, j->value[c / f->dim], t)[c % f->dim];
            y[k] = dq_fma_rn(d[t], v, y[k]);
        }
    }
}

/* What row r adds of a page; by one thread. */
DQ_DEVICE page_parts parts_of(const dq_attention_units *u, const fused_job *j, int page, int r,
                              int seen)
{
    const dq_page *p = j->pages + page;
    int end = code_end(j, 1, page, r);
    page_parts x = {page, is_coded(j, p, 1, page), false};
    if (u->form[1].set_numbers) {
        x.first = p->first_set;
        x.n = 0;
        for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set) && set.first < end;)
            x.n++;
    }
    x.plain = (p->side[1].codes && p->n_sinks > 0) || end < slots_of(seen, page);
    return x;
}

/* Parts `first` and those after it for a thread's channels, LOWS: then the sums of their runs; some are of pages without codes, were
 * never written and are not added. All loads are on their way before a store, which the compiler would wait for. */
template <bool LOWS>
DQ_DEVICE void fetch_parts(float *ahead, const dq_attention_units *u, const fused_job *j, int out,
                           int first, int r)
{
    enum { PARTS = LOWS ? AHEAD / 2 : AHEAD };
    const dq_page_form *f = &u->form[1];
    int width = j->n_slabs * f->dim;
    for (int c = (int)dq_thread(); c < width; c += THREADS) {
        int sum = LOWS ? width + c / f->dim * (f->n_scales / 2) + c % f->dim / f->group : 0;
        float x[AHEAD];
        DQ_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            int part = first + i % PARTS;
            if (part >= j->w->n_parts) part = first;
            x[i] = part_of(u, j->w, out, part)[r * part_width(u) + (i < PARTS ? c : sum)];
        }
        DQ_UNROLL
        for (int i = 0; i < AHEAD; i++) ahead[i * 256 + c] = x[i];
    }
}

/* Pages in their order: unquantized tokens, then parts one by one. What is to be added is looked up for THREADS pages at
 * once, or every page would wait for its record. parts[2][THREADS]: who is late still reads the other half. */
template <bool LOWS>
DQ_DEVICE void add_pages(float y[2], float *d, float *ahead, page_parts *parts,
                         const dq_attention_units *u, const fused_job *j, const row_known *known,
                         int out, int r, int seen)
{
    enum { PARTS = LOWS ? AHEAD / 2 : AHEAD };
    int width = j->n_slabs * u->form[1].dim, pages = (seen + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS;
    int from = -AHEAD, me = (int)dq_thread();
    ROLLED
    for (int page = 0; page < pages; page++) {
        page_parts *half = parts + page / THREADS % 2 * THREADS;
        if (page % THREADS == 0) {
            if (page + me < pages) half[me] = parts_of(u, j, page + me, r, seen);
            DQ_SYNC(join_parts_known); /* parts of THREADS pages are known */
        }
        const page_parts x = half[page % THREADS];
        if (x.plain) {
            int first = j->pages[page].side[1].codes ? j->pages[page].n_sinks : 0;
            add_plain(y, d, u, j, known, page, r, first, code_end(j, 1, page, r),
                      slots_of(seen, page));
        }
        for (int part = x.first; part < x.first + x.n; part++) {
            if (part >= from + PARTS) {
                from = part;
                fetch_parts<LOWS>(ahead, u, j, out, part, r);
            }
            DQ_UNROLL
            for (int k = 0; k < 2; k++) {
                int c = me + k * THREADS;
                if (c >= width) continue;
                y[k] = dq_add_rn(y[k], ahead[(part - from) * 256 + c]);
                if (LOWS) y[k] = dq_add_rn(y[k], ahead[(part - from + PARTS) * 256 + c]);
            }
        }
    }
}

/* Grid: rows, output heads, units. Pages, then norm and scale. */
template <bool LOWS> DQ_KERNEL(THREADS) decode_join(dq_attention_units u, dq_attention_finish f)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(float, y, [256]);
    DQ_SHARED(float, d, [DQ_PAGE_SLOTS]);
    DQ_SHARED(float, ahead, [AHEAD * 256]);
    DQ_SHARED(page_parts, parts, [2 * THREADS]);
    DQ_SHARED(row_known, known, [1]);
    const dq_attention_unit *w = u.unit + dq_block_z();
    int r = (int)dq_block_x(), i = (int)dq_block_y(), width = u.n_slabs * u.form[1].dim;
    if (r >= w->n || i >= heads_of(u.o_first, w->group)) return;
    if (dq_thread() == 0) {
        open_values(job, &u, w, i);
        know_row(known, &u, job, r);
    }
    DQ_SYNC(join_job); /* the job is there */
    int seen = visible_of(&u, w, r);
    float *out = f.out + (w->row + r) * f.out_cols + (int64_t)job->out * width, sum[2] = {};
    float a = u.n_maps == 1 ? known->factor[0] : 1.0f;
    add_pages<LOWS>(sum, d, ahead, parts, &u, job, known, i, r, seen);
    for (int k = 0; k < 2; k++) {
        int c = (int)dq_thread() + k * THREADS;
        if (c < width) y[c] = dq_mul_rn(sum[k], a);
    }
    DQ_SYNC(join_row); /* the row is there */
    if (f.rotated) unrotate(y, width, u.form[1].dim);
    float factor = f.norm ? inverse_rms(y, width, f.norm_eps) : 1.0f;
    for (int c = (int)dq_thread(); c < width; c += THREADS) {
        float v = y[c];
        if (f.norm) v = dq_mul_rn(v, factor);
        if (f.norm && f.gain) v = dq_mul_rn(v, f.gain[c]);
        if (f.out_scale != 1.0f) v = dq_mul_rn(v, f.out_scale);
        out[c] = seen ? v : 0.0f;
    }
}

/* ----------------------------------------------------------------------------------- launchers */

int64_t dq_fused_decode_floats(const dq_attention_units *u, int64_t outs, int64_t rows,
                               int64_t parts)
{
    return outs * rows * parts * part_width(u);
}

cudaError_t dq_fused_decode(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                            cudaStream_t s)
{
    if (u.max_rows > MAX_DECODE_ROWS || dq_fused_lacks(&u, &f, DQ_FUSED_INT8, l.round))
        return cudaErrorInvalidValue;
    if (u.n == 0 || u.max_rows == 0 || u.max_out == 0) return cudaSuccess;
    const unsigned splits =
        (unsigned)(u.max_keys + SPLIT * DQ_PAGE_SLOTS - 1) / (SPLIT * DQ_PAGE_SLOTS);
    const unsigned rows = (unsigned)u.max_rows, n = (unsigned)u.n, outs = (unsigned)u.max_out;
    const unsigned queries = (unsigned)u.max_q;
    const bool lows = u.form[1].has_lows;
    if (splits && u.form[0].set_numbers) {
        DQ_LAUNCH(decode_scores_sets, dim3(splits, queries, n), THREADS, 0, s, u);
    } else if (splits) {
        DQ_LAUNCH(decode_scores, dim3(splits, queries, n), THREADS, 0, s, u);
    }
    DQ_LAUNCH(decode_sums, dim3(rows, queries, n), THREADS, 0, s, u, l);
    if (splits && u.form[1].set_numbers) {
        DQ_LAUNCH(decode_values_sets, dim3(splits, outs, n), THREADS, 0, s, u);
    } else if (splits && lows) {
        DQ_LAUNCH(decode_values<true>, dim3(splits, outs, n), THREADS, 0, s, u);
    } else if (splits) {
        DQ_LAUNCH(decode_values<false>, dim3(splits, outs, n), THREADS, 0, s, u);
    }
    if (lows) {
        DQ_LAUNCH(decode_join<true>, dim3(rows, outs, n), THREADS, 0, s, u, f);
    } else {
        DQ_LAUNCH(decode_join<false>, dim3(rows, outs, n), THREADS, 0, s, u, f);
    }
    return cudaGetLastError();
}
