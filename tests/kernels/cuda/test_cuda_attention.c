/* Attention of the CUDA backend against the CPU's, on the simulated device: bit for bit where the CPU has
 * fused products.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

TEST(outputs_are_equal)
{
    static const int bits[] = {16, 8, 4, 3};
    for (int i = 0; i < 12; i++) {
        pair p;
        dq_kv_spec spec = i % 3 == 2 ? dq_kv_plain : spec_of(i + 1);
        spec.rotate_v = spec.rotate_k = (dims[i % 6] & (dims[i % 6] - 1)) == 0 && i % 2;
        pair_open(&p, pairings[i % N_PAIRINGS], dims[i % 6], spec);
        pair_scene(&p, i % 2);
        set_options(&p, i);
        for (int k = 0; k < 2; k++) {
            attend_both(&p, (dq_logit_spec){bits[(i + k) % 4], (dq_granularity)((i + 2 * k) % 4)},
                        NULL, NULL);
            compare_outputs(&p);
        }
        pair_close(&p);
    }
}

/* Blocks of a grid that a small group has no head for do nothing. */
TEST(uneven_groups_are_read)
{
    for (int i = 0; i < 4; i++) {
        pair p;
        pair_open_uneven(&p, dims[i], i < 2 ? spec_of(1 + 6 * i) : page_spec_of(i));
        pair_scene(&p, i % 2);
        set_options(&p, i);
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_outputs(&p);
        pair_close(&p);
    }
}

/* From position 0 and from far away, whole and with tokens evicted, so that slots lie in another order than positions. */
TEST(page_codes_are_read)
{
    for (int i = 0; i < 36; i++) { /* per-channel codes, then mixed ones */
        pair p;
        dq_kv_spec spec = i < 24 ? page_spec_of(i) : mixed_spec_of(i);
        spec.rotate_v = spec.rotate_k = (dims[i % 6] & (dims[i % 6] - 1)) == 0 && i % 2;
        pair_open(&p, pairings[i / 2 % N_PAIRINGS], dims[i % 6], spec);
        pair_scene(&p, i % 2);
        set_options(&p, i);
        attend_both(&p, (dq_logit_spec){i % 4 ? 16 : 4, (dq_granularity)(i % 4)}, NULL, NULL);
        compare_outputs(&p);
        pair_close(&p);
    }
}

/* The CPU's bits, and its NaN, where a page has a step of 0 or one that is no number. */
TEST(damaged_page_codes_are_read)
{
    static const dq_granularity granularities[] = {DQ_GRANULARITY_HEAD, DQ_GRANULARITY_ROW,
                                                   DQ_GRANULARITY_TILE};
    const bool fused = dq_os_cpu_features(NULL) & (DQ_CPU_AVX2 | DQ_CPU_AVX512);
    for (int i = 0; i < 4 * N_DAMAGES; i++) {
        pair p;
        const bool mixed = i >= 2 * N_DAMAGES;
        pair_open(&p, pairings[i / 2 % N_PAIRINGS], dims[i % 6], damaged_spec_of(i, mixed));
        pair_damaged_scene(&p, i, 20);
        set_options(&p, i);
        attend_both(&p, (dq_logit_spec){i % 3 ? 16 : 4, granularities[i / 3 % 3]}, NULL, NULL);
        compare_damaged(&p, 2e-6, fused);
        pair_close(&p);
    }
}

/* Tokens that are not codes, in two bytes: whole caches of them, and beside
 * codes of both kinds. */
TEST(two_bytes_are_read)
{
    for (int i = 0; i < 18; i++) {
        pair p;
        dq_kv_spec spec = i % 3 == 0 ? dq_kv_plain : i % 3 == 1 ? spec_of(i) : page_spec_of(i);
        spec.dense = i % 2 ? DQ_KV_F16 : DQ_KV_BF16;
        spec.rotate_v = spec.rotate_k = (dims[i % 6] & (dims[i % 6] - 1)) == 0 && i % 4 > 1;
        pair_open(&p, pairings[i / 2 % N_PAIRINGS], dims[i % 6], spec);
        pair_scene(&p, i % 4 < 2);
        set_options(&p, i);
        attend_both(&p, (dq_logit_spec){i % 4 ? 16 : 4, (dq_granularity)(i % 4)}, NULL, NULL);
        compare_outputs(&p);
        pair_close(&p);
    }
}

TEST(every_order_of_threads)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        pair p;
        dq_simt_set_schedule(seed ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, seed);
        pair_open(&p, DQ_PAIR_HALVES, 48, spec_of(1));
        pair_scene(&p, true);
        for (int granularity = DQ_GRANULARITY_TENSOR; granularity <= DQ_GRANULARITY_TILE;
             granularity++) {
            attend_both(&p, (dq_logit_spec){4, (dq_granularity)granularity}, NULL, NULL);
            compare_outputs(&p);
        }
        pair_close(&p);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

/* Chunks and tokens through windows, whose pages leave the cache. */
TEST(windows_are_equal)
{
    static const int windows[] = {40, 64, 130};
    for (int i = 0; i < 3; i++) {
        pair p;
        dq_kv_spec spec = i % 3 == 2 ? page_spec_of(i) : i % 3 ? spec_of(i) : dq_kv_plain;
        pair_open(&p, pairings[i % N_PAIRINGS], dims[i % 6], spec);
        p.attn.window = windows[i % 3];
        set_options(&p, i);
        for (int step = 0; pair_window_step(&p, step); step++) {
            attend_both(&p, (dq_logit_spec){(step + i) % 2 ? 16 : 4, (dq_granularity)(step % 4)},
                        NULL, NULL);
            compare_outputs(&p);
        }
        pair_close(&p);
    }
}

/* Heads of 256 channels, in a window and without. */
TEST(wide_heads_are_equal)
{
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_open(&p, i ? DQ_PAIR_SHARED_KV : DQ_PAIR_NONE, 256, i ? page_spec_of(2) : spec_of(1));
        p.attn.window = i ? 0 : 70;
        pair_scene(&p, i);
        set_options(&p, i);
        attend_both(&p, (dq_logit_spec){4, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_outputs(&p);
        pair_close(&p);
    }
}

TEST(absmax_is_equal)
{
    for (int i = 0; i < N_PAIRINGS; i += 2) {
        pair p;
        float got[2][PAIR_SEQ * PAIR_Q], *at[2];
        pair_open(&p, pairings[i], dims[i], spec_of(i));
        pair_scene(&p, true);
        for (int k = CPU; k <= CUDA; k++) {
            const dq_ops *op = p.b[k]->ops;
            const dq_attend_args a = pair_args(&p, k, (dq_logit_spec){4, DQ_GRANULARITY_HEAD});
            at[k] = op->alloc(p.b[k], sizeof got[k]);
            op->attn_absmax(p.b[k], at[k], &a);
            op->get(p.b[k], got[k], at[k], (size_t)p.batch.n_seq * PAIR_Q * sizeof(float));
            op->free(p.b[k], at[k]);
        }
        for (int j = 0; j < p.batch.n_seq * PAIR_Q; j++)
            assert_true(fabs((double)got[CPU][j] - (double)got[CUDA][j]) <=
                        2e-6 * (double)got[CPU][j]);
        pair_close(&p);
    }
}

/* One row of more keys than a softmax adds at a time (attention.cu, RUNS), with and without a maximum that
 * several warps look for. */
TEST(long_rows)
{
    for (int bits = 4; bits <= 16; bits += 12) {
        pair p;
        pair_open(&p, DQ_PAIR_HALVES, 16, dq_kv_plain);
        const int32_t a = pair_seq(&p, 0);
        for (int i = 0; i < 16; i++) {
            pair_begin(&p);
            pair_rows(&p, a, PAIR_ROWS);
            pair_append(&p);
            pair_sync(&p);
        }
        pair_begin(&p);
        pair_rows(&p, a, 1);
        pair_append(&p);
        attend_both(&p, (dq_logit_spec){bits, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_outputs(&p);
        pair_close(&p);
    }
}

/* With an argument: tests of that name. */

NEEDS(rig_can_run)
