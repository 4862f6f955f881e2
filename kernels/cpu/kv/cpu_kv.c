/* cpu_kv: what the CPU backend does with the memory of the KV cache's pages.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/kv/cpu_kv.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static void block_copy(dq_backend *b, void *dst, const void *src, int64_t bytes)
{
    (void)b;
    memcpy(dst, src, (size_t)bytes);
}

void dq_cpu_kv_copy(const dq_kv *kv, void *to, int64_t to_step, const void *from, int64_t from_step,
                    int64_t n)
{
    const bool half = kv->dense_bytes == 2;
    const uint16_t *x = from;
    uint16_t *y = to;
    for (int64_t i = 0; half && i < n; i++) y[i * to_step] = x[i * from_step];
    for (int64_t i = 0; !half && i < n; i++)
        ((float *)to)[i * to_step] = ((const float *)from)[i * from_step];
}

static void move_sinks(dq_backend *b, const dq_kv *kv, dq_kv_page *p, int group, int side,
                       int64_t n, bool back)
{
    (void)b;
    const int64_t d = kv->map->head_dim;
    const int64_t channel = side == DQ_K ? DQ_PAGE_TOKENS : 1,
                  token = side == DQ_K ? 1 : kv->v_cols;
    for (int h = 0; h < kv->heads[group]; h++) {
        uint8_t *plain = dq_kv_plain_of(kv, p, side, h), *sinks = dq_kv_sinks_of(kv, p, side, h);
        for (int64_t i = 0; i < n; i++) {
            void *at = plain + i * token * kv->dense_bytes, *sink = sinks + i * d * kv->dense_bytes;
            if (back) dq_cpu_kv_copy(kv, at, channel, sink, 1, d);
            if (!back) dq_cpu_kv_copy(kv, sink, 1, at, channel, d);
        }
    }
}

/* Rounds n elements to kv->dense; the largest magnitude of what is finite and would not stay so, 0: all does. */
static float narrow(const dq_kv *kv, uint16_t *to, const float *from, int64_t n)
{
    const bool f16 = kv->dense == DQ_F16;
    float beyond = 0;
    for (int64_t i = 0; i < n; i++) {
        to[i] = f16 ? dq_f16_from_f32(from[i]) : dq_bf16_from_f32(from[i]);
        if ((to[i] & 0x7fffu) == (f16 ? 0x7c00u : 0x7f80u) && isfinite(from[i]))
            beyond = fmaxf(beyond, fabsf(from[i]));
    }
    return beyond;
}

/* n rows of one head into slots `at` .. of a page of two-byte elements. */
static float write_half(const dq_kv *kv, const dq_kv_page *p, int slot, int64_t at, const float *k,
                        const float *v, int64_t stride, int64_t n)
{
    enum { RUN = 64 };
    const int64_t d = kv->map->head_dim;
    uint16_t *keys = dq_kv_plain_of(kv, p, DQ_K, slot), run[RUN];
    uint16_t *values = (uint16_t *)dq_kv_plain_of(kv, p, DQ_V, slot) + at * kv->v_cols;
    float beyond = 0;
    for (int64_t i = 0; i < n; i++) {
        beyond = fmaxf(beyond, narrow(kv, values + i * kv->v_cols, v + i * stride, d));
        for (int64_t c = 0; c < d; c += RUN) {
            const int64_t m = d - c < RUN ? d - c : RUN;
            beyond = fmaxf(beyond, narrow(kv, run, k + i * stride + c, m));
            dq_cpu_kv_copy(kv, keys + c * DQ_PAGE_TOKENS + at + i, DQ_PAGE_TOKENS, run, 1, m);
        }
    }
    return beyond;
}

static void write_full(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int slot,
                       int64_t at, const float *k, const float *v, int64_t stride, int64_t n)
{
    const int64_t d = kv->map->head_dim;
    float *values = (float *)dq_kv_plain_of(kv, p, DQ_V, slot) + at * kv->v_cols;
    simd->transpose((float *)dq_kv_plain_of(kv, p, DQ_K, slot) + at, DQ_PAGE_TOKENS, k, stride, n,
                    d);
    for (int64_t i = 0; i < n; i++)
        memcpy(values + i * kv->v_cols, v + i * stride, (size_t)d * sizeof(float));
}

/* n rows of one sequence after the list's count. The largest magnitude that kv->dense cannot hold, 0: it can. */
static float write_tokens(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list, int group,
                          const float *k, const float *v, int64_t n)
{
    const dq_head_order *map = kv->map;
    const int64_t d = map->head_dim, stride = map->n_kv * d;
    float beyond = 0;
    for (int64_t done = 0; done < n;) {
        const int64_t at = (list->count + done) % DQ_PAGE_TOKENS;
        const int64_t take = DQ_PAGE_TOKENS - at < n - done ? DQ_PAGE_TOKENS - at : n - done;
        const dq_kv_page *p = list->page[(list->count + done) / DQ_PAGE_TOKENS];
        for (int j = 0; j < map->n_kv; j++) {
            if (map->group[j] != group) continue;
            const float *from_k = k + done * stride + j * d, *from_v = v + done * stride + j * d;
            if (kv->dense == DQ_F32)
                write_full(simd, kv, p, kv->slot[j], at, from_k, from_v, stride, take);
            else
                beyond =
                    fmaxf(beyond, write_half(kv, p, kv->slot[j], at, from_k, from_v, stride, take));
        }
        done += take;
    }
    return beyond;
}

static bool write_batch(dq_backend *b, const dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                        dq_mat v)
{
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int groups = kv->map->n_groups, tasks = batch->n_seq * groups;
    float beyond = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)                              \
    reduction(max                                                                                  \
              : beyond) if (batch->n_rows > 32)
    for (int task = 0; task < tasks; task++) {
        const int i = task / groups, g = task % groups;
        const int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        beyond = fmaxf(beyond, write_tokens(simd, kv, dq_kv_list_of(kv, batch->seq[i], layer, g), g,
                                            k.p + first * k.cols, v.p + first * v.cols, n));
    }
    if (beyond > 0) dq_kv_refuse_range(b, kv->dense, layer, beyond);
    return beyond == 0;
}

static bool reserve(dq_backend *b, const dq_kv *kv)
{
    return dq_cpu_reserve(b, (size_t)dq_cpu_kv_scratch_floats(kv) * sizeof(float));
}

static bool encode(dq_backend *b, const dq_kv *kv, const dq_kv_job *jobs, int64_t n)
{
    if (!reserve(b, kv)) return false;
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads) if (n > 1)
    for (int64_t i = 0; i < n; i++) {
        dq_cpu_kv_page_encode(dq_cpu_of(b)->simd, kv, &jobs[i],
                              dq_cpu_of(b)->block[omp_get_thread_num()]);
    }
    return true;
}

static void widen(dq_backend *b, float *to, const void *f16, int64_t n)
{
    (void)b;
    dq_tensor_to_f32(to, f16, DQ_F16, n);
}

static bool move(dq_backend *b, const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *from,
                 const int32_t *kept, int64_t n)
{
    if (!reserve(b, kv)) return false;
    dq_cpu_kv_page_move(kv, to, group, from, kept, n, dq_cpu_of(b)->block[0]);
    return true;
}

static const dq_kv_device device = {
    .block_new = dq_cpu_block_new,
    .block_free = dq_cpu_block_free,
    .block_copy = block_copy,
    .sinks = move_sinks,
    .write = write_batch,
    .encode = encode,
    .widen = widen,
    .move = move,
};

dq_kv *dq_cpu_kv_new(dq_backend *b, const dq_head_order *map, int n_layers, const dq_kv_spec *spec)
{
    return dq_kv_pages_new(b, map, n_layers, spec, &device);
}

void dq_cpu_kv_free(dq_backend *b, dq_kv *kv)
{
    dq_kv_pages_free(b, kv);
    dq_cpu_blocks_end(b); /* another cache has pages of another size */
}

const dq_kv_list *dq_cpu_kv_list_at(dq_backend *b, const dq_kv *kv, int32_t seq, int layer,
                                    int group, int32_t t, int64_t *coded_end)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq) || !reserve(b, kv)) return NULL;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    return dq_kv_read_as_at(b, kv, list, t, coded_end) ? list : NULL;
}

void dq_cpu_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum)
{
    const dq_head_order *map = kv->map;
    int64_t coded_end;
    const dq_kv_list *list = dq_cpu_kv_list_at(b, kv, seq, layer, group, t, &coded_end);
    if (!list) return;
    for (int64_t i = 0; i < list->count; i++) sum[i] = 0;
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < list->count; p++) {
        for (int j = 0; j < map->n_kv; j++) {
            if (map->group[j] != group) continue;
            const float *k = dq_cpu_kv_read_keys(dq_cpu_of(b)->simd, kv, list, p, j, coded_end,
                                                 dq_cpu_of(b)->block[0]);
            for (int64_t i = 0; i < dq_kv_slots(list->count, p); i++) {
                for (int64_t c = 0; c < map->head_dim; c++)
                    sum[p * DQ_PAGE_TOKENS + i] +=
                        (double)k[c * DQ_PAGE_TOKENS + i] * (double)k[c * DQ_PAGE_TOKENS + i];
            }
        }
    }
}
