/* cpu_spans: what rows give to classes of tokens, between softmax and subtraction.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

/* In the order of the list, with the roundings of the subtraction itself. */
static void count_row(const dq_cpu_column_job *j, dq_span_mass *mass, const uint8_t *label,
                      int64_t r)
{
    const float *p1 = j->p[0] + r * j->ld, *p2 = j->p[1] ? j->p[1] + r * j->ld : NULL;
    const float a = (float)(1.0 / j->sum[0][r]);
    float b = 0.0f;
    if (p2) b = (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) / j->sum[1][r]);
    for (int64_t i = 0; i < j->visible[r]; i++) {
        const float x = p1[i] * a, y = p2 ? p2[i] * b : 0.0f;
        const double d = (double)(x - y);
        if (d < 0)
            mass[label[i]].negative -= d;
        else
            mass[label[i]].positive += d;
    }
}

void dq_cpu_count_spans(const dq_cpu_column_job *j, dq_span_mass *mass, const dq_span_rows *s)
{
    const dq_head_order *map = j->args->attn->map;
    const dq_attention_spans *spans = j->args->spans;
    const int n_classes = spans->n_classes, seq = j->rows.seq;
    const int64_t first = dq_attention_spans_first(spans, j->args->batch->cu_rows, seq);
    const uint8_t *label =
        s->label + s->key[seq * map->n_groups + map->group[map->head[j->out].v[0]]];
    for (int64_t r = first > j->rows.first ? first - j->rows.first : 0; r < j->rows.n; r++) {
        const int64_t record = s->at[seq] + j->rows.first + r - first;
        count_row(j, mass + (record * map->n_out + j->out) * n_classes, label, r);
    }
}
