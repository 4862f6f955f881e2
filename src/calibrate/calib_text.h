/* calib_text: a text as sequences of tokens for calibration.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIB_TEXT_H
#define DQ_CALIB_TEXT_H

#include "base/json.h"
#include "model/model.h"

enum { DQ_CALIB_TEXT_TOKENS = 16384, DQ_CALIB_TEXT_CTX = 512 }; /* without other words */

/* Parts of a text that share nothing: the documents of a file that has several are dealt in turn to four quarters; the pieces
 * of `ctx` ids of a single text, of which neighbours depend on each other, stay together, a quarter after the other. A quarter
 * is one of the pieces; of plain text above DQ_CALIB_EXCERPT_FROM (calib_excerpt.h) one of the bytes, so that parts that ask
 * for different numbers of tokens agree on it. A part is the bits of its quarters. */
enum { DQ_CALIB_TEXT_QUARTERS = 4, DQ_CALIB_TEXT_ALL = 15 };

typedef struct dq_calib_text {
    const int32_t *ids; /* [n_ids] sequence by sequence */
    int64_t n_ids;
    const int64_t *cu;   /* [n_seq + 1] */
    const int32_t *unit; /* [n_seq] that a sequence is of, of n_units */
    int64_t n_seq, ctx;  /* no sequence is longer than ctx */
    const int32_t
        *cluster; /* [n_seq] from 0: of its unit, and of all that are copies of one (repeats.h) */
    int64_t n_clusters, n_copies; /* units that are copies of an earlier one of the sequences */
    int64_t n_places, n_new;      /* dq_repeats_count of the sequences */
    int64_t n_units;              /* as of the excerpt; of a single text otherwise its pieces */
    bool cut;                     /* as of the excerpt (calib_excerpt.h) */
    int64_t found;                /* ids that the part has */
    int64_t requested;            /* ids asked for */
    int64_t n_bad, first_bad;     /* ill-formed UTF-8 of what was read; offset in the file */
    bool json_lines;              /* as documents.h has it */
    int64_t bytes, bytes_read;    /* of the file; of it as text (calib_excerpt.h) */
    char sha256[65];              /* of the file */
} dq_calib_text;

/* The sketch of its sequences (repeats.h), as JSON. */
json_t *dq_calib_text_sketch(const dq_calib_text *t);

/* The documents of a file (documents.h: .jsonl of {"text"}, or one text) as the model's tokenizer and its template encode
 * them, each cut into pieces of `ctx` ids, the last one shorter; where the template begins with an id, so does every piece,
 * in place of its first id. Of more pieces than `tokens` ids ask for, as many are taken as give them (the last one is cut,
 * and left out where one id would be all of it), at even intervals; of the quarters of `part` alone, not 0. A file that is much larger than what that takes is not read whole:
 * calib_excerpt.h. ctx 0: min(DQ_CALIB_TEXT_CTX, the model's positions); tokens 0: DQ_CALIB_TEXT_TOKENS. Memory in the arena. DQ_USAGE for a ctx that the model has no positions for;
 * DQ_DAMAGED for a file, or a part of it, without text. */
dq_status dq_calib_text_read(dq_calib_text *out, const char *path, const dq_model *m,
                             int64_t tokens, int64_t ctx, unsigned part, dq_arena *a, dq_err *err);

/* Sequences of `t` whose ids are those of one of `before`. DQ_RESOURCE. */
dq_status dq_calib_text_shared(int64_t *n, const dq_calib_text *t, const dq_calib_text *before,
                               dq_err *err);

/* Ids of the longest sequence. */
int64_t dq_calib_text_longest(const dq_calib_text *t);

/* A part as JSON: [0, 2]. The other way: 0 for what is no such list. */
json_t *dq_calib_text_quarters(unsigned part);
unsigned dq_calib_text_part(const json_t *quarters);

#endif
