/* Files of items, and what makes its own: needles, RULER, in-context learning.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TASKS_H
#define DQ_TASKS_H

#include "base/base.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/items.h"
#include "tokenizer/tokenizer.h"

/* What readers of data files share. */

/* The line is without its newline; false at the end. */
bool dq_task_file_next_line(const char *text, size_t len, size_t *at, const char **line, size_t *n);
bool dq_task_file_is_blank(const char *line, size_t n);
int64_t dq_task_file_count(const char *text, size_t len); /* lines that are not blank */
/* Gives the object of each line that is not blank, at most `limit` (0: all), to a function; `what`
 * names one in messages, which begin with "line N: ". */
typedef dq_status dq_task_take(void *arg, json_t *object, int64_t line, dq_err *err);
dq_status dq_task_file_objects(const char *text, size_t len, const char *what, int64_t limit,
                               dq_task_take *take, void *arg, dq_err *err);
/* Replaces the bytes by well-formed UTF-8 without a mark. *n_bad: what became U+FFFD; *first_bad:
 * the first, or -1. */
dq_status dq_task_file_text(const char **text, size_t *len, int64_t *n_bad, int64_t *first_bad,
                            dq_arena *a, dq_err *err);

/* The record's `cluster`, a text or an integer; absent: *out is unchanged. */
dq_status dq_task_file_read_cluster(uint64_t *out, const json_t *o, dq_err *err);

/* Tasks of files, in the terms of lm-evaluation-harness; docs/eval-tasks.md lists the members. The
 * program's own stand in tasks/: a new one is a file there and a name in CMakeLists.txt. */

/* Keys of a record after templates have added theirs. */
typedef enum dq_task_member {
    DQ_TASK_TEXT,   /* a text, or a list of a text for each choice */
    DQ_TASK_CHOICE, /* a list of texts or labelled choices; one text where each has a context */
    DQ_TASK_ANSWER,
    DQ_TASK_TARGET, /* of choices the label or the number of one, else what an example shows */
    DQ_TASK_REFERENCE,
    DQ_TASK_QUERY,
    DQ_TASK_PASSAGE, /* what other items depend on as well */
    DQ_TASK_DELIMITER,
    DQ_TASK_METRIC,
    DQ_TASK_MEMBERS
} dq_task_member;

typedef struct dq_task {
    const char *name;
    const char *form;   /* of data files, for messages */
    bool choices;       /* else questions, which a model answers in free text */
    bool answered;      /* questions; else prompts, which nothing here judges */
    const char *metric; /* the one that publications quote, acc or acc_norm; NULL: there are none */
    bool by_norm;       /* it is acc_norm */
    int rule;           /* of questions; a dq_answer_rule, or by the answer */
    /* One more example is drawn, so that the item itself can be left out: lm-evaluation-harness
     * does so without a test split. */
    bool draws_extra;
    int first_label; /* of the file X-labels.lst beside X.jsonl; -1: answers stand with the items */
    bool six_lines;  /* a data file that does not begin with "{" has six lines an item */
    const char *delimiter;
    const char *key[DQ_TASK_MEMBERS];      /* NULL: the task has no such member */
    const struct dq_record_template *made; /* [n_made] */
    int n_made;
    const char *path, *text; /* of the user's file, [len]; NULL: the program's own */
    size_t len;
} dq_task;

/* Names of the program's own, ended by NULL. */
extern const char *const dq_task_choices[], *const dq_task_questions[];
/* Whether a name is the path of a task file: it has a "/" or ends in .json. */
bool dq_task_is_file(const char *name);
/* The program's own task of that name, or that of a file; it lives in the arena, the path is
 * borrowed. NULL: DQ_USAGE lists the names of tasks of choices; DQ_DAMAGED names file and
 * member. */
const dq_task *dq_task_find(const char *name, dq_arena *a, dq_err *err);
/* Reads at most `limit` items (0: all) of a task with choices from text[len], the bytes of `path`.
 * Separate answers come from the labels file, which `out` then names: DQ_FILE: it is missing;
 * DQ_DAMAGED: not one label per item. Messages name file, item and line. */
dq_status dq_task_load(dq_items *out, const dq_task *task, const char *path, const char *text,
                       size_t len, int64_t limit, dq_arena *a, dq_err *err);
/* "X-labels.lst" for "X.jsonl"; for another ending it is appended. */
char *dq_task_labels_path(const char *path, dq_arena *a, dq_err *err);

/* Few-shot examples before contexts, as in lm-evaluation-harness.
 * Source: lm_eval/api/samplers.py ContextSampler, lm_eval/api/task.py fewshot_context
 * (behaviour). */

enum { DQ_FEWSHOT_SEED = 1234 }; /* the harness's own */

/* Puts n examples of `pool` before every context of `items`: for each item in turn n are drawn (n +
 * 1 where the task draws a spare), all from one stream of `seed`. None of them has the item's own
 * content; *n_own: items that one was taken out for. Each is its context, its answer and two line
 * ends. Texts live in the arena; `pool` may go afterwards. DQ_MISMATCH when the pool is too small;
 * names no file. */
dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err);

#endif
