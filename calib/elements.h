/* elements: outliers as one looks for them, each named once: a channel of the residual stream at a class of tokens, with the
 * layers where it stands; or a channel of q, k, v or a projection's input, or a query head's logits on a class of keys, of a
 * layer.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ELEMENTS_H
#define DQ_ELEMENTS_H

#include "calib/outliers.h"

typedef struct dq_element {
    int kind;
    dq_token_class class; /* of the token; of logits: of the key */
    int64_t col;          /* channel; of logits the query head */
    float max;            /* its largest magnitude over layers */
    dq_place at;          /* where: seq, layer, row; of logits the query and, in col, the key */
    double rms;           /* in that layer, over tokens of the class */
    double ratio;         /* max over the median of that layer's ordinary tokens */
    /* It stands in a layer where its magnitude comes to a tenth of `max`: layers first .. last, but for gaps. Channels mean the
     * same in all layers on the residual stream alone; elsewhere first = last = at.layer. */
    int first, last, n_gaps;
    double before; /* its magnitude in layer first - 1; NaN: there is none */
} dq_element;

/* The `max` largest elements of a kind of a profile and a class, largest first, into out[max]; returns how many. */
int dq_elements_find(dq_element *out, int max, const dq_outliers *o, int kind,
                     dq_token_class class);
/* Whether channels of a kind are those of the residual stream. */
bool dq_element_spans_layers(int kind);

#endif
