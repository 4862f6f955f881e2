/* export_plan: tensors in name order become one slot, or the three or four of a module of compressed-tensors; slots of a
 * tensor stay together in a shard, where the order of safetensors files sorts them.
 * SPDX-License-Identifier: MIT */
#include "export/export_plan.h"

#include "base/text.h"
#include "checkpoint/safetensors_write.h"
#include "export/export_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char weight_suffix[] = ".weight";

/* Length of the module's name, "model.layers.0.mlp.up_proj"; 0 for a tensor that is not the weight of a module. */
static size_t module_of(const char *name)
{
    const size_t n = strlen(name), k = sizeof weight_suffix - 1;
    return n > k && strcmp(name + n - k, weight_suffix) == 0 ? n - k : 0;
}

static bool is_named(const dq_weight *w, const char *name)
{
    return w->name && strcmp(w->name, name) == 0;
}

/* Why the form has no place for a weight's codes; NULL: it has. */
static const char *reason(dq_export *x, const dq_weight *w, dq_err *err)
{
    const dq_model *m = x->model;
    if (x->set.form == DQ_EXPORT_SAFETENSORS) return "the form holds values only";
    if (module_of(w->name) == 0) return "it is not the weight of a module";
    if (is_named(&m->embed, w->name)) return "embeddings are read as values";
    if (is_named(&m->head, w->name)) return "output heads are read as values";
    if (!dq_weight_is_affine(w)) return "its codes do not stand for steps of one size";
    if (w->cols % w->group_size == 0) return NULL;
    return dq_textf(x->arena, err, "%lld columns in groups of %lld leave a short group",
                    (long long)w->cols, (long long)w->group_size);
}

/* Index of the scheme that holds these codes. Codes of more bits than the tensor's hold u - zero as well, which is between
 * -(2^b - 1) and 2^b - 1, and need no zero points. */
static int scheme_of(dq_export *x, const dq_weight *w, dq_err *err)
{
    const int bits = w->bits <= 4 ? 4 : 8;
    const dq_export_scheme want = {.bits = bits,
                                   .symmetric = !w->zero || w->bits < bits,
                                   .group = w->group_size < w->cols ? w->group_size : 0};
    for (int i = 0; i < x->info.n_schemes; i++) {
        const dq_export_scheme *s = &x->scheme[i];
        if (s->bits == want.bits && s->symmetric == want.symmetric && s->group == want.group)
            return i;
    }
    dq_export_scheme *list = dq_grow(x->arena, x->scheme, (size_t)x->info.n_schemes + 1,
                                     &x->max_schemes, sizeof *list, err);
    if (!list) return -1;
    x->scheme = list;
    list[x->info.n_schemes] = want;
    return x->info.n_schemes++;
}

static void add_slot(dq_export *x, int64_t row, dq_export_kind kind, dq_tensor t)
{
    x->row[row].bytes += (int64_t)dq_tensor_bytes(&t);
    x->slot[x->n_slots++] = (dq_export_slot){.tensor = t, .kind = kind, .row = row};
}

static dq_tensor matrix(const char *name, dq_dtype type, int64_t rows, int64_t cols,
                        const void *data)
{
    return (dq_tensor){
        .name = name, .dtype = type, .n_dims = 2, .shape = {rows, cols}, .data = data};
}

static dq_status plan_codes(dq_export *x, int64_t row, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    r->scheme = scheme_of(x, w, err);
    if (r->scheme < 0) return err->code;
    const dq_export_scheme *s = &x->scheme[r->scheme];
    const int64_t groups = dq_quant_groups(w->cols, w->group_size), per_word = 32 / s->bits;
    const int64_t words = (int64_t)dq_quant_row_bytes(w->cols, s->bits) / 4;
    const int n = (int)module_of(w->name);
    const char *packed = dq_textf(x->arena, err, "%.*s.weight_packed", n, w->name);
    const char *scale = dq_textf(x->arena, err, "%.*s.weight_scale", n, w->name);
    const char *shape = dq_textf(x->arena, err, "%.*s.weight_shape", n, w->name);
    const char *zero = dq_textf(x->arena, err, "%.*s.weight_zero_point", n, w->name);
    if (err->code != DQ_OK) return err->code;
    add_slot(x, row, w->bits == s->bits ? DQ_EXPORT_COPY : DQ_EXPORT_CODES,
             matrix(packed, DQ_I32, w->rows, words, w->data));
    add_slot(x, row, w->scale_rows == w->rows ? DQ_EXPORT_COPY : DQ_EXPORT_SCALES,
             matrix(scale, w->scale_dtype, w->rows, groups, w->scale));
    add_slot(x, row, DQ_EXPORT_SHAPE,
             (dq_tensor){.name = shape, .dtype = DQ_I64, .n_dims = 1, .shape = {2}});
    if (!s->symmetric)
        add_slot(x, row, DQ_EXPORT_ZEROS,
                 matrix(zero, DQ_I32, (w->rows + per_word - 1) / per_word, groups, NULL));
    r->dtype = w->scale_dtype;
    x->info.n_packed++;
    x->info.n_widened += w->bits != s->bits;
    return DQ_OK;
}

/* p is the tensor's first dataset. */
static dq_status plan_tensor(dq_export *x, int64_t row, const dq_payload *p, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    const bool coded = dq_weight_is_coded(w), all = x->set.form == DQ_EXPORT_SAFETENSORS;
    *r = (dq_export_row){.name = w->name,
                         .rows = w->rows,
                         .cols = w->cols,
                         .bits = w->bits,
                         .group_size = coded ? w->group_size : 0,
                         .scheme = -1};
    if (x->set.form == DQ_EXPORT_GGUF) return dq_export_gguf_tensor(x, row, err);
    if (coded) {
        r->why = reason(x, w, err);
        if (err->code != DQ_OK) return err->code;
        if (!r->why) return plan_codes(x, row, err);
        if (!all && !x->set.values && !dq_weight_is_affine(w))
            return dq_fail_with(
                err, DQ_MISMATCH,
                (dq_remedy){.code = DQ_REMEDY_EXPORT_TYPE,
                            .word = dq_container_header(x->model->container)->source},
                "%s: %s: %s, and compressed-tensors has no place for them", x->model->path, w->name,
                r->why);
        x->info.n_decoded++;
    }
    dq_tensor t = matrix(w->name, x->set.dtype, w->rows, w->cols, w->data);
    if (!coded) {
        t.n_dims = p->n_dims;
        memcpy(t.shape, p->shape, sizeof t.shape);
        if (!all) t.dtype = w->dtype;
    }
    r->dtype = t.dtype;
    add_slot(x, row, !coded && t.dtype == w->dtype ? DQ_EXPORT_COPY : DQ_EXPORT_VALUES, t);
    return DQ_OK;
}

/* The tensor's name in "/tensors/NAME" and "/tensors/NAME/PART"; NULL: p is not a tensor's first dataset. */
static const char *tensor_name(dq_export *x, const dq_payload *p, dq_err *err)
{
    static const char folder[] = "/tensors/";
    const size_t k = sizeof folder - 1;
    if (strncmp(p->path, folder, k) != 0) return NULL;
    if (!p->row) return p->path + k;
    const size_t n = strlen(p->path) - k, part = strlen(p->row->name) + 1;
    const char *name = dq_text(x->arena, p->path + k, n - part, err);
    dq_weight w;
    dq_source source = dq_container_source(x->model->container);
    if (!name || !source.find(source.arg, name, &w)) return NULL;
    return p->row == w.format->part ? name : NULL;
}

static dq_status find_tensors(dq_export *x, dq_err *err)
{
    dq_container *c = x->model->container;
    dq_source source = dq_container_source(c);
    for (int64_t i = 0; i < dq_container_n_payloads(c); i++) {
        const dq_payload *p = dq_container_payload(c, i);
        const char *name = tensor_name(x, p, err);
        if (err->code != DQ_OK) return err->code;
        const int64_t row = x->info.n_rows;
        if (!name || row == source.count || !source.find(source.arg, name, &x->weight[row]))
            continue;
        const int64_t slots = x->n_slots;
        DQ_TRY(plan_tensor(x, row, p, err));
        x->info.n_rows += x->n_slots > slots;
    }
    return DQ_OK;
}

/* ---- Files ---- */

static int by_place(const void *a, const void *b)
{
    const dq_export_slot *x = a, *y = b;
    if (x->shard != y->shard) return x->shard - y->shard;
    return dq_safetensors_write_order(&x->tensor, &y->tensor);
}

static void fill_shards(dq_export *x)
{
    int64_t bytes = 0, last = -1;
    for (int64_t i = 0; i < x->n_slots; i++) {
        dq_export_slot *s = &x->slot[i];
        if (s->row != last) {
            const int64_t more = x->row[s->row].bytes;
            if (bytes > 0 && bytes + more > x->set.shard_bytes) {
                x->n_shards++;
                bytes = 0;
            }
            bytes += more;
            last = s->row;
        }
        s->shard = x->n_shards;
    }
    x->n_shards++;
    qsort(x->slot, (size_t)x->n_slots, sizeof *x->slot, by_place);
}

const char *dq_export_plan_shard_name(dq_export *x, int shard, dq_err *err)
{
    if (x->n_shards == 1) return "model.safetensors";
    return dq_textf(x->arena, err, "model-%05d-of-%05d.safetensors", shard + 1, x->n_shards);
}

/* ---- What vLLM joins ---- */

static int scheme_named(const dq_export *x, const char *name)
{
    for (int64_t i = 0; name && i < x->info.n_rows; i++) {
        if (strcmp(x->row[i].name, name) == 0) return x->row[i].scheme;
    }
    return -1;
}

/* q, k and v are one product there, gate and up another. */
static void find_split(dq_export *x)
{
    const dq_model *m = x->model;
    x->info.split_layer = -1;
    if (x->set.form != DQ_EXPORT_COMPRESSED_TENSORS) return;
    for (int i = 0; i < m->n_layers && x->info.split_layer < 0; i++) {
        const dq_layer *l = &m->layer[i];
        const int q = scheme_named(x, l->q.name), gate = scheme_named(x, l->gate.name);
        if (scheme_named(x, l->k.name) != q || scheme_named(x, l->v.name) != q ||
            (l->gate.name && scheme_named(x, l->up.name) != gate))
            x->info.split_layer = i;
    }
}

static const char *row_name(const void *x, int64_t i)
{
    return ((const dq_export *)x)->row[i].name;
}

dq_status dq_export_plan_tensors(dq_export *x, dq_err *err)
{
    enum { SLOTS = 4 }; /* of a tensor */
    const size_t n = (size_t)dq_container_source(x->model->container).count;
    const bool gguf = x->set.form == DQ_EXPORT_GGUF;
    if (gguf) DQ_TRY(dq_export_gguf_check(x, err));
    x->row = dq_alloc(x->arena, n, sizeof *x->row, err);
    x->weight = dq_alloc(x->arena, n, sizeof *x->weight, err);
    x->slot = dq_alloc(x->arena, SLOTS * n + 1, sizeof *x->slot, err);
    if (!x->row || !x->weight || !x->slot) return err->code;
    DQ_TRY(find_tensors(x, err));
    if (x->set.form == DQ_EXPORT_COMPRESSED_TENSORS && x->info.n_packed == 0)
        return dq_fail_with(err, DQ_MISMATCH,
                            (dq_remedy){.code = DQ_REMEDY_EXPORT_CODES,
                                        .word = dq_container_header(x->model->container)->source},
                            "%s: %s", x->model->path,
                            x->info.n_decoded
                                ? "compressed-tensors has no place for any of its codes"
                                : "no tensor has codes, which compressed-tensors is for");
    if (gguf)
        DQ_TRY(dq_export_gguf_more(x, err));
    else
        fill_shards(x);
    find_split(x);
    return dq_name_order_make(&x->order, x->info.n_rows, row_name, x, x->arena, err);
}
