/* test_gguf_model: a GGUF file as a model: logits and rows as transformers has them of the same file, whatever the isa and
 * however the model is cut into files.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/suite.h"

#include "engine/runner.h"
#include "tensor/weight_format.h"
#include "tests/rigs/given.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <stdlib.h>

#define FOLDER DQ_TEST_DIR "/golden/gguf/model"

enum { MAX_IDS = 64, MAX_VOCAB = 512, MAX_DIM = 256 };

/* logits[n][vocab] of the golden's ids, by a backend of the ISA. */
static void logits_of(float *logits, const dq_model *m, const int32_t *ids, int64_t n,
                      const char *isa)
{
    static float hidden[MAX_IDS * MAX_DIM];
    dq_err err = {0};
    int32_t pos[MAX_IDS];
    dq_mat h;
    const int64_t cu[2] = {0, n};
    setenv("DQ_CPU", isa, 1);
    for (int i = 0; i < n; i++) pos[i] = i;
    dq_backend *b = given_backend(2);
    dq_runner *r = given_runner(m, b);
    const int32_t seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
    const dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
    const dq_pass pass = {.logit = dq_logit_plain};
    assert_int_equal(dq_runner_pass(r, &batch, &pass, &h, &err), DQ_OK);
    b->ops->get(b, hidden, h.p, (size_t)(n * h.cols) * sizeof *hidden);
    b->ops->matmul(b, (dq_mat){logits, n, m->vocab}, (dq_mat){hidden, n, m->dim}, &m->head, NULL,
                   DQ_NUM_F32);
    assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
    dq_runner_free(r);
    dq_backend_close(b);
    unsetenv("DQ_CPU");
}

TEST(logits_are_those_of_transformers)
{
    static const char *const files[] = {"model.gguf", "parts-00001-of-00002.gguf"};
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    static float got[MAX_IDS * MAX_VOCAB];
    int32_t ids[MAX_IDS];
    golden g = golden_open(FOLDER);
    const dq_tensor *want = golden_find(&g, "logits"), *list = golden_find(&g, "ids");
    const int64_t n = list->shape[0], values = dq_tensor_numel(want);
    for (int64_t i = 0; i < n; i++) ids[i] = golden_i32(list, i);
    for (int k = 0; k < 6; k++) {
        double worst = 0, top = 0;
        dq_model *m = given_model(FOLDER "/%s", files[k / 3]);
        logits_of(got, m, ids, n, isas[k % 3]);
        for (int64_t i = 0; i < values; i++) {
            const double w = (double)golden_f32(want, i), d = fabs((double)got[i] - w);
            if (fabs(w) > top) top = fabs(w);
            if (!(d <= worst)) worst = d;
        }
        if (!(worst <= 2e-6 * top))
            fail_msg("%s, %s: off by %g of %g", files[k / 3], isas[k % 3], worst, top);
        dq_model_close(m);
    }
    golden_close(&g);
}

/* q in codes that dq multiplies, k in blocks, both with rows in the order of transformers, to the bit. */
TEST(rows_come_back)
{
    dq_err err = {0};
    dq_model *m = given_model(FOLDER "/%s", "model.gguf");
    golden g = golden_open(FOLDER);
    assert_int_equal(dq_model_check_weights(m, &err), DQ_OK);
    const struct {
        const dq_weight *w;
        const char *name;
        bool affine;
    } t[] = {{&m->layer[0].q, "q", true}, {&m->layer[0].k, "k", false}};
    for (int i = 0; i < 2; i++) {
        const dq_tensor *want = golden_find(&g, t[i].name);
        float row[MAX_DIM];
        assert_true(dq_weight_is_coded(t[i].w));
        assert_true(dq_weight_is_affine(t[i].w) == t[i].affine);
        assert_int_equal(t[i].w->rows, want->shape[0]);
        for (int64_t r = 0; r < t[i].w->rows; r++) {
            dq_weight_dequantize_rows(row, t[i].w, r, r + 1);
            const uint8_t *is =
                (const uint8_t *)want->data + (size_t)(r * t[i].w->cols) * sizeof *row;
            if (memcmp(row, is, (size_t)t[i].w->cols * sizeof *row) != 0)
                fail_msg("%s, row %d", t[i].name, (int)r);
        }
    }
    golden_close(&g);
    dq_model_close(m);
}
