/* Tests of weights that other tools have quantized: every value of the goldens bit by bit, where parts lie, what becomes
 * of a configuration or a tensor that is wrong.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "tests/rigs/edits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define GOLDEN DQ_TEST_DIR "/golden/prequant/"
#define HERE   "../prequant/"

/* ---- Values ---- */

typedef struct opened {
    char name[64];
    dq_checkpoint *c;
    dq_prequant *p;
    dq_source source;
} opened;

static void close_folder(opened *o)
{
    dq_prequant_close(o->p);
    dq_checkpoint_close(o->c);
    *o = (opened){0};
}

static void open_folder(opened *o, const char *name, const char *path)
{
    dq_err err = {0};
    close_folder(o);
    snprintf(o->name, sizeof o->name, "%s", name);
    assert_int_equal(dq_checkpoint_open(&o->c, path, &err), DQ_OK);
    dq_prequant_open(&o->p, o->c, &err);
    assert_string_equal(err.text, "");
    assert_non_null(o->p);
    o->source = dq_prequant_source(o->p);
    assert_int_equal(o->source.load(o->source.arg, &err), DQ_OK);
}

static void check_values(const opened *o, const char *tensor, const char *format,
                         const char *digest)
{
    dq_weight w = {0};
    dq_err err = {0};
    char hex[65];
    assert_true(o->source.find(o->source.arg, tensor, &w));
    assert_string_equal(w.name, tensor);
    assert_string_equal(dq_weight_format_of(&w)->name, format);
    float *x = malloc((size_t)(w.rows * w.cols) * sizeof *x);
    assert_non_null(x);
    dq_weight_dequantize_rows(x, &w, 0, w.rows);
    dq_sha256_of(hex, x, (size_t)(w.rows * w.cols) * sizeof *x, &err);
    if (strcmp(hex, digest) != 0) print_error("%s %s\n", o->name, tensor);
    assert_string_equal(hex, digest);
    free(x);
}

/* All of values.txt, from the folders or from copies in which nothing is aligned. */
static int check_all(bool odd)
{
    char *text, *rest, name[64], tensor[128], format[32], digest[65];
    size_t len;
    int n = 0;
    opened o = {.p = NULL};
    dq_err err = {0};
    dq_arena *a = given_arena();
    assert_int_equal(dq_file_read(&text, &len, GOLDEN "values.txt", a, &err), DQ_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), n++) {
        assert_int_equal(sscanf(line, "%63s %127s %31s %64s", name, tensor, format, digest), 4);
        if (strcmp(name, o.name) != 0) {
            char base[128];
            snprintf(base, sizeof base, HERE "%s", name);
            const edit e = {.base = base, .odd_header = odd};
            if (odd) edits_write(&e);
            snprintf(base, sizeof base, GOLDEN "%s", name);
            open_folder(&o, name, odd ? at("") : base);
        }
        check_values(&o, tensor, format, digest);
    }
    close_folder(&o);
    return n;
}

TEST(values_are_numpys)
{
    assert_int_equal(check_all(false), 166);
    assert_int_equal(check_all(true), 166);
}

/* A row gives the same values whole and in pieces that have fewer columns than there are groups. */
TEST(pieces_of_indexed_rows)
{
    enum { COLS = 64, GROUPS = 32, PIECE = 8 };
    uint8_t codes[COLS / 2], zero[GROUPS / 2];
    float scale[GROUPS], whole[COLS], piece[COLS];
    int32_t index[COLS];
    for (int i = 0; i < COLS; i++) index[i] = i * 37 % GROUPS;
    for (int i = 0; i < COLS / 2; i++) codes[i] = (uint8_t)(i * 73 + 5);
    for (int i = 0; i < GROUPS / 2; i++) zero[i] = (uint8_t)(i * 29 + 3);
    for (int i = 0; i < GROUPS; i++) scale[i] = 0.01f * (float)(i + 1);
    const dq_weight w = {.rows = 1,
                         .cols = COLS,
                         .format = &dq_format_int_index,
                         .bits = 4,
                         .data = codes,
                         .group_size = COLS / GROUPS,
                         .scale_rows = 1,
                         .scale_dtype = DQ_F32,
                         .scale = scale,
                         .zero = zero,
                         .index = index};
    dq_weight_dequantize_rows(whole, &w, 0, 1);
    for (int i = 0; i < COLS; i += PIECE) w.format->dequantize(piece + i, &w, 0, i, PIECE);
    assert_memory_equal(whole, piece, sizeof whole);
    /* column 2 is of group 10 */
    assert_true(whole[2] == (float)((codes[1] & 15) - (zero[5] & 15)) * scale[10]);
}

/* ---- Models ---- */

TEST(models_say_what_they_hold)
{
    static const struct {
        const char *name, *group, *method, *about;
        int bits, warnings, n_weights, n_zeros, n_indexed;
        int64_t own;
    } t[] = {
        /* scales of bf16 as f32: [rows, groups] of 7 weights, 2 layers */
        {"ct-w4", "16", "compressed-tensors", "compressed-tensors pack-quantized", 4, 0, 14, 0, 0,
         2 * (4 * 32 * 2 + 2 * 64 * 2 + 32 * 4) * 4},
        {"ct-w8-kv8", "row", "compressed-tensors", "compressed-tensors pack-quantized", 8, 1, 14,
         14, 0, 2 * (5 * 32 + 2 * 64)},
        {"ct-asym-index", "16", "compressed-tensors", "compressed-tensors pack-quantized", 4, 0, 14,
         14, 14, 0},
        {"ct-mixed", "mixed", "compressed-tensors", "compressed-tensors pack-quantized", 0, 0, 15,
         4, 0, 0},
        {"gptq-v1", "16", "gptq", "GPTQ, checkpoint_format gptq", 4, 0, 14, 0, 0, 0},
        {"gptq-v1-wrapped", "16", "gptq", "GPTQ, checkpoint_format gptq", 4, 1, 14, 14, 0, 0},
        {"gptq-v2-2-row", "row", "gptq", "GPTQ, checkpoint_format gptq_v2", 2, 0, 14, 14, 0, 0},
        {"gptq-v2-index", "16", "gptq", "GPTQ, checkpoint_format gptq_v2", 8, 0, 14, 14, 14, 0},
        {"gptq-dynamic", "mixed", "gptq", "GPTQ, checkpoint_format gptq_v2", 0, 0, 12, 0, 0, 0},
        {"awq", "16", "awq", "AWQ, version gemm", 4, 0, 13, 13, 0, 0},
        {"awq-row", "row", "awq", "AWQ, version gemm", 4, 0, 14, 14, 0, 0},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_model *m = given_model(GOLDEN "%s", t[i].name);
        const dq_prequant_info *info = &m->prequant->info;
        assert_non_null(info);
        assert_string_equal(m->weight_group, t[i].group);
        assert_string_equal(m->scale_mode, t[i].method);
        assert_string_equal(info->about, t[i].about);
        assert_int_equal(m->weight_bits, t[i].bits);
        assert_int_equal(m->n_warnings, t[i].warnings);
        assert_int_equal(info->n_weights, t[i].n_weights);
        assert_int_equal(info->n_zeros, t[i].n_zeros);
        assert_int_equal(info->n_indexed, t[i].n_indexed);
        if (t[i].own) assert_int_equal(info->own_bytes, t[i].own);
        assert_int_equal(strlen(m->fingerprint), 64);
        dq_model_close(m);
    }
}

/* As many parameters as the dense model, and the bytes of codes, scales, zero points and index. */
TEST(bytes_are_counted)
{
    const int64_t linears = 2 * (4 * 32 * 32 + 3 * 32 * 64), groups = linears / 16;
    const int64_t dense = 640 * 32 + 32 + 2 * (2 * 32 + 4 * 8);
    dq_model *m = given_model(GOLDEN "%s", "gptq-v2-index");
    assert_int_equal(m->n_params, linears + dense);
    assert_int_equal(m->weight_bytes,
                     linears + 2 * groups + groups + 2 * (6 * 32 + 64) * 4 + 2 * dense);
    dq_model_close(m);
}

/* Codes and f32 scales of compressed-tensors are not copied. */
TEST(rows_stay_in_the_file)
{
    static const char *const names[] = {"ct-w4", "ct-asym-index"};
    for (int i = 0; i < 2; i++) {
        opened o = {.p = NULL};
        char path[512];
        size_t bytes;
        const uint8_t *file;
        dq_weight w;
        snprintf(path, sizeof path, GOLDEN "%s", names[i]);
        open_folder(&o, names[i], path);
        file = o.c->file[0].map.data;
        bytes = o.c->file[0].map.bytes;
        assert_true(o.source.find(o.source.arg, "model.layers.1.mlp.down_proj.weight", &w));
        const uint8_t *codes = w.data, *scale = w.scale;
        assert_true(codes > file && codes < file + bytes);
        assert_int_equal(scale > file && scale < file + bytes, i == 1);
        close_folder(&o);
    }
}

TEST(parts_are_hidden)
{
    opened o = {.p = NULL};
    dq_weight w;
    open_folder(&o, "ct-w8-kv8", GOLDEN "ct-w8-kv8");
    assert_int_equal(o.source.count, 14 + 6);
    for (int64_t i = 0; i < o.source.count; i++)
        assert_true(o.source.find(o.source.arg, o.source.name_at(o.source.arg, i), &w));
    assert_false(o.source.find(o.source.arg, "model.layers.0.self_attn.q_proj.weight_packed", &w));
    assert_false(o.source.find(o.source.arg, "model.layers.0.self_attn.k_scale", &w));
    close_folder(&o);
}

/* ---- What is refused ---- */

#define CT(more)       "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"," more "}"
#define CT_GROUP(more) CT("\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":4," more "}}}")
#define GPTQ(more)     "{\"quant_method\":\"gptq\"," more "}"
#define AWQ(more)      "{\"quant_method\":\"awq\"," more "}"

typedef struct trial {
    const char *base, *config;
    dq_status status;
    const char *text;
} trial;

static void run(const trial *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char base[128];
        dq_err err = {0};
        snprintf(base, sizeof base, HERE "%s", t[i].base);
        const edit e = {.base = base, .key = "quantization_config", .value = t[i].config};
        dq_model *m = edits_open(&e, &err);
        if (m) dq_model_check_weights(m, &err);
        check_error(&err, t[i].status, t[i].text);
        dq_model_close(m);
    }
}

TEST(methods_are_named)
{
    static const char *const methods[] = {
        "bitsandbytes", "fp8",     "fbgemm_fp8", "hqq",   "quanto", "aqlm", "mxfp4",     "eetq",
        "vptq",         "torchao", "marlin",     "higgs", "spqr",   "",     "auto-round"};
    static const trial t[] = {
        {"ct-w4", NULL, DQ_MISMATCH, "weight_packed\" is quantized, but config.json has no quant"},
        {"gptq-v1", "null", DQ_MISMATCH, ".qweight\" is quantized, but config.json has no quant"},
        {"awq", "7", DQ_DAMAGED, "\"quantization_config\": expected an object"},
        {"awq", "{}", DQ_MISMATCH, "\"quant_method\" is missing"},
        {"awq", "{\"quant_method\":4}", DQ_DAMAGED, "\"quant_method\""},
        {"awq", "{\"load_in_4bit\":true}", DQ_MISMATCH, "\"quant_method\" is missing"},
        /* one method's configuration, another's tensors */
        {"ct-w4", GPTQ("\"bits\":4,\"group_size\":16"), DQ_MISMATCH,
         "no tensor ends in \".qweight\""},
        {"gptq-v1", CT_GROUP("\"group_size\":16"), DQ_MISMATCH,
         "no tensor ends in \".weight_packed\""},
        {"gptq-v1", AWQ("\"bits\":4,\"group_size\":16"), DQ_MISMATCH,
         "columns are no multiple of group_size"},
        {"awq", GPTQ("\"bits\":4,\"group_size\":16"), DQ_MISMATCH, "scales do not have the shape"},
    };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char config[128], text[128];
        snprintf(config, sizeof config, "{\"quant_method\":\"%s\"}", methods[i]);
        snprintf(text, sizeof text, "\"%s\" is not read (read: compressed-tensors with format",
                 methods[i]);
        const trial x = {"ct-w4", config, DQ_MISMATCH, text};
        run(&x, 1);
    }
    run(t, sizeof t / sizeof *t);
}

TEST(keys_of_compressed_tensors)
{
    static const trial t[] = {
        {"ct-w4", CT_GROUP("\"group_size\":16"), DQ_OK, ""},
        {"ct-w4", CT_GROUP("\"group_size\":16,\"strategy\":\"group\",\"type\":\"INT\""), DQ_OK, ""},
        /* some weights of one width and group have zero points, these have none */
        {"ct-w4",
         CT_GROUP("\"group_size\":16}},\"g2\":{\"weights\":{\"num_bits\":4,\"group_size\":16,"
                  "\"symmetric\":false"),
         DQ_OK, ""},
        {"ct-w4",
         CT_GROUP("\"group_size\":16,\"symmetric\":false}},\"g2\":{\"weights\":{\"num_bits\":4,"
                  "\"group_size\":16"),
         DQ_OK, ""},
        {"ct-w4", CT_GROUP("\"group_size\":8"), DQ_MISMATCH,
         "weight_scale does not have the shape"},
        {"ct-w4", CT_GROUP("\"group_size\":24"), DQ_MISMATCH, "no multiple of group_size"},
        {"ct-w4", CT_GROUP("\"group_size\":-1"), DQ_MISMATCH, "a scale for each row"},
        {"ct-w4", CT_GROUP("\"strategy\":\"tensor\""), DQ_MISMATCH, "a scale for the tensor"},
        {"ct-w4", CT_GROUP("\"strategy\":\"group\""), DQ_DAMAGED, "a group of 0 columns"},
        {"ct-w4", CT_GROUP("\"group_size\":-2"), DQ_DAMAGED, "\"group_size\""},
        {"ct-w4", CT_GROUP("\"strategy\":\"block\""), DQ_MISMATCH,
         "\"strategy\": \"block\" is not read"},
        {"ct-w4", CT_GROUP("\"type\":\"float\""), DQ_MISMATCH, "\"type\": \"float\" is not read"},
        {"ct-w4", CT_GROUP("\"group_size\":16,\"symmetric\":false"), DQ_MISMATCH,
         "no weight_zero_point"},
        {"ct-asym-index", CT_GROUP("\"group_size\":16,\"symmetric\":false"), DQ_MISMATCH,
         "weight_g_idx\": groups are not runs of columns"},
        {"ct-asym-index", CT_GROUP("\"group_size\":16,\"symmetric\":false,\"actorder\":\"weight\""),
         DQ_MISMATCH, "weight_g_idx\": groups are not runs of columns"},
        {"ct-asym-index",
         CT_GROUP("\"group_size\":16,\"symmetric\":false,\"actorder\":\"dynamic\""), DQ_OK, ""},
        {"ct-asym-index", CT_GROUP("\"group_size\":16,\"symmetric\":false,\"actorder\":true"),
         DQ_OK, ""},
        {"ct-asym-index", CT_GROUP("\"group_size\":16,\"symmetric\":false,\"actorder\":4"),
         DQ_DAMAGED, "\"actorder\""},
        {"ct-asym-index", CT_GROUP("\"group_size\":16"), DQ_MISMATCH,
         "the codes are symmetric (expected 8)"},
        {"ct-w4", CT("\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,\"group_size\":16}}}"),
         DQ_MISMATCH, "not as many words"},
        {"ct-w4", CT("\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":1,\"group_size\":16}}}"),
         DQ_MISMATCH, "weights of 1 bits are not read"},
        {"ct-w4", CT("\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":16,\"group_size\":16}}}"),
         DQ_MISMATCH, "weights of 16 bits are not read"},
        {"ct-w4", CT("\"config_groups\":{\"g\":{\"weights\":null}}"), DQ_MISMATCH,
         "quantizes no weights"},
        {"ct-w4", CT("\"config_groups\":{\"g\":[\"Linear\"]}"), DQ_DAMAGED,
         "\"g\": expected an object"},
        {"ct-w4", CT("\"config_groups\":7"), DQ_DAMAGED, "\"config_groups\" is missing"},
        {"ct-w4",
         CT_GROUP("\"group_size\":16}},\"g2\":{\"format\":\"int-quantized\",\"weights\":{\"num_"
                  "bits\":8"),
         DQ_MISMATCH, "\"g2\": key \"format\": \"int-quantized\" is not read"},
        {"ct-w4", "{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"}", DQ_MISMATCH,
         "\"marlin-24\" is not read"},
        {"ct-w4", "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"}",
         DQ_MISMATCH, "\"float-quantized\" is not read"},
        {"ct-w4",
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"config_"
         "groups\":"
         "{\"g\":{\"weights\":{\"num_bits\":4,\"group_size\":16}}}}",
         DQ_DAMAGED, "\"format\" is missing"},
        {"ct-w4", CT("\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"), DQ_MISMATCH,
         "\"sparse-24-bitmask\" is not read"},
        {"ct-w4", CT("\"transform_config\":{\"config_groups\":{\"R1\":{}}}"), DQ_MISMATCH,
         "\"transform_config\": \"rotations"},
        /* scales of activations, without a word of them */
        {"ct-w8-kv8",
         CT("\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,\"group_size\":-1,"
            "\"symmetric\":false}}}"),
         DQ_MISMATCH, "k_scale\" does not belong"},
    };
    run(t, sizeof t / sizeof *t);
}

/* Weights of a model with 8-bit activations are what they are; the user is told. */
TEST(activations_are_a_warning)
{
    const edit e = {
        .base = HERE "ct-w4",
        .key = "quantization_config",
        .value = CT("\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":4,\"group_size\":16},"
                    "\"input_activations\":{\"num_bits\":8,\"dynamic\":true}}}"),
        .kind = STRAY,
        .tensor = "model.norm.weight",
        .arg = "model.layers.0.mlp.up_proj.input_scale"};
    dq_err err = {0};
    dq_model *m = edits_open(&e, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(m->n_warnings, 1);
    assert_string_equal(
        m->warnings[0],
        "quantization_config: \"input_activations\" (8 bits) is not applied: weights are as "
        "stored, activations stay in f32");
    dq_model_close(m);
}

TEST(keys_of_gptq_and_awq)
{
    static const trial t[] = {
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16"), DQ_OK, ""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"format\":\"gptq\""), DQ_OK, ""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"desc_act\":true"), DQ_OK, ""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"desc_act\":\"yes\""), DQ_DAMAGED,
         "\"desc_act\""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"format\":\"gptq_v2\""), DQ_MISMATCH,
         "is 7, but quantization_config says that the codes are symmetric (expected 8)"},
        {"gptq-v1", GPTQ("\"bits\":4"), DQ_DAMAGED, "\"group_size\" is missing"},
        {"gptq-v1", GPTQ("\"group_size\":16"), DQ_DAMAGED, "\"bits\" is missing"},
        {"gptq-v1", GPTQ("\"bits\":5,\"group_size\":16"), DQ_MISMATCH, "5 is not read for gptq"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":0"), DQ_DAMAGED, "a group of 0 columns"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":32"), DQ_MISMATCH,
         "scales do not have the shape"},
        {"gptq-v1", GPTQ("\"bits\":3,\"group_size\":16"), DQ_MISMATCH, "no whole number of codes"},
        {"gptq-v1", GPTQ("\"bits\":2,\"group_size\":32"), DQ_MISMATCH,
         "qzeros do not have the shape"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"checkpoint_format\":\"marlin\""),
         DQ_MISMATCH, "\"marlin\" is not read"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"checkpoint_format\":\"gptq_p\""),
         DQ_MISMATCH, "\"gptq_p\" is not read"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"is_marlin_format\":true"), DQ_MISMATCH,
         "marlin"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"pack_dtype\":\"int64\""), DQ_MISMATCH,
         "\"int64\""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"adapter\":{}"), DQ_MISMATCH,
         "\"adapter\""},
        {"gptq-dynamic", GPTQ("\"bits\":4,\"group_size\":32,\"checkpoint_format\":\"gptq_v2\""),
         DQ_MISMATCH, "down_proj.qweight"},
        {"awq", AWQ("\"bits\":4,\"group_size\":16,\"version\":\"gemv\""), DQ_MISMATCH,
         "\"version\": \"gemv\" is not read"},
        {"awq", AWQ("\"bits\":4,\"group_size\":16,\"format\":\"gemv_fast\""), DQ_MISMATCH,
         "\"gemv_fast\""},
        {"awq", AWQ("\"bits\":4,\"group_size\":16,\"backend\":\"llm-awq\""), DQ_MISMATCH,
         "\"llm-awq\""},
        {"awq", AWQ("\"bits\":8,\"group_size\":16"), DQ_MISMATCH, "8 is not read for awq"},
        {"awq", AWQ("\"w_bit\":4,\"q_group_size\":16"), DQ_OK, ""},
        {"awq", AWQ("\"bits\":4,\"group_size\":24"), DQ_MISMATCH, "no multiple of group_size"},
        {"awq", AWQ("\"bits\":4,\"group_size\":0"), DQ_DAMAGED, "a group of 0 columns"},
        {"awq", AWQ("\"bits\":4,\"group_size\":32"), DQ_MISMATCH, "scales or qzeros"},
    };
    run(t, sizeof t / sizeof *t);
}

#define CT_TARGETS(t, more) "{\"targets\":" t ",\"weights\":{\"num_bits\":" more "}}"
#define CT_TWO(a, b)        CT("\"config_groups\":{\"a\":" a ",\"b\":" b "}")
#define FOUR                "4,\"group_size\":16"
#define EIGHT               "8,\"group_size\":16"

/* What the configuration says of names beside the tensors that are there. */
TEST(names_agree_with_what_is_stored)
{
    static const trial t[] = {
        /* compressed-tensors: a name before a pattern before a class, whatever the order */
        {"ct-w4", CT_TWO(CT_TARGETS("[\"Linear\"]", FOUR), CT_TARGETS("[\"re:.*none\"]", EIGHT)),
         DQ_OK, ""},
        {"ct-w4", CT_TWO(CT_TARGETS("[\"Linear\"]", EIGHT), CT_TARGETS("[\"re:.*_proj$\"]", FOUR)),
         DQ_OK, ""},
        {"ct-w4",
         CT_TWO(CT_TARGETS("[\"re:.*_proj\",\"Linear\"]", FOUR), CT_TARGETS("[\"Linear\"]", EIGHT)),
         DQ_OK, ""},
        {"ct-w4", CT_TWO(CT_TARGETS("[\"Linear\"]", FOUR), CT_TARGETS("[\"Linear\"]", EIGHT)),
         DQ_MISMATCH,
         "tensor \"model.layers.0.mlp.down_proj.weight_packed\": two groups of quantization_config "
         "store it in two ways: \"a\" has \"Linear\", \"b\" has \"Linear\""},
        {"ct-w4",
         CT_TWO(CT_TARGETS("[\"Linear\",\"re:.*down_proj\"]", FOUR),
                CT_TARGETS("[\"re:.*mlp\"]", EIGHT)),
         DQ_MISMATCH, "\"a\" has \"re:.*down_proj\", \"b\" has \"re:.*mlp\""},
        {"ct-w4", CT_TWO(CT_TARGETS("[\"Linear\"]", FOUR), CT_TARGETS("[\"Linear\"]", FOUR)), DQ_OK,
         ""},
        {"ct-w4",
         CT_TWO(CT_TARGETS("[\"Linear\"]", FOUR),
                CT_TARGETS("[\"model.layers.1.mlp.up_proj\"]", EIGHT)),
         DQ_MISMATCH, "layers.1.mlp.up_proj.weight_packed\" and those beside it are not what"},
        {"ct-w4", CT("\"config_groups\":{\"g\":" CT_TARGETS("[]", FOUR) "}"), DQ_MISMATCH,
         "\"g\": key \"targets\" is empty"},
        {"ct-w4", CT("\"config_groups\":{\"g\":" CT_TARGETS("\"Linear\"", FOUR) "}"), DQ_DAMAGED,
         "key \"g\": expected an array of names"},
        {"ct-w4", CT("\"config_groups\":{\"g\":" CT_TARGETS("[4]", FOUR) "}"), DQ_DAMAGED,
         "expected an array of names"},
        {"ct-w4", CT("\"config_groups\":{\"g\":" CT_TARGETS("[\"re:(\"]", FOUR) "}"), DQ_DAMAGED,
         "\"re:(\" is no regular expression"},
        {"ct-w4", CT("\"config_groups\":{\"g\":" CT_TARGETS("[\"re:.*mlp\"]", FOUR) "}"),
         DQ_MISMATCH, "self_attn.k_proj.weight_packed\" is quantized, but no group"},
        {"ct-w4",
         CT("\"ignore\":[\"lm_head\",\"re:.*layers.1.*v_proj\"],\"config_groups\":{"
            "\"g\":" CT_TARGETS("[\"Linear\"]", FOUR) "}"),
         DQ_MISMATCH,
         "layers.1.self_attn.v_proj.weight_packed\" is quantized, but quantization_config leaves "
         "it "
         "out: \"ignore\" has \"re:.*layers.1.*v_proj\""},
        {"ct-w4",
         CT("\"ignore\":\"lm_head\",\"config_groups\":{\"g\":" CT_TARGETS("[\"Linear\"]",
                                                                          FOUR) "}"),
         DQ_DAMAGED, "key \"ignore\": expected an array of names"},
        /* GPTQ: the first pattern that matches decides */
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"dynamic\":{\"-:.*none\":{}}"), DQ_OK, ""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"dynamic\":{\"-:.*q_proj\":{}}"),
         DQ_MISMATCH,
         "q_proj.qweight\" is quantized, but quantization_config leaves it out: "
         "\"dynamic\" has \"-:.*q_proj\""},
        {"gptq-v1",
         GPTQ("\"bits\":4,\"group_size\":16,\"dynamic\":{\"+:.*q_proj\":{},\"-:.*q_proj\":{}}"),
         DQ_OK, ""},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"dynamic\":{\"+:.*q_proj\":{\"bits\":8}}"),
         DQ_MISMATCH, "q_proj.qweight\" and those beside it are not what"},
        {"gptq-v1", GPTQ("\"bits\":8,\"group_size\":16,\"dynamic\":{\".*none\":{\"bits\":4}}"),
         DQ_MISMATCH, "are not what quantization_config says (8 bits"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"dynamic\":[]"), DQ_DAMAGED,
         "key \"dynamic\": expected an object"},
        {"gptq-v1", GPTQ("\"bits\":4,\"group_size\":16,\"dynamic\":{\".*q_proj\":8}"), DQ_DAMAGED,
         "\".*q_proj\": expected an object"},
        /* AWQ: whole parts of a name */
        {"awq", AWQ("\"bits\":4,\"group_size\":16,\"modules_to_not_convert\":[\"q_pro\"]"), DQ_OK,
         ""},
        {"awq", AWQ("\"bits\":4,\"group_size\":16,\"modules_to_not_convert\":[\"layers.0.mlp\"]"),
         DQ_MISMATCH,
         "layers.0.mlp.down_proj.qweight\" is quantized, but quantization_config leaves it out: "
         "\"modules_to_not_convert\" has \"layers.0.mlp\""},
    };
    run(t, sizeof t / sizeof *t);
}

#define Q "model.layers.1.self_attn.q_proj."

/* Word 5 of the index of Q becomes 99. */
static void change_index(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, Q "g_idx") == 0 || strcmp(w->name, Q "weight_g_idx") == 0) bytes[20] = 99;
}

static void change_index_sign(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, Q "g_idx") == 0) memset(bytes + 20, 255, 4);
}

static void change_shape(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, Q "weight_shape") == 0) bytes[15] = 127; /* columns: 2^63 less a bit */
}

static void change_columns(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, Q "weight_shape") == 0) bytes[8] = 31;
}

static void change_scale(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, Q "scales") == 0) memcpy(bytes + 2, "\0\174", 2); /* infinity */
}

/* No group for any column: none was given an order. */
static void no_index(unsigned char *bytes, const dq_weight *w)
{
    if (strstr(w->name, "weight_g_idx")) memset(bytes, 255, (size_t)w->rows * 4);
}

TEST(tensors_end_in_their_status)
{
    static const struct {
        edit e;
        dq_status status;
        const char *text;
    } t[] = {
        {WEIGHT(HERE "ct-w4", DROP, Q "weight_scale", NULL), DQ_DAMAGED,
         "q_proj.weight_scale\" is missing, \"" Q "weight_packed\" is there"},
        {WEIGHT(HERE "ct-w4", DROP, Q "weight_shape", NULL), DQ_DAMAGED,
         "weight_shape\" is missing"},
        {WEIGHT(HERE "ct-w4", DROP, Q "weight_packed", NULL), DQ_DAMAGED, Q "weight\" is missing"},
        {WEIGHT(HERE "ct-w4", RETYPE, Q "weight_packed", "U32"), DQ_DAMAGED,
         "(expected I32, found U32)"},
        {WEIGHT(HERE "ct-w4", RETYPE, Q "weight_scale", "I16"), DQ_MISMATCH,
         "dtype I16 is not supported"},
        {WEIGHT(HERE "ct-w4", RESHAPE, Q "weight_packed", "4,32"), DQ_MISMATCH,
         "not as many words"},
        {WEIGHT(HERE "ct-w4", RESHAPE, Q "weight_packed", "128"), DQ_MISMATCH, "not a matrix"},
        {WEIGHT(HERE "ct-w4", RESHAPE, Q "weight_scale", "64"), DQ_MISMATCH,
         "weight_scale does not have"},
        {WEIGHT(HERE "ct-w4", COPY, "model.norm.weight", Q "weight"), DQ_DAMAGED,
         Q "weight\" is there beside \"" Q "weight_packed\""},
        {WEIGHT(HERE "ct-w4", STRAY, Q "weight_packed", "model.layers.9.x.weight_packed"),
         DQ_DAMAGED, "x.weight_packed\": no elements"},
        {WEIGHT(HERE "ct-asym-index", POKE, Q "weight_scale", NULL), DQ_DAMAGED,
         "weight_scale\": the scale of row 1, group 1 is not finite"},
        {WEIGHT(HERE "ct-asym-index", RESHAPE, Q "weight_g_idx", "16,2"), DQ_DAMAGED,
         "weight_g_idx\": 2 dimensions"},
        {WEIGHT(HERE "ct-asym-index", RESHAPE, Q "weight_zero_point", "2,4"), DQ_MISMATCH,
         "weight_zero_point does not have"},
        {{.base = HERE "ct-asym-index", .change = change_index},
         DQ_DAMAGED,
         "group 99 of column 5 (there are 2)"},
        {{.base = HERE "ct-asym-index", .change = no_index}, DQ_OK, ""},
        {{.base = HERE "ct-w4", .change = change_shape}, DQ_MISMATCH, "weight_shape is not that"},
        {{.base = HERE "ct-w4", .change = change_columns},
         DQ_MISMATCH,
         "no multiple of group_size"},
        {WEIGHT(HERE "gptq-v2-index", DROP, Q "qzeros", NULL), DQ_DAMAGED, "qzeros\" is missing"},
        {WEIGHT(HERE "gptq-v2-index", RESHAPE, Q "qweight", "16,16"), DQ_MISMATCH,
         "do not have the shape"},
        {{.base = HERE "gptq-v2-index", .change = change_index},
         DQ_DAMAGED,
         "group 99 of column 5"},
        {{.base = HERE "gptq-v2-index", .change = change_index_sign},
         DQ_DAMAGED,
         "group -1 of column 5"},
        {{.base = HERE "gptq-v1", .change = change_scale},
         DQ_DAMAGED,
         "row 1, group 0 is not finite"},
        {WEIGHT(HERE "gptq-v1", DROP, Q "g_idx", NULL), DQ_OK, ""},
        {WEIGHT(HERE "gptq-v2-index", DROP, Q "g_idx", NULL), DQ_DAMAGED,
         Q "g_idx\" is missing, but quantization_config says that columns were ordered"},
        {WEIGHT(HERE "ct-asym-index", DROP, Q "weight_g_idx", NULL), DQ_DAMAGED,
         Q "weight_g_idx\" is missing, but"},
        {WEIGHT(HERE "gptq-v1", BLANK, Q "qzeros", NULL), DQ_MISMATCH,
         "is 1, but quantization_config says"},
        {WEIGHT(HERE "awq", RETYPE, Q "scales", "BF16"), DQ_OK, ""},
        {WEIGHT(HERE "awq", RESHAPE, Q "qzeros", "4,2"), DQ_MISMATCH, "scales or qzeros"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&t[i].e, &err);
        if (m) dq_model_check_weights(m, &err);
        check_error(&err, t[i].status, t[i].text);
        dq_model_close(m);
    }
}

/* Bits after the last code of a row. */
static void change_padding(unsigned char *bytes, const dq_weight *w)
{
    if (strcmp(w->name, Q "weight_shape") == 0) bytes[8] = 30;
    if (strcmp(w->name, Q "weight_packed") == 0) bytes[15] |= 128;
}

TEST(padding_is_zero)
{
    const edit e = {
        .base = HERE "ct-w4",
        .key = "quantization_config",
        .value =
            CT_GROUP("\"group_size\":15}},\"g2\":{\"weights\":{\"num_bits\":4,\"group_size\":16"),
        .change = change_padding};
    opened o = {.p = NULL};
    dq_err err = {0};
    edits_write(&e);
    assert_int_equal(dq_checkpoint_open(&o.c, at(""), &err), DQ_OK);
    assert_int_equal(dq_prequant_open(&o.p, o.c, &err), DQ_OK);
    dq_prequant_source(o.p).load(o.p, &err);
    check_error(&err, DQ_DAMAGED, "weight_packed\": holds padding bits that are not zero");
    close_folder(&o);
}

/* ---- When ---- */

/* Opening reads neither codes nor scales; where laying them out needs more memory than there is, nothing is taken. */
TEST(weights_are_laid_out_when_needed)
{
    struct rlimit before;
    dq_err err = {0}, short_of = {0};
    const edit e = {.base = HERE "gptq-v1", .change = change_scale};
    dq_model *m = edits_open(&e, &err);
    assert_string_equal(err.text, "");
    dq_model_check_weights(m, &err);
    check_error(&err, DQ_DAMAGED, "row 1, group 0 is not finite");
    dq_model_close(m);
    m = given_model(GOLDEN "%s", "gptq-v1");
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_AS, &(struct rlimit){1, before.rlim_max}), 0);
    dq_model_check_weights(m, &short_of);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    check_error(&short_of, DQ_RESOURCE, "this process can have 0.0 MiB");
    err = (dq_err){.code = DQ_OK};
    for (int i = 0; i < 2; i++) assert_int_equal(dq_model_check_weights(m, &err), DQ_OK);
    dq_model_close(m);
}

/* A head whose codes and scales are the embedding's, both laid out anew: they are compared when a model is built. */
static bool find_tied(void *arg, const char *name, dq_weight *w)
{
    const dq_source *s = arg;
    return s->find(s->arg, strcmp(name, "model.embed_tokens.weight") ? name : "lm_head.weight", w);
}

static const char *tied_at(void *arg, int64_t i)
{
    const dq_source *s = arg;
    return s->name_at(s->arg, i);
}

static dq_status load_tied(void *arg, dq_err *err)
{
    const dq_source *s = arg;
    return s->load(s->arg, err);
}

TEST(tied_ends_are_compared)
{
    opened o = {.p = NULL};
    dq_model m = {.tied = false};
    dq_err err = {0};
    dq_arena *a = given_arena();
    assert_int_equal(dq_checkpoint_open(&o.c, GOLDEN "ct-mixed", &err), DQ_OK);
    assert_int_equal(dq_prequant_open(&o.p, o.c, &err), DQ_OK);
    o.source = dq_prequant_source(o.p);
    json_t *config = json_deep_copy(o.c->config);
    json_object_set_new(config, "tie_word_embeddings", json_true());
    const dq_source source = {&o.source, find_tied, o.source.count, tied_at, NULL, load_tied};
    dq_model_build(&m, config, &source, DQ_PAIR_COUNT, a, &err);
    assert_string_equal(err.text, "");
    assert_true(m.tied);
    assert_int_equal(m.n_warnings, 0);
    json_decref(config);
    close_folder(&o);
}

/* Memory that runs out is told at every place, and nothing is left behind. */
static void blank_bias(unsigned char *bytes, const dq_weight *w)
{
    if (strstr(w->name, ".bias")) memset(bytes, 0, dq_weight_bytes(w));
}

/* Of every format, as early AutoGPTQ wrote them; one that is not zero has no place in the model. */
TEST(biases_of_zero_are_left_out)
{
    static const char *const bases[] = {HERE "gptq-v1", HERE "awq", HERE "ct-w4"};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        edit e = {.base = bases[i],
                  .kind = COPY,
                  .tensor = "model.norm.weight",
                  .arg = "model.layers.0.mlp.down_proj.bias",
                  .change = blank_bias};
        dq_err err = {0};
        dq_model *m = edits_open(&e, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(m->n_left_out, 1);
        assert_string_equal(m->left_out[0], e.arg);
        assert_non_null(strstr(m->warnings[0], "1 biases that are all zero"));
        dq_model_close(m);
        e.change = NULL;
        assert_null(edits_open(&e, &err));
        check_error(&err, DQ_MISMATCH, "\"model.layers.0.mlp.down_proj.bias\" does not belong");
    }
}

TEST(memory_may_run_out)
{
    static const char *const names[] = {"ct-mixed", "gptq-v2-index", "awq"};
    for (int i = 0; i < 3; i++) {
        char path[512];
        dq_status status = DQ_RESOURCE;
        snprintf(path, sizeof path, GOLDEN "%s", names[i]);
        for (int64_t n = 1; status != DQ_OK; n++) {
            dq_err err = {0};
            dq_prequant *p = NULL;
            dq_checkpoint *c = given_checkpoint(path);
            dq_alloc_fail_at(n);
            status = dq_prequant_open(&p, c, &err);
            if (p) status = dq_prequant_source(p).load(p, &err);
            dq_alloc_fail_at(0);
            assert_true(status == DQ_OK || status == DQ_RESOURCE);
            dq_prequant_close(p);
            dq_checkpoint_close(c);
        }
    }
}

FIXTURES(folder_begin, folder_end)
