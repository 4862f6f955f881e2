/* elements: see elements.h. Every candidate is compared with the smallest of those found so far, so the list is short and no table
 * is sorted.
 * SPDX-License-Identifier: MIT */
#include "calib/elements.h"

#include <math.h>
#include <string.h>

static const double stands_from = 0.1; /* of the largest */

bool dq_element_spans_layers(int kind)
{
    return kind == DQ_KIND_HIDDEN || kind == DQ_KIND_QKV_IN || kind == DQ_KIND_GATE_UP_IN;
}

static const dq_channel *channel(const dq_outliers *o, int kind, int layer, dq_token_class class,
                                 int64_t col)
{
    const dq_channels *c = &o->kind[kind].channels[layer];
    return &c->of[class * c->cols + col];
}

static const dq_moments *head(const dq_outliers *o, int layer, int64_t q, dq_token_class class)
{
    return &o->head[(layer * o->n_q + q) * DQ_TOKEN_CLASSES + class];
}

/* The place among the found that a magnitude takes, room: none. Of equal ones the first found stays before. */
static int rank_of(const dq_element *out, int n, int room, float max)
{
    int i = n;
    while (i > 0 && max > out[i - 1].max) i--;
    return max > 0 ? i : room;
}

static void insert(dq_element *out, int *n, int room, const dq_element *e)
{
    const int i = rank_of(out, *n, room, e->max);
    if (i >= room) return;
    if (*n < room) ++*n;
    memmove(&out[i + 1], &out[i], (size_t)(*n - 1 - i) * sizeof *out);
    out[i] = *e;
}

static void find_spans(dq_element *e, const dq_outliers *o)
{
    int standing = 0;
    e->first = e->last = e->at.layer;
    for (int l = 0; l < o->n_layers; l++) {
        const double size = (double)channel(o, e->kind, l, e->class, e->col)->max;
        if (size < stands_from * (double)e->max) continue;
        if (standing++ == 0) e->first = l;
        e->last = l;
    }
    e->n_gaps = e->last - e->first + 1 - standing;
}

/* What follows from where the largest is. */
static void complete(dq_element *e, const dq_outliers *o)
{
    const int layer = e->at.layer;
    e->first = e->last = layer;
    e->ratio = (double)e->max / dq_outlier_median(&o->kind[e->kind].ordinary[layer]).value;
    if (e->kind == DQ_KIND_LOGITS) {
        e->rms = dq_moments_rms(head(o, layer, e->col, e->class));
        e->before = (double)NAN;
        return;
    }
    e->rms = dq_channels_rms(&o->kind[e->kind].channels[layer], e->class, e->col);
    if (dq_element_spans_layers(e->kind)) find_spans(e, o);
    e->before = dq_element_spans_layers(e->kind) && e->first > 0
                    ? (double)channel(o, e->kind, e->first - 1, e->class, e->col)->max
                    : (double)NAN;
}

static void look_at_logits(dq_element *out, int *n, int room, const dq_outliers *o,
                           dq_token_class class)
{
    for (int l = 0; l < o->n_layers; l++) {
        for (int q = 0; q < o->n_q; q++) {
            const dq_moments *m = head(o, l, q, class);
            const dq_element e = {
                .kind = DQ_KIND_LOGITS, .class = class, .col = q, .max = m->max, .at = m->at};
            insert(out, n, room, &e);
        }
    }
}

static void look_at_channels(dq_element *out, int *n, int room, const dq_outliers *o, int kind,
                             dq_token_class class)
{
    const int64_t cols = o->kind[kind].channels[0].cols;
    for (int64_t c = 0; c < cols; c++) {
        dq_element e = {.kind = kind, .class = class, .col = c};
        for (int l = 0; l < o->n_layers; l++) {
            const dq_channel *x = channel(o, kind, l, class, c);
            if (x->max > e.max) {
                e.max = x->max;
                e.at = (dq_place){x->seq, l, -1, x->row, (int32_t)c};
            }
            if (dq_element_spans_layers(kind)) continue;
            insert(out, n, room, &e);
            e.max = 0;
        }
        insert(out, n, room, &e);
    }
}

int dq_elements_find(dq_element *out, int max, const dq_outliers *o, int kind, dq_token_class class)
{
    int n = 0;
    if (kind == DQ_KIND_LOGITS)
        look_at_logits(out, &n, max, o, class);
    else
        look_at_channels(out, &n, max, o, kind, class);
    for (int i = 0; i < n; i++) complete(&out[i], o);
    return n;
}
