/* test_kv_dense: keys and values that are not codes, held in two bytes: numbers and attention against PyTorch, and against a
 * cache in f32 that is fed the rounded numbers, which must give the same bits in everything.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "kernels/cpu/kv/cpu_kv.h"
#include "tests/rigs/golden.h"
#include "tests/rigs/isas.h"
#include "tests/rigs/kv_stage.h"

enum { TYPES = 2 };
static const dq_kv_dense types[TYPES] = {DQ_KV_F16, DQ_KV_BF16};
static const dq_dtype dtypes[TYPES] = {DQ_F16, DQ_BF16};

static const dq_tensor *find(const golden *g, const char *what, int type)
{
    char name[16];
    snprintf(name, sizeof name, "%s.%s", what, dq_kv_dense_name[types[type]]);
    const dq_tensor *t = golden_find(g, name);
    assert_non_null(t);
    return t;
}

static float rounded(float x, dq_kv_dense type)
{
    return type == DQ_KV_F16 ? dq_f32_from_f16(dq_f16_from_f32(x))
                             : dq_f32_from_bf16(dq_bf16_from_f32(x));
}

/* The tensor's first n elements as the keys and values of all heads of n / (N_KV * 32) rows. */
static void put_rows(stage *s, const void *x, int n)
{
    memcpy(s->k, x, (size_t)n * sizeof(float));
    memcpy(s->v, x, (size_t)n * sizeof(float));
}

/* 32 tokens of 4 heads of 32 channels. */
TEST(numbers_are_pytorchs)
{
    enum { ROWS = 32, D = 32 };
    golden g = golden_open(DQ_TEST_DIR "/golden/dense");
    for (int i = 0; i < TYPES * N_ISAS; i++) {
        const dq_tensor *in = find(&g, "x", i % TYPES), *want = find(&g, "n", i % TYPES);
        const dq_simd *simd = table_of(i / TYPES);
        dq_kv_spec spec = dq_kv_plain;
        float wide[ROWS * N_KV * D];
        stage s;
        spec.dense = types[i % TYPES];
        if (!simd) continue;
        assert_int_equal(want->dtype, dtypes[i % TYPES]);
        open_stage(&s, DQ_PAIR_NONE, D, spec, 1);
        new_seq(&s, 1, 0);
        begin_batch(&s);
        add_rows(&s, 0, ROWS);
        put_rows(&s, in->data, ROWS * N_KV * D);
        append(&s);
        expect_no_error(&s);
        dq_tensor_to_f32(wide, want->data, want->dtype, ROWS * N_KV * D);
        float *scratch = new_floats(dq_cpu_kv_scratch_floats(s.kv));
        for (int h = 0; h < N_KV; h++) {
            const dq_kv_list *list = dq_kv_list_of(s.kv, 0, 0, s.map.group[h]);
            for (int side = DQ_K; side <= DQ_V; side++) {
                const float *got = dq_cpu_kv_read(simd, s.kv, list, 0, side, h, 0, scratch);
                for (int r = 0; r < ROWS * D; r++) {
                    const int at = side == DQ_K ? r % D * DQ_PAGE_TOKENS + r / D
                                                : r / D * (int)s.kv->v_cols + r % D;
                    assert_true(same_bits(got + at, &wide[(r / D * N_KV + h) * D + r % D], 1));
                }
            }
        }
        dq_block_free(scratch);
        close_stage(&s);
    }
    golden_close(&g);
}

TEST(attention_is_pytorchs)
{
    enum { ROWS = 100, D = 32 };
    static const int chunks[] = {ROWS, 64, 7, 1};
    golden g = golden_open(DQ_TEST_DIR "/golden/dense");
    for (int i = 0; i < TYPES * 4; i++) {
        const dq_tensor *want = find(&g, "y", i % TYPES);
        const char *const name[] = {"q", "k", "v"};
        dq_kv_spec spec = dq_kv_plain;
        stage s;
        spec.dense = types[i % TYPES];
        open_stage(&s, DQ_PAIR_NONE, D, spec, 2);
        s.attn.head_norm = false;
        s.attn.out_scale = 1;
        new_seq(&s, 1, 0);
        double worst = 0;
        for (int at = 0; at < ROWS; at += chunks[i / TYPES]) {
            const int left = ROWS - at, n = left < chunks[i / TYPES] ? left : chunks[i / TYPES];
            begin_batch(&s);
            add_rows(&s, 0, n);
            for (int k = 0; k < 3; k++) {
                const dq_tensor *t = golden_find(&g, name[k]);
                const size_t row = (size_t)t->shape[1] * D * sizeof(float);
                memcpy(k == 0   ? s.q
                       : k == 1 ? s.k
                                : s.v,
                       (const char *)t->data + (size_t)at * row, (size_t)n * row);
            }
            append(&s);
            attend(&s, 16);
            for (int64_t e = 0; e < n * out_cols(&s); e++)
                worst = fmax(worst, fabs((double)s.out[e] -
                                         (double)golden_f32(want, at * out_cols(&s) + e)));
        }
        expect_no_error(&s);
        if (!(worst < 5e-6)) fail_msg("off by %g", worst); /* the other type: thousandths */
        close_stage(&s);
    }
    golden_close(&g);
}

/* ---- The same bits as a cache in f32 that is fed rounded numbers ---- */

typedef struct answers {
    float out[2 * 230 * 512];
    double norms[2 * 230], cosines[2 * 230], leverages[2 * 230];
    int64_t n;
} answers;

static void step(stage *s, answers *to, int32_t seq, int n, dq_kv_dense round)
{
    begin_batch(s);
    add_rows(s, seq, n);
    for (int64_t i = 0; round && i < (int64_t)n * N_KV * s->map.head_dim; i++) {
        s->k[i] = rounded(s->k[i], round);
        s->v[i] = rounded(s->v[i], round);
    }
    append(s);
    attend(s, 16);
    memcpy(to->out + to->n, s->out, (size_t)(n * out_cols(s)) * sizeof *s->out);
    to->n += n * out_cols(s);
    compact_stage(s);
}

static void ask_policies(stage *s, answers *to, int32_t seq, int at)
{
    float freq[16];
    const dq_rope rope = {.dim = 32, .inv_freq = freq, .amplitude = 1};
    for (int c = 0; c < 16; c++) freq[c] = powf(100.0f, -(float)c / 16);
    for (int g = 0; g < s->map.n_groups && g < 2; g++) {
        s->b->ops->kv_key_norms(s->b, s->kv, seq, 0, g, at, to->norms + g * 230);
        s->b->ops->kv_key_cosines(s->b, s->kv, seq, 0, g, at, to->cosines + g * 230);
        s->b->ops->kv_key_leverages(s->b, s->kv, seq, 0, g, at, &rope, to->leverages + g * 230);
    }
}

/* Prefill, single tokens, a fork, what is left after eviction, a rewind. */
static void tell_story(answers *to, dq_pairing pairing, dq_kv_spec spec, dq_math math,
                       dq_kv_dense round)
{
    stage s;
    int32_t kept[160];
    memset(to, 0, sizeof *to);
    open_stage(&s, pairing, 32, spec, 2);
    s.math = math;
    const int32_t a = new_seq(&s, 1, 0);
    step(&s, to, a, 100, round);
    for (int i = 0; i < 60; i++) step(&s, to, a, 1, round);
    const int32_t b = fork_seq(&s, a, 1);
    step(&s, to, b, 9, round);
    s.b->ops->kv_rewind(s.b, s.kv, b, 163);
    dq_oracle_rewind(s.oracle, b, 163);
    s.length[b] = 163;
    step(&s, to, b, 5, round);
    ask_policies(&s, to, b, 168);
    for (int i = 0; i < 110; i++) kept[i] = i < 20 ? i : i + 50;
    for (int g = 0; g < s.map.n_groups; g++) keep(&s, a, g, kept, 110);
    step(&s, to, a, 3, round);
    for (int i = 0; i < 20; i++) step(&s, to, a, 1, round);
    expect_no_error(&s);
    close_stage(&s);
}

static const dq_kv_spec specs[] = {
    {.k_bits = 16, .v_bits = 16, .group = 32, .sink = 4, .recent = 64},
    {.k_bits = 8, .v_bits = 4, .group = 32, .sink = 4, .recent = 30},
    {.k_bits = 4, .v_bits = 8, .group = 7, .sink = 0, .recent = 0, .quant = DQ_KV_PER_CHANNEL},
    {.k_bits = 5, .v_bits = 4, .group = 32, .sink = 70, .recent = 16, .quant = DQ_KV_DITHER},
    {.k_bits = 16, .v_bits = 3, .group = 32, .sink = 5, .recent = 20},
    {.k_bits = 8, .v_bits = 8, .group = 32, .sink = 3, .recent = 64, .rotate_k = true},
};
enum { SPECS = sizeof specs / sizeof *specs };

TEST(as_f32_of_rounded_numbers)
{
    static const dq_pairing pairings[] = {DQ_PAIR_NONE, DQ_PAIR_ADJACENT, DQ_PAIR_HALVES,
                                          DQ_PAIR_SHARED_KV};
    answers *got = calloc(2, sizeof *got), *want = got + 1;
    for (int i = 0; i < SPECS * TYPES * N_ISAS * 2; i++) {
        const int isa = i / (SPECS * TYPES) % N_ISAS;
        const bool int8 = i / (SPECS * TYPES * N_ISAS);
        dq_kv_spec spec = specs[i % SPECS];
        dq_math math = {0};
        if (!table_of(isa) || (int8 && (spec.k_bits == 16 || spec.v_bits == 16))) continue;
        if (int8) {
            math.qk = math.pv = math.kv = spec.num = DQ_NUM_INT8;
        }
        const dq_pairing pairing = pairings[i % 4];
        setenv("DQ_CPU", isas[isa], 1);
        tell_story(want, pairing, spec, math, types[i / SPECS % TYPES]);
        spec.dense = types[i / SPECS % TYPES];
        tell_story(got, pairing, spec, math, DQ_KV_F32);
        unsetenv("DQ_CPU");
        assert_int_equal(got->n, want->n);
        assert_in_range(got->n, 1, sizeof got->out / sizeof *got->out);
        assert_memory_equal(got, want, sizeof *got);
    }
    free(got);
}

/* ---- What a type cannot hold ---- */

static dq_err append_one(dq_kv_dense type, float x, bool value)
{
    dq_kv_spec spec = dq_kv_plain;
    dq_err err = {0};
    stage s;
    spec.dense = type;
    open_stage(&s, DQ_PAIR_ADJACENT, 32, spec, 2);
    const int32_t a = new_seq(&s, 1, 0);
    stream(&s, a, 40);
    begin_batch(&s);
    add_rows(&s, a, 50);
    (value ? s.v : s.k)[33 * N_KV * 32 + 70] = x;
    append(&s);
    dq_backend_sync(s.b, &err);
    for (int g = 0; g < s.map.n_groups; g++)
        assert_int_equal(s.b->ops->kv_count(s.b, s.kv, a, 0, g, NULL), err.code ? 40 : 90);
    close_stage(&s);
    return err;
}

TEST(what_does_not_fit_is_refused)
{
    static const struct {
        dq_kv_dense type;
        float x;
        const char *text; /* NULL: it fits */
    } cases[] = {
        {DQ_KV_F16, 65519.996f, NULL},
        {DQ_KV_F16, 65520.0f, "layer 0 has a key or value of 65520, and f16 ends at 65504"},
        {DQ_KV_F16, -1e30f, "layer 0 has a key or value of 1e+30, and f16 ends at 65504"},
        {DQ_KV_F16, INFINITY, NULL},
        {DQ_KV_F16, NAN, NULL},
        {DQ_KV_BF16, -1e38f, NULL},
        {DQ_KV_BF16, 3.4e38f, "layer 0 has a key or value of 3.4e+38, and bf16 ends at "},
        {DQ_KV_F32, 3.4e38f, NULL},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const dq_err err = append_one(cases[i / 2].type, cases[i / 2].x, i % 2);
        const char *text = cases[i / 2].text;
        assert_int_equal(err.code, text ? DQ_MISMATCH : DQ_OK);
        if (text && strncmp(err.text, text, strlen(text)) != 0) fail_msg("%s", err.text);
    }
}
