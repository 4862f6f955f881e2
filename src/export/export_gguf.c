/* export_gguf: each tensor gets the smallest type of ggml that holds its codes; a dq scale stands in every block of 32
 * columns that it is for. A type holds whole numbers between two ends times an f16 scale, or, Q4_1 and Q5_1, codes times an f16
 * scale plus an f16 lowest value, to which -zero * scale is rounded: by at most 1/64 of a step. u - zero is a whole number
 * too, of one bit more than u, so that 2 and 3 bits have signed types.
 * SPDX-License-Identifier: MIT */
#include "export/export_gguf.h"

#include "base/text.h"
#include "checkpoint/gguf_names.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 };

/* ---- Types ---- */

/* Whether f16 has this value. */
static bool is_f16(float x)
{
    const float back = dq_f32_from_f16(dq_f16_from_f32(x));
    return !(back < x || back > x); /* finite x */
}

static bool scales_in_f16(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    if (w->scale_dtype == DQ_F16) return true;
    for (int64_t r = 0; r < w->scale_rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            if (!is_f16(dq_weight_scale(w, r, g))) return false;
        }
    }
    return true;
}

/* Of all lowest values -zero * scale how far the furthest is from its f16, in steps; INFINITY: f16 lacks one. */
static float lowest_error(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    float most = 0;
    for (int64_t r = 0; r < w->scale_rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            const float scale = dq_weight_scale(w, r, g);
            const float low = scale * (float)dq_weight_zero(w, r, g);
            const float off = fabsf(dq_f32_from_f16(dq_f16_from_f32(low)) - low);
            if (off > 0) most = fmaxf(most, off / fabsf(scale));
        }
    }
    return most;
}

/* Of codes of so many bits: whole numbers of `bits` bits with a sign. */
static uint32_t signed_type(int bits)
{
    return bits <= 4 ? DQ_GGML_Q4_0 : bits == 5 ? DQ_GGML_Q5_0 : DQ_GGML_Q8_0;
}

static dq_status no_type(dq_export *x, const dq_weight *w, const char *why, dq_remedy remedy,
                         dq_err *err)
{
    return dq_fail_with(err, DQ_MISMATCH, remedy, "%s: %s: %s, and no type of ggml holds them",
                        x->model->path, w->name, why);
}

/* The smallest type that holds the codes of a weight; NULL: none, r->why says why and *remedy what helps. */
static const dq_weight_format *type_of(dq_export_row *r, dq_remedy *remedy, dq_export *x,
                                       const dq_weight *w, dq_err *err)
{
    enum { STEPS = 64 }; /* a part of a step; f16 has 11 bits, a lowest value 31 steps at most */
    const char **why = &r->why;
    *why = NULL;
    if (!dq_weight_is_affine(w)) {
        *why = "its codes do not stand for steps of one size";
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_TYPE,
                              .word = dq_container_header(x->model->container)->source};
    } else if (w->cols % BLOCK) {
        *why = dq_textf(x->arena, err, "rows of %lld codes are no whole number of blocks of %d",
                        (long long)w->cols, BLOCK);
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_COLUMNS};
    } else if (w->group_size % BLOCK && w->group_size < w->cols) {
        *why = dq_textf(x->arena, err, "groups of %lld codes are no whole number of blocks of %d",
                        (long long)w->group_size, BLOCK);
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_GROUP, .number = {BLOCK}};
    } else if (w->zero && w->bits == 8) {
        *why = "codes of 8 bits less their zero points need 9";
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_ZERO};
    } else if (!scales_in_f16(w)) {
        *why = "codes have scales that f16 does not hold";
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_SCALE};
    }
    if (*why || err->code != DQ_OK) return NULL;
    if (!w->zero) return dq_format_ggml(signed_type(w->bits));
    const float error = w->bits == 4 || w->bits == 5 ? lowest_error(w) : 1;
    if (!(error * STEPS <= 1)) return dq_format_ggml(signed_type(w->bits + 1));
    r->lowest_error = error;
    return dq_format_ggml(w->bits == 4 ? DQ_GGML_Q4_1 : DQ_GGML_Q5_1);
}

/* ---- Tensors ---- */

dq_status dq_export_gguf_check(dq_export *x, dq_err *err)
{
    const dq_model *m = x->model;
    if (strcmp(m->architecture->name, "llama") != 0)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_EXPORT_VALUES},
            "%s: architecture %s (%s): llama.cpp has no such graph, so GGUF is for plain "
            "Llamas only.",
            m->path, m->architecture->name, m->architecture->about);
    return dq_model_check_weights(m, err);
}

static bool is_named(const dq_weight *w, const char *name)
{
    return w->name && strcmp(w->name, name) == 0;
}

static dq_tensor vector(const dq_weight *w)
{
    return (dq_tensor){.dtype = DQ_F32, .n_dims = 1, .shape = {w->rows}};
}

static dq_tensor matrix(const dq_weight *w, dq_dtype type, int64_t cols)
{
    return (dq_tensor){.dtype = type, .n_dims = 2, .shape = {w->rows, cols}};
}

/* What becomes of the values of a row: codes in blocks, or a type. */
static dq_status plan_values(dq_export_slot *s, dq_export *x, int64_t row, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    dq_remedy remedy = dq_remedy_none;
    s->kind = DQ_EXPORT_VALUES;
    r->dtype = w->dtype;
    s->tensor = w->cols == 1 ? vector(w) : matrix(w, w->dtype, w->cols);
    if (!dq_weight_is_coded(w)) {
        r->dtype = s->tensor.dtype;
        return DQ_OK;
    }
    r->blocks = type_of(r, &remedy, x, w, err);
    if (err->code != DQ_OK) return err->code;
    r->dtype = r->blocks ? w->scale_dtype : x->set.dtype;
    if (r->blocks) {
        const dq_block *b = r->blocks->block;
        s->kind = DQ_EXPORT_BLOCKS;
        s->tensor = matrix(w, DQ_U8, w->cols / b->values * b->bytes);
        x->info.n_packed++;
        x->info.n_widened += b->bits != w->bits;
        return DQ_OK;
    }
    if (!x->set.values) return no_type(x, w, r->why, remedy, err);
    s->tensor = matrix(w, x->set.dtype, w->cols);
    x->info.n_decoded++;
    return DQ_OK;
}

dq_status dq_export_gguf_tensor(dq_export *x, int64_t row, dq_err *err)
{
    static const char head[] = "lm_head.weight", embed[] = "model.embed_tokens.weight";
    const dq_model *m = x->model;
    const dq_weight *w = &x->weight[row];
    const char *hf = w->name;
    bool pairs;
    dq_export_slot *s = &x->slot[x->n_slots];
    *s = (dq_export_slot){.row = row};
    if (m->tied && strcmp(hf, head) == 0) {
        if (!is_named(&m->embed, head)) return DQ_OK;
        hf = embed; /* only the head is stored */
    }
    const char *name = dq_gguf_name_of(&pairs, hf, x->arena, err);
    if (err->code != DQ_OK) return err->code;
    if (!name)
        return dq_fail(err, DQ_MISMATCH, "%s: %s: no Llama of GGUF has such a tensor", m->path,
                       w->name);
    DQ_TRY(plan_values(s, x, row, err));
    s->tensor.name = name;
    s->pair_rows = pairs ? m->map.head_dim : 0;
    x->row[row].bytes = (int64_t)dq_tensor_bytes(&s->tensor);
    x->n_slots++;
    return DQ_OK;
}

static int by_name(const void *a, const void *b)
{
    const dq_export_slot *x = a, *y = b;
    return dq_name_order_compare(x->tensor.name, y->tensor.name);
}

dq_status dq_export_gguf_more(dq_export *x, dq_err *err)
{
    const float *divisors;
    DQ_TRY(dq_export_gguf_divisors(&divisors, x, err));
    if (divisors)
        x->slot[x->n_slots++] = (dq_export_slot){.tensor = {.name = "rope_freqs.weight",
                                                            .dtype = DQ_F32,
                                                            .n_dims = 1,
                                                            .shape = {x->model->map.head_dim / 2},
                                                            .data = divisors},
                                                 .kind = DQ_EXPORT_OWN};
    qsort(x->slot, (size_t)x->n_slots, sizeof *x->slot, by_name);
    x->n_shards = 1;
    return DQ_OK;
}

/* ---- The head ---- */

static uint32_t type_number(const dq_export *x, const dq_export_slot *s)
{
    if (s->kind == DQ_EXPORT_BLOCKS) return x->row[s->row].blocks->block->number;
    return s->tensor.dtype == DQ_F32   ? DQ_GGML_F32
           : s->tensor.dtype == DQ_F16 ? DQ_GGML_F16
                                       : DQ_GGML_BF16;
}

/* general.file_type: which type most of the layers' matrices have, by values. */
static uint32_t file_type(const dq_export *x)
{
    static const struct {
        uint32_t type, file;
    } known[] = {{DQ_GGML_F32, 0},  {DQ_GGML_F16, 1},  {DQ_GGML_Q4_0, 2}, {DQ_GGML_Q4_1, 3},
                 {DQ_GGML_Q8_0, 7}, {DQ_GGML_Q5_0, 8}, {DQ_GGML_Q5_1, 9}, {DQ_GGML_BF16, 32}};
    int64_t most = -1;
    uint32_t file = 0;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        int64_t n = 0;
        for (int64_t i = 0; i < x->n_slots; i++) {
            const dq_export_slot *s = &x->slot[i];
            if (strncmp(s->tensor.name, "blk.", 4) == 0 && s->tensor.n_dims == 2 &&
                type_number(x, s) == known[k].type)
                n += x->row[s->row].rows * x->row[s->row].cols;
        }
        if (n <= most) continue;
        most = n;
        file = known[k].file;
    }
    return file;
}

dq_status dq_export_gguf_head(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    dq_gguf_fields f = {0};
    dq_strbuf head = {0};
    dq_gguf_tensor *t = dq_alloc(x->arena, (size_t)x->n_slots, sizeof *t, err);
    if (!t) return err->code;
    for (int64_t i = 0; i < x->n_slots; i++) {
        const dq_export_slot *s = &x->slot[i];
        t[i] = (dq_gguf_tensor){.name = s->tensor.name,
                                .type = type_number(x, s),
                                .n_dims = s->tensor.n_dims,
                                .shape = {s->tensor.shape[0], s->tensor.shape[1]},
                                .bytes = dq_tensor_bytes(&s->tensor)};
        if (s->kind == DQ_EXPORT_BLOCKS) t[i].shape[1] = x->row[s->row].cols;
    }
    *out = NULL;
    if (dq_export_gguf_keys(&f, x, file_type(x), err) == DQ_OK &&
        dq_gguf_write_head(&head, &f, t, x->n_slots, err) == DQ_OK)
        *out = dq_text(x->arena, head.s, head.n, err);
    *len = head.n;
    dq_block_free(head.s);
    dq_block_free(f.bytes.s);
    return err->code;
}
