/* bench_run: what the commands of dq bench have in common: their options, and the model, backend and cache that they open.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_RUN_H
#define DQ_BENCH_RUN_H

#include "engine/runner.h"
#include "settings/options.h"

/* Numbers of a list: lengths, contexts or batches. */
enum { DQ_BENCH_LIST = 16 };
typedef struct dq_bench_list {
    int at[DQ_BENCH_LIST], n;
} dq_bench_list;
/* "128,512": numbers of 1 to max. */
dq_status dq_bench_list_read(dq_bench_list *out, const char *text, const char *option, int max,
                             dq_err *err);

/* Roundings of logits that one benchmark compares: every width with every granularity, after none. */
enum { DQ_BENCH_LOGITS = 33 };

typedef struct dq_bench {
    /* the command line */
    const char *device;
    dq_word math_word;          /* a dq_num */
    const char *logit_bits;     /* NULL: not given */
    dq_words logit_granularity; /* each a dq_granularity */
    int64_t threads, runs;      /* runs: timed, after one that warms up */
    bool json;
    dq_logger logger;
    /* what it means, once dq_bench_open has been called */
    dq_math math;
    dq_logit_spec logit[DQ_BENCH_LOGITS]; /* [n_logits], the first one unrounded */
    int n_logits;
    dq_kv_spec kv; /* 16 bits; per-token codes of 8 bits in int8, which every policy evicts alike */
    dq_model *model;
    dq_backend *backend;
    dq_runner *runner; /* after dq_bench_open_runner */
} dq_bench;
extern const dq_bench dq_bench_defaults;

/* Rows of options. Every benchmark but compare has DQ_BENCH_RUN. */
#define DQ_BENCH_RUN(x)                                                                            \
    DQ_OPT_RUN(&(x).device, &(x).threads), dq_opt_flag("json", &(x).json, "one JSON document"),    \
        DQ_LOGGER_OPTIONS((x).logger)
#define DQ_BENCH_RUNS(x)                                                                           \
    dq_opt_int("runs", "N", &(x).runs, 1, 1000, "timed runs after one that warms up (default 5)")
#define DQ_BENCH_MATH(x)                                                                           \
    dq_opt_word("math", "KIND", &(x).math_word, dq_num_name, DQ_NUMS,                              \
                "{words} (default f32); int8 takes packed containers and keeps keys "              \
                "and values as per-token codes of 8 bits")
#define DQ_BENCH_LOGIT(x)                                                                          \
    dq_opt_text("logit-bits", "LIST", &(x).logit_bits,                                             \
                "widths of attention logits, timed in turns with unrounded ones"),                 \
        dq_opt_words("logit-granularity", "LIST", &(x).logit_granularity, dq_granularity_name,     \
                     DQ_GRANULARITIES, "of --logit-bits: {words} (default per-tensor)")

/* command: "bench decode", as messages name it. Reads the words, opens the model and the backend, and checks that it can do this. End with dq_bench_close, also after a
 * failure. */
dq_status dq_bench_open(dq_bench *x, const char *command, const char *path, dq_err *err);
dq_status dq_bench_open_runner(dq_bench *x, dq_err *err);
void dq_bench_close(dq_bench *x);

/* "16", "8 per-row" */
enum { DQ_BENCH_LOGIT_NAME = 24 };
const char *dq_bench_logit_name(char *out, dq_logit_spec s);

#endif
