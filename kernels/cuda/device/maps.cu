/* maps: every sum over rows belongs to one thread, which adds units, heads and rows in their order, in
 * f64: results do not depend on the grid.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"

#include "kernels/cuda/device/attention.cuh"

#include <math.h>

/* --------------------------------------------------------------------------------------- columns */

typedef struct four_sums {
    double mass[2], lambda_mass, diff;
} four_sums;

/* One key in one row and output head. */
DQ_DEVICE void add_key(four_sums *s, const dq_attention_units *u, const dq_attention_unit *w,
                       const dq_o_head *o, int i_out, int r, int key)
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
                   held_in(c.diff, at)};
    const dq_o_head *o = u.o_head + u.o_first[w->group];
    int n_out = heads_of(u.o_first, w->group);
    for (int i = 0; i < run.n; i++, w++) {
        for (int i_out = 0; i_out < n_out && key < w->keys; i_out++) {
            for (int r = w->first; r < w->n; r++) {
                if (key < visible_of(&u, w, r)) add_key(&s, &u, w, o + i_out, i_out, r, key);
            }
        }
    }
    add_to(c.mass[0], at, s.mass[0]);
    add_to(c.mass[1], at, s.mass[1]);
    add_to(c.lambda_mass, at, s.lambda_mass);
    add_to(c.diff, at, s.diff);
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

cudaError_t dq_maps_measure(dq_attention_units u, dq_map_limits limits, double *into, double *row,
                            const dq_map_run *runs, int n_runs, cudaStream_t s)
{
    if (n_runs == 0) return cudaSuccess;
    dim3 rows((unsigned)u.max_rows, (unsigned)u.max_out, (unsigned)u.n);
    DQ_LAUNCH(measure_rows, rows, 128, 0, s, u, limits, row);
    DQ_LAUNCH(sum_rows, dim3((unsigned)n_runs, (unsigned)u.max_out), 32, 0, s, u, into, row, runs);
    return cudaGetLastError();
}
