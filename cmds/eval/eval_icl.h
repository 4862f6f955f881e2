/* eval_icl: in-context learning on the command line of dq eval and in what it hands out.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_ICL_H
#define DQ_EVAL_ICL_H

#include "cmds/cli/options.h"
#include "cmds/cli/progress.h"
#include "cmds/eval/eval_report.h"
#include "eval/kind_icl.h"

enum { DQ_EVAL_ICL_SOURCES = 16 };

typedef struct dq_eval_icl {
    dq_list demos;
    const char *shots, *order;
    int64_t runs, orders, queries; /* 0: not given */
    /* what they mean */
    dq_icl_order orders_of[DQ_ICL_ORDERS];
    int n_orders_of;
    dq_icl_settings common;
    dq_icl_settings setting[DQ_EVAL_ICL_SOURCES]; /* [n] */
    char sha[DQ_EVAL_ICL_SOURCES][65];            /* of the files of demonstrations; "": none */
    int n;
} dq_eval_icl;

/* Rows for the option table. */
#define DQ_EVAL_ICL_OPTIONS(o)                                                                     \
    {.help = "in-context learning (--task trec, trec_fine, banking77, clinic150)"},                \
        {.name = "demos",                                                                          \
         .kind = DQ_OPT_LIST,                                                                      \
         .to = &(o).demos,                                                                         \
         .value = "FILE",                                                                          \
         .help = "training file that demonstrations are drawn from, given as --data is; "          \
                 "clinic150 needs none, its --data has them"},                                     \
        {.name = "shots",                                                                          \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).shots,                                                                         \
         .value = "LIST",                                                                          \
         .help =                                                                                   \
             "demonstrations in a prompt (default 1,10,25,50,100,200,400,... as many as fit)"},    \
        {.name = "runs",                                                                           \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).runs,                                                                          \
         .min = 1,                                                                                 \
         .max = 1e6,                                                                               \
         .value = "N",                                                                             \
         .help = "permutations of the training set, of which each run takes the first (default "   \
                 "10)"},                                                                           \
        {.name = "order",                                                                          \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).order,                                                                         \
         .value = "LIST",                                                                          \
         .help = "random (default), class (sorted by label) or alternate (labels in turn): "       \
                 "orders of the "                                                                  \
                 "same demonstrations, a row each"},                                               \
        {.name = "orders",                                                                         \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).orders,                                                                        \
         .min = 2,                                                                                 \
         .max = 1e6,                                                                               \
         .value = "N",                                                                             \
         .help = "also score run 0's demonstrations in N orders: the margin between them"},        \
    {                                                                                              \
        .name = "queries", .kind = DQ_OPT_INT, .to = &(o).queries, .min = 1, .max = 1e9,           \
        .value = "N", .help = "test examples, drawn once (default 250)"                            \
    }

/* What the options mean; seed: that of --seed, -1: not given. */
dq_status dq_eval_icl_read(dq_eval_icl *o, int64_t seed, dq_err *err);
/* The sources of one task, one per order, into source[*n], of at most `cap`; demos: path or NULL. */
dq_status dq_eval_icl_add(dq_eval_icl *o, const dq_icl_task *task, const char *path,
                          const char *demos, dq_eval_source *source, int *n, int cap, dq_arena *a,
                          dq_err *err);
/* DQ_USAGE where an option was given that no task takes. */
dq_status dq_eval_icl_check(const dq_eval_icl *o, dq_err *err);

/* Before a source is loaded: reads its file of demonstrations, if it has one. */
dq_status dq_eval_icl_demos(dq_eval_icl *o, const dq_eval_source *s, json_t *inputs, dq_arena *a,
                            dq_err *err);
/* Source i is an earlier one in another order, whose data it now has: there is nothing to load. */
bool dq_eval_icl_again(dq_eval_icl *o, dq_eval_source *source, int i);
/* What dropped out and what will be dear. */
void dq_eval_icl_warn(dq_talk *t, const dq_eval *e, const char *const *names);
/* A line for the key of a resumed run: all settings. */
int dq_eval_icl_key(char *line, size_t cap, const dq_eval_icl *o, const dq_eval_source *s);
void dq_eval_icl_settings(json_t *settings, const dq_eval_icl *o);
/* Member "icl" of a row. */
dq_status dq_eval_icl_json(json_t *row, const dq_eval_view *v, int index, dq_err *err);
/* Of a line about one item: its block, the query's label and what each metric picked. */
void dq_eval_icl_keys(json_t *o, const dq_eval *e, const dq_eval_row *row, int64_t item);
/* Accuracy by shots, a line per row; nothing where no row is of this kind. */
dq_status dq_eval_icl_table(const dq_eval_view *v, dq_err *err);

#endif
