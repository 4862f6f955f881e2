/* test_quantize_defaults: what is left to the model: the group that divides its columns, the bits of embedding and
 * head; and rows in the order of layers.
 * Folders are made here, as no golden model is wide enough for several groups a row.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 8, HEADS = 2, MAX_HEADER = 16384 };

static const char *const matrices[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                       "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                       "mlp.down_proj"};

static const char *const norms[] = {"input_layernorm", "post_attention_layernorm"};

typedef struct header {
    char text[MAX_HEADER];
    size_t n, bytes; /* bytes: of the tensors so far */
} header;

static void add(header *h, const char *name, int rows, int cols)
{
    const size_t bytes = 2 * (size_t)rows * (size_t)(cols ? cols : 1);
    char shape[32];
    if (cols)
        snprintf(shape, sizeof shape, "%d,%d", rows, cols);
    else
        snprintf(shape, sizeof shape, "%d", rows);
    h->n += (size_t)snprintf(
        h->text + h->n, sizeof h->text - h->n,
        "%s\"%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
        h->n ? "," : "{", name, shape, h->bytes, h->bytes + bytes);
    h->bytes += bytes;
}

/* A llama with bf16 weights around 1, whose rows have dim columns and ff. */
static const char *folder_of(int layers, int dim, int ff, bool tied)
{
    static char dir[256];
    char config[512], path[300], full[64];
    header h = {.n = 0};
    add(&h, "model.embed_tokens", VOCAB, dim);
    add(&h, "model.norm", dim, 0);
    for (int l = 0; l < layers; l++) {
        for (int i = 0; i < 2; i++) {
            snprintf(full, sizeof full, "model.layers.%d.%s", l, norms[i]);
            add(&h, full, dim, 0);
        }
        for (int i = 0; i < 7; i++) {
            snprintf(full, sizeof full, "model.layers.%d.%s", l, matrices[i]);
            add(&h, full, i == 4 || i == 5 ? ff : dim, i == 6 ? ff : dim);
        }
    }
    if (!tied) add(&h, "lm_head", VOCAB, dim);
    h.n += (size_t)snprintf(h.text + h.n, sizeof h.text - h.n, "}");
    assert_true(h.n < sizeof h.text);
    uint8_t *all = calloc(8 + h.n + h.bytes, 1);
    assert_non_null(all);
    for (int i = 0; i < 8; i++) all[i] = (uint8_t)(h.n >> (8 * i));
    memcpy(all + 8, h.text, h.n);
    for (size_t i = 0; i < h.bytes / 2; i++) { /* 0x3f00..0x3fff: 0.5 to 1.99 */
        all[8 + h.n + 2 * i] = (uint8_t)(i * 37);
        all[8 + h.n + 2 * i + 1] = 0x3f;
    }
    snprintf(dir, sizeof dir, "%s", at("model"));
    shell("mkdir -p", dir, "");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    put_bytes(path, all, 8 + h.n + h.bytes);
    free(all);
    const int n =
        snprintf(config, sizeof config,
                 "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],"
                 "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
                 "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"vocab_size\":%d,"
                 "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
                 "\"max_position_embeddings\":64,\"tie_word_embeddings\":%s}",
                 dim, ff, layers, HEADS, HEADS, VOCAB, tied ? "true" : "false");
    snprintf(path, sizeof path, "%s/config.json", dir);
    put_bytes(path, config, (size_t)n);
    return dir;
}

static const char *folder(int dim, int ff, bool tied)
{
    return folder_of(1, dim, ff, tied);
}

static dq_quantizer *opened(const char *dir, const dq_quantize_settings *s)
{
    dq_quantizer *q;
    dq_err err = {0};
    if (dq_quantize_open(&q, dir, s, &err) != DQ_OK) fail_msg("%s: %s", dir, err.text);
    return q;
}

TEST(the_largest_group_that_divides_all)
{
    static const struct {
        int dim, ff, group, whole; /* whole 0: none of 128, 64 and 32 divides all */
        int64_t n_short;           /* with that group */
    } of[] = {{256, 384, 128, 128, 0}, {192, 256, 64, 64, 0}, /* 256 alone would take 128 */
              {160, 256, 32, 32, 0},                          /* 160 takes 32 only */
              {128, 344, 128, 0, 1},  /* down_proj is short with each of them: the largest */
              {264, 256, 128, 0, 7},  /* all but down_proj and are */
              {96, 100, 128, 128, 0}, /* a group is a row */
              {96, 200, 128, 0, 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        dq_quantize_settings s = settings_of(4, DQ_QUANTIZE_GROUP_AUTO, DQ_ABSMAX);
        s.embed_bits = 6;
        dq_quantizer *q = opened(folder(of[i].dim, of[i].ff, true), &s);
        const dq_quantize_info *info = &q->info;
        assert_int_equal(q->set.group, of[i].group);
        assert_int_equal(info->short_groups.n, of[i].n_short);
        if (of[i].n_short) assert_int_equal(info->short_groups.whole, of[i].whole);
        char want[32];
        snprintf(want, sizeof want, "\"group\": \"%d\"", of[i].group);
        assert_non_null(strstr(q->recipe, want));
        dq_quantize_close(q);
    }
}

/* Tensors that do not go by it do not matter; a group that was asked for stays, and what would have divided is known. */
TEST(a_group_that_is_asked_for_stays)
{
    dq_quantize_settings s = settings_of(4, DQ_QUANTIZE_GROUP_AUTO, DQ_ABSMAX);
    json_t *rules = given_document("[{\"match\": \"down_proj\", \"bits\": 8, \"group\": 32}]");
    s.rules = rules;
    dq_quantizer *q = opened(folder(256, 160, true), &s);
    assert_int_equal(q->set.group, 128);
    assert_int_equal(q->info.short_groups.n, 0);
    dq_quantize_close(q);
    json_decref(rules);
    s = settings_of(4, 128, DQ_ABSMAX);
    q = opened(folder(192, 256, true), &s);
    const dq_quantize_short *few = &q->info.short_groups;
    assert_int_equal(q->set.group, 128);
    assert_int_equal(few->n, 6);
    assert_int_equal(few->whole, 64);
    assert_int_equal(few->cols, 192);
    assert_int_equal(few->group, 128);
    assert_string_equal(few->name, "model.layers.0.mlp.gate_proj.weight");
    dq_quantize_close(q);
}

/* What another group of the settings would leave, which does not change the groups of rules. */
TEST(rules_have_groups_of_their_own)
{
    static const char whole[] = "[{\"match\": \"down_proj\", \"bits\": 8, \"group\": 32}]",
                      some[] = "[{\"match\": \"down_proj\", \"bits\": 8, \"group\": 48}]";
    static const struct {
        int dim, ff, group;
        const char *rules;
        int64_t n_short, whole;
        bool divides;
    } of[] = {{52, 64, 32, NULL, 6, 128, false},   /* each row of 52 is one group of 128 */
              {128, 160, 48, whole, 6, 128, true}, /* 160 columns go by the rule, in groups of 32 */
              {64, 160, 64, some, 1, 0, false},    /* and here are short whatever else is said */
              {64, 160, 48, NULL, 7, 32, true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        dq_quantize_settings s = settings_of(4, of[i].group, DQ_ABSMAX);
        json_t *rules = of[i].rules ? given_document(of[i].rules) : NULL;
        s.rules = rules;
        dq_quantizer *q = opened(folder(of[i].dim, of[i].ff, true), &s);
        const dq_quantize_short *few = &q->info.short_groups;
        assert_int_equal(few->n, of[i].n_short);
        assert_int_equal(few->whole, of[i].whole);
        if (few->whole) assert_int_equal(few->divides, of[i].divides);
        dq_quantize_close(q);
        json_decref(rules);
    }
}

TEST(embedding_and_head_have_bits_of_their_own)
{
    enum { AUTO = DQ_QUANTIZE_BITS_AUTO };
    static const struct {
        bool tied;
        int bits, embed, head; /* as given */
        int to_embed, to_head;
    } of[] = {
        {true, 4, AUTO, AUTO, 6, 0},   {true, 3, AUTO, AUTO, 6, 0},     {true, 8, AUTO, AUTO, 8, 0},
        {true, 16, AUTO, AUTO, 16, 0}, {true, 4, 16, AUTO, 16, 0},      {true, 4, AUTO, 6, 6, 6},
        {false, 4, AUTO, AUTO, 6, 6},  {false, 4, 16, AUTO, 16, 16},    {false, 4, AUTO, 8, 6, 8},
        {false, 4, 8, AUTO, 8, 8},     {false, 16, AUTO, AUTO, 16, 16}, {false, 4, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        dq_quantize_settings s = settings_of(of[i].bits, 64, DQ_ABSMAX);
        s.embed_bits = of[i].embed;
        s.head_bits = of[i].head;
        dq_quantizer *q = opened(folder(192, 256, of[i].tied), &s);
        const dq_quantize_settings *is = &q->set;
        assert_int_equal(is->embed_bits, of[i].to_embed);
        assert_int_equal(is->head_bits, of[i].to_head);
        char want[32];
        snprintf(want, sizeof want, "\"embed_bits\": %d", of[i].to_embed);
        assert_true(!strstr(q->recipe, want) == !of[i].to_embed);
        assert_null(strstr(q->recipe, "-1"));
        dq_quantize_close(q);
    }
}

/* It decides about nothing then: the embedding does not follow it unasked. */
TEST(a_tied_head_has_no_bits_of_its_own)
{
    dq_err err = {0};
    dq_quantizer *q;
    dq_quantize_settings s = settings_of(4, 64, DQ_ABSMAX);
    s.embed_bits = DQ_QUANTIZE_BITS_AUTO;
    s.head_bits = 5;
    assert_int_equal(dq_quantize_open(&q, folder(192, 256, true), &s, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "which cannot have 5 bits as the one and 6 as the other"));
}

/* Layers by number, whatever the order of the file. */
TEST(rows_are_in_the_order_of_layers)
{
    const dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    int last = -1, changes = 0;
    dq_quantizer *q = opened(folder_of(12, 32, 32, true), &s);
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        int layer;
        if (sscanf(r.name, "model.layers.%d.", &layer) != 1) continue;
        if (strcmp(strrchr(r.name, '.'), ".weight") != 0) fail();
        assert_in_range(layer, last < 0 ? 0 : last, last + 1);
        if (strstr(r.name, "_proj")) {
            assert_int_equal(r.bits, 4);
            assert_int_equal(r.rows, 32);
        } else {
            assert_int_equal(r.cols, 1);
        }
        changes += layer != last;
        last = layer;
    }
    assert_int_equal(changes, 12);
    dq_quantize_close(q);
}

FIXTURES(folder_begin, folder_end)
