/* test_runner: whole models against the references, at every ISA or on DQ_TEST_DEVICE;
 * properties of passes.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* setenv under strict C17 */
#include "tests/rigs/suite.h"

#include "engine/runner.h"
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <stdlib.h>

static const char *const models[] = {"llama-f32",
                                     "llama-bf16-bias",
                                     "llama-f16-linear",
                                     "llama-bf16-far",
                                     "llama-yarn",
                                     "llama-yarn-factor",
                                     "llama-dynamic",
                                     "diffllama-f32",
                                     "diffllama-bf16-untied",
                                     "diffllama-f16-shards",
                                     "diffllama-bf16-far",
                                     "v1-bf16",
                                     "v1-naive-f32",
                                     "v1-nonorm",
                                     "v1-const",
                                     "plain-norm",
                                     "plain-adjacent",
                                     "v2-f16",
                                     "motif-bf16",
                                     "motif-gqa-f32",
                                     "gda-f32-shards",
                                     "gda-wide-bf16",
                                     "qwen2-bf16",
                                     "qwen3-f32",
                                     "mistral-f16",
                                     "smollm3-bf16",
                                     "qwen2-window",
                                     "qwen3-window",
                                     "mistral-window",
                                     "smollm3-window",
                                     "gemma3-f32",
                                     "gemma3-bf16-wide"};
enum { N_MODELS = sizeof models / sizeof models[0], MAX_ROWS = 256 };

/* Instruction sets, and numbers of threads, to go through: they change nothing on another device. */
static int n_isas(void)
{
    return strcmp(test_device(), "cpu") == 0 ? 3 : 1;
}

typedef struct rig {
    char folder[1024];
    golden g;
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    int64_t n; /* tokens */
    int32_t ids[MAX_ROWS];
} rig;

static void rig_open(rig *x, const char *model, const char *isa, int threads)
{
    memset(x, 0, sizeof *x);
    snprintf(x->folder, sizeof x->folder, DQ_TEST_DIR "/golden/models/%s", model);
    x->g = golden_open(x->folder);
    setenv("DQ_CPU", isa, 1);
    x->m = given_model("%s", x->folder);
    x->b = given_backend(threads);
    x->r = given_runner(x->m, x->b);
    const dq_tensor *ids = golden_find(&x->g, "ids");
    x->n = ids->shape[0];
    assert_true(x->n <= MAX_ROWS);
    for (int64_t i = 0; i < x->n; i++) x->ids[i] = golden_i32(ids, i);
}

static void rig_close(rig *x)
{
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
    golden_close(&x->g);
    unsetenv("DQ_CPU");
}

/* Appends ids [begin, end) at positions offset + index and copies the hidden rows. */
static void append(rig *x, int32_t seq, int64_t begin, int64_t end, int32_t offset,
                   dq_logit_spec logit, float *hidden)
{
    dq_err err = {0};
    int32_t pos[MAX_ROWS];
    int64_t cu[2] = {0, end - begin};
    for (int64_t i = begin; i < end; i++) pos[i - begin] = offset + (int32_t)i;
    dq_batch batch = {.n_seq = 1,
                      .n_rows = end - begin,
                      .cu_rows = cu,
                      .seq = &seq,
                      .ids = x->ids + begin,
                      .pos = pos};
    dq_pass pass = {.logit = logit};
    dq_mat h;
    dq_runner_pass(x->r, &batch, &pass, &h, &err);
    assert_string_equal(err.text, "");
    x->b->ops->get(x->b, hidden + begin * h.cols, h.p,
                   (size_t)((end - begin) * h.cols) * sizeof(float));
}

static float *all_logits(rig *x, int32_t offset, dq_logit_spec logit)
{
    dq_err err = {0};
    const dq_ops *op = x->b->ops;
    const int64_t n_hidden = x->n * x->m->dim, n_logits = x->n * x->m->vocab;
    test_array hidden = test_array_new(x->b, (size_t)n_hidden);
    test_array logits = test_array_new(x->b, (size_t)n_logits);
    int32_t seq = op->kv_seq_new(x->b, dq_runner_kv(x->r));
    append(x, seq, 0, x->n, offset, logit, hidden.host);
    op->kv_seq_free(x->b, dq_runner_kv(x->r), seq);
    test_put(x->b, &hidden, n_hidden);
    op->matmul(x->b, (dq_mat){logits.device, x->n, x->m->vocab},
               (dq_mat){hidden.device, x->n, x->m->dim}, &x->m->head, NULL, DQ_NUM_F32);
    test_get(x->b, &logits, n_logits);
    assert_int_equal(dq_backend_sync(x->b, &err), DQ_OK);
    test_array_free(x->b, &hidden);
    op->free(x->b, logits.device);
    return logits.host;
}

/* max and mean |got - want| over the stored entries, relative to the largest |want| of the set. */
static void differ(const rig *x, const float *logits, const dq_tensor *want, const char *row_name,
                   const char *col_name, double *max, double *mean)
{
    const dq_tensor *rows = golden_find(&x->g, row_name);
    const dq_tensor *cols = col_name ? golden_find(&x->g, col_name) : NULL;
    double top = 0, sum = 0;
    *max = 0;
    for (int64_t i = 0; i < want->shape[0]; i++) {
        for (int64_t j = 0; j < want->shape[1]; j++) {
            int64_t c = cols ? golden_i32(cols, j) : j;
            double w = (double)golden_f32(want, i * want->shape[1] + j);
            double d = fabs((double)logits[golden_i32(rows, i) * (int64_t)x->m->vocab + c] - w);
            if (fabs(w) > top) top = fabs(w);
            if (!(d <= *max)) *max = d;
            sum += d;
        }
    }
    *max /= top;
    *mean = sum / (double)dq_tensor_numel(want) / top;
}

static const char *const isas[] = {"scalar", "avx2", "avx512"};

TEST(equals_the_reference)
{
    for (int i = 0; i < N_MODELS; i++) {
        for (int isa = 0; isa < n_isas(); isa++) {
            static const int32_t offsets[] = {0, 4000, 60000};
            rig x;
            rig_open(&x, models[i], isas[isa], 2);
            for (int o = 0; o < 3; o++) {
                char name[64], err_name[64];
                double max, mean;
                snprintf(name, sizeof name, o ? "logits.pos%d" : "logits", (int)offsets[o]);
                snprintf(err_name, sizeof err_name, o ? "err.pos%d" : "err", (int)offsets[o]);
                const dq_tensor *want = golden_find(&x.g, name);
                if (!want) continue;
                float *got = all_logits(&x, offsets[o], (dq_logit_spec){.bits = 16});
                differ(&x, got, want, "rows", NULL, &max, &mean);
                double own = (double)golden_f32(golden_find(&x.g, err_name), 0);
                double limit = 2 * own > 2e-5 ? 2 * own : 2e-5;
                printf("%-24s %-7s pos %5d  max |d| / max |logit| = %.2e (limit %.2e, the "
                       "reference's own %.2e)\n",
                       models[i], n_isas() > 1 ? isas[isa] : test_device(), (int)offsets[o], max,
                       limit, own);
                assert_true(max <= limit);
                free(got);
            }
            rig_close(&x);
        }
    }
}

/* A logit next to a rounding boundary may fall on either side of it in another order of sums; then
 * single entries move, the mean hardly does. A wrong granularity or width moves the mean by far more. */
TEST(rounded_logits_equal_the_oracle)
{
    static const int bits[] = {8, 6, 4, 3, 2};
    static const char *const which[] = {"llama-f32", "diffllama-f32",  "v1-bf16",
                                        "v2-f16",    "gda-f32-shards", "gemma3-f32"};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        rig x;
        rig_open(&x, which[i], "avx512", 2);
        for (int k = 0; k < 5; k++) {
            for (int g = 0; g < 4; g++) {
                char name[64];
                double max, mean;
                if (!test_runs((int)i + k + g, 4)) continue;
                snprintf(name, sizeof name, "logits.%d.%s", bits[k], dq_granularity_name[g]);
                float *got = all_logits(&x, 0, (dq_logit_spec){bits[k], (dq_granularity)g});
                differ(&x, got, golden_find(&x.g, name), "qrows", "qcols", &max, &mean);
                printf("%-14s %d bits %-6s max %.2e mean %.2e\n", which[i], bits[k],
                       dq_granularity_name[g], max, mean);
                assert_true(max <= 2e-5 || mean <= 5e-4);
                free(got);
            }
        }
        rig_close(&x);
    }
}

/* Threads, chunks of appending and forks give the same bytes where no group spans rows. */
static void chunks_and_threads(const char *model)
{
    static const int64_t chunk[] = {1, 7, 64, 160};
    static const dq_logit_spec logit[] = {{16, DQ_GRANULARITY_TENSOR}, {4, DQ_GRANULARITY_ROW}};
    for (int k = 0; k < 2; k++) {
        dq_err err = {0};
        float *want = NULL;
        for (int threads = 1; threads <= n_isas(); threads++) {
            for (int c = 0; c < 4; c++) {
                if (!test_runs(c + 1, 2)) continue; /* one row at a time takes longest */
                rig x;
                rig_open(&x, model, "avx512", threads);
                size_t bytes = (size_t)(x.n * x.m->dim) * sizeof(float);
                float *got = dq_block_new(1, bytes, &err);
                dq_kv *kv = dq_runner_kv(x.r);
                int32_t seq = x.b->ops->kv_seq_new(x.b, kv);
                for (int64_t begin = 0; begin < x.n; begin += chunk[c]) {
                    int64_t end = begin + chunk[c] < x.n ? begin + chunk[c] : x.n;
                    int32_t fork = x.b->ops->kv_fork(x.b, kv, seq);
                    x.b->ops->kv_seq_free(x.b, kv, seq);
                    seq = fork;
                    append(&x, seq, begin, end, 0, logit[k], got);
                }
                if (!want)
                    want = got;
                else {
                    assert_memory_equal(got, want, bytes);
                    dq_block_free(got);
                }
                rig_close(&x);
            }
        }
        dq_block_free(want);
    }
}

TEST(chunks_and_threads_change_no_bit)
{
    chunks_and_threads("diffllama-f32");
    chunks_and_threads("gemma3-f32"); /* windows, two bases */
}

/* The other sequences of a batch, and their order, change nothing: also for granularities that span rows. */
TEST(batching_changes_no_bit)
{
    for (int g = 0; g < 4; g++) {
        rig x;
        dq_err err = {0};
        dq_logit_spec logit = {4, (dq_granularity)g};
        rig_open(&x, "diffllama-f32", "avx512", 2);
        size_t dim = (size_t)x.m->dim;
        float *alone = dq_block_new(160 * dim, sizeof(float), &err);
        dq_kv *kv = dq_runner_kv(x.r);
        int32_t first = x.b->ops->kv_seq_new(x.b, kv);
        append(&x, first, 0, 90, 0, logit, alone);

        int32_t seq[3], pos[MAX_ROWS], ids[MAX_ROWS];
        int64_t cu[4] = {0, 20, 110, 140};
        for (int s = 0; s < 3; s++) {
            seq[s] = x.b->ops->kv_seq_new(x.b, kv);
            for (int64_t i = cu[s]; i < cu[s + 1]; i++) {
                pos[i] = (int32_t)(i - cu[s]);
                ids[i] = x.ids[s == 1 ? i - cu[s] : i];
            }
        }
        dq_batch batch = {
            .n_seq = 3, .n_rows = 140, .cu_rows = cu, .seq = seq, .ids = ids, .pos = pos};
        dq_pass pass = {.logit = logit};
        dq_mat h;
        assert_int_equal(dq_runner_pass(x.r, &batch, &pass, &h, &err), DQ_OK);
        float *beside = dq_block_new(90 * dim, sizeof(float), &err);
        x.b->ops->get(x.b, beside, h.p + 20 * h.cols, 90 * dim * sizeof(float));
        assert_memory_equal(beside, alone, 90 * dim * sizeof(float));
        dq_block_free(beside);
        dq_block_free(alone);
        rig_close(&x);
    }
}

TEST(ids_outside_the_vocabulary_are_refused)
{
    rig x;
    dq_err err = {0};
    rig_open(&x, "llama-f32", "avx2", 1);
    int64_t cu[2] = {0, 1};
    int32_t seq = x.b->ops->kv_seq_new(x.b, dq_runner_kv(x.r)), pos = 0, id = x.m->vocab;
    dq_batch batch = {.n_seq = 1, .n_rows = 1, .cu_rows = cu, .seq = &seq, .ids = &id, .pos = &pos};
    dq_pass pass = {.logit = {.bits = 16}};
    dq_mat h;
    assert_int_equal(dq_runner_pass(x.r, &batch, &pass, &h, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "vocabulary"));
    rig_close(&x);
}

static int cached, max_cached;

static bool acquire(dq_backend *b, const dq_weight *w)
{
    assert_true(w->rows > 0);
    if (cached == max_cached) {
        dq_fail(&b->err, DQ_RESOURCE, "planted");
        return false;
    }
    cached++;
    return true;
}

static void release(dq_backend *b, const dq_weight *w)
{
    (void)b;
    assert_true(w->rows > 0);
    cached--;
}

/* As often as they were acquired, also when that fails half-way. The embedding is, where the backend wants it. */
static void expect_releases(bool embeds_in_place)
{
    enum { PER_LAYER = 7 };
    rig x;
    dq_runner *r[2];
    rig_open(&x, "llama-f16-linear", "scalar", 1);
    const dq_ops *own = x.b->ops;
    dq_ops ops = *own;
    ops.embeds_in_place = embeds_in_place;
    ops.weight_acquire = acquire;
    ops.weight_release = release;
    x.b->ops = &ops;
    max_cached = 1000;
    for (int i = 0; i < 2; i++) {
        dq_err err = {0};
        assert_int_equal(dq_runner_new(&r[i], x.m, x.b, &dq_kv_plain, &err), DQ_OK);
    }
    assert_int_equal(cached, 2 * ((embeds_in_place ? 1 : 2) + PER_LAYER * x.m->n_layers));
    max_cached = cached / 2;
    for (int i = 0; i < 2; i++) dq_runner_free(r[i]);
    assert_int_equal(cached, 0);
    while (--max_cached >= 0) {
        dq_err err = {0};
        assert_int_equal(dq_runner_new(&r[0], x.m, x.b, &dq_kv_plain, &err), DQ_RESOURCE);
        assert_non_null(strstr(err.text, "planted"));
        assert_int_equal(cached, 0);
    }
    x.b->ops = own;
    rig_close(&x);
}

TEST(weights_are_released)
{
    assert_true(dq_ops_cpu.embeds_in_place);
    expect_releases(true);
    expect_releases(false);
}
