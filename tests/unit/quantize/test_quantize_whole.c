/* test_quantize_whole: the embedding and the head in codes, and what stays dense in another type: stored values are
 * those of the definition, a tied matrix stays one, the source gives the same bytes again, and damage is named.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* memmem */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "tests/rigs/edits.h"
#include "tests/rigs/test_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dq_model *written(const char *source, const dq_quantize_settings *s)
{
    const char *out = at("whole.h5");
    dq_err err;
    dq_model *m;
    if (write_container(source, out, s, true, false, NULL, &err) != DQ_OK ||
        dq_model_open(&m, out, &err) != DQ_OK || dq_model_check_weights(m, &err) != DQ_OK)
        fail_msg("%s: %s", source, err.text);
    return m;
}

/* What the container remembers gives its bytes again. */
static void expect_its_source(const dq_model *m, const char *source)
{
    dq_err err = {0};
    dq_quantize_settings s;
    dq_quantizer *q = NULL;
    json_t *recipe = NULL;
    if (dq_quantize_settings_of(&s, &recipe, m->container, &err) != DQ_OK ||
        dq_quantize_open(&q, source, &s, &err) != DQ_OK ||
        dq_quantize_compare(q, m->container, NULL, &err) != DQ_OK)
        fail_msg("%s: %s", source, err.text);
    dq_quantize_close(q);
    json_decref(recipe);
}

/* Absmax codes of groups of 32 columns, by the definition. */
static void expect_codes(const dq_weight *got, const dq_weight *from, int bits)
{
    enum { GROUP = 32, MAX_COLS = 512 };
    float x[MAX_COLS], want[MAX_COLS], is[MAX_COLS];
    int8_t codes[MAX_COLS];
    assert_true(dq_weight_is_coded(got) && from->cols <= MAX_COLS);
    assert_int_equal(got->bits, bits);
    for (int64_t r = 0; r < from->rows; r++) {
        dq_weight_dequantize_rows(x, from, r, r + 1);
        for (int64_t c = 0; c < from->cols; c += GROUP) {
            const int64_t n = from->cols - c < GROUP ? from->cols - c : GROUP;
            const float scale = dq_quant_group_scale(x + c, n, bits, DQ_ABSMAX, got->scale_dtype);
            dq_quant_encode_back(codes, want + c, x + c, n, bits, scale, DQ_ABSMAX);
        }
        dq_weight_dequantize_rows(is, got, r, r + 1);
        assert_memory_equal(is, want, (size_t)from->cols * sizeof *is);
    }
}

static void check_ends(const char *source, int embed_bits, int head_bits)
{
    dq_err err = {0};
    dq_model *from;
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    s.embed_bits = embed_bits;
    s.head_bits = head_bits;
    if (dq_model_open(&from, source, &err) != DQ_OK) fail_msg("%s", err.text);
    dq_model *m = written(source, &s);
    assert_int_equal(m->tied, from->tied);
    assert_int_equal(m->n_params, from->n_params);
    assert_int_equal(m->n_warnings, from->n_warnings);
    assert_int_equal(m->weight_bits, 4);
    assert_int_equal(m->embed_bits, embed_bits);
    assert_int_equal(m->head_bits, m->tied ? embed_bits : head_bits);
    assert_ptr_equal(m->head.data == m->embed.data, m->tied);
    if (embed_bits < 16) expect_codes(&m->embed, &from->embed, embed_bits);
    if (m->head_bits < 16) expect_codes(&m->head, &from->head, m->head_bits);
    expect_its_source(m, source);
    dq_model_close(m);
    dq_model_close(from);
}

TEST(ends_are_codes_of_the_definition)
{
    for (int bits = 2; bits <= 8; bits++) {
        check_ends(MODELS "diffllama-f32", bits, 0);
        check_ends(MODELS "llama-bf16-bias", bits, 10 - bits);
    }
    check_ends(MODELS "gda-wide-bf16", 16, 6);
    check_ends(MODELS "v2-f16", 6, 16);
    check_ends(MODELS "motif-bf16", 4, 4);
}

/* A head that is stored beside the embedding it is tied to, with its values: codes are equal too. */
TEST(a_stored_copy_stays_tied)
{
    const edit e = WEIGHT("diffllama-f32", COPY, "model.embed_tokens.weight", "lm_head.weight");
    dq_err err;
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    json_t *rules = json_pack("[{s:s,s:i}]", "name", "lm_head.weight", "bits", 8);
    edits_write(&e);
    check_ends(at(""), 5, 0);
    s.embed_bits = 5;
    s.rules = rules;
    check_error((write_container(at(""), at("whole.h5"), &s, true, false, NULL, &err), &err),
                DQ_MISMATCH, "are one matrix");
    json_decref(rules);
}

TEST(a_tied_head_has_no_width_of_its_own)
{
    dq_err err;
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    s.head_bits = 6;
    check_error(
        (write_container(MODELS "diffllama-f32", at("whole.h5"), &s, true, false, NULL, &err),
         &err),
        DQ_MISMATCH,
        "is its embedding (tied), which cannot have 6 bits as the one and 16 as the other");
}

/* ---- Dense ---- */

static float rounded(float x, dq_dense_type type)
{
    return type == DQ_DENSE_F16 ? dq_f32_from_f16(dq_f16_from_f32(x))
                                : dq_f32_from_bf16(dq_bf16_from_f32(x));
}

static void expect_tensor(const dq_model *m, const dq_tensor *t, dq_dense_type type)
{
    const dq_source from = dq_container_source(m->container);
    const bool matrix = t->n_dims > 1;
    const dq_dtype want = !matrix ? t->dtype : type == DQ_DENSE_F16 ? DQ_F16 : DQ_BF16;
    const int64_t n = dq_tensor_numel(t);
    dq_err err = {0};
    dq_weight w = {0};
    float *x = dq_block_new((size_t)n, sizeof *x, &err),
          *y = dq_block_new((size_t)n, sizeof *y, &err);
    assert_true(from.find(from.arg, t->name, &w));
    assert_int_equal(w.dtype, want);
    dq_tensor_to_f32(x, t->data, t->dtype, n);
    dq_tensor_to_f32(y, w.data, w.dtype, n);
    for (int64_t i = 0; i < n; i++) {
        const float v = matrix ? rounded(x[i], type) : x[i];
        assert_true(memcmp(&y[i], &v, sizeof v) == 0);
    }
    dq_block_free(x);
    dq_block_free(y);
}

TEST(matrices_are_rounded_and_vectors_stay)
{
    static const char *const models[] = {MODELS "diffllama-f32", MODELS "gda-f32-shards",
                                         MODELS "llama-f16-linear", MODELS "motif-bf16"};
    for (int i = 0; i < 8; i++) {
        const char *source = models[i / 2];
        dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
        s.bits = 16;
        s.dense_type = i % 2 ? DQ_DENSE_BF16 : DQ_DENSE_F16;
        dq_model *m = written(source, &s);
        assert_true(m->is_rounded);
        dq_checkpoint *c = given_checkpoint(source);
        for (int64_t k = 0; k < c->count; k++) expect_tensor(m, &c->tensor[k], s.dense_type);
        dq_checkpoint_close(c);
        expect_its_source(m, source);
        dq_model_close(m);
    }
}

/* What is skipped is as it was; what a rule leaves dense is rounded. */
TEST(what_is_skipped_keeps_its_type)
{
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    json_t *rules = json_pack("[{s:s,s:i}]", "match", "q_proj|k_proj", "bits", 16);
    s.rules = rules;
    s.skip = "k_proj|embed";
    s.dense_type = DQ_DENSE_BF16;
    dq_model *m = written(MODELS "diffllama-f32", &s);
    assert_int_equal(m->layer[0].q.dtype, DQ_BF16);
    assert_int_equal(m->layer[0].k.dtype, DQ_F32);
    assert_int_equal(m->embed.dtype, DQ_F32);
    expect_its_source(m, MODELS "diffllama-f32");
    dq_model_close(m);
    json_decref(rules);
}

static float planted;

/* Row 2, column 5 of the embedding. */
static void plant(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, "model.embed_tokens.weight") == 0)
        memcpy(bytes + (size_t)(2 * w->cols + 5) * sizeof planted, &planted, sizeof planted);
}

TEST(what_would_be_infinite_is_refused)
{
    const edit e = {.base = "diffllama-f32", .change = plant};
    const struct {
        float value;
        dq_dense_type type;
        bool fits;
    } t[] = {{65519.0f, DQ_DENSE_F16, true},   {65520.0f, DQ_DENSE_F16, false},
             {-65520.0f, DQ_DENSE_F16, false}, {1e9f, DQ_DENSE_BF16, true},
             {3.4e38f, DQ_DENSE_BF16, false},  {1e-7f, DQ_DENSE_F16, true}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err;
        dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
        s.dense_type = t[i].type;
        planted = t[i].value;
        edits_write(&e);
        write_container(at(""), at("whole.h5"), &s, true, false, NULL, &err);
        if (t[i].fits) assert_string_equal(err.text, "");
        if (!t[i].fits)
            check_error(&err, DQ_MISMATCH,
                        "tensor \"model.embed_tokens.weight\": the value at row 2, column 5");
    }
}

/* ---- Damage ---- */

/* One byte of a part of the embedding is another one. */
TEST(damage_is_named)
{
    const char *out = at("whole.h5"), *broken = at("broken.h5");
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    dq_err err = {0};
    dq_arena *a = given_arena();
    char *bytes;
    size_t len;
    s.embed_bits = 6;
    dq_model *m = written(MODELS "diffllama-f32", &s);
    assert_int_equal(dq_file_read(&bytes, &len, out, a, &err), DQ_OK);
    for (int64_t i = 0; i < m->container->n_payloads; i++) {
        const dq_payload *p = &m->container->payload[i];
        dq_model *again;
        if (!strstr(p->path, "embed_tokens")) continue;
        err = (dq_err){0};
        char *byte = memmem(bytes, len, p->data, (size_t)p->bytes);
        assert_non_null(byte);
        byte[p->bytes / 2] ^= 1;
        edits_put("broken.h5", bytes, len);
        byte[p->bytes / 2] ^= 1;
        assert_int_equal(dq_model_open(&again, broken, &err), DQ_OK);
        dq_model_check_weights(again, &err);
        check_error(&err, DQ_DAMAGED, p->path);
        dq_model_close(again);
    }
    dq_model_close(m);
}

FIXTURES(folder_begin, folder_end)
