/* linear: weights widened for products of floats, activations rounded to 8 bits, and the products
 * of those with packed weights. tests/simt/defects.tsv quotes text of this file.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/stored.cuh"

enum { THREADS = 256 };

static unsigned blocks_for(int64_t n)
{
    const int64_t max = 1 << 16, blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < max ? blocks : max);
}

/* ---- widen, round */
/* Eight numbers as bf16, in 16 bytes. */
DQ_DEVICE dq_u4 eight_bf16(const float v[8])
{
    return dq_u4{dq_f32x2_bf16(v[0], v[1]), dq_f32x2_bf16(v[2], v[3]), dq_f32x2_bf16(v[4], v[5]),
                 dq_f32x2_bf16(v[6], v[7])};
}

DQ_DEVICE void four_of(float v[4], const float *x)
{
    const dq_u4 u = dq_load16_const(x);
    v[0] = dq_bits_f32(u.x), v[1] = dq_bits_f32(u.y);
    v[2] = dq_bits_f32(u.z), v[3] = dq_bits_f32(u.w);
}

/* Elements c .. c + 7 of a row; 8 divides c, columns and groups. */
DQ_DEVICE void eight_of(float v[8], const dq_cuda_weight &w, int64_t row, int c)
{
    const int64_t at = row * w.cols + c;
    if (w.kind == DQ_STORED_PACKED) { /* of one group, in whole bytes: of up to three words */
        const int64_t group = c / (int)w.group, in_group = c - group * w.group;
        const int64_t byte = row * w.pitch + (group * w.group_codes + in_group) / 8 * w.bits;
        const uint32_t *word = (const uint32_t *)w.data + byte / 4;
        const int past = 8 * (int)(byte % 4), end = past + 8 * w.bits;
        const float scale = dq_stored_scale(w, row, group);
        const int32_t shift = dq_stored_shift(w, row, group) - (1 << (w.bits - 1));
        uint64_t codes = word[0];
        if (end > 32) codes |= (uint64_t)word[1] << 32;
        codes >>= past;
        if (end > 64) codes |= (uint64_t)word[2] << (64 - past);
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            const int32_t code = (int32_t)(codes & ((1u << w.bits) - 1));
            v[k] = dq_mul_rn(dq_s32_f32(code + shift), scale);
            codes >>= w.bits;
        }
    } else if (w.kind == DQ_STORED_F32) {
        four_of(v, (const float *)w.data + at);
        four_of(v + 4, (const float *)w.data + at + 4);
    } else {
        const dq_u4 u = dq_load16_const((const uint16_t *)w.data + at);
        const uint32_t pair[4] = {u.x, u.y, u.z, u.w};
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            const uint16_t h = (uint16_t)(pair[k / 2] >> (16 * (k % 2)));
            v[k] = w.kind == DQ_STORED_F16 ? dq_f16_f32(h) : dq_bf16_f32(h);
        }
    }
}

template <bool BF16> DQ_KERNEL(THREADS) widen(void *dst, dq_cuda_weight w, int64_t n0, bool eights)
{
    const int64_t row = dq_block_x();
    const int cols = (int)w.cols;
    float *wide = (float *)dst + row * cols;
    uint16_t *half = (uint16_t *)dst + row * cols;
    for (int c = 8 * (int)dq_thread(); eights && c < cols; c += 8 * THREADS) {
        float v[8];
        eight_of(v, w, n0 + row, c);
        if (BF16) {
            dq_store16(half + c, eight_bf16(v));
        } else {
            DQ_UNROLL
            for (int k = 0; k < 8; k += 4)
                dq_store16(wide + c + k, dq_u4{dq_f32_bits(v[k]), dq_f32_bits(v[k + 1]),
                                               dq_f32_bits(v[k + 2]), dq_f32_bits(v[k + 3])});
        }
    }
    for (int c = (int)dq_thread(); !eights && c < cols; c += THREADS) {
        const float v = dq_stored_value(w, n0 + row, c);
        if (BF16)
            half[c] = dq_f32_bf16(v);
        else
            wide[c] = v;
    }
}

/* whole: src and dst are multiples of 16. */
DQ_KERNEL(THREADS) to_bf16(uint16_t *dst, const float *src, int64_t n, bool whole)
{
    const int64_t step = (int64_t)dq_grid_x() * THREADS * 8;
    for (int64_t i = ((int64_t)dq_block_x() * THREADS + dq_thread()) * 8; i < n; i += step) {
        if (whole && i + 8 <= n) {
            float v[8];
            four_of(v, src + i);
            four_of(v + 4, src + i + 4);
            dq_store16(dst + i, eight_bf16(v));
        } else {
            for (int64_t k = i; k < n && k < i + 8; k++) dst[k] = dq_f32_bf16(src[k]);
        }
    }
}

/* Sets *differs where a row of x[][ld] is not row[n], bit for bit. */
DQ_KERNEL(THREADS)
rows_differ(int32_t *differs, const float *x, int64_t ld, const float *row, int n)
{
    x += (int64_t)dq_block_x() * ld;
    for (int i = (int)dq_thread(); i < n; i += THREADS)
        if (dq_f32_bits(x[i]) != dq_f32_bits(row[i])) dq_raise(differs);
}

DQ_KERNEL(THREADS) add_bias(float *x, const float *bias, int64_t n, int64_t cols)
{
    const int64_t step = (int64_t)dq_grid_x() * THREADS;
    for (int64_t i = (int64_t)dq_block_x() * THREADS + dq_thread(); i < n; i += step)
        x[i] = dq_add_rn(x[i], bias[i % cols]);
}

/* ---- codes of activations */
/* The largest v of a team: a warp, or (WIDE) the block. */
template <bool WIDE> DQ_DEVICE uint32_t team_max(uint32_t v)
{
    DQ_SHARED(uint32_t, part, [THREADS / DQ_WARP]);
    for (unsigned o = DQ_WARP / 2; o; o /= 2) {
        const uint32_t other = dq_shfl_xor(v, o);
        v = other > v ? other : v;
    }
    if (!WIDE) return v;
    if (dq_lane() == 0) part[dq_warp()] = v;
    DQ_SYNC(team_max_there);
    for (int i = 0; i < THREADS / DQ_WARP; i++) v = part[i] > v ? part[i] : v;
    return v;
}

/* The sum of v over a team, on its first thread. */
template <bool WIDE> DQ_DEVICE int32_t team_sum(int32_t v)
{
    DQ_SHARED(int32_t, part, [THREADS / DQ_WARP]);
    for (unsigned o = DQ_WARP / 2; o; o /= 2) v += dq_shfl_xor(v, o);
    if (!WIDE) return v;
    if (dq_lane() == 0) part[dq_warp()] = v;
    DQ_SYNC(team_sum_there);
    v = 0;
    for (int i = 0; i < THREADS / DQ_WARP; i++) v += part[i];
    return v;
}

struct rounding {
    int8_t *code;
    float *scale;
    int32_t *sum; /* NULL: not wanted */
    const float *x;
    int64_t rows, code_pitch, scale_pitch;
    int cols, group, group_codes, groups;
    bool fours; /* groups of x are multiples of 16 bytes */
};

/* Four numbers, with zeros for those after the nth. */
DQ_DEVICE void four_before(float v[4], const float *x, int n, bool fours)
{
    if (fours) return four_of(v, x);
    DQ_UNROLL
    for (int k = 0; k < 4; k++) v[k] = k < n ? x[k] : 0;
}

/* One team per row and group. The bits of |x| order as |x| does, with NaN above infinity. */
template <bool WIDE> DQ_KERNEL(THREADS) round_rows(rounding p)
{
    const int team = WIDE ? THREADS : DQ_WARP;
    const int64_t which =
        WIDE ? (int64_t)dq_block_x() : (int64_t)dq_block_x() * (THREADS / DQ_WARP) + dq_warp();
    const int me = WIDE ? (int)dq_thread() : (int)dq_lane();
    if (which >= p.rows * p.groups) return;
    const int64_t row = which / p.groups;
    const int g = (int)(which % p.groups), first = g * p.group;
    const int n = p.cols - first < p.group ? p.cols - first : p.group;
    const float *x = p.x + row * p.cols + first;

    uint32_t max = 0;
    for (int i = 4 * me; i < n; i += 4 * team) {
        float v[4];
        four_before(v, x + i, n - i, p.fours);
        DQ_UNROLL
        for (int k = 0; k < 4; k++) {
            const uint32_t a = dq_f32_bits(v[k]) & 0x7fffffffu;
            max = a > max ? a : max;
        }
    }
    max = team_max<WIDE>(max);
    const bool finite = max < 0x7f800000u;
    const float scale = dq_div_rn(dq_bits_f32(max), 127.0f);
    const bool any = finite && scale > 0;
    if (me == 0) /* NaN shows in every result of the row */
        p.scale[g * p.scale_pitch + row] = finite ? scale : dq_bits_f32(0x7fc00000u);

    const int64_t end =
        g + 1 < p.groups ? p.group_codes : p.code_pitch - (int64_t)g * p.group_codes;
    int8_t *code = p.code + row * p.code_pitch + (int64_t)g * p.group_codes;
    int32_t sum = 0;
    for (int i = 4 * me; i < end; i += 4 * team) {
        uint32_t word = 0;
        if (any && i < n) {
            float v[4];
            four_before(v, x + i, n - i, p.fours);
            DQ_UNROLL
            for (int k = 0; k < 4; k++) {
                const int32_t c = dq_f32_s8(dq_div_rn(v[k], scale));
                word |= ((uint32_t)c & 255u) << (8 * k);
                sum += c;
            }
        }
        *(uint32_t *)(code + i) = word;
    }
    if (!p.sum) return;
    sum = team_sum<WIDE>(sum);
    if (me == 0) p.sum[g * p.scale_pitch + row] = sum;
}

/* ---- launches */
cudaError_t dq_linear_widen(void *dst, bool bf16, const dq_cuda_weight *w, int64_t n0, int64_t n,
                            cudaStream_t s)
{
    const bool packed = w->kind == DQ_STORED_PACKED;
    const bool eights = w->cols % 8 == 0 && (!packed || w->groups == 1 || w->group % 8 == 0);
    if (n == 0) return cudaSuccess;
    if (bf16)
        DQ_LAUNCH(widen<true>, dim3((unsigned)n), THREADS, 0, s, dst, *w, n0, eights);
    else
        DQ_LAUNCH(widen<false>, dim3((unsigned)n), THREADS, 0, s, dst, *w, n0, eights);
    return cudaGetLastError();
}

cudaError_t dq_linear_bf16(uint16_t *dst, const float *src, int64_t n, cudaStream_t s)
{
    const bool whole = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0;
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(to_bf16, dim3(blocks_for((n + 7) / 8)), THREADS, 0, s, dst, src, n, whole);
    return cudaGetLastError();
}

cudaError_t dq_linear_differ(int32_t *differs, const float *x, int64_t ld, const float *row,
                             int64_t m, int64_t n, cudaStream_t s)
{
    if (m == 0) return cudaSuccess;
    DQ_LAUNCH(rows_differ, dim3((unsigned)m), THREADS, 0, s, differs, x, ld, row, (int)n);
    return cudaGetLastError();
}

cudaError_t dq_linear_bias(float *x, const float *bias, int64_t rows, int64_t cols, cudaStream_t s)
{
    const int64_t n = rows * cols;
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(add_bias, dim3(blocks_for(n)), THREADS, 0, s, x, bias, n, cols);
    return cudaGetLastError();
}

int64_t dq_linear_scale_pitch(int64_t rows)
{
    return (rows + 3) / 4 * 4;
}

cudaError_t dq_linear_round(int8_t *code, float *scale, int32_t *sum, const float *x, int64_t rows,
                            const dq_cuda_weight *w, cudaStream_t s)
{
    const int64_t teams = rows * w->groups;
    rounding p = {};
    p.code = code;
    p.scale = scale;
    p.sum = sum;
    p.x = x;
    p.rows = rows;
    p.code_pitch = dq_linear_code_pitch(w);
    p.scale_pitch = dq_linear_scale_pitch(rows);
    p.cols = (int)w->cols;
    p.group = (int)w->group;
    p.group_codes = (int)w->group_codes;
    p.groups = (int)w->groups;
    p.fours = (uintptr_t)x % 16 == 0 && w->cols % 4 == 0 && (w->groups == 1 || w->group % 4 == 0);
    if (teams == 0) return cudaSuccess;
    if (w->group > 512)
        DQ_LAUNCH(round_rows<true>, dim3((unsigned)teams), THREADS, 0, s, p);
    else
        DQ_LAUNCH(round_rows<false>, dim3((unsigned)((teams * DQ_WARP + THREADS - 1) / THREADS)),
                  THREADS, 0, s, p);
    return cudaGetLastError();
}

/* ---- packed products */
/* Products of 8-bit activations with packed weights, in integers on tensor cores.
 *
 * A block makes BM x BN results in stages of 128 codes along k, copied asynchronously while the
 * stage before is multiplied. Each stage's weights are unpacked once, to bytes in shared memory.
 * Rows there are 16 bytes longer than a stage, so that eight of them lie in different banks.
 *
 * Sums inside a group are exact in 32 bits. At a group's end they become total += (float)sum *
 * (scale of x * scale of w), in the order of the groups and each step rounded, as the CPU does bit
 * for bit. Codes are multiplied less 2^(b-1); where a group has a zero point z, (2^(b-1) - z) times
 * the sum of its activations' codes is added. */

enum {
    STAGE = 128,             /* codes of k per stage: whole cells of 16 bytes at every width */
    STEP = 32,               /* codes of k per matrix instruction */
    STEPS = STAGE / STEP,    /* per stage; a group ends after a step */
    PITCH = STAGE + 16,      /* bytes of a row of codes in shared memory */
    CELL = 16,               /* bytes per copy */
    ROW_CELLS = STAGE / CELL /* of a row of activations */
};
static_assert((int)DQ_GROUP_STEP == (int)STEP, "groups are padded to the step of the product");

/* BM x BN: tile; WM x WN: warps in it; STAGES: on their way or in use; ZERO: with zero points. */
template <int BITS_, int BM_, int BN_, int WM_, int WN_, int STAGES_, bool ZERO_> struct shape {
    static const bool ZERO = ZERO_;
    static const int BITS = BITS_, BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static const int THREADS = DQ_WARP * WM * WN;
    static const int MT = BM / WM / 16, NT = BN / WN / 8; /* instructions per warp and step */
    /* Bytes of a stage: activations, packed weights, scales of both (each step may end a group). */
    static const int A_BYTES = BM * PITCH, W_BYTES = BN * CELL * BITS;
    static const int X_SCALES = STEPS * BM * 4, W_SCALES = STEPS * BN * 4;
    static const int STAGE_BYTES = A_BYTES + W_BYTES + X_SCALES + W_SCALES;
    static const int SMEM = STAGES * STAGE_BYTES + BN * PITCH; /* and the unpacked weights */
    /* With zero points, after all that, for each stage: sums of activations, and zero points. */
    static const int X_SUMS = STEPS * BM * 4, ZERO_BYTES = X_SUMS + STEPS * BN;
};

struct product {
    float *dst;
    const int8_t *code;
    const float *scale, *bias;
    const int32_t *sum; /* with zero points */
    int64_t rows, code_pitch, scale_pitch;
    dq_cuda_weight w;
    int stages;      /* along k */
    int group_steps; /* steps per group */
};

/* ---- a stage */
/* The group that ends with a step of the stage; -1: none does. */
DQ_DEVICE int group_ending(const product &p, int stage, int k)
{
    const int step = stage * STEPS + k, group = step / p.group_steps;
    return (step + 1) % p.group_steps == 0 && group < p.w.groups ? group : -1;
}

/* Scales of the groups that end in the stage's steps: [STEPS][BM] f32, [STEPS][BN] as stored. */
template <class S>
DQ_DEVICE void copy_scales(unsigned char *to, const product &p, int stage, int64_t m0, int64_t n0)
{
    const int w_size = p.w.scale_f16 ? 2 : 4, w_cells = S::BN * w_size / CELL;
    const int x_cells = S::BM * 4 / CELL, cells = x_cells + w_cells;
    for (int k = 0; k < STEPS; k++) {
        const int group = group_ending(p, stage, k);
        if (group < 0) continue;
        for (int i = (int)dq_thread(); i < cells; i += S::THREADS) {
            if (i < x_cells) {
                const int64_t row = m0 + 4 * i;
                const float *from = p.scale + group * p.scale_pitch;
                const bool there = row < p.scale_pitch;
                dq_cp_async16_zfill(to + (k * S::BM + 4 * i) * 4, there ? from + row : from,
                                    there ? CELL : 0);
            } else {
                const int at = (i - x_cells) * CELL / w_size;
                const unsigned char *from =
                    (const unsigned char *)p.w.scale + group * p.w.scale_pitch * w_size;
                const bool there = n0 + at < p.w.scale_pitch;
                dq_cp_async16_zfill(to + S::X_SCALES + (k * S::BN + at) * w_size,
                                    there ? from + (n0 + at) * w_size : from, there ? CELL : 0);
            }
        }
    }
}

/* The same for what zero points want: [STEPS][BM] sums, [STEPS][BN] zero points. */
template <class S>
DQ_DEVICE void copy_zeros(unsigned char *to, const product &p, int stage, int64_t m0, int64_t n0)
{
    const int x_cells = S::BM * 4 / CELL, each = x_cells + S::BN / CELL;
    DQ_LOOP
    for (int i = (int)dq_thread(); i < STEPS * each; i += S::THREADS) {
        const int k = i / each, cell = i % each, group = group_ending(p, stage, k);
        if (group < 0) continue;
        const bool of_x = cell < x_cells;
        const int at = of_x ? 4 * cell : (cell - x_cells) * CELL;
        const unsigned char *from = of_x ? (const unsigned char *)(p.sum + group * p.scale_pitch)
                                         : p.w.zero + group * p.w.zero_pitch;
        const bool there = of_x ? m0 + at < p.scale_pitch : n0 + at < p.w.zero_pitch;
        if (there) from += of_x ? (m0 + at) * 4 : n0 + at;
        dq_cp_async16_zfill(to + (of_x ? (k * S::BM + at) * 4 : S::X_SUMS + k * S::BN + at), from,
                            there ? CELL : 0);
    }
}

/* Starts the copies of one stage, zero beyond the edges; always closes a group of copies. */
template <class S>
DQ_DEVICE void copy_stage(unsigned char *smem, const product &p, int stage, int64_t m0, int64_t n0)
{
    unsigned char *to = smem + stage % S::STAGES * S::STAGE_BYTES;
    if (stage < p.stages) {
        DQ_UNROLL
        for (int i = 0; i < S::BM * ROW_CELLS; i += S::THREADS) {
            const int at = i + (int)dq_thread(), r = at / ROW_CELLS, c = at % ROW_CELLS;
            if (S::BM * ROW_CELLS % S::THREADS != 0 && r >= S::BM) break;
            const bool there = m0 + r < p.rows;
            const int8_t *from = p.code + (there ? m0 + r : 0) * p.code_pitch + stage * STAGE;
            dq_cp_async16_zfill(to + r * PITCH + c * CELL, from + c * CELL, there ? CELL : 0);
        }
        DQ_UNROLL
        for (int i = 0; i < S::BN * S::BITS; i += S::THREADS) {
            const int at = i + (int)dq_thread(), r = at / S::BITS, c = at % S::BITS;
            if (S::BN * S::BITS % S::THREADS != 0 && r >= S::BN) break;
            const int64_t byte = ((int64_t)stage * S::BITS + c) * CELL;
            const bool there = n0 + r < p.w.rows && byte < p.w.pitch;
            const unsigned char *from = (const unsigned char *)p.w.data;
            if (there) from += (n0 + r) * p.w.pitch + byte;
            dq_cp_async16_zfill(to + S::A_BYTES + at * CELL, from, there ? CELL : 0);
        }
        copy_scales<S>(to + S::A_BYTES + S::W_BYTES, p, stage, m0, n0);
        if (S::ZERO)
            copy_zeros<S>(smem + S::SMEM + stage % S::STAGES * S::ZERO_BYTES, p, stage, m0, n0);
    }
    dq_cp_async_commit();
}

/* Four codes, the lowest of t, as signed bytes; the offset is subtracted with the high bits set, so
 * that no byte borrows. */
template <int BITS> DQ_DEVICE uint32_t signed_bytes(uint32_t t)
{
    const uint32_t pair = (uint32_t)((1ull << (2 * BITS)) - 1), one = ((1u << BITS) - 1) * 0x10001u;
    const uint32_t x = (t & pair) | (t >> (2 * BITS) & pair) << 16;
    const uint32_t y = (x & one) | (x & one << BITS) << (8 - BITS);
    if (BITS == 8) return y ^ 0x80808080u;
    return ((y | 0x80808080u) - (1u << (BITS - 1)) * 0x01010101u) ^ 0x80808080u;
}

/* 32 codes at a time from the packed stage into rows of PITCH bytes. */
template <class S> DQ_DEVICE void unpack_stage(unsigned char *to, const unsigned char *packed)
{
    DQ_UNROLL
    for (int i = 0; i < S::BN * STEPS; i += S::THREADS) {
        const int at = i + (int)dq_thread(), row = at / STEPS, step = at % STEPS;
        uint32_t word[S::BITS], out[8];
        if (S::BITS % 4 == 0) {
            DQ_UNROLL
            for (int k = 0; k < S::BITS; k += 4) {
                const dq_u4 v = dq_load16(packed + (at * S::BITS + k) * 4);
                word[k] = v.x, word[k + 1] = v.y, word[k + 2] = v.z, word[k + 3] = v.w;
            }
        } else {
            DQ_UNROLL
            for (int k = 0; k < S::BITS; k++)
                word[k] = ((const uint32_t *)packed)[at * S::BITS + k];
        }
        DQ_UNROLL
        for (int j = 0; j < 8; j++) {
            const int bit = 4 * S::BITS * j, k = bit / 32, shift = bit % 32;
            uint32_t t = word[k] >> shift;
            if (shift + 4 * S::BITS > 32) t |= word[(k + 1) % S::BITS] << (32 - shift) % 32;
            out[j] = signed_bytes<S::BITS>(t);
        }
        unsigned char *line = to + row * PITCH + step * STEP;
        dq_store16(line, dq_u4{out[0], out[1], out[2], out[3]});
        dq_store16(line + CELL, dq_u4{out[4], out[5], out[6], out[7]});
    }
}

/* ---- the product */
/* Sum of the current group, and total of those before, of a warp's part of the tile. */
template <class S> struct sums {
    int32_t d[S::MT][S::NT][4];
    float total[S::MT][S::NT][4];
};

/* Adds one step: a and w point at the warp's rows and columns, at the step's codes. */
template <class S>
DQ_DEVICE void multiply_step(sums<S> &t, const unsigned char *a, const unsigned char *w)
{
    const int lane = (int)dq_lane();
    uint32_t fa[S::MT][4], fb[S::NT][2];
    DQ_UNROLL
    for (int i = 0; i < S::MT; i++)
        dq_ldmatrix_x4(fa[i], a + (16 * i + lane % 16) * PITCH + 16 * (lane / 16));
    if (S::NT % 2 == 0) {
        DQ_UNROLL
        for (int j = 0; j < S::NT; j += 2) {
            uint32_t both[4];
            dq_ldmatrix_x4(both,
                           w + (8 * j + 8 * (lane / 16) + lane % 8) * PITCH + 16 * (lane / 8 % 2));
            fb[j][0] = both[0], fb[j][1] = both[1];
            fb[(j + 1) % S::NT][0] = both[2], fb[(j + 1) % S::NT][1] = both[3];
        }
    } else {
        DQ_UNROLL
        for (int j = 0; j < S::NT; j++)
            dq_ldmatrix_x2(fb[j], w + (8 * j + lane % 8) * PITCH + 16 * (lane / 8 % 2));
    }
    DQ_UNROLL
    for (int i = 0; i < S::MT; i++) {
        DQ_UNROLL
        for (int j = 0; j < S::NT; j++) dq_mma_s8s8(t.d[i][j], fa[i], fb[j]);
    }
}

/* Adds a group's sums to the totals; x and w point at scales of the warp's rows and columns. */
template <class S>
DQ_DEVICE void end_group(sums<S> &t, const float *x, const unsigned char *w, int column, bool f16)
{
    const int lane = (int)dq_lane();
    DQ_UNROLL
    for (int j = 0; j < S::NT; j++) {
        DQ_UNROLL
        for (int e = 0; e < 2; e++) {
            const int c = column + 8 * j + 2 * (lane % 4) + e;
            const float ws = f16 ? dq_f16_f32(((const uint16_t *)w)[c]) : ((const float *)w)[c];
            DQ_UNROLL
            for (int i = 0; i < S::MT; i++) {
                DQ_UNROLL
                for (int h = 0; h < 2; h++) {
                    const float s = dq_mul_rn(x[16 * i + lane / 4 + 8 * h], ws);
                    float &sum = t.total[i][j][2 * h + e];
                    sum = dq_add_rn(sum, dq_mul_rn(dq_s32_f32(t.d[i][j][2 * h + e]), s));
                    t.d[i][j][2 * h + e] = 0;
                }
            }
        }
    }
}

template <class S>
DQ_DEVICE void store_tile(const sums<S> &t, const product &p, int64_t row0, int64_t col0)
{
    const int lane = (int)dq_lane();
    DQ_UNROLL
    for (int i = 0; i < S::MT; i++) {
        DQ_UNROLL
        for (int j = 0; j < S::NT; j++) {
            DQ_UNROLL
            for (int e = 0; e < 4; e++) {
                const int64_t r = row0 + 16 * i + lane / 4 + 8 * (e / 2);
                const int64_t c = col0 + 8 * j + 2 * (lane % 4) + e % 2;
                if (r >= p.rows || c >= p.w.rows) continue;
                const float y = t.total[i][j][e];
                p.dst[r * p.w.rows + c] = p.bias ? dq_add_rn(y, p.bias[c]) : y;
            }
        }
    }
}

/* Adds zero points before that; sums of rows after the last are arbitrary, and are never stored. */
template <class S>
DQ_DEVICE void shift_group(sums<S> &t, const int32_t *x, const unsigned char *zeros, int column)
{
    const int lane = (int)dq_lane();
    DQ_UNROLL
    for (int j = 0; j < S::NT; j++) {
        DQ_UNROLL
        for (int e = 0; e < 2; e++) {
            const int32_t shift =
                (1 << (S::BITS - 1)) - (int32_t)zeros[column + 8 * j + 2 * (lane % 4) + e];
            DQ_UNROLL
            for (int i = 0; i < S::MT; i++) {
                DQ_UNROLL
                for (int h = 0; h < 2; h++) {
                    const uint32_t off = (uint32_t)shift * (uint32_t)x[16 * i + lane / 4 + 8 * h];
                    t.d[i][j][2 * h + e] = (int32_t)((uint32_t)t.d[i][j][2 * h + e] + off);
                }
            }
        }
    }
}

template <class S> DQ_KERNEL(S::THREADS) multiply(product p)
{
    DQ_SHARED_DYNAMIC(smem);
    unsigned char *const unpacked = smem + S::STAGES * S::STAGE_BYTES;
    const int64_t m0 = (int64_t)dq_block_x() * S::BM, n0 = (int64_t)dq_block_y() * S::BN;
    const int warp_row = (int)dq_warp() / S::WN * (S::BM / S::WM);
    const int warp_col = (int)dq_warp() % S::WN * (S::BN / S::WN);
    int left = p.group_steps; /* of the current group */
    int group = 0;
    sums<S> t = {};

    for (int i = 0; i < S::STAGES - 1; i++) copy_stage<S>(smem, p, i, m0, n0);
    for (int i = 0; i < p.stages; i++) {
        const unsigned char *a = smem + i % S::STAGES * S::STAGE_BYTES, *w = a + S::A_BYTES;
        DQ_CP_ASYNC_WAIT(S::STAGES - 2, packed_wait);
        DQ_SYNC(packed_stage); /* stage i is there for all, and stage i - 1 has been read by all */
        copy_stage<S>(smem, p, i + S::STAGES - 1, m0, n0);
        unpack_stage<S>(unpacked, w);
        DQ_SYNC(packed_weights); /* the weights are unpacked */
        DQ_UNROLL
        for (int k = 0; k < STEPS; k++) {
            multiply_step<S>(t, a + warp_row * PITCH + k * STEP,
                             unpacked + warp_col * PITCH + k * STEP);
            if (--left > 0) continue;
            left = p.group_steps;
            if (group++ >= p.w.groups)
                continue; /* fills up the last stage: no scales were copied */
            const float *x_scale = (const float *)(w + S::W_BYTES) + k * S::BM + warp_row;
            const unsigned char *w_scale =
                w + S::W_BYTES + S::X_SCALES + k * S::BN * (p.w.scale_f16 ? 2 : 4);
            if (S::ZERO) {
                const unsigned char *zero = smem + S::SMEM + i % S::STAGES * S::ZERO_BYTES;
                shift_group<S>(t, (const int32_t *)zero + k * S::BM + warp_row,
                               zero + S::X_SUMS + k * S::BN, warp_col);
            }
            end_group<S>(t, x_scale, w_scale, warp_col, p.w.scale_f16 != 0);
        }
    }
    store_tile<S>(t, p, m0 + warp_row, n0 + warp_col);
}

/* ---- launches */
template <class S> static cudaError_t launch(const product &p, cudaStream_t s)
{
    const int smem = S::SMEM + (S::ZERO ? S::STAGES * S::ZERO_BYTES : 0);
    const dim3 grid((unsigned)((p.rows + S::BM - 1) / S::BM),
                    (unsigned)((p.w.rows + S::BN - 1) / S::BN));
    const cudaError_t e = DQ_ALLOW_SMEM(multiply<S>, smem);
    if (e != cudaSuccess) return e;
    DQ_LAUNCH(multiply<S>, grid, S::THREADS, smem, s, p);
    return cudaGetLastError();
}

/* Few rows have narrow tiles, so that all multiprocessors fetch, and more stages in flight. */
template <int BITS, bool ZERO> static cudaError_t launch_form(const product &p, cudaStream_t s)
{
    if (p.rows <= 16) return launch<shape<BITS, 16, 32, 1, 4, 4, ZERO>>(p, s);
    return launch<shape<BITS, 128, 64, 2, 2, 2, ZERO>>(p, s);
}

template <int BITS> static cudaError_t launch_width(const product &p, cudaStream_t s)
{
    return p.w.zero ? launch_form<BITS, true>(p, s) : launch_form<BITS, false>(p, s);
}

int64_t dq_linear_code_pitch(const dq_cuda_weight *w)
{
    return (w->groups * w->group_codes + STAGE - 1) / STAGE * STAGE;
}

cudaError_t dq_linear_packed(float *dst, const int8_t *code, const float *scale, const int32_t *sum,
                             int64_t rows, const dq_cuda_weight *w, const float *bias,
                             cudaStream_t s)
{
    product p = {};
    p.dst = dst;
    p.code = code;
    p.scale = scale;
    p.sum = sum;
    p.bias = bias;
    p.rows = rows;
    p.code_pitch = dq_linear_code_pitch(w);
    p.scale_pitch = dq_linear_scale_pitch(rows);
    p.w = *w;
    p.stages = (int)(p.code_pitch / STAGE);
    p.group_steps = (int)(w->group_codes / STEP);
    if (rows == 0 || w->rows == 0) return cudaSuccess;
    switch (w->bits) {
    case 2: return launch_width<2>(p, s);
    case 3: return launch_width<3>(p, s);
    case 4: return launch_width<4>(p, s);
    case 5: return launch_width<5>(p, s);
    case 6: return launch_width<6>(p, s);
    case 7: return launch_width<7>(p, s);
    case 8: return launch_width<8>(p, s);
    }
    return cudaErrorInvalidValue;
}
