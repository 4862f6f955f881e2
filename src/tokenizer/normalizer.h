/* normalizer: the normalizer of a tokenizer file, which rewrites text before it is cut.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_NORMALIZER_H
#define DQ_NORMALIZER_H

#include "base/json.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/regex.h"

enum { DQ_NORMALIZER_MAX_STEPS = 32 };

typedef enum dq_normalizer_kind {
    DQ_NORMALIZER_FORM,
    DQ_NORMALIZER_LOWER,
    DQ_NORMALIZER_STRIP,
    DQ_NORMALIZER_PREPEND,
    DQ_NORMALIZER_REPLACE,
    DQ_NORMALIZER_CHARSMAP
} dq_normalizer_kind;

typedef struct dq_normalizer_step {
    dq_normalizer_kind kind;
    bool compatible, composed; /* FORM: K, C */
    bool left, right;          /* STRIP */
    const char *text;          /* PREPEND: what; REPLACE: by what */
    size_t text_len;
    const char *part; /* REPLACE: what, unless by pattern */
    size_t part_len;
    dq_regex regex;
    dq_charsmap map;
} dq_normalizer_step;

/* Read-only once loaded. {0} changes nothing. */
typedef struct dq_normalizer {
    dq_normalizer_step step[DQ_NORMALIZER_MAX_STEPS];
    int n_steps;
} dq_normalizer;

/* From the value of "normalizer" (NULL and null: none); what *n points at belongs to the arena. A
 * type that is not implemented is DQ_MISMATCH by name. The caller ends *n with dq_normalizer_free,
 * after a failure too; *n must be zeroed before. */
dq_status dq_normalizer_load(dq_normalizer *n, const json_t *value, dq_arena *a, dq_err *err);
void dq_normalizer_free(dq_normalizer *n);

/* *out is NULL when well-formed text[len] stays as it is (*out_len is len then), else a block that
 * the caller ends with dq_block_free. Safe from several threads at once. */
dq_status dq_normalizer_run(const dq_normalizer *n, char **out, size_t *out_len, const char *text,
                            size_t len, dq_err *err);
/* The same, and *moved tells whether the result begins with something from after the beginning of
 * text: the reference's "first" piece is then no longer first. */
dq_status dq_normalizer_run_from(const dq_normalizer *n, char **out, size_t *out_len, bool *moved,
                                 const char *text, size_t len, dq_err *err);

#endif
