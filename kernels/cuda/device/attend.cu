/* attend: attention over operands by mma.sync on any device, and what attend_hopper.cu needs of it,
 * too. tests/simt/defects.tsv quotes masks.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend.cuh"

#include "kernels/cuda/device/stored.cuh"

#include <string.h>

/* ---- products of a warp */
/* Operands lie in shared memory as they are in global memory; queries as keys. */

struct attend_space {
    int32_t keys, values, queries, total; /* bytes at which they begin */
};

/* Rows of a team's queries, zero where there are none. By the threads of the team. */
DQ_DEVICE void put_queries(uint8_t *to, const dq_attend_call *a, const attend_job *j, int map)
{
    const int dim = a->u.form[0].dim, cells = a->o.key_channels / 8;
    bool far = false;
    for (int i = (int)dq_thread() % TEAM; i < cells * ROWS; i += TEAM) {
        const int c = i % cells * 8, r = i / cells;
        float x[8] = {};
        if (j->w && r < j->w->n && c < dim) {
            dq_page_form f = {};
            load_plain(x, &f, plain_place{query_row(&a->u, j, map, r) + c, 0});
        }
        put_cell(to + dq_operand_key(r, c), x, &far);
    }
    if (far) dq_raise(a->beyond);
}

/* Keys of one product: of more of them registers spill. */
enum { FEW = 16 };

/* S[16][FEW] of a warp. */
template <int KD> DQ_DEVICE void multiply_keys(float s[8], const uint8_t *q, const uint8_t *k)
{
    const int lane = (int)dq_lane(), matrix = lane / 8, i = lane % 8;
    q += dq_operand_key(16 * (int)(dq_warp() % 4) + matrix % 2 * 8 + i, matrix / 2 * 8);
    k += dq_operand_key(matrix / 2 * 8 + i, matrix % 2 * 8);
    DQ_UNROLL
    for (int n = 0; n < 8; n++) s[n] = 0;
    DQ_LOOP
    for (int c = 0; c < KD; c += 16) {
        uint32_t a[4], b[4];
        dq_ldmatrix_x4(a, q + dq_operand_key(0, c));
        dq_ldmatrix_x4(b, k + dq_operand_key(0, c));
        dq_mma_f16(s, a, b);
        dq_mma_f16(s + 4, a, b + 2);
    }
}

/* o[16][DV] += P V of FEW tokens. */
template <int DV>
DQ_DEVICE void multiply_values(float o[DV / 2], const uint32_t p[4], const uint8_t *v)
{
    const int lane = (int)dq_lane();
    v += dq_operand_value(DV, lane / 8 % 2 * 8, lane / 16 * 8 + lane % 8);
    DQ_UNROLL
    for (int n = 0; n < DV / 8; n += 2) {
        uint32_t b[4];
        /* or all are loaded first, and spilled */
        if (n % 8 == 0) DQ_WARP_SYNC(attend_values_order);
        dq_ldmatrix_x4(b, v + dq_operand_value(DV, 0, 8 * n));
        dq_mma_f16(o + 4 * n, p, b);
        dq_mma_f16(o + 4 * n + 4, p, b + 2);
    }
}

DQ_DEVICE void copy(uint8_t *to, const uint8_t *from, int bytes)
{
    DQ_LOOP
    for (int i = 16 * (int)dq_thread(); i < bytes; i += 16 * (int)dq_threads())
        dq_cp_async16(to + i, from + i);
}

/* ---- attend */
/* Two teams of four warps: the maps of a unit, or two units of one map. While a step's scores are
 * made its values are on their way, and then the next one's keys. */

DQ_DEVICE int team_of(void)
{
    return (int)(dq_thread() / TEAM);
}

/* What a block knows, in shared memory: registers are scarce. */
struct attend_block {
    dq_attend_item item;
    attend_job job[2]; /* of the teams */
    int n[2];          /* rows of the teams */
    attend_rows rows[2];
};
static_assert(sizeof(attend_block) <= 3 * 1024,
              "with 96 KiB of operands all that a block of compute capability 8.6 has");
/* Whether the warp has rows. */
DQ_DEVICE bool is_busy(const attend_block *k)
{
    return 16 * (int)(dq_warp() % 4) < k->n[team_of()];
}

DQ_DEVICE void load_keys(uint8_t *to, const dq_attend_call *a, const attend_block *k, dq_step s,
                         int bytes)
{
    const uint8_t *from = a->o.page + dq_operand_page(&k->item, s) * a->o.page_bytes;
    for (int i = 0; i < a->o.head_keys && dq_step_is_there(&k->item, s); i++)
        copy(to + i * bytes, from + dq_operand_keys_at(&a->o, 0, k->job[0].key[i]), bytes);
    dq_cp_async_commit();
}

DQ_DEVICE void load_values(uint8_t *to, const dq_attend_call *a, const attend_block *k, dq_step s,
                           int bytes)
{
    const int64_t page = dq_operand_page(&k->item, s);
    if (dq_step_is_there(&k->item, s))
        copy(to, a->o.page + dq_operand_values_at(&a->o, page, k->job[0].pair), bytes);
    dq_cp_async_commit();
}

template <int KD, int DV, bool ROUND>
DQ_KERNEL_BLOCKS(2 * TEAM, 1)
attend(DQ_PARAMETER dq_attend_call a, DQ_PARAMETER attend_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(attend_block, k, [1]);
    const int i_out = (int)dq_block_x() % a.u.max_out, key_bytes = KEYS * KD * 2;
    const dq_attend_item item = a.item[(int)dq_block_x() / a.u.max_out];
    if (i_out >= heads_of(a.u.o_first, a.u.unit[item.unit].group)) return;
    const int team = team_of(), map = a.u.n_maps == 2 ? team : 0;
    if (dq_thread() % TEAM == 0) {
        k->job[team] = job_of(&a, &item, i_out, a.u.n_maps == 2 ? 0 : team);
        k->n[team] = k->job[team].w ? k->job[team].w->n : 0;
        if (team == 0) k->item = item;
    }
    DQ_SYNC(attend_job_there);
    const attend_job *const j = &k->job[team];
    note_rows(&k->rows[team], &a.u, j->w, false);
    if (ROUND) note_grids(&k->rows[team], &a, j, map);
    attend_stats x = no_stats();
    float o[DV / 2] = {};
    dq_step step = dq_first_step(&k->item);
    put_queries(mem + at.queries + team * key_bytes, &a, j, map);
    load_keys(mem + at.keys, &a, k, step, key_bytes);
    load_values(mem + at.values, &a, k, step, KEYS * DV * 2);
    while (dq_step_is_there(&k->item, step)) {
        const dq_step next = dq_next_step(&k->item, step);
        DQ_CP_ASYNC_WAIT(1, attend_keys_wait);
        DQ_SYNC(attend_keys_there);
        DQ_LOOP
        for (int from = 0; from < KEYS; from += FEW) {
            float s[FEW / 2];
            uint32_t p[FEW / 4];
            if (is_busy(k))
                multiply_keys<KD>(s, mem + at.queries + team_of() * key_bytes,
                                  mem + at.keys + dq_operand_key(from, 0) +
                                      (a.o.head_keys == 2 ? team_of() * key_bytes : 0));
            if (from == KEYS - FEW) {
                DQ_SYNC(attend_keys_read);
                load_keys(mem + at.keys, &a, k, next, key_bytes);
            }
            if (is_busy(k)) {
                const attend_rows *rows = &k->rows[team_of()];
                if (softmax<ROUND, FEW / 2>(s, x, rows, step, from, a.scale)) rescale<DV / 2>(o, x);
                pack<FEW / 2>(p, s);
            }
            if (!from) {
                DQ_CP_ASYNC_WAIT(0, attend_values_wait);
                DQ_SYNC(attend_values_there);
            }
            if (is_busy(k))
                multiply_values<DV>(o, p, mem + at.values + dq_operand_value(DV, from, 0));
        }
        DQ_SYNC(attend_values_read);
        load_values(mem + at.values, &a, k, next, KEYS * DV * 2);
        step = next;
    }
    const bool two = a.u.n_maps == 2;
    end_item<DV / 2>(o, x, &a, (int)dq_block_x(), two ? 0 : team_of(), two ? team_of() : 0,
                     (float *)mem);
}

/* ---- scores */
/* A team for each query head of a unit, in an item's pages. */

/* False: there is none. For all threads; a barrier. */
DQ_DEVICE bool open_query(const dq_attend_call *a, attend_block *k, bool all)
{
    const int i_q = (int)dq_block_x() % a->u.max_q;
    dq_attend_item item = a->item[(int)dq_block_x() / a->u.max_q];
    const dq_attention_unit *w = a->u.unit + item.unit + dq_block_y();
    if ((int)dq_block_y() >= item.n || i_q >= heads_of(a->u.q_first, w->group)) return false;
    if (dq_thread() == 0) {
        const dq_q_head h = a->u.q_head[a->u.q_first[w->group] + i_q];
        const int pages = (w->keys + KEYS - 1) / KEYS;
        k->job[0] = attend_job{w, 0, {i_q, i_q}, {h.head, h.head}, {h.key, h.key}, 0};
        k->n[0] = w->n;
        k->item = item;
        if (item.end > pages) k->item.end = pages;
        if (item.first < dq_first_page(w)) k->item.first = dq_first_page(w);
    }
    DQ_SYNC(scores_job_there);
    note_rows(k->rows, &a->u, w, all);
    return true;
}

/* take(i, t, S) of all that the lane's rows read: row i, key t of the list. */
template <int KD, class TAKE>
DQ_DEVICE void each_score(const dq_attend_call *a, const attend_block *k, uint8_t *mem, TAKE take)
{
    const int key_bytes = KEYS * KD * 2;
    dq_step step = dq_first_step(&k->item);
    put_queries(mem + key_bytes, a, k->job, 0);
    for (; dq_step_is_there(&k->item, step); step = dq_next_step(&k->item, step)) {
        const int64_t page = dq_operand_page(&k->item, step);
        DQ_SYNC(scores_keys_read);
        copy(mem, a->o.page + dq_operand_keys_at(&a->o, page, k->job->key[0]), key_bytes);
        dq_cp_async_commit();
        DQ_CP_ASYNC_WAIT(0, scores_wait);
        DQ_SYNC(scores_there);
        DQ_LOOP
        for (int from = 0; from < KEYS && is_busy(k); from += FEW) {
            float s[FEW / 2];
            multiply_keys<KD>(s, mem + key_bytes, mem + dq_operand_key(from, 0));
            DQ_UNROLL
            for (int i = 0; i < 2; i++) {
                const key_window w = window_of(k->rows, step, i);
                if (!has_row(k->job->w, i)) continue;
                DQ_UNROLL
                for (int n = 2 * i; n < FEW / 2; n += n % 2 ? 3 : 1) {
                    const int t = from + key_of(n);
                    if (is_in(w, t))
                        take(i, dq_page_of(step) * KEYS + t, dq_mul_rn(s[n], a->u.scale));
                }
            }
        }
    }
}

template <int KD> DQ_KERNEL(TEAM) scores(DQ_PARAMETER dq_attend_call a)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(attend_block, k, [1]);
    if (!open_query(&a, k, true)) return;
    each_score<KD>(&a, k, mem, [&](int i, int t, float s) {
        strip_of(&a.u, k->job->w, k->job->slot[0], row_of(i))[t] = s;
    });
}

/* BY_ROW: a number for each row, else for each sequence. */
template <int KD, bool BY_ROW>
DQ_KERNEL(TEAM)
absmax(DQ_PARAMETER dq_attend_call a, uint32_t *DQ_RESTRICT max)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(attend_block, k, [1]);
    if (!open_query(&a, k, false)) return;
    uint32_t most[2] = {0, 0}; /* bits of |S|, so that NaN wins */
    each_score<KD>(&a, k, mem, [&](int i, int, float s) {
        const uint32_t bits = dq_f32_bits(s) & 0x7fffffffu;
        if (bits > most[i]) most[i] = bits;
    });
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        for (unsigned o = BY_ROW ? 2 : 16; o; o /= 2) {
            const uint32_t other = dq_shfl_xor(most[i], o);
            most[i] = other > most[i] ? other : most[i];
        }
        const int64_t group = BY_ROW ? k->job->w->row + row_of(i) : k->job->w->seq;
        if (dq_lane() % (BY_ROW ? 4 : DQ_WARP) == 0 && most[i])
            dq_atomic_max(max + group * a.u.n_q + k->job->query[0], most[i]);
    }
}

/* ---- combine */
/* A block for each row and output head; parts are added in their order. */

enum { COMBINE_THREADS = 256 };

/* Maximum and sum of one map over all parts. */
DQ_DEVICE void join_parts(float *max, float *sum, const dq_attend_call *a, const dq_attend_join *k,
                          int i_out, int map, int row)
{
    const dq_attention_unit *w = a->u.unit + k->unit;
    *max = ABSENT;
    *sum = 0;
    for (int p = 0; p < k->n; p++)
        *max = dq_max(*max, share_at(a, w, k->first + p * w->n, i_out, map, row)[0]);
    for (int p = 0; p < k->n; p++) {
        const float *from = share_at(a, w, k->first + p * w->n, i_out, map, row);
        *sum = dq_fma_rn(from[1], dq_exp2_fast(dq_sub_rn(from[0], *max)), *sum);
    }
}

DQ_KERNEL(COMBINE_THREADS)
combine(DQ_PARAMETER dq_attend_call a, const dq_attend_join *DQ_RESTRICT joins)
{
    const dq_attend_join k = joins[dq_block_x()];
    const dq_attention_unit *w = a.u.unit + k.unit;
    const int row = (int)dq_block_y(), i_out = (int)dq_block_z(), c = (int)dq_thread();
    if (row >= w->n || i_out >= heads_of(a.u.o_first, w->group)) return;
    const int width = a.u.n_slabs * a.u.form[1].dim;
    const int out = a.u.o_head[a.u.o_first[w->group] + i_out].out;
    float total = 0;
    for (int m = 0; m < a.u.n_maps; m++) {
        float max, sum, part = 0;
        join_parts(&max, &sum, &a, &k, i_out, m, row);
        for (int p = 0; p < k.n && c < width; p++) {
            const float *from = share_at(&a, w, k.first + p * w->n, i_out, m, row);
            part = dq_fma_rn(from[2 + c], dq_exp2_fast(dq_sub_rn(from[0], max)), part);
        }
        const float weight = m ? -lambda_at(&a.u, w, row, out) : 1.0f;
        total = dq_add_rn(total, dq_mul_rn(part, dq_div_rn(weight, sum)));
    }
    float by = 1;
    if (a.f.norm) {
        double squares[1] = {c < width ? (double)total * (double)total : 0};
        dq_reduce_block_sum<1, COMBINE_THREADS>(squares);
        const float mean = (float)(squares[0] / width);
        by = dq_div_rn(1.0f, dq_sqrt_rn(dq_add_rn(mean, a.f.norm_eps)));
    }
    if (c >= width) return;
    const float result = finished(&a.f, total, by, c);
    a.f.out[(w->row + row) * a.f.out_cols + (int64_t)out * width + c] =
        dq_sees(&a.u, w, row) ? result : 0.0f;
}

/* ---- launchers */

static int padded(int dim)
{
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

dq_operands dq_attend_operands(int head_dim, int n_slabs, int n_keys, int n_values, int head_keys)
{
    const int channels = padded(head_dim);
    dq_operands o = {NULL, 0, n_keys, n_values, head_keys, channels, n_slabs * channels, false};
    o.page_bytes = (int64_t)n_keys * dq_operand_key_bytes(o.key_channels) +
                   (int64_t)n_values * dq_operand_key_bytes(o.value_channels);
    return o;
}

int64_t dq_attend_share_floats(const dq_attend_call *a)
{
    return dq_share_floats(a) * a->u.n_maps * a->u.max_out;
}

bool dq_attend_takes_int8(const dq_page_form *keys)
{
    return dq_attend_has_hopper && keys->dim <= DQ_HOPPER_DIM && keys->bits > 4 &&
           keys->bits <= 8 && keys->n_scales == 1 && !keys->has_lows && !keys->set_numbers;
}

static const char *dims_lack(const dq_page_form *f)
{
    if (f->dim % 16 || f->dim < 16 || f->dim > 256)
        return "head_dim is not a multiple of 16 up to 256";
    if (f->cols != f->dim || f->stride != f->dim) return "channels are padded";
    if (f->bits < 16 && f->n_scales > 1 && f->group % 16)
        return "groups of scales are no multiples of 16";
    return NULL;
}

static attend_space space_of(const dq_attention_units *u)
{
    const int channels = padded(u->form[0].dim), key_bytes = dq_operand_key_bytes(channels);
    attend_space at = {};
    at.values = u->n_maps * key_bytes;
    at.queries = at.values + dq_operand_key_bytes(u->n_slabs * channels);
    at.total = at.queries + 2 * key_bytes;
    return at;
}

const char *dq_attend_lacks(const dq_attention_units *u, const dq_attention_finish *f, int round,
                            size_t smem)
{
    const char *s = dims_lack(&u->form[0]);
    if (!s) s = dims_lack(&u->form[1]);
    if (s) return s;
    if (u->form[0].dim != u->form[1].dim) return "keys and values differ in width";
    if (f && f->out_cols % 2) return "the output's rows have an odd length";
    if (f && f->rotated && u->form[1].dim & (u->form[1].dim - 1))
        return "rotation of such a head_dim";
    if (u->n_maps > 2 || u->n_slabs > 2) return "more than two maps or slabs of values";
    if (u->n_slabs == 2 && u->form[0].dim > 128) return "two slabs of values of such a head_dim";
    if ((size_t)space_of(u).total + sizeof(attend_block) > smem)
        return "shared memory of this GPU is too small for such a head_dim";
    if (round == DQ_ROUND_TILE) return "rounding of logits by tiles";
    return NULL;
}

#define LAUNCH(kernel, grid, threads, smem, s, ...)                                                \
    do {                                                                                           \
        const cudaError_t allowed = DQ_ALLOW_SMEM(kernel, smem);                                   \
        if (allowed != cudaSuccess) return allowed;                                                \
        DQ_LAUNCH(kernel, grid, threads, (unsigned)(smem), s, __VA_ARGS__);                        \
        return cudaGetLastError();                                                                 \
    } while (0)

cudaError_t dq_attend_scores(dq_attend_call a, cudaStream_t s)
{
    const dim3 grid((unsigned)(a.n_items * a.u.max_q), (unsigned)a.together);
    const int smem = 2 * dq_operand_key_bytes(a.o.key_channels);
    if (a.n_items == 0) return cudaSuccess;
#if defined(DQ_HAVE_HOPPER) || defined(DQ_SIMT)
    if (a.o.int8) return dq_scores_int8(a, s);
#endif
    if (a.o.key_channels == 64) LAUNCH(scores<64>, grid, TEAM, smem, s, a);
    if (a.o.key_channels == 128) LAUNCH(scores<128>, grid, TEAM, smem, s, a);
    LAUNCH(scores<256>, grid, TEAM, smem, s, a);
}

template <int KD>
static cudaError_t launch_absmax(const dq_attend_call &a, uint32_t *max, bool by_row,
                                 cudaStream_t s)
{
    const dim3 grid((unsigned)(a.n_items * a.u.max_q), (unsigned)a.together);
    const int smem = 2 * dq_operand_key_bytes(KD);
    if (by_row) LAUNCH((absmax<KD, true>), grid, TEAM, smem, s, a, max);
    LAUNCH((absmax<KD, false>), grid, TEAM, smem, s, a, max);
}

static bool is_for_hopper(const dq_attend_call &a)
{
    return dq_attend_has_hopper && a.o.key_channels <= DQ_HOPPER_DIM;
}

cudaError_t dq_attend_absmax(dq_attend_call a, uint32_t *max, bool by_row, bool hopper,
                             cudaStream_t s)
{
    if (a.n_items == 0) return cudaSuccess;
    if (hopper && !is_for_hopper(a)) return cudaErrorInvalidValue;
#if defined(DQ_HAVE_HOPPER) || defined(DQ_SIMT)
    if (a.o.int8) return dq_absmax_int8(a, max, by_row, s);
    if (hopper) return dq_absmax_hopper(a, max, by_row, s);
#endif
    if (a.o.key_channels == 64) return launch_absmax<64>(a, max, by_row, s);
    if (a.o.key_channels == 128) return launch_absmax<128>(a, max, by_row, s);
    return launch_absmax<256>(a, max, by_row, s);
}

template <bool ROUND> static cudaError_t launch_attend(const dq_attend_call &a, cudaStream_t s)
{
    const attend_space at = space_of(&a.u);
    const dim3 blocks((unsigned)(a.n_items * a.u.max_out));
    const bool two = a.u.n_slabs == 2;
    if (a.o.key_channels == 64 && !two)
        LAUNCH((attend<64, 64, ROUND>), blocks, 2 * TEAM, at.total, s, a, at);
    if (a.o.key_channels == 64)
        LAUNCH((attend<64, 128, ROUND>), blocks, 2 * TEAM, at.total, s, a, at);
    if (a.o.key_channels == 128 && !two)
        LAUNCH((attend<128, 128, ROUND>), blocks, 2 * TEAM, at.total, s, a, at);
    if (two) LAUNCH((attend<128, 256, ROUND>), blocks, 2 * TEAM, at.total, s, a, at);
    LAUNCH((attend<256, 256, ROUND>), blocks, 2 * TEAM, at.total, s, a, at);
}

cudaError_t dq_attend_run(dq_attend_call a, bool hopper, cudaStream_t s)
{
    a.scale = a.u.scale * LOG2E;
    if (a.n_items == 0) return cudaSuccess;
    if (hopper && !is_for_hopper(a)) return cudaErrorInvalidValue;
#if defined(DQ_HAVE_HOPPER) || defined(DQ_SIMT)
    if (a.o.int8) return dq_attend_int8(a, s);
    if (hopper) return dq_attend_hopper(a, s);
#endif
    return a.logits.round == DQ_ROUND_NOT ? launch_attend<false>(a, s) : launch_attend<true>(a, s);
}

cudaError_t dq_attend_combine(dq_attend_call a, const dq_attend_join *joins, int n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(combine, dim3((unsigned)n, (unsigned)a.u.max_rows, (unsigned)a.u.max_out),
              COMBINE_THREADS, 0, s, a, joins);
    return cudaGetLastError();
}

/* ---- plan */
/* On the host. */

static int pages_of(int keys)
{
    return (keys + KEYS - 1) / KEYS;
}

/* That rows of a unit see. */
static int unit_pages(const dq_attention_unit *w)
{
    return pages_of(w->keys) - dq_first_page(w);
}

/* Units of the list that begins at unit[0]. */
static int list_units(const dq_attention_unit *unit, int n)
{
    int k = 1;
    while (k < n && unit[k].seq == unit[0].seq && unit[k].group == unit[0].group) k++;
    return k;
}

int dq_attend_range(int pages)
{
    return pages <= 64 ? 4 : pages <= 256 ? 8 : 32;
}

/* Parts of a unit's pages; 0: not divided. */
static int parts_of(const dq_attention_unit *w)
{
    const int pages = unit_pages(w);
    const int range = dq_attend_range(pages);
    if (!w->few || pages <= range) return 0;
    return (pages + range - 1) / range;
}

int64_t dq_attend_items(const dq_attention_unit *unit, int n)
{
    int64_t items = 0;
    for (int i = 0; i < n; i++) {
        const int parts = parts_of(unit + i);
        items += parts ? parts : 1;
    }
    return items;
}

int64_t dq_attend_share_rows(const dq_attention_unit *unit, int n)
{
    int64_t rows = 0;
    for (int i = 0; i < n; i++) rows += (int64_t)parts_of(unit + i) * unit[i].n;
    return rows;
}

/* What rows of units that follow each other in one list read. */
static void read_ends(int *coded_end, int *plain_from, const dq_page_form form[2],
                      const dq_attention_unit *w, int n)
{
    *coded_end = 0;
    *plain_from = w[n - 1].keys;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            if (k ? w[i].split == w[i].n : w[i].split == 0) continue;
            const int coded = dq_coded_of(form, w + i, k);
            if (coded > *coded_end) *coded_end = coded;
            if (coded < *plain_from) *plain_from = coded;
        }
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static dq_unfold_list list_of(const dq_page_form form[2], const dq_attention_unit *unit, int n)
{
    dq_unfold_list l = {};
    l.page = unit->page;
    l.group = unit->group;
    l.keys = unit[n - 1].keys;
    l.first = dq_first_page(unit);
    l.end = pages_of(l.keys);
    read_ends(&l.coded_end, &l.plain_from, form, unit, n);
    const int from = l.first * KEYS; /* nothing is read before */
    l.uncoded = larger(from, unit->uncoded < l.keys ? unit->uncoded : l.keys);
    l.coded_end = larger(from, l.coded_end);
    l.plain_from = larger(from, l.plain_from);
    return l;
}

static int list_pages(const dq_unfold_list *l)
{
    return pages_of(l->coded_end) + pages_of(l->keys) - l->plain_from / KEYS +
           pages_of(l->uncoded) - 2 * l->first;
}

int64_t dq_attend_list_pages(const dq_page_form form[2], const dq_attention_unit *unit, int n,
                             int *n_units)
{
    *n_units = list_units(unit, n);
    const dq_unfold_list l = list_of(form, unit, *n_units);
    return list_pages(&l);
}

/* Pages of the item's run: none where a table, which is on the device, says what rows see. */
static int run_of(const dq_attend_item *item, const dq_attention_unit *unit)
{
    int end = item->end;
    if (item->front < item->coded && item->plain < end) end = item->plain;
    for (int i = 0; i < item->n; i++) {
        const int64_t least = unit[i].visible < 0 ? -unit[i].visible - 1 : 0; /* of its rows */
        if (least / KEYS < end) end = (int)(least / KEYS);
    }
    return larger(end - item->front, 0);
}

/* Counts items by their pages, then puts each where its count says. */
static void place_item(dq_attend_plan *p, const dq_page_form form[2], const dq_attention_unit *unit,
                       dq_attend_item *item, int32_t *count)
{
    int32_t *at = &count[p->max_pages - (item->end - item->first)];
    if (p->item) {
        int coded_end, plain_from;
        read_ends(&coded_end, &plain_from, form, unit + item->unit, item->n);
        item->coded = pages_of(coded_end);
        item->plain = plain_from / KEYS;
        const int front = pages_of(unit[item->unit + item->n - 1].hidden[1]);
        item->front = larger(item->first, front < item->end ? front : item->end);
        item->run = run_of(item, unit + item->unit);
        p->item[*at] = *item;
    }
    ++*at;
}

static void list_items(dq_attend_plan *p, const dq_page_form form[2], const dq_unfold_list *l,
                       const dq_attention_unit *unit, int first, int n, int together,
                       int32_t *count)
{
    for (int i = first, step; i < first + n; i += step) {
        const int from = dq_first_page(unit + i), pages = unit_pages(unit + i);
        const int parts = parts_of(unit + i);
        dq_attend_item item = {i, 1, from, from + pages, 0, 0, 0, 0, l->uncoded, -1, {0}};
        memcpy(item.at, l->at, sizeof item.at);
        step = 1;
        if (parts || !pages) p->join[p->n_joins++] = dq_attend_join{i, p->share_rows, parts};
        for (int k = 0; k < parts; k++) {
            item.part = p->share_rows;
            p->share_rows += unit[i].n;
            item.first = from + k * dq_attend_range(pages);
            item.end = k + 1 < parts ? item.first + dq_attend_range(pages) : from + pages;
            place_item(p, form, unit, &item, count);
        }
        if (parts || !pages) continue;
        while (step < together && i + step < first + n && !parts_of(unit + i + step)) step++;
        item.n = step;
        item.end = pages_of(unit[i + step - 1].keys);
        place_item(p, form, unit, &item, count);
    }
}

/* Fills all but what p->item NULL leaves out. */
static void walk_lists(dq_attend_plan *p, const dq_attention_units *u,
                       const dq_attention_unit *unit, int together, const dq_unfold_list *views,
                       int32_t *count)
{
    p->n_lists = p->n_joins = p->share_rows = p->unfold_pages = 0;
    p->operand_pages = 0;
    for (int i = 0, step; i < u->n; i += step) {
        step = list_units(unit + i, u->n - i);
        dq_unfold_list l = list_of(u->form, unit + i, step);
        l.at[0] = (int32_t)p->operand_pages - l.first;
        l.at[1] = l.at[0] + pages_of(l.coded_end) - l.plain_from / KEYS;
        l.at[2] = l.at[1] + pages_of(l.keys) - l.first;
        p->operand_pages += list_pages(&l);
        const int first = l.first;
        if (views) l = views[unit[i].seq * u->n_groups + unit[i].group];
        l.first = first;
        if (l.end > first) p->list[p->n_lists++] = l;
        p->unfold_pages = larger(p->unfold_pages, l.end - first);
        list_items(p, u->form, &l, unit, i, step, together, count);
    }
}

void dq_attend_plan_units(dq_attend_plan *p, const dq_attention_units *u,
                          const dq_attention_unit *unit, int together, const dq_unfold_list *views,
                          int32_t *count)
{
    dq_attend_item *const items = p->item;
    p->max_pages = 0;
    for (int i = 0; i < u->n; i++)
        if (pages_of(unit[i].keys) > p->max_pages) p->max_pages = pages_of(unit[i].keys);
    memset(count, 0, ((size_t)p->max_pages + 1) * sizeof *count);
    p->item = NULL;
    walk_lists(p, u, unit, together, views, count);
    p->n_items = 0;
    for (int k = 0; k <= p->max_pages; k++) {
        const int32_t of = count[k];
        count[k] = p->n_items;
        p->n_items += of;
    }
    p->item = items;
    walk_lists(p, u, unit, together, views, count);
}
