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

/* ---- Bench bytes ----
 * The stored bytes of the weights that one step of decoding reads, and their storage in words. */

/* Bytes as stored; a layout that a device makes for itself may take a little more. Every weight that a product reads once,
 * gains and biases; of the embedding the rows that are looked up. A head that shares the embedding's memory is read whole. */
typedef struct dq_bench_bytes {
    double codes, scales;
    double zeros; /* zero points and indices of groups */
    double dense; /* without codes */
    double total;
    double weights; /* numbers in those that products read */
} dq_bench_bytes;
/* Of one pass of so many rows. */
dq_bench_bytes dq_bench_bytes_of(const dq_model *m, int rows);
/* {"total", "codes", "scales", "zeros", "dense"} */
json_t *dq_bench_bytes_json(const dq_bench_bytes *bytes);

/* How the projections are stored: "F32", "W4 in groups of 32", "W8, one group a row", "W4 in groups of 32, zero
 * points". */
enum { DQ_BENCH_WEIGHTS = 96 };
const char *dq_bench_weights(char buf[DQ_BENCH_WEIGHTS], const dq_model *m);

/* Seconds by the clock of dq_bench_now. */
typedef struct dq_bench_clocked {
    double attention; /* attend, and the first sweep of attn_absmax */
    double products;  /* matmul and logprob */
} dq_bench_clocked;

/* From now on the operations of b are timed, for one backend at a time. False where they are asynchronous, so that a call
 * says nothing of its operation; nothing is changed then. */
bool dq_bench_clocked_begin(dq_backend *b);
/* What has come together since the last call. */
dq_bench_clocked dq_bench_clocked_take(void);
/* Puts back what _begin changed; nothing where it returned false. */
void dq_bench_clocked_end(dq_backend *b);

/* The peak: operations per second of the multiply-adds of which products in `num` with w are made (NULL: those of
 * attention), on all threads, for some 20 ms; their instruction (static). NaN and NULL where the device does not
 * know. */
double dq_bench_limits_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction);
/* The highest of a model's products in `num`, which run different kernels where weights are stored differently. */
double dq_bench_limits_model(dq_backend *b, dq_num num, const dq_model *m,
                             const char **instruction);
/* "f32 multiply-adds (vfmadd, 512 bits)" into name, "not known" of NULL; returns it. */
enum { DQ_BENCH_PEAK = 80 };
const char *dq_bench_peak(char name[DQ_BENCH_PEAK], dq_num num, const char *instruction);
/* The member "peak" of a document's settings, null where it is not known. */
void dq_bench_peak_json(json_t *settings, dq_num num, const char *instruction);

/* A block that nothing else reads. */
typedef struct dq_bench_block {
    dq_backend *b;
    void *p;      /* NULL: the device has no plain read, or no memory for it */
    size_t bytes; /* that were wanted; 0: no plain read */
} dq_bench_block;
/* As large as `weights` bytes, but at least four times the last-level cache and 128 MiB; all in all at most 1 GiB. Call it
 * when b has no error. */
void dq_bench_block_new(dq_bench_block *block, dq_backend *b, double weights);
void dq_bench_block_free(dq_bench_block *block); /* {0} is allowed */
/* Bytes per second of reading it on all threads, once and again until `seconds` are over; NaN without one. Leaves nothing
 * else in the caches. */
double dq_bench_block_read(const dq_bench_block *block, double seconds);

typedef struct dq_bench_timing {
    double median, min, max;
} dq_bench_timing;
/* Of n > 0 numbers, which it sorts. */
dq_bench_timing dq_bench_timing_of(double *s, int64_t n);

/* The clock of benchmarks, in seconds. One thread of the CPU is timed by what it gets of a processor, which other work
 * on the machine disturbs less; waiting threads may spin, so several are timed by the clock on the wall. */
double dq_bench_now(const dq_backend *b);
/* Multiply-adds (each counts as two) of the projections of one row in all layers, of one row of logits, and of one
 * prefill of n tokens: these, the visible query-key pairs of every map and the value products of every output
 * head. */
double dq_bench_row_flops(const dq_model *m);
double dq_bench_logits_flops(const dq_model *m);
double dq_bench_prefill_flops(const dq_model *m, double n);

/* *flops: per second, of the backend's own dense product at the feed-forward shape, the best of three.
 * Activations are filled in: products pass over what is zero. */
enum { DQ_BENCH_PRODUCT_ROWS = 1024 };
dq_status dq_bench_product_rate(double *flops, dq_backend *b, const dq_model *m, dq_num num,
                                dq_err *err);

/* n invented ids, others for every seed: speed does not depend on them. */
void dq_bench_ids(int32_t *ids, int64_t n, const dq_model *m, uint32_t seed);
/* n of them at positions 0 .. n - 1. */
typedef struct dq_bench_prompt {
    int32_t *ids, *pos; /* [n], owned */
    int64_t n;
} dq_bench_prompt;
dq_status dq_bench_prompt_new(dq_bench_prompt *p, const dq_model *m, int64_t n, dq_err *err);
void dq_bench_prompt_free(dq_bench_prompt *p);
/* *seconds of one prefill, from the first operation to the last row's log-probability. */
dq_status dq_bench_prompt_run(double *seconds, dq_runner *r, const dq_bench_prompt *p,
                              dq_logit_spec logit, dq_math math, dq_err *err);

/* n invented numbers in [-1, 1) in backend memory; NULL with DQ_RESOURCE. The caller frees them. */
float *dq_bench_floats(dq_backend *b, int64_t n, dq_err *err);

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

/* A number or text: a member of a result (NULL: none) and a cell of a column (title NULL: none). Cells hold the number times
 * `scale`. */
typedef struct dq_bench_figure {
    const char *member, *title;
    const char *text; /* NULL: a number */
    double value;     /* NaN: not known, null in JSON */
    bool whole;       /* an integer in JSON */
    double scale;
    int digits; /* after the point, in a cell */
} dq_bench_figure;

static inline dq_bench_figure dq_bench_text(const char *member, const char *title, const char *text)
{
    return (dq_bench_figure){.member = member, .title = title, .text = text};
}
static inline dq_bench_figure dq_bench_count(const char *member, const char *title, int64_t n)
{
    return (dq_bench_figure){
        .member = member, .title = title, .value = (double)n, .whole = true, .scale = 1};
}
static inline dq_bench_figure dq_bench_real(const char *member, const char *title, double value,
                                            double scale, int digits)
{
    return (dq_bench_figure){
        .member = member, .title = title, .value = value, .scale = scale, .digits = digits};
}

typedef struct dq_bench_report {
    const dq_bench *bench;
    json_t *doc, *settings; /* borrowed settings of doc */
    dq_table *table;        /* columns are those of the first row */
} dq_bench_report;

/* A document with its model among the inputs, and the device, threads and clock among the settings. */
dq_status dq_bench_report_begin(dq_bench_report *r, const dq_bench *bench, dq_err *err);
/* Adds a result of kind `what`; the object belongs to the document, for members that are no figures. */
json_t *dq_bench_report_add(dq_bench_report *r, const char *what, const dq_bench_figure *f, int n,
                            dq_err *err);
/* Adds the members logit_bits and logit_granularity, null at 16 bits. */
void dq_bench_report_logit(json_t *result, dq_logit_spec s);
/* The members runs and math of the settings. */
void dq_bench_report_runs(dq_bench_report *r);
/* Prints the table, or with --json the document. */
dq_status dq_bench_report_print(const dq_bench_report *r, dq_err *err);
void dq_bench_report_end(dq_bench_report *r);

#endif
