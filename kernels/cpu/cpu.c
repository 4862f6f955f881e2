/* cpu: the CPU backend's table, memory and scratch. The definition of right.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu.h"
#include "base/os.h"
#include "kernels/cpu/attention/cpu_attention.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/linear/cpu_dense.h"
#include "kernels/cpu/linear/cpu_prepacked.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

/* Scratch of threads and products, and what a plain read is measured on: in large pages, as packings of weights are, so that the read
 * is not of slower memory. */
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
    const dq_num requested[] = {m.linear, m.qk, m.pv, m.kv, need->kv->num};
    for (size_t i = 0; i < sizeof requested / sizeof *requested; i++) {
        if (requested[i] == DQ_NUM_BF16)
            return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_OTHER},
                                "math bf16 is not available on the cpu backend yet");
    }
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
    .peak_ops = dq_cpu_peak_ops,
    .peak_read = dq_cpu_peak_read,
    .weight_acquire = weight_acquire,
    .weight_release = weight_release,
    .embeds_in_place = true,
    .embed = dq_cpu_embed,
    .first_bad_row = dq_cpu_first_bad_row,
    .rms_norm = dq_cpu_rms_norm,
    .matmul = dq_cpu_matmul,
    .matmul_kernel = dq_cpu_matmul_kernel,
    .rope_table = dq_cpu_rope_table,
    .rope = dq_cpu_rope,
    .ffn_act = dq_cpu_ffn_act,
    .sigmoid = dq_cpu_sigmoid,
    .hadamard = dq_cpu_hadamard,
    .add = dq_cpu_add,
    .gather = dq_cpu_gather,
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
