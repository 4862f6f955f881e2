/* cmd_bench: what of the command line belongs together, and who measures it: prefill (bench_prefill.h), whole-model
 * decoding (bench_generate.h), attention of single tokens (bench_decode.h) and of prompts (bench_attention.h), scoring
 * of short items (bench_items.h), policies of eviction (bench_policies.h); or documents side by side (bench_compare.h).
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_attention.h"
#include "cmds/bench/bench_compare.h"
#include "cmds/bench/bench_decode.h"
#include "cmds/bench/bench_generate.h"
#include "cmds/bench/bench_items.h"
#include "cmds/bench/bench_policies.h"
#include "cmds/bench/bench_prefill.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/kv_options.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/logger.h"
#include "cmds/cli/options.h"
#include "cmds/command.h"

#include <string.h>

enum { MAX_LENGTHS = 16, DEFAULT_RUNS = 5 };

typedef struct bench {
    const char *lengths_text, *contexts_text, *batches_text, *device, *items, *task, *math_word;
    const char *logit_bits, *logit_granularity, *policies, *types_text;
    int64_t threads, runs, decode, generate, limit; /* threads -1, others 0: not given */
    bool json, compare, attention;
    int length[MAX_LENGTHS], n_lengths, context[MAX_LENGTHS], n_contexts;
    int batch[DQ_BENCH_BATCH_MAX], n_batches;
    dq_logit_spec logit[DQ_BENCH_LOGITS];
    int n_logits;
    dq_kv_dense type[DQ_KV_DENSE_TYPES];
    int n_types;
    dq_math math;
    dq_kv_spec kv;
    dq_logger logger;
    dq_model *model;
    dq_backend *backend;
    dq_runner *runner;
} bench;

/* What is measured; one bit each, so that an option can name those that use it. */
enum {
    PREFILL = 1,
    ITEMS = 2,
    DECODE = 4,
    GENERATE = 8,
    ATTENTION = 16,
    COMPARE = 32,
    POLICIES = 64,
    ALL = 127
};

typedef struct mode {
    const char *name; /* the option that says so */
    bool requested;
    int bit;
} mode;

static dq_status find_mode(const bench *x, mode *out, dq_err *err)
{
    const mode all[] = {
        {"items", x->items != NULL, ITEMS},           {"decode", x->decode > 0, DECODE},
        {"generate", x->generate > 0, GENERATE},      {"attention", x->attention, ATTENTION},
        {"kv-policy", x->policies != NULL, POLICIES}, {"compare", x->compare, COMPARE}};
    *out = (mode){.bit = PREFILL};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (out->requested && all[i].requested)
            return dq_fail(err, DQ_USAGE, "--%s and --%s measure different things. Give one.",
                           out->name, all[i].name);
        if (all[i].requested) *out = all[i];
    }
    return DQ_OK;
}

/* Every option acts on what is measured, or is refused: with what to add where nothing but prefill was asked for, and
 * where it is of no use beside another option, with that one. */
static dq_status check_options(const bench *x, const mode *m, dq_err *err)
{
    static const char takes[] = ", which takes several in turn",
                      every[] = ", which times every token", table[] = ", which prints a table";
    const struct {
        const char *name;
        bool given;
        int used; /* by these */
        const char *add, *why;
    } all[] = {{"context", x->contexts_text, DECODE | GENERATE, "--decode N or --generate N", ""},
               {"kv-dense-type", x->types_text, DECODE, "--decode N", ""},
               {"batch", x->batches_text, GENERATE, "--generate N", ""},
               {"task", x->task, ITEMS, "--items FILE", ""},
               {"limit", x->limit, ITEMS, "--items FILE", ""},
               {"tokens", x->lengths_text, PREFILL | ATTENTION | POLICIES, NULL, ""},
               {"logit-bits", x->logit_bits, PREFILL | ATTENTION, NULL, ""},
               {"logit-granularity", x->logit_granularity, PREFILL | ATTENTION, NULL, ""},
               {"math", x->math_word, ALL & ~DECODE, NULL, takes},
               {"math", x->math_word, ALL & ~COMPARE, NULL, ""},
               {"runs", x->runs, ALL & ~DECODE, NULL, every},
               {"runs", x->runs, ALL & ~COMPARE, NULL, ""},
               {"device", x->device, ALL & ~COMPARE, NULL, ""},
               {"threads", x->threads >= 0, ALL & ~COMPARE, NULL, ""},
               {"json", x->json, ALL & ~COMPARE, NULL, table},
               {"quiet", x->logger.quiet, ALL & ~COMPARE, NULL, ""},
               {"verbose", x->logger.verbose, ALL & ~COMPARE, NULL, ""},
               {"progress", x->logger.progress, ALL & ~COMPARE, NULL, ""}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].given || all[i].used & m->bit) continue;
        if (m->bit == PREFILL)
            return dq_fail(err, DQ_USAGE, "--%s has nothing to act on. Add %s.", all[i].name,
                           all[i].add);
        return dq_fail(err, DQ_USAGE, "--%s has nothing to act on with --%s%s. Leave it out.",
                       all[i].name, m->name, all[i].why);
    }
    return DQ_OK;
}

static dq_status check_command(const bench *x, int n_args, dq_err *err)
{
    mode m;
    DQ_TRY(find_mode(x, &m, err));
    DQ_TRY(check_options(x, &m, err));
    if (!x->compare && n_args > 1)
        return dq_fail(err, DQ_USAGE, "expected one MODEL, found %d arguments. Give one.", n_args);
    return DQ_OK;
}

/* Words with commas between, each once. */
static dq_status read_types(bench *x, const char *text, dq_err *err)
{
    char word[16];
    for (const char *p = text; p; p = *p ? p + 1 : NULL) {
        const size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, p);
        const int type =
            dq_options_word(word, "kv-dense-type", dq_kv_dense_name, DQ_KV_DENSE_TYPES, err);
        if (type < 0) return err->code;
        for (int i = 0; i < x->n_types; i++)
            if (x->type[i] == (dq_kv_dense)type)
                return dq_fail(err, DQ_USAGE, "--kv-dense-type: %s stands twice.", word);
        x->type[x->n_types++] = (dq_kv_dense)type;
        p += n;
    }
    return DQ_OK;
}

static dq_status understand(bench *x, const dq_args *args, dq_err *err)
{
    DQ_TRY(check_command(x, args->n, err));
    if (!x->math_word) x->math_word = "f32";
    if (!x->device) x->device = "auto";
    if (!x->runs) x->runs = DEFAULT_RUNS;
    if (x->threads < 0) x->threads = 0;
    DQ_TRY(read_types(x, x->types_text ? x->types_text : dq_kv_dense_name[DQ_KV_F32], err));
    DQ_TRY(dq_bench_math(&x->math, x->math_word, err));
    DQ_TRY(dq_bench_logits(x->logit, &x->n_logits, x->logit_bits, x->logit_granularity, err));
    DQ_TRY(dq_options_ints(x->length, &x->n_lengths, MAX_LENGTHS,
                           x->lengths_text ? x->lengths_text
                           : x->policies   ? "512"
                                           : "128,512",
                           "tokens", 1, 1 << 20, err));
    DQ_TRY(dq_options_ints(x->batch, &x->n_batches, DQ_BENCH_BATCH_MAX,
                           x->batches_text ? x->batches_text : "1", "batch", 1, DQ_BENCH_BATCH_MAX,
                           err));
    return dq_options_ints(x->context, &x->n_contexts, MAX_LENGTHS,
                           x->contexts_text ? x->contexts_text
                           : x->generate    ? "128"
                                            : "1024",
                           "context", 1, 1 << 24, err);
}

/* A cache that fits the arithmetic: int8 reads keys and values as codes, of tokens, with which every policy forgets alike. */
static dq_status choose_cache(bench *x, dq_err *err)
{
    dq_kv_config kv = dq_kv_config_plain;
    kv.quant = DQ_KV_PER_TOKEN;
    if (x->math.kv == DQ_NUM_INT8) kv.k_bits = kv.v_bits = 8;
    DQ_TRY(dq_kv_options_spec(&x->kv, &kv, x->model, x->math.kv, err));
    return dq_backend_can(x->backend, x->model, x->math, &x->kv, err);
}

static dq_status open_runner(bench *x, dq_err *err)
{
    DQ_TRY(dq_runner_new(&x->runner, x->model, x->backend, &x->kv, err));
    dq_kv_report_note_routes(&x->logger, x->backend, x->model, x->math, &x->kv);
    return DQ_OK;
}

static dq_status measure_items(bench *x, dq_err *err)
{
    const dq_bench_items_options o = {.path = x->items,
                                      .task = x->task ? x->task : "mc",
                                      .limit = x->limit,
                                      .runs = x->runs,
                                      .math_word = x->math_word,
                                      .math = x->math,
                                      .kv = &x->kv,
                                      .json = x->json};
    return dq_bench_items(&x->logger, x->runner, &o, err);
}

static dq_status measure_generate(bench *x, dq_err *err)
{
    const dq_bench_generate_options o = {.steps = x->generate,
                                         .runs = x->runs,
                                         .context = x->context,
                                         .n_contexts = x->n_contexts,
                                         .batch = x->batch,
                                         .n_batches = x->n_batches,
                                         .math_word = x->math_word,
                                         .math = x->math,
                                         .kv = &x->kv,
                                         .json = x->json};
    return dq_bench_generate(&x->logger, x->runner, &o, err);
}

/* Of prompts through the whole model; one layer's attention knows no positions. */
static void warn_positions(bench *x)
{
    const int most = x->model->max_positions;
    for (int i = 0; i < x->n_lengths; i++) {
        if (most > 0 && x->length[i] > most)
            dq_logger_warn(&x->logger,
                           "%s: --tokens %d is more than the %d positions that the model has; the "
                           "time is that of as many rows, but no text of this model is as long",
                           x->model->name, x->length[i], most);
    }
}

static dq_status measure_prefill(bench *x, dq_err *err)
{
    const dq_bench_prefill_options o = {.length = x->length,
                                        .n_lengths = x->n_lengths,
                                        .logit = x->logit,
                                        .n_logits = x->n_logits,
                                        .runs = x->runs,
                                        .math_word = x->math_word,
                                        .math = x->math,
                                        .json = x->json};
    return dq_bench_prefill(&x->logger, x->runner, &o, err);
}

static dq_status measure_policies(bench *x, dq_err *err)
{
    dq_bench_policies_options o = {.length = x->length,
                                   .n_lengths = x->n_lengths,
                                   .runs = x->runs,
                                   .math_word = x->math_word,
                                   .math = x->math,
                                   .kv = &x->kv,
                                   .json = x->json};
    DQ_TRY(dq_bench_policies_read(&o, x->policies, err));
    return dq_bench_policies(&x->logger, x->runner, &o, err);
}

static dq_status measure_attention(bench *x, dq_err *err)
{
    const dq_bench_attention_options o = {.length = x->length,
                                          .n_lengths = x->n_lengths,
                                          .logit = x->logit,
                                          .n_logits = x->n_logits,
                                          .runs = x->runs,
                                          .math_word = x->math_word,
                                          .math = x->math,
                                          .kv = &x->kv,
                                          .json = x->json};
    return dq_bench_attention(&x->logger, x->model, x->backend, &o, err);
}

static dq_status measure_all(bench *x, dq_err *err)
{
    if (x->decode)
        return dq_bench_decode(&x->logger, x->model, x->backend, x->decode, x->context,
                               x->n_contexts, x->type, x->n_types, x->json, err);
    DQ_TRY(choose_cache(x, err));
    if (x->attention) return measure_attention(x, err);
    DQ_TRY(open_runner(x, err));
    if (x->items) return measure_items(x, err);
    if (!x->generate) warn_positions(x);
    if (x->policies) return measure_policies(x, err);
    return x->generate ? measure_generate(x, err) : measure_prefill(x, err);
}

static dq_status measure_model(bench *x, const char *path, dq_err *err)
{
    DQ_TRY(dq_logger_begin(&x->logger, "bench", err));
    if (dq_model_open(&x->model, path, err) == DQ_OK &&
        dq_backend_open(&x->backend, x->device, (int)x->threads, err) == DQ_OK)
        measure_all(x, err);
    dq_runner_free(x->runner);
    dq_backend_close(x->backend);
    dq_model_close(x->model);
    dq_logger_end(&x->logger);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench",
    .synopsis = "MODEL [options] | --compare FILE.json...",
    .about =
        "Times prefill: one prompt of each length through the whole model, up to the next token's "
        "log-probabilities. With --logit-bits passes that round attention logits take turns with "
        "one that does not. The shares compare its rate with that of one dense matrix product of "
        "the same model, measured in the same run, and with the ceiling: multiply-adds of the "
        "widest instruction in the arithmetic of --math, on registers alone, timed after every "
        "run. The ceiling is a measure of arithmetic: in f32, products with packed weights are "
        "sums of integers and may exceed it. With --decode: attention of single tokens after a "
        "context, with nothing in the processor's caches; shares are of what a plain read of "
        "memory reaches in between. With --attention: one layer's attention of a prompt, and, of "
        "a model with two maps, both maps as softmax attentions of their own over the same keys "
        "and values; in int8, tokens that a query reads unquantized are multiplied in f32, and "
        "the share of those read as codes is told. With --generate: whole-model decoding; the "
        "share compares the stored bytes of the weights, scales and KV that a step reads, over "
        "its time, with a plain read of memory (a block of 128 MiB to 1 GiB, for a quarter of the "
        "time), in turns. "
        "With --items: scoring, tokenizing apart; after every group of items comes one long "
        "prefill and one dense product, so that the shares compare times of one machine. With "
        "--kv-policy: what it takes to choose which quarter of a prompt stays, over the prefill. "
        "One "
        "thread is timed by processor time, which other work on the machine disturbs less.",
    .examples = "  dq bench calib/pair/diffllama --tokens 128,512\n"
                "  dq bench model --tokens 2048 --logit-bits 8,4 --logit-granularity "
                "per-row,per-tile,per-tensor\n"
                "  dq bench model --attention --tokens 2048,8192\n"
                "  dq bench model --decode 20 --context 2048,16384\n"
                "  dq bench model4.h5 --generate 64 --batch 1,4 --math int8\n"
                "  dq bench model --kv-policy all --tokens 1024,4096\n"
                "  dq bench --compare peers.json model4.json\n"
                "  dq bench model --items hellaswag_val.jsonl --task hellaswag --limit 1000\n",
    .min_args = 1,
    .max_args = DQ_LIST_MAX,
    .args = "one MODEL, or documents with --compare",
};

dq_status dq_cmd_bench(int argc, char **argv, dq_err *err)
{
    bench x = {.threads = -1};
    const dq_opt opts[] = {
        dq_opt_text("tokens", "N[,N...]", &x.lengths_text,
                    "prompt lengths (default 128,512; with --kv-policy 512, and 272 or more)"),
        dq_opt_int("runs", "N", &x.runs, 1, 1000,
                   "timed runs after one that warms up (default 5), but for --decode"),
        dq_opt_int(
            "decode", "N", &x.decode, 1, 100000,
            "instead: times N tokens one by one, for several widths of the KV cache in turn"),
        dq_opt_int("generate", "N", &x.generate, 1, 100000,
                   "instead: times the whole model decoding N tokens one by one, as dq eval does"),
        dq_opt_text("context", "T[,T...]", &x.contexts_text,
                    "tokens before those of --decode, invented (default 1024); ids of the "
                    "prompts of --generate (default 128)"),
        dq_opt_text("batch", "B[,B...]", &x.batches_text,
                    "sequences of --generate that are decoded together, 1 to 8 (default 1)"),
        dq_opt_flag("attention", &x.attention,
                    "instead: times attention of one layer over --tokens rows, beside two softmax "
                    "attentions"),
        dq_opt_text("logit-bits", "LIST", &x.logit_bits,
                    "widths of attention logits of prefill and --attention, timed in turns with "
                    "unrounded ones"),
        dq_opt_text("logit-granularity", "LIST", &x.logit_granularity,
                    "granularities of --logit-bits (default per-tensor)"),
        dq_opt_text("kv-policy", "LIST", &x.policies,
                    "instead: times evicting three quarters of --tokens tokens by each policy, or "
                    "all, as for dq eval"),
        dq_opt_text("kv-dense-type", "LIST", &x.types_text,
                    "what is not coded of the caches of --decode: f32, f16 or bf16; several: each "
                    "cache with each (default f32)"),
        dq_opt_text("items", "FILE", &x.items,
                    "instead: times scoring the short items of FILE in the groups of dq eval"),
        dq_opt_text("task", "NAME", &x.task, "form of --items, as for dq eval (default mc)"),
        dq_opt_int("limit", "N", &x.limit, 1, 1e9, "the first N items of --items only"),
        dq_opt_text("math", "KIND", &x.math_word,
                    "f32, bf16 or int8 (default f32), for all but --decode; int8 takes packed "
                    "containers and keeps keys and values as per-token codes of 8 bits"),
        DQ_OPT_DEVICE(&x.device),
        dq_opt_int("threads", "N", &x.threads, 0, 1024, "CPU threads (default 0: all processors)"),
        dq_opt_flag("json", &x.json, "one JSON document"),
        dq_opt_flag("compare", &x.compare,
                    "instead: reads documents and prints dq beside peers, a line for every work"),
        DQ_LOGGER_OPTIONS(x.logger),
        {0}};
    dq_args args;

    DQ_TRY(dq_options_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(understand(&x, &args, err));
    return x.compare ? dq_bench_compare(args.item, args.n, err)
                     : measure_model(&x, args.item[0], err);
}
