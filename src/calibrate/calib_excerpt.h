/* calib_excerpt: what is read of a text that is much larger than what is asked of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIB_EXCERPT_H
#define DQ_CALIB_EXCERPT_H

#include "tasks/documents.h"

/* A text is read whole up to so many bytes, and up to so many for each token that is asked for. */
enum { DQ_CALIB_EXCERPT_FROM = 4 << 20, DQ_CALIB_EXCERPT_BYTES = 64 };

typedef struct dq_calib_excerpt {
    dq_docs docs;
    const int32_t *unit; /* [docs.n] that a document is, of n_units; NULL: all are here, in order */
    int64_t n_units; /* documents of the file; if cut, regions that all four quarters would have */
    bool quarters;   /* documents are the quarters of a single text, all four */
    bool cut;        /* documents are regions of a single text: only their first `ctx` ids count */
    bool all;        /* of the part nothing is left out, or more of it is not to be had */
    int64_t bytes;   /* read */
} dq_calib_excerpt;

/* The documents of text[len] (dq_documents_add). Quarters (calib_text.h) of a single text above DQ_CALIB_EXCERPT_FROM are
 * those of its bytes, whatever is asked for. Of a large text an excerpt of the quarters of `part` with about per_token bytes
 * for each token: lines of a .jsonl at even intervals, where there are two; of a single text regions at even intervals, as
 * many as sequences of `ctx` ids are needed, each from after a line's end on. Memory in the arena. DQ_DAMAGED. */
dq_status dq_calib_excerpt_make(dq_calib_excerpt *out, const char *path, const char *text,
                                size_t len, int64_t tokens, int64_t ctx, unsigned part,
                                int64_t per_token, dq_arena *a, dq_err *err);

#endif
