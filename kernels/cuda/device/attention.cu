/* attention: attention in launches that pass strips on, one row of numbers per query head and row:
 * 1. scores: S = scale * Q K^T of every page, to the strips. Where the granularity spans rows, the
 *    same kernel finds the largest |S| first, without strips.
 * 2. round_tiles, for the granularity `tile`; softmax rounds at every other one, replaces S by
 *    exp(S - max) and keeps each row's sum.
 * 3. factors: what turns the exps of both maps into P1 - lambda P2, once per row and output head.
 * 4. values: D = P1 - lambda P2 of a page in shared memory, times V, pages in ascending order.
 * 5. finish: rotation back, norm and scale of an output row.
 * Observers (observe.cu) read the strips between 3 and 4. A sum has one order, whatever the grid:
 * one thread owns it, or a fixed number of lanes is folded in halves.
 * tests/simt/defects.tsv quotes the text of masks.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/page.cuh"

#include <math.h>

/* ---- scores */

/* Channels c0 .. c0+31 of the unit's rows of one query head, zero after its rows and after dim. */
DQ_DEVICE void stage_queries(float *to, const dq_attention_units *u, const dq_attention_unit *w,
                             int head, int c0)
{
    int dim = u->form[0].dim;
    const float *q = u->q + (int64_t)w->row * u->n_q * dim + (int64_t)head * dim;
    for (int i = (int)dq_thread(); i < TILE * STEP; i += (int)dq_threads()) {
        int r = i / STEP, c = i % STEP;
        bool there = r < w->n && c0 + c < dim;
        to[r * PITCH + c] = there ? q[(int64_t)r * u->n_q * dim + c0 + c] : 0.0f;
    }
}

/* acc[i][j] += row y + 16i times key x + 16j, channels in their order. */
DQ_DEVICE void add_products(float acc[4][4], const float *qs, const float *ks, int rows, int n)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    for (int c = 0; c < n; c++) {
        float k[4];
        DQ_UNROLL
        for (int j = 0; j < 4; j++) k[j] = ks[(x + 16 * j) * PITCH + c];
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            if (16 * i >= rows) break;
            float q = qs[(y + 16 * i) * PITCH + c];
            DQ_UNROLL
            for (int j = 0; j < 4; j++) acc[i][j] = dq_fma_rn(q, k[j], acc[i][j]);
        }
    }
}

/* Into their strips. */
DQ_DEVICE void put_scores(const float acc[4][4], const dq_attention_units *u,
                          const dq_attention_unit *w, int head, int page, int spans, int span)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        int r = y + 16 * i;
        if (r >= w->n || !in_span(w, spans, span, r)) continue;
        float *to = strip_of(u, w, head, r) + page * DQ_PAGE_SLOTS;
        DQ_UNROLL
        for (int j = 0; j < 4; j++) to[x + 16 * j] = dq_mul_rn(acc[i][j], u->scale);
    }
}

/* Into the largest of the query head, what rows see. */
DQ_DEVICE void raise_max(const float acc[4][4], const dq_attention_units *u,
                         const dq_attention_unit *w, int page, int spans, int span, uint32_t *max)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    uint32_t top = 0;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        int r = y + 16 * i;
        if (r >= w->n || !in_span(w, spans, span, r)) continue;
        const dq_window sees = dq_window_of(u, w, r);
        DQ_UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t bits = dq_f32_bits(dq_mul_rn(acc[i][j], u->scale)) & 0x7fffffffu;
            int t = page * DQ_PAGE_SLOTS + x + 16 * j;
            if (t >= sees.hidden && t < sees.seen && bits > top) top = bits;
        }
    }
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(top, o);
        top = other > top ? other : top;
    }
    if (dq_lane() == 0 && top) dq_atomic_max(max, top);
}

/* Grid: pages from a unit's first on, query heads of a group, units. */
template <bool MAX> DQ_KERNEL_BLOCKS(256, 4) scores(dq_attention_units u, uint32_t *DQ_RESTRICT max)
{
    DQ_SHARED(float, qs, [TILE * PITCH]);
    DQ_SHARED(float, ks, [TILE * PITCH]);
    const dq_attention_unit *w = this_unit(&u);
    int page = dq_first_page(w) + (int)dq_block_x(), head = (int)dq_block_y();
    if (page * DQ_PAGE_SLOTS >= w->keys || head >= heads_of(u.q_first, w->group)) return;
    const dq_q_head h = u.q_head[u.q_first[w->group] + head];
    const dq_page *p = u.pages + w->page + page;
    int spans = spans_of(w, page);
    for (int span = 0; span < spans; span++) {
        float acc[4][4] = {};
        for (int c = 0; c < u.form[0].dim; c += STEP) {
            stage_queries(qs, &u, w, h.head, c);
            stage_page(ks, PITCH, &u.form[0], p, 0, h.key, span_slots(w, span, page),
                       slots_of(w->keys, page), c, STEP);
            DQ_SYNC(scores_staged); /* queries and keys are there */
            add_products(acc, qs, ks, w->n,
                         u.form[0].dim - c < STEP ? u.form[0].dim - c : (int)STEP);
            DQ_SYNC(scores_read); /* all have read queries and keys */
        }
        if (MAX) {
            raise_max(acc, &u, w, page, spans, span, max + w->seq * u.n_q + h.head);
        } else {
            put_scores(acc, &u, w, head, page, spans, span);
        }
    }
}

DQ_KERNEL(32) join(float *DQ_RESTRICT x, int cols)
{
    float *row = x + (int64_t)dq_block_x() * cols;
    uint32_t top = 0;
    for (int i = (int)dq_lane(); i < cols; i += DQ_WARP) {
        uint32_t bits = dq_f32_bits(row[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(top, o);
        top = other > top ? other : top;
    }
    for (int i = (int)dq_lane(); i < cols; i += DQ_WARP) row[i] = dq_bits_f32(top);
}

/* ---- softmax */

/* S on the grid of a group whose largest |S| is absmax. */
DQ_DEVICE float rounded(float s, float absmax, float qmax)
{
    if (absmax == 0.0f) return 0.0f;
    float q = dq_rint(dq_mul_rn(s, dq_div_rn(qmax, absmax)));
    q = q < qmax ? q : qmax; /* NaN becomes a number; absmax, and so the product, is NaN then */
    q = q > -qmax ? q : -qmax;
    return dq_mul_rn(q, dq_div_rn(absmax, qmax));
}

/* The maximum over all threads, by the order of the bits of |x| or of x; held[8] is shared. */
DQ_DEVICE uint32_t block_max(uint32_t v, uint32_t *held)
{
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(v, o);
        v = other > v ? other : v;
    }
    DQ_SYNC(block_most_read); /* what the last call left has been read */
    if (dq_lane() == 0) held[dq_warp()] = v;
    DQ_SYNC(block_most_there); /* every warp's value is there */
    for (unsigned i = 0; i < dq_threads() / DQ_WARP; i++) v = held[i] > v ? held[i] : v;
    return v;
}

/* f32 as integers in the same order; NaN is not compared, as on the CPU. */
DQ_DEVICE uint32_t order_of(float x)
{
    uint32_t b = dq_f32_bits(x == 0.0f ? 0.0f : x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
DQ_DEVICE float of_order(uint32_t o)
{
    return dq_bits_f32(o & 0x80000000u ? o & 0x7fffffffu : ~o);
}

/* Largest |S| of what a row sees, the share of one thread. */
DQ_DEVICE uint32_t max_of(const float *row, dq_window sees, uint32_t max)
{
    for (int i = sees.hidden + (int)dq_thread(); i < sees.seen; i += (int)dq_threads()) {
        uint32_t bits = dq_f32_bits(row[i]) & 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    return max;
}

/* What a row sees of keys begin .. end-1. */
DQ_DEVICE dq_window tile_of(const dq_attention_units *u, const dq_attention_unit *w, int r,
                            int begin, int end)
{
    const dq_window sees = dq_window_of(u, w, r);
    return dq_window{begin > sees.hidden ? begin : sees.hidden, end < sees.seen ? end : sees.seen};
}

/* Grid: edges, query heads, units. A block has a run of keys of one tile, all rows of a unit. */
DQ_KERNEL(256) round_tiles(dq_attention_units u, float qmax)
{
    DQ_SHARED(uint32_t, held, [8]);
    const dq_attention_unit *w = this_unit(&u);
    int e = (int)dq_block_x(), head = (int)dq_block_y();
    if (head >= heads_of(u.q_first, w->group) || e >= w->n_edges) return;
    int begin = e ? u.edge[w->edge + e - 1] : 0, end = u.edge[w->edge + e];
    if (begin >= w->keys || end <= w->hidden[0]) return;
    uint32_t max = 0;
    for (int r = 0; r < w->n; r++) {
        const dq_window sees = tile_of(&u, w, r, begin, end);
        max = max_of(strip_of(&u, w, head, r), sees, max);
    }
    float absmax = dq_bits_f32(block_max(max, held));
    for (int r = 0; r < w->n; r++) {
        float *row = strip_of(&u, w, head, r);
        const dq_window sees = tile_of(&u, w, r, begin, end);
        for (int i = sees.hidden + (int)dq_thread(); i < sees.seen; i += (int)dq_threads())
            row[i] = rounded(row[i], absmax, qmax);
    }
}

enum { RUNS = 64 }; /* sums of 64 keys that are added by one thread at a time */

/* Replaces S by exp(S - top); thread 0 returns the sum: 16 f32 lanes per 64 keys, runs in f64. */
DQ_DEVICE double exp_sum(float *row, int n, float top, float *run)
{
    int lane = (int)dq_thread() % 16, mine = (int)dq_thread() / 16, n_runs = (n + TILE - 1) / TILE;
    double total = 0;
    for (int base = 0; base < n_runs; base += RUNS) {
        int some = n_runs - base < RUNS ? n_runs - base : (int)RUNS;
        for (int j = mine; j - mine % 2 < some; j += (int)dq_threads() / 16) { /* whole warps */
            float s = 0;
            for (int i = (base + j) * TILE + lane, k = 0; k < 4; i += 16, k++) {
                if (i >= n) break;
                float p = dq_exp_as_cpu(dq_sub_rn(row[i], top));
                row[i] = p;
                s = dq_add_rn(s, p);
            }
            for (unsigned o = 8; o; o >>= 1) s = dq_add_rn(s, dq_shfl_xor(s, o));
            if (lane == 0 && j < some) run[j] = s;
        }
        DQ_SYNC(runs_there); /* all runs are there */
        for (int j = 0; dq_thread() == 0 && j < some; j++) total = dq_add_rn(total, (double)run[j]);
        DQ_SYNC(runs_added); /* they have been added */
    }
    return total;
}

/* Grid: rows of a unit, query heads, units. The results do not depend on the number of threads. */
DQ_KERNEL(128) softmax(dq_attention_units u, int round, float qmax, const float *DQ_RESTRICT absmax)
{
    DQ_SHARED(uint32_t, held, [8]);
    DQ_SHARED(float, run, [RUNS]);
    const dq_attention_unit *w = this_unit(&u);
    int r = (int)dq_block_x(), head = (int)dq_block_y();
    if (r >= w->n || head >= heads_of(u.q_first, w->group)) return;
    float *row = strip_of(&u, w, head, r);
    const dq_window sees = dq_window_of(&u, w, r);
    float max = 0;
    if (round == DQ_ROUND_GIVEN)
        max = absmax[w->seq * u.n_q + u.q_head[u.q_first[w->group] + head].head];
    if (round == DQ_ROUND_ROW) max = dq_bits_f32(block_max(max_of(row, sees, 0), held));
    uint32_t top = order_of(-INFINITY);
    for (int i = sees.hidden + (int)dq_thread(); i < sees.seen; i += (int)dq_threads()) {
        float s = row[i];
        if (round == DQ_ROUND_GIVEN || round == DQ_ROUND_ROW) row[i] = s = rounded(s, max, qmax);
        if (s == s && order_of(s) > top) top = order_of(s);
    }
    top = block_max(top, held); /* a barrier, too: the row is rounded */
    double sum = exp_sum(row + sees.hidden, sees.seen - sees.hidden, of_order(top), run);
    if (dq_thread() == 0) u.sum[w->record + head * w->n + r] = sum;
}

/* lambda of one row and output head. */
DQ_DEVICE float lambda_of(const dq_attention_units *u, int64_t row, int out)
{
    return u->lambda ? u->lambda[row * u->n_out + out] : u->lambda_layer;
}

/* Grid: units. */
DQ_KERNEL(128) factors(dq_attention_units u)
{
    const dq_attention_unit *w = u.unit + dq_block_x();
    int n_out = heads_of(u.o_first, w->group);
    for (int i = (int)dq_thread(); i < n_out * w->n; i += (int)dq_threads()) {
        const dq_o_head o = u.o_head[u.o_first[w->group] + i / w->n];
        int r = i % w->n;
        float *to = u.factor + 3 * (int64_t)(w->factor + i);
        to[0] = (float)dq_div_rn(1.0, u.sum[w->record + o.q[0] * w->n + r]);
        if (u.n_maps < 2) continue;
        double second = u.sum[w->record + o.q[1] * w->n + r];
        to[1] = (float)dq_div_rn(1.0, second);
        to[2] = (float)dq_div_rn((double)lambda_of(&u, w->row + r, o.out), second);
    }
}

/* ---- values */

/* D of one page to d[64][65], zero where a row sees nothing; one map gives exp(S - max). */
DQ_DEVICE void stage_difference(float *d, const dq_attention_units *u, const dq_attention_unit *w,
                                const dq_o_head *o, int i_out, int page)
{
    for (int i = (int)dq_thread(); i < TILE * TILE; i += (int)dq_threads()) {
        int r = i / TILE, k = i % TILE;
        float x = 0;
        const int t = page * DQ_PAGE_SLOTS + k;
        const dq_window sees = r < w->n ? dq_window_of(u, w, r) : dq_window{0, 0};
        if (t >= sees.hidden && t < sees.seen) {
            x = strip_of(u, w, o->q[0], r)[t];
            if (u->n_maps == 2) {
                const float *f = u->factor + 3 * (int64_t)(w->factor + i_out * w->n + r);
                float y = strip_of(u, w, o->q[1], r)[t];
                x = dq_sub_rn(dq_mul_rn(f[0], x), dq_mul_rn(f[2], y));
            }
        }
        d[r * WIDE + k] = x;
    }
}

/* total[i][j] of row y + 16i and column x + 16j += sum over keys of D V, of rows in the span. */
DQ_DEVICE void add_page(float total[4][4], const float *d, const float *v,
                        const dq_attention_unit *w, int spans, int span, int keys)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    float part[4][4] = {};
    for (int k = 0; k < keys; k++) {
        float b[4];
        DQ_UNROLL
        for (int j = 0; j < 4; j++) b[j] = v[k * WIDE + x + 16 * j];
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            if (16 * i >= w->n) break;
            float a = d[(y + 16 * i) * WIDE + k];
            DQ_UNROLL
            for (int j = 0; j < 4; j++) part[i][j] = dq_fma_rn(a, b[j], part[i][j]);
        }
    }
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        if (!in_span(w, spans, span, y + 16 * i)) continue;
        DQ_UNROLL
        for (int j = 0; j < 4; j++) total[i][j] = dq_add_rn(total[i][j], part[i][j]);
    }
}

/* Grid: runs of 64 channels of a slab, slab by slab; output heads; units. */
DQ_KERNEL_BLOCKS(256, 3) values(dq_attention_units u, dq_attention_finish f)
{
    DQ_SHARED(float, d, [TILE * WIDE]);
    DQ_SHARED(float, v, [TILE * WIDE]);
    const dq_attention_unit *w = this_unit(&u);
    int dim = u.form[1].dim, runs = (dim + TILE - 1) / TILE, i_out = (int)dq_block_y();
    if (i_out >= heads_of(u.o_first, w->group)) return;
    const dq_o_head *o = u.o_head + u.o_first[w->group] + i_out;
    int slab = (int)dq_block_x() / runs, c0 = (int)dq_block_x() % runs * TILE;
    float total[4][4] = {};
    for (int page = dq_first_page(w); page * DQ_PAGE_SLOTS < w->keys; page++) {
        int spans = spans_of(w, page), keys = slots_of(w->keys, page);
        stage_difference(d, &u, w, o, i_out, page);
        for (int span = 0; span < spans; span++) {
            stage_page(v, WIDE, &u.form[1], u.pages + w->page + page, 1, o->v[slab],
                       span_slots(w, span, page), keys, c0, TILE);
            DQ_SYNC(values_staged); /* differences and values are there */
            add_page(total, d, v, w, spans, span, keys);
            DQ_SYNC(values_read); /* all have read differences and values */
        }
    }
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    float *out =
        f.out + (int64_t)w->row * f.out_cols + (int64_t)(o->out * u.n_slabs + slab) * dim + c0;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        DQ_UNROLL
        for (int j = 0; j < 4; j++) {
            if (y + 16 * i < w->n && c0 + x + 16 * j < dim)
                out[(y + 16 * i) * f.out_cols + x + 16 * j] = total[i][j];
        }
    }
}

/* Normalized Hadamard transform of every run of dim values of y[width], by all threads. */
DQ_DEVICE void unrotate(float *y, int width, int dim)
{
    for (int step = 1; step < dim; step *= 2) {
        for (int i = (int)dq_thread(); i < width / 2; i += (int)dq_threads()) {
            int at = i / step * 2 * step + i % step;
            float lo = y[at], hi = y[at + step];
            y[at] = dq_add_rn(lo, hi);
            y[at + step] = dq_sub_rn(lo, hi);
        }
        DQ_SYNC(unrotate_stage); /* this stage is done */
    }
    float norm = (float)dq_div_rn(1.0, sqrt((double)dim));
    for (int i = (int)dq_thread(); i < width; i += (int)dq_threads()) y[i] = dq_mul_rn(y[i], norm);
    DQ_SYNC(unrotate_done); /* for who reads other elements */
}

/* 1 / root mean square of y[width]: eight f64 sums, folded in halves. For all threads. */
DQ_DEVICE float inverse_rms(const float *y, int width, float eps, double *held)
{
    if (dq_warp() == 0) {
        double s = 0;
        for (int i = (int)dq_lane() % 8; i < width; i += 8)
            s = dq_add_rn(s, dq_mul_rn((double)y[i], (double)y[i]));
        for (unsigned o = 4; o; o >>= 1) s = dq_add_rn(s, dq_shfl_xor(s, o));
        if (dq_lane() == 0) held[0] = s;
    }
    DQ_SYNC(rms_there); /* the sum is there */
    double mean = dq_div_rn(held[0], (double)width);
    return (float)dq_div_rn(1.0, sqrt(dq_add_rn(mean, (double)eps)));
}

/* Grid: rows of a unit, output heads, units. Shared memory: one row of an output head. */
DQ_KERNEL(32) finish(dq_attention_units u, dq_attention_finish f)
{
    DQ_SHARED_DYNAMIC(bytes);
    DQ_SHARED(double, held, [1]);
    float *y = (float *)bytes;
    const dq_attention_unit *w = this_unit(&u);
    int r = (int)dq_block_x(), i_out = (int)dq_block_y(), width = u.n_slabs * u.form[1].dim;
    if (r >= w->n || i_out >= heads_of(u.o_first, w->group)) return;
    float *out = f.out + (w->row + r) * f.out_cols +
                 (int64_t)u.o_head[u.o_first[w->group] + i_out].out * width;
    bool sees = dq_sees(&u, w, r);
    float a = u.factor[3 * (int64_t)(w->factor + i_out * w->n + r)];
    for (int i = (int)dq_thread(); i < width; i += (int)dq_threads())
        y[i] = !sees ? 0.0f : u.n_maps == 1 ? dq_mul_rn(out[i], a) : out[i];
    DQ_SYNC(finish_row); /* the row is there */
    if (sees && f.rotated) unrotate(y, width, u.form[1].dim);
    float by = sees && f.norm ? inverse_rms(y, width, f.norm_eps, held) : 1.0f;
    for (int i = (int)dq_thread(); i < width; i += (int)dq_threads()) {
        float v = y[i];
        if (sees && f.norm) v = dq_mul_rn(v, by);
        if (sees && f.norm && f.gain) v = dq_mul_rn(v, f.gain[i]);
        if (sees && f.out_scale != 1.0f) v = dq_mul_rn(v, f.out_scale);
        out[i] = v;
    }
}

/* ---- launchers */

static unsigned pages_of(const dq_attention_units *u)
{
    return (unsigned)(u->max_keys + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS;
}

/* A grid needs a block, and every axis. */
static bool nothing(const dq_attention_units *u)
{
    return u->n == 0 || u->max_rows == 0 || u->max_q == 0;
}

cudaError_t dq_attention_scores(dq_attention_units u, cudaStream_t s)
{
    if (nothing(&u) || u.max_keys == 0) return cudaSuccess;
    dim3 grid(pages_of(&u), (unsigned)u.max_q, (unsigned)u.n);
    DQ_LAUNCH(scores<false>, grid, 256, 0, s, u, NULL);
    return cudaGetLastError();
}

cudaError_t dq_attention_absmax(dq_attention_units u, uint32_t *max, cudaStream_t s)
{
    if (nothing(&u) || u.max_keys == 0) return cudaSuccess;
    dim3 grid(pages_of(&u), (unsigned)u.max_q, (unsigned)u.n);
    DQ_LAUNCH(scores<true>, grid, 256, 0, s, u, max);
    return cudaGetLastError();
}

cudaError_t dq_attention_join(float *x, int n, int cols, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(join, dim3((unsigned)n), 32, 0, s, x, cols);
    return cudaGetLastError();
}

cudaError_t dq_attention_softmax(dq_attention_units u, int round, float qmax, const float *absmax,
                                 cudaStream_t s)
{
    if (nothing(&u)) return cudaSuccess;
    if (round == DQ_ROUND_TILE && u.max_edges > 0) {
        dim3 grid((unsigned)u.max_edges, (unsigned)u.max_q, (unsigned)u.n);
        DQ_LAUNCH(round_tiles, grid, 256, 0, s, u, qmax);
    }
    dim3 rows((unsigned)u.max_rows, (unsigned)u.max_q, (unsigned)u.n);
    DQ_LAUNCH(softmax, rows, u.max_keys > 1024 ? 128 : 32, 0, s, u, round, qmax, absmax);
    DQ_LAUNCH(factors, dim3((unsigned)u.n), 128, 0, s, u);
    return cudaGetLastError();
}

cudaError_t dq_attention_values(dq_attention_units u, dq_attention_finish f, cudaStream_t s)
{
    if (nothing(&u)) return cudaSuccess;
    unsigned runs = (unsigned)((u.form[1].dim + TILE - 1) / TILE * u.n_slabs);
    DQ_LAUNCH(values, dim3(runs, (unsigned)u.max_out, (unsigned)u.n), 256, 0, s, u, f);
    DQ_LAUNCH(finish, dim3((unsigned)u.max_rows, (unsigned)u.max_out, (unsigned)u.n), 32,
              (unsigned)(u.n_slabs * u.form[1].dim) * (unsigned)sizeof(float), s, u, f);
    return cudaGetLastError();
}
