/* icl_data: in-context learning without a model: files of labelled texts, which demonstrations in which order, labels
 * as ids, and the label that log-probabilities choose.
 * Prompts, the choice of demonstrations and constrained decoding follow long-context-icl and
 * Parallel-Context-Windows (behaviour); random numbers are dq's own.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ICL_DATA_H
#define DQ_ICL_DATA_H

#include "base/base.h"
#include "tokenizer/tokenizer.h"

typedef struct dq_icl_example {
    const char *text; /* [len], UTF-8, not empty */
    size_t len;
    int label;
} dq_icl_example;

typedef struct dq_icl_pool {
    dq_icl_example *ex; /* [n], in the order of the file */
    int64_t n;
} dq_icl_pool;

/* Labels are sorted by the bytes of their names. */
typedef struct dq_icl_data {
    dq_icl_pool demos, queries;
    int64_t
        n_queries_in_demos; /* examples that are left out of demos: they have the text of a query */
    const char *const *label;
    int n_labels;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 in the queries' file that became U+FFFD */
    int64_t n_bad_demos, first_bad_demos;
} dq_icl_data;

/* A data file that is read, and where its examples and labels go. */
typedef struct dq_icl_reader dq_icl_reader;
typedef struct dq_icl_task {
    const char *name, *form;         /* form: of its files, for messages */
    const char *x_prefix, *y_prefix; /* of a text and of its label */
    bool one_file;                   /* a file may hold demonstrations and queries */
    dq_status (*read)(dq_icl_reader *r, const char *text, size_t len, dq_err *err);
} dq_icl_task;
extern const dq_icl_task dq_icl_tasks[];
extern const int dq_icl_n_tasks;
const dq_icl_task *dq_icl_task_find(const char *name); /* NULL: none */

/* A file with its name. text NULL: there is none. */
typedef struct dq_icl_file {
    const char *path, *text;
    size_t len;
} dq_icl_file;
/* Queries from one file, demonstrations from the other, or from the same where there is no other. Messages
 * name the file and the line (in JSON: the entry). */
dq_status dq_icl_read(dq_icl_data *out, const dq_icl_task *task, const dq_icl_file *queries,
                      const dq_icl_file *demos, dq_arena *a, dq_err *err);

/* ---- Which demonstrations, in which order ---- */

typedef enum dq_icl_order {
    DQ_ICL_RANDOM,   /* as drawn */
    DQ_ICL_CLASS,    /* label by label */
    DQ_ICL_ALTERNATE /* one of each label in turn, until all have had theirs */
} dq_icl_order;
enum { DQ_ICL_ORDERS = 3 };
extern const char *const dq_icl_order_name[DQ_ICL_ORDERS];

/* A permutation of 0 .. n - 1: Fisher-Yates from the top with SplitMix64 and rejection, started from
 * (seed, stream); stream 0 draws the queries, 1 + r the demonstrations of run r, and 2^32 k + n those that
 * order k of n demonstrations begins with. */
void dq_icl_permute(int32_t *out, int64_t n, uint64_t seed, uint64_t stream);
/* Brings demo[n], indices into the pool, into an order; equal labels stay as they were. */
dq_status dq_icl_arrange(int32_t *demo, int64_t n, const dq_icl_pool *pool, int n_labels,
                         dq_icl_order order, dq_err *err);

/* ---- Labels as ids ---- */

typedef struct dq_icl_label {
    const char *text;   /* " " and the name */
    const int32_t *ids; /* [n_cont] */
    int64_t n;          /* ids of the label itself */
    int64_t n_cont;     /* n, or n + 1: a label that another one begins with ends with a newline */
    int64_t at;         /* of its first id among those of all labels */
} dq_icl_label;
/* The ids of " name", or of "name" where the tokenizer itself puts the space, without template tokens. No
 * label's ids begin with all those of another. */
dq_status dq_icl_labels(dq_icl_label **out, const char *const *name, int n, const dq_tokenizer *t,
                        int64_t vocab, dq_arena *a, dq_err *err);

/* Greedy decoding where only ids that go on with some label are allowed, from logp[label.at + i], the
 * log-probability of id i of a label after the ids before it. alive[n] is for the function's own use.
 *
 * Why this is the same: at a node of the tree of labels, decoding takes the allowed id with the largest
 * logit. All labels through the node begin with the same tokens, so what was computed for them at this place
 * has one context and one sum of exponentials, and log-probabilities are the logits minus one number:
 * their order is that of the logits. From the root on, both therefore take the same child; among equals,
 * the lowest id. Cutting labels to unique beginnings changes nothing, for after these there is one
 * child only. */
int dq_icl_walk(const dq_icl_label *label, int n, const double *logp, int *alive);
/* The label with the largest log-likelihood of its n tokens, without the newline; the first among equals. */
int dq_icl_likeliest(const dq_icl_label *label, int n, const double *logp);

#endif
