/* prequant_compressed: compressed-tensors, format pack-quantized: codes q + 2^(bits-1) of a row follow each other in words
 * of 32 bits, as in dq's own rows, which are mapped in place. Versions before June 2026 put 32 / bits whole codes in a
 * word; widths that do not divide 32 differ, and the width of weight_packed tells which it is.
 *
 * Source: vllm-project/compressed-tensors, compressors/pack_quantized and quantization/quant_args.py.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/prequant_format.h"

#include <string.h>
#include <strings.h>

/* ---- Configuration ---- */

static bool is_set(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) && !(json_is_object(v) && json_object_size(v) == 0);
}

static dq_status check_format(const json_t *object, const char *missing, dq_err *err)
{
    const char *format = NULL;
    DQ_TRY(dq_json_text(&format, object, "format", missing ? &missing : NULL, err));
    if (strcasecmp(format, "pack-quantized") == 0) return DQ_OK;
    return dq_prequant_config_refuse("format", format, err);
}

static dq_status read_group(int64_t *group, const json_t *weights, dq_err *err)
{
    static const int64_t none = 0;
    static const char *const nothing = "";
    const char *strategy = NULL;
    int64_t size = 0;
    DQ_TRY(dq_json_int(&size, weights, "group_size", -1, INT32_MAX, &none, err));
    DQ_TRY(dq_json_text(&strategy, weights, "strategy", &nothing, err));
    if (!*strategy) strategy = size > 0 ? "group" : size < 0 ? "channel" : "tensor";
    *group = size;
    if (strcasecmp(strategy, "group") == 0) return DQ_OK;
    *group = strcasecmp(strategy, "channel") == 0 ? DQ_GROUP_ROW : DQ_GROUP_TENSOR;
    if (*group == DQ_GROUP_ROW || strcasecmp(strategy, "tensor") == 0) return DQ_OK;
    return dq_prequant_config_refuse("strategy", strategy, err);
}

/* Of both orders by activation only "group" leaves groups that are not runs of columns. */
static dq_status read_order(bool *any_index, const json_t *weights, dq_err *err)
{
    static const char *const none = "";
    const char *order = NULL;
    const json_t *v = json_object_get(weights, "actorder");
    *any_index = json_is_true(v);
    if (json_is_boolean(v)) return DQ_OK;
    DQ_TRY(dq_json_text(&order, weights, "actorder", &none, err));
    *any_index = strcasecmp(order, "group") == 0 || strcasecmp(order, "dynamic") == 0;
    return DQ_OK;
}

static dq_status read_weights(dq_prequant_config *c, const json_t *weights, dq_err *err)
{
    static const char *const integer = "int";
    static const int64_t eight = 8;
    static const bool yes = true;
    dq_prequant_scheme s = {.bits = 0};
    const char *type = NULL;
    int64_t bits = 0;
    bool symmetric = true;
    if (!json_is_object(weights))
        return dq_fail(err, DQ_DAMAGED, "key \"weights\": expected an object");
    DQ_TRY(dq_json_text(&type, weights, "type", &integer, err));
    if (strcasecmp(type, integer) != 0) return dq_prequant_config_refuse("type", type, err);
    DQ_TRY(dq_json_int(&bits, weights, "num_bits", 0, 64, &eight, err));
    DQ_TRY(dq_json_bool(&symmetric, weights, "symmetric", &yes, err));
    DQ_TRY(read_group(&s.group, weights, err));
    DQ_TRY(read_order(&s.any_index, weights, err));
    s.any_zero = !symmetric;
    s.needs_index = s.any_index;
    return dq_prequant_config_add(c, bits, s, err);
}

static dq_status warn(dq_prequant_config *c, const json_t *scheme, const char *what, dq_arena *a,
                      dq_err *err)
{
    static const int64_t eight = 8;
    int64_t bits = 8;
    if (!is_set(scheme, what)) return DQ_OK;
    c->activations = true;
    DQ_TRY(dq_json_int(&bits, json_object_get(scheme, what), "num_bits", 1, 64, &eight, err));
    const char *text = dq_textf(
        a, err, "quantization_config: \"%s\" (%lld bits) is not applied: %s", what, (long long)bits,
        strcmp(what, "kv_cache_scheme") == 0
            ? "the KV cache is stored as the options of this run say"
            : "weights are as stored, activations stay in f32");
    return dq_prequant_config_warn(c, text, err);
}

/* The modules of a group; without "targets" those that no group names. */
static dq_status read_targets(dq_prequant_config *c, const json_t *scheme, const char *group,
                              dq_arena *a, dq_err *err)
{
    const json_t *targets = json_object_get(scheme, "targets");
    const dq_prequant_word word = {DQ_PREQUANT_TARGET, group, NULL, c->added};
    if (!targets || json_is_null(targets)) c->unnamed |= UINT32_C(1) << c->added;
    if (json_is_array(targets) && json_array_size(targets) == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"targets\" is empty, so that no module has these weights");
    return dq_prequant_config_names(c, word, targets, a, err);
}

static dq_status read_scheme(dq_prequant_config *c, const json_t *scheme, const char *group,
                             const char *format, dq_arena *a, dq_err *err)
{
    if (!json_is_object(scheme)) return dq_fail(err, DQ_DAMAGED, "expected an object");
    if (!is_set(scheme, "weights")) return warn(c, scheme, "input_activations", a, err);
    DQ_TRY(check_format(scheme, format, err));
    DQ_TRY(read_weights(c, json_object_get(scheme, "weights"), err));
    DQ_TRY(read_targets(c, scheme, group, a, err));
    DQ_TRY(warn(c, scheme, "input_activations", a, err));
    return warn(c, scheme, "output_activations", a, err);
}

static dq_status read_config(dq_prequant_config *c, const json_t *config, dq_arena *a, dq_err *err)
{
    static const char *const dense = "dense";
    const char *format = NULL, *sparse = NULL, *name;
    json_t *groups = json_object_get(config, "config_groups"), *scheme;
    c->about = "compressed-tensors pack-quantized";
    DQ_TRY(dq_json_text(&format, config, "format", NULL, err));
    const bool mixed = strcasecmp(format, "mixed-precision") == 0; /* each group says its own */
    if (!mixed) DQ_TRY(check_format(config, NULL, err));
    if (is_set(config, "sparsity_config")) {
        DQ_TRY(dq_json_text(&sparse, json_object_get(config, "sparsity_config"), "format", &dense,
                            err));
        if (strcasecmp(sparse, dense) != 0)
            return dq_prequant_config_refuse("sparsity_config", sparse, err);
    }
    if (is_set(json_object_get(config, "transform_config"), "config_groups"))
        return dq_prequant_config_refuse("transform_config", "rotations of activations", err);
    if (!json_is_object(groups))
        return dq_fail(err, DQ_DAMAGED, "key \"config_groups\" is missing or not an object");
    json_object_foreach(groups, name, scheme)
    {
        if (read_scheme(c, scheme, name, mixed ? NULL : format, a, err) != DQ_OK)
            return dq_in(err, "\"%s\": ", name);
    }
    const dq_prequant_word left_out = {DQ_PREQUANT_TARGET, "ignore", NULL, -1};
    DQ_TRY(dq_prequant_config_names(c, left_out, json_object_get(config, "ignore"), a, err));
    if (c->n_schemes == 0)
        return dq_fail(err, DQ_MISMATCH, "\"config_groups\" quantizes no weights");
    return warn(c, config, "kv_cache_scheme", a, err);
}

/* ---- Tensors ---- */

static const char *fit_codes(dq_prequant_linear *l, int bits, int64_t rows, int64_t cols)
{
    const dq_tensor *t = l->part[DQ_PREQUANT_CODES];
    const int per = 32 % bits ? 32 / bits : 0;
    const int64_t words = t->shape[1], dense = dq_prequant_words_for(cols, bits, 0),
                  gaps = dq_prequant_words_for(cols, bits, per);
    if (t->shape[0] != rows || (words != dense && words != gaps))
        return "not as many words as weight_shape and num_bits say";
    if (dense == gaps && words > 1 && per)
        return "too few columns to tell codes that follow each other from whole codes in words";
    l->codes = (dq_prequant_words){t->data, 1, words, bits, words == dense ? 0 : per, NULL};
    return NULL;
}

static const char *fit_scales(dq_prequant_linear *l, int64_t group)
{
    const dq_tensor *t = l->part[DQ_PREQUANT_SCALES];
    dq_weight *w = &l->w;
    const bool one = group == DQ_GROUP_TENSOR;
    if (group > w->cols || (group > 0 && w->cols % group))
        return "columns are no multiple of group_size";
    w->group_size = group < 0 ? w->cols : group;
    w->scale_rows = one ? 1 : w->rows;
    const int64_t groups = w->cols / w->group_size;
    const bool flat = groups == 1 && t->n_dims <= 1 && dq_tensor_numel(t) == w->scale_rows;
    if (!flat && !dq_prequant_is(t, w->scale_rows, groups))
        return "weight_scale does not have the shape of strategy and group_size";
    l->scale_row = groups;
    l->scale_group = 1;
    return NULL;
}

/* Packed along the rows; one of a tensor, and all in early versions, as plain I8. */
static const char *fit_zeros(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *t = l->part[DQ_PREQUANT_ZEROS];
    const int64_t groups = l->w.cols / l->w.group_size;
    const int per = 32 % s->bits ? 32 / s->bits : 0;
    if (!t)
        return s->any_zero
                   ? "no weight_zero_point, though quantization_config says \"symmetric\": false"
                   : NULL;
    if (t->dtype == DQ_I8 && dq_tensor_numel(t) == l->w.scale_rows * groups) {
        l->signed_zeros = t->data;
        return NULL;
    }
    const int64_t dense = dq_prequant_words_for(l->w.rows, s->bits, 0),
                  gaps = dq_prequant_words_for(l->w.rows, s->bits, per),
                  want = l->codes.per_word ? gaps : dense;
    if (t->dtype != DQ_I32 || l->w.scale_rows == 1 || !dq_prequant_is(t, want, groups))
        return "weight_zero_point does not have the type and shape of weight_scale and num_bits";
    l->zeros = (dq_prequant_words){t->data, groups, 1, s->bits, l->codes.per_word, NULL};
    return NULL;
}

static const char *fit(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *packed = l->part[DQ_PREQUANT_CODES], *shape = l->part[DQ_PREQUANT_SHAPE];
    int64_t size[2] = {0};
    if (packed->n_dims != 2 || dq_tensor_numel(shape) != 2) return "not a matrix";
    memcpy(size, shape->data, sizeof size);
    if (size[0] < 1 || size[1] < 1 || size[1] > packed->shape[1] * 16)
        return "weight_shape is not that of weight_packed";
    l->w.rows = size[0];
    l->w.cols = size[1];
    l->w.bits = s->bits;
    const char *why = fit_codes(l, s->bits, size[0], size[1]);
    if (!why) why = fit_scales(l, s->group);
    return why ? why : fit_zeros(l, s);
}

static const char *const unused[] = {".input_scale",
                                     ".input_zero_point",
                                     ".input_global_scale",
                                     ".output_scale",
                                     ".output_zero_point",
                                     ".q_scale",
                                     ".k_scale",
                                     ".v_scale",
                                     ".k_zero_point",
                                     ".v_zero_point",
                                     NULL};

const dq_prequant_format dq_prequant_compressed = {
    .method = "compressed-tensors",
    .reads = "compressed-tensors with format pack-quantized",
    .suffix = {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx",
               ".weight_shape"},
    .needed = {true, true, false, false, true},
    .dtype = {DQ_I32, DQ_DTYPE_COUNT, DQ_DTYPE_COUNT, DQ_I32, DQ_I64},
    .unused = unused,
    .read = read_config,
    .fit = fit,
};
