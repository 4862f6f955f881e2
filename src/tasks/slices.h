/* slices: which scored tokens a model could have recalled from its context: the last id of a bigram that the
 * window has shown before and that training has not shown often.
 * Source: Zoology, arXiv 2312.04927, section 3; Just read twice, arXiv 2407.05483, appendix B.4.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SLICES_H
#define DQ_SLICES_H

#include "tasks/windows.h"

/* The scored tokens of windows, judged. */
typedef struct dq_slices {
    const bool *hit;  /* [n_values] */
    double threshold; /* training occurrences, of 1e10 training ids, up to which a bigram is rare */
    int64_t counted;  /* ids of the corpus that stands for the training text */
    bool own;         /* that is the documents themselves, less the one at hand */
} dq_slices;

/* A bigram is frequent if the corpus has it more often than max(1, threshold * corpus / 1e10) times.
 * corpus[n_corpus]: documents that stand for the training text; NULL: those of the windows, without the one at
 * hand; a document alone then has no frequent bigrams. Template tokens are not counted, but a window shows
 * them. */
dq_status dq_slices_make(dq_slices *out, const dq_windows *w, const dq_doc_ids *corpus,
                         int64_t n_corpus, double threshold, dq_arena *a, dq_err *err);

#endif
