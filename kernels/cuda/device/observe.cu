/* observe: what observers see: maps between softmax and subtraction, and magnitudes of any values.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/page.cuh"
#include "kernels/cuda/device/stored.cuh"

#include <math.h>

/* ---- maps */
/* Every sum over rows belongs to one thread, which adds units, heads and rows in their order, in
 * f64: results do not depend on the grid. */

/* ---- columns */

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

/* Grid: runs of 128 keys, lists. A thread owns a key: units, heads and rows come in order. There
 * are no windows. */
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

/* ---- measure */

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

/* Runs of 64 keys that a row sees, by a warp: every fourth from its own on. Fields of all lanes add
 * up. */
DQ_DEVICE void measure_pages(double *field, const dq_attention_units *u,
                             const dq_map_limits *limits, const dq_attention_unit *w,
                             const dq_o_head *o, int i_out, int r)
{
    bool two = u->n_maps == 2;
    const float *f = factors_of(u, w, i_out, r), *p1 = strip_of(u, w, o->q[0], r);
    const float *p2 = two ? strip_of(u, w, o->q[1], r) : p1;
    const dq_window sees = dq_window_of(u, w, r);
    for (int first = sees.hidden + (int)dq_warp() * TILE; first < sees.seen;
         first += (int)dq_threads() / DQ_WARP * TILE) {
        double size = 0;
        for (int k = first + (int)dq_lane(); k < first + TILE && k < sees.seen; k += DQ_WARP)
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
    const dq_window sees = dq_window_of(&u, w, r);
    if (dq_thread() == 0) {
        field[N_ROWS] = sees.seen > sees.hidden ? 1.0 : 0.0;
        field[N_KEYS] = (double)(sees.seen - sees.hidden);
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

/* ---- launchers */

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

/* ---- spans */
/* A block sums D of one row and output head by the classes of keys, positive and negative apart, in
 * f64 and a fixed order. */

enum { THREADS = 128, MASSES = 2 * DQ_SPAN_SUM_CLASSES };

/* A thread's keys of one row and output head. */
DQ_DEVICE void add_keys(double *mass, const dq_attention_units *u, const dq_span_sums *c,
                        const dq_attention_unit *w, const dq_o_head *o, int i_out, int r)
{
    bool two = u->n_maps == 2;
    const float *f = factors_of(u, w, i_out, r), *p1 = strip_of(u, w, o->q[0], r);
    const float *p2 = two ? strip_of(u, w, o->q[1], r) : p1;
    const uint8_t *label = c->label + c->key[w->seq * u->n_groups + w->group];
    const dq_window sees = dq_window_of(u, w, r);
    for (int k = sees.hidden + (int)dq_thread(); k < sees.seen; k += THREADS) {
        float x = dq_mul_rn(p1[k], f[0]), y = two ? dq_mul_rn(p2[k], f[2]) : 0.0f;
        double d = (double)dq_sub_rn(x, y), size = d < 0 ? -d : d;
        int at = 2 * label[k] + (d < 0 ? 1 : 0);
        DQ_UNROLL
        for (int i = 0; i < MASSES; i++) mass[i] = dq_add_rn(mass[i], i == at ? size : 0.0);
    }
}

/* Grid: rows of a unit that count, output heads, units. */
DQ_KERNEL(THREADS) sum_spans(dq_attention_units u, dq_span_sums c)
{
    const dq_attention_unit *w = this_unit(&u);
    int r = w->counted + (int)dq_block_x(), i_out = (int)dq_block_y();
    if (r >= w->n || i_out >= heads_of(u.o_first, w->group)) return;
    const dq_o_head *o = u.o_head + u.o_first[w->group] + i_out;
    double mass[MASSES] = {};
    add_keys(mass, &u, &c, w, o, i_out, r);
    dq_reduce_block_sum<MASSES, THREADS>(mass);
    int64_t row = w->span + r - w->counted;
    double *to = c.mass + (row * u.n_out + o->out) * 2 * c.n_classes;
    if (dq_thread() != 0) return;
    DQ_UNROLL
    for (int i = 0; i < MASSES; i++) {
        if (i < 2 * c.n_classes) to[i] = mass[i];
    }
}

cudaError_t dq_spans_add_sums(dq_attention_units u, dq_span_sums c, cudaStream_t s)
{
    if (u.n == 0) return cudaSuccess;
    dim3 grid((unsigned)u.max_rows, (unsigned)u.max_out, (unsigned)u.n);
    DQ_LAUNCH(sum_spans, grid, THREADS, 0, s, u, c);
    return cudaGetLastError();
}

/* ---- magnitudes */
/* Counts by the upper 16 bits give the bin of the last value wanted, counts by the lower 16 its
 * bits; then all above are gathered, and of those equal to it the first by place. */

enum { INFINITE = 0x7f800000, NO_BIN = 0x10000 };

DQ_DEVICE dq_window values_of(const dq_observe_piece *p, int r)
{
    return dq_window{p->hidden ? p->hidden[r] : 0, p->visible ? p->visible[r] : p->cols};
}

DQ_DEVICE uint32_t size_bits(const float *x)
{
    return dq_f32_bits(*x) & 0x7fffffffu;
}

/* ---- counts and sums */

/* Sum over the block in a fixed order, valid in thread 0. part[4] is shared memory. */
DQ_DEVICE double block_sum(double v, double *part)
{
    for (unsigned o = 16; o; o >>= 1) v = dq_add_rn(v, dq_shfl_xor(v, o));
    DQ_SYNC(tally_sum_read); /* what the last call left has been read */
    if (dq_lane() == 0) part[dq_warp()] = v;
    DQ_SYNC(tally_sum_there); /* every warp's part is there */
    return dq_add_rn(dq_add_rn(part[0], part[1]), dq_add_rn(part[2], part[3]));
}

/* Grid: pieces, rows of a piece. */
DQ_KERNEL(128)
count_rows(const dq_observe_piece *DQ_RESTRICT pieces, dq_observe_bins *DQ_RESTRICT bins,
           double *DQ_RESTRICT sums, uint32_t *DQ_RESTRICT tied)
{
    DQ_SHARED(double, part, [4]);
    const dq_observe_piece *p = pieces + dq_block_x();
    int r = (int)dq_block_y();
    if (r >= p->rows) return;
    const float *x = p->x + r * p->ld;
    const dq_window n = values_of(p, r);
    double s1 = 0, s2 = 0, s4 = 0, bad = 0;
    for (int i = n.hidden + (int)dq_thread(); i < n.seen; i += (int)dq_threads()) {
        uint32_t bits = size_bits(x + i);
        if (bits >= INFINITE) {
            bad += 1.0;
            continue;
        }
        double v = (double)dq_bits_f32(bits), w = v * v;
        s1 += v;
        s2 += w;
        s4 += w * w;
        dq_atomic_add(&bins->hist[bits >> 16], (uint64_t)1);
    }
    double *to = sums + 4 * (int64_t)(p->record + r);
    double all[4] = {block_sum(s1, part), block_sum(s2, part), block_sum(s4, part),
                     block_sum(bad, part)};
    if (dq_thread() != 0) return;
    for (int i = 0; i < 4; i++) to[i] = all[i];
    tied[p->record + r] = 0;
}

/* One block: rows of a launch in a fixed order. */
DQ_KERNEL(128)
add_sums(dq_observe_call *DQ_RESTRICT call, const double *DQ_RESTRICT sums, int records)
{
    DQ_SHARED(double, part, [4]);
    for (int i = 0; i < 4; i++) {
        double v = 0;
        for (int r = (int)dq_thread(); r < records; r += (int)dq_threads())
            v = dq_add_rn(v, sums[4 * (int64_t)r + i]);
        v = block_sum(v, part);
        if (dq_thread() == 0) call->total[i] = dq_add_rn(call->total[i], v);
    }
}

/* ---- largest values */

/* Counts of higher bins; each of 1024 threads has `own`, thread 0 the lowest; held[32]: shared. */
DQ_DEVICE uint64_t counts_above(uint64_t own, uint64_t *held, uint64_t *all)
{
    uint64_t sum = own; /* of this lane and the lanes above it */
    for (unsigned o = 1; o < DQ_WARP; o *= 2) {
        uint64_t other = dq_shfl_down(sum, o);
        if (dq_lane() + o < DQ_WARP) sum += other;
    }
    if (dq_lane() == 0) held[dq_warp()] = sum;
    DQ_SYNC(tally_counts_there); /* every warp's sum is there */
    uint64_t above = sum - own;
    *all = 0;
    for (unsigned w = 0; w < dq_threads() / DQ_WARP; w++) {
        *all += held[w];
        if (w > dq_warp()) above += held[w];
    }
    return above;
}

/* By 1024 threads: finds the bin of the last value wanted, and adds the counts to the call's. */
DQ_KERNEL(1024)
pick_bin(dq_observe_call *DQ_RESTRICT call, dq_observe_top *DQ_RESTRICT top,
         dq_observe_bins *DQ_RESTRICT bins)
{
    enum { EACH = DQ_OBSERVE_BINS / 1024 };
    DQ_SHARED(uint64_t, held, [32]);
    uint64_t own = 0, all;
    int first = (int)dq_thread() * EACH;
    for (int i = 0; i < EACH; i++) own += bins->hist[first + i];
    uint64_t above = counts_above(own, held, &all),
             want = all < DQ_OBSERVE_TOP ? all : (uint64_t)DQ_OBSERVE_TOP;
    if (dq_thread() == 0) {
        top->want = want;
        top->n = top->ties = 0;
        if (want == 0) top->bin = NO_BIN;
    }
    bool mine = above < want && above + own >= want;
    for (int i = EACH - 1; i >= 0; i--) {
        uint64_t n = bins->hist[first + i];
        if (mine && above + n >= want) {
            top->bin = (uint32_t)(first + i);
            top->above = above;
            mine = false;
        }
        above += n;
        call->hist[first + i] += n;
        bins->hist[first + i] = 0;
    }
}

/* Grid: pieces, rows of a piece. Counts by the lower 16 bits in the bin, *top's or `bin`. */
DQ_KERNEL(128)
count_fine(const dq_observe_piece *DQ_RESTRICT pieces, const dq_observe_top *DQ_RESTRICT top,
           uint64_t *DQ_RESTRICT fine, uint32_t bin)
{
    const dq_observe_piece *p = pieces + dq_block_x();
    int r = (int)dq_block_y();
    if (top) bin = top->bin;
    if (r >= p->rows || bin >= INFINITE >> 16) return;
    const float *x = p->x + r * p->ld;
    const dq_window n = values_of(p, r);
    for (int i = n.hidden + (int)dq_thread(); i < n.seen; i += (int)dq_threads()) {
        uint32_t bits = size_bits(x + i);
        if (bits >> 16 == bin) dq_atomic_add(&fine[bits & 0xffffu], (uint64_t)1);
    }
}

/* One block of 1024 threads: the bits of the last value that is wanted, and how many equal ones. */
DQ_KERNEL(1024) pick_value(dq_observe_top *DQ_RESTRICT top, dq_observe_bins *DQ_RESTRICT bins)
{
    enum { EACH = DQ_OBSERVE_FINE / 1024 };
    DQ_SHARED(uint64_t, held, [32]);
    uint64_t own = 0, all, want = top->want - top->above;
    int first = (int)dq_thread() * EACH;
    if (top->bin == NO_BIN) return;
    for (int i = 0; i < EACH; i++) own += bins->fine[first + i];
    uint64_t above = counts_above(own, held, &all);
    bool mine = above < want && above + own >= want;
    for (int i = EACH - 1; i >= 0; i--) {
        uint64_t n = bins->fine[first + i];
        if (mine && above + n >= want) {
            top->value = top->bin << 16 | (uint32_t)(first + i);
            top->ties = (uint32_t)(want - above);
            mine = false;
        }
        above += n;
        bins->fine[first + i] = 0;
    }
}

DQ_DEVICE void put_found(dq_observe_top *top, uint32_t at, const dq_observe_piece *p, int r, int i)
{
    top->found[at] = dq_observe_found{dq_bits_f32(size_bits(p->x + r * p->ld + i)), p->seq, p->head,
                                      p->pos[r], p->col ? p->col[i] : i};
}

/* Grid: pieces, rows of a piece. Gathers what is larger than the last value; counts its ties. */
DQ_KERNEL(128)
gather(const dq_observe_piece *DQ_RESTRICT pieces, dq_observe_top *DQ_RESTRICT top,
       uint32_t *DQ_RESTRICT tied)
{
    const dq_observe_piece *p = pieces + dq_block_x();
    int r = (int)dq_block_y();
    if (r >= p->rows || top->bin == NO_BIN) return;
    const float *x = p->x + r * p->ld;
    const dq_window n = values_of(p, r);
    uint32_t last = top->value;
    for (int i = n.hidden + (int)dq_thread(); i < n.seen; i += (int)dq_threads()) {
        uint32_t bits = size_bits(x + i);
        if (bits == last) dq_atomic_add(&tied[p->record + r], 1u);
        if (bits > last && bits < INFINITE) put_found(top, dq_atomic_add(&top->n, 1u), p, r, i);
    }
}

/* Of one row the first `left` values equal to the last one, by a warp; returns how many it had. */
DQ_DEVICE uint32_t take_ties(dq_observe_top *top, uint32_t at, uint32_t left,
                             const dq_observe_piece *p, int r)
{
    uint32_t taken = 0;
    const dq_window n = values_of(p, r);
    for (int base = n.hidden; base < n.seen && taken < left; base += DQ_WARP) {
        int i = base + (int)dq_lane();
        bool equal = i < n.seen && size_bits(p->x + r * p->ld + i) == top->value;
        uint32_t all = dq_ballot(equal), before = all & ((1u << dq_lane()) - 1u), rank = 0,
                 some = 0;
        for (; before; before &= before - 1) rank++;
        for (; all; all &= all - 1) some++;
        if (equal && taken + rank < left) put_found(top, at + taken + rank, p, r, i);
        taken += some;
    }
    return taken < left ? taken : left;
}

/* One warp: rows in the order of their places. */
DQ_KERNEL(32)
gather_ties(const dq_observe_piece *DQ_RESTRICT pieces, int n_pieces,
            dq_observe_top *DQ_RESTRICT top, const uint32_t *DQ_RESTRICT tied)
{
    if (top->bin == NO_BIN) return;
    uint32_t left = top->ties, at = top->n;
    for (int k = 0; k < n_pieces && left > 0; k++) {
        const dq_observe_piece *p = pieces + k;
        for (int base = 0; base < p->rows && left > 0; base += DQ_WARP) {
            int r = base + (int)dq_lane();
            uint32_t some = dq_ballot(r < p->rows && tied[p->record + r] > 0);
            for (int i = 0; i < DQ_WARP && left > 0; i++) {
                if (!(some >> i & 1u)) continue;
                uint32_t taken = take_ties(top, at, left, p, base + i);
                at += taken;
                left -= taken;
            }
        }
    }
    DQ_WARP_SYNC(tally_ties_read); /* all lanes have read n */
    if (dq_lane() == 0) top->n = at;
}

/* ---- launchers */

cudaError_t dq_observe_launch(dq_observe_rows rows, dq_observe_call *call, dq_observe_top *top,
                              dq_observe_bins *bins, double *sums, uint32_t *tied, cudaStream_t s)
{
    if (rows.n == 0 || rows.max_rows == 0) return cudaSuccess;
    dim3 grid((unsigned)rows.n, (unsigned)rows.max_rows);
    DQ_LAUNCH(count_rows, grid, 128, 0, s, rows.piece, bins, sums, tied);
    DQ_LAUNCH(add_sums, dim3(1), 128, 0, s, call, sums, rows.records);
    DQ_LAUNCH(pick_bin, dim3(1), 1024, 0, s, call, top, bins);
    DQ_LAUNCH(count_fine, grid, 128, 0, s, rows.piece, top, bins->fine, 0);
    DQ_LAUNCH(pick_value, dim3(1), 1024, 0, s, top, bins);
    DQ_LAUNCH(gather, grid, 128, 0, s, rows.piece, top, tied);
    DQ_LAUNCH(gather_ties, dim3(1), 32, 0, s, rows.piece, rows.n, top, tied);
    return cudaGetLastError();
}

cudaError_t dq_observe_refined(dq_observe_rows rows, uint64_t *fine, uint32_t bin, cudaStream_t s)
{
    if (rows.n == 0 || rows.max_rows == 0) return cudaSuccess;
    DQ_LAUNCH(count_fine, dim3((unsigned)rows.n, (unsigned)rows.max_rows), 128, 0, s, rows.piece,
              NULL, fine, bin);
    return cudaGetLastError();
}
