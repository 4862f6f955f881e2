/* Tests of what a model takes: bits per weight over all parameters, by the bytes of its tensors counted another way; a
 * matrix that is stored twice and tensors that nothing reads; the plan of a container before it is written.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "model/model.h"
#include "tests/rigs/edits.h"

#include <stdio.h>
#include <string.h>

#define EMBED "model.embed_tokens.weight"
#define HEAD  "lm_head.weight"

FIXTURES(folder_begin, folder_end)

static dq_model_size size_of(const char *path)
{
    dq_model *m = given_model("%s", path);
    const dq_model_size s = dq_model_size_of(m);
    dq_model_close(m);
    return s;
}

/* All that stands in the files after their headers. */
static int64_t tensor_bytes(const char *path)
{
    dq_checkpoint *c = given_checkpoint(path);
    int64_t sum = 0;
    for (int i = 0; i < c->n_files; i++) {
        sum += (int64_t)(c->file[i].map.bytes - c->file[i].header_bytes);
    }
    dq_checkpoint_close(c);
    return sum;
}

static void check_same(dq_model_size a, dq_model_size b)
{
    assert_int_equal(a.params, b.params);
    assert_int_equal(a.weight_bytes, b.weight_bytes);
    assert_true(a.bits_per_weight == b.bits_per_weight);
}

TEST(dense_models_have_the_bits_of_their_type)
{
    static const struct {
        const char *path;
        double bits;
    } t[] = {{MODELS "llama-f32", 32},
             {MODELS "diffllama-bf16-untied", 16},
             {MODELS "diffllama-f16-shards", 16}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const dq_model_size s = size_of(t[i].path);
        assert_true(s.bits_per_weight == t[i].bits);
        assert_int_equal(s.weight_bytes, tensor_bytes(t[i].path));
        assert_true(s.file_bytes > s.weight_bytes);
    }
}

/* Codes, scales, zero points and indices as their tools wrote them, not as they are laid out here. */
TEST(folders_of_other_tools_are_counted_as_stored)
{
    static const char *const names[] = {"awq",     "awq-row",       "ct-asym-index", "ct-w4",
                                        "gptq-v1", "gptq-v2-2-row", "gptq-v2-index", "gptq-v1-3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, DQ_TEST_DIR "/golden/prequant/%s", names[i]);
        const dq_model_size s = size_of(path);
        assert_int_equal(s.weight_bytes, tensor_bytes(path));
        assert_true(s.bits_per_weight == 8.0 * (double)s.weight_bytes / (double)s.params);
    }
    assert_int_equal(size_of(DQ_TEST_DIR "/golden/prequant/awq").params,
                     size_of(DQ_TEST_DIR "/golden/prequant/awq-dense").params);
}

/* Tensors of a GGUF file lie at multiples of 32 bytes; the parts of one model are one model. */
TEST(gguf_files_are_counted)
{
    const dq_model_size one = size_of(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
    const dq_model_size parts = size_of(DQ_TEST_DIR "/golden/gguf/model/parts-00001-of-00002.gguf");
    dq_checkpoint *c = given_checkpoint(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
    int64_t sum = 0;
    for (int64_t i = 0; i < c->count; i++) sum += (int64_t)dq_checkpoint_stored_bytes(c, i);
    dq_checkpoint_close(c);
    assert_int_equal(one.weight_bytes, sum);
    assert_int_equal(one.file_bytes, dq_file_bytes(DQ_TEST_DIR "/golden/gguf/model/model.gguf"));
    check_same(one, parts);
    assert_int_equal(parts.file_bytes,
                     dq_file_bytes(DQ_TEST_DIR "/golden/gguf/model/parts-00001-of-00002.gguf") +
                         dq_file_bytes(DQ_TEST_DIR "/golden/gguf/model/parts-00002-of-00002.gguf"));
}

/* What the quantizer says before it writes is what the container has, and what is read of it. */
static dq_model_size of_container(const char *source, int embed_bits)
{
    dq_quantize_settings s = settings_of(4, 32, DQ_ASYM);
    dq_quantizer *q;
    dq_err err = {0};
    s.embed_bits = embed_bits;
    s.head_bits = DQ_QUANTIZE_BITS_AUTO;
    assert_int_equal(dq_quantize_open(&q, source, &s, &err), DQ_OK);
    const dq_quantize_info *i = &q->info;
    const dq_model_size planned = {i->params, i->weight_bytes, i->file_bytes, i->bits_per_weight};
    dq_quantize_close(q);
    make_container(source, at("size.h5"), &s);
    const dq_model_size made = size_of(at("size.h5"));
    check_same(planned, made);
    assert_int_equal(made.file_bytes, dq_file_bytes(at("size.h5")));
    return made;
}

TEST(containers_are_planned_as_they_become)
{
    const dq_model_size tied = of_container(MODELS "diffllama-f32", 5);
    const dq_model_size untied = of_container(MODELS "diffllama-bf16-untied", 16);
    assert_true(tied.bits_per_weight > 4 && tied.bits_per_weight < 7);
    assert_true(untied.bits_per_weight > 4 && untied.bits_per_weight < 16);
}

/* Stored beside the embedding that it is: the file is larger, the model is not. */
TEST(a_tied_matrix_counts_once)
{
    const edit copy = WEIGHT("diffllama-f32", COPY, EMBED, HEAD);
    const edit renamed = WEIGHT("diffllama-f32", RENAME, EMBED, HEAD);
    const edit other = WEIGHT("diffllama-f32", VARY, EMBED, HEAD);
    const dq_model_size once = size_of(MODELS "diffllama-f32");
    edits_write(&copy);
    const dq_model_size twice = size_of(at(""));
    check_same(once, twice);
    assert_true(twice.file_bytes > once.file_bytes + 1000);
    for (int bits = 5; bits <= 16; bits += 11) {
        edits_write(&copy);
        const dq_model_size container = of_container(at(""), bits);
        check_same(container, of_container(MODELS "diffllama-f32", bits));
    }
    edits_write(&renamed);
    check_same(once, size_of(at("")));
    check_same(of_container(at(""), 5), of_container(MODELS "diffllama-f32", 5));
    edits_write(&other);
    assert_true(size_of(at("")).params > once.params);
}

TEST(what_nothing_reads_counts_nowhere)
{
    const edit e = WEIGHT("diffllama-f32", COPY, "model.norm.weight",
                          "model.layers.0.self_attn.rotary_emb.inv_freq");
    edits_write(&e);
    check_same(size_of(MODELS "diffllama-f32"), size_of(at("")));
    check_same(of_container(at(""), 5), of_container(MODELS "diffllama-f32", 5));
}
