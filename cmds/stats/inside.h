/* What the files of cmds/stats share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMDS_STATS_INSIDE_H
#define DQ_CMDS_STATS_INSIDE_H

#include "calib/outliers.h"
#include "checkpoint/h5_result.h"
#include "cmds/cli/cli.h"
#include "plan/sensitivity.h"
#include "settings/inputs.h"
#include "settings/options.h"

/* A model with its input and results. */
typedef struct cmd_stats_entry {
    dq_model *model;
    dq_tokenizer *tokenizer; /* NULL: none */
    dq_input_ids in;
    int64_t ctx;       /* 0: the ids were given */
    const char *label; /* in tables: the model's name, or its path where names repeat */
    dq_sequences fed;  /* of `in` */
    dq_outliers out;
    dq_weight_outliers weights;  /* of --detail all */
    dq_sensitivity *sensitivity; /* NULL: not asked for */
} cmd_stats_entry;

/* Prints Table 5, kinds of values, the n_places largest outliers of each class of tokens, and
 * attention maps; layers: by layer too. */
dq_status cmd_stats_print(const cmd_stats_entry *e, int n, int n_places, bool layers, dq_err *err);
/* A line per model, kind, class of tokens ("all", "ordinary") and layer; layer "all" is pooled. */
dq_status cmd_stats_csv(const cmd_stats_entry *e, int n, const char *path, dq_err *err);
/* One element of `results`. */
void cmd_stats_rows(dq_row_writer *w, const cmd_stats_entry *e, int n_places);

/* A member of a record that becomes an array in HDF5. */
typedef struct cmd_stats_field {
    const char *name; /* NULL: ends the list */
    dq_h5_result_type type;
    size_t at;    /* in the record */
    int width[2]; /* of an array [width] or [width][width]; 0: none */
} cmd_stats_field;
/* Each member of records[shape], `size` bytes apart, as an array of that shape (and the member's
 * width) under `group`. */
dq_status cmd_stats_fields_h5(dq_h5_result *h, const char *group, const cmd_stats_field *field,
                              const void *records, size_t size, const int64_t *shape, int n_dims,
                              dq_arena *a, dq_err *err);

/* With the n_places most sensitive units of a kind. */
dq_status cmd_stats_units_print(const cmd_stats_entry *e, int n_places, dq_err *err);
/* "sensitivity" of an element of `results`. */
dq_status cmd_stats_units_rows(dq_row_writer *w, const cmd_stats_entry *e, dq_err *err);
dq_status cmd_stats_units_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                             dq_arena *a, dq_err *err);

enum { CMD_STATS_QUANTILES = 4 };
extern const struct cmd_stats_quantile {
    const char *name; /* "p90" .. */
    double p;
    const char *about;
} cmd_stats_quantile[CMD_STATS_QUANTILES];
/* "-" for what does not exist. */
void cmd_stats_number(dq_table *t, double x, int digits);
/* "value", "stderr", "interval". */
void cmd_stats_mean_rows(dq_row_writer *w, dq_mean m, dq_interval i);

/* Arrays [n_layers, n_out(, 2 or 4)] under `group`/attention. */
dq_status cmd_stats_attention_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                 dq_arena *a, dq_err *err);

/* For n models, the n_places heads with the largest predicted error, or with `layers` all. */
dq_status cmd_stats_forecast_print(const cmd_stats_entry *e, int n, int n_places, bool layers,
                                   dq_err *err);
/* "forecast" of an element of `results`; all: all models of the run, e among them. */
dq_status cmd_stats_forecast_rows(dq_row_writer *w, const cmd_stats_entry *e,
                                  const cmd_stats_entry *all, dq_err *err);
dq_status cmd_stats_forecast_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                dq_arena *a, dq_err *err);

typedef struct cmd_stats_sensitivity {
    bool forecast;  /* of logits alone */
    dq_words kinds; /* of cmd_stats_sensitivity_kinds; n 0: none */
    dq_word granularity;
    int64_t bits, windows, tokens; /* 0: not given */
} cmd_stats_sensitivity;

/* "all", then dq_sensitivity_name. */
enum { CMD_STATS_SENSITIVITY_KINDS = DQ_SENSITIVITY_KINDS + 1 };
extern const char *const cmd_stats_sensitivity_kinds[CMD_STATS_SENSITIVITY_KINDS];

bool cmd_stats_sensitivity_wanted(const cmd_stats_sensitivity *x);
/* Sets defaults. DQ_USAGE: settings without effect; DQ_MISMATCH: it cannot run. */
dq_status cmd_stats_sensitivity_check(cmd_stats_sensitivity *x, const dq_backend *b, dq_err *err);
void cmd_stats_sensitivity_settings(const cmd_stats_sensitivity *x, dq_row_writer *w);

typedef struct cmd_stats_sensitivity_run {
    const cmd_stats_sensitivity *set;
    cmd_stats_entry *entry;
    int n;
    const char *out; /* beside which a journal lies; NULL: nothing is kept */
    /* A shard: what it computes (dq_sensitivity_settings), and who hears of it, instead of a
     * journal. */
    int shard, n_shards;
    dq_status (*found)(void *arg, const dq_sensitivity *s, int64_t unit, dq_err *err);
    void *arg;
    const char *key; /* of models and ids */
    bool resume, force;
    dq_backend *backend;
    dq_logger *logger;
    dq_arena *arena;
    dq_work ledger;
    dq_progress bar;
} cmd_stats_sensitivity_run;
/* Checks before anything is computed, and reads an earlier run's results. DQ_MISMATCH: windows or
 * models without units of a kind. */
dq_status cmd_stats_sensitivity_begin(cmd_stats_sensitivity_run *r, dq_err *err);
dq_status cmd_stats_sensitivity_compute(cmd_stats_sensitivity_run *r, dq_err *err);
/* Removes the journal if all was written, else keeps it and says so in the error. {0} allowed. */
void cmd_stats_sensitivity_end(cmd_stats_sensitivity_run *r, dq_err *err);

#endif
