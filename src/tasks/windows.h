/* windows: documents cut into pieces that fit a model, each with the ids that are scored in it. No window
 * reaches over the end of a document.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WINDOWS_H
#define DQ_WINDOWS_H

#include "tasks/documents.h"
#include "tasks/items.h"

/* Ids 0 .. n - 1 are fed; ids first + 1 .. n - 1 + past are scored, where id n is not fed. */
typedef struct dq_window {
    const int32_t *ids; /* [n + past] */
    int64_t n, first;
    int64_t past;  /* 1: the successor of the last fed id is scored too; else 0 */
    int64_t value; /* index of its first scored id among those of all windows */
    int64_t doc;   /* document that it is cut from */
    int64_t at;    /* index of ids[0] in the document, -1: a prefix stands there */
} dq_window;

/* The ids of a document; what the template adds is before and after them. */
typedef struct dq_doc_ids {
    const int32_t *ids; /* [n], template and all */
    int64_t n, n_before, n_after;
} dq_doc_ids;

typedef struct dq_windows {
    const dq_window *win; /* [n], document by document */
    int64_t n;
    int64_t n_values; /* scored tokens of all windows */
    int64_t longest;  /* ids of the longest window */
    int64_t n_ids;    /* of all documents */
    /* [n] of each window the piece that an error is over, from 0: its document, or of a single document itself; pieces
     * that are copies of one another have one number (repeats.h) */
    const int32_t *cluster;
    int64_t n_clusters, n_copies; /* pieces that are copies of an earlier one */
    const dq_doc_ids *doc;        /* [n_given] all documents, used or not */
    int64_t n_given;
    int64_t n_all;          /* documents there are: n_given, and those after the limit */
    int64_t n_docs;         /* documents with a window */
    int64_t n_short;        /* documents that are too short for one */
    int64_t n_words, bytes; /* of the original text of documents with a window */
    bool prefixed;          /* dq_tokenizer_prefix stands before texts */
    bool cut;               /* `limit` left a document unfinished: the counts say too much */
} dq_windows;

/* Which windows. L is n_ctx.
 *   chunk     L tokens each, one after the other, the tail dropped, the second half of each scored; with a
 *             BOS in the template the first id of each is overwritten by it. A document alone has
 *             at least two.
 *             Source: llama.cpp tools/perplexity/perplexity.cpp perplexity (behaviour).
 *   stride    L tokens (the last one fewer), each `stride` after the one before; what no earlier window
 *             scored is scored: every id of a document but the first, once.
 *             Source: transformers docs/source/en/perplexity.md (behaviour).
 *   block     L tokens each, one after the other, the tail dropped, all scored but the first.
 *   rolling   every id of a document once, the first after BOS (or EOS), which a text may spell itself; L fed tokens where there are as
 *             many, of which the scored ones are the last and see all that fits.
 *             Source: lm-evaluation-harness lm_eval/utils.py get_rolling_token_windows (behaviour).
 *   positions one for each document of more than L tokens: its first L are fed, their successors scored. */
typedef enum dq_scheme {
    DQ_WINDOW_CHUNK,
    DQ_WINDOW_STRIDE,
    DQ_WINDOW_BLOCK,
    DQ_WINDOW_ROLLING,
    DQ_WINDOW_POSITIONS
} dq_scheme;
enum { DQ_SCHEMES = 5 };
extern const char *const dq_scheme_name[DQ_SCHEMES];

typedef struct dq_window_spec {
    dq_scheme scheme;
    int64_t n_ctx;  /* at least 4 */
    int64_t stride; /* `stride` only: 1 .. n_ctx - 1; 0: n_ctx / 2 */
    int64_t limit;  /* windows at most, 0: all */
    bool whole;     /* all documents are encoded, though `limit` needs the first alone */
    dq_bos bos;
    int64_t vocab; /* ids must be below */
} dq_window_spec;

/* Scored tokens of a window, and of the windows before `i`. */
int64_t dq_window_scored(const dq_window *w);
int64_t dq_windows_values(const dq_windows *w, int64_t i);

/* Windows begin .. end - 1 have the same n, first and past. */
bool dq_windows_alike(const dq_windows *w, int64_t begin, int64_t end);

/* Of each window where it stands and its ids, which a tokenizer and a form of text make of the same bytes; as 64 hex digits. */
dq_status dq_windows_hash(char hex[65], const dq_windows *w, dq_err *err);

/* Ids of a document, with the template unless `bos` is off; none of a document without text. max: of
 * dq_tokenizer_encode_first, 0: all. */
dq_status dq_windows_encode(dq_doc_ids *out, const dq_tokenizer *t, const dq_doc *d, dq_bos bos,
                            int64_t vocab, int64_t max, dq_arena *a, dq_err *err);
/* Encodes each document once, with a limit as many and as much of them as it needs (n_given, n_ids and n_short count these), with the template unless `bos` is off, and cuts it. Documents without text,
 * or too short for a window, have none; DQ_MISMATCH when that is all of them, DQ_DAMAGED when none has
 * text. */
dq_status dq_windows_make(dq_windows *out, const dq_tokenizer *t, const dq_docs *docs,
                          const dq_window_spec *spec, dq_arena *a, dq_err *err);
/* The same from ids that are there. before: id before the first one, for `rolling`; -1: none. bos: id
 * that overwrites the first of each chunk; -1: none. words and bytes are left 0. */
dq_status dq_windows_cut(dq_windows *out, const dq_doc_ids *doc, int64_t n_docs,
                         const dq_window_spec *spec, int32_t before, int32_t bos, dq_arena *a,
                         dq_err *err);

#endif
