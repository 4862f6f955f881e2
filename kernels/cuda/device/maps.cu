/* maps: see maps.h. Every sum over rows belongs to one thread, which adds units, heads and rows in their order, in
 * f64: results do not depend on the grid. Leaving a token out needs the outputs of both maps, which are made again
 * here, exactly.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/maps.h"

#include "kernels/cuda/device/attention.cuh"

#include <math.h>

/* Row r of the strip of the i-th output head: after those of the query heads. */
DQ_DEVICE float *out_strip_of(const dq_attention_units *u, const dq_attention_unit *w, int i_out,
                              int r)
{
    return strip_of(u, w, heads_of(u->q_first, w->group) + i_out, r);
}

/* --------------------------------------------------------------------------------------- columns */

typedef struct four_sums {
    double mass[2], lambda_mass, diff, loo;
} four_sums;

/* One key in one row and output head. */
DQ_DEVICE void add_key(four_sums *s, const dq_attention_units *u, const dq_map_sums *c,
                       const dq_attention_unit *w, const dq_o_head *o, int i_out, int r, int key)
{
    const float *f = factors_of(u, w, i_out, r);
    float p1 = strip_of(u, w, o->q[0], r)[key], x = dq_mul_rn(p1, f[0]), y = 0;
    s->mass[0] = dq_add_rn(s->mass[0], (double)x);
    if (u->n_maps == 2) {
        float p2 = strip_of(u, w, o->q[1], r)[key];
        y = dq_mul_rn(p2, f[2]);
        s->mass[1] = dq_add_rn(s->mass[1], (double)dq_mul_rn(p2, f[1]));
        s->lambda_mass = dq_add_rn(s->lambda_mass, (double)y);
    }
    s->diff = dq_add_rn(s->diff, (double)dq_abs(dq_sub_rn(x, y)));
    if (c->loo) s->loo = dq_add_rn(s->loo, (double)out_strip_of(u, w, i_out, r)[key]);
}

DQ_DEVICE void add_to(double *sums, int64_t at, double v)
{
    if (sums) sums[at] = v;
}

DQ_DEVICE double held_in(const double *sums, int64_t at)
{
    return sums ? sums[at] : 0.0;
}

/* Grid: runs of 128 keys, lists. A thread owns a key: units, output heads and rows in their order. */
DQ_KERNEL(128) sum_columns(dq_attention_units u, dq_map_sums c, const dq_map_run *DQ_RESTRICT runs)
{
    const dq_map_run run = runs[dq_block_y()];
    const dq_attention_unit *w = u.unit + run.first;
    int key = (int)(dq_block_x() * dq_threads() + dq_thread());
    if (key >= run.keys) return;
    int64_t at = c.at[w->seq * u.n_groups + w->group] + key;
    four_sums s = {{held_in(c.mass[0], at), held_in(c.mass[1], at)},
                   held_in(c.lambda_mass, at),
                   held_in(c.diff, at),
                   held_in(c.loo, at)};
    const dq_o_head *o = u.o_head + u.o_first[w->group];
    int n_out = heads_of(u.o_first, w->group);
    for (int i = 0; i < run.n; i++, w++) {
        for (int i_out = 0; i_out < n_out && key < w->keys; i_out++) {
            for (int r = w->first; r < w->n; r++) {
                if (key < visible_of(&u, w, r)) add_key(&s, &u, &c, w, o + i_out, i_out, r, key);
            }
        }
    }
    add_to(c.mass[0], at, s.mass[0]);
    add_to(c.mass[1], at, s.mass[1]);
    add_to(c.lambda_mass, at, s.lambda_mass);
    add_to(c.diff, at, s.diff);
    add_to(c.loo, at, s.loo);
}

/* ------------------------------------------------------------------------------------ leaving out */

/* In loo the difference d = (a - b) (o1 - v) + b (o1 - o2), a = p1 / (1 - p1), b = lambda p2 / (1 - p2),
 * may be a small rest of large terms. Outputs and sums of f32 probabilities are f64 here, which leaves
 * 2^-53 / (1 - p), p at most 1 - 2^-24. */
DQ_DEVICE double odds(double x, double total)
{
    const double max = 1.0 - 0x1p-24;
    double p = dq_div_rn(x, total);
    p = p <= max ? p : max;
    return dq_div_rn(p, 1.0 - p);
}

/* Grid: rows of a unit, query heads, units. */
DQ_KERNEL(128) totals(dq_attention_units u, double *DQ_RESTRICT total)
{
    DQ_SHARED(double, part, [4]);
    const dq_attention_unit *w = this_unit(&u);
    int r = (int)dq_block_x(), head = (int)dq_block_y();
    if (r < w->first || r >= w->n || head >= heads_of(u.q_first, w->group)) return;
    const float *row = strip_of(&u, w, head, r);
    int n = visible_of(&u, w, r);
    double s = 0;
    for (int i = (int)dq_thread(); i < n; i += (int)dq_threads()) s = dq_add_rn(s, (double)row[i]);
    for (unsigned o = 16; o; o >>= 1) s = dq_add_rn(s, dq_shfl_xor(s, o));
    if (dq_lane() == 0) part[dq_warp()] = s;
    DQ_SYNC(totals_there); /* every warp's part is there */
    if (dq_thread() == 0)
        total[w->record + head * w->n + r] =
            dq_add_rn(dq_add_rn(part[0], part[1]), dq_add_rn(part[2], part[3]));
}

/* exp(S - max) of one page and query head to p[64][65], zero where a row sees nothing. */
DQ_DEVICE void stage_map(float *p, const dq_attention_units *u, const dq_attention_unit *w,
                         int head, int page)
{
    for (int i = (int)dq_thread(); i < TILE * TILE; i += (int)dq_threads()) {
        int r = i / TILE, k = i % TILE;
        bool there = r < w->n && page * DQ_PAGE_SLOTS + k < visible_of(u, w, r);
        p[r * WIDE + k] = there ? strip_of(u, w, head, r)[page * DQ_PAGE_SLOTS + k] : 0.0f;
    }
}

DQ_DEVICE void add_exact(double sum[4][4], const float *p, const float *v,
                         const dq_attention_unit *w, int spans, int span, int keys)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        if (16 * i >= w->n) break;
        if (!in_span(w, spans, span, y + 16 * i)) continue;
        for (int k = 0; k < keys; k++) {
            double a = (double)p[(y + 16 * i) * WIDE + k];
            DQ_UNROLL
            for (int j = 0; j < 4; j++)
                sum[i][j] = dq_fma_rn(a, (double)v[k * WIDE + x + 16 * j], sum[i][j]);
        }
    }
}

/* Grid: runs of 64 channels of a slab, slab by slab; output heads times maps; units. */
DQ_KERNEL_BLOCKS(256, 1)
map_outputs(dq_attention_units u, const double *DQ_RESTRICT total, double *DQ_RESTRICT outputs)
{
    DQ_SHARED(float, p, [TILE * WIDE]);
    DQ_SHARED(float, v, [TILE * WIDE]);
    const dq_attention_unit *w = this_unit(&u);
    int dim = u.form[1].dim, runs = (dim + TILE - 1) / TILE, i_out = (int)dq_block_y() / u.n_maps;
    int m = (int)dq_block_y() % u.n_maps, slab = (int)dq_block_x() / runs;
    if (w->first >= w->n || i_out >= heads_of(u.o_first, w->group)) return;
    const dq_o_head *o = u.o_head + u.o_first[w->group] + i_out;
    int head = m ? o->q[1] : o->q[0], c0 = (int)dq_block_x() % runs * TILE;
    double sum[4][4] = {};
    for (int page = 0; page * DQ_PAGE_SLOTS < w->keys; page++) {
        int spans = spans_of(w, page), keys = slots_of(w->keys, page);
        stage_map(p, &u, w, head, page);
        for (int span = 0; span < spans; span++) {
            stage_page(v, WIDE, &u.form[1], u.pages + w->page + page, 1, o->v[slab],
                       span_slots(w, span, page), keys, c0, TILE);
            DQ_SYNC(map_staged); /* map and values are there */
            add_exact(sum, p, v, w, spans, span, keys);
            DQ_SYNC(map_read); /* all have read them */
        }
    }
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        int r = y + 16 * i;
        if (r < w->first || r >= w->n) continue; /* without a total */
        double *to = outputs + (int64_t)(2 * (w->factor + i_out * w->n + r) + m) * u.n_slabs * dim +
                     slab * dim + c0;
        DQ_UNROLL
        for (int j = 0; j < 4; j++) {
            if (c0 + x + 16 * j < dim)
                to[x + 16 * j] = dq_div_rn(sum[i][j], total[w->record + head * w->n + r]);
        }
    }
}

/* Channels c0 .. c0+31 of both outputs of every row, as far as their slab goes: o1, and o1 - o2. */
DQ_DEVICE void stage_outputs(double *o1, double *e, const dq_attention_units *u,
                             const dq_attention_unit *w, const double *outputs, int i_out, int c0,
                             int left)
{
    int width = u->n_slabs * u->form[1].dim;
    for (int i = (int)dq_thread(); i < TILE * STEP; i += (int)dq_threads()) {
        int r = i / STEP, c = c0 + i % STEP;
        const double *from = outputs + (int64_t)(2 * (w->factor + i_out * w->n + r)) * width;
        bool there = r < w->n && i % STEP < left;
        double x = there ? from[c] : 0.0;
        o1[r * PITCH + i % STEP] = x;
        e[r * PITCH + i % STEP] = there && u->n_maps == 2 ? x - from[width + c] : 0.0;
    }
}

/* a - b and b of row y + 16i and key x + 16j. */
DQ_DEVICE void weights_of(double d[4][4], double b[4][4], const dq_attention_units *u,
                          const dq_attention_unit *w, const dq_o_head *o, const double *total,
                          int page)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        DQ_UNROLL
        for (int j = 0; j < 4; j++) {
            int r = y + 16 * i, key = page * DQ_PAGE_SLOTS + x + 16 * j;
            d[i][j] = b[i][j] = 0;
            if (r < w->first || r >= w->n || key >= visible_of(u, w, r)) continue;
            double p = (double)strip_of(u, w, o->q[0], r)[key];
            d[i][j] = odds(p, total[w->record + o->q[0] * w->n + r]);
            if (u->n_maps < 2) continue;
            double lambda =
                (double)(u->lambda ? u->lambda[(int64_t)(w->row + r) * u->n_out + o->out]
                                   : u->lambda_layer);
            p = (double)strip_of(u, w, o->q[1], r)[key];
            b[i][j] = lambda * odds(p, total[w->record + o->q[1] * w->n + r]);
            d[i][j] -= b[i][j];
        }
    }
}

/* length[i][j] += |d|^2 over 32 channels. */
DQ_DEVICE void add_lengths(double length[4][4], const double d[4][4], const double b[4][4],
                           const double *o1, const double *e, const float *v)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    for (int c = 0; c < STEP; c++) {
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            double o = o1[(y + 16 * i) * PITCH + c], apart = e[(y + 16 * i) * PITCH + c];
            DQ_UNROLL
            for (int j = 0; j < 4; j++) {
                double t = d[i][j] * (o - (double)v[(x + 16 * j) * PITCH + c]) + b[i][j] * apart;
                length[i][j] = dq_fma_rn(t, t, length[i][j]);
            }
        }
    }
}

/* Grid: pages, output heads, units. */
DQ_KERNEL_BLOCKS(256, 1)
lengths(dq_attention_units u, const double *DQ_RESTRICT total, const double *DQ_RESTRICT outputs)
{
    DQ_SHARED(double, o1, [TILE * PITCH]);
    DQ_SHARED(double, e, [TILE * PITCH]);
    DQ_SHARED(float, v, [TILE * PITCH]);
    const dq_attention_unit *w = this_unit(&u);
    int page = (int)dq_block_x(), i_out = (int)dq_block_y(), dim = u.form[1].dim;
    if (w->first >= w->n || page * DQ_PAGE_SLOTS >= w->keys) return;
    if (i_out >= heads_of(u.o_first, w->group)) return;
    const dq_o_head *o = u.o_head + u.o_first[w->group] + i_out;
    int spans = spans_of(w, page), x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    double d[4][4], b[4][4];
    weights_of(d, b, &u, w, o, total, page);
    for (int span = 0; span < spans; span++) {
        double length[4][4] = {};
        for (int slab = 0; slab < u.n_slabs; slab++) {
            for (int c = 0; c < dim; c += STEP) {
                stage_outputs(o1, e, &u, w, outputs, i_out, slab * dim + c, dim - c);
                stage_page(v, PITCH, &u.form[1], u.pages + w->page + page, 1, o->v[slab],
                           span_slots(w, span, page), slots_of(w->keys, page), c, STEP);
                DQ_SYNC(lengths_staged); /* outputs and values are there */
                add_lengths(length, d, b, o1, e, v);
                DQ_SYNC(lengths_read); /* all have read them */
            }
        }
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            if (y + 16 * i >= w->n || !in_span(w, spans, span, y + 16 * i)) continue;
            DQ_UNROLL
            for (int j = 0; j < 4; j++)
                out_strip_of(&u, w, i_out, y + 16 * i)[page * DQ_PAGE_SLOTS + x + 16 * j] =
                    (float)sqrt(length[i][j]);
        }
    }
}

/* --------------------------------------------------------------------------------------- measure */

enum {
    ENTROPY,
    SINK = 2,
    VARIATION = 4,
    NEGATIVE,
    NEAR,
    SKIP = NEAR + DQ_MAP_THRESHOLDS,
    N_ROWS = SKIP + DQ_MAP_THRESHOLDS,
    N_KEYS,
    N_PAGES
};

/* One key's share of the fields; returns |D|. */
DQ_DEVICE double measure_key(double *field, const dq_map_limits *limits, const float *f, float p1,
                             float p2, bool two, bool sink)
{
    float x = dq_mul_rn(p1, f[0]), y = two ? dq_mul_rn(p2, f[2]) : 0.0f;
    double d = (double)dq_sub_rn(x, y), size = d < 0 ? -d : d;
    if (x > 0.0f) field[ENTROPY] -= (double)dq_mul_rn(x, logf(x));
    if (sink) field[SINK] += (double)x;
    if (two) {
        float q = dq_mul_rn(p2, f[1]);
        if (q > 0.0f) field[ENTROPY + 1] -= (double)dq_mul_rn(q, logf(q));
        if (sink) field[SINK + 1] += (double)q;
    }
    if (d < 0) field[NEGATIVE] -= d;
    DQ_UNROLL
    for (int k = 0; k < DQ_MAP_THRESHOLDS; k++)
        field[NEAR + k] += size < limits->below[k] ? 1.0 : 0.0;
    return size;
}

/* Pages of one row, by a warp: every fourth from its own on. Fields of all lanes add up. */
DQ_DEVICE void measure_pages(double *field, const dq_attention_units *u,
                             const dq_map_limits *limits, const dq_attention_unit *w,
                             const dq_o_head *o, int i_out, int r)
{
    bool two = u->n_maps == 2;
    const float *f = factors_of(u, w, i_out, r), *p1 = strip_of(u, w, o->q[0], r);
    const float *p2 = two ? strip_of(u, w, o->q[1], r) : p1;
    int n = visible_of(u, w, r);
    for (int first = (int)dq_warp() * TILE; first < n;
         first += (int)dq_threads() / DQ_WARP * TILE) {
        double size = 0;
        for (int k = first + (int)dq_lane(); k < first + TILE && k < n; k += DQ_WARP)
            size += measure_key(field, limits, f, p1[k], p2[k], two, k < w->sinks);
        for (unsigned b = 16; b; b >>= 1) size = dq_add_rn(size, dq_shfl_xor(size, b));
        if (dq_lane() != 0) continue;
        field[VARIATION] += size;
        field[N_PAGES] += 1.0;
        DQ_UNROLL
        for (int k = 0; k < DQ_MAP_THRESHOLDS; k++)
            field[SKIP + k] += size < limits->below[k] ? 1.0 : 0.0;
    }
}

/* Grid: rows of a unit, output heads, units. */
DQ_KERNEL_BLOCKS(128, 4)
measure_rows(dq_attention_units u, dq_map_limits limits, double *DQ_RESTRICT row)
{
    DQ_SHARED(double, part, [4][DQ_MAP_FIELDS]);
    const dq_attention_unit *w = this_unit(&u);
    int r = (int)dq_block_x(), i_out = (int)dq_block_y();
    if (r >= w->n || i_out >= heads_of(u.o_first, w->group)) return;
    const dq_o_head *o = u.o_head + u.o_first[w->group] + i_out;
    double field[DQ_MAP_FIELDS] = {};
    measure_pages(field, &u, &limits, w, o, i_out, r);
    int n = visible_of(&u, w, r);
    if (dq_thread() == 0) {
        field[N_ROWS] = n > 0 ? 1.0 : 0.0;
        field[N_KEYS] = (double)n;
    }
    DQ_UNROLL
    for (int i = 0; i < DQ_MAP_FIELDS; i++) {
        double s = field[i];
        for (unsigned b = 16; b; b >>= 1) s = dq_add_rn(s, dq_shfl_xor(s, b));
        if (dq_lane() == 0) part[dq_warp()][i] = s;
    }
    DQ_SYNC(measure_there); /* every warp's part is there */
    for (int i = (int)dq_thread(); i < DQ_MAP_FIELDS; i += (int)dq_threads())
        row[(int64_t)(w->factor + i_out * w->n + r) * DQ_MAP_FIELDS + i] =
            part[0][i] + part[1][i] + part[2][i] + part[3][i];
}

/* Grid: lists, output heads. A thread owns a field: units and rows in their order. */
DQ_KERNEL(32)
sum_rows(dq_attention_units u, double *DQ_RESTRICT into, const double *DQ_RESTRICT row,
         const dq_map_run *DQ_RESTRICT runs)
{
    const dq_map_run run = runs[dq_block_x()];
    const dq_attention_unit *w = u.unit + run.first;
    int i_out = (int)dq_block_y(), field = (int)dq_lane();
    if (i_out >= heads_of(u.o_first, w->group) || field >= DQ_MAP_FIELDS) return;
    int out = u.o_head[u.o_first[w->group] + i_out].out;
    double *to = into + (int64_t)(w->seq * u.n_out + out) * DQ_MAP_FIELDS + field, s = *to;
    for (int i = 0; i < run.n; i++, w++) {
        const double *from = row + (int64_t)(w->factor + i_out * w->n) * DQ_MAP_FIELDS + field;
        for (int r = 0; r < w->n; r++) s += from[r * DQ_MAP_FIELDS];
    }
    *to = s;
}

/* ------------------------------------------------------------------------------------- launchers */

cudaError_t dq_maps_sum(dq_attention_units u, dq_map_sums c, const dq_map_run *runs, int n_runs,
                        int max_keys, cudaStream_t s)
{
    if (n_runs == 0 || max_keys == 0) return cudaSuccess;
    dim3 grid((unsigned)(max_keys + 127) / 128, (unsigned)n_runs);
    DQ_LAUNCH(sum_columns, grid, 128, 0, s, u, c, runs);
    return cudaGetLastError();
}

cudaError_t dq_maps_leave_out(dq_attention_units u, double *total, double *outputs, cudaStream_t s)
{
    if (u.n == 0 || u.max_keys == 0) return cudaSuccess;
    unsigned runs = (unsigned)((u.form[1].dim + TILE - 1) / TILE * u.n_slabs), n = (unsigned)u.n;
    DQ_LAUNCH(totals, dim3((unsigned)u.max_rows, (unsigned)u.max_q, n), 128, 0, s, u, total);
    DQ_LAUNCH(map_outputs, dim3(runs, (unsigned)(u.max_out * u.n_maps), n), 256, 0, s, u, total,
              outputs);
    dim3 grid((unsigned)(u.max_keys + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS, (unsigned)u.max_out, n);
    DQ_LAUNCH(lengths, grid, 256, 0, s, u, total, outputs);
    return cudaGetLastError();
}

cudaError_t dq_maps_measure(dq_attention_units u, dq_map_limits limits, double *into, double *row,
                            const dq_map_run *runs, int n_runs, cudaStream_t s)
{
    if (n_runs == 0) return cudaSuccess;
    dim3 rows((unsigned)u.max_rows, (unsigned)u.max_out, (unsigned)u.n);
    DQ_LAUNCH(measure_rows, rows, 128, 0, s, u, limits, row);
    DQ_LAUNCH(sum_rows, dim3((unsigned)n_runs, (unsigned)u.max_out), 32, 0, s, u, into, row, runs);
    return cudaGetLastError();
}
