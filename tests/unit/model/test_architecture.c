/* Tests of the families beside Llama and DiffLlama: what their goldens load as, every key of their
 * configurations, their tensors, and odd forms of checkpoints.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "quantize/quantize.h"
#include "tests/rigs/edits.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- Goldens ---- */

static const double depth[] = {0.2, 0.3555091, 0.4707130};
static const double motif_depth[] = {-0.0099153, 0.2, 0.3555091, 0.4707130};
static const double always[] = {0.8, 0.8, 0.8};

static const struct wanted {
    const char *name, *family, *map;
    int n_layers, dim, ffn, n_q, n_kv, head_dim, n_out;
    bool tied;
    dq_dtype dtype;
    int wide;       /* F32 elements among those of 2 bytes: the lambda vectors */
    double eps;     /* of the block norms */
    double head;    /* epsilon of the norm over each head; 0: there is none */
    bool gain;      /* of that norm */
    bool polynorm;  /* else SiLU */
    bool adjacent;  /* order of the rotation */
    bool token;     /* lambda per token */
    bool dynamic;   /* rotation that ends at max_positions */
    int64_t params; /* counted from the file by another program */
    const double *init;
} goldens[] = {
    {"v1-bf16", "diff-v1", "adjacent", 3,    64,   53,    8,    4,     8,     4,     true,
     DQ_BF16,   96,        1e-5,       1e-5, true, false, true, false, false, 84368, depth},
    {"v1-nonorm", "diff-v1", "adjacent", 3, 48,    41,    8,    4,     6,     4,     true,
     DQ_BF16,     0,         1e-5,       0, false, false, true, false, false, 48984, depth},
    {"v1-const", "diff-v1", "adjacent", 3,    48,   41,    8,    4,     6,     4,     true,
     DQ_BF16,    0,         1e-5,       1e-5, true, false, true, false, false, 49020, always},
    {"v1-naive-f32",
     "diff-v1-naive",
     "adjacent-naive",
     3,
     48,
     37,
     8,
     4,
     6,
     4,
     true,
     DQ_F32,
     0,
     1e-3,
     1e-5,
     true,
     false,
     true,
     false,
     false,
     47292,
     depth},
    {"plain-norm", "diff-plain", "plain", 3,    48,   41,   8,     4,    6,     8,
     true,         DQ_BF16,      0,       1e-5, 1e-5, true, false, true, false, false,
     48930,        NULL},
    {"plain-adjacent",
     "diff-plain",
     "plain",
     3,
     60,
     49,
     6,
     3,
     10,
     6,
     true,
     DQ_BF16,
     0,
     1e-5,
     0,
     false,
     false,
     true,
     false,
     false,
     71940,
     NULL},
    {"v2-f16", "diff-v2", "shared-kv", 3, 45,    51,    12,   3,    10,    6,     false,
     DQ_F16,   0,         1e-5,        0, false, false, true, true, false, 73170, NULL},
    {"motif-bf16", "motif", "adjacent", 4,    48,   43,   6,     6,     8,     3,     true,
     DQ_BF16,      0,       1e-6,       1e-3, true, true, false, false, false, 74560, motif_depth},
    {"motif-gqa-f32",
     "motif",
     "adjacent",
     3,
     48,
     37,
     8,
     4,
     6,
     4,
     true,
     DQ_F32,
     0,
     1e-3,
     1e-6,
     true,
     true,
     false,
     false,
     false,
     47304,
     motif_depth},
    {"gda-f32-shards",
     "motif2",
     "grouped",
     3,
     37,
     37,
     10,
     4,
     6,
     8,
     false,
     DQ_F32,
     0,
     1e-5,
     1e-3,
     true,
     true,
     false,
     false,
     false,
     50958,
     motif_depth},
    {"gda-wide-bf16", "motif2",   "grouped", 3,    50,   41,   12,   4,     8,     8,
     false,           DQ_BF16,    96,        1e-6, 1e-5, true, true, false, false, false,
     83256,           motif_depth},
    {"llama-yarn", "llama", "plain", 3, 48,    37,    6,     3,     24,    6,     true,
     DQ_BF16,      0,       1e-5,    0, false, false, false, false, false, 90816, NULL},
    {"llama-yarn-factor",
     "llama",
     "plain",
     3,
     48,
     41,
     4,
     2,
     20,
     4,
     true,
     DQ_BF16,
     0,
     1e-5,
     0,
     false,
     false,
     false,
     false,
     false,
     64896,
     NULL},
    {"llama-dynamic", "llama", "plain", 3, 45,    51,    5,     5,     10,   5,     true,
     DQ_BF16,         0,       1e-5,    0, false, false, false, false, true, 59490, NULL},
};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens };

static bool near(float x, double want, double by)
{
    return fabs((double)x - want) <= by;
}

static void check_sizes(const dq_model *m, const struct wanted *g)
{
    assert_string_equal(m->architecture->name, g->family);
    assert_string_equal(dq_head_order_pairing_name(m->map.pairing), g->map);
    assert_int_equal(m->n_layers, g->n_layers);
    assert_int_equal(m->dim, g->dim);
    assert_int_equal(m->ffn, g->ffn);
    assert_int_equal(m->map.n_q, g->n_q);
    assert_int_equal(m->map.n_kv, g->n_kv);
    assert_int_equal(m->map.head_dim, g->head_dim);
    assert_int_equal(m->map.n_out, g->n_out);
    assert_int_equal(m->max_positions, 65536);
    assert_int_equal(m->tied, g->tied);
    assert_int_equal(m->head.data == m->embed.data, g->tied);
    assert_int_equal(m->n_params, g->params);
    assert_int_equal(m->weight_bytes, g->params * (int64_t)dq_dtypes[g->dtype].bytes + 2 * g->wide);
    assert_int_equal(m->n_warnings, 0);
    assert_true(near(m->norm_eps, g->eps, 1e-9));
    assert_int_equal(m->architecture->act == DQ_ACT_POLYNORM, g->polynorm);
    assert_int_equal(m->rope.order == DQ_ROPE_ADJACENT, g->adjacent);
    assert_int_equal(m->rope.dim, g->head_dim);
    assert_int_equal(m->rope.max_positions, g->dynamic ? 65536 : 0);
}

static void check_layer(const dq_model *m, const struct wanted *g, int l)
{
    const dq_layer *x = &m->layer[l];
    const double init = g->init ? g->init[l] : 0;
    assert_int_equal(x->q.dtype, g->dtype);
    assert_int_equal(x->o.cols, g->n_out * m->map.n_slabs * g->head_dim);
    assert_int_equal(x->attn.head_norm, g->head > 0);
    assert_true(g->head <= 0 || near(x->attn.norm_eps, g->head, 1e-9));
    assert_int_equal(x->attn.gain != NULL, g->gain);
    assert_true(near(x->lambda_init, init, 5e-8));
    assert_true(near(x->attn.out_scale, 1 - init, 1.2e-7));
    assert_int_equal(x->attn.lambda_kind, g->token  ? DQ_LAMBDA_TOKEN
                                          : g->init ? DQ_LAMBDA_LAYER
                                                    : DQ_LAMBDA_NONE);
    assert_int_equal(x->lambda_proj.data != NULL, g->token);
    assert_int_equal(x->lambda_proj.rows, g->token ? g->n_out : 0);
    assert_int_equal(x->lambda_proj.cols, g->token ? g->dim : 0);
    assert_null(x->q_bias);
    assert_null(x->o_bias);
    assert_null(x->down_bias);
}

/* lambda of every layer and the rotation, as the reference computed them. */
static void check_reference(const dq_model *m, const struct wanted *g, const char *path)
{
    golden ref = golden_open(path);
    const dq_tensor *freq = golden_find(&ref, "inv_freq"), *lambda = golden_find(&ref, "lambda");
    const dq_tensor *scale = golden_find(&ref, "rope_scale");
    assert_int_equal(dq_tensor_numel(freq), m->rope.dim / 2);
    assert_memory_equal(m->rope.inv_freq, freq->data, dq_tensor_bytes(freq));
    assert_true(near(m->rope.amplitude, scale ? (double)golden_f32(scale, 0) : 1.0, 0));
    assert_int_equal(strstr(g->name, "yarn") != NULL, scale != NULL);
    assert_int_equal(lambda ? dq_tensor_numel(lambda) : 0, g->init ? g->n_layers : 0);
    for (int l = 0; g->init && l < m->n_layers; l++)
        assert_true(near(m->layer[l].attn.lambda, (double)golden_f32(lambda, l), 1e-6));
    golden_close(&ref);
}

/* Parameters of the activation, read from the file by name. */
static void check_act(const dq_model *m, const struct wanted *g, const char *path)
{
    static const char *const parts[] = {"weight", "bias"};
    dq_checkpoint *c = given_checkpoint(path);
    for (int l = 0; l < m->n_layers; l++) {
        float want[4] = {0};
        for (int i = 0; i < 2 && g->polynorm; i++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%d.mlp.act_fn.%s", l, parts[i]);
            const dq_tensor *t = dq_checkpoint_find(c, name);
            dq_tensor_to_f32(want + 3 * i, t->data, t->dtype, dq_tensor_numel(t));
        }
        assert_memory_equal(m->layer[l].act, want, sizeof want);
        assert_int_equal(want[0] != 0, g->polynorm);
    }
    dq_checkpoint_close(c);
}

TEST(golden_checkpoints_load)
{
    for (int i = 0; i < N_GOLDENS; i++) {
        char path[512];
        snprintf(path, sizeof path, MODELS "%s", goldens[i].name);
        dq_model *m = given_model("%s", path);
        check_sizes(m, &goldens[i]);
        for (int l = 0; l < m->n_layers; l++) check_layer(m, &goldens[i], l);
        check_reference(m, &goldens[i], path);
        check_act(m, &goldens[i], path);
        dq_model_close(m);
    }
}

/* ---- Containers ---- */

static void same_weight(const dq_weight *a, const dq_weight *b)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    if (dq_weight_is_coded(a) || dq_weight_is_coded(b)) return;
    assert_int_equal(a->dtype, b->dtype);
    if (a->rows)
        assert_memory_equal(a->data, b->data,
                            (size_t)(a->rows * a->cols) * dq_dtypes[a->dtype].bytes);
}

static void same_vector(const float *a, const float *b, int64_t n)
{
    assert_int_equal(a != NULL, b != NULL);
    if (a) assert_memory_equal(a, b, (size_t)n * sizeof *a);
}

static void same_layer(const dq_model *m, const dq_layer *a, const dq_layer *b)
{
    const dq_weight *of_a[] = {&a->q,  &a->k,    &a->v,    &a->o,
                               &a->up, &a->gate, &a->down, &a->lambda_proj};
    const dq_weight *of_b[] = {&b->q,  &b->k,    &b->v,    &b->o,
                               &b->up, &b->gate, &b->down, &b->lambda_proj};
    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++) same_weight(of_a[i], of_b[i]);
    same_vector(a->norm_attn, b->norm_attn, m->dim);
    same_vector(a->norm_ffn, b->norm_ffn, m->dim);
    same_vector(a->attn.gain, b->attn.gain, m->map.n_slabs * m->map.head_dim);
    same_vector(&a->attn.lambda, &b->attn.lambda, 1);
    same_vector(&a->attn.out_scale, &b->attn.out_scale, 1);
    same_vector(&a->attn.norm_eps, &b->attn.norm_eps, 1);
    same_vector(&a->lambda_init, &b->lambda_init, 1);
    same_vector(a->act, b->act, 4);
    assert_int_equal(a->attn.lambda_kind, b->attn.lambda_kind);
    assert_int_equal(a->attn.head_norm, b->attn.head_norm);
}

static void same_model(const dq_model *a, const dq_model *b)
{
    assert_ptr_equal(a->architecture, b->architecture);
    assert_int_equal(a->map.pairing, b->map.pairing);
    assert_int_equal(a->n_params, b->n_params);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->max_positions, b->max_positions);
    assert_string_equal(a->fingerprint, b->fingerprint);
    same_vector(a->rope.inv_freq, b->rope.inv_freq, a->rope.dim / 2);
    same_vector(&a->rope.amplitude, &b->rope.amplitude, 1);
    assert_int_equal(a->rope.order, b->rope.order);
    assert_int_equal(a->rope.max_positions, b->rope.max_positions);
    same_vector(&a->norm_eps, &b->norm_eps, 1);
    same_vector(a->norm_out, b->norm_out, a->dim);
    same_weight(&a->embed, &b->embed);
    same_weight(&a->head, &b->head);
    for (int l = 0; l < a->n_layers; l++) same_layer(a, &a->layer[l], &b->layer[l]);
}

TEST(containers_keep_the_model)
{
    static const int bits[] = {16, 4};
    for (int i = 0; i < 2 * N_GOLDENS; i++) {
        const dq_quantize_settings s = {.bits = bits[i % 2],
                                        .group = 32,
                                        .scale_dtype = DQ_F16,
                                        .logit = {.bits = 16},
                                        .kv = dq_kv_config_plain,
                                        .dq_version = "test"};
        char path[512];
        const char *out = at("model.h5");
        dq_err err = {0};
        dq_quantizer *q;
        dq_model *a, *b;
        snprintf(path, sizeof path, MODELS "%s", goldens[i / 2].name);
        if (dq_quantize_open(&q, path, &s, &err) == DQ_OK)
            dq_quantize_write(q, out, true, false, NULL, &err);
        dq_quantize_close(q);
        assert_string_equal(err.text, "");
        dq_model_open(&a, path, &err);
        dq_model_open(&b, out, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(b->layer[0].q.bits, bits[i % 2]);
        same_model(a, b);
        dq_model_close(a);
        dq_model_close(b);
    }
    unlink(at("model.h5"));
}

static void blank_stray(unsigned char *bytes, const dq_weight *w)
{
    if (strstr(w->name, ".bias")) memset(bytes, 0, dq_weight_bytes(w));
}

TEST(containers_have_no_biases_of_zero)
{
    const dq_quantize_settings s = {.bits = 4,
                                    .group = 32,
                                    .scale_dtype = DQ_F16,
                                    .logit = {.bits = 16},
                                    .kv = dq_kv_config_plain,
                                    .dq_version = "test"};
    const edit e = {.base = "llama-yarn",
                    .kind = COPY,
                    .tensor = "model.norm.weight",
                    .arg = "model.layers.0.self_attn.o_proj.bias",
                    .change = blank_stray};
    dq_err err = {0};
    dq_quantizer *q;
    dq_model *m;
    edits_write(&e);
    if (dq_quantize_open(&q, at(""), &s, &err) == DQ_OK)
        dq_quantize_write(q, at("model.h5"), true, false, NULL, &err);
    dq_quantize_close(q);
    dq_model_open(&m, at("model.h5"), &err);
    assert_string_equal(err.text, "");
    assert_int_equal(m->n_left_out, 0);
    dq_model_close(m);
    unlink(at("model.h5"));
}

/* Quantizes a golden with these settings of the KV cache; in the file `stored` stands for `fits`, which is as long, in
 * the recipe and in the attributes, and all hashes are those of what is written. */
static void write_settings(dq_kv_config *kv, const char *fits, const char *stored, char *in_config)
{
    const dq_quantize_settings s = {.bits = 16,
                                    .group = 32,
                                    .scale_dtype = DQ_F16,
                                    .logit = {.bits = 16},
                                    .kv = *kv,
                                    .dq_version = "test"};
    dq_err err = {0};
    dq_quantizer *q;
    assert_int_equal(dq_quantize_open(&q, MODELS "v1-bf16", &s, &err), DQ_OK);
    char *in_recipe = strstr((char *)(uintptr_t)q->recipe, fits);
    char *in_file = (char *)&q->skeleton.kv + (in_config - (char *)kv);
    assert_int_equal(strlen(fits), strlen(stored));
    assert_non_null(in_recipe);
    assert_string_equal(in_file, fits);
    memcpy(in_recipe, stored, strlen(stored));
    memcpy(in_file, stored, strlen(stored));
    dq_quantize_write(q, at("model.h5"), true, false, NULL, &err);
    dq_quantize_close(q);
    assert_string_equal(err.text, "");
}

/* Heads, and widths by layer, of a model with other layers: no option helps, the file is damaged. */
TEST(settings_of_other_layers_are_damage)
{
    static const struct {
        bool heads;
        const char *fits, *stored, *says;
    } t[] = {
        {true, "2.0,2.1,1.0,1.1/0.0,0.1", "2.0,2.1,1.0,1.1/0.0,3.1", "the heads name group 3.1"},
        {true, "2.0,2.1,1.0,1.1/0.0,0.1", "2.0,2.1,1.0,1.1/0.0,0.2", "the heads name group 0.2"},
        {true, "2.0,2.1,1.0,1.1/0.0,0.1", "2.0,2.1,1.0,1.1/0.0,0.1", ""},
        {false, "3*2|4:4", "3*4|5:4", "for 5 layers, and the model has 3"},
        {false, "3*2|4:4", "3*2|4:4", ""}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_kv_config kv = dq_kv_config_plain;
        dq_err err = {0};
        dq_model *m = NULL;
        kv.quant = DQ_KV_PER_CHANNEL;
        kv.evict.policy = t[i].heads ? dq_kv_policy_find("keydiff", &err) : NULL;
        kv.evict.keep = t[i].heads ? 0.5 : kv.evict.keep;
        if (t[i].heads) kv.evict.budget = DQ_KV_BUDGET_HEADS;
        if (t[i].heads)
            assert_int_equal(dq_kv_config_set_heads(&kv, t[i].fits, &err), DQ_OK);
        else
            assert_int_equal(dq_kv_config_set_widths(&kv, t[i].fits, &err), DQ_OK);
        write_settings(&kv, t[i].fits, t[i].stored, t[i].heads ? kv.evict.heads : kv.widths);
        const bool fits = strcmp(t[i].fits, t[i].stored) == 0;
        if (dq_model_open(&m, at("model.h5"), &err) != (fits ? DQ_OK : DQ_DAMAGED) ||
            !strstr(err.text, t[i].says))
            fail_msg("%s: %s", t[i].stored, err.text);
        assert_int_equal(err.n_remedies, 0);
        if (!fits)
            assert_non_null(strstr(err.text, "the settings of /kv_cache are not of this model"));
        dq_model_close(m);
        err = (dq_err){0}; /* another head order may be what they do not fit */
        assert_int_equal(dq_model_open_as(&m, at("model.h5"), DQ_PAIR_HALVES, &err),
                         fits ? DQ_OK : DQ_MISMATCH);
        if (!fits) assert_non_null(strstr(err.text, "do not go with the head order halves: "));
        dq_model_close(m);
    }
    unlink(at("model.h5"));
}

/* ---- Tensors ---- */

#define LAYER1 "model.layers.1."
#define ATTN1  LAYER1 "self_attn."
#define NORM   "model.norm.weight"

TEST(tensors_end_in_their_status)
{
    static const edits_trial t[] = {
        /* The gain of the norm over each head. */
        {WEIGHT("v1-naive-f32", DROP, ATTN1 "subln.weight", NULL), DQ_DAMAGED,
         "\"model.layers.1.self_attn.subln.weight\" is missing"},
        {WEIGHT("v1-naive-f32", RESHAPE, ATTN1 "subln.weight", "2,6"), DQ_DAMAGED,
         "subln.weight\": wrong shape (expected [12], found [2, 6])"},
        {WEIGHT("plain-norm", RENAME, ATTN1 "subln.weight", ATTN1 "diff_norm.weight"), DQ_DAMAGED,
         "subln.weight\" is missing"},
        {WEIGHT("plain-norm", COPY, ATTN1 "subln.weight", ATTN1 "diff_norm.weight"), DQ_MISMATCH,
         "diff_norm.weight\" does not belong to a diff-plain model of 3 layers"},
        {WEIGHT("v1-naive-f32", POKE, ATTN1 "subln.weight", NULL), DQ_DAMAGED,
         "subln.weight\": value 3 is not finite"},
        {WEIGHT("plain-adjacent", COPY, NORM, ATTN1 "subln.weight"), DQ_MISMATCH,
         "subln.weight\" does not belong"},
        {WEIGHT("v1-nonorm", COPY, NORM, ATTN1 "subln.weight"), DQ_MISMATCH, "subln.weight"},
        {WEIGHT("v2-f16", COPY, NORM, ATTN1 "subln.weight"), DQ_MISMATCH, "subln.weight"},
        /* Lambda, of a layer and of a token. */
        {WEIGHT("motif-bf16", DROP, ATTN1 "lambda_q2", NULL), DQ_DAMAGED,
         "\"model.layers.1.self_attn.lambda_q2\" is missing"},
        {WEIGHT("gda-f32-shards", RESHAPE, ATTN1 "lambda_q2", "1,6"), DQ_DAMAGED,
         "lambda_q2\": wrong shape (expected [6], found [1, 6])"},
        {WEIGHT("v2-f16", DROP, ATTN1 "lambda_proj.weight", NULL), DQ_DAMAGED,
         "\"model.layers.1.self_attn.lambda_proj.weight\" is missing"},
        {WEIGHT("v2-f16", RESHAPE, ATTN1 "lambda_proj.weight", "45,6"), DQ_DAMAGED,
         "lambda_proj.weight\": wrong shape (expected [6, 45], found [45, 6])"},
        {WEIGHT("v2-f16", RETYPE, ATTN1 "lambda_proj.weight", "I16"), DQ_MISMATCH, "dtype I16"},
        {WEIGHT("v2-f16", COPY, NORM, ATTN1 "lambda_q1"), DQ_MISMATCH, "lambda_q1"},
        {WEIGHT("v2-f16", COPY, NORM, ATTN1 "lambda_proj.bias"), DQ_MISMATCH, "lambda_proj.bias"},
        {WEIGHT("v1-bf16", COPY, NORM, ATTN1 "lambda_proj.weight"), DQ_MISMATCH, "lambda_proj"},
        /* The activation. */
        {WEIGHT("motif-bf16", DROP, LAYER1 "mlp.act_fn.weight", NULL), DQ_DAMAGED,
         "\"model.layers.1.mlp.act_fn.weight\" is missing"},
        {WEIGHT("motif-bf16", DROP, LAYER1 "mlp.act_fn.bias", NULL), DQ_DAMAGED,
         "\"model.layers.1.mlp.act_fn.bias\" is missing"},
        {WEIGHT("motif-bf16", RESHAPE, LAYER1 "mlp.act_fn.weight", "1,3"), DQ_DAMAGED,
         "act_fn.weight\": wrong shape (expected [3], found [1, 3])"},
        {WEIGHT("motif-bf16", RESHAPE, LAYER1 "mlp.act_fn.bias", ""), DQ_OK, ""},
        {WEIGHT("motif-bf16", RESHAPE, LAYER1 "mlp.act_fn.bias", "1,1,1"), DQ_DAMAGED,
         "expected [1], found 3 dimensions"},
        {WEIGHT("v1-bf16", COPY, NORM, LAYER1 "mlp.act_fn.weight"), DQ_MISMATCH, "act_fn.weight"},
        /* The output projection goes by two names, and its width is that of the output heads. */
        {WEIGHT("v1-bf16", RENAME, ATTN1 "out_proj.weight", ATTN1 "o_proj.weight"), DQ_DAMAGED,
         "out_proj.weight\" is missing"},
        {WEIGHT("v2-f16", RENAME, ATTN1 "o_proj.weight", ATTN1 "out_proj.weight"), DQ_DAMAGED,
         "o_proj.weight\" is missing"},
        {WEIGHT("gda-f32-shards", RESHAPE, ATTN1 "o_proj.weight", "96,37"), DQ_DAMAGED,
         "o_proj.weight\": wrong shape (expected [37, 96], found [96, 37])"},
        {WEIGHT("v2-f16", RESHAPE, ATTN1 "o_proj.weight", "60,45"), DQ_DAMAGED,
         "expected [45, 60], found [60, 45]"},
        {WEIGHT("v2-f16", DROP, "lm_head.weight", NULL), DQ_DAMAGED, "\"lm_head.weight\" is"},
        /* Things without elements, and what older versions leave behind. */
        {WEIGHT("v2-f16", STRAY, NORM, ATTN1 "rotary_emb.inv_freq"), DQ_OK, ""},
        {WEIGHT("v2-f16", COPY, NORM, "model.rotary_emb.inv_freq"), DQ_OK, ""},
        {WEIGHT("v2-f16", STRAY, NORM, "model.empty"), DQ_MISMATCH, "\"model.empty\""},
        {{.base = "v2-f16", .odd_header = true}, DQ_OK, ""},
        {{.base = "motif-gqa-f32", .odd_header = true}, DQ_OK, ""},
        {WEIGHT("motif-gqa-f32", RESHAPE, LAYER1 "mlp.act_fn.bias", "1"), DQ_OK, ""},
    };
    edits_try(t, sizeof t / sizeof *t);
}

static void enlarge(unsigned char *bytes, const dq_weight *w)
{
    const float large = 40.0f;
    if (!strstr(w->name, "layers.2.self_attn.lambda_") || w->dtype != DQ_F32) return;
    for (int64_t i = 0; i < w->rows; i++) memcpy(bytes + 4 * i, &large, sizeof large);
}

TEST(huge_lambda_is_refused)
{
    const edit e = {.base = "gda-wide-bf16", .change = enlarge};
    dq_err err = {0};
    assert_null(edits_open(&e, &err));
    check_error(&err, DQ_DAMAGED, "layer 2: the lambda vectors");
}

/* ---- Folders ---- */

static void refused(const char *path, dq_status status, const char *text)
{
    dq_err err = {0};
    dq_model *m;
    dq_model_open(&m, path, &err);
    check_error(&err, status, text);
    assert_null(m);
}

static void make_folder(const char *name)
{
    char command[512];
    snprintf(command, sizeof command, "mkdir -p '%s'", at(name));
    assert_int_equal(system(command), 0);
}

/* A folder of links, as caches of downloads have them, stands for the files that they lead to. */
static void link_files(const char *to, const char *model)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p blobs '%s' && for f in %s/*; do b=blobs/$(basename $f).blob && "
             "cp $f $b && ln -s %s/$b '%s'/$(basename $f) || exit 1; done",
             at(""), to, model, at(""), to);
    assert_int_equal(system(command), 0);
}

TEST(folders_are_explained)
{
    dq_err err = {0};
    dq_model *m;
    make_folder("top/empty");
    refused(at("top"), DQ_FILE, "config.json");
    link_files("top/checkpoint-7", MODELS "gda-f32-shards");
    refused(at("top"), DQ_FILE, "top/checkpoint-7");
    refused(at("top/"), DQ_FILE, "top/checkpoint-7");
    assert_int_equal(dq_model_open(&m, at("top/checkpoint-7"), &err), DQ_OK);
    assert_string_equal(m->architecture->name, "motif2");
    assert_string_equal(m->name, "checkpoint-7");
    dq_model_close(m);
    make_folder("top/checkpoint-8");
    edits_put("top/checkpoint-8/config.json", "{}", 2);
    refused(at("top"), DQ_FILE, "checkpoint-7 (or another one beside it)");
    edits_put("top/model-Q4.gguf", "GGUF", 4);
    refused(at("top"), DQ_FILE, "Name the file");

    unlink(at("top/checkpoint-7/model-00002-of-00002.safetensors"));
    refused(at("top/checkpoint-7"), DQ_FILE, "model-00002-of-00002.safetensors");
    make_folder("torch");
    edits_put("torch/config.json", "{\"model_type\":\"llama\"}", 22);
    refused(at("torch"), DQ_FILE, "neither model.safetensors nor");
    edits_put("torch/pytorch_model.bin", "PK\3\4", 4);
    refused(at("torch"), DQ_MISMATCH, "pytorch_model.bin: PyTorch pickle files");
    make_folder("gguf");
    edits_put("gguf/config.json", "{\"model_type\":\"llama\"}", 22);
    edits_put("gguf/model.gguf", "GGUF", 4);
    refused(at("gguf"), DQ_FILE, "Name the file");
}

FIXTURES(folder_begin, folder_end)
