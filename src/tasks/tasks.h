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
/* The decimal number in s[len] minus `first`, white space aside; -1 unless in 0 .. n - 1. */
int dq_task_file_index_of(const char *s, size_t len, int first, int n);

/* Cleans one field.
 * Source: lm-evaluation-harness lm_eval/tasks/hellaswag/utils.py (behaviour). */
char *dq_hellaswag_clean(dq_arena *a, const char *s, dq_err *err);

/* Tasks of files, in the terms of lm-evaluation-harness; docs/eval-tasks.md lists the members. The
 * program's own stand in tasks/: a new one is a file there and a name in CMakeLists.txt. */

/* Keys of a record after dq_task_make. */
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
    int rule;           /* of questions: dq_task_rule knows it */
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
/* Adds what templates make to a record. DQ_DAMAGED: "key "X" is missing" and so on, or what a
 * template says. */
dq_status dq_task_make(const dq_task *t, json_t *record, dq_err *err);

/* Gives the records of a data file to a function, one after another. */
typedef struct dq_task_reader {
    const dq_task *task;
    dq_task_take *take; /* line: of the file, from 1; 0 where the file is one list */
    void *arg;
    int64_t n, limit; /* taken; at most, 0: all */
} dq_task_reader;
/* text[len], which dq_task_file_text has made, is JSON lines; of questions also one JSON list, one
 * JSON object of records by their ids, or ASDiv's XML. Messages name line or item. */
dq_status dq_task_records(dq_task_reader *r, const char *text, size_t len, dq_err *err);

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

/* Draws n examples for one item after another, all from one stream; none of them has the item's own
 * content: with a spare, another one stays; else, or if too few do, n are drawn anew from the
 * others. */
typedef struct dq_shots_draw {
    const uint64_t *content; /* [n_all] of what may be drawn */
    int64_t n_all, n, spare; /* n + spare <= n_all */
    bool first;              /* the first ones are taken, none is drawn */
    int64_t *at, *other;     /* at: [n], what was drawn; other: for own use */
    int64_t n_own;           /* items that an example was taken out for */
    dq_random_mt random;
} dq_shots_draw;
dq_status dq_shots_begin(dq_shots_draw *d, uint64_t seed, dq_arena *a, dq_err *err);
/* *left below n: only so many differ from the item. */
dq_status dq_shots_next(dq_shots_draw *d, uint64_t content, int64_t *left, dq_err *err);

/* Puts n examples of `pool` before every context of `items`: for each item in turn n are drawn (n +
 * 1 where the task draws a spare), all from one stream of `seed`. None of them has the item's own
 * content; *n_own: items that one was taken out for. Each is its context, its answer and two line
 * ends. Texts live in the arena; `pool` may go afterwards. DQ_MISMATCH when the pool is too small;
 * names no file. */
dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err);

/* In-context learning without the model: labelled data sets, drawing and order of demonstrations,
 * labels as ids, and the choice by log-probabilities. Prompts, demonstrations and constrained
 * decoding follow long-context-icl and Parallel-Context-Windows (behaviour); random numbers are
 * dq's own. */

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

/* text NULL: there is no such file. */
typedef struct dq_icl_file {
    const char *path, *text;
    size_t len;
} dq_icl_file;
/* Demonstrations come from the other file, or from that of the queries where there is none.
 * Messages name the file and the line (in JSON: the entry). */
dq_status dq_icl_read(dq_icl_data *out, const dq_icl_task *task, const dq_icl_file *queries,
                      const dq_icl_file *demos, dq_arena *a, dq_err *err);

typedef enum dq_icl_order {
    DQ_ICL_RANDOM,   /* as drawn */
    DQ_ICL_CLASS,    /* label by label */
    DQ_ICL_ALTERNATE /* one of each label in turn, until all have had theirs */
} dq_icl_order;
enum { DQ_ICL_ORDERS = 3 };
extern const char *const dq_icl_order_name[DQ_ICL_ORDERS];

/* A permutation of 0 .. n - 1: Fisher-Yates from the top with SplitMix64 and rejection, started
 * from (seed, stream); stream 0 draws the queries, 1 + r the demonstrations of run r, and 2^32 k +
 * n those that order k of n demonstrations begins with. */
void dq_icl_permute(int32_t *out, int64_t n, uint64_t seed, uint64_t stream);
/* Orders demo[n], indices into the pool; stable among equal labels. */
dq_status dq_icl_arrange(int32_t *demo, int64_t n, const dq_icl_pool *pool, int n_labels,
                         dq_icl_order order, dq_err *err);

typedef struct dq_icl_label {
    const char *text;   /* " " and the name */
    const int32_t *ids; /* [n_cont] */
    int64_t n;          /* ids of the label itself */
    int64_t n_cont;     /* n, or n + 1: a label that another one begins with ends with a newline */
    int64_t at;         /* of its first id among those of all labels */
} dq_icl_label;
/* Ids of " name", or of "name" where the tokenizer adds the space, without template tokens. No
 * label is a prefix of another. */
dq_status dq_icl_labels(dq_icl_label **out, const char *const *name, int n, const dq_tokenizer *t,
                        int64_t vocab, dq_arena *a, dq_err *err);

/* Greedy decoding where only ids that go on with some label are allowed, from logp[label.at + i],
 * the log-probability of id i of a label after the ids before it. alive[n] is for the function's
 * own use.
 *
 * Why this is the same: at a node of the tree of labels, decoding takes the allowed id with the
 * largest logit. All labels through the node begin with the same tokens, so what was computed for
 * them at this place has one context and one sum of exponentials, and log-probabilities are the
 * logits minus one number: their order is that of the logits. From the root on, both therefore take
 * the same child; among equals, the lowest id. Cutting labels to unique beginnings changes nothing,
 * for after these there is one child only. */
int dq_icl_walk(const dq_icl_label *label, int n, const double *logp, int *alive);
/* The largest log-likelihood over n tokens, without the newline; of equals, the first. */
int dq_icl_likeliest(const dq_icl_label *label, int n, const double *logp);

/* Which hidden numbers an answer names, and what else it names. */

/* Whether `number` (ASCII digits) is a whole run of digits of text[len]. */
bool dq_needle_recall_found(const char *text, size_t len, const char *number);

/* Each requested number counts under the first that holds, so that they add up to n_requested. */
typedef struct dq_needle_recall {
    int64_t correct; /* it is found */
    int64_t other;   /* a number that was hidden but not asked for is found */
    int64_t near;    /* found is a run of as many digits, no hidden number, of which at most
                        DQ_NEAR_DIGITS differ in place, but not all */
    int64_t none;
} dq_needle_recall;

/* Adds to *sum: number[0 .. n_requested - 1] were requested, the others only hidden. */
void dq_needle_recall_judge(dq_needle_recall *sum, const char *text, size_t len,
                            const char *const *number, int64_t n_requested, int64_t n);

/* ---- Needles ----
 * Prompts for multi-needle retrieval. A running text with sentences such as "The special magic
 * Oslo number is: 1234567" hidden in it, and after it a question about some of them, as ids of one
 * tokenizer. Sources: LargeWorldModel/LWM scripts/eval_needle_multi.py (wording); arXiv
 * 2410.05258, section 3.3 (numbers). */

enum { DQ_NEEDLE_CITIES = 100 };
extern const char *const dq_needle_city[DQ_NEEDLE_CITIES]; /* all different */
/* The wording of prompts, for reports. */
extern const char dq_needle_form[];

enum {
    DQ_NEEDLE_NEW = 12, /* ids that an answer to one city may take */
    DQ_NEEDLE_DIGITS = 7
};

typedef struct dq_needle_cell {
    int64_t length; /* ids of the prompt and of the room for its answers */
    int depth;      /* of needle 0, percent */
    int n, r;       /* needles, and how many of them are asked for: needles 0 .. r - 1 */
} dq_needle_cell;

/* The text around needles, read as a ring. */
typedef struct dq_needle_filler {
    const int32_t *ids; /* [n] */
    const bool *ends;   /* [n] its text ends in . ! ? or a newline */
    int64_t n;
    const int64_t *start; /* [n_starts] ids that follow such an end */
    int64_t n_starts;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} dq_needle_filler;
/* DQ_DAMAGED: no ids, or no end of a sentence; DQ_MISMATCH: an id is not below vocab. */
dq_status dq_needle_filler_read(dq_needle_filler *out, const dq_tokenizer *t, const char *text,
                                size_t len, int64_t vocab, dq_arena *a, dq_err *err);

/* Tokens left for filler: length - template - sentences len[n] - question - answers. */
int64_t dq_needle_left(const dq_needle_cell *cell, int n_bos, const int64_t *len, int64_t n_query,
                       int64_t budget);
/* round(depth / 100 * n_filler), halves up. */
int64_t dq_needle_anchor(int depth, int64_t n_filler);
/* anchor[n] = filler ids before each needle, 0 .. n_filler. Those strictly inside move left to the
 * nearest end of a sentence, or to 0, in the filler that begins at id `start`. order[n]: the
 * needles as they follow each other; among equal places needle 0 is the first at depth 0 and the
 * last at depth 100, else the smaller tie comes first, then the smaller number. */
void dq_needle_place(int64_t *anchor, int *order, const uint64_t *tie, int n, int depth,
                     const dq_needle_filler *f, int64_t start, int64_t n_filler);

/* The ids in `answer` (n further in the prompt) for one city. */
typedef struct dq_needle_answer {
    int needle;
    int64_t begin;    /* first id after the text that asks */
    int64_t from, to; /* ids of the number: from the first one with a digit */
} dq_needle_answer;

typedef struct dq_needle_prompt {
    /* [n + n_answer]: template, filler and needles, question; then the answers */
    const int32_t *ids;
    int64_t n; /* length - budget */
    int64_t n_answer;
    int64_t budget;   /* room for answers: DQ_NEEDLE_NEW ids or more a city, and the text between */
    int64_t question; /* index of its first id */
    int n_bos;        /* template ids in front */
    int64_t filler;   /* ids of it */
    int64_t start;    /* where in the filler it begins */
    int needles, requested;
    const char *const *city;        /* [needles] */
    const char *const *number;      /* [needles] decimal digits */
    const int64_t *at, *len;        /* [needles] ids of its sentence */
    const dq_needle_answer *answer; /* [requested], in the order of the question */
} dq_needle_prompt;

/* Everything is borrowed. */
typedef struct dq_needle_maker {
    const dq_tokenizer *t;
    const dq_needle_filler *filler;
    const int32_t *bos; /* [n_bos] template ids */
    int n_bos;
    int64_t vocab;
    bool depth_first; /* the needle at the cell's depth is asked for first; else drawn */
    dq_arena *a;      /* prompts live here */
} dq_needle_maker;
/* DQ_MISMATCH: needles and question leave no space for filler; the message gives their tokens. */
dq_status dq_needle_make(dq_needle_prompt *out, const dq_needle_maker *m,
                         const dq_needle_cell *cell, uint64_t seed, int64_t sample, dq_err *err);

/* Classes of tokens, for sums of attention. */
typedef enum dq_needle_class {
    DQ_NEEDLE_BOS,
    DQ_NEEDLE_ANSWER,     /* the sentence about the city that the question ends with asking for */
    DQ_NEEDLE_DISTRACTOR, /* all other needles */
    DQ_NEEDLE_NOISE,      /* filler */
    DQ_NEEDLE_QUERY,
    DQ_NEEDLE_CLASSES
} dq_needle_class;
extern const char *const dq_needle_class_name[DQ_NEEDLE_CLASSES];
/* label[p->n] */
void dq_needle_labels(uint8_t *label, const dq_needle_prompt *p);

/* Judges text[len] as the number of p->answer[k] and adds to *sum. */
dq_status dq_needle_judge_text(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                               const char *text, size_t len, dq_err *err);
/* The same for the most likely ids top1[to - from]: correct where all equal the number's, else
 * judged as text. */
dq_status dq_needle_judge_ids(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                              const dq_tokenizer *t, const int32_t *top1, dq_err *err);

/* Synthetic prompts for long contexts, built as in arXiv 2404.06654 (RULER) with dq's own words;
 * docs/math/text.md names the differences. */

enum { DQ_RULER_ANSWERS = 16 }; /* of a prompt, at most */

/* The user's text, for filler and words; borrowed. */
typedef struct dq_ruler_piece {
    const char *s; /* [len], no white space */
    int32_t len;
    bool ends; /* a sentence: in . ! or ? */
} dq_ruler_piece;
typedef struct dq_ruler_text {
    const dq_ruler_piece *piece; /* [n], read as a ring */
    int64_t n;
    const int64_t *start; /* [n_starts] pieces that begin a sentence */
    int64_t n_starts;
    const char *const *word; /* [n_words] all different, 3 to 12 letters a to z, as they come */
    int64_t n_words;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} dq_ruler_text;
/* DQ_DAMAGED: no words, or no end of a sentence. */
dq_status dq_ruler_text_read(dq_ruler_text *out, const char *text, size_t len, dq_arena *a,
                             dq_err *err);

typedef struct dq_ruler_draft {
    const struct dq_ruler_task *task;
    const dq_ruler_text *text; /* NULL: the task needs none */
    int64_t length;            /* ids of the prompt and of the room for its answer */
    dq_random random;
    dq_arena *a; /* for as long as the draft */
    dq_err *err; /* of the first failure */
    dq_strbuf prompt;
    size_t question; /* bytes before the question */
    const char *answer[DQ_RULER_ANSWERS];
    int n_answers;
} dq_ruler_draft;
typedef struct dq_ruler_task {
    const char *name;
    bool takes_text;
    bool by_words;   /* units are different words of the text, which has only so many */
    int64_t max_new; /* ids that an answer may have */
    int64_t least;   /* units */
    /* `units` makes the prompt longer: words of text, lines, or different words. */
    void (*write)(dq_ruler_draft *d, int64_t units);
    int keys, values, requested; /* of needles: keys, values of each, keys that are requested */
} dq_ruler_task;
extern const dq_ruler_task dq_ruler_tasks[];
extern const int dq_ruler_n_tasks;
const dq_ruler_task *dq_ruler_find(const char *name); /* NULL: none has that name */

typedef struct dq_ruler_prompt {
    const int32_t *ids; /* [n], template included; n + max_new is at most the length asked for */
    int64_t n;
    int64_t question; /* ids 0 .. question - 1 are those of the text before the question alone */
    const char *const *answer; /* [n_answers] */
    int n_answers;
    int64_t units;
} dq_ruler_prompt;

/* Everything is borrowed. */
typedef struct dq_ruler_maker {
    const dq_ruler_task *task;
    const dq_ruler_text *text; /* NULL where the task takes none */
    const dq_tokenizer *t;
    dq_bos bos;
    int64_t vocab;
    dq_arena *a; /* prompts live here */
} dq_ruler_maker;
/* The prompt with the most units that fit; it depends on task, text, tokenizer, length, seed and
 * sample alone. DQ_MISMATCH: none fits, or the text has too few words. */
dq_status dq_ruler_make(dq_ruler_prompt *out, const dq_ruler_maker *m, int64_t length,
                        uint64_t seed, int64_t sample, dq_err *err);

/* The share of answers found in text[len], ignoring case.
 * Source: RULER scripts/eval/synthetic/constants.py, string_match_all. */
double dq_ruler_found(const char *text, size_t len, const char *const *answer, int n);

#endif
