/* Which tensors are packed and how, and the list of payloads.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize.h"

#include "quantize/inside.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const dq_quantize_methods[DQ_QUANTIZE_METHODS] = {"gptq", "align"};

typedef struct named_role {
    const char *name;
    dq_role role;
} named_role;

/* Sorted names of matrices that can be packed. */
static const named_role *packable_names(dq_quantizer *q, int *count, dq_err *err)
{
    static const dq_role roles[] = {DQ_ROLE_Q,    DQ_ROLE_K,     DQ_ROLE_V,
                                    DQ_ROLE_O,    DQ_ROLE_GATE,  DQ_ROLE_UP,
                                    DQ_ROLE_DOWN, DQ_ROLE_EMBED, DQ_ROLE_HEAD};
    enum { N = sizeof roles / sizeof roles[0] };
    named_role *names = dq_alloc(q->arena, (size_t)q->model->n_layers * N, sizeof *names, err);
    int n = 0;
    for (int r = 0; names && r < N; r++) {
        /* a tensor's name holds one %d, for the layer, or none */
        const char *form = q->model->architecture->tensor[roles[r]];
        const char *hole = form ? strstr(form, "%d") : NULL;
        for (int layer = 0; form && layer < (hole ? q->model->n_layers : 1); layer++) {
            names[n].role = roles[r];
            names[n].name = hole ? dq_textf(q->arena, err, "%.*s%d%s", (int)(hole - form), form,
                                            layer, hole + 2)
                                 : form;
            if (!names[n++].name) return NULL;
        }
    }
    if (names) qsort(names, (size_t)n, sizeof *names, dq_name_compare);
    *count = n;
    return names;
}

/* Whether a method makes its codes: an untied head, or the embedding that is the head. Equal stored
 * copies are left alone, so that they stay equal. */
static bool is_fed_head(const dq_quantizer *q, const char *name, dq_role role)
{
    const char *const *names = q->model->architecture->tensor;
    if (!q->model->tied) return role == DQ_ROLE_HEAD;
    return strcmp(name, q->model->embed.name) == 0 &&
           !(dq_checkpoint_find(q->checkpoint, names[DQ_ROLE_EMBED]) &&
             dq_checkpoint_find(q->checkpoint, names[DQ_ROLE_HEAD]));
}

static const int64_t usual_groups[] = {128, 64, 32};
enum { USUAL_GROUPS = sizeof usual_groups / sizeof *usual_groups };

static bool leaves_short(int64_t cols, int64_t group)
{
    return group > 0 && group < cols && cols % group != 0;
}

static int64_t cols_of(const dq_tensor *t)
{
    const int64_t rows = t->n_dims > 0 ? t->shape[0] : 1;
    return rows ? dq_tensor_numel(t) / rows : 0;
}

/* The group of every tensor without a rule for it. */
static void choose_group(dq_quantizer *q, dq_quantize_choice *choice, int64_t n)
{
    int64_t fewest = INT64_MAX, best = 0;
    if (q->set.group != DQ_QUANTIZE_GROUP_AUTO) return;
    for (int k = 0; k < USUAL_GROUPS; k++) {
        int64_t left = 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t cols = cols_of(&q->checkpoint->tensor[i]);
            if (choice[i].bits != 16 && choice[i].group == DQ_QUANTIZE_GROUP_AUTO)
                left += leaves_short(cols, usual_groups[k]);
        }
        if (left >= fewest) continue;
        fewest = left;
        best = usual_groups[k];
    }
    q->set.group = best;
    for (int64_t i = 0; i < n; i++) {
        if (choice[i].group == DQ_QUANTIZE_GROUP_AUTO) choice[i].group = best;
    }
}

static void find_short_groups(dq_quantizer *q)
{
    dq_quantize_short *s = &q->info.short_groups;
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const dq_quantize_tensor *x = &q->tensor[i];
        if (!x->format || !leaves_short(x->cols, x->group_size) || s->n++ > 0) continue;
        s->name = x->t->name;
        s->cols = x->cols;
        s->group = x->group_size;
    }
    /* The largest usual group that leaves no packed tensor short. */
    for (int k = 0; k < USUAL_GROUPS && !s->whole; k++) {
        bool left = false;
        s->divides = true;
        for (int64_t i = 0; i < q->info.n_tensors; i++) {
            const dq_quantize_tensor *x = &q->tensor[i];
            if (!x->format) continue;
            left = left || leaves_short(x->cols, x->own_group ? x->group_size : usual_groups[k]);
            s->divides = s->divides && (x->own_group || x->cols % usual_groups[k] == 0);
        }
        if (!left) s->whole = usual_groups[k];
    }
}

/* A matrix that is embedding and head has one width. */
static dq_status check_tied(const dq_quantizer *q, const dq_quantize_choice *choice, int64_t n,
                            dq_err *err)
{
    const dq_quantize_settings *s = &q->set;
    const dq_quantize_choice *embed = NULL, *head = NULL;
    const int embed_bits = s->embed_bits ? s->embed_bits : 16;
    if (!q->model->tied) return DQ_OK;
    if (s->head_bits && s->head_bits != embed_bits)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_EMBED_BITS},
                            "the head of %s is its embedding (tied), which cannot have %d bits as "
                            "the one and %d as the other",
                            q->model->name, s->head_bits, embed_bits);
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(choice[i].name, q->model->architecture->tensor[DQ_ROLE_EMBED]) == 0)
            embed = &choice[i];
        if (strcmp(choice[i].name, q->model->architecture->tensor[DQ_ROLE_HEAD]) == 0)
            head = &choice[i];
    }
    if (!embed || !head || (embed->bits == 16 && head->bits == 16)) return DQ_OK;
    if (embed->bits == head->bits && embed->group == head->group && embed->mode == head->mode)
        return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s and %s are one matrix in %s (tied), and rules store them differently (%d "
                   "and %d bits). Let a rule match both.",
                   embed->name, head->name, q->model->name, embed->bits, head->bits);
}

dq_scale_mode dq_quantize_mode(dq_scale_mode mode, int bits, bool fed)
{
    if (mode != DQ_TRELLIS || (fed && bits <= DQ_TRELLIS_MAX_BITS)) return mode;
    return fed || bits > DQ_QUANTIZE_EMBED_BITS ? DQ_SEARCH : DQ_ASYM;
}

static dq_status layout_tensor(dq_quantizer *q, int64_t i, const dq_tensor *t,
                               const dq_quantize_choice *c, dq_err *err)
{
    dq_quantize_tensor *x = &q->tensor[i];
    x->t = t;
    x->role = c->role;
    x->counts = dq_model_size_counts(q->model, t->name);
    dq_checkpoint_weight(q->checkpoint, t->name, &x->w);
    x->rows = t->n_dims > 0 ? t->shape[0] : 1;
    x->cols = cols_of(t);
    if (strchr(t->name, '/'))
        return dq_fail(err, DQ_MISMATCH, "tensor \"%s\": names with '/' cannot be stored", t->name);
    if (t->dtype > DQ_F64)
        return dq_fail(err, DQ_MISMATCH, "tensor \"%s\": type %s cannot be quantized or copied",
                       t->name, dq_dtypes[t->dtype].name);
    q->skipped[i] = c->skipped;
    x->dense_dtype = t->dtype;
    if (t->n_dims > 1 && !c->kept && q->set.dense_type != DQ_DENSE_KEEP)
        x->dense_dtype = q->set.dense_type == DQ_DENSE_F16 ? DQ_F16 : DQ_BF16;
    if (c->bits == 16) return DQ_OK;
    x->is_fed = c->fed;
    const bool is = c->mode == DQ_TRELLIS && c->bits != 16;
    const bool becomes = is && dq_quantize_mode(c->mode, c->bits, c->fed) == DQ_TRELLIS;
    if (is && !becomes && c->own_mode)
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: trellis codes have 2 to %d bits, and an embedding has them where a text chooses "
            "them and it is the head too",
            c->name, DQ_TRELLIS_MAX_BITS);
    if (becomes && c->group == DQ_GROUP_TENSOR)
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: trellis codes have a scale for each group or row, not one for the tensor",
            c->name);
    x->spec = (dq_quant_spec){c->bits, c->group, dq_quantize_mode(c->mode, c->bits, c->fed),
                              q->set.scale_dtype, NULL};
    x->format = dq_weight_format_of_mode(x->spec.mode);
    if (x->format->encode_strip) {
        x->spec.column = x->column = dq_alloc(q->arena, (size_t)x->cols, 1, err);
        if (!x->column) return err->code;
    }
    x->own_group = c->own_group;
    x->one_scale = c->group == DQ_GROUP_TENSOR;
    x->group_size = c->group < 0 || c->group > x->cols ? x->cols : c->group;
    x->scale_rows = x->one_scale ? 1 : x->rows;
    return DQ_OK;
}

static void note_used(dq_quantize_used *used, const dq_quantize_choice *c)
{
    if (!c->packable || c->kept) return;
    if (c->bits != 16 && !c->own_group) used->group = true;
    if (c->bits != 16 && !c->own_mode) used->mode = true;
    if (c->own_bits) return;
    if (c->projection) used->bits = true;
    if (!c->projection && !c->embedding) used->head_bits = true;
    if (c->embedding) used->embed_bits = true;
}

static const char *tensor_name(const void *quantizer, int64_t i)
{
    return ((const dq_quantizer *)quantizer)->tensor[i].t->name;
}

static bool is_left_out(const dq_quantizer *q, const char *name)
{
    for (int64_t i = 0; i < q->model->n_left_out; i++) {
        if (strcmp(q->model->left_out[i], name) == 0) return true;
    }
    return false;
}

static dq_status layout_tensors(dq_quantizer *q, dq_err *err)
{
    int n_names = 0;
    int64_t n = q->checkpoint->count, kept = 0;
    const named_role *names = packable_names(q, &n_names, err);
    dq_quantize_choice *choice = dq_alloc(q->arena, (size_t)n, sizeof *choice, err);
    q->tensor = dq_alloc(q->arena, (size_t)n, sizeof *q->tensor, err);
    q->skipped = dq_alloc(q->arena, (size_t)n, sizeof *q->skipped, err);
    q->loss = dq_alloc(q->arena, (size_t)n, sizeof *q->loss, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) q->loss[i] = (double)NAN;
    for (int64_t i = 0; i < n; i++) {
        /* What the tensor's role gives, before any rule. */
        const char *name = q->checkpoint->tensor[i].name;
        const dq_quantize_settings *s = &q->set;
        const named_role key = {.name = name}, *found = bsearch(&key, names, (size_t)n_names,
                                                                sizeof key, dq_name_compare);
        dq_quantize_choice c = {.name = name,
                                .packable = found != NULL,
                                .role = found ? found->role : DQ_ROLE_COUNT,
                                .bits = s->bits,
                                .group = s->group,
                                .mode = s->mode};
        const int embed = s->embed_bits ? s->embed_bits : 16;
        if (!found)
            c.bits = 16;
        else if (found->role == DQ_ROLE_EMBED)
            c.bits = embed;
        else if (found->role == DQ_ROLE_HEAD)
            c.bits = q->model->tied ? embed : s->head_bits ? s->head_bits : 16;
        else
            c.projection = true;
        const bool calibrated = s->method || s->method_name;
        c.embedding = found && found->role == DQ_ROLE_EMBED;
        c.fed = c.projection || (found && calibrated && is_fed_head(q, name, found->role));
        choice[i] = c;
    }
    DQ_TRY(dq_quantize_rules_apply(
        &q->set, q->model->tied ? q->model->architecture->tensor[DQ_ROLE_HEAD] : NULL, choice, n,
        err));
    DQ_TRY(check_tied(q, choice, n, err));
    choose_group(q, choice, n);
    for (int64_t i = 0; i < n; i++) note_used(&q->info.used, &choice[i]);
    for (int64_t i = 0; i < n; i++) {
        const dq_tensor *t = &q->checkpoint->tensor[i];
        if (dq_tensor_numel(t) == 0 || is_left_out(q, t->name)) continue; /* nothing needs it */
        DQ_TRY(layout_tensor(q, kept, t, &choice[i], err));
        q->info.n_packed += q->tensor[kept].format != NULL;
        q->info.n_fed += q->tensor[kept].format != NULL && q->tensor[kept].is_fed;
        q->info.n_skipped += q->skipped[kept++];
    }
    q->info.n_tensors = kept;
    find_short_groups(q);
    return dq_name_order_make(&q->order, kept, tensor_name, q, q->arena, err);
}

static void add_blob(dq_quantizer *q, const char *path, const void *data, size_t bytes,
                     dq_encoding encoding)
{
    q->blob[q->n_blobs++] = (dq_blob){path, data, bytes, encoding};
}

static void blob_slot(dq_slot *s, const dq_blob *b, int n_files)
{
    s->path = b->path;
    s->encoding = b->encoding;
    s->dtype = DQ_U8;
    s->bytes = (int64_t)b->bytes;
    s->bits = 8;
    s->rows = 1;
    s->cols = s->bytes;
    s->sqnr_db = (double)NAN;
    if (b->encoding == DQ_ENC_BYTES) {
        s->n_dims = 1;
        s->shape[0] = s->bytes;
    } else if (b->encoding == DQ_ENC_TABLE) {
        s->n_dims = 2;
        s->rows = s->shape[0] = n_files;
        s->cols = s->shape[1] = s->bytes / n_files;
    }
}

static int64_t pages(int64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* The header sums all tensors, the result those that count (model.h). The file's size is a close
 * estimate: each object and payload begins a page. */
static void add_up(dq_quantizer *q)
{
    dq_quantize_info *info = &q->info;
    dq_container_skeleton *s = &q->skeleton;
    info->params = info->packed_params = info->packed_bytes = info->weight_bytes = 0;
    s->params = s->weight_bytes = 0;
    info->n_wide = 0;
    info->file_bytes = 24 * 4096 + pages(dq_container_index_bytes(s));
    for (int64_t i = 0; i < info->n_tensors; i++) {
        const dq_quantize_tensor *x = &q->tensor[i];
        s->params += x->rows * x->cols;
        if (x->counts) info->params += x->rows * x->cols;
        if (x->counts && x->format) info->packed_params += x->rows * x->cols;
        info->n_wide += x->format && x->spec.scale_dtype != q->set.scale_dtype;
    }
    for (int64_t i = 0; i < s->n_slots; i++) {
        const dq_slot *t = &s->slot[i];
        const bool dataset = t->encoding == DQ_ENC_DATASET; /* the first has a group as well */
        info->file_bytes += pages(t->bytes) + (dataset && t->dataset == 0 ? 8192 : 4096);
        if (t->origin < 0) continue;
        s->weight_bytes += t->bytes;
        if (!q->tensor[t->origin].counts) continue;
        info->weight_bytes += t->bytes;
        if (dataset) info->packed_bytes += t->bytes;
    }
    info->bits_per_weight = dq_weight_bits_over(info->weight_bytes, info->params);
    s->bits_per_weight = dq_weight_bits_over(s->weight_bytes, s->params);
}

static dq_status tensor_slots(dq_quantizer *q, int64_t i, dq_err *err)
{
    const dq_quantize_tensor *x = &q->tensor[i];
    const int n = x->format ? x->format->n_datasets : 1;
    for (int k = 0; k < n; k++) {
        dq_slot *s = &q->skeleton.slot[q->skeleton.n_slots++];
        s->origin = i;
        if (x->format) {
            const dq_weight w = dq_quantize_tensor_weight(x);
            const dq_dataset p = dq_weight_dataset(&w, k);
            s->encoding = DQ_ENC_DATASET;
            s->dataset = k;
            s->weight = w;
            s->mode = x->spec.mode;
            s->source_dtype = x->t->dtype;
            s->dtype = p.dtype;
            s->n_dims = 2;
            s->shape[0] = p.shape[0];
            s->shape[1] = p.shape[1];
            s->bytes = (int64_t)dq_dataset_bytes(&p);
            s->bits = p.bits;
            s->group_size = w.group_size;
            s->rows = p.rows;
            s->cols = p.cols;
            const bool codes = w.format->dataset[k].is_codes;
            s->bits_per_weight = codes ? dq_weight_bits_per_weight(&w) : 0;
            s->sqnr_db = codes ? 0 : (double)NAN; /* known once they are made */
            s->path =
                dq_textf(q->arena, err, "/tensors/%s/%s", x->t->name, x->format->dataset[k].name);
        } else {
            const dq_tensor *t = x->t;
            s->encoding = DQ_ENC_DENSE;
            s->dtype = x->dense_dtype;
            s->n_dims = t->n_dims;
            memcpy(s->shape, t->shape, sizeof s->shape);
            s->bytes = dq_tensor_numel(t) * (int64_t)dq_dtypes[s->dtype].bytes;
            s->bits = (int)dq_dtypes[s->dtype].bytes * 8;
            s->rows = x->rows;
            s->cols = x->cols;
            s->bits_per_weight = s->bits;
            s->sqnr_db = (double)NAN;
            s->path = dq_textf(q->arena, err, "/tensors/%s", x->t->name);
        }
    }
    return err->code;
}

dq_status dq_quantize_layout_slots(dq_quantizer *q, dq_err *err)
{
    dq_container_skeleton *s = &q->skeleton;
    int64_t max = DQ_MAX_DATASETS * q->info.n_tensors + q->n_blobs;
    s->n_slots = 0;
    s->slot = dq_alloc(q->arena, (size_t)max, sizeof *s->slot, err);
    if (!s->slot) return err->code;
    for (int64_t i = 0; i < q->info.n_tensors; i++) DQ_TRY(tensor_slots(q, i, err));
    for (int i = 0; i < q->n_blobs; i++) {
        dq_slot *b = &s->slot[s->n_slots++];
        blob_slot(b, &q->blob[i], q->n_files);
        b->origin = -1 - i;
    }
    qsort(s->slot, (size_t)s->n_slots, sizeof *s->slot, dq_name_compare);
    add_up(q);
    /* The payload that describes all others. */
    dq_blob *blob = &q->blob[q->objects];
    const char *text;
    DQ_TRY(dq_container_objects(&text, &blob->bytes, s, q->arena, err));
    blob->data = text;
    for (int64_t i = 0; i < s->n_slots; i++) {
        if (s->slot[i].origin == -1 - q->objects) blob_slot(&s->slot[i], blob, q->n_files);
    }
    add_up(q);
    return DQ_OK;
}

static dq_status begin_method(dq_quantizer *q, dq_err *err)
{
    const dq_quantize_method *m = q->set.method;
    if (!m) return DQ_OK;
    DQ_TRY(m->begin(m->arg, q->model, &q->needs, err));
    q->set.method_name = m->name;
    q->set.calib = q->needs.calib;
    q->info.scratch_bytes = q->needs.scratch_bytes;
    return DQ_OK;
}

static dq_status list_payloads(dq_quantizer *q, dq_err *err)
{
    add_blob(q, "/config/model_json", q->checkpoint->config_text, q->checkpoint->config_bytes,
             DQ_ENC_TEXT);
    add_blob(q, "/config/recipe_json", q->recipe, strlen(q->recipe), DQ_ENC_TEXT);
    if (q->model->gates)
        add_blob(q, DQ_PATH_GATES, q->model->gates->text, q->model->gates->len, DQ_ENC_TEXT);
    static const char *const names[] = {"tokenizer.json",          "tokenizer_config.json",
                                        "special_tokens_map.json", "added_tokens.json",
                                        "chat_template.jinja",     "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *file;
        size_t bytes;
        DQ_TRY(dq_model_file(q->model, names[i], &file, &bytes, err));
        if (!file) continue;
        if (bytes == 0)
            return dq_fail(err, DQ_DAMAGED, "%s/%s: the file is empty", q->dir, names[i]);
        const char *path = dq_textf(q->arena, err, "/tokenizer/%s", names[i]);
        if (!path) return err->code;
        add_blob(q, path, file, bytes, DQ_ENC_BYTES);
    }
    const int n = q->n_files = q->checkpoint->n_files;
    q->file = dq_alloc(q->arena, (size_t)n, sizeof *q->file, err);
    q->file_bytes = dq_alloc(q->arena, (size_t)n, sizeof *q->file_bytes, err);
    q->file_sha = dq_alloc(q->arena, (size_t)n, sizeof *q->file_sha, err);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < n; i++) {
        q->file[i] = q->checkpoint->file[i].name;
        q->file_bytes[i] = (int64_t)q->checkpoint->file[i].map.bytes;
        q->info.source_bytes += q->file_bytes[i];
    }
    q->table = q->n_blobs;
    size_t row =
        dq_container_source_table(NULL, n, q->file, q->file_bytes, (const char(*)[65])q->file_sha);
    void *rows = dq_alloc(q->arena, (size_t)n, row, err);
    add_blob(q, "/provenance/source_files", rows, row * (size_t)n, DQ_ENC_TABLE);
    if (err->code != DQ_OK) return err->code;
    q->objects = q->n_blobs;
    add_blob(q, DQ_PATH_OBJECTS, NULL, 0, DQ_ENC_TEXT);
    return DQ_OK;
}

static dq_status layout_make(dq_quantizer *q, const char *model, dq_err *err)
{
    dq_container_skeleton *s = &q->skeleton;
    dq_kv_spec spec;
    q->dir = dq_text(q->arena, model, strlen(model), err);
    if (!q->dir) return err->code;
    if (dq_file_is_regular(model) && !dq_checkpoint_is_gguf(model))
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: a file; quantizing needs the folder of the original checkpoint, or a GGUF "
            "file.",
            model);
    DQ_TRY(dq_model_open(&q->model, model, err));
    if (q->model->prequant)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: the weights are quantized already (%s). Use the original checkpoint: a "
                       "second rounding would add to the first.",
                       model, q->model->prequant->info.about);
    /* Widths measured on one model say nothing of another. */
    const char *planned = json_string_value(json_object_get(q->set.plan, "model_fingerprint"));
    if (planned && strcmp(planned, q->model->fingerprint) != 0) {
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: is not the model that the recipe was planned for (its fingerprint is "
            "%.12s..., expected %.12s...). Plan for this model, or take \"plan\" out of the "
            "recipe to use the rest as plain settings.",
            q->dir, q->model->fingerprint, planned);
    }
    DQ_TRY(dq_model_check_weights(q->model, err));
    q->checkpoint = q->model->checkpoint;
    if (q->set.gates) DQ_TRY(dq_model_take_gates(q->model, q->set.gates, err));
    if (q->set.kv_size.size > 0 &&
        dq_model_kv_size(&q->set.kv, &q->info.kv_sized, &q->set.kv_size, q->model, err) != DQ_OK)
        return dq_in(err, "%s: ", model);
    if (dq_model_kv_spec(&spec, &q->set.kv, q->model, DQ_NUM_F32, err) != DQ_OK ||
        dq_kv_config_fit(&q->set.kv, q->model->n_layers, err) != DQ_OK)
        return dq_in(err, "%s: ", model);
    q->set.kv.dense = dq_model_kv_dense(q->model, q->set.kv.dense);
    q->set.kv.evict.budget =
        dq_kv_budget_for(q->set.kv.evict.budget, q->set.kv.evict.policy, q->model->map.n_maps);
    DQ_TRY(begin_method(q, err));
    dq_quantize_settings *set = &q->set;
    const bool tied = q->model->tied;
    if (set->embed_bits == DQ_QUANTIZE_BITS_AUTO)
        set->embed_bits = set->bits > DQ_QUANTIZE_EMBED_BITS ? set->bits : DQ_QUANTIZE_EMBED_BITS;
    if (set->head_bits == DQ_QUANTIZE_BITS_AUTO) set->head_bits = tied ? 0 : set->embed_bits;
    DQ_TRY(layout_tensors(q, err));
    char *text = NULL;
    json_t *r = NULL;
    if (dq_quantize_recipe_of(&r, &q->set, err) == DQ_OK)
        dq_json_dump(&text, r, JSON_SORT_KEYS | JSON_INDENT(0), err);
    json_decref(r);
    if (text) q->recipe = dq_text(q->arena, text, strlen(text), err);
    free(text);
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(list_payloads(q, err));
    s->dq_version = q->set.dq_version;
    s->architecture = q->info.architecture = q->model->architecture->name;
    s->source = q->info.source = q->model->name;
    s->source_types = q->info.source_types = q->checkpoint->about;
    s->fingerprint = q->model->fingerprint;
    if (q->set.method) dq_os_arithmetic(s->arithmetic);
    s->logit = q->set.logit;
    s->kv = q->set.kv;
    return dq_quantize_layout_slots(q, err);
}

dq_status dq_quantize_open(dq_quantizer **out, const char *model, const dq_quantize_settings *s,
                           dq_err *err)
{
    dq_arena *arena;
    dq_quantizer *q = dq_arena_object(&arena, sizeof *q, err);
    *out = NULL;
    if (!q) return err->code;
    q->arena = arena;
    q->set = *s;
    q->rates = dq_quantize_rates_usual;
    if (layout_make(q, model, err) != DQ_OK) {
        dq_quantize_close(q);
        return err->code;
    }
    *out = q;
    return DQ_OK;
}

void dq_quantize_close(dq_quantizer *q)
{
    if (!q) return;
    dq_model_close(q->model);
    dq_quantize_tensor_buffers_free(&q->buffers);
    json_decref(q->needs.calib);
    dq_arena_free(q->arena);
}

static const dq_slot *slot_of(const dq_quantizer *q, int64_t tensor)
{
    const dq_slot *s = q->skeleton.slot;
    for (int64_t i = 0; i < q->skeleton.n_slots; i++) {
        if (s[i].origin == tensor) return &s[i];
    }
    return NULL;
}

dq_quantize_row dq_quantize_row_at(const dq_quantizer *q, int64_t row)
{
    const int64_t i = q->order[row];
    const dq_quantize_tensor *x = &q->tensor[i];
    const int n = x->format ? x->format->n_datasets : 1;
    const dq_slot *first = slot_of(q, i), *s = first;
    int64_t bytes = 0;
    for (int k = 0; k < n; k++) {
        bytes += first[k].bytes;
        if (x->format && x->format->dataset[k].is_codes) s = &first[k];
    }
    dq_quantize_row r = {.name = x->t->name,
                         .format = x->format ? x->format->name : dq_format_dense.name,
                         .packed = x->format != NULL,
                         .skipped = q->skipped[i],
                         .counts = x->counts,
                         .role = x->role,
                         .fed = x->format && x->is_fed,
                         .dtype = x->t->dtype,
                         .dense_dtype = x->dense_dtype,
                         .scale_dtype = x->spec.scale_dtype,
                         .one_scale = x->one_scale,
                         .bits = s->bits,
                         .rows = x->rows,
                         .cols = x->cols,
                         .group_size = s->group_size,
                         .source_bytes = (int64_t)dq_tensor_bytes(x->t),
                         .bytes = bytes,
                         .bits_per_weight = s->bits_per_weight,
                         .sqnr_db = s->sqnr_db,
                         .loss = q->loss[i]};
    return r;
}
