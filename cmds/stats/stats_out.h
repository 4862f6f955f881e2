/* stats_out: what dq stats hands over: tables, the JSON results, the HDF5 file.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_OUT_H
#define DQ_STATS_OUT_H

#include "calib/outlier_walk.h"
#include "calib/weight_outliers.h"
#include "checkpoint/h5_result.h"
#include "plan/sensitivity.h"
#include "settings/inputs.h"

enum { CMD_STATS_MODELS = 64 };

/* One model with what was fed to it and what came out. */
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

/* Table 5, kinds of values, the n_places largest outliers of each class of tokens, attention maps, to stdout; with tables by
 * layer. */
dq_status cmd_stats_print(const cmd_stats_entry *e, int n, int n_places, bool layers, dq_err *err);
/* One line per model, kind, class of tokens ("all", "ordinary") and layer; layer "all" is the pooled one. */
dq_status cmd_stats_csv(const cmd_stats_entry *e, int n, const char *path, dq_err *err);
/* One element of `results`. */
json_t *cmd_stats_json(const cmd_stats_entry *e, int n_places);
/* Arrays of model number i under /models/i. */
dq_status cmd_stats_h5(dq_h5_result *h, const cmd_stats_entry *e, int i, dq_err *err);

#endif
