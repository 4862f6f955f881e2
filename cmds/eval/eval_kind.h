/* eval_kind: what a kind of evaluation brings to dq eval. Every kind is one row of words and functions, in
 * cmd_NAME.c; all other files here go through the rows and know no kind. What is NULL or 0 in a row means:
 * nothing of that sort.
 * `own` is what the options of a kind mean: size bytes of the run's arena, which only its own file looks into.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_KIND_H
#define DQ_EVAL_KIND_H

#include "cmds/eval/eval_field.h"
#include "cmds/eval/eval_view.h"
#include "record/record.h"
#include "settings/options.h"

struct cmd_eval_options;
struct cmd_eval_files;

/* An option of a kind: its row of --help, and where in `own` its value goes; opt.to is not used. */
typedef struct cmd_eval_kind_option {
    dq_opt opt;
    size_t at;
} cmd_eval_kind_option;

/* Names of what the run reads; a place may hold NULL. */
typedef struct cmd_eval_inputs {
    const char **path;
    int n;
    size_t capacity;
} cmd_eval_inputs;
/* NULL is fine. The text is borrowed, the list lives in the arena. */
dq_status cmd_eval_inputs_add(cmd_eval_inputs *in, const char *path, dq_arena *a, dq_err *err);

enum { DQ_EVAL_KIND_ROWS = 2, DQ_EVAL_KIND_CSV_COLUMNS = 320 };

/* What a kind has on the command line; eval_options.c says in which order the functions are called. */
typedef struct cmd_eval_kind_cli {
    size_t size;
    void (*begin)(void *own); /* sets what is not 0 where nothing is given */
    /* Rows of options, the last one empty: those that say what is scored, and those that stand under a heading
     * of their own. */
    const cmd_eval_kind_option *scored, *options;
    const char *tasks_help;            /* lines of the help of --task */
    const char *has;                   /* what its tasks have, "choices" */
    const char *tasks;                 /* its tasks in a sentence, "tasks with choices" */
    const char *(*task)(int i);        /* the name of its i-th task; NULL: there are no more */
    const char *(*form)(const char *); /* what the file of that task is, for messages */
    bool (*fileless)(const char *);    /* whether that task has no file; NULL: none has */
    bool draws;                        /* something with --seed */
    bool lengths;                      /* its prompts have --lengths */
    bool own_examples; /* its sources take --num-fewshot and --fewshot-data themselves */
    const char
        *reserves; /* what positions are kept free for where a context is cut, for a warning */
    /* Words as settings. Sees the options of o, but no sources yet. */
    dq_status (*read)(void *own, const struct cmd_eval_options *o, dq_arena *a, dq_err *err);
    /* Adds the sources of a task (cmd_eval_add_source), or of options that are no task. */
    dq_status (*choose)(void *own, struct cmd_eval_options *o, const char *task, const char *path,
                        dq_arena *a, dq_err *err);
    dq_status (*choose_more)(void *own, struct cmd_eval_options *o, dq_err *err);
    /* --num-fewshot for a source that is answered; the examples come from the file at path. */
    dq_status (*examples)(void *own, const struct cmd_eval_options *o, dq_eval_source *source,
                          const char *path, dq_err *err);
    /* When all sources are chosen: DQ_USAGE for options that say nothing here. */
    dq_status (*check)(const void *own, const struct cmd_eval_options *o, dq_err *err);
    /* Adds the files that are read and that no option names. */
    dq_status (*reads)(cmd_eval_inputs *in, const void *own, const struct cmd_eval_options *o,
                       dq_arena *a, dq_err *err);
    /* A file of its own: the option that names it, and the name (NULL: not given). */
    const char *file_option;
    const char *(*file)(const void *own);
} cmd_eval_kind_cli;

/* What its results are made of, besides the scores that all kinds have. */
typedef struct cmd_eval_kind_output {
    const cmd_eval_field *fields; /* numbers with names; NULL: none */
    /* JSON: members of a row of --dry-run, and of a result: more metrics, differences and details. */
    void (*plan)(json_t *row, const dq_eval *e, const dq_eval_row *r);
    dq_status (*metrics)(json_t *metrics, const cmd_eval_view *v, int row, dq_err *err);
    const char *metric; /* the one that `metrics` may add */
    void (*paired)(json_t *paired, const dq_eval_numbers *x);
    dq_status (*details)(json_t *o, const cmd_eval_view *v, int row, dq_err *err);
    const char *loss; /* the metric of a verdict; NULL: the kind's quoted one */
    /* Adds the members of a result that tell rows of one task apart, besides those that rows of all kinds have. */
    void (*told_by)(json_t *result, const dq_eval_source *source);
    /* --fail-if: names that a message begins with (NULL: the kind's first metric), whether a name says how a result
     * differs from its reference, and objects of a result whose names are not known before it is there. */
    const char *gates;
    bool (*differs)(const char *name);
    const char *const *parts;
    /* More columns of the CSV: adds at most DQ_EVAL_KIND_CSV_COLUMNS titles at titles[*n], in the arena. */
    dq_status (*csv_titles)(const char **titles, int *n, const cmd_eval_view *v, dq_err *err);
    dq_status (*csv_cells)(dq_table *t, const cmd_eval_view *v, int row, dq_err *err);
    /* Prints what stands after the table; last: after the claims too. */
    dq_status (*tables)(const cmd_eval_view *v, dq_err *err);
    bool tables_last;
    /* --dump-items: what a line of a request says of its item, or else the lines themselves. */
    void (*keys)(json_t *o, const dq_eval *e, const dq_eval_row *row, int64_t item);
    dq_status (*dump)(FILE *f, const cmd_eval_view *v, int row, dq_err *err);
    /* --dump-requests: the lines of a source. */
    dq_status (*requests)(FILE *f, const dq_eval_source *source, dq_err *err);
    dq_document_lines *file_lines; /* of the file of its own; of a cmd_eval_view */
} cmd_eval_kind_output;

typedef struct cmd_eval_kind {
    const char *name;
    const dq_eval_kind *kind[DQ_EVAL_KIND_ROWS]; /* whose results it shows */
    cmd_eval_kind_cli cli;
    /* Files that belong to no single source. */
    dq_status (*open)(void *own, struct cmd_eval_files *files, dq_arena *a, dq_err *err);
    /* What source i is made of; NULL: cmd_eval_source_load. */
    dq_status (*load)(void *own, dq_eval *e, const struct cmd_eval_options *o, int i,
                      struct cmd_eval_files *files, dq_err *err);
    /* When models are open and e->n_ctx is set. */
    dq_status (*opened)(const void *own, const struct cmd_eval_options *o, const dq_eval *e,
                        dq_err *err);
    /* Members of `settings` of the JSON; also called where the run has no such source. A resumed run has the same
     * ones, but for those of `unscored` (NULL at the end; NULL: none), which change no score. */
    void (*settings)(json_t *settings, const void *own, const dq_eval *e);
    const char *const *unscored;
    /* Whether texts of a source end at what the models name as such (NULL: there are none). */
    bool (*stops)(const dq_eval_source *source);
    void (*warn_plan)(dq_logger *logger, const cmd_eval_view *v);
    void (*warn_done)(dq_logger *logger, const cmd_eval_view *v);
    cmd_eval_kind_output out;
} cmd_eval_kind;

enum { DQ_EVAL_KINDS = 6 };
extern const cmd_eval_kind *const cmd_eval_kinds[DQ_EVAL_KINDS]; /* in the order of printing */

extern const cmd_eval_kind cmd_eval_choices;  /* multiple choice */
extern const cmd_eval_kind cmd_eval_text;     /* --text */
extern const cmd_eval_kind cmd_eval_generate; /* text that the model goes on with */
extern const cmd_eval_kind cmd_eval_needle;   /* multi-needle retrieval */
extern const cmd_eval_kind cmd_eval_icl;      /* in-context learning */
extern const cmd_eval_kind cmd_eval_ruler;    /* prompts made up for long contexts */

/* Members of its `settings` that scores depend on. */
json_t *cmd_eval_kind_scored(const cmd_eval_kind *kind, const void *own, const dq_eval *e);
/* For cmd_eval_kind.stops: all of them do. */
bool cmd_eval_kind_writes(const dq_eval_source *source);
/* Whether some source's texts end at what the models name as such. */
bool cmd_eval_kind_stops(const dq_eval *e);
/* The kind of a source. */
const cmd_eval_kind *cmd_eval_kind_of(const dq_eval_source *source);
/* The index of the kind with that task; -1: none. */
int cmd_eval_kind_named(const char *task);
/* Whether the row is a result of that kind. */
bool cmd_eval_kind_shows(const cmd_eval_kind *kind, const dq_eval *e, int row);
/* The words of kinds, those that several have once: "choices or needles". NULL: the sentence is not about it. */
typedef const char *cmd_eval_kind_word(const cmd_eval_kind *kind);
const char *cmd_eval_kind_join(char *buf, size_t cap, cmd_eval_kind_word *word,
                               const char *between);
/* The first source of a kind; NULL: the run has none. */
const dq_eval_source *cmd_eval_kind_source(const cmd_eval_kind *kind, const dq_eval_source *source,
                                           int n_sources);

#endif
