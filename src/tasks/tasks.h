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

/* ---- Task file ----
 * What the readers of task files have in common: lines, JSON lines, items that grow in number, and
 * choices. Readers give gold -1 where a file may keep its answers elsewhere. */

/* Items while their number is unknown. */
typedef struct dq_task_items {
    dq_item *item;
    int64_t n;
    size_t cap;
    dq_arena *a;
} dq_task_items;

/* A line of text[len] from *at on, without its U+000A. False at the end. */
bool dq_task_file_next_line(const char *text, size_t len, size_t *at, const char **line, size_t *n);
/* Spaces, tabs and line ends only. */
bool dq_task_file_is_blank(const char *line, size_t n);

/* Strings of the array `key`, through `clean` if given; at least two. */
dq_status dq_task_file_read_choices(dq_item *item, const json_t *o, const char *key,
                                    char *(*clean)(dq_arena *, const char *, dq_err *), dq_arena *a,
                                    dq_err *err);
/* What an item depends on: `cluster` of its record, a text or an integer; *out stays as it is where that is absent. */
dq_status dq_task_file_read_cluster(uint64_t *out, const json_t *o, dq_err *err);
/* The decimal number in s[len], white space around it aside, less `first`; -1 unless below n. */
int dq_task_file_index_of(const char *s, size_t len, int first, int n);

/* ---- Hellaswag ----
 * The files of HellaSwag: the official JSON lines, whose texts are cleaned, and six lines an item,
 * taken as they are. */

/* The clean-up of one field, and Python's str.capitalize with simple case mappings.
 * Source: lm-evaluation-harness lm_eval/tasks/hellaswag/utils.py (behaviour). */
char *dq_hellaswag_clean(dq_arena *a, const char *s, dq_err *err);
char *dq_hellaswag_capitalize(dq_arena *a, const char *s, dq_err *err);

/* ---- Tasks ----
 * The table of multiple-choice tasks with their file forms. To add a task: a reader in
 * tasks.c and a row in the table. */

struct dq_task_items;

typedef struct dq_task {
    const char *name;
    const char *form;   /* file forms, for messages */
    const char *metric; /* the one that publications quote, acc or acc_norm; NULL: there are none */
    bool by_norm;       /* it is acc_norm */
    /* A few-shot draw takes one example more, so that an example that is the item itself can be left
     * out: lm-evaluation-harness does so where it knows of no test split. */
    bool draws_extra;
    int first_label; /* of the file X-labels.lst beside X.jsonl; -1: answers stand with the items */
    dq_status (*load)(struct dq_task_items *l, const char *text, size_t len, int64_t limit,
                      dq_err *err);
} dq_task;

extern const dq_task dq_tasks[];
extern const int dq_tasks_n;
/* The row of that name, or NULL with DQ_USAGE listing them. */
const dq_task *dq_task_find(const char *name, dq_err *err);

/* Reads a data file of the task: at most `limit` items (0: all). text[len], the bytes of `path`, must
 * outlive the items. Answers that are not with the items are read from the file of labels, which
 * `out` then names; DQ_FILE where it is missing, DQ_DAMAGED unless it has one label per item.
 * Messages name file, item and line. */
dq_status dq_task_load(dq_items *out, const dq_task *task, const char *path, const char *text,
                       size_t len, int64_t limit, dq_arena *a, dq_err *err);
/* "X-labels.lst" of "X.jsonl"; of a path that ends otherwise, that after it. */
char *dq_task_labels_path(const char *path, dq_arena *a, dq_err *err);

/* ---- Fewshot ----
 * Solved examples before the contexts of items, drawn and put together as lm-evaluation-harness
 * does it. Source: lm_eval/api/samplers.py ContextSampler, lm_eval/api/task.py fewshot_context
 * (behaviour). */

enum { DQ_FEWSHOT_SEED = 1234 }; /* the harness's own */

/* Puts n examples of `pool` before every context of `items`: for each item in turn n are drawn (n + 1 where
 * the task draws a spare), all from one stream of `seed`. None of them has the item's own content; *n_own: items that
 * one was taken out for. Each is its context, its answer and two line ends. Texts live in the arena; `pool` may go
 * afterwards. DQ_MISMATCH when the pool is too small; names no file. */
dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err);

/* ---- ICL data ----
 * In-context learning without a model: files of labelled texts, which demonstrations in which
 * order, labels as ids, and the label that log-probabilities choose. Prompts, the choice of
 * demonstrations and constrained decoding follow long-context-icl and Parallel-Context-Windows
 * (behaviour); random numbers are dq's own. */

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

/* ---- Needle recall ----
 * Which of the numbers hidden in a long text an answer names, and what it names instead. */

/* Whether `number` (ASCII digits) stands in text[len] with no digit right before or after it. */
bool dq_needle_recall_found(const char *text, size_t len, const char *number);

/* What became of the numbers that were asked for; the first that holds, so they add up to n_requested. */
typedef struct dq_needle_recall {
    int64_t correct; /* it is found */
    int64_t other;   /* a number that was hidden but not asked for is found */
    int64_t near;    /* found is a run of as many digits, no hidden number, of which at most
                        DQ_NEAR_DIGITS differ in place, but not all */
    int64_t none;
} dq_needle_recall;

/* Adds to *sum: number[0 .. n_requested - 1] were asked for, number[n_requested .. n - 1] were hidden too. */
void dq_needle_recall_judge(dq_needle_recall *sum, const char *text, size_t len,
                            const char *const *number, int64_t n_requested, int64_t n);

/* ---- Needles ----
 * Prompts for multi-needle retrieval. A running text with sentences such as "The special magic
 * Oslo number is: 1234567" hidden in it, and after it a question about some of them, as ids of one
 * tokenizer. Sources: LargeWorldModel/LWM scripts/eval_needle_multi.py (wording); arXiv
 * 2410.05258, section 3.3 (numbers). */

enum { DQ_NEEDLE_CITIES = 100 };
extern const char *const dq_needle_city[DQ_NEEDLE_CITIES]; /* all different */
/* How prompts read, for reports. */
extern const char dq_needle_form[];

enum {
    DQ_NEEDLE_NEW = 12, /* ids that an answer to one city may take */
    DQ_NEEDLE_DIGITS = 7
};

/* What prompts of one kind have in common. */
typedef struct dq_needle_cell {
    int64_t length; /* ids of the prompt and of the room for its answers */
    int depth;      /* of needle 0, percent */
    int n, r;       /* needles, and how many of them are asked for: needles 0 .. r - 1 */
} dq_needle_cell;

/* The text that needles are hidden in, read as a ring. */
typedef struct dq_needle_filler {
    const int32_t *ids; /* [n] */
    const bool *ends;   /* [n] its text ends in . ! ? or a newline */
    int64_t n;
    const int64_t *start; /* [n_starts] ids that follow such an end */
    int64_t n_starts;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} dq_needle_filler;
/* DQ_DAMAGED: no ids, or no end of a sentence among them. DQ_MISMATCH: an id is not below vocab. */
dq_status dq_needle_filler_read(dq_needle_filler *out, const dq_tokenizer *t, const char *text,
                                size_t len, int64_t vocab, dq_arena *a, dq_err *err);

/* Ids of filler that are left: length - template - sentences len[n] - question - room for answers. */
int64_t dq_needle_left(const dq_needle_cell *cell, int n_bos, const int64_t *len, int64_t n_query,
                       int64_t budget);
/* round(depth / 100 * n_filler), halves upwards. */
int64_t dq_needle_anchor(int depth, int64_t n_filler);
/* anchor[n] = filler ids before each needle, 0 .. n_filler. Those strictly inside move left to the nearest end
 * of a sentence, or to 0, in the filler that begins at id `start`. order[n]: the needles as they follow each
 * other; among equal places needle 0 is the first at depth 0 and the last at depth 100, else the smaller tie
 * comes first, then the smaller number. */
void dq_needle_place(int64_t *anchor, int *order, const uint64_t *tie, int n, int depth,
                     const dq_needle_filler *f, int64_t start, int64_t n_filler);

/* The ids in answer (and with n in front, in the prompt) that are asked for one city. */
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

/* What all prompts of a tokenizer need; everything is borrowed. */
typedef struct dq_needle_maker {
    const dq_tokenizer *t;
    const dq_needle_filler *filler;
    const int32_t *bos; /* [n_bos] template ids */
    int n_bos;
    int64_t vocab;
    bool
        depth_first; /* the needle at the cell's depth is the first that is asked for; else the order is drawn */
    dq_arena *a; /* prompts live here */
} dq_needle_maker;
/* DQ_MISMATCH: needles and question leave no room for filler; the message says how many tokens they take. */
dq_status dq_needle_make(dq_needle_prompt *out, const dq_needle_maker *m,
                         const dq_needle_cell *cell, uint64_t seed, int64_t sample, dq_err *err);

/* Classes of tokens for sums of attention. */
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

/* Adds to *sum what became of p->answer[k], given text[len] where its number should stand. */
dq_status dq_needle_judge_text(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                               const char *text, size_t len, dq_err *err);
/* The same by the most likely ids top1[to - from] in place of the number's ids: correct where all are equal, else
 * as their text reads. */
dq_status dq_needle_judge_ids(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                              const dq_tokenizer *t, const int32_t *top1, dq_err *err);

/* ---- RULER ----
 * Prompts for long contexts that a program makes up: needles with keys, chains of variables, words
 * that a list has most often. As arXiv 2404.06654 (RULER) builds them, in words of its own;
 * MODEL.md names what differs. */

enum { DQ_RULER_ANSWERS = 16 }; /* of a prompt, at most */

/* A text of the user's: what needles are hidden in, and where words come from. All of it is borrowed. */
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

/* A prompt in the making, as its task writes it. */
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
/* A task is one row and one function. */
typedef struct dq_ruler_task {
    const char *name;
    bool takes_text;
    bool by_words;   /* units are different words of the text, which has only so many */
    int64_t max_new; /* ids that an answer may have */
    int64_t least;   /* units */
    /* Writes prompt, question and answers; `units` is what makes it longer: words of text, lines, different words. */
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

/* What all prompts of a task and a tokenizer need; everything is borrowed. */
typedef struct dq_ruler_maker {
    const dq_ruler_task *task;
    const dq_ruler_text *text; /* NULL where the task takes none */
    const dq_tokenizer *t;
    dq_bos bos;
    int64_t vocab;
    dq_arena *a; /* prompts live here */
} dq_ruler_maker;
/* The prompt with the most units that fit. It depends on task, text, tokenizer, length, seed and sample alone.
 * DQ_MISMATCH: none fits, or the text has fewer words than would. */
dq_status dq_ruler_make(dq_ruler_prompt *out, const dq_ruler_maker *m, int64_t length,
                        uint64_t seed, int64_t sample, dq_err *err);

/* The share of the answers that stand in text[len], whatever the case of letters.
 * Source: RULER scripts/eval/synthetic/constants.py, string_match_all. */
double dq_ruler_found(const char *text, size_t len, const char *const *answer, int n);

#endif
