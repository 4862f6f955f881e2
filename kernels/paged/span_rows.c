/* span_rows: see span_rows.h. Rows that count are numbered sequence by sequence, and the classes of the tokens of
 * each list are laid out once per call. Sums then take rows in that numbering, whichever thread or block made
 * them.
 * SPDX-License-Identifier: MIT */
#include "kernels/paged/span_rows.h"

#include <string.h>

void dq_span_rows_place(int64_t *at, const dq_attention_spans *spans, const dq_batch *batch)
{
    at[0] = 0;
    for (int i = 0; i < batch->n_seq; i++)
        at[i + 1] =
            at[i] + batch->cu_rows[i + 1] - dq_attention_spans_first(spans, batch->cu_rows, i);
}

static void place_keys(dq_span_rows *s, const dq_attend_args *args)
{
    const int n_groups = args->attn->map->n_groups;
    for (int l = 0; l < args->batch->n_seq * n_groups; l++) {
        const int i = l / n_groups;
        s->key[l + 1] = s->key[l];
        if (s->at[i + 1] > s->at[i])
            s->key[l + 1] +=
                dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, l % n_groups)->count;
    }
}

/* Classes of the tokens of list l. */
static bool label_keys(dq_backend *b, dq_span_rows *s, const dq_attend_args *args, int l)
{
    const dq_attention_spans *spans = args->spans;
    const int n_groups = args->attn->map->n_groups, i = l / n_groups;
    const dq_kv_list *list =
        dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, l % n_groups);
    uint8_t *label = s->label + s->key[l];
    for (int64_t k = 0; k < s->key[l + 1] - s->key[l]; k++) {
        label[k] = spans->label[spans->at[i] + dq_kv_pos(list, k)];
        if (label[k] >= spans->n_classes) {
            dq_fail(&b->err, DQ_BUG, "the token at position %d has class %d of %d",
                    (int)dq_kv_pos(list, k), label[k], spans->n_classes);
            return false;
        }
    }
    return true;
}

bool dq_span_rows_new(dq_backend *b, dq_span_rows *s, const dq_attend_args *args)
{
    const dq_head_order *map = args->attn->map;
    const int n_seq = args->batch->n_seq, n_lists = n_seq * map->n_groups;
    memset(s, 0, sizeof *s);
    if (args->spans->n_classes < 1 || args->spans->n_classes > DQ_SPAN_CLASSES) {
        dq_fail(&b->err, DQ_BUG, "%d classes of tokens (expected 1 to %d)", args->spans->n_classes,
                DQ_SPAN_CLASSES);
        return false;
    }
    s->row_bytes = (size_t)map->n_out * (size_t)args->spans->n_classes * sizeof(dq_span_mass);
    s->at = dq_block_new((size_t)n_seq + 1, sizeof *s->at, &b->err);
    s->key = dq_block_new((size_t)n_lists + 1, sizeof *s->key, &b->err);
    if (s->at && s->key) {
        dq_span_rows_place(s->at, args->spans, args->batch);
        s->n = s->at[n_seq];
        place_keys(s, args);
        s->label = dq_block_new((size_t)s->key[n_lists] + 1, sizeof *s->label, &b->err);
    }
    bool ok = s->label != NULL;
    for (int l = 0; ok && l < n_lists; l++) ok = label_keys(b, s, args, l);
    if (!ok) dq_span_rows_free(s);
    return ok;
}

void dq_span_rows_free(dq_span_rows *s)
{
    dq_block_free(s->at);
    dq_block_free(s->key);
    dq_block_free(s->label);
    memset(s, 0, sizeof *s);
}

void dq_span_rows_add(dq_span_share *sums, const int64_t *at, int n_seq, int n_out, int n_classes,
                      const dq_span_mass *mass)
{
    for (int i = 0; i < n_seq; i++) {
        for (int64_t row = at[i]; row < at[i + 1]; row++) {
            for (int o = 0; o < n_out; o++, mass += n_classes)
                dq_attention_spans_add_row(&sums[i * n_out + o], mass, n_classes);
        }
    }
}
