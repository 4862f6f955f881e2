/* The ids are scored once per head order, in one pass each, with the model opened anew under that
 * map. Losses are then compared id by id in blocks of 32, which are the clusters of the interval.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/file.h"
#include "base/os.h"
#include "checkpoint/h5_result.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "engine/backend.h"
#include "engine/runner.h"
#include "eval/score.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "stat/stat.h"
#include "tasks/items.h"
#include "work/ranks.h"

#include <math.h>
#include <omp.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_IDS = 512, MAX_MAPS = DQ_PAIR_COUNT };
enum { BLOCK = 32 }; /* ids that count as one cluster: neighbours depend on each other */
static const double clear = 0.02; /* nats: less than this is no sign of another order */

typedef struct trial {
    const char *model;
    dq_input_ids in;
    int64_t n; /* ids scored: all but the first of those fed */
    dq_arena *a;
    dq_backend *b;
    dq_logger *logger;
    int n_maps; /* the checkpoint's own comes first */
    int better; /* the one that reads the text better; 0: none */
    dq_pairing map[MAX_MAPS];
    double *nll[MAX_MAPS];                  /* [n] nats */
    dq_mean mean[MAX_MAPS], less[MAX_MAPS]; /* of these; less those of its own */
} trial;

/* -ln p of tokens 1..n given those before, in one pass. */
static dq_status score(trial *t, dq_runner *r, double *nll, dq_err *err)
{
    const dq_ops *op = t->b->ops;
    int64_t n = t->n, cu[2] = {0, n};
    int32_t *pos = dq_alloc(t->a, (size_t)n, sizeof *pos, err);
    if (!pos) return err->code;
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)i;
    int32_t seq = op->kv_seq_new(t->b, dq_runner_kv(r));
    if (seq < 0) {
        dq_backend_sync(t->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = t->in.ids, .pos = pos};
    dq_pass pass = {.logit = {.bits = 16}};
    dq_mat hidden;
    DQ_TRY(dq_runner_pass(r, &batch, &pass, &hidden, err));
    op->logprob(t->b, nll, NULL, hidden, &dq_runner_model(r)->head, t->in.ids + 1, DQ_NUM_F32);
    DQ_TRY(dq_backend_sync(t->b, err));
    DQ_TRY(dq_score_check_logp(dq_runner_model(r), nll, n, err));
    for (int64_t i = 0; i < n; i++) nll[i] = -nll[i];
    return DQ_OK;
}

/* Mean of x - y (y NULL: of x) over blocks of ids. */
static dq_mean mean_of(const trial *t, const double *x, const double *y, dq_err *err)
{
    double *less = dq_alloc(t->a, (size_t)t->n, sizeof *less, err);
    int32_t *cluster = dq_alloc(t->a, (size_t)t->n, sizeof *cluster, err);
    if (err->code != DQ_OK) return dq_mean_none;
    for (int64_t i = 0; i < t->n; i++) {
        less[i] = x[i] - (y ? y[i] : 0.0);
        cluster[i] = (int32_t)(i / BLOCK);
    }
    return dq_mean_clustered(less, cluster, t->n);
}

/* Whether map i reads better than its own by `clear`, does not, or neither; NULL: it is that. */
static const char *judge(const trial *t, int64_t i)
{
    const dq_interval x = dq_mean_interval(t->less[i]);
    if (i == 0) return NULL;
    if (x.high < -clear) return "better";
    return x.low > -clear ? "not better" : "inconclusive";
}

static const char *mean_text(char buf[64], bool signs, dq_mean m)
{
    const int n = snprintf(buf, 64, signs ? "%+.4f" : "%.4f", m.value);
    if (isfinite(m.std_err)) snprintf(buf + n, 64 - (size_t)n, " \u00b1 %.4f", m.std_err);
    return buf;
}

static void map_rows(dq_row_writer *w, const void *tried, int64_t i)
{
    const trial *t = tried;
    char order[64], nll[64], less[64];
    if (w->cell)
        snprintf(order, sizeof order, "%s%s", dq_head_order_pairing_name(t->map[i]),
                 i == 0 ? " (its own)" : "");
    DQ_CELL(w, order, "head order");
    DQ_PUT(w, "head_order", dq_head_order_pairing_name(t->map[i]), "Its name.");
    DQ_METRIC(w, "nll_nats", t->mean[i], "Mean NLL of a token in nats.");
    DQ_CELL(w, mean_text(nll, false, t->mean[i]), "NLL (nats)");
    if (DQ_BEGIN(w, OBJECT, "minus_own", i > 0, "Less that of its own order; null: it is that.",
                 .when = DQ_NULL)) {
        DQ_PUT(w, "value", t->less[i].value, "In nats.", .when = DQ_NULL);
        DQ_PUT(w, "stderr", t->less[i].std_err, "Paired standard error.", .when = DQ_NULL);
        DQ_INTERVAL(w, "interval", dq_mean_interval(t->less[i]), "95 % interval.");
        dq_row_end(w);
    }
    DQ_CELL(w, i ? mean_text(less, true, t->less[i]) : NULL, "against its own");
    DQ_PUT(w, "is", judge(t, i), "What follows; null: its own order.", .when = DQ_NULL,
           DQ_WORD("better", "not better", "inconclusive"), .title = "better");
}

static void trial_rows(dq_row_writer *w, const trial *t)
{
    DQ_PUT(w, "model", t->model, "The model.");
    DQ_PUT(w, "own", dq_head_order_pairing_name(t->map[0]), "The head order of its architecture.");
    DQ_PUT(w, "better", t->better ? dq_head_order_pairing_name(t->map[t->better]) : NULL,
           "The order that reads the text better; null: none does.", .when = DQ_NULL);
    DQ_PUT(w, "n", t->n, "Tokens that were scored.");
    DQ_PUT(w, "n_clusters", (int64_t)t->mean[0].clusters, "Blocks of them.");
    DQ_ITEMS(w, "maps", map_rows, t, t->n_maps,
             "Each order that has the checkpoint's shapes, its own first.");
}

/* Better is the map whose NLL is lower by more than `clear` with all of the paired difference's
 * 95 % interval. */
static void decide(trial *t, dq_err *err)
{
    double best = 0.0;
    for (int i = 0; i < t->n_maps; i++) {
        t->mean[i] = mean_of(t, t->nll[i], NULL, err);
        t->less[i] = mean_of(t, t->nll[i], t->nll[0], err);
        if (i == 0 || !(t->less[i].value < best) || strcmp(judge(t, i), "better") != 0) continue;
        best = t->less[i].value;
        t->better = i;
    }
    if (t->better)
        dq_logger_warn(t->logger,
                       "%s: head order \"%s\" reads this text better than the \"%s\" of its "
                       "architecture. If more "
                       "text agrees, give --head-order %s",
                       t->model, dq_head_order_pairing_name(t->map[t->better]),
                       dq_head_order_pairing_name(t->map[0]),
                       dq_head_order_pairing_name(t->map[t->better]));
}

/* Scores the first 512 tokens of a text (NULL: the built-in one) with every head order of the
 * checkpoint's shapes; model, logger and arena are set. */
static dq_status try_all(trial *t, const char *text_path, dq_err *err)
{
    dq_model *m = NULL;
    dq_tokenizer *tok = NULL;
    dq_input_text text = {0};
    if (dq_input_model(&m, t->model, NULL, t->logger, err) == DQ_OK &&
        dq_input_tokenizer(&tok, m, true, err) == DQ_OK &&
        dq_input_read(&text, text_path, t->a, err) == DQ_OK &&
        dq_input_encode(&t->in, tok, &text,
                        dq_items_bos_flags(tok, DQ_BOS_AUTO, text.text, text.bytes), t->logger,
                        t->a, err) == DQ_OK) {
        const dq_pairing own = m->map.pairing;
        t->n = (t->in.n < MAX_IDS ? t->in.n : MAX_IDS) - 1;
        if (t->n > m->max_positions) t->n = m->max_positions;
        t->map[t->n_maps++] = own;
        for (int p = 0; p < DQ_PAIR_COUNT; p++) {
            if ((dq_pairing)p != own && dq_head_order_pairing_same_shape(own, (dq_pairing)p))
                t->map[t->n_maps++] = (dq_pairing)p;
        }
        if (t->n < 1) dq_fail(err, DQ_DAMAGED, "%s: fewer than 2 tokens", text.path);
    }
    dq_tokenizer_free(tok);
    dq_model_close(m);
    if (err->code == DQ_OK) dq_backend_open(&t->b, "cpu", 0, err);
    for (int i = 0; err->code == DQ_OK && i < t->n_maps; i++) {
        dq_runner *r = NULL;
        m = NULL;
        t->nll[i] = dq_alloc(t->a, (size_t)t->n, sizeof *t->nll[i], err);
        dq_logger_note(t->logger, "head order %s", dq_head_order_pairing_name(t->map[i]));
        if (t->nll[i] && dq_model_open_as(&m, t->model, t->map[i], err) == DQ_OK &&
            dq_runner_new(&r, m, t->b, &dq_kv_plain, err) == DQ_OK &&
            score(t, r, t->nll[i], err) == DQ_OK)
            dq_os_maps_check(err);
        dq_runner_free(r);
        dq_model_close(m);
    }
    if (err->code == DQ_OK) decide(t, err);
    dq_backend_close(t->b);
    return err->code;
}

/* Of the other maps, the least certain one decides the sentence. */
static dq_status print_trial(const trial *t, dq_err *err)
{
    bool open = false;
    printf("\n%s: %lld tokens read with every head order of its shapes; \u00b1 one standard error "
           "over %lld blocks of %d\n\n",
           t->model, (long long)t->n, (long long)t->mean[0].clusters, BLOCK);
    DQ_TRY(dq_table_rows(map_rows, t, t->n_maps, 1, err));
    for (int i = 1; i < t->n_maps; i++) open = open || strcmp(judge(t, i), "inconclusive") == 0;
    if (t->better)
        printf("\nHead order %s reads this text better by more than %g nats, at 95 %%: the "
               "architecture's "
               "order is in doubt.\n",
               dq_head_order_pairing_name(t->map[t->better]), clear);
    else if (t->n_maps < 2)
        printf("\nNo other head order has these shapes.\n");
    else if (open)
        printf("\nNot decided: these tokens do not tell whether another head order reads them "
               "better by %g nats. Try another text.\n",
               clear);
    else
        printf("\nNo other head order reads this text better by %g nats, at 95 %%.\n", clear);
    return err->code;
}

static const dq_usage usage = {
    .name = "doctor",
    .synopsis = "[--model MODEL [--text FILE]] [--json]",
    .about = "Prints versions, libraries, CPU features and devices. Put its output into bug "
             "reports. With --model it also reads 512 tokens of a text with every order of heads "
             "that fits the checkpoint's shapes: a wrong order loads without an error, and only "
             "the likelihood shows it.\n",
    .examples = "  dq doctor\n"
                "  dq doctor --model calib/pair/diffllama --text calib/pair/text.txt\n",
    .args = "no argument",
};

static void program_rows(dq_row_writer *w)
{
#if defined(__clang__)
    const char *compiler = "clang " __clang_version__;
#elif defined(__GNUC__)
    const char *compiler = "gcc " __VERSION__;
#else
    const char *compiler = "unknown";
#endif
#if defined(__SANITIZE_ADDRESS__)
    const bool sanitizers = true;
#else
    const bool sanitizers = false;
#endif
    DQ_PUT(w, "dq", DQ_VERSION, "Its version.");
    DQ_PUT(w, "commit", dq_commit_text(), "The commit it was built from; null: not known.",
           .when = DQ_NULL);
    DQ_PUT(w, "compiler", compiler, "What compiled it.");
    DQ_PUT(w, "sanitizers", sanitizers, "Whether it has sanitizers.");
}

/* "MemTotal:  123 kB" of /proc/meminfo in bytes; -1 where there is none. */
static int64_t memory_line(const char *info, const char *key)
{
    const char *p = info ? strstr(info, key) : NULL;
    return p ? strtoll(p + strlen(key), NULL, 10) * 1024 : -1;
}

static void machine_rows(dq_row_writer *w, const char *meminfo)
{
    static const struct {
        unsigned bit;
        const char *name;
    } sets[] = {{DQ_CPU_AVX2, "avx2"},
                {DQ_CPU_AVX512, "avx512"},
                {DQ_CPU_VNNI, "avx512vnni"},
                {DQ_CPU_VBMI, "avx512vbmi"}};
    const int n_sets = (int)(sizeof sets / sizeof *sets);
    char arithmetic[DQ_OS_ARITHMETIC];
    bool unknown;
    const char *limit = getenv("DQ_CPU");
    const unsigned have = dq_os_cpu_features(&unknown);
    dq_os_arithmetic(arithmetic);
    DQ_PUT(w, "processors", dq_os_cpu_count(""), "Processors that may be used.", .min = 1);
    DQ_PUT(w, "openmp_threads", omp_get_max_threads(), "Threads that OpenMP would use.", .min = 1);
    DQ_LIST(w, "cpu_features", "Instruction sets that dq uses.");
    for (int i = 0; DQ_MORE(w, i, n_sets); i++) {
        if (DQ_WHEN(w, have & sets[i].bit)) DQ_PUT(w, NULL, sets[i].name, NULL);
    }
    dq_row_end(w);
    DQ_PUT(w, "arithmetic", arithmetic, "What bits of results depend on.");
    DQ_PUT(w, "dq_cpu_limit", limit && *limit ? limit : NULL,
           "DQ_CPU of the environment; null: not set.", .when = DQ_NULL);
    DQ_PUT(w, "memory_bytes", memory_line(meminfo, "MemTotal:"), "Memory; null: not known.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "memory_available_bytes", memory_line(meminfo, "MemAvailable:"),
           "Of it free; null: not known.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "disk_free_bytes", dq_file_disk_free("./x"),
           "Free in the current folder; -1: not known.", .when = DQ_SIGNED);
}

/* *b: the device, which the caller closes; NULL where it cannot be used. */
static void device_rows(dq_row_writer *w, const char *name, dq_backend **b)
{
    dq_err err = {0};
    *b = NULL;
    const bool good = w->live && dq_backend_open(b, name, 0, &err) == DQ_OK;
    dq_advice_apply(&err);
    DQ_ITEM(w);
    DQ_PUT(w, "name", name, "Its name.", DQ_WORD("cpu", "cuda"));
    DQ_PUT(w, "usable", good, "Whether it can be used.");
    DQ_PUT(w, "about", good ? (*b)->device : err.text, "What it is, or why it cannot be used.");
    dq_row_end(w);
}

static void blas_rows(dq_row_writer *w, dq_backend *cuda, dq_arena *a)
{
    dq_err err = {0};
    dq_blas_about is = {0};
    const bool good = w->live && dq_backend_blas(&is, cuda, a, &err) == DQ_OK;
    dq_advice_apply(&err);
    const char *version = is.version ? is.version : "unknown";
    const char *about = good ? dq_textf(a, &err, "%s, version %s", is.path, version) : err.text;
    DQ_OBJECT(w, "cublas", "The cuBLAS library.");
    /* Named like a device, under which it is printed. */
    DQ_PUT(w, "name", "cublas", "Its name.", DQ_WORD("cublas"));
    DQ_PUT(w, "usable", good, "Whether it can be used.");
    DQ_PUT(w, "path", good ? is.path : NULL, "Its file.", .when = DQ_NULL);
    DQ_PUT(w, "version", good ? is.version : NULL, "Its version.", .when = DQ_NULL);
    DQ_PUT(
        w, "products", good ? is.products : NULL,
        "Its functions that multiply dense f32 and bf16, and on a device shapes that run in tiles "
        "of rows.",
        .when = DQ_NULL);
    DQ_PUT(w, "about", about, "What it is, or why it cannot be used.");
    dq_row_end(w);
}

typedef struct request {
    const char *model, *text;
    bool json;
    dq_logger logger;
    dq_arena *a;
    char *meminfo; /* text of /proc/meminfo, or NULL */
    trial trial;
} request;

static void document_rows(dq_row_writer *w, const void *arg)
{
    const request *q = arg;
    char hdf5[128], pcre2[128], openmp[16];
    const bool named = pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= (int)sizeof pcre2;
    if (named) pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    snprintf(openmp, sizeof openmp, "%d", _OPENMP);
    dq_backend *cpu, *cuda = NULL;
    DQ_LIST(w, "inputs", "Always empty.");
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "Always empty.");
    dq_row_end(w);
    DQ_LIST(w, "results", "Program and machine.");
    DQ_ITEM(w);
    DQ_OBJECT(w, "program", "The program.");
    program_rows(w);
    dq_row_end(w);
    DQ_OBJECT(w, "libraries", "Versions of libraries.");
    DQ_PUT(w, "hdf5", dq_h5_result_version(hdf5, sizeof hdf5), "Version.");
    DQ_PUT(w, "jansson", JANSSON_VERSION, "Version.");
    DQ_PUT(w, "pcre2", named ? pcre2 : NULL, "Version.", .when = DQ_OUT);
    DQ_PUT(w, "utf8proc", utf8proc_version(), "Version.");
    DQ_PUT(w, "openssl", OpenSSL_version(OPENSSL_VERSION), "Version.");
    DQ_PUT(w, "openmp", openmp, "Version.");
    DQ_PUT(w, "mpi", *dq_ranks_mpi() ? dq_ranks_mpi() : NULL,
           "Name and version; null: mpirun is not for this program.", .when = DQ_NULL);
    dq_row_end(w);
    DQ_OBJECT(w, "machine", "The machine.");
    machine_rows(w, DQ_LIVE(w, q->meminfo));
    dq_row_end(w);
    DQ_LIST(w, "devices", "cpu and cuda.");
    device_rows(w, "cpu", &cpu);
    dq_backend_close(cpu);
    if (w->live) device_rows(w, "cuda", &cuda);
    dq_row_end(w);
    blas_rows(w, cuda, DQ_LIVE(w, q->a));
    dq_backend_close(cuda);
    if (DQ_BEGIN(w, OBJECT, "head_orders", q->model,
                 "With --model: how well each head order reads a text.", .when = DQ_OUT)) {
        trial_rows(w, DQ_LIVE(w, &q->trial));
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL);
}

const dq_document dq_doctor_document = {"dq-doctor/1", "What dq doctor --json prints.", "doctor",
                                        describe};

static void print_group(const char *title, json_t *group)
{
    const char *key;
    json_t *v;
    printf("%s\n", title);
    json_object_foreach(group, key, v)
    {
        size_t n = strlen(key);
        printf("  %-24s ", key);
        if (json_is_array(v)) {
            size_t i;
            json_t *item;
            json_array_foreach(v, i, item) printf("%s%s", i ? " " : "", json_string_value(item));
            if (json_array_size(v) == 0) printf("none");
        } else if (json_is_string(v)) {
            printf("%s", json_string_value(v));
        } else if (json_is_integer(v)) {
            int64_t x = json_integer_value(v);
            bool bytes = n > 6 && strcmp(key + n - 6, "_bytes") == 0;
            if (bytes && x >= 0)
                printf("%s", DQ_SIZE(x));
            else
                printf("%lld", (long long)x);
        } else {
            printf("%s", json_is_true(v) ? "yes" : json_is_false(v) ? "no" : "-");
        }
        printf("\n");
    }
}

static void print_device(const json_t *d)
{
    printf("  %-24s %s\n", json_string_value(json_object_get(d, "name")),
           json_string_value(json_object_get(d, "about")));
}

static dq_status run(request *q, dq_err *err)
{
    dq_err ignored = {0};
    size_t len, i;
    bool unknown;
    json_t *d;
    if (q->text && !q->model)
        return dq_fail(err, DQ_USAGE, "--text needs --model: there is nothing to read it.");
    q->trial = (trial){.model = q->model, .logger = &q->logger, .a = q->a};
    if (q->model) DQ_TRY(try_all(&q->trial, q->text, err));
    dq_os_cpu_features(&unknown);
    if (unknown)
        dq_logger_warn(&q->logger, "DQ_CPU=%s is none of scalar, avx2, avx512 and has no effect",
                       getenv("DQ_CPU"));
    dq_file_read(&q->meminfo, &len, "/proc/meminfo", q->a, &ignored);
    json_t *doc = dq_document_of(&q->logger, &dq_doctor_document, document_rows, q);
    if (q->json) return dq_stdout_print(doc, err);
    json_t *r = json_array_get(json_object_get(doc, "results"), 0);
    print_group("program", json_object_get(r, "program"));
    print_group("libraries", json_object_get(r, "libraries"));
    print_group("machine", json_object_get(r, "machine"));
    printf("devices\n");
    json_array_foreach(json_object_get(r, "devices"), i, d) print_device(d);
    json_t *blas = json_object_get(r, "cublas");
    const char *products = json_string_value(json_object_get(blas, "products"));
    print_device(blas);
    if (products) printf("  %-24s %s\n", "products", products);
    if (q->model) print_trial(&q->trial, err);
    json_decref(doc);
    return dq_stdout_flush(err);
}

dq_status dq_cmd_doctor(int argc, char **argv, dq_err *err)
{
    request q = {.a = dq_arena_new()};
    dq_args args;
    const dq_opt opts[] = {
        dq_opt_text("model", "MODEL", &q.model,
                    "try the head orders of this checkpoint or container"),
        dq_opt_text("text", "FILE", &q.text,
                    "what to read with them (default: the built-in sample)"),
        dq_opt_flag("json", &q.json, "one JSON document (dq-doctor/1)"),
        DQ_LOGGER_OPTIONS(q.logger),
        {0},
    };
    if (!q.a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (q.a && dq_help_begin(&args, argc, argv, opts, &usage, &q.logger, err)) run(&q, err);
    dq_logger_end(&q.logger);
    dq_arena_free(q.a);
    return err->code;
}
