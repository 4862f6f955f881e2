/* fused_decode: int8 attention of few rows per sequence, bound by the bytes of pages. Scores and values
 * are launches of their own: scores of a token and query head cost four bytes to keep, far less than
 * its codes. A warp reads a page; for scores a lane is a token, for values a channel. What a page adds
 * to a row is kept for itself and added in the order of pages, however blocks share them. See fused.h.
 * SPDX-License-Identifier: MIT */
#include "fused_int8.cuh"

enum { MOST_ROWS = DQ_FUSED_DECODE_ROWS, SPLIT = 8 /* pages of a block */ };

/* Grid: splits, heads (of queries, or output) of a group, units. */
DQ_DEVICE bool open_split(fused_job *j, const dq_units *u, const int32_t *heads)
{
    const dq_unit *w = u->unit + dq_block_z();
    int i = (int)dq_block_y();
    if ((int)dq_block_x() * SPLIT * DQ_SLOTS >= w->keys || i >= heads_of(heads, w->group))
        return false;
    if (dq_thread() == 0) {
        if (heads == u->o_first) {
            const dq_o_head o = u->o_head[u->o_first[w->group] + i];
            j->n_maps = 0;
            j->n_slabs = u->n_slabs;
            for (int m = 0; m < 2; m++) {
                j->strip[m] = o.q[m];
                j->value[m] = o.v[m];
            }
        } else {
            j->n_maps = 1;
            j->n_slabs = 0;
            j->strip[0] = i;
        }
        open_maps(j, u, w);
    }
    dq_sync(); /* the job is there */
    return true;
}

DQ_DEVICE bool next_page(const fused_job *j, int *page)
{
    *page += *page < 0 ? (int)dq_block_x() * SPLIT + (int)dq_warp() + 1 : WARPS;
    return *page < j->n_pages && *page < ((int)dq_block_x() + 1) * SPLIT;
}

/* Row r reads slots n_sinks .. end-1 as codes. */
DQ_DEVICE int code_end(const fused_job *j, int side, int page, int r)
{
    const dq_page_side *s = &j->pages[page].side[side];
    if (!s->codes) return 0;
    return s->plain ? slots_of(j->w->coded[r >= j->w->split], page) : DQ_SLOTS;
}

/* -------------------------------------------------------------------------------------- scores */

/* S of token t and all rows from its codes, unscaled. */
DQ_DEVICE void token_codes(float s[MOST_ROWS], const dq_units *u, const fused_job *j,
                           const rounded_queries *q, int page, int t)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    const uint8_t *codes = p->side[0].codes + (size_t)j->key[0] * (size_t)f->code_bytes;
    for (int g = 0; g < f->n_scales; g++) {
        int32_t acc[MOST_ROWS] = {};
        for (int block = g * f->group / 16; block < run_end(f, g) / 16; block++) {
            dq_u4 k = key_cell(codes, f->bits, f->cols, block, t);
            DQ_UNROLL
            for (int r = 0; r < MOST_ROWS; r++) {
                if (r >= j->w->n) break;
                dq_u4 x = dq_load16(q->code + (block * MOST_ROWS + r) * 16);
                acc[r] = dq_dp4a_s8u8(acc[r], x.x, k.x);
                acc[r] = dq_dp4a_s8u8(acc[r], x.y, k.y);
                acc[r] = dq_dp4a_s8u8(acc[r], x.z, k.z);
                acc[r] = dq_dp4a_s8u8(acc[r], x.w, k.w);
            }
        }
        float key = dq_page_scale(f, p, 0, j->key[0], t, g);
        DQ_UNROLL
        for (int r = 0; r < MOST_ROWS; r++) {
            if (r >= j->w->n) break;
            int32_t shift = q->sum[g * MOST_ROWS + r] * (1 << (f->bits - 1));
            float x =
                dq_mul_rn(dq_s32_f32(acc[r] - shift), dq_mul_rn(q->scale[g * MOST_ROWS + r], key));
            s[r] = g ? dq_add_rn(s[r], x) : x;
        }
    }
}

/* S of token t and row r in f32, unscaled. */
DQ_DEVICE float token_plain(const dq_units *u, const fused_job *j, int page, int t, int r)
{
    const float *q = query_of(u, j, 0, r);
    const float *k = plain_token(&u->form[0], j->pages + page, 0, j->key[0], t);
    float s = 0;
    for (int c = 0; c < u->form[0].dim; c += 4) {
        dq_u4 x = dq_load16_const(q + c), y = dq_load16_const(k + c);
        s = dq_fma_rn(dq_bits_f32(x.x), dq_bits_f32(y.x), s);
        s = dq_fma_rn(dq_bits_f32(x.y), dq_bits_f32(y.y), s);
        s = dq_fma_rn(dq_bits_f32(x.z), dq_bits_f32(y.z), s);
        s = dq_fma_rn(dq_bits_f32(x.w), dq_bits_f32(y.w), s);
    }
    return s;
}

/* Strips, of tokens that the unit has. */
DQ_KERNEL(THREADS) decode_scores(dq_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(int8_t, code, [MOST_ROWS * 128]);
    DQ_SHARED(float, scale, [MOST_ROWS * 8]);
    DQ_SHARED(int32_t, sum, [MOST_ROWS * 8]);
    if (!open_split(job, &u, u.q_first)) return;
    rounded_queries q = {code, scale, sum, MOST_ROWS};
    for (int r = (int)dq_warp(); r < job->w->n; r += WARPS)
        round_query(&q, &u.form[0], query_of(&u, job, 0, r), r);
    dq_sync(); /* queries are rounded */
    for (int page = -1; next_page(job, &page);) {
        bool coded = is_coded(job, job->pages + page, 0, page);
        int n = slots_of(job->w->keys, page), sinks = job->pages[page].n_sinks;
        for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
            float s[MOST_ROWS] = {};
            if (coded && t >= sinks) token_codes(s, &u, job, &q, page, t);
            DQ_UNROLL
            for (int r = 0; r < MOST_ROWS; r++) {
                if (r >= job->w->n) break;
                if (!coded || t < sinks || t >= code_end(job, 0, page, r))
                    s[r] = token_plain(&u, job, page, t, r);
                strip_of(&u, job->w, job->strip[0], r)[page * DQ_SLOTS + t] =
                    dq_mul_rn(s[r], u.scale);
            }
        }
    }
}

/* -------------------------------------------------------------------------------------- values */

/* A warp's page: D, and D times scales of a run in bytes. */
struct decode_page {
    float d[MOST_ROWS][DQ_SLOTS];
    int8_t high[MOST_ROWS][DQ_SLOTS], low[MOST_ROWS][DQ_SLOTS];
    float scale[MOST_ROWS];
};

/* P1 - lambda P2, of one map exp(S - max); zero where a row sees nothing. */
DQ_DEVICE void page_difference(decode_page *to, const dq_units *u, const fused_job *j, int page)
{
    for (int i = (int)dq_lane(); i < j->w->n * DQ_SLOTS; i += DQ_WARP) {
        int r = i / DQ_SLOTS, t = i % DQ_SLOTS, at = page * DQ_SLOTS + t;
        float x = 0;
        if (at < visible_of(u, j->w, r)) {
            x = strip_of(u, j->w, j->strip[0], r)[at];
            if (u->n_maps == 2) {
                const float *f =
                    u->factor + 3 * (int64_t)(j->w->factor + (int)dq_block_y() * j->w->n + r);
                float y = strip_of(u, j->w, j->strip[1], r)[at];
                x = dq_sub_rn(dq_mul_rn(f[0], x), dq_mul_rn(f[2], y));
            }
        }
        to->d[r][t] = x;
    }
}

/* Row r times the scales of one run; tokens that it reads otherwise become zero. */
DQ_DEVICE void round_row(decode_page *to, const dq_units *u, const fused_job *j, int page, int slab,
                         int g, int r)
{
    const dq_page *p = j->pages + page;
    int end = code_end(j, 1, page, r), seen = visible_of(u, j->w, r) - page * DQ_SLOTS;
    float e[2];
    uint32_t most = 0;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i;
        e[i] = 0;
        if (t >= p->n_sinks && t < end && t < seen)
            e[i] = dq_mul_rn(to->d[r][t], dq_page_scale(&u->form[1], p, 1, j->value[slab], t, g));
        uint32_t bits = dq_f32_bits(e[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(most, o);
        most = other > most ? other : most;
    }
    float peak = dq_bits_f32(most);
    bool real = most < 0x7f800000u, some = real && peak >= 0x1p-100f;
    float by = some ? dq_div_rn(32512.0f, peak) : 0.0f; /* 127 * 256: both bytes are signed */
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i, c = some ? dq_f32_s32(dq_mul_rn(e[i], by)) : 0;
        to->low[r][t] = (int8_t)(((c + 128) & 255) - 128);
        to->high[r][t] = (int8_t)((c + 128) >> 8);
    }
    if (dq_lane() == 0)
        to->scale[r] = some ? dq_div_rn(peak, 32512.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
}

/* y[r] += D V of one channel from codes. */
DQ_DEVICE void channel_codes(float y[MOST_ROWS], const decode_page *d, const dq_page_form *f,
                             const uint8_t *codes, int c, int n)
{
    int32_t high[MOST_ROWS] = {}, low[MOST_ROWS] = {};
    DQ_UNROLL
    for (int b = 0; b < 4; b++) {
        dq_u4 v = value_cell(codes, f->bits, f->cols, b, c);
        DQ_UNROLL
        for (int r = 0; r < MOST_ROWS; r++) {
            if (r >= n) break;
            dq_u4 h = dq_load16(&d->high[r][16 * b]), l = dq_load16(&d->low[r][16 * b]);
            high[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(high[r], h.x, v.x), h.y, v.y);
            high[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(high[r], h.z, v.z), h.w, v.w);
            low[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(low[r], l.x, v.x), l.y, v.y);
            low[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(low[r], l.z, v.z), l.w, v.w);
        }
    }
    DQ_UNROLL
    for (int r = 0; r < MOST_ROWS; r++)
        if (r < n)
            y[r] = dq_add_rn(y[r], dq_mul_rn(dq_s32_f32(high[r] * 256 + low[r]), d->scale[r]));
}

/* y[r] = D V of one channel of the tokens that rows read unquantized. */
DQ_DEVICE void channel_plain(float y[MOST_ROWS], const decode_page *d, const dq_units *u,
                             const fused_job *j, int page, int slab, int c, int first,
                             const int *end)
{
    int n = slots_of(j->w->keys, page);
    for (int t = 0; t < n; t++) {
        if (t >= first && t < (end[0] < end[1] ? end[0] : end[1])) continue;
        float v = plain_token(&u->form[1], j->pages + page, 1, j->value[slab], t)[c];
        DQ_UNROLL
        for (int r = 0; r < MOST_ROWS; r++) {
            if (r >= j->w->n) break;
            bool is_code = t >= first && t < end[r >= j->w->split];
            if (!is_code) y[r] = dq_fma_rn(d->d[r][t], v, y[r]);
        }
    }
}

/* What a page adds to rows, to [rows][width]. */
DQ_DEVICE void add_channels(float *to, decode_page *d, const dq_units *u, const fused_job *j,
                            int page, int slab, int g)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    bool coded = is_coded(j, p, 1, page);
    int first = coded ? p->n_sinks : 0, width = j->n_slabs * f->dim;
    int end[2] = {code_end(j, 1, page, 0), code_end(j, 1, page, j->w->n - 1)};
    if (!coded) end[0] = end[1] = 0;
    dq_warp_sync(); /* bytes of the run before have been read */
    for (int r = 0; coded && r < j->w->n; r++) round_row(d, u, j, page, slab, g, r);
    dq_warp_sync(); /* D is there, and in bytes */
    for (int c = g * f->group + (int)dq_lane(); c < run_end(f, g); c += DQ_WARP) {
        float y[MOST_ROWS] = {};
        channel_plain(y, d, u, j, page, slab, c, first, end);
        if (coded)
            channel_codes(y, d, f,
                          p->side[1].codes + (size_t)j->value[slab] * (size_t)f->code_bytes, c,
                          j->w->n);
        DQ_UNROLL
        for (int r = 0; r < MOST_ROWS; r++)
            if (r < j->w->n) to[r * width + slab * f->dim + c] = y[r];
    }
}

/* Parts of a page: [unit][output head][page][rows][width]. */
DQ_DEVICE int64_t part_of(const dq_units *u, int unit, int out, int page)
{
    int pages = (u->most_keys + DQ_SLOTS - 1) / DQ_SLOTS;
    int64_t at = ((int64_t)unit * u->most_out + out) * pages + page;
    return at * u->most_rows * u->n_slabs * u->form[1].dim;
}

DQ_KERNEL(THREADS) decode_values(dq_units u, float *DQ_RESTRICT part)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(decode_page, held, [WARPS]);
    if (!open_split(job, &u, u.o_first)) return;
    decode_page *d = held + dq_warp();
    for (int page = -1; next_page(job, &page);) {
        float *to = part + part_of(&u, (int)dq_block_z(), (int)dq_block_y(), page);
        dq_warp_sync(); /* D of the page before has been read */
        page_difference(d, &u, job, page);
        for (int k = 0; k < u.n_slabs * u.form[1].n_scales; k++)
            add_channels(to, d, &u, job, page, k / u.form[1].n_scales, k % u.form[1].n_scales);
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
        dq_sync(); /* this stage is done */
    }
    float norm = dq_div_rn(1.0f, dq_sqrt_rn((float)dim));
    for (int i = (int)dq_thread(); i < width; i += THREADS) y[i] = dq_mul_rn(y[i], norm);
    dq_sync(); /* for who reads other elements */
}

/* 1 / root mean square, in the same order in every thread. */
DQ_DEVICE float inverse_rms(const float *y, int width, float eps)
{
    double s = 0;
    for (int i = (int)dq_lane(); i < width; i += DQ_WARP)
        s = dq_fma_rn((double)y[i], (double)y[i], s);
    for (unsigned o = 16; o; o >>= 1) s = dq_add_rn(s, dq_shfl_xor(s, o));
    float mean = (float)dq_div_rn(s, (double)width);
    return dq_div_rn(1.0f, dq_sqrt_rn(dq_add_rn(mean, eps)));
}

/* Grid: rows, output heads, units. Pages in their order, then norm and scale. */
DQ_KERNEL(THREADS) decode_join(dq_units u, dq_finish f, const float *DQ_RESTRICT part)
{
    DQ_SHARED(float, y, [256]);
    const dq_unit *w = u.unit + dq_block_z();
    int r = (int)dq_block_x(), i_out = (int)dq_block_y(), width = u.n_slabs * u.form[1].dim;
    if (r >= w->n || i_out >= heads_of(u.o_first, w->group)) return;
    float *out = f.out + (w->row + r) * f.out_cols +
                 (int64_t)u.o_head[u.o_first[w->group] + i_out].out * width;
    int seen = visible_of(&u, w, r), stride = u.most_rows * width;
    const float *from = part + part_of(&u, (int)dq_block_z(), i_out, 0) + r * width;
    float a = u.factor[3 * (int64_t)(w->factor + i_out * w->n + r)];
    for (int c = (int)dq_thread(); c < width; c += THREADS) {
        float s = 0;
        for (int page = 0; page * DQ_SLOTS < seen; page++)
            s = dq_add_rn(s, from[(int64_t)page * stride + c]);
        y[c] = u.n_maps == 1 ? dq_mul_rn(s, a) : s;
    }
    dq_sync(); /* the row is there */
    if (f.rotated) unrotate(y, width, u.form[1].dim);
    float by = f.norm ? inverse_rms(y, width, f.norm_eps) : 1.0f;
    for (int c = (int)dq_thread(); c < width; c += THREADS) {
        float v = y[c];
        if (f.norm) v = dq_mul_rn(v, by);
        if (f.norm && f.gain) v = dq_mul_rn(v, f.gain[c]);
        if (f.out_scale != 1.0f) v = dq_mul_rn(v, f.out_scale);
        out[c] = seen ? v : 0.0f;
    }
}

/* ----------------------------------------------------------------------------------- launchers */

int64_t dq_fused_decode_floats(const dq_units *u)
{
    const int64_t pages = (u->most_keys + DQ_SLOTS - 1) / DQ_SLOTS;
    return u->n * pages * u->most_out * u->most_rows * u->n_slabs * u->form[1].dim;
}

cudaError_t dq_fused_decode(dq_units u, dq_finish f, dq_fused_logits l, float *part, cudaStream_t s)
{
    const int round = l.round == DQ_ROUND_TILE ? DQ_ROUND_NOT : l.round; /* softmax does it */
    if (u.most_rows > MOST_ROWS || dq_fused_lacks(&u, &f, DQ_FUSED_INT8, round))
        return cudaErrorInvalidValue;
    if (u.n == 0 || u.most_rows == 0 || u.most_out == 0) return cudaSuccess;
    const unsigned splits = (unsigned)(u.most_keys + SPLIT * DQ_SLOTS - 1) / (SPLIT * DQ_SLOTS);
    const unsigned n = (unsigned)u.n, outs = (unsigned)u.most_out;
    if (splits) {
        DQ_LAUNCH(decode_scores, dim3(splits, (unsigned)u.most_q, n), THREADS, 0, s, u);
    }
    const cudaError_t e = dq_attend_softmax(u, l.round, l.qmax, l.absmax, s);
    if (e != cudaSuccess) return e;
    if (splits) {
        DQ_LAUNCH(decode_values, dim3(splits, outs, n), THREADS, 0, s, u, part);
    }
    DQ_LAUNCH(decode_join, dim3((unsigned)u.most_rows, outs, n), THREADS, 0, s, u, f, part);
    return cudaGetLastError();
}
