/* Attention of the CUDA backend on tensor cores, as operations of the backend, against the CPU in f32, on the
 * simulated device. test_attend.cpp has the kernels alone.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

static const int fused_dims[] = {16, 64, 80, 32, 48, 128};

/* bytes: of operands, from the start on; 0: as many as the device has. */
static void open_math_with(pair *p, int i, dq_num num, dq_kv_spec spec, size_t bytes)
{
    spec.num = num;
    if (spec.quant != DQ_KV_MIXED) spec.group = 32;
    const int dim = fused_dims[i % 6];
    spec.rotate_v = spec.rotate_k = (dim & (dim - 1)) == 0 && i % 2;
    pair_open(p, pairings[i % N_PAIRINGS], dim, spec);
    if (bytes) ((dq_cuda *)p->b[CUDA]->state)->operand_bytes = bytes;
    p->math = dq_backend_math(p->b[CUDA], num);
    pair_scene(p, i % 2);
    set_options(p, i);
}

static void open_math_of(pair *p, int i, dq_num num, dq_kv_spec spec)
{
    open_math_with(p, i, num, spec, 0);
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

/* Of the largest number: f16 of queries, keys, values and both maps' weights. */
#define NEAR 2e-3

static dq_num math_of(int i)
{
    return i % 2 ? DQ_NUM_BF16 : DQ_NUM_INT8;
}

TEST(all_codes_are_near)
{
    for (int i = 0; i < N_INT8; i++) {
        pair p;
        open_int8(&p, i);
        p.attn.head_norm = false; /* a norm of nearly nothing has no bound */
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_within(&p, NEAR, false);
        pair_close(&p);
    }
}

TEST(all_types_are_near)
{
    for (int i = 0; i < 12; i++) {
        pair p;
        dq_kv_spec spec = i < 6 ? spec_of(i) : page_spec_of(i);
        spec.dense = dense_of(i);
        open_math_of(&p, i, math_of(i), spec);
        p.attn.head_norm = false;
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_within(&p, NEAR, false);
        pair_close(&p);
    }
}

/* A number between two codes of a grid goes to either, so that a row may be off by a part of a step; test_attend.cpp
 * counts such numbers. */
TEST(rounded_logits_are_near)
{
    static const dq_granularity granularities[] = {DQ_GRANULARITY_TENSOR, DQ_GRANULARITY_HEAD,
                                                   DQ_GRANULARITY_ROW};
    for (int i = 0; i < N_INT8; i += 3) {
        pair p;
        open_int8(&p, i);
        p.attn.head_norm = false;
        attend_both(&p, (dq_logit_spec){i % 2 ? 8 : 6, granularities[i / 3 % 3]}, NULL, NULL);
        compare_within(&p, 0.1, false);
        pair_close(&p);
    }
}

/* Keys of 8 and 6 bits per token, whose codes compute capability 9.0 multiplies as the CPU does in int8. */
enum { N_CODES = 12 };
static void open_codes(pair *p, int i)
{
    dq_kv_spec spec = spec_of(i);
    spec.k_bits = i / 2 % 2 ? 6 : 8;
    dq_simt_set_capability(90);
    open_math_of(p, i, DQ_NUM_INT8, spec);
    p->attn.head_norm = false;
    p->cpu_math.qk = DQ_NUM_INT8;
}

static void close_codes(pair *p)
{
    pair_close(p);
    dq_simt_set_capability(80);
}

static void check_kernel(const pair *p, int k_bits, dq_num num, const char *name)
{
    dq_kv_spec spec = p->kv[CUDA]->spec;
    spec.k_bits = k_bits;
    spec.num = num;
    assert_string_equal(p->b[CUDA]->ops->attend_kernel(p->b[CUDA], &spec, p->map.head_dim,
                                                       dq_backend_math(p->b[CUDA], num)),
                        name);
}

TEST(products_of_codes_are_near)
{
    for (int i = 0; i < N_CODES; i++) {
        pair p;
        open_codes(&p, i);
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_within(&p, NEAR, false);
        close_codes(&p);
    }
}

TEST(kernels_are_named)
{
    pair p;
    open_codes(&p, 0);
    check_kernel(&p, 8, DQ_NUM_INT8, "unfold + attend_int8 in int8 and f16");
    check_kernel(&p, 6, DQ_NUM_INT8, "unfold + attend_int8 in int8 and f16");
    check_kernel(&p, 4, DQ_NUM_INT8, "unfold + attend_hopper in f16");
    check_kernel(&p, 8, DQ_NUM_BF16, "unfold + attend_hopper in f16");
    close_codes(&p);
    open_math(&p, 0, DQ_NUM_INT8);
    check_kernel(&p, 8, DQ_NUM_INT8, "unfold + attend in f16");
    pair_close(&p);
}

TEST(rounded_products_of_codes_are_near)
{
    for (int i = 0; i < N_CODES; i += 3) {
        pair p;
        open_codes(&p, i);
        attend_both(
            &p, (dq_logit_spec){i % 2 ? 8 : 6, i % 4 ? DQ_GRANULARITY_ROW : DQ_GRANULARITY_HEAD},
            NULL, NULL);
        compare_within(&p, 0.1, false);
        close_codes(&p);
    }
}

/* Chunks and tokens through windows, whose pages leave the cache, by all three kernels. */
TEST(windows_are_near)
{
    static const int windows[] = {40, 130, 64};
    for (int i = 0; i < 3; i++) {
        pair p;
        dq_kv_spec spec = each_spec_of(4 * i);
        const bool codes = i == 2, rounds = i == 1;
        if (codes) spec = spec_of(4); /* keys of 8 bits */
        dq_simt_set_capability(i ? 90 : 80);
        spec.num = codes ? DQ_NUM_INT8 : math_of(i);
        if (spec.quant != DQ_KV_MIXED) spec.group = 32;
        pair_open(&p, pairings[i % N_PAIRINGS], fused_dims[i % 6], spec);
        p.math = dq_backend_math(p.b[CUDA], spec.num);
        if (codes) p.cpu_math.qk = DQ_NUM_INT8;
        set_options(&p, i);
        p.attn.head_norm = false;
        p.attn.window = windows[i];
        for (int step = 0; pair_window_step(&p, step); step++) {
            if (i && step != 1 && step != 3) continue; /* memory is watched, which takes time */
            attend_both(&p,
                        (dq_logit_spec){rounds ? 8 : 16,
                                        step % 2 ? DQ_GRANULARITY_ROW : DQ_GRANULARITY_HEAD},
                        NULL, NULL);
            compare_within(&p, rounds ? 0.1 : NEAR, false);
        }
        pair_close(&p);
        dq_simt_set_capability(80);
    }
}

/* Heads of 256 channels are multiplied by mma.sync on every device, codes of keys as f16. */
TEST(wide_heads_are_near)
{
    for (int i = 0; i < 3; i++) {
        pair p;
        dq_kv_spec spec = spec_of(4 * i); /* keys of 8 bits */
        dq_simt_set_capability(i == 2 ? 90 : 80);
        spec.num = i ? DQ_NUM_INT8 : DQ_NUM_BF16;
        spec.group = 32;
        pair_open(&p, i == 1 ? DQ_PAIR_SHARED_KV : DQ_PAIR_NONE, 256, spec);
        p.math = dq_backend_math(p.b[CUDA], spec.num);
        check_kernel(&p, 8, spec.num, "unfold + attend in f16");
        p.attn.window = i ? 0 : 70;
        const int32_t a = pair_seq(&p, 0);
        for (int n = 100; n > 0; n -= 80) {
            pair_begin(&p);
            pair_rows(&p, a, n);
            pair_append(&p);
        }
        attend_both(&p, (dq_logit_spec){i == 1 ? 8 : 16, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_within(&p, i == 1 ? 0.1 : NEAR, false);
        pair_close(&p);
        dq_simt_set_capability(80);
    }
}

/* From two windows on a device holds what it held before. */
TEST(memory_of_windows_is_level)
{
    pair p;
    dq_kv_spec spec = spec_of(1);
    spec.num = DQ_NUM_BF16;
    spec.group = 32;
    pair_open(&p, DQ_PAIR_NONE, 16, spec);
    p.math = dq_backend_math(p.b[CUDA], spec.num);
    p.attn.window = 130;
    const int32_t a = pair_seq(&p, 0);
    const dq_cuda *c = p.b[CUDA]->state;
    size_t bytes[DQ_CUDA_N_SCRATCH];
    for (int i = 0; i < 12; i++) {
        pair_begin(&p);
        pair_rows(&p, a, 64);
        pair_append(&p);
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        pair_compact(&p);
        pair_sync(&p);
        if (i == 5) memcpy(bytes, c->scratch_bytes, sizeof bytes);
    }
    assert_memory_equal(bytes, c->scratch_bytes, sizeof bytes);
    pair_close(&p);
}

/* Blocks of a grid that a small group has no head for do nothing. */
TEST(uneven_groups_are_near)
{
    for (int i = 0; i < 4; i++) {
        pair p;
        const dq_num num = math_of(i);
        dq_kv_spec spec = i / 2 ? page_spec_of(1) : spec_of(1);
        dq_simt_set_capability(i % 2 ? 90 : 80); /* by both kernels */
        spec.num = num;
        spec.group = 32;
        pair_open_uneven(&p, 64, spec);
        p.math = dq_backend_math(p.b[CUDA], num);
        pair_scene(&p, i == 1);
        p.attn.head_norm = false;
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_within(&p, NEAR, false);
        pair_close(&p);
        dq_simt_set_capability(80);
    }
}

/* Of many rows and of single ones. */
TEST(damage_is_seen)
{
    for (int k = 0; k < 4 * N_DAMAGES; k++) { /* per-channel codes, then mixed ones */
        pair p;
        const int i = k % (2 * N_DAMAGES);
        dq_kv_spec spec = damaged_spec_of(i, k != i);
        spec.num = math_of(i);
        pair_open(&p, pairings[i / 2 % N_PAIRINGS], fused_dims[i % 6], spec);
        p.math = dq_backend_math(p.b[CUDA], spec.num);
        pair_damaged_scene(&p, i, i < N_DAMAGES ? 20 : 1);
        set_options(&p, i);
        p.attn.head_norm = false;
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        compare_damaged(&p, NEAR, false);
        pair_close(&p);
    }
}

static void both_absmax(pair *p, float got[2][PAIR_SEQ * PAIR_Q])
{
    for (int k = CPU; k <= CUDA; k++) {
        const dq_ops *op = p->b[k]->ops;
        const dq_attend_args a = pair_args(p, k, (dq_logit_spec){4, DQ_GRANULARITY_HEAD});
        float *at = op->alloc(p->b[k], PAIR_SEQ * PAIR_Q * sizeof(float));
        op->attn_absmax(p->b[k], at, &a);
        op->get(p->b[k], got[k], at, (size_t)p->batch.n_seq * PAIR_Q * sizeof(float));
        op->free(p->b[k], at);
    }
}

/* A maximum over codes alone has the CPU's bits. */
TEST(absmax_of_codes_is_equal)
{
    int n = 0, equal = 0;
    for (int i = 0; i < N_CODES; i += 2) {
        pair p;
        float got[2][PAIR_SEQ * PAIR_Q];
        open_codes(&p, i);
        both_absmax(&p, got);
        for (int j = 0; j < p.batch.n_seq * PAIR_Q; j++, n++) {
            equal += got[CPU][j] == got[CUDA][j];
            assert_true(fabs((double)got[CPU][j] - (double)got[CUDA][j]) <=
                        1e-3 * (double)got[CPU][j]);
        }
        close_codes(&p);
    }
    assert_true(3 * equal > n); /* those of other tokens are products in f16 */
}

TEST(absmax_is_near)
{
    for (int i = 0; i < N_INT8; i += i < N_PAIRINGS ? 2 : 3) {
        pair p;
        float got[2][PAIR_SEQ * PAIR_Q];
        open_int8(&p, i);
        both_absmax(&p, got);
        for (int j = 0; j < p.batch.n_seq * PAIR_Q; j++)
            assert_true(fabs((double)got[CPU][j] - (double)got[CUDA][j]) <=
                        1e-3 * (double)got[CPU][j]);
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

/* The outputs are those bits; frees them. */
static void compare_bits(pair *p, float *expected)
{
    const dq_mat m = pair_mat(p, CUDA, A_OUT);
    pair_sync(p);
    float *found = outputs(p);
    assert_memory_equal(expected, found, (size_t)(m.rows * m.cols) * sizeof(float));
    free(expected);
    free(found);
}

/* Columns and measures come from strips of their own. */
TEST(looking_changes_nothing)
{
    for (int i = 0; i < 16; i++) { /* the last: codes of keys are multiplied */
        pair p;
        double *mass[2];
        int64_t offset[PAIR_SEQ * 8], n = 0;
        dq_head_measure of[2][PAIR_Q];
        dq_head_measure *const measure[2] = {of[CPU], of[CUDA]};
        if (i < 12)
            open_math_of(&p, i + 1, math_of(i), each_spec_of(i));
        else
            open_codes(&p, i);
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
        compare_bits(&p, before);
        for (int64_t j = 0; j < n; j++)
            assert_true(fabs(mass[CPU][j] - mass[CUDA][j]) <= 1e-3 * (1 + mass[CPU][j]));
        free(mass[CPU]);
        free(mass[CUDA]);
        close_codes(&p);
    }
}

/* Rows of 1, 50 and 21, in one to two units a group: strips are made for some of them. */
TEST(spans_see_the_same_maps)
{
    static const int64_t last[][PAIR_SEQ] = {{0, 1, 0}, {1, 0, 21}, {0, 50, 1}, {1, 20, 4}};
    for (int i = 0; i < 12; i++) {
        pair p;
        open_math_of(&p, i + 1, math_of(i), each_spec_of(i));
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        float *before = outputs(&p);
        pair_count_spans(&p, last[i % 4]);
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_bits(&p, before);
        compare_spans(&p, 1e-3);
        pair_close(&p);
    }
}

/* A pass of each sequence's last row alone gives the bits of the pass of all rows, where blocks do not divide
 * its pages. */
TEST(single_rows_are_equal)
{
    for (int i = 0; i < N_INT8; i += 2) {
        pair p;
        open_int8(&p, i);
        const dq_ops *op = p.b[CUDA]->ops;
        dq_attend_args a = pair_args(&p, CUDA, (dq_logit_spec){i % 3 ? 16 : 6, DQ_GRANULARITY_ROW});
        const size_t width = (size_t)pair_mat(&p, CUDA, A_OUT).cols;
        op->attend(p.b[CUDA], pair_mat(&p, CUDA, A_OUT), &a);
        float *many = outputs(&p);
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
            assert_memory_equal(one + (size_t)s * width,
                                many + (size_t)(all.cu_rows[s + 1] - 1) * width,
                                width * sizeof(float));
        free(many);
        free(one);
        pair_close(&p);
    }
}

static void attend_device(pair *p)
{
    const dq_attend_args a = pair_args(p, CUDA, (dq_logit_spec){.bits = 16});
    p->b[CUDA]->ops->attend(p->b[CUDA], pair_mat(p, CUDA, A_OUT), &a);
}

/* Rows that end pages which hold codes alone then. One token is so small that its scale is f32. */
static void fill_pages(pair *p)
{
    const int cols = PAIR_KV * p->map.head_dim;
    static const int n[2][2] = {{120, 64}, {20, 130}};
    const int32_t seq[2] = {p->seq[0], pair_seq(p, 0)};
    for (int k = 0; k < 2; k++) {
        if (k) pair_append(p);
        pair_compact(p);
        pair_begin(p);
        for (int i = 0; i < 2; i++) pair_rows(p, seq[i], n[k][i]);
    }
    for (int c = 0; c < 2 * cols; c++) p->host[c < cols ? A_K : A_V][9 * cols + c % cols] *= 1e-5f;
    pair_append(p);
}

/* Operands that come with rows, all in one launch, give the bits of those that come of pages, each
 * list in a launch of its own; and pages end alike. */
TEST(operands_of_rows_are_those_of_pages)
{
    int smaller = 0;                           /* no page of codes had an unquantized part */
    for (int i = 0; i < N_INT8 + 20; i += 5) { /* the last: codes of keys are multiplied */
        pair p[2];
        const bool codes = i >= N_INT8;
        dq_simt_set_capability(codes ? 90 : 80);
        dq_kv_bytes before[2], after[2];
        float *scene[2], *rows[2];
        for (int k = 0; k < 2; k++) {
            dq_kv_spec spec = i < SETS || codes ? spec_of(i + 1)
                              : i < MIXED       ? page_spec_of(i + 1)
                                                : mixed_spec_of(i + 1);
            if (codes) spec.k_bits = i % 2 ? 6 : 8;
            open_math_with(&p[k], i / 2, codes ? DQ_NUM_INT8 : math_of(i / 2), spec,
                           k ? 1 : 64 << 20);
            attend_device(&p[k]);
            scene[k] = outputs(&p[k]);
            fill_pages(&p[k]);
            before[k] = p[k].b[CUDA]->ops->kv_bytes(p[k].b[CUDA], p[k].kv[CUDA]);
            attend_device(&p[k]);
            rows[k] = outputs(&p[k]);
            pair_compact(&p[k]);
            after[k] = p[k].b[CUDA]->ops->kv_bytes(p[k].b[CUDA], p[k].kv[CUDA]);
            pair_sync(&p[k]);
        }
        const dq_mat m = pair_mat(&p[0], CUDA, A_OUT);
        assert_memory_equal(scene[0], scene[1], 10 * (size_t)m.cols * sizeof(float));
        assert_memory_equal(rows[0], rows[1], (size_t)(m.rows * m.cols) * sizeof(float));
        assert_int_equal(after[0].codes, after[1].codes);
        assert_int_equal(after[0].scales, after[1].scales);
        assert_true(before[0].unquantized <= before[1].unquantized);
        smaller += before[0].unquantized < before[1].unquantized;
        for (int k = 0; k < 2; k++) {
            free(scene[k]);
            free(rows[k]);
            pair_close(&p[k]);
        }
    }
    dq_simt_set_capability(80);
    assert_true(smaller >= 4);
}

/* All that the longest list takes, more than is set aside for operands. */
TEST(long_lists_are_foretold)
{
    for (int i = 0; i < 6; i++) {
        pair p;
        const dq_num num = i < 4 ? math_of(i) : DQ_NUM_F32;
        open_math_with(&p, i + 1, num, each_spec_of(i), 1);
        dq_cuda *c = p.b[CUDA]->state;
        const dq_ops *op = p.b[CUDA]->ops;
        const double more = op->attend_bytes(p.b[CUDA], p.kv[CUDA], PAIR_FIRST + 50);
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        pair_sync(&p);
        const double took = (double)c->scratch_bytes[DQ_CUDA_SCRATCH_OPERANDS];
        assert_true(took <= more + 1 && (took > 0) == (num != DQ_NUM_F32) &&
                    (more > 0) == (num != DQ_NUM_F32));
        c->operand_bytes = (size_t)more + 1;
        assert_true(op->attend_bytes(p.b[CUDA], p.kv[CUDA], PAIR_FIRST + 50) == 0);
        pair_close(&p);
    }
}

/* Lists whose tokens are all evicted, some or all of them. */
TEST(rows_that_see_nothing_are_zero)
{
    for (int i = 0; i < 8; i++) {
        pair p;
        /* operands come of pages: a list that changes has no others */
        open_math_with(&p, i + 1, math_of(i), each_spec_of(i), 1);
        for (int s = 0; s < p.batch.n_seq; s++)
            for (int g = 0; g < p.map.n_groups; g++)
                if (i < 2 || (s + g + i) % 2) pair_keep(&p, p.seq[s], g, NULL, 0);
        attend_both(&p, (dq_logit_spec){i % 3 ? 16 : 6, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_within(&p, i % 3 ? NEAR : 0.1, false);
        pair_close(&p);
    }
}

/* Launches that begin in the middle of a list, as little memory for strips makes them. */
TEST(little_memory_for_strips_changes_nothing)
{
    for (int i = 0; i < 6; i++) {
        pair p;
        open_math_of(&p, i + 1, math_of(i), each_spec_of(i));
        dq_cuda *c = p.b[CUDA]->state;
        const size_t all = c->strip_bytes;
        dq_head_measure of[2][PAIR_Q];
        dq_head_measure *const measure[2] = {of[CPU], of[CUDA]};
        memset(of, 0, sizeof of);
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, NULL);
        float *before = outputs(&p);
        c->strip_bytes = 1;
        attend_both(&p, (dq_logit_spec){.bits = 16}, NULL, measure);
        c->strip_bytes = all;
        compare_bits(&p, before);
        pair_close(&p);
    }
}

/* What f16 does not hold is told once, by the sync after it; not by a later one, where another error came between. */
TEST(a_number_beyond_f16_is_told_once)
{
    static const int arrays[] = {A_Q, A_K, A_V};
    for (int i = 0; i < 6; i++) {
        pair p;
        dq_err err = {0};
        const bool other = i % 2;
        open_math_of(&p, 0, DQ_NUM_BF16, dq_kv_plain);
        pair_begin(&p);
        pair_rows(&p, 0, 3);
        p.host[arrays[i / 2]][5] = 70000.0f;
        pair_append(&p);
        dq_attend_args a = pair_args(&p, CUDA, (dq_logit_spec){.bits = 16});
        p.b[CUDA]->ops->attend(p.b[CUDA], pair_mat(&p, CUDA, A_OUT), &a);
        a.logit = (dq_logit_spec){4, DQ_GRANULARITY_TILE};
        if (other) p.b[CUDA]->ops->attend(p.b[CUDA], pair_mat(&p, CUDA, A_OUT), &a);
        assert_int_equal(dq_backend_sync(p.b[CUDA], &err), DQ_MISMATCH);
        assert_non_null(strstr(err.text, other ? "rounding of logits by tiles" : "65504"));
        err = (dq_err){0};
        assert_int_equal(dq_backend_sync(p.b[CUDA], &err), DQ_OK);
        pair_close(&p);
    }
}

/* Of rows beyond f16, which are gone when others take their place. */
TEST(what_a_rewind_left_is_not_read)
{
    pair p;
    dq_err err = {0};
    open_math_of(&p, 0, DQ_NUM_BF16, dq_kv_plain);
    const int32_t seq = pair_seq(&p, 0);
    pair_begin(&p);
    pair_rows(&p, seq, 20);
    p.host[A_K][15 * PAIR_KV * p.map.head_dim + 3] = 70000.0f;
    p.math.qk = DQ_NUM_F32;
    pair_append(&p);
    for (int k = CPU; k <= CUDA; k++) p.b[k]->ops->kv_rewind(p.b[k], p.kv[k], seq, 10);
    p.length[seq] = 10;
    pair_begin(&p);
    pair_rows(&p, seq, 3);
    p.math.qk = DQ_NUM_BF16;
    pair_append(&p);
    attend_device(&p);
    assert_int_equal(dq_backend_sync(p.b[CUDA], &err), DQ_OK);
    pair_close(&p);
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
