/* kind_text: what the command line says about running text; dq_eval_source.settings of dq_eval_text. A source whose windows are
 * made elsewhere, as chunks, has none.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_TEXT_H
#define DQ_KIND_TEXT_H

#include "eval/eval.h"

typedef struct dq_text_settings {
    dq_scheme scheme;
    int64_t stride; /* 0: half a window */
    dq_docs docs;   /* what is scored */
    bool slices;
    dq_docs counts;   /* stands for the training text; none: the scored documents do */
    double threshold; /* see dq_slices */
} dq_text_settings;

#endif
