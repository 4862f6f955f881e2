/* test_gguf_model: a GGUF file as a model: logits and rows as transformers has them of the same file, whatever the isa and
 * however the model is cut into files.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/suite.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "engine/runner.h"
#include "tensor/tensor.h"
#include "tests/rigs/given.h"
#include "tests/rigs/golden.h"
#include "tests/rigs/test_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GGUF   DQ_TEST_DIR "/golden/gguf"
#define FOLDER GGUF "/model"

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

/* Of a file's model at every ISA beside the golden's logits. */
static void check_logits(const golden *g, const char *path)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    static float got[MAX_IDS * MAX_VOCAB];
    int32_t ids[MAX_IDS];
    const dq_tensor *want = golden_find(g, "logits"), *list = golden_find(g, "ids");
    const int64_t n = list->shape[0], values = dq_tensor_numel(want);
    for (int64_t i = 0; i < n; i++) ids[i] = golden_i32(list, i);
    for (int k = 0; k < 3; k++) {
        double worst = 0, top = 0;
        dq_model *m = given_model("%s", path);
        logits_of(got, m, ids, n, isas[k]);
        for (int64_t i = 0; i < values; i++) {
            const double w = (double)golden_f32(want, i), d = fabs((double)got[i] - w);
            if (fabs(w) > top) top = fabs(w);
            if (!(d <= worst)) worst = d;
        }
        if (!(worst <= 2e-6 * top)) fail_msg("%s, %s: off by %g of %g", path, isas[k], worst, top);
        dq_model_close(m);
    }
}

TEST(logits_are_those_of_transformers)
{
    golden g = golden_open(FOLDER);
    check_logits(&g, FOLDER "/model.gguf");
    check_logits(&g, FOLDER "/parts-00001-of-00002.gguf");
    golden_close(&g);
}

/* Architectures whose files say the same as the folder of transformers' own model. */
TEST(architectures_are_those_of_transformers)
{
    static const char *const names[] = {"qwen2", "qwen3", "smollm3", "gemma3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char folder[512], path[544];
        snprintf(folder, sizeof folder, GGUF "/%s", names[i]);
        snprintf(path, sizeof path, "%s/model.gguf", folder);
        golden g = golden_open(folder);
        check_logits(&g, path);
        golden_close(&g);
    }
}

static bool same_value(const json_t *want, const json_t *got)
{
    size_t i;
    json_t *v;
    const char *key;
    union { /* the iteration macro takes a pointer to non-const, but changes nothing */
        const json_t *in;
        json_t *out;
    } object = {.in = want};
    if (json_is_number(want) && json_is_number(got)) {
        const double x = json_number_value(want), y = json_number_value(got);
        return fabs(x - y) <= 1e-7 * fabs(x); /* a file has f32 */
    }
    if (json_is_array(want) && json_array_size(want) == json_array_size(got)) {
        json_array_foreach(want, i, v)
        {
            if (!same_value(v, json_array_get(got, i))) return false;
        }
        return true;
    }
    if (!json_is_object(want) || !json_is_object(got)) return json_equal(want, got);
    json_object_foreach(object.out, key, v)
    {
        if (!same_value(v, json_object_get(got, key))) return false;
    }
    return json_object_size(want) == json_object_size(got);
}

/* Each key of transformers' configuration, and each vector to the last bit but one of f32. */
TEST(files_give_what_a_folder_has)
{
    static const char *const names[] = {"qwen2", "qwen3", "smollm3", "gemma3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char folder[512], path[544];
        dq_checkpoint *c;
        dq_err err = {0};
        int n = 0;
        snprintf(folder, sizeof folder, GGUF "/%s", names[i]);
        snprintf(path, sizeof path, "%s/model.gguf", folder);
        if (dq_checkpoint_open(&c, path, &err) != DQ_OK) fail_msg("%s", err.text);
        json_t *config = given_json("%s/config.json", folder), *value;
        const char *key;
        json_object_foreach(config, key, value)
        {
            if (!same_value(value, json_object_get(c->config, key)))
                fail_msg("%s: key %s", path, key);
        }
        golden g = golden_open(folder);
        for (int64_t k = 0; k < c->count; k++) {
            dq_weight w;
            float row;
            assert_true(dq_checkpoint_weight(c, c->tensor[k].name, &w));
            if (w.cols > 1) continue;
            const dq_tensor *want = golden_find(&g, w.name);
            assert_int_equal(want->shape[0], w.rows);
            for (int64_t r = 0; r < w.rows; r++) {
                dq_weight_dequantize_rows(&row, &w, r, r + 1);
                if (!(fabsf(row - golden_f32(want, r)) <= (i == 3 ? 1.2e-7f : 0)))
                    fail_msg("%s: %s, %d", path, w.name, (int)r);
            }
            n++;
        }
        assert_true(n > 4);
        golden_close(&g);
        json_decref(config);
        dq_checkpoint_close(c);
    }
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

/* ---- The same model, cut otherwise ---- */

enum { MOST_TENSORS = 16, VOCAB = 260, DIM = 256, HEAD = 128 };

/* Tensors of model.gguf and some more, each with the part that it goes to. */
typedef struct cut {
    const char *keys; /* as they lie in the file */
    size_t keys_bytes;
    uint64_t n_keys;
    dq_gguf_tensor t[MOST_TENSORS];
    int part[MOST_TENSORS], n, parts;
} cut;

static const char *find_bytes(const char *s, size_t len, const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i + n <= len; i++) {
        if (memcmp(s + i, name, n) == 0) return s + i;
    }
    return s + len;
}

/* All in one part. */
static void take_model(cut *c)
{
    dq_gguf g;
    dq_err err = {0};
    size_t len;
    const char *s = given_file(&len, FOLDER "/model.gguf"), *first = s + len;
    assert_int_equal(dq_gguf_parse(&g, (const uint8_t *)s, len, given_arena(), &err), DQ_OK);
    *c = (cut){.keys = s + 24, .parts = 1, .n = (int)g.n_tensors};
    memcpy(&c->n_keys, s + 16, sizeof c->n_keys);
    for (int i = 0; i < c->n; i++) {
        const char *at = find_bytes(s, len, g.tensor[i].name) - 8; /* after its length */
        c->t[i] = g.tensor[i];
        first = at < first ? at : first;
    }
    c->keys_bytes = (size_t)(first - c->keys);
    json_decref(g.fields);
}

/* A tensor of F32 that the model has not: values of a pattern, or zeros. */
static void add_tensor(cut *c, const char *name, int64_t rows, int64_t cols, float size)
{
    const int64_t n = rows * cols;
    float *x = dq_alloc(given_arena(), (size_t)n, sizeof *x, &(dq_err){0});
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = size * (float)(i * 7919 % 201 - 100);
    c->t[c->n++] = (dq_gguf_tensor){.name = name,
                                    .n_dims = cols > 1 ? 2 : 1,
                                    .shape = {rows, cols},
                                    .data = (const uint8_t *)x,
                                    .bytes = (size_t)n * sizeof *x};
}

/* Part i at the path, with what it says of itself. */
static void write_part(const cut *c, int i, const char *path, int number, int count, int tensors)
{
    static const uint8_t zeros[DQ_GGUF_ALIGNMENT];
    dq_gguf_tensor list[MOST_TENSORS];
    dq_gguf_fields f = {0};
    dq_strbuf out = {0};
    dq_err err = {0};
    int n = 0;
    for (int k = 0; k < c->n; k++) {
        if (c->part[k] == i) list[n++] = c->t[k];
    }
    if (i == 0) {
        f.n = c->n_keys;
        assert_int_equal(dq_strbuf_add(&f.bytes, c->keys, c->keys_bytes, &err), DQ_OK);
    }
    if (count > 1) {
        dq_gguf_write_u32(&f, "split.no", (uint32_t)number);
        dq_gguf_write_u32(&f, "split.count", (uint32_t)count);
        dq_gguf_write_u32(&f, "split.tensors.count", (uint32_t)tensors);
    }
    assert_int_equal(dq_gguf_write_head(&out, &f, list, n, &err), DQ_OK);
    for (int k = 0; k < n; k++) {
        dq_strbuf_add(&out, (const char *)list[k].data, list[k].bytes, &err);
        dq_strbuf_add(&out, (const char *)zeros,
                      dq_gguf_write_stride(list[k].bytes) - list[k].bytes, &err);
    }
    put_bytes(path, out.s, out.n);
    dq_block_free(out.s);
    dq_block_free(f.bytes.s);
}

/* "NAME-00001-of-00003.gguf", or "NAME.gguf" where there is one. */
static const char *part_name(const cut *c, const char *name, int i)
{
    char text[64];
    if (c->parts == 1)
        snprintf(text, sizeof text, "%s.gguf", name);
    else
        snprintf(text, sizeof text, "%s-%05d-of-%05d.gguf", name, i + 1, c->parts);
    return at(text);
}

static void write_parts(const cut *c, const char *name)
{
    for (int i = 0; i < c->parts; i++) write_part(c, i, part_name(c, name, i), i, c->parts, c->n);
}

static void check_same_logits(const char *a, const char *b)
{
    static float x[MAX_IDS * MAX_VOCAB], y[MAX_IDS * MAX_VOCAB];
    static const int32_t ids[] = {3, 1, 4, 1, 5, 92, 65, 35};
    enum { N = sizeof ids / sizeof *ids };
    dq_model *m = given_model("%s", a), *k = given_model("%s", b);
    assert_true(m->tied == k->tied);
    assert_int_equal(m->n_warnings + k->n_warnings, 0);
    logits_of(x, m, ids, N, "scalar");
    logits_of(y, k, ids, N, "scalar");
    assert_memory_equal(x, y, (size_t)N * VOCAB * sizeof *x);
    dq_model_close(m);
    dq_model_close(k);
}

/* Whichever part a tensor lies in: the head in the last, nothing in the first, the embedding after the layers. */
TEST(cuts_say_the_same)
{
    cut c;
    take_model(&c);
    add_tensor(&c, "output.weight", VOCAB, DIM, .002f);
    add_tensor(&c, "blk.0.attn_q.bias", HEAD, 1, .01f);
    write_parts(&c, "whole");
    dq_model *m = given_model("%s", at("whole.gguf"));
    assert_false(m->tied);
    dq_model_close(m);
    c.parts = 3;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < c.n; i++) {
            const bool end = strncmp(c.t[i].name, "output", 6) == 0;
            const bool layer = strncmp(c.t[i].name, "blk", 3) == 0;
            c.part[i] = round == 0 ? i % 3 : round == 1 ? 1 + end : layer ? 0 : 1 + end;
        }
        write_parts(&c, "cut");
        check_same_logits(at("whole.gguf"), part_name(&c, "cut", 0));
    }
}

/* What a bias that is not there stands for: as one of zeros. */
TEST(biases_are_each_optional)
{
    static const char *const names[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                        "ffn_gate", "ffn_up", "ffn_down"};
    static const int64_t rows[] = {HEAD, HEAD / 2, HEAD / 2, DIM, DIM, DIM, DIM};
    static char name[7][32];
    for (int i = 0; i < 7; i++) snprintf(name[i], sizeof name[i], "blk.0.%s.bias", names[i]);
    for (int own = 0; own < 7; own++) {
        cut alone, all;
        take_model(&alone);
        all = alone;
        add_tensor(&alone, name[own], rows[own], 1, .01f);
        for (int i = own < 4 ? 0 : 4; i < (own < 4 ? 4 : 7); i++)
            add_tensor(&all, name[i], rows[i], 1, i == own ? .01f : 0);
        write_parts(&alone, "alone");
        write_parts(&all, "all");
        check_same_logits(at("alone.gguf"), at("all.gguf"));
    }
}

/* Parts that are not those of one file. */
TEST(cuts_that_lie)
{
    cut c;
    dq_model *m = NULL;
    dq_err err = {0};
    take_model(&c);
    c.parts = 3;
    for (int i = 0; i < c.n; i++) c.part[i] = i % 3;
    static const struct {
        int part, number, count, tensors;
        const char *says;
    } t[] = {
        {1, 2, 3, 0, "00002-of-00003.gguf: says that it is part 2 of 3 (expected 1 of 3"},
        {1, 0, 3, 0, "00002-of-00003.gguf: says that it is part 0 of 3"},
        {2, 2, 4, 0, "00003-of-00003.gguf: says that it is part 2 of 4 (expected 2 of 3"},
        {2, 2, 1, 0, "key \"split.count\" is missing"}, /* a count of 1 writes no keys */
        {0, 1, 3, 0, "00001-of-00003.gguf: says that it is part 1 (expected 0"},
        {0, 0, 3, 1, "key \"split.tensors.count\": the files have"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        write_parts(&c, "lie");
        write_part(&c, t[i].part, part_name(&c, "lie", t[i].part), t[i].number, t[i].count,
                   c.n + t[i].tensors);
        err = (dq_err){0};
        dq_model_open(&m, part_name(&c, "lie", 0), &err);
        check_error(&err, DQ_DAMAGED, t[i].says);
    }
    c.t[c.n] = c.t[0];
    c.part[c.n++] = 2;
    write_parts(&c, "lie");
    err = (dq_err){0};
    dq_model_open(&m, part_name(&c, "lie", 0), &err);
    check_error(&err, DQ_DAMAGED, "is there twice");
    c.t[--c.n].name = "";
    remove(part_name(&c, "lie", 1));
    err = (dq_err){0};
    dq_model_open(&m, part_name(&c, "lie", 0), &err);
    check_error(&err, DQ_FILE, "lie-00002-of-00003.gguf");
}

/* A tensor that no Llama of dq has is refused by name, not a damaged file. */
TEST(foreign_tensors)
{
    static const char *const names[] = {"blk.0.attn_qkv.weight", "blk.0.attn_q_norm.weight",
                                        "output.bias", "rope_factors_long.weight", "cls.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cut c;
        dq_model *m = NULL;
        dq_err err = {0};
        take_model(&c);
        if (i == 0)
            c.t[3].name = names[0]; /* in place of another */
        else
            add_tensor(&c, names[i], DIM, 1, 1);
        write_parts(&c, "foreign");
        dq_model_open(&m, at("foreign.gguf"), &err);
        check_error(&err, DQ_MISMATCH, names[i]);
    }
}

FIXTURES(folder_begin, folder_end)
