/* What the files of cmds/bench share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMDS_BENCH_INSIDE_H
#define DQ_CMDS_BENCH_INSIDE_H

#include "cmds/cli/cli.h"
#include "engine/backend.h"
#include "engine/runner.h"
#include "model/model.h"
#include "record/record.h"
#include "settings/options.h"

#include <jansson.h>

/* The peak: operations per second of the multiply-adds of which products in `num` with w are made
 * (NULL: those of attention), on all threads, for some 20 ms; their instruction (static). NaN and
 * NULL where the device does not know. */
double dq_bench_limits_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction);
/* "f32 multiply-adds (vfmadd, 512 bits)" in name, "not known" for NULL; returns it. */
enum { DQ_BENCH_PEAK = 80 };
const char *dq_bench_peak(char name[DQ_BENCH_PEAK], dq_num num, const char *instruction);

#define DQ_BENCH_ABOUT_PEAK                                                                        \
    "Multiply-adds (two each) of the widest instruction on registers alone, per second; null: "    \
    "not "                                                                                         \
    "known."

/* A block that nothing else reads; the frame frees it. */
typedef struct dq_bench_block {
    dq_backend *b;
    void *p;      /* NULL: the device has no plain read, or no memory for it */
    size_t bytes; /* that were wanted; 0: no plain read */
} dq_bench_block;
/* Multiply-adds, counted as two: a row's projections in all layers, and a row of logits. */
double dq_bench_row_flops(const dq_model *m);
double dq_bench_logits_flops(const dq_model *m);
/* Visible pairs of a query and a key of n tokens; window as in dq_attn. */
double dq_bench_pairs(int window, double n);

/* *flops per second of the backend's dense product at the feed-forward shape, best of three, on
 * nonzero activations, as products skip zeros. */
enum { DQ_BENCH_PRODUCT_ROWS = 1024 };
dq_status dq_bench_product_rate(double *flops, dq_backend *b, const dq_model *m, dq_num num,
                                dq_err *err);

/* n random ids per seed; speed does not depend on them. */
void dq_bench_ids(int32_t *ids, int64_t n, const dq_model *m, uint32_t seed);
/* Ids at positions 0 .. n - 1. */
typedef struct dq_bench_prompt {
    int32_t *ids, *pos; /* [n], owned */
    int64_t n;
} dq_bench_prompt;
dq_status dq_bench_prompt_new(dq_bench_prompt *p, const dq_model *m, int64_t n, dq_err *err);

/* n random numbers in [-1, 1) in backend memory, freed by the caller; NULL with DQ_RESOURCE. */
float *dq_bench_floats(dq_backend *b, int64_t n, dq_err *err);

/* ---- The frame ----
 * A benchmark times some things (a prompt with a rounding of logits, a cache, a policy) at one
 * length after the other. Within a run the things take turns, so that a machine that slows down
 * slows them alike; run -1 warms up. What a thing takes are columns of numbers, one a run, of which
 * rows tell the median, the least and the most. */

/* Every function gets dq_bench.arg. */
typedef struct dq_bench_kind {
    dq_usage usage;
    const char *option; /* that names lengths; NULL: there is but one */
    int longest;        /* of that option */
    int columns;
    int power;     /* of the length: what a thing takes, for progress */
    bool together; /* things of all lengths take turns */
    bool rotates;  /* the next run begins with the next thing */
    int extra;     /* runs that progress counts beside the timed ones: the first, and a `begin` */
    bool codes;    /* kv_bits is a setting */
    bool peaks;    /* so is the peak */
    bool tokens;   /* runs are tokens, and --math is none */
    bool prompts;  /* dq_bench.prompt is a prompt of the length at hand */
    /* With model and backend open: sets n and what all lengths need. */
    dq_status (*open)(void *arg, dq_err *err);
    void (*close)(void *arg);                   /* after a failure too; NULL: nothing to do */
    dq_status (*begin)(void *arg, dq_err *err); /* a length, dq_bench.at; NULL: nothing to do */
    void (*end)(void *arg);                     /* after a failure too; NULL: nothing to do */
    dq_status (*step)(void *arg, int i, dq_err *err); /* thing i of a run */
    dq_status (*ended)(void *arg, dq_err *err);       /* a run; NULL: nothing to do */
    dq_row_items *rows;                               /* of a thing */
    void (*heading)(const void *arg);                 /* of the table */
} dq_bench_kind;

/* Most lengths, contexts or batches of a list; most sequences of a batch. */
enum { DQ_BENCH_LIST = 16, DQ_BENCH_BATCH = 8 };
typedef struct dq_bench_list {
    int at[DQ_BENCH_LIST], n;
} dq_bench_list;

/* Most roundings of one benchmark: every width with every granularity, after none. */
enum { DQ_BENCH_LOGITS = 33 };

typedef struct dq_bench {
    const dq_bench_kind *kind;
    void *arg;                              /* of its functions */
    dq_arena *a;                            /* until all is closed */
    const char *device, *lengths, *batches; /* batches NULL: none are read */
    dq_word math_word;                      /* a dq_num */
    const char *logit_bits;                 /* NULL: not given */
    dq_words logit_granularity;             /* each a dq_granularity */
    int64_t threads, runs;                  /* runs: timed, after one that warms up */
    bool json;
    dq_logger logger;
    /* settings that some have; 0: not its own */
    int64_t new_tokens; /* of a run */
    double keep;
    const char *file; /* a second input, of items */
    int64_t limit;    /* of these; 0: all */
    /* by the frame, before `open` */
    dq_bench_list length, batch;
    dq_math math;
    dq_logit_spec logit[DQ_BENCH_LOGITS]; /* [n_logits], the first one unrounded */
    int n_logits;
    dq_kv_spec kv; /* 16 bits; per-token codes of 8 bits in int8, which every policy evicts alike */
    dq_model *model;
    dq_backend *backend;
    const dq_ops *ops; /* its own, which a kind may replace */
    /* by `open` */
    dq_runner *runner;
    dq_bench_block block;
    int n, n_shown; /* things, and those with a result; n_shown 0: all */
    /* while it runs */
    int at;                  /* the length */
    int64_t run;             /* -1: warms up */
    const char *instruction; /* of the peak; NULL: not known */
    dq_progress progress;
    dq_bench_prompt prompt;
    double done;    /* of the progress, before the step at hand */
    double *sample; /* [n][columns][runs] */
} dq_bench;

#define DQ_BENCH(kind_, arg_)                                                                      \
    {                                                                                              \
        .kind = &(kind_), .arg = (arg_), .device = "auto", .math_word = {"f32", DQ_NUM_F32},       \
        .runs = 5                                                                                  \
    }
/* Every benchmark but compare has DQ_BENCH_RUN. */
#define DQ_BENCH_RUN(x)                                                                            \
    DQ_OPT_RUN(&(x).device, &(x).threads), dq_opt_flag("json", &(x).json, "one JSON document"),    \
        DQ_LOGGER_OPTIONS((x).logger)
#define DQ_BENCH_HOW(x)                                                                            \
    dq_opt_word("math", "KIND", &(x).math_word, dq_num_name, DQ_NUMS,                              \
                "{words} (default f32); int8 takes packed containers and keeps keys "              \
                "and values as per-token codes of 8 bits"),                                        \
        dq_opt_int("runs", "N", &(x).runs, 1, 1000,                                                \
                   "timed runs after one that warms up (default 5)"),                              \
        DQ_BENCH_RUN(x)
#define DQ_BENCH_LOGIT(x)                                                                          \
    dq_opt_text("logit-bits", "LIST", &(x).logit_bits,                                             \
                "widths of attention logits, timed in turns with unrounded ones"),                 \
        dq_opt_words("logit-granularity", "LIST", &(x).logit_granularity, dq_granularity_name,     \
                     DQ_GRANULARITIES, "of --logit-bits: {words} (default per-tensor)")

/* A command: reads its options, runs the kind, prints table or document. */
dq_status dq_bench_main(dq_bench *x, int argc, char **argv, const dq_opt *opts, dq_err *err);
/* *seconds of a prefill of x->prompt, up to the last row's log-probability. */
dq_status dq_bench_prompt_run(double *seconds, const dq_bench *x, dq_logit_spec logit, dq_err *err);
/* In `open`: makes the runner for x->kv. */
dq_status dq_bench_open_runner(dq_bench *x, dq_err *err);
/* Where a column of a thing stands for the run at hand. */
double *dq_bench_sample(const dq_bench *x, int64_t thing, int column);
typedef struct dq_bench_timing {
    double median, min, max;
} dq_bench_timing;
/* Of all runs, which it sorts. */
dq_bench_timing dq_bench_timing_of(const dq_bench *x, int64_t thing, int column);

/* "16", "8 per-row" */
enum { DQ_BENCH_LOGIT_NAME = 24 };
const char *dq_bench_logit_name(char *out, dq_logit_spec s);
/* What results begin with: model and `what`. */
void dq_bench_rows_begin(dq_row_writer *w, const dq_bench *x, const char *what);
/* logit_bits and logit_granularity, null at 16 bits. */
void dq_bench_logit_rows(dq_row_writer *w, const dq_logit_spec *s);
/* PREFIX_median, PREFIX_min, PREFIX_max of a column, and their titles in a table; NULL: none. */
typedef struct dq_bench_column {
    int at;
    const char *prefix, *about; /* of the median */
    const char *title, *min, *max;
    int digits;
    double scale;
} dq_bench_column;
void dq_bench_timing_rows(dq_row_writer *w, const dq_bench *x, int64_t thing,
                          const dq_bench_column *c);
#define DQ_BENCH_TIMING(w, x, thing, at_, prefix_, ...)                                            \
    dq_bench_timing_rows(                                                                          \
        w, x, thing,                                                                               \
        &(const dq_bench_column){.at = (at_), .prefix = (prefix_), .about = __VA_ARGS__})
/* DQ_MISMATCH: the model has not the positions of a context and `more` tokens. */
dq_status dq_bench_check_positions(const dq_bench *x, int64_t more, dq_err *err);

/* Results of each benchmark, for the schema of all. */
dq_row_items dq_bench_prefill_rows, dq_bench_decode_rows, dq_bench_generate_rows,
    dq_bench_attention_rows, dq_bench_evict_rows, dq_bench_items_rows;

#endif
