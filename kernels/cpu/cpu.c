/* The peaks of this processor, on all threads: every thread runs the loop of its instruction set,
 * or reads its share of a block.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu.h"

#include "base/os.h"
#include "engine/backend.h"
#include "kernels/cpu/attention/cpu_attention.h"
#include "kernels/cpu/linear/cpu_linear.h"
#include "kernels/cpu/simd.h"
#include "tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

static double cpu_peak_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction)
{
    enum {
        PARTS = 3
    }; /* integer products of which a product in f32 with prepacked weights is made */
    const dq_simd_peak *peak = dq_cpu_of(b)->peak;
    const bool split = num == DQ_NUM_F32 && w && dq_cpu_prepacked_fits(w);
    const bool dot = split || num == DQ_NUM_INT8;
    double sum = 0;
    *instruction = split               ? peak->three_dots
                   : dot               ? peak->dot
                   : num == DQ_NUM_F32 ? peak->fma
                                       : NULL;
    if (!*instruction) return 0;
#pragma omp parallel for num_threads(b->threads) schedule(static) reduction(+ : sum)
    for (int i = 0; i < b->threads; i++) sum += dot ? peak->run_dot() : peak->run_fma();
    return split ? sum / PARTS : sum;
}

static void cpu_peak_read(dq_backend *b, const void *p, size_t bytes)
{
    enum { LINE = 64 };
    const dq_simd_peak *peak = dq_cpu_of(b)->peak;
    const size_t lines = bytes / LINE, n = (size_t)b->threads;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (size_t i = 0; i < n; i++) {
        const size_t begin = lines * i / n, end = lines * (i + 1) / n;
        peak->read((const uint8_t *)p + LINE * begin, LINE * (end - begin));
    }
}

/* ---- Rows ----
 * Operations on rows of activations. */

/* Fewer values than this are not worth waking the other threads for. */
enum { SMALL = 1 << 14 };

static int team(const dq_backend *b, int64_t rows, int64_t cols)
{
    return rows * cols < SMALL ? 1 : b->threads;
}

static void cpu_embed(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids,
                      float scale)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
#pragma omp parallel for num_threads(team(b, dst.rows, dst.cols)) schedule(static)
    for (int64_t i = 0; i < dst.rows; i++) {
        dq_cpu_weight_row(simd, dst.p + i * dst.cols, table, ids[i], 0, dst.cols);
        if (scale != 1.0f) simd->scale(dst.p + i * dst.cols, dst.cols, scale);
    }
}

static void cpu_first_bad_row(dq_backend *b, int64_t *row, dq_mat x)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    *row = -1;
    for (int64_t i = 0; i < x.rows && *row < 0; i++) {
        if (!isfinite(simd->absmax(x.p + i * x.cols, x.cols))) *row = i;
    }
}

static void cpu_rms_norm(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int64_t n = src.cols;
#pragma omp parallel for num_threads(team(b, src.rows, n)) schedule(static)
    for (int64_t i = 0; i < src.rows; i++) {
        const float *x = src.p + i * n;
        const double mean = simd->sum_squares(x, n) / (double)n;
        simd->scale_gain(dst.p + i * n, x, n, (float)(1.0 / sqrt(mean + (double)eps)), gain);
    }
}

void dq_cpu_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope)
{
    if (b->err.code != DQ_OK) return;
    const int64_t half = rope->dim / 2;
#pragma omp parallel for num_threads(team(b, table.rows, 16 * half)) schedule(static)
    for (int64_t i = 0; i < table.rows; i++) {
        float *c = table.p + i * table.cols, *s = c + half;
        for (int64_t j = 0; j < half; j++) {
            const float angle = (float)pos[i] * rope->inv_freq[j];
            c[j] = (float)cos((double)angle) * rope->amplitude;
            s[j] = (float)sin((double)angle) * rope->amplitude;
        }
    }
}

void dq_cpu_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int64_t dim = table.cols, half = dim / 2;
#pragma omp parallel for num_threads(team(b, x.rows, x.cols)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        const float *c = table.p + i * dim, *s = c + half;
        for (int64_t h = 0; h + dim <= x.cols; h += dim) {
            float *at = x.p + i * x.cols + h;
            if (order == DQ_ROPE_HALVES)
                simd->rotate(at, at + half, c, s, half);
            else {
                for (int64_t k = 0; k < half; k++) {
                    const float lo = at[2 * k], hi = at[2 * k + 1];
                    at[2 * k] = lo * c[k] - hi * s[k];
                    at[2 * k + 1] = hi * c[k] + lo * s[k];
                }
            }
        }
    }
}

/* Sums in double: x^6 of an outlier leaves no room for the others in f32. */
static void polynorm_mul(float *x, const float *up, int64_t n, const float *w)
{
    const double eps = 1e-6; /* not in any configuration. Source: vLLM layernorm.py, PolyNorm */
    double sum[3] = {0, 0, 0};
    for (int64_t i = 0; i < n; i++) {
        const double square = (double)x[i] * (double)x[i];
        sum[0] += square * square * square;
        sum[1] += square * square;
        sum[2] += square;
    }
    for (int k = 0; k < 3; k++) sum[k] = (double)w[k] / sqrt(sum[k] / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)x[i];
        const double y = ((sum[0] * v + sum[1]) * v + sum[2]) * v + (double)w[3];
        x[i] = (float)y * up[i];
    }
}

static void cpu_ffn_act(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
#pragma omp parallel for num_threads(team(b, gate.rows, gate.cols)) schedule(static)
    for (int64_t i = 0; i < gate.rows; i++) {
        float *x = gate.p + i * gate.cols;
        const float *y = up.p + i * up.cols;
        if (act == DQ_ACT_POLYNORM)
            polynorm_mul(x, y, gate.cols, param);
        else if (act == DQ_ACT_GELU)
            simd->gelu_mul(x, y, gate.cols);
        else
            simd->silu_mul(x, y, gate.cols);
    }
}

static void cpu_sigmoid(dq_backend *b, dq_mat x)
{
    if (b->err.code != DQ_OK) return;
    for (int64_t i = 0; i < x.rows * x.cols; i++)
        x.p[i] = (float)(1.0 / (1.0 + exp(-(double)x.p[i])));
}

void dq_cpu_hadamard_run(float *x, int dim)
{
    for (int step = 1; step < dim; step *= 2) {
        for (int i = 0; i < dim; i += 2 * step) {
            for (int j = i; j < i + step; j++) {
                const float lo = x[j], hi = x[j + step];
                x[j] = lo + hi;
                x[j + step] = lo - hi;
            }
        }
    }
    const float norm = (float)(1.0 / sqrt((double)dim));
    for (int i = 0; i < dim; i++) x[i] *= norm;
}

void dq_cpu_hadamard(dq_backend *b, dq_mat x, int dim)
{
    if (b->err.code != DQ_OK) return;
#pragma omp parallel for num_threads(team(b, x.rows, 4 * x.cols)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        for (int64_t c = 0; c + dim <= x.cols; c += dim)
            dq_cpu_hadamard_run(x.p + i * x.cols + c, dim);
    }
}

static void cpu_add(dq_backend *b, dq_mat dst, dq_mat src)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
#pragma omp parallel for num_threads(team(b, dst.rows, dst.cols)) schedule(static)
    for (int64_t i = 0; i < dst.rows; i++)
        simd->add(dst.p + i * dst.cols, src.p + i * src.cols, dst.cols);
}

static void cpu_gather(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index)
{
    if (b->err.code != DQ_OK) return;
    for (int64_t i = 0; i < dst.rows; i++)
        memcpy(dst.p + i * dst.cols, src.p + index[i] * src.cols, (size_t)dst.cols * sizeof *dst.p);
}

/* ---- CPU ----
 * The CPU backend's table, memory and scratch. The definition of right. */

/* In large pages, as packings of weights are: a plain read shall not measure slower memory. */
static void *new_block(dq_backend *b, size_t bytes)
{
    void *p = b->err.code == DQ_OK ? dq_block_raw(1, bytes, &b->err) : NULL;
    if (!p) return NULL;
    dq_os_memory_large(p, bytes);
    return memset(p, 0, (bytes + 63) / 64 * 64); /* what is taken */
}

bool dq_cpu_reserve(dq_backend *b, size_t bytes)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (b->err.code != DQ_OK) return false;
    if (bytes <= cpu->block_bytes) return true;
    cpu->block_bytes = 0;
    for (int i = 0; i < b->threads; i++) {
        dq_block_free(cpu->block[i]);
        cpu->block[i] = new_block(b, bytes);
        if (!cpu->block[i]) return false;
    }
    cpu->block_bytes = bytes;
    return true;
}

static void *at_least(dq_backend *b, void **block, size_t *have, size_t bytes)
{
    if (b->err.code != DQ_OK) return NULL;
    if (bytes <= *have) return *block;
    dq_block_free(*block);
    *block = new_block(b, bytes);
    *have = *block ? bytes : 0;
    return *block;
}

void *dq_cpu_shared(dq_backend *b, size_t bytes)
{
    dq_cpu *cpu = dq_cpu_of(b);
    return at_least(b, &cpu->shared, &cpu->shared_bytes, bytes);
}

void *dq_cpu_operand(dq_backend *b, size_t bytes)
{
    dq_cpu *cpu = dq_cpu_of(b);
    return at_least(b, &cpu->operand, &cpu->operand_bytes, bytes);
}

static void cpu_free(dq_backend *b, void *p)
{
    (void)b;
    dq_block_free(p);
}

static void cpu_put(dq_backend *b, void *dst, const void *host, size_t bytes)
{
    if (b->err.code == DQ_OK && bytes) memcpy(dst, host, bytes);
}

static void cpu_get(dq_backend *b, void *host, const void *src, size_t bytes)
{
    if (b->err.code == DQ_OK && bytes) memcpy(host, src, bytes);
}

static void cpu_sync(dq_backend *b)
{
    (void)b; /* every operation has ended when it returns */
}

static void cpu_close(dq_backend *b)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (!cpu) return;
    for (int i = 0; cpu->block && i < b->threads; i++) dq_block_free(cpu->block[i]);
    dq_cpu_blocks_end(b);
    dq_cpu_prepacked_end(b);
    dq_cpu_dense_end(b);
    dq_block_free(cpu->block);
    dq_block_free(cpu->shared);
    dq_block_free(cpu->operand);
    dq_block_free(cpu);
    b->state = NULL;
}

static bool weight_acquire(dq_backend *b, const dq_weight *w)
{
    return dq_cpu_dense_takes(w) ? dq_cpu_dense_acquire(b, w) : dq_cpu_prepacked_acquire(b, w);
}

static void weight_release(dq_backend *b, const dq_weight *w)
{
    if (dq_cpu_dense_takes(w))
        dq_cpu_dense_release(b, w);
    else
        dq_cpu_prepacked_release(b, w);
}

static dq_status cpu_can(const dq_need *need, dq_err *err)
{
    const dq_math m = need->math;
    const dq_kv_spec *kv = need->kv;
    const dq_num requested[] = {m.linear, m.qk, m.pv, m.kv, kv->num};
    const bool codes = m.qk == DQ_NUM_INT8 || m.pv == DQ_NUM_INT8 || m.kv == DQ_NUM_INT8;
    for (size_t i = 0; i < sizeof requested / sizeof *requested; i++) {
        if (requested[i] == DQ_NUM_BF16 || requested[i] == DQ_NUM_F16)
            return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_OTHER},
                                "math %s is not available on the cpu backend yet",
                                dq_num_name[requested[i]]);
    }
    if (codes && (kv->k_bits > 8 || kv->v_bits > 8))
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_CACHE},
            "math int8 on the cpu backend needs a packed KV cache, and this one has "
            "%d-bit keys and %d-bit values",
            kv->k_bits, kv->v_bits);
    return DQ_OK;
}

const dq_ops dq_ops_cpu = {
    .name = "cpu",
    .alloc = new_block,
    .free = cpu_free,
    .put = cpu_put,
    .get = cpu_get,
    .sync = cpu_sync,
    .close = cpu_close,
    .can = cpu_can,
    .peak_ops = cpu_peak_ops,
    .peak_read = cpu_peak_read,
    .weight_acquire = weight_acquire,
    .weight_release = weight_release,
    .embeds_in_place = true,
    .embed = cpu_embed,
    .first_bad_row = cpu_first_bad_row,
    .rms_norm = cpu_rms_norm,
    .matmul = dq_cpu_matmul,
    .matmul_kernel = dq_cpu_matmul_kernel,
    .rope_table = dq_cpu_rope_table,
    .rope = dq_cpu_rope,
    .ffn_act = cpu_ffn_act,
    .sigmoid = cpu_sigmoid,
    .hadamard = dq_cpu_hadamard,
    .add = cpu_add,
    .gather = cpu_gather,
    .logprob = dq_cpu_logprob,
    .kld = dq_cpu_kld,
    .logit_bytes = dq_cpu_logit_bytes,
    .kv_new = dq_cpu_kv_new,
    .kv_free = dq_cpu_kv_free,
    .kv_seq_new = dq_kv_pages_seq_new,
    .kv_fork = dq_kv_pages_fork,
    .kv_seq_free = dq_kv_pages_seq_free,
    .kv_append = dq_kv_pages_append,
    .kv_rewind = dq_kv_pages_rewind,
    .kv_keep = dq_kv_pages_keep,
    .kv_compact = dq_kv_pages_compact,
    .kv_key_norms = dq_cpu_kv_key_norms,
    .kv_key_cosines = dq_cpu_kv_key_cosines,
    .kv_key_leverages = dq_cpu_kv_key_leverages,
    .kv_rows = dq_cpu_kv_rows,
    .has_peaks = true,
    .has_rounds = true,
    .kv_count = dq_kv_pages_count,
    .kv_bytes = dq_kv_pages_bytes,
    .attn_absmax = dq_cpu_attn_absmax,
    .absmax_join = dq_cpu_absmax_join,
    .attend = dq_cpu_attend,
    .attend_kernel = dq_cpu_attend_kernel,
    .attn_observe = dq_cpu_attn_observe,
    .observe = dq_cpu_observe,
    .profile_logits = dq_cpu_profile_logits,
    .profile_rows = dq_cpu_profile_rows,
};

dq_status dq_cpu_open(dq_backend *b, dq_err *err)
{
    const dq_cpu_isa *isa = dq_cpu_isa_of(dq_os_cpu_features(NULL));
    dq_cpu *cpu = dq_block_new(1, sizeof *cpu, err);
    if (!cpu) return err->code;
    b->state = cpu;
    b->ops = &dq_ops_cpu;
    cpu->simd = isa->simd;
    cpu->pages = isa->pages;
    cpu->peak = isa->peak;
    cpu->blocks = isa->prepacked;
    cpu->levels = isa->levels;
    cpu->block = dq_block_new((size_t)b->threads, sizeof *cpu->block, err);
    if (!cpu->block) {
        cpu_close(b);
        return err->code;
    }
    snprintf(b->device, sizeof b->device, "cpu, %s, %d thread%s", cpu->simd->name, b->threads,
             b->threads == 1 ? "" : "s");
    return DQ_OK;
}
