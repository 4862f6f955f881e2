/* prequant_awq: version gemm, 4 bits: qweight [cols, rows / 8] and qzeros [groups, rows / 8] hold eight rows in a word,
 * the even ones before the odd ones.
 *
 * Source: AutoAWQ modules/linear/gemm.py and utils/packing_utils.py.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/prequant_format.h"

#include <strings.h>

enum { BITS = 4, PER_WORD = 32 / BITS };

/* Rows 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on. */
static const uint8_t place[PER_WORD] = {0, 4, 1, 5, 2, 6, 3, 7};

static dq_status check_word(const json_t *config, const char *key, const char *want, dq_err *err)
{
    const char *word = NULL;
    DQ_TRY(dq_json_text(&word, config, key, &want, err));
    return strcasecmp(word, want) == 0 ? DQ_OK : dq_prequant_config_refuse(key, word, err);
}

/* A number under either of its names. */
static dq_status read_int(int64_t *x, const json_t *config, const char *key, const char *other,
                          dq_err *err)
{
    const json_t *v = json_object_get(config, key);
    return dq_json_int(x, config, v && !json_is_null(v) ? key : other, -1, INT32_MAX, NULL, err);
}

static dq_status read_config(dq_prequant_config *c, const json_t *config, dq_arena *a, dq_err *err)
{
    int64_t bits = 0, group = 0;
    c->about = "AWQ, version gemm";
    DQ_TRY(check_word(config, "version", "gemm", err));
    DQ_TRY(check_word(config, "format", "gemm", err));
    DQ_TRY(check_word(config, "checkpoint_format", "gemm", err));
    DQ_TRY(check_word(config, "pack_dtype", "int32", err));
    const json_t *backend = json_object_get(config, "backend");
    if (json_is_string(backend) && strcasecmp(json_string_value(backend), "llm-awq") == 0)
        return dq_prequant_config_refuse("backend", "llm-awq", err);
    DQ_TRY(read_int(&bits, config, "bits", "w_bit", err));
    DQ_TRY(read_int(&group, config, "group_size", "q_group_size", err));
    if (bits != BITS)
        return dq_fail(err, DQ_MISMATCH, "key \"bits\": %lld is not read for awq (4 is)",
                       (long long)bits);
    c->unnamed = 1;
    DQ_TRY(dq_prequant_config_add(c, bits, (dq_prequant_scheme){.group = group, .any_zero = true},
                                  err));
    const dq_prequant_word word = {DQ_PREQUANT_PART_OF, "modules_to_not_convert", NULL, -1};
    return dq_prequant_config_names(c, word, json_object_get(config, word.key), a, err);
}

static const char *fit(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *codes = l->part[DQ_PREQUANT_CODES], *scales = l->part[DQ_PREQUANT_SCALES],
                    *zeros = l->part[DQ_PREQUANT_ZEROS];
    dq_weight *w = &l->w;
    if (codes->n_dims != 2 || scales->n_dims != 2) return "not a matrix";
    const int64_t words = codes->shape[1];
    w->rows = words * PER_WORD;
    w->cols = codes->shape[0];
    w->bits = BITS;
    w->group_size = s->group < 1 ? w->cols : s->group;
    w->scale_rows = w->rows;
    if (w->cols % w->group_size) return "columns are no multiple of group_size";
    const int64_t groups = w->cols / w->group_size;
    if (!dq_prequant_is(scales, groups, w->rows) || !dq_prequant_is(zeros, groups, words))
        return "scales or qzeros do not have the shape of qweight and group_size";
    l->by_column = true;
    l->codes = (dq_prequant_words){codes->data, 1, words, BITS, PER_WORD, place};
    l->zeros = (dq_prequant_words){zeros->data, 1, words, BITS, PER_WORD, place};
    l->scale_row = 1;
    l->scale_group = w->rows;
    return NULL;
}

const dq_prequant_format dq_prequant_awq = {
    .method = "awq",
    .reads = "awq with version gemm",
    .suffix = {".qweight", ".scales", ".qzeros", NULL, NULL},
    .needed = {true, true, true, false, false},
    .dtype = {DQ_I32, DQ_DTYPE_COUNT, DQ_I32, DQ_DTYPE_COUNT, DQ_DTYPE_COUNT},
    .read = read_config,
    .fit = fit,
};
