/* decoder: the decoder of a tokenizer file, which turns tokens into text.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_DECODER_H
#define DQ_DECODER_H

#include "base/json.h"

enum { DQ_DECODER_MAX_STEPS = 16 };

typedef enum dq_decoder_kind {
    DQ_DECODER_BYTE_LEVEL,
    DQ_DECODER_METASPACE,
    DQ_DECODER_REPLACE,
    DQ_DECODER_BYTE_FALLBACK,
    DQ_DECODER_FUSE,
    DQ_DECODER_STRIP
} dq_decoder_kind;

typedef struct dq_decoder_step {
    dq_decoder_kind kind;
    const char *part; /* REPLACE: what; METASPACE: the space's sign; STRIP: the character */
    size_t part_len;
    const char *text; /* REPLACE: by what */
    size_t text_len;
    int64_t start, stop; /* STRIP: at most so many there */
    bool drop_first;     /* METASPACE: the signs of the first token go */
} dq_decoder_step;

/* Read-only once loaded. */
typedef struct dq_decoder {
    dq_decoder_step step[DQ_DECODER_MAX_STEPS];
    int n_steps;
    bool none; /* no decoder: one space between tokens */
} dq_decoder;

/* From the value of "decoder" (NULL and null: none); what *d points at belongs to the arena. A type
 * that is not implemented is DQ_MISMATCH by name. *d must be zeroed before. */
dq_status dq_decoder_load(dq_decoder *d, const json_t *value, dq_arena *a, dq_err *err);

/* Text of the tokens token[n], each as the vocabulary or the added token writes it, well-formed
 * UTF-8; what bytes of tokens leave ill-formed becomes U+FFFD. *text is a block that the caller ends
 * with dq_block_free. Safe from several threads at once. */
dq_status dq_decoder_run(const dq_decoder *d, const char *const *token, const size_t *len,
                         int64_t n, char **text, size_t *text_len, dq_err *err);

#endif
