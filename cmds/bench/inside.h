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

/* Stored bytes; a device's own layout may take a little more. Counts every weight that products
 * read once, gains and biases, and looked-up rows of the embedding; a head that shares its memory
 * counts whole. */
typedef struct dq_bench_bytes {
    double codes, scales;
    double zeros; /* zero points and indices of groups */
    double dense; /* without codes */
    double total;
    double weights; /* numbers in those that products read */
} dq_bench_bytes;
dq_bench_bytes dq_bench_bytes_of(const dq_model *m, int rows);

/* "F32", "W4 in groups of 32", "W8, one group a row", "W4 in groups of 32, zero points". */
enum { DQ_BENCH_WEIGHTS = 96 };
const char *dq_bench_weights(char buf[DQ_BENCH_WEIGHTS], const dq_model *m);

/* Seconds by dq_bench_now. */
typedef struct dq_bench_clocked {
    double attention; /* attend, and the first sweep of attn_absmax */
    double products;  /* matmul and logprob */
} dq_bench_clocked;

/* Times the operations of b from now on, one backend at a time. False, without a change: they are
 * asynchronous. */
bool dq_bench_clocked_begin(dq_backend *b);
/* What has accumulated since the last call. */
dq_bench_clocked dq_bench_clocked_take(void);
/* Undoes _begin; nothing where that returned false. */
void dq_bench_clocked_end(dq_backend *b);

/* The peak: operations per second of the multiply-adds of which products in `num` with w are made
 * (NULL: those of attention), on all threads, for some 20 ms; their instruction (static). NaN and
 * NULL where the device does not know. */
double dq_bench_limits_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction);
/* The highest peak of a model's products, whose kernels differ by stored form. */
double dq_bench_limits_model(dq_backend *b, dq_num num, const dq_model *m,
                             const char **instruction);
/* "f32 multiply-adds (vfmadd, 512 bits)" in name, "not known" for NULL; returns it. */
enum { DQ_BENCH_PEAK = 80 };
const char *dq_bench_peak(char name[DQ_BENCH_PEAK], dq_num num, const char *instruction);

#define DQ_BENCH_ABOUT_PEAK                                                                        \
    "Multiply-adds (two each) of the widest instruction on registers alone, per second; null: "    \
    "not "                                                                                         \
    "known."

/* A block that nothing else reads. */
typedef struct dq_bench_block {
    dq_backend *b;
    void *p;      /* NULL: the device has no plain read, or no memory for it */
    size_t bytes; /* that were wanted; 0: no plain read */
} dq_bench_block;
/* `weights` bytes, but at least four times the last-level cache and 128 MiB, at most 1 GiB in all.
 * b must have no error. */
void dq_bench_block_new(dq_bench_block *block, dq_backend *b, double weights);
void dq_bench_block_free(dq_bench_block *block); /* {0} is allowed */
/* Bytes per second of reading it on all threads for `seconds`; NaN without one. Evicts everything
 * else from the caches. */
double dq_bench_block_read(const dq_bench_block *block, double seconds);

typedef struct dq_bench_timing {
    double median, min, max;
} dq_bench_timing;
/* Sorts its n > 0 numbers. */
dq_bench_timing dq_bench_timing_of(double *s, int64_t n);

/* The clock of benchmarks, in seconds. One thread of the CPU is timed by what it gets of a
 * processor, which other work on the machine disturbs less; waiting threads may spin, so several
 * are timed by the clock on the wall. */
double dq_bench_now(const dq_backend *b);
/* Multiply-adds, counted as two: a row's projections in all layers; a row of logits; and a prefill
 * of n tokens, with visible query-key pairs of every map and value products of every output
 * head. */
double dq_bench_row_flops(const dq_model *m);
double dq_bench_logits_flops(const dq_model *m);
double dq_bench_prefill_flops(const dq_model *m, double n);

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
void dq_bench_prompt_free(dq_bench_prompt *p);
/* *seconds of a prefill, up to the last row's log-probability. */
dq_status dq_bench_prompt_run(double *seconds, dq_runner *r, const dq_bench_prompt *p,
                              dq_logit_spec logit, dq_math math, dq_err *err);

/* n random numbers in [-1, 1) in backend memory, freed by the caller; NULL with DQ_RESOURCE. */
float *dq_bench_floats(dq_backend *b, int64_t n, dq_err *err);

/* Most lengths, contexts or batches of a list. */
enum { DQ_BENCH_LIST = 16 };
typedef struct dq_bench_list {
    int at[DQ_BENCH_LIST], n;
} dq_bench_list;
/* "128,512": numbers of 1 to max. */
dq_status dq_bench_list_read(dq_bench_list *out, const char *text, const char *option, int max,
                             dq_err *err);

/* Most roundings of one benchmark: every width with every granularity, after none. */
enum { DQ_BENCH_LOGITS = 33 };

typedef struct dq_bench {
    const char *device;
    dq_word math_word;          /* a dq_num */
    const char *logit_bits;     /* NULL: not given */
    dq_words logit_granularity; /* each a dq_granularity */
    int64_t threads, runs;      /* runs: timed, after one that warms up */
    bool json;
    dq_logger logger;
    /* set by dq_bench_open */
    dq_math math;
    dq_logit_spec logit[DQ_BENCH_LOGITS]; /* [n_logits], the first one unrounded */
    int n_logits;
    dq_kv_spec kv; /* 16 bits; per-token codes of 8 bits in int8, which every policy evicts alike */
    dq_model *model;
    dq_backend *backend;
    dq_runner *runner; /* after dq_bench_open_runner */
} dq_bench;
extern const dq_bench dq_bench_defaults;

/* Every benchmark but compare has DQ_BENCH_RUN. */
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

/* command: "bench decode", for messages. Reads the words, opens model and backend, and checks that
 * they can do this. End with dq_bench_close, after a failure too. */
dq_status dq_bench_open(dq_bench *x, const char *command, const char *path, dq_err *err);
dq_status dq_bench_open_runner(dq_bench *x, dq_err *err);
void dq_bench_close(dq_bench *x);

/* "16", "8 per-row" */
enum { DQ_BENCH_LOGIT_NAME = 24 };
const char *dq_bench_logit_name(char *out, dq_logit_spec s);

/* Settings of a benchmark beside device, threads and clock; 0: not its own. */
typedef struct dq_bench_settings {
    bool runs;               /* runs and math are */
    bool peaks;              /* so is the peak, whose instruction is NULL where it is not known */
    const char *instruction; /* in `num` */
    dq_num num;
    int kv_bits;
    int64_t decode, generate; /* tokens; with `generate` the bytes of a plain read, 0: none */
    int64_t read_bytes;
    double keep;
    const char *file; /* a second input, of items */
    int64_t limit;    /* of these; 0: all */
} dq_bench_settings;

/* The document of a benchmark, and its table, whose columns are those of the first result. */
typedef struct dq_bench_report {
    const dq_bench *bench;
    json_t *doc;
    dq_table *table;
} dq_bench_report;

dq_status dq_bench_report_begin(dq_bench_report *r, const dq_bench *bench, dq_err *err);
/* Adds the result that `rows` makes of `arg` and i. */
void dq_bench_report_add(dq_bench_report *r, dq_row_items *rows, const void *arg, int64_t i,
                         dq_err *err);
/* What results begin with: model and `what`. */
void dq_bench_rows_begin(dq_row_writer *w, const dq_bench *x, const char *what);
/* logit_bits and logit_granularity, null at 16 bits. */
void dq_bench_logit_rows(dq_row_writer *w, const dq_logit_spec *s);
/* PREFIX_median, PREFIX_min, PREFIX_max, with columns of these titles; NULL: none. */
typedef struct dq_bench_column {
    const char *prefix, *about; /* of the median */
    const char *title, *min, *max;
    int digits;
    double scale;
} dq_bench_column;
void dq_bench_timing_rows(dq_row_writer *w, const dq_bench_column *c, const dq_bench_timing *t);
void dq_bench_report_settings(dq_bench_report *r, const dq_bench_settings *s);
dq_status dq_bench_report_print(const dq_bench_report *r, dq_err *err);
void dq_bench_report_end(dq_bench_report *r);

/* Results of each benchmark, for the schema of all. */
dq_row_items dq_bench_prefill_rows, dq_bench_decode_rows, dq_bench_generate_rows,
    dq_bench_attention_rows, dq_bench_evict_rows, dq_bench_items_rows;

#endif
