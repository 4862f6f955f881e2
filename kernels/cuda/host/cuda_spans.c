/* cuda_spans: spans of attend, from the host's classes to kernels and back.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_attention.h"

#include "kernels/paged/span_rows.h"

_Static_assert((int)DQ_SPAN_SUM_CLASSES == (int)DQ_SPAN_CLASSES, "classes");
_Static_assert(sizeof(dq_span_mass) == 2 * sizeof(double), "masses are pairs of doubles");

bool dq_cuda_spans_begin(dq_backend *b, dq_cuda_observers *l)
{
    const dq_attend_args *args = l->args;
    dq_span_rows rows;
    if (!dq_span_rows_new(b, &rows, args)) return false;
    const size_t n_lists = (size_t)(args->batch->n_seq * args->attn->map->n_groups);
    bool ok = true;
    l->mass_bytes = (size_t)rows.n * rows.row_bytes;
    if (rows.n > 0) {
        l->spans.n_classes = args->spans->n_classes;
        l->spans.mass = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_SPANS, l->mass_bytes);
        l->spans.label = dq_cuda_upload(b, rows.label, (size_t)rows.key[n_lists]);
        l->spans.key = dq_cuda_upload(b, rows.key, n_lists * sizeof *rows.key);
        ok = l->spans.mass && l->spans.label && l->spans.key;
    }
    dq_span_rows_free(&rows);
    return ok;
}

/* Where sums belong, kept until the next sync. */
typedef struct span_note {
    dq_span_share *sums;
    int n_seq, n_out, n_classes;
    int64_t at[]; /* [n_seq + 1] */
} span_note;

static void take_spans(void *arg, const void *data, size_t bytes)
{
    const span_note *note = arg;
    (void)bytes;
    dq_span_rows_add(note->sums, note->at, note->n_seq, note->n_out, note->n_classes, data);
}

void dq_cuda_spans_end(dq_backend *b, const dq_cuda_observers *l)
{
    const dq_attention_spans *spans = l->args->spans;
    const int n_seq = l->args->batch->n_seq;
    span_note *note = dq_cuda_note(b, sizeof *note + ((size_t)n_seq + 1) * sizeof note->at[0]);
    if (!note) return;
    note->sums = spans->sums;
    note->n_seq = n_seq;
    note->n_out = l->args->attn->map->n_out;
    note->n_classes = spans->n_classes;
    dq_span_rows_place(note->at, spans, l->args->batch);
    dq_cuda_download(b, l->spans.mass, l->mass_bytes, take_spans, note);
}
