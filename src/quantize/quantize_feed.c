/* quantize_feed: what a method gives for a container, see quantize.h. A payload is in the journal when it is taken.
 * SPDX-License-Identifier: MIT */
#include "base/ranks.h"
#include "quantize/quantize_out.h"

#include <string.h>

const dq_model *dq_quantize_feed_model(const dq_quantize_feed *f)
{
    return f->q->model;
}

const dq_quantizer *dq_quantize_feed_quantizer(const dq_quantize_feed *f)
{
    return f->q;
}

const dq_quantize_tensor *dq_quantize_tensor_of(const dq_quantizer *q, const char *name)
{
    int64_t low = 0, high = q->info.n_tensors; /* in name order */
    while (low < high) {
        const int64_t at = (low + high) / 2;
        const int order = strcmp(name, q->tensor[at].t->name);
        if (order == 0) return &q->tensor[at];
        if (order < 0)
            high = at;
        else
            low = at + 1;
    }
    return NULL;
}

const dq_quantize_tensor *dq_quantize_feed_tensor(const dq_quantize_feed *f, const char *name)
{
    return dq_quantize_tensor_of(f->q, name);
}

/* Its first part. */
static int64_t slot_of(const dq_quantize_feed *f, const dq_quantize_tensor *t)
{
    int64_t i = 0;
    while (f->q->skeleton.slot[i].origin != t - f->q->tensor) i++;
    return i;
}

bool dq_quantize_feed_done(const dq_quantize_feed *f, const dq_quantize_tensor *t)
{
    return dq_quantize_out_done(f, slot_of(f, t));
}

dq_status dq_quantize_feed_take(dq_quantize_feed *f, const dq_quantize_tensor *t, dq_coded *out,
                                dq_err *err)
{
    const int64_t i = slot_of(f, t);
    dq_coded_new(out, t->rows, t->cols, &t->spec, err);
    for (int k = 0; err->code == DQ_OK && dq_ranks_number() == 0 && k < t->format->n_parts; k++) {
        const dq_slot *s = &f->q->skeleton.slot[i + k];
        char sha[65];
        uint8_t *part = dq_coded_part(out, k);
        if (dq_inplace_file_get(&f->file, s->offset, part, (size_t)s->bytes, err) == DQ_OK &&
            dq_sha256_of(sha, part, (size_t)s->bytes, err) == DQ_OK &&
            memcmp(sha, s->sha256, 64) != 0)
            dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_START_OVER},
                         "%s: %s is not what an earlier run wrote.", f->partial, s->path);
    }
    dq_ranks_agree(NULL, NULL, err);
    for (int k = 0; err->code == DQ_OK && k < t->format->n_parts; k++)
        dq_ranks_spread(0, dq_coded_part(out, k), (size_t)f->q->skeleton.slot[i + k].bytes);
    if (err->code != DQ_OK) dq_coded_free(out);
    return err->code;
}

/* On ranks other than 0. */
static void mark_done(dq_quantize_feed *f, int64_t i)
{
    for (int k = 0; k < dq_quantize_out_parts(&f->q->skeleton.slot[i]); k++) f->done[i + k] = true;
}

dq_status dq_quantize_feed_put(dq_quantize_feed *f, const dq_quantize_tensor *t, const dq_weight *w,
                               double loss, dq_err *err)
{
    dq_slot *s = &f->q->skeleton.slot[slot_of(f, t)];
    const int n = dq_quantize_out_parts(s);
    dq_quant_error e;
    if (dq_ranks_number() > 0) {
        mark_done(f, s - f->q->skeleton.slot);
        return DQ_OK;
    }
    DQ_TRY(dq_quantize_tensor_error(&e, t, w, err));
    f->q->loss[t - f->q->tensor] = loss;
    for (int k = 0; k < n; k++) {
        const dq_part p = dq_weight_part(w, k);
        if ((int64_t)dq_weight_part_bytes(&p) != s[k].bytes)
            return dq_fail(err, DQ_BUG, "%s: of another size than planned", s[k].path);
        DQ_TRY(dq_sha256_of(s[k].sha256, p.data, (size_t)s[k].bytes, err));
        DQ_TRY(dq_inplace_file_put(&f->file, s[k].offset, p.data, (size_t)s[k].bytes, err));
        if (t->format->part[k].is_codes) s[k].sqnr_db = dq_quant_sqnr_db(&e);
    }
    for (int k = n - 1; k >= 0; k--)
        DQ_TRY(dq_quantize_journal_finish(f, s - f->q->skeleton.slot + k, err));
    return dq_quantize_journal_flush(f, err); /* it took longer than a sync does */
}
