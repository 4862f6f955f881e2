/* prequant_gptq: qweight [cols * bits / 32, rows]: the codes of a row follow each other down a column of words. qzeros
 * [groups, rows * bits / 32] hold zero points along the rows, which checkpoint_format gptq stores one too small. A column's
 * group is g_idx[column].
 *
 * Source: AutoGPTQ nn_modules/qlinear, GPTQModel nn_modules/qlinear and quantization/config.py.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/prequant_format.h"

#include <string.h>
#include <strings.h>

static dq_status check_only(const json_t *config, dq_err *err)
{
    static const char *const int32 = "int32";
    static const bool no = false;
    const json_t *adapter = json_object_get(config, "adapter");
    const char *word = NULL;
    bool marlin = false;
    DQ_TRY(dq_json_text(&word, config, "pack_dtype", &int32, err));
    if (strcasecmp(word, int32) != 0) return dq_prequant_config_refuse("pack_dtype", word, err);
    DQ_TRY(dq_json_bool(&marlin, config, "is_marlin_format", &no, err));
    if (marlin) return dq_prequant_config_refuse("is_marlin_format", "true", err);
    if (adapter && !json_is_null(adapter))
        return dq_prequant_config_refuse("adapter", "weights beside the codes", err);
    return DQ_OK;
}

/* A width and a group that the packages write: checks them here, where their key is known. */
static dq_status add(dq_prequant_config *c, const json_t *object, const dq_prequant_scheme *other,
                     dq_err *err)
{
    static const bool yes = true;
    const int64_t bits = other ? other->bits : 0, group = other ? other->group : 0;
    const bool sym = other ? !other->any_zero : true, order = other && other->needs_index;
    int64_t b = 0, g = 0;
    bool s = true, ordered = false;
    DQ_TRY(dq_json_int(&b, object, "bits", 1, 64, other ? &bits : NULL, err));
    DQ_TRY(dq_json_int(&g, object, "group_size", -1, INT32_MAX, other ? &group : NULL, err));
    DQ_TRY(dq_json_bool(&s, object, "sym", other ? &sym : &yes, err));
    DQ_TRY(dq_json_bool(&ordered, object, "desc_act", &order, err));
    if (b != 2 && b != 3 && b != 4 && b != 8)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"bits\": %lld is not read for gptq (2, 3, 4 and 8 are)", (long long)b);
    const dq_prequant_scheme found = {
        .group = g, .any_zero = !s, .any_index = true, .needs_index = ordered};
    return dq_prequant_config_add(c, b, found, err);
}

static dq_status read_config(dq_prequant_config *c, const json_t *config, dq_arena *a, dq_err *err)
{
    static const char *const v1 = "gptq";
    const char *key = json_is_string(json_object_get(config, "checkpoint_format"))
                          ? "checkpoint_format"
                          : "format";
    const char *word = NULL, *name;
    json_t *dynamic = json_object_get(config, "dynamic"), *other;
    DQ_TRY(dq_json_text(&word, config, "format", &v1, err));
    DQ_TRY(dq_json_text(&word, config, "checkpoint_format", &word, err));
    c->zero_shift = strcasecmp(word, v1) == 0;
    if (!c->zero_shift && strcasecmp(word, "gptq_v2") != 0)
        return dq_prequant_config_refuse(key, word, err);
    c->about = dq_textf(a, err, "GPTQ, checkpoint_format %s", c->zero_shift ? v1 : "gptq_v2");
    if (!c->about) return err->code;
    DQ_TRY(check_only(config, err));
    DQ_TRY(add(c, config, NULL, err));
    const dq_prequant_scheme first = c->scheme[0];
    c->unnamed = 1;
    if (dynamic && !json_is_null(dynamic) && !json_is_object(dynamic))
        return dq_fail(err, DQ_DAMAGED, "key \"dynamic\": expected an object");
    json_object_foreach(dynamic, name, other)
    {
        const bool out = strncmp(name, "-:", 2) == 0;
        if (!out && !json_is_object(other))
            return dq_fail(err, DQ_DAMAGED, "\"dynamic\": \"%s\": expected an object", name);
        if (!out && add(c, other, &first, err) != DQ_OK)
            return dq_in(err, "\"dynamic\": \"%s\": ", name);
        const dq_prequant_word rule = {DQ_PREQUANT_DYNAMIC, "dynamic", name, out ? -1 : c->added};
        DQ_TRY(dq_prequant_config_name(c, rule, a, err));
    }
    return json_is_false(json_object_get(config, "lm_head"))
               ? dq_prequant_config_name(
                     c, (dq_prequant_word){DQ_PREQUANT_PART_OF, "lm_head", "lm_head", -1}, a, err)
               : DQ_OK;
}

static const char *fit(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *codes = l->part[DQ_PREQUANT_CODES], *scales = l->part[DQ_PREQUANT_SCALES],
                    *zeros = l->part[DQ_PREQUANT_ZEROS];
    dq_weight *w = &l->w;
    if (codes->n_dims != 2 || scales->n_dims != 2) return "not a matrix";
    if (codes->shape[0] * 32 % s->bits) return "no whole number of codes at this width";
    w->rows = codes->shape[1];
    w->cols = codes->shape[0] * 32 / s->bits;
    w->bits = s->bits;
    w->group_size = s->group < 1 || s->group > w->cols ? w->cols : s->group;
    w->scale_rows = w->rows;
    const int64_t groups = dq_quant_groups(w->cols, w->group_size),
                  words = dq_prequant_words_for(w->rows, s->bits, 0);
    if (!dq_prequant_is(scales, groups, w->rows))
        return "scales do not have the shape of bits and group_size";
    if (!dq_prequant_is(zeros, groups, words))
        return "qzeros do not have the shape of bits and scales";
    l->codes = (dq_prequant_words){codes->data, w->rows, 1, s->bits, 0, NULL};
    l->zeros = (dq_prequant_words){zeros->data, 1, words, s->bits, 0, NULL};
    l->scale_row = 1;
    l->scale_group = w->rows;
    return NULL;
}

const dq_prequant_format dq_prequant_gptq = {
    .method = "gptq",
    .reads = "gptq with checkpoint_format gptq or gptq_v2",
    .suffix = {".qweight", ".scales", ".qzeros", ".g_idx", NULL},
    .needed = {true, true, true, false, false},
    .dtype = {DQ_I32, DQ_DTYPE_COUNT, DQ_I32, DQ_I32, DQ_DTYPE_COUNT},
    .read = read_config,
    .fit = fit,
};
