/* observe: the largest values of a launch are found in four walks over its rows: counts by the
 * upper 16 bits give the bin of the last one wanted, counts by the lower 16 bits inside that bin its bits;
 * then everything above is gathered in any order, and of the values equal to it the first ones by place.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"

#include "kernels/cuda/device/ptx.cuh"

enum { INFINITE = 0x7f800000, NO_BIN = 0x10000 };

DQ_DEVICE int values_of(const dq_observe_piece *p, int r)
{
    return p->visible ? p->visible[(int64_t)r * p->step] : p->cols;
}

DQ_DEVICE uint32_t size_bits(const float *x)
{
    return dq_f32_bits(*x) & 0x7fffffffu;
}

/* ------------------------------------------------------------------------------- counts and sums */

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
    int n = values_of(p, r);
    double s1 = 0, s2 = 0, s4 = 0, bad = 0;
    for (int i = (int)dq_thread(); i < n; i += (int)dq_threads()) {
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

/* ---------------------------------------------------------------------------------- largest values */

/* Sum of the counts in higher bins, by a block of 1024 threads each of which has `own` in its bins, thread
 * 0 the lowest; *all: of all bins. held[32] is shared memory. */
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

/* One block of 1024 threads: the bin of the last value that is wanted. Counts move on to the call's. */
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

/* Grid: pieces, rows of a piece. Counts by the lower 16 bits of what is in the bin: *top's, or `bin`. */
DQ_KERNEL(128)
count_fine(const dq_observe_piece *DQ_RESTRICT pieces, const dq_observe_top *DQ_RESTRICT top,
           uint64_t *DQ_RESTRICT fine, uint32_t bin)
{
    const dq_observe_piece *p = pieces + dq_block_x();
    int r = (int)dq_block_y();
    if (top) bin = top->bin;
    if (r >= p->rows || bin >= INFINITE >> 16) return;
    const float *x = p->x + r * p->ld;
    int n = values_of(p, r);
    for (int i = (int)dq_thread(); i < n; i += (int)dq_threads()) {
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

/* Grid: pieces, rows of a piece. What is larger than the last value; how often a row has that one. */
DQ_KERNEL(128)
gather(const dq_observe_piece *DQ_RESTRICT pieces, dq_observe_top *DQ_RESTRICT top,
       uint32_t *DQ_RESTRICT tied)
{
    const dq_observe_piece *p = pieces + dq_block_x();
    int r = (int)dq_block_y();
    if (r >= p->rows || top->bin == NO_BIN) return;
    const float *x = p->x + r * p->ld;
    int n = values_of(p, r);
    uint32_t last = top->value;
    for (int i = (int)dq_thread(); i < n; i += (int)dq_threads()) {
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
    int n = values_of(p, r);
    for (int base = 0; base < n && taken < left; base += DQ_WARP) {
        int i = base + (int)dq_lane();
        bool equal = i < n && size_bits(p->x + r * p->ld + i) == top->value;
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

/* ------------------------------------------------------------------------------------- launchers */

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
