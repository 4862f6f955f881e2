/* quantize: see quantize.h. Opening, and the comparison with a finished container; the scan is in quantize_scan.c, writing in
 * quantize_write.c.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_plan.h"

#include "base/os.h"

#include <stdio.h>
#include <string.h>

dq_status dq_quantize_open(dq_quantizer **out, const char *model, const dq_quantize_settings *s,
                           dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_quantizer *q = arena ? dq_alloc(arena, 1, sizeof *q, err) : NULL;
    *out = NULL;
    if (!q) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    q->arena = arena;
    q->set = *s;
    q->rates = dq_quantize_rates_usual;
    if (dq_quantize_plan_make(q, model, err) != DQ_OK) {
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

const dq_quantize_info *dq_quantize_result(const dq_quantizer *q)
{
    return &q->info;
}

const dq_quantize_settings *dq_quantize_effective(const dq_quantizer *q)
{
    return &q->set;
}

const char *dq_quantize_recipe(const dq_quantizer *q)
{
    return q->recipe;
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
    const int n = x->format ? x->format->n_parts : 1;
    const dq_slot *first = slot_of(q, i), *s = first;
    int64_t bytes = 0;
    for (int k = 0; k < n; k++) {
        bytes += first[k].bytes;
        if (x->format && x->format->part[k].is_codes) s = &first[k];
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

/* ---- Comparison with a container ---- */

typedef struct comparison {
    const dq_payload *part[DQ_MAX_PARTS];
    int64_t at[DQ_MAX_PARTS];
} comparison;

static dq_status compare_part(void *arg, int part, const void *p, size_t bytes, dq_err *err)
{
    comparison *c = arg;
    const dq_payload *want = c->part[part];
    const uint8_t *stored = want->data + c->at[part];
    if (memcmp(stored, p, bytes) != 0)
        return dq_fail(err, DQ_DAMAGED, "%s: differs from what the source gives", want->path);
    c->at[part] += (int64_t)bytes;
    dq_os_map_release(want->data, (size_t)c->at[part]);
    return DQ_OK;
}

static const dq_payload *codes_of(const comparison *now, const dq_slot *first)
{
    int k = 0;
    while (!first->weight.format->part[k].is_codes) k++;
    return now->part[k];
}

static dq_status check_sqnr(const dq_payload *codes, const dq_quant_error *e, dq_err *err)
{
    const double sqnr = dq_quant_sqnr_db(e);
    if (sqnr == codes->sqnr_db) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: SQNR against the source is %.4f dB (expected %.4f)",
                   codes->path, sqnr, codes->sqnr_db);
}

/* Codes of a method: what they are is the method's business, how far they are from the source is on record. */
static dq_status compare_sqnr(dq_quantizer *q, int64_t tensor, const comparison *now, dq_err *err)
{
    const dq_quantize_tensor *x = &q->tensor[tensor];
    dq_weight w = dq_quantize_tensor_weight(x);
    dq_quant_error e;
    for (int k = 0; k < x->format->n_parts; k++) {
        const dq_part p = dq_weight_part(&w, k);
        const dq_tensor found = {.dtype = p.dtype,
                                 .n_dims = 2,
                                 .shape = {p.shape[0], p.shape[1]},
                                 .data = now->part[k]->data};
        x->format->part[k].take(&w, &found);
    }
    DQ_TRY(dq_quantize_tensor_error(&e, x, &w, err));
    q->info.n_by_sqnr++;
    dq_quantize_plan_begin(q, DQ_QUANTIZE_DENSE, q->rates.dense);
    dq_quantize_plan_advance(q, (int64_t)dq_tensor_bytes(x->t));
    return check_sqnr(codes_of(now, slot_of(q, tensor)), &e, err);
}

static dq_status compare_slot(dq_quantizer *q, const dq_container *c, int64_t i, dq_err *err)
{
    const dq_slot *s = &q->skeleton.slot[i];
    const dq_payload *p = dq_container_payload(c, i);
    comparison now = {.part = {p}};
    if (s->origin == -1 - q->objects && strcmp(p->path, s->path) == 0) {
        const dq_blob *b = &q->blob[q->objects];
        return dq_container_compare_objects(c, b->data, b->bytes, err);
    }
    if (strcmp(p->path, s->path) != 0 || p->bytes != s->bytes)
        return dq_fail(err, DQ_DAMAGED, "%s: expected %s of %lld bytes from the source", p->path,
                       s->path, (long long)s->bytes);
    if (p->bits_per_weight != s->bits_per_weight)
        return dq_fail(err, DQ_DAMAGED, "%s: /index has %.17g bits per weight (expected %.17g)",
                       p->path, p->bits_per_weight, s->bits_per_weight);
    if (s->origin < 0) {
        const dq_blob *b = &q->blob[-1 - s->origin];
        return compare_part(&now, 0, b->data, b->bytes, err);
    }
    if (s->encoding == DQ_ENC_PART && s->part > 0) return DQ_OK; /* with the first one */
    for (int k = 1; s->encoding == DQ_ENC_PART && k < s->weight.format->n_parts; k++) {
        if (i + k >= dq_container_n_payloads(c) ||
            dq_container_payload(c, i + k)->bytes != s[k].bytes)
            return dq_fail(err, DQ_DAMAGED, "%s: of another size than the source gives", s[k].path);
        now.part[k] = dq_container_payload(c, i + k);
    }
    if (s->encoding == DQ_ENC_PART && q->set.method_name && q->tensor[s->origin].is_fed)
        return compare_sqnr(q, s->origin, &now, err);
    dq_quantize_sink sink = {compare_part, &now};
    dq_quantize_tick tick = {dq_quantize_plan_advance, q};
    dq_quant_error e;
    q->what = s->path;
    dq_quantize_plan_begin_tensor(q, s->origin);
    DQ_TRY(dq_quantize_tensor_write(&q->tensor[s->origin], &q->buffers, &sink, &e, &tick, err));
    return s->encoding == DQ_ENC_PART ? check_sqnr(codes_of(&now, s), &e, err) : DQ_OK;
}

typedef struct compare_job {
    dq_quantizer *q;
    const dq_container *c;
} compare_job;

static dq_status compare_all(void *arg, dq_err *err)
{
    dq_quantizer *q = ((compare_job *)arg)->q;
    const dq_container *c = ((compare_job *)arg)->c;
    DQ_TRY(dq_quantize_plan_scan(q, err));
    if (dq_container_n_payloads(c) != q->skeleton.n_slots)
        return dq_fail(err, DQ_DAMAGED, "/index has %lld rows (expected %lld from the source)",
                       (long long)dq_container_n_payloads(c), (long long)q->skeleton.n_slots);
    DQ_TRY(dq_quantize_plan_hashes(q, err));
    for (int64_t i = 0; i < q->skeleton.n_slots; i++) DQ_TRY(compare_slot(q, c, i, err));
    return DQ_OK;
}

dq_status dq_quantize_compare(dq_quantizer *q, const dq_container *c, const dq_quantize_progress *p,
                              dq_err *err)
{
    compare_job job = {q, c};
    const dq_container_info *info = dq_container_header(c);
    /* what a container says of where it was made, not of what was made; the version is among the settings */
    q->skeleton.source = info->source;
    if (q->set.method_name && info->arithmetic)
        snprintf(q->skeleton.arithmetic, sizeof q->skeleton.arithmetic, "%s", info->arithmetic);
    dq_quantize_plan_progress(q, p);
    if (strcmp(info->fingerprint, q->model->fingerprint) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "made from another checkpoint (fingerprint %.16s..., %s has %.16s...)",
                       info->fingerprint, q->dir, q->model->fingerprint);
    return dq_quantize_plan_run(q, compare_all, &job, err);
}
