/* documents: running text as one document or many, with the counts that are taken of the original
 * text.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_DOCUMENTS_H
#define DQ_DOCUMENTS_H

#include "base/base.h"
#include "base/json.h"
#include "tasks/items.h"

typedef struct dq_doc {
    const char *text; /* [len], as it was given; ill-formed UTF-8 is repaired when it is encoded */
    size_t len;
    int64_t words;    /* pieces between runs of white space, empty ones at the ends included */
    const char *path; /* of the file that it is from */
    int64_t line;     /* of that file, from 1; 0: the file is the document */
} dq_doc;

typedef struct dq_docs {
    dq_doc *doc;
    int64_t n;
    size_t cap;
    int64_t n_bad, first_bad; /* ill-formed UTF-8, and the offset of the first in its file */
    const char *bad_path;     /* that file; NULL: none */
    const char
        *lines_path; /* a file that is taken as one document, and looks like lines; NULL: none */
    int64_t at;      /* offset in its file of the text that is added next */
} dq_docs;

/* Adds what a file holds: with a name that ends in ".jsonl", a document for each line {"text": ...}
 * that is not blank; else one document. text[len] and path are kept, not copied. An empty file adds
 * an empty document, or none. DQ_DAMAGED names path and line. */
dq_status dq_documents_add(dq_docs *d, const char *path, const char *text, size_t len, dq_arena *a,
                           dq_err *err);

bool dq_documents_are_json_lines(const char *text, size_t len);

/* Whether the name stands for a file of lines; and adds one line, not blank, whose number is for
 * messages. */
bool dq_documents_has_lines(const char *path);
dq_status dq_documents_add_line(dq_docs *d, const char *path, int64_t number, const char *text,
                                size_t len, dq_arena *a, dq_err *err);

/* Text that occurs twice: copies of earlier runs are no independent samples for an error, and a
 * repetitive text teaches and tests little. */

typedef struct dq_repeats_run {
    const int32_t *ids; /* [n] */
    int64_t n;
    int32_t unit; /* runs of a unit are adjacent and compared together: a document's sequences */
} dq_repeats_run;

/* cluster[i] of run i: its unit's number, from 0 in order of appearance; units with equal runs, by
 * a 64-bit hash, share one. *n_copies (NULL allowed): units that are copies. DQ_RESOURCE. */
dq_status dq_repeats_clusters(int32_t *cluster, int64_t *n_clusters, int64_t *n_copies,
                              const dq_repeats_run *run, int64_t n, dq_err *err);

/* The same for units with a key each. *cluster is in the arena; NULL: all keys differ.
 * DQ_RESOURCE. */
dq_status dq_repeats_keys(const int32_t **cluster, const uint64_t *key, int64_t n, dq_arena *a,
                          dq_err *err);

/* Places that put units of a cluster side by side: unit i goes to at[i]; of[]: its cluster. cluster
 * NULL: each stays where it is, and `of` is unused. DQ_RESOURCE. */
dq_status dq_repeats_order(int64_t *at, int32_t *of, const int32_t *cluster, int64_t n,
                           dq_err *err);

/* The key ignores how much white space is around and between words. */
uint64_t dq_repeats_key(const char *s, size_t len);

/* Places where DQ_REPEATS_IDS ids begin, and how many of them begin ids seen nowhere before.
 * DQ_RESOURCE. */
enum { DQ_REPEATS_IDS = 16 };
dq_status dq_repeats_count(int64_t *n_places, int64_t *n_new, const dq_repeats_run *run, int64_t n,
                           dq_err *err);

/* A sketch finds parts of one text in another: the smallest hashes of its places, which are a
 * uniform sample. Of a text that shares 1 %, about 3 of 256 are found. */
enum { DQ_REPEATS_SKETCH = 256 };
typedef struct dq_repeats_sketch {
    uint64_t hash[DQ_REPEATS_SKETCH]; /* [n], rising */
    int n;
} dq_repeats_sketch;
void dq_repeats_sketch_add(dq_repeats_sketch *s, const int32_t *ids, int64_t n);
void dq_repeats_sketch_find(bool *found, const dq_repeats_sketch *s, const int32_t *ids, int64_t n);
/* 16 hex digits per hash, and back; false: invalid. */
json_t *dq_repeats_sketch_json(const dq_repeats_sketch *s);
bool dq_repeats_sketch_read(dq_repeats_sketch *s, const json_t *text);

/* Documents cut into windows that fit a model, each with its scored tokens. No window crosses the
 * end of a document. */

/* Ids 0 .. n - 1 are fed; ids first + 1 .. n - 1 + past are scored, where id n is not fed. */
typedef struct dq_window {
    const int32_t *ids; /* [n + past] */
    int64_t n, first;
    int64_t past;  /* 1: the successor of the last fed id is scored too; else 0 */
    int64_t value; /* index of its first scored id among those of all windows */
    int64_t doc;   /* document that it is cut from */
    int64_t at;    /* index of ids[0] in the document, -1: a prefix stands there */
} dq_window;

/* Ids of a document, template tokens included. */
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
    /* [n] for each window the unit of an error, from 0: its document, or the window itself in a
     * single document; copies share a number ("Repeats") */
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
 *   chunk     L tokens each, one after the other, the tail dropped, the second half of each
 *             scored; with a BOS in the template the first id of each is overwritten by it. A
 *             document alone has at least two.
 *             Source: llama.cpp tools/perplexity/perplexity.cpp perplexity (behaviour).
 *   stride    L tokens (the last one fewer), each `stride` after the one before; what no earlier
 *             window scored is scored: every id of a document but the first, once.
 *             Source: transformers docs/source/en/perplexity.md (behaviour).
 *   block     L tokens each, one after the other, the tail dropped, all scored but the first.
 *   rolling   every id of a document once, the first after BOS (or EOS), which a text may spell
 *             itself; L fed tokens where there are as many, of which the scored ones are the last
 *             and see all that fits.
 *             Source: lm-evaluation-harness lm_eval/utils.py get_rolling_token_windows (behaviour).
 *   positions one for each document of more than L tokens: its first L are fed, their successors
 *             scored. */
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

/* Scored tokens of a window, and of all windows before `i`. */
int64_t dq_window_scored(const dq_window *w);
int64_t dq_windows_values(const dq_windows *w, int64_t i);

/* Windows begin .. end - 1 have the same n, first and past. */
bool dq_windows_alike(const dq_windows *w, int64_t begin, int64_t end);

/* Hash of every window's place and ids, which depend on the tokenizer and the form of text; 64 hex
 * digits. */
dq_status dq_windows_hash(char hex[65], const dq_windows *w, dq_err *err);

/* Ids of a document, with the template unless `bos` is off; none without text. max: as in
 * dq_tokenizer_encode_first, 0: all. */
dq_status dq_windows_encode(dq_doc_ids *out, const dq_tokenizer *t, const dq_doc *d, dq_bos bos,
                            int64_t vocab, int64_t max, dq_arena *a, dq_err *err);
/* Encodes each document once, as far as a limit needs it (n_given, n_ids and n_short count these),
 * and cuts it. Documents without text, or too short, have no window; DQ_MISMATCH when that is all,
 * DQ_DAMAGED when none has text. */
dq_status dq_windows_make(dq_windows *out, const dq_tokenizer *t, const dq_docs *docs,
                          const dq_window_spec *spec, dq_arena *a, dq_err *err);

/* Scored tokens that a model could recall from its context: the last token of a bigram that
 * occurred earlier in the window and rarely in training.
 * Source: Zoology, arXiv 2312.04927, section 3; Just read twice, arXiv 2407.05483, appendix B.4. */

typedef struct dq_slices {
    const bool *hit;  /* [n_values] */
    double threshold; /* training occurrences, of 1e10 training ids, up to which a bigram is rare */
    int64_t counted;  /* ids of the corpus that stands for the training text */
    bool own;         /* that is the documents themselves, less the one at hand */
} dq_slices;

/* A bigram is frequent if the corpus has it more often than max(1, threshold * corpus / 1e10)
 * times. corpus[n_corpus]: documents that stand for the training text; NULL: those of the windows,
 * without the one at hand; a document alone then has no frequent bigrams. Template tokens are not
 * counted, but a window shows them. */
dq_status dq_slices_make(dq_slices *out, const dq_windows *w, const dq_doc_ids *corpus,
                         int64_t n_corpus, double threshold, dq_arena *a, dq_err *err);

#endif
