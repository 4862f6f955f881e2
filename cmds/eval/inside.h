/* What the files of cmds/eval share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMDS_EVAL_INSIDE_H
#define DQ_CMDS_EVAL_INSIDE_H

#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "cmds/eval/cmd_eval.h"
#include "eval/eval.h"
#include "model/model.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "stat/stat.h"

#include <jansson.h>

typedef struct cmd_eval_view {
    const dq_eval *e;
    const char *const *names;
    double margin;     /* that a loss is compared with; see cmd_eval.h */
    const json_t *doc; /* with the results, which tables, CSV and gates read; NULL: not yet */
} cmd_eval_view;

typedef void cmd_eval_cell(dq_table *t, const json_t *x); /* x NULL or null: "-" */

typedef enum cmd_eval_field_type { DQ_FIELD_MEAN, DQ_FIELD_REAL } cmd_eval_field_type;

/* A number of dq_eval_numbers. Under `metrics` a mean is {"value", "stderr", "n_clusters"}, a real
 * {"value", "stderr": null}; NaN is left out. */
typedef struct cmd_eval_field {
    const char *name, *about; /* of the member */
    const char *of;  /* the metric above whose member it is: a mean is NAME and NAME_stderr */
    const char *csv; /* its column, and, of a mean, csv_stderr; NULL: every CSV has it */
    size_t at;       /* of the dq_mean or double */
    cmd_eval_field_type type;
    const char *title; /* of the table's column; NULL: none */
    cmd_eval_cell *cell;
    bool differs;                                /* from the reference, which has none */
    bool (*there)(const dq_eval_source *source); /* NULL: all texts have it */
} cmd_eval_field;

/* Those of running text, ended by a row without a name; sources of items have none. */
extern const cmd_eval_field cmd_eval_fields[];
void cmd_eval_field_rows(dq_row_writer *w, const dq_eval_numbers *x, const char *why);
/* The metric, or (member not NULL) that member of it; NULL: results of the source have none. */
const cmd_eval_field *cmd_eval_field_find(const dq_eval_source *source, const char *metric,
                                          const char *member);

/* The member at a path, "metrics.acc.value"; NULL: there is none. */
const json_t *cmd_eval_at(const json_t *o, const char *path);
/* That of a shown row. */
const json_t *cmd_eval_result(const cmd_eval_view *v, int row);
/* NaN: no number. */
double cmd_eval_real(const json_t *o, const char *member);
/* Of {"value" or "delta", "stderr", "n_clusters", "interval"}; a perplexity may be infinite. */
dq_mean cmd_eval_mean_of(const json_t *o);
dq_interval cmd_eval_interval_of(const json_t *o);

cmd_eval_cell cmd_eval_cell_mean, cmd_eval_cell_change;        /* "0.6340 ± 0.0048", "+0.01 ..." */
cmd_eval_cell cmd_eval_cell_score, cmd_eval_cell_score_change; /* with bounds where all is equal */
cmd_eval_cell cmd_eval_cell_real, cmd_eval_cell_text;          /* "0.1234" */

/* What stands at a path of a result. Of a list it is the element whose label is `at`, or (without
 * labels) number `at`; a column with a `unit` stands for one of each label that results have. */
typedef struct cmd_eval_column {
    const char *title, *path;
    cmd_eval_cell *cell; /* of a table */
    const char *member;  /* of a CSV: of what stands there; NULL: that itself */
    const char *label;   /* the member of elements that is their label */
    const char *labels;  /* or the path of a list of labels as long as that one */
    const char *unit;    /* "tokens" */
    int at;
    int metric; /* 1 or 2: of a CSV, the title is what follows the name of that metric of a row's
                   kind, and the path leads to where it stands; else 0 */
} cmd_eval_column;

#define DQ_COLUMN(title_, path_, cell_)                                                            \
    {                                                                                              \
        .title = (title_), .path = (path_), .cell = (cell_)                                        \
    }
/* Two columns of a CSV. */
#define DQ_COLUMNS_MEAN(name, path_)                                                               \
    {.title = name, .path = (path_), .member = "value"},                                           \
    {                                                                                              \
        .title = name "_stderr", .path = (path_), .member = "stderr"                               \
    }

void cmd_eval_column_cells(dq_table *t, const json_t *result, const cmd_eval_column *column, int n);
void cmd_eval_column_csv(dq_table *t, const json_t *result, const cmd_eval_column *c);

/* What tells rows apart. */
typedef enum cmd_eval_key {
    DQ_KEYS_END,
    DQ_KEY_MODEL,
    DQ_KEY_WEIGHTS, /* "16", "4/32", "mixed" */
    DQ_KEY_BITS,
    DQ_KEY_GRANULARITY,
    DQ_KEY_LOGIT,    /* both */
    DQ_KEY_MATH,     /* where rows differ in it */
    DQ_KEY_KV,       /* the label */
    DQ_KEY_KV_SWEPT, /* where some cache is not plain; so are the next four */
    DQ_KEY_CODES,
    DQ_KEY_POLICY,
    DQ_KEY_BUDGET,
    DQ_KEY_KEEP,
    DQ_KEY_TASK,
    DQ_KEY_TITLE /* tells tasks of one name apart */
} cmd_eval_key;
enum { DQ_KEYS = DQ_KEY_TITLE + 1 };
/* `keys` end with DQ_KEYS_END. Returns the number of titles. */
int cmd_eval_key_titles(const char **titles, const dq_eval *e, const cmd_eval_key *keys);
void cmd_eval_key_cells(dq_table *t, const cmd_eval_view *v, int row, const cmd_eval_key *keys);

struct cmd_eval_kind;
enum { DQ_EVAL_LABELS = 128, DQ_EVAL_COLUMNS = DQ_EVAL_LABELS + 32 };
/* Labels of the longest list that results have; those of others are some of them. Returns their
 * number. */
int cmd_eval_labels(int label[DQ_EVAL_LABELS], const cmd_eval_view *v, const cmd_eval_column *c);
typedef struct cmd_eval_table_of {
    const cmd_eval_key *keys;
    const cmd_eval_column *column; /* [n], one with a unit at most */
    int n, n_keys;                 /* n_keys: columns that tell rows apart as well */
    int labels;                    /* that there are at least; else nothing is printed */
    const cmd_eval_column *second; /* [n] of a second line, where number n_keys leads to something;
                                      NULL: there is none */
} cmd_eval_table_of;
/* Prints, under `head`, a line for each result of the kind; without any, nothing. */
dq_status cmd_eval_pivot(const cmd_eval_view *v, const struct cmd_eval_kind *kind, const char *head,
                         const cmd_eval_table_of *p, dq_err *err);

const char *cmd_eval_title(const dq_eval *e, int row);
bool cmd_eval_math_swept(const dq_eval *e);
/* Whose weights the row's reference has: "own", "source" or "other". */
const char *cmd_eval_reference_weights(const dq_eval *e, const dq_eval_row *r);
/* The row of the first model with this task and setting; -1: none, or both share a reference, so
 * that `paired` covers it. */
int cmd_eval_cross_row(const dq_eval *e, int row);
/* Index among the results, which are the shown rows. */
int cmd_eval_result_of(const dq_eval *e, int row);
/* Index of the first result with the same numbers, which were computed once; -1: the row itself. */
int cmd_eval_same_as(const dq_eval *e, int row);
/* Adds keys that identify the row to a JSON line about an item. */
void cmd_eval_row_keys(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r);

struct cmd_eval_options;
struct cmd_eval_files;

/* An option of a kind: its row of --help and the offset of its value in `own`; opt.to is unused. An
 * integer that may be 0 is -1 where it is not given. */
typedef struct cmd_eval_kind_option {
    dq_opt opt;
    size_t at;
} cmd_eval_kind_option;
/* --name VALUE, and the member of `own` that it goes to; then the row's other members. */
#define DQ_KIND_OPTION(kind_, name_, value_, own, member, ...)                                     \
    {                                                                                              \
        {.name = (name_), .kind = DQ_OPT_##kind_, .value = (value_), __VA_ARGS__},                 \
            offsetof(own, member)                                                                  \
    }

enum { DQ_EVAL_KIND_ROWS = 2 };

/* A kind on the command line, beside how src/eval feeds and judges it. What may be NULL without a
 * word is then left out. */
typedef struct cmd_eval_kind {
    const dq_eval_kind *kind[DQ_EVAL_KIND_ROWS]; /* whose results it shows */
    size_t size; /* of `own`: what its options give, zeros where nothing is given */
    /* They begin with a heading, or stand among those of what is scored; an empty row ends them.
     * An output among them gets the kind's items. */
    const cmd_eval_kind_option *options;
    const char *needs; /* follows the name of one in its refusal where no source is of the kind */
    const char *tasks_help; /* lines of the help of --task */
    /* The name of its i-th task, NULL after the last. *form: what messages call the task's file, ""
     * where it has none, NULL where a task file says it. */
    const char *(*task)(int i, const char **form);
    /* Adds the sources of a task (cmd_eval_add_source); of a kind without tasks (NULL), those of
     * its options. DQ_USAGE also for options without effect. */
    dq_status (*choose)(void *own, struct cmd_eval_options *o, const char *task, const char *path,
                        dq_err *err);
    /* Reads source i; NULL: cmd_eval_source_load. */
    dq_status (*load)(void *own, dq_eval *e, const struct cmd_eval_options *o, int i,
                      struct cmd_eval_files *files, dq_err *err);
    /* Adds to `settings` of the JSON, also without such a source. A resumed run must agree in all
     * but rows with DQ_UNSCORED. */
    void (*settings)(dq_row_writer *w, const void *own, const dq_eval *e);
    /* Before scoring, and (done) after it. */
    void (*warn)(dq_logger *logger, const cmd_eval_view *v, bool done);
    /* Adds members to a result, whose "metrics" and "throughput" it may continue (dq_row_again);
     * like `settings` it describes them where the writer is not live. */
    dq_status (*details)(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err);
    /* Prints what follows the table; last: also after the claims. */
    dq_status (*tables)(const cmd_eval_view *v, dq_err *err);
    bool tables_last;
    /* Adds members of request k, or window k, to its line of --dump-items or the kind's own
     * file. */
    dq_status (*item)(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r, int64_t k,
                      dq_err *err);
} cmd_eval_kind;

enum { DQ_EVAL_KINDS = 6 };
extern const cmd_eval_kind *const cmd_eval_kinds[DQ_EVAL_KINDS]; /* in the order of printing */

extern const cmd_eval_kind cmd_eval_choices;  /* multiple choice */
extern const cmd_eval_kind cmd_eval_text;     /* --text */
extern const cmd_eval_kind cmd_eval_generate; /* text that the model goes on with */
extern const cmd_eval_kind cmd_eval_needle;   /* multi-needle retrieval */
extern const cmd_eval_kind cmd_eval_icl;      /* in-context learning */
extern const cmd_eval_kind cmd_eval_ruler;    /* prompts made up for long contexts */

/* Its `settings`, or (scored) those that scores depend on. */
json_t *cmd_eval_kind_settings(const cmd_eval_kind *kind, const void *own, const dq_eval *e,
                               bool scored);
/* Whether some texts are generated, which end at the models' stop tokens. */
bool cmd_eval_kind_stops(const dq_eval *e);
/* Whether --dump-items writes the kind's items. */
bool cmd_eval_kind_dumps(const cmd_eval_kind *kind);
/* The path of its own output file; NULL: not given. */
const char *cmd_eval_kind_file(const cmd_eval_kind *kind, const void *own);
const cmd_eval_kind *cmd_eval_kind_of(const dq_eval_source *source);
bool cmd_eval_kind_shows(const cmd_eval_kind *kind, const dq_eval *e, int row);
/* NULL: the run has none. */
const dq_eval_source *cmd_eval_kind_source(const cmd_eval_kind *kind, const dq_eval_source *source,
                                           int n_sources);

struct cmd_eval_options;

typedef struct cmd_eval_baseline {
    const char *path; /* NULL: none */
    const char *name; /* the path as a terminal may show it */
    char sha256[65];
    int64_t bytes;
    json_t *document;
    int *result; /* [e->n_rows]: index of the row's result there; -1: it has none */
} cmd_eval_baseline;

/* DQ_DAMAGED: no JSON, or results that cannot be identified; DQ_MISMATCH: another schema. */
dq_status cmd_eval_baseline_read(cmd_eval_baseline *b, const char *path, dq_arena *a, dq_err *err);
/* Before scoring: finds each row's result by model, task and settings; inputs and settings are this
 * run's. DQ_MISMATCH says what differs: files, settings of a shared task, the number of items or
 * tokens, or that two results match. */
dq_status cmd_eval_baseline_fit(cmd_eval_baseline *b, const cmd_eval_view *v,
                                const struct cmd_eval_options *o, const json_t *inputs,
                                const json_t *settings, dq_logger *logger, dq_err *err);
void cmd_eval_baseline_end(cmd_eval_baseline *b);

enum { DQ_GATE_NAME = 64, DQ_GATES_TOLD = 2 };

/* NAME OP LIMIT; OP is one of < <= > >=, LIMIT what cmd_eval.h reads, in which `baseline` is the
 * same number of the same row in an older document. NAME is a metric ("acc", "kld_nats"), a member
 * of one ("kld_nats.p99", "acc.stderr"), its paired difference to the reference ("acc_delta",
 * "nll_nats_delta"), its p ("acc_p"), "ppl_ratio", or the path of a number in an object of a result
 * ("kv.kept_fraction"). */
typedef struct cmd_eval_gate {
    const char *text; /* as given */
    char name[DQ_GATE_NAME];
    bool less, equal; /* < or <=; <= or >= */
    cmd_eval_gate_expr limit;
} cmd_eval_gate;

typedef struct cmd_eval_gates {
    cmd_eval_gate gate[DQ_LIST_MAX];
    int n;
    bool uses_baseline;            /* some limit has the word */
    cmd_eval_baseline baseline;    /* its path NULL: none is given */
    int missed;                    /* results that meet a condition */
    char told[DQ_GATES_TOLD][768]; /* the first of them: which, its value, the condition */
    int unchecked;  /* conditions that no result has a number for, or not every one that should */
    int sourceless; /* those of them where the source of a quantized model is not in the run */
    int unmatched;  /* and those where a result has no number in the baseline */
} cmd_eval_gates;

/* DQ_USAGE: a malformed expression, or a baseline (NULL: none) without an expression that uses it,
 * or the reverse. */
dq_status cmd_eval_gates_read(cmd_eval_gates *g, const dq_list *texts, const char *baseline,
                              dq_err *err);
/* DQ_USAGE before scoring: no source of the run has the name. */
dq_status cmd_eval_gates_check(const cmd_eval_gates *g, const dq_eval_source *source, int n_sources,
                               dq_err *err);
/* Once rows and baseline are known: warns of differences where every row is its own reference, and
 * of what the baseline lacks. */
void cmd_eval_gates_begin(const cmd_eval_gates *g, dq_logger *logger, const cmd_eval_view *v);
/* Checks every result, reports on stderr where a condition holds, a value is missing or nothing was
 * checked, and adds "gates" to the document. References have no differences; those of a quantized
 * model without its source count as unchecked. */
dq_status cmd_eval_gates_apply(dq_row_writer *w, cmd_eval_gates *g, dq_logger *logger,
                               const cmd_eval_view *v, dq_err *err);
/* DQ_GATE: a condition held or could not be checked. */
dq_status cmd_eval_gates_outcome(const cmd_eval_gates *g, dq_err *err);

enum {
    DQ_EVAL_MODELS = 64,
    DQ_EVAL_SOURCES = 16,
    DQ_EVAL_BITS = 8,
    DQ_EVAL_LENGTHS = 32,
    DQ_EVAL_SHOTS = 64
};

typedef struct cmd_eval_options {
    dq_arena *a; /* for what the options become */
    dq_list tasks, data, fewshot, fail_if;
    const char *logit_bits, *ref, *device, *dump, *requests, *csv, *document, *html, *baseline;
    dq_words logit_granularity, math; /* dq_granularity, dq_num */
    dq_word bos, too_long;            /* a dq_bos; one of dq_eval_long_name after "" */
    const char *lengths_word, *shots_word;
    int64_t ctx, threads, limit;
    double margin;
    bool json, resume, dry_run, force;
    dq_shard shard;
    const dq_shard_merge
        *merge; /* shards to merge, set before argv is read; NULL: results are computed */
    dq_input_head_order head_order;
    dq_kv_options kv;
    void *own[DQ_EVAL_KINDS]; /* the options of each kind, and what they mean */
    dq_logger logger;
    /* the parsed settings */
    cmd_eval_gates gates;
    int bits[DQ_EVAL_BITS], n_bits;         /* 0: as each model says */
    int length[DQ_EVAL_LENGTHS], n_lengths; /* 0: not given */
    int shots[DQ_EVAL_SHOTS], n_shots;      /* of --num-fewshot; n_shots 0: not given */
    int64_t num_fewshot;                    /* before items with answers */
    const dq_task *given_task[DQ_LIST_MAX]; /* [n_names] of --task; NULL: it is made, in-context */
    int n_names;
    const dq_task *task;                    /* of the source that is being chosen */
    int fewshot_used;                       /* files without a name that tasks have taken */
    bool takes_lengths, takes_shots;        /* some task has; the one that is being chosen has */
    dq_eval_source source[DQ_EVAL_SOURCES]; /* name, path, task and its examples */
    const char *examples[DQ_EVAL_SOURCES];  /* path of the few-shot examples; NULL: none */
    int n_sources;
} cmd_eval_options;

/* A kind's parsed options. */
void *cmd_eval_own(const cmd_eval_options *o, const cmd_eval_kind *kind);
/* Sets defaults and reads argv; the kinds' data live in the arena. */
dq_status cmd_eval_parse(cmd_eval_options *o, dq_args *args, int argc, char **argv, dq_arena *a,
                         dq_err *err);
/* Fills the second part; words live in the arena. */
dq_status cmd_eval_understand(cmd_eval_options *o, const dq_args *args, dq_err *err);
/* Compares outputs with inputs before the run (journal: NULL), and again with the file of finished
 * work once its name is known. */
dq_status cmd_eval_check_outputs(const cmd_eval_options *o, const dq_args *args,
                                 const char *journal, dq_err *err);

/* A task may have two data files, two of labels and its own. */
typedef struct cmd_eval_files {
    char sha[5 * DQ_EVAL_SOURCES][65];
    int n;
    json_t *inputs; /* gets an object for each */
    dq_logger *logger;
} cmd_eval_files;

/* Reads a file into the arena, lists it in `inputs` and writes its SHA-256 to sha. */
dq_status cmd_eval_file_read(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char **text, size_t *len, dq_arena *a,
                             dq_err *err);
/* The same for a file already read. */
dq_status cmd_eval_file_note(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char *text, size_t len, dq_err *err);
void cmd_eval_file_describe(dq_row_writer *w);
/* "inputs" of a document. */
void cmd_eval_inputs_rows(dq_row_writer *w, const json_t *inputs);
dq_status cmd_eval_source_read(dq_eval *e, const cmd_eval_options *o, int i, cmd_eval_files *files,
                               dq_err *err);
/* Reads one file, which the kind then parses. */
dq_status cmd_eval_source_load(dq_eval *e, dq_eval_source *source, cmd_eval_files *files,
                               dq_err *err);
/* Warns where e->ids[ids], or a file of its source, overlaps a text that chose a model's codes,
 * widths or gates: it cannot test them. */
void cmd_eval_warn_seen(dq_logger *logger, const cmd_eval_view *v, int ids, const json_t *inputs);
dq_status cmd_eval_dump_requests(const dq_eval *e, const char *path, dq_err *err);

/* For kinds: adds a source. DQ_USAGE: too many `what`, "tasks". */
dq_status cmd_eval_add_source(cmd_eval_options *o, const dq_eval_source *source, const char *what,
                              dq_err *err);
/* For those that draw prompts of their own: takes --lengths, --limit and --seed. */
void cmd_eval_take_lengths(cmd_eval_options *o, int length[DQ_EVAL_LENGTHS], int *n,
                           int64_t *samples, uint64_t *seed);
/* For items with answers: takes --num-fewshot and the path of the examples for the source added
 * last; drawn: their number and seed are the source's. DQ_USAGE: a list, or no path. */
dq_status cmd_eval_take_examples(cmd_eval_options *o, bool drawn, dq_err *err);
/* A task's path in a list such as --data: NAME=FILE, else the next one without a name after *used.
 * NULL: none. */
const char *cmd_eval_path_for(const cmd_eval_options *o, const dq_list *given, const char *task,
                              int *used);

/* Prints a row per condition and result from "gates" of the document; nothing without a
 * baseline. */
dq_status cmd_eval_gate_table(const cmd_eval_gates *g, const cmd_eval_view *v,
                              const json_t *document, dq_err *err);

/* Numbers with their errors in the document, read where the writer is live and they are there. */
typedef enum cmd_eval_form {
    DQ_FORM_MEAN,     /* {"value", "stderr", "n_clusters"} */
    DQ_FORM_SCORE,    /* and "interval" */
    DQ_FORM_ESTIMATE, /* {"value", "stderr", "interval"} */
    DQ_FORM_DELTA,    /* {"delta", "stderr", "interval"} */
    DQ_FORM_CROSS,    /* and "model" */
    DQ_FORM_LOSS      /* DELTA and "n_clusters" */
} cmd_eval_form;
typedef struct cmd_eval_number {
    dq_mean mean;
    dq_interval interval;
    const char *model;
} cmd_eval_number;
void cmd_eval_number_put(dq_row_writer *w, cmd_eval_form form, const dq_row *row, bool there,
                         cmd_eval_number n);
#define DQ_NUMBER(w, name_, form, there_, mean_, interval_, model_, ...)                           \
    cmd_eval_number_put(w, DQ_FORM_##form, &(const dq_row){.name = (name_), .about = __VA_ARGS__}, \
                        !(w)->live || (there_),                                                    \
                        (w)->live && (there_) ? (cmd_eval_number){mean_, interval_, model_}        \
                                              : (cmd_eval_number){.model = NULL})
#define DQ_MEAN(w, name, mean, ...)                                                                \
    DQ_NUMBER(w, name, MEAN, true, mean, dq_interval_none, NULL, __VA_ARGS__)
#define DQ_SCORE(w, name, mean, interval, ...)                                                     \
    DQ_NUMBER(w, name, SCORE, true, mean, interval, NULL, __VA_ARGS__)
#define DQ_ESTIMATE(w, name, mean, interval, ...)                                                  \
    DQ_NUMBER(w, name, ESTIMATE, true, mean, interval, NULL, __VA_ARGS__)
#define DQ_FLIPS(w, name_, there_, flips, ...)                                                     \
    cmd_eval_flips_put(w, &(const dq_row){.name = (name_), .about = __VA_ARGS__},                  \
                       !(w)->live || (there_), DQ_LIVE(w, flips))
void cmd_eval_flips_put(dq_row_writer *w, const dq_row *row, bool there, const dq_stat_flips *f);
/* A list of n integers; with DQ_NULL null where there are none. */
#define DQ_INTS(w, name_, x, n, ...)                                                               \
    cmd_eval_ints_put(w,                                                                           \
                      &(const dq_row){.name = (name_), .type = DQ_ROW_LIST, .about = __VA_ARGS__}, \
                      DQ_LIVE(w, x), (w)->live ? (n) : 1)
void cmd_eval_ints_put(dq_row_writer *w, const dq_row *row, const int32_t *x, int64_t n);

/* Why a row has no difference. */
#define DQ_EVAL_IS_REFERENCE "is the reference"
#define DQ_EVAL_SOURCELESS   "its source checkpoint is not in the run"

/* One table per kind that has a mean over tasks. */
dq_status cmd_eval_averages(const cmd_eval_view *v, dq_err *err);
/* "averages" of the document. */
void cmd_eval_averages_rows(dq_row_writer *w, const cmd_eval_view *v);

/* One table per model and source. */
dq_status cmd_eval_pareto(const cmd_eval_view *v, dq_err *err);
/* "pareto_fronts" of the document. */
dq_status cmd_eval_pareto_rows(dq_row_writer *w, const cmd_eval_view *v, dq_err *err);

/* Prints what the table rests on and, for models with several logit widths, the lowest that
 * holds. */
void cmd_eval_claims(const cmd_eval_view *v);
/* "comparisons" and "lowest_logit_bits" of the document. */
void cmd_eval_claims_rows(dq_row_writer *w, const cmd_eval_view *v);
void cmd_eval_warn_clusters(dq_logger *logger, const cmd_eval_view *v);
/* Warns before scoring of quantized models without their source; made_from[i]: base name of its
 * source, NULL for a checkpoint. */
void cmd_eval_warn_sources(dq_logger *logger, const cmd_eval_view *v, const char *const *made_from);

/* Whether some shown row has a cache that is not plain; whether rows differ in what is evicted. */
bool cmd_eval_kv_swept(const dq_eval *e);
bool cmd_eval_kv_policies(const dq_eval *e);
/* One line per model, "model.h5: 4.48 bpw, 92.30 MiB", and an empty line. */
void cmd_eval_table_sizes(const cmd_eval_view *v);
/* For people, values with standard errors; as CSV, a column per number. */
dq_status cmd_eval_table(dq_table **out, const cmd_eval_view *v, dq_err *err);
dq_status cmd_eval_columns(dq_table **out, const cmd_eval_view *v, dq_err *err);
/* Whether a path leads to a number or text in results of such a source, by their schema. */
bool cmd_eval_result_has(const dq_eval_source *source, const char *path);
/* The metric of text that verdicts go by. */
#define DQ_EVAL_LOSS "nll_nats"
/* Of items with choices: what the run makes of them; a choice as text, and how likely a request's
 * first n_cont tokens are. */
void cmd_eval_choices_rows(dq_row_writer *w, const dq_eval *e, const dq_eval_row *r);
void cmd_eval_choice_rows(dq_row_writer *w, const dq_eval_source *s, int64_t item, int choice);
void cmd_eval_request_rows(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r,
                           const dq_request *q, int64_t n_cont);
/* Elements of "results". */
dq_status cmd_eval_results_rows(dq_row_writer *w, const cmd_eval_view *v, dq_err *err);
/* What dq judged writes otherwise: "settings", and elements of "results". */
void cmd_judged_settings(dq_row_writer *w);
void cmd_judged_rows(dq_row_writer *w, const void *verdicts); /* a dq_verdicts */
/* Items of all kinds that --dump-items writes, or of one. */
dq_status cmd_eval_dump(const cmd_eval_view *v, const cmd_eval_kind *kind, const char *path,
                        dq_err *err);

#endif
