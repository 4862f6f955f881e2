/* Attention of the CUDA backend on tensor cores, as operations of the backend: int8 against the CPU's int8, bf16
 * against its f32, on the simulated device. test_fused.cpp has the kernels alone.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

static const int fused_dims[] = {16, 64, 80, 32, 48, 128};

static void open_math_of(pair *p, int i, dq_num num, dq_kv_spec spec)
{
    spec.num = num;
    if (spec.quant != DQ_KV_MIXED) spec.group = 32;
    if (num == DQ_NUM_INT8 && spec.k_bits == 16) spec.k_bits = 8;
    if (num == DQ_NUM_INT8 && spec.v_bits == 16) spec.v_bits = 8;
    const int dim = fused_dims[i % 6];
    spec.rotate_v = spec.rotate_k = (dim & (dim - 1)) == 0 && i % 2;
    pair_open(p, pairings[i % N_PAIRINGS], dim, spec);
    p->math = (dq_math){DQ_NUM_F32, num, num, num};
    pair_scene(p, i % 2);
    set_options(p, i);
}

static void open_math(pair *p, int i, dq_num num)
{
    open_math_of(p, i, num, spec_of(i));
}

/* Per-token codes, then per-channel codes, then mixed ones. */
enum { SETS = 12, MIXED = 24, N_INT8 = 36 };
static void open_int8(pair *p, int i)
{
    open_math_of(p, i, DQ_NUM_INT8,
                 i < SETS    ? spec_of(i)
                 : i < MIXED ? page_spec_of(i)
                             : mixed_spec_of(i));
}

/* Four of each, for fewer cases. */
static dq_kv_spec each_spec_of(int i)
{
    return i < 4 ? spec_of(i + 1) : i < 8 ? page_spec_of(i + 9) : mixed_spec_of(i + 9);
}

/* S is the same bit for bit; exps and sums are not, so that a code of D may differ by one. */
TEST(int8_is_near)
{
    static const dq_granularity granularities[] = {DQ_GRANULARITY_TENSOR, DQ_GRANULARITY_HEAD,
                                                   DQ_GRANULARITY_ROW};
    for (int i = 0; i < N_INT8; i++) {
        pair p;
        open_int8(&p, i);
        attend_both(&p, (dq_logit_spec){i % 2 ? 16 : 6, granularities[i % 3]}, NULL, NULL);
        compare_within(&p, 2e-4, false);
        pair_close(&p);
    }
}

/* Blocks of a grid that a small group has no head for do nothing. */
TEST(uneven_groups_are_near)
{
    for (int i = 0; i < 4; i++) {
        pair p;
        const dq_num num = i == 3 ? DQ_NUM_BF16 : DQ_NUM_INT8;
        dq_kv_spec spec = i % 2 ? page_spec_of(1) : spec_of(1);
        spec.num = num;
        spec.group = 32;
        if (spec.k_bits == 16) spec.k_bits = 8;
        if (spec.v_bits == 16) spec.v_bits = 8;
        pair_open_uneven(&p, 64, spec);
        p.math = (dq_math){DQ_NUM_F32, num, num, num};
        pair_scene(&p, i == 1);
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_within(&p, i == 3 ? 3e-2 : 2e-4, false);
        pair_close(&p);
    }
}

/* In int8 many rows and single ones, which have kernels of their own, and in bf16. */
TEST(damage_is_seen)
{
    for (int k = 0; k < 6 * N_DAMAGES; k++) { /* per-channel codes, then mixed ones */
        pair p;
        const int i = k % (3 * N_DAMAGES);
        const bool bytes = i < 2 * N_DAMAGES;
        dq_kv_spec spec = damaged_spec_of(i, k != i);
        spec.num = bytes ? DQ_NUM_INT8 : DQ_NUM_BF16;
        pair_open(&p, pairings[i / 2 % N_PAIRINGS], fused_dims[i % 6], spec);
        p.math = (dq_math){DQ_NUM_F32, spec.num, spec.num, spec.num};
        pair_damaged_scene(&p, i, i < N_DAMAGES ? 20 : 1);
        set_options(&p, i);
        if (!bytes) p.attn.head_norm = false;
        attend_both(&p,
                    (dq_logit_spec){bytes && i % 3 == 0 ? 6 : 16,
                                    i / 3 % 2 ? DQ_GRANULARITY_HEAD : DQ_GRANULARITY_ROW},
                    NULL, NULL);
        compare_damaged(&p, bytes ? 2e-4 : 3e-2, false);
        pair_close(&p);
    }
}

TEST(bf16_is_near)
{
    for (int i = 0; i < 36; i++) {
        pair p;
        dq_kv_spec spec = i < 6 || i % 6 == 5 ? spec_of(i)
                          : i < 24            ? page_spec_of(i)
                                              : mixed_spec_of(i);
        if (i >= 18) spec.dense = i % 2 ? DQ_KV_F16 : DQ_KV_BF16;
        open_math_of(&p, i, DQ_NUM_BF16, spec);
        p.attn.head_norm = false; /* a norm of nearly nothing has no bound */
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_within(&p, 3e-2, false);
        pair_close(&p);
    }
}

/* Bit for bit, but where the CPU rounds the products of unquantized tokens. */
TEST(absmax_is_equal)
{
    const bool fused = dq_os_cpu_features(NULL) & (DQ_CPU_AVX2 | DQ_CPU_AVX512);
    for (int i = 0; i < N_INT8; i += i < N_PAIRINGS ? 2 : 3) {
        pair p;
        float got[2][PAIR_SEQ * PAIR_Q];
        open_int8(&p, i);
        for (int k = CPU; k <= CUDA; k++) {
            const dq_ops *op = p.b[k]->ops;
            const dq_attend_args a = pair_args(&p, k, (dq_logit_spec){4, DQ_GRANULARITY_HEAD});
            float *at = op->alloc(p.b[k], sizeof got[k]);
            op->attn_absmax(p.b[k], at, &a);
            op->get(p.b[k], got[k], at, (size_t)p.batch.n_seq * PAIR_Q * sizeof(float));
            op->free(p.b[k], at);
        }
        for (int j = 0; j < p.batch.n_seq * PAIR_Q; j++)
            assert_true(fabs((double)got[CPU][j] - (double)got[CUDA][j]) <=
                        (fused ? 0 : 2e-6) * (double)got[CPU][j]);
        pair_close(&p);
    }
}

static float *outputs(pair *p)
{
    const dq_mat m = pair_mat(p, CUDA, A_OUT);
    float *x = calloc((size_t)(m.rows * m.cols), sizeof *x);
    p->b[CUDA]->ops->get(p->b[CUDA], x, m.p, (size_t)(m.rows * m.cols) * sizeof *x);
    return x;
}

/* Columns and measures come from strips of their own. */
TEST(looking_changes_nothing)
{
    for (int i = 0; i < 12; i++) {
        pair p;
        const dq_num num = i % 2 ? DQ_NUM_BF16 : DQ_NUM_INT8;
        double *mass[2];
        int64_t offset[PAIR_SEQ * 8], n = 0;
        dq_head_measure of[2][PAIR_Q];
        dq_head_measure *const measure[2] = {of[CPU], of[CUDA]};
        open_math_of(&p, i + 1, num, each_spec_of(i));
        memset(of, 0, sizeof of);
        for (int l = 0; l < p.batch.n_seq * p.map.n_groups; l++) {
            offset[l] = n;
            n += p.b[CPU]->ops->kv_count(p.b[CPU], p.kv[CPU], p.seq[l / p.map.n_groups], 0,
                                         l % p.map.n_groups, NULL);
        }
        for (int k = CPU; k <= CUDA; k++) mass[k] = calloc((size_t)n, sizeof(double));
        const dq_columns columns[2] = {{.offset = offset, .mass = {mass[CPU]}},
                                       {.offset = offset, .mass = {mass[CUDA]}}};
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        float *before = outputs(&p);
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, columns, measure);
        pair_sync(&p);
        float *after = outputs(&p);
        const dq_mat m = pair_mat(&p, CUDA, A_OUT);
        assert_memory_equal(before, after, (size_t)(m.rows * m.cols) * sizeof(float));
        for (int64_t j = 0; j < n; j++)
            assert_true(fabs(mass[CPU][j] - mass[CUDA][j]) <=
                        (num == DQ_NUM_INT8 ? 1e-5 : 0.1) * (1 + mass[CPU][j]));
        free(before);
        free(after);
        free(mass[CPU]);
        free(mass[CUDA]);
        pair_close(&p);
    }
}

/* Rows of 1, 50 and 21, in one to two units a group: strips are made for some of them. */
TEST(spans_see_the_same_maps)
{
    static const int64_t last[][PAIR_SEQ] = {{0, 1, 0}, {1, 0, 21}, {0, 50, 1}, {1, 20, 4}};
    for (int i = 0; i < 12; i++) {
        pair p;
        const dq_num num = i % 2 ? DQ_NUM_BF16 : DQ_NUM_INT8;
        open_math_of(&p, i + 1, num, each_spec_of(i));
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        float *before = outputs(&p);
        pair_count_spans(&p, last[i % 4]);
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        pair_sync(&p);
        float *after = outputs(&p);
        const dq_mat m = pair_mat(&p, CUDA, A_OUT);
        assert_memory_equal(before, after, (size_t)(m.rows * m.cols) * sizeof(float));
        compare_spans(&p, num == DQ_NUM_INT8 ? 1e-5 : 0.1);
        free(before);
        free(after);
        pair_close(&p);
    }
}

static const float *row_of(const pair *p, const float *x, int64_t row)
{
    return x + row * pair_mat(p, CUDA, A_OUT).cols;
}

/* A pass of each sequence's last row alone gives the bits of the pass of all rows, in other kernels. */
TEST(single_rows_are_equal)
{
    static const dq_granularity granularities[] = {DQ_GRANULARITY_ROW, DQ_GRANULARITY_HEAD};
    static const char *const many_name[] = {"attend_int8", "attend_int8_sets", "attend_int8_mixed"},
                             *const one_name[] = {"decode_int8", "decode_int8_sets",
                                                  "decode_int8_mixed"};
    for (int i = 0; i < N_INT8; i++) {
        pair p;
        const int codes = (i >= SETS) + (i >= MIXED);
        open_int8(&p, i);
        const dq_ops *op = p.b[CUDA]->ops;
        dq_attend_args a =
            pair_args(&p, CUDA, (dq_logit_spec){i % 3 ? 16 : 6, granularities[i / 3 % 2]});
        const size_t width = (size_t)pair_mat(&p, CUDA, A_OUT).cols;
        float given[PAIR_SEQ * PAIR_Q], *absmax = op->alloc(p.b[CUDA], sizeof given);
        for (int k = 0; k < PAIR_SEQ * PAIR_Q; k++) given[k] = 3.0f + (float)(k % 5);
        op->put(p.b[CUDA], absmax, given, sizeof given);
        a.absmax = absmax;
        op->attend(p.b[CUDA], pair_mat(&p, CUDA, A_OUT), &a);
        float *many = outputs(&p);
        assert_string_equal(op->attend_kernel(p.b[CUDA], &p.spec, p.math, 64), many_name[codes]);
        assert_string_equal(op->attend_kernel(p.b[CUDA], &p.spec, p.math, 1), one_name[codes]);
        const dq_batch all = p.batch;
        int64_t cu[PAIR_SEQ + 1] = {0};
        int32_t pos[PAIR_SEQ];
        for (int s = 0; s < all.n_seq; s++) { /* their queries go where the first ones were */
            const int64_t last = all.cu_rows[s + 1] - 1, q = (int64_t)PAIR_Q * p.map.head_dim;
            cu[s + 1] = s + 1;
            pos[s] = all.pos[last];
            op->put(p.b[CUDA], a.q.p + s * q, p.host[A_Q] + last * q, (size_t)q * sizeof(float));
            if (a.lambda.p)
                op->put(p.b[CUDA], a.lambda.p + s * p.map.n_out,
                        p.host[A_LAMBDA] + last * p.map.n_out, (size_t)p.map.n_out * sizeof(float));
        }
        p.batch.n_rows = all.n_seq;
        p.batch.cu_rows = cu;
        p.batch.pos = pos;
        a.q.rows = a.lambda.rows = all.n_seq;
        op->attend(p.b[CUDA], pair_mat(&p, CUDA, A_OUT), &a);
        float *one = outputs(&p);
        pair_sync(&p);
        for (int s = 0; s < all.n_seq; s++)
            assert_memory_equal(row_of(&p, one, s), row_of(&p, many, all.cu_rows[s + 1] - 1),
                                width * sizeof(float));
        op->free(p.b[CUDA], absmax);
        free(many);
        free(one);
        pair_close(&p);
    }
}

TEST(tiles_are_refused_by_name)
{
    pair p;
    dq_err err = {0};
    open_math(&p, 1, DQ_NUM_INT8);
    const dq_attend_args a = pair_args(&p, CUDA, (dq_logit_spec){4, DQ_GRANULARITY_TILE});
    p.b[CUDA]->ops->attend(p.b[CUDA], pair_mat(&p, CUDA, A_OUT), &a);
    assert_int_equal(dq_backend_sync(p.b[CUDA], &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "rounding of logits by tiles"));
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_F32_OR_CPU);
    pair_close(&p);
}

/* With an argument: tests of that name. */

NEEDS(rig_can_run)
