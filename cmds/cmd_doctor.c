/* The ids are scored once per head order, in one pass each, with the model opened anew under that
 * map. Losses are then compared id by id in blocks of 32, which are the clusters of the interval.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
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
    dq_pairing map[MAX_MAPS];
    double *nll[MAX_MAPS]; /* [n] nats */
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

static dq_status try_one(trial *t, int i, dq_err *err)
{
    dq_model *m = NULL;
    dq_runner *r = NULL;
    t->nll[i] = dq_alloc(t->a, (size_t)t->n, sizeof *t->nll[i], err);
    if (!t->nll[i]) return err->code;
    dq_logger_note(t->logger, "head order %s", dq_head_order_pairing_name(t->map[i]));
    if (dq_model_open_as(&m, t->model, t->map[i], err) == DQ_OK &&
        dq_runner_new(&r, m, t->b, &dq_kv_plain, err) == DQ_OK)
        score(t, r, t->nll[i], err);
    if (err->code == DQ_OK) dq_os_maps_check(err);
    dq_runner_free(r);
    dq_model_close(m);
    return err->code;
}

/* Mean of x - y (y NULL: of x) over blocks of ids; scratch[n] and cluster[n] are overwritten. */
static dq_mean mean_of(const trial *t, const double *x, const double *y, double *scratch,
                       int32_t *cluster)
{
    for (int64_t i = 0; i < t->n; i++) {
        scratch[i] = x[i] - (y ? y[i] : 0.0);
        cluster[i] = (int32_t)(i / BLOCK);
    }
    return dq_mean_clustered(scratch, cluster, t->n);
}

static json_t *interval_json(dq_interval x)
{
    return isnan(x.low) ? json_null() : json_pack("[f,f]", x.low, x.high);
}

/* Whether another map reads better by `clear`, does not, or neither. */
static const char *judge(dq_interval x)
{
    if (x.high < -clear) return "better";
    return x.low > -clear ? "not better" : "inconclusive";
}

static dq_status report(json_t **out, const trial *t, dq_err *err)
{
    double *scratch = dq_alloc(t->a, (size_t)t->n, sizeof *scratch, err), best = 0.0;
    int32_t *cluster = dq_alloc(t->a, (size_t)t->n, sizeof *cluster, err);
    int better = 0;
    dq_mean nll = dq_mean_none;
    if (!scratch || !cluster) return err->code;
    json_t *o = json_object(), *maps = json_array();
    for (int i = 0; i < t->n_maps; i++) {
        nll = mean_of(t, t->nll[i], NULL, scratch, cluster);
        const dq_mean d = mean_of(t, t->nll[i], t->nll[0], scratch, cluster);
        json_t *x = json_object(),
               *entry = i ? dq_document_metric(d.value, d.std_err) : json_null();
        const dq_interval interval = dq_mean_interval(d);
        json_object_set_new(x, "head_order", json_string(dq_head_order_pairing_name(t->map[i])));
        json_object_set_new(x, "nll_nats", dq_document_metric(nll.value, nll.std_err));
        json_object_set_new(x, "minus_own", entry);
        json_object_set_new(x, "is", i ? json_string(judge(interval)) : json_null());
        if (i) json_object_set_new(entry, "interval", interval_json(interval));
        json_array_append_new(maps, x);
        if (i && d.value < best && dq_mean_interval(d).high < -clear) {
            best = d.value;
            better = i;
        }
    }
    json_object_set_new(o, "model", json_string(t->model));
    json_object_set_new(o, "own", json_string(dq_head_order_pairing_name(t->map[0])));
    json_object_set_new(o, "better",
                        better ? json_string(dq_head_order_pairing_name(t->map[better]))
                               : json_null());
    json_object_set_new(o, "n", json_integer(t->n));
    json_object_set_new(o, "n_clusters", json_integer(nll.clusters));
    json_object_set_new(o, "maps", maps);
    if (better) {
        dq_logger_warn(t->logger,
                       "%s: head order \"%s\" reads this text better than the \"%s\" of its "
                       "architecture. If more "
                       "text agrees, give --head-order %s",
                       t->model, dq_head_order_pairing_name(t->map[better]),
                       dq_head_order_pairing_name(t->map[0]),
                       dq_head_order_pairing_name(t->map[better]));
    }
    *out = o;
    return DQ_OK;
}

/* Scores the first 512 tokens of a text (NULL: the built-in one) with every head order of the
 * checkpoint's shapes. *out is {"model", "own", "better", "n", "n_clusters", "maps":
 * [{"head_order", "nll_nats", "minus_own", "is"}]}; better is null or the map whose NLL is lower by
 * more than 0.02 nats with all of the paired difference's 95 % interval, blocks of 32 tokens being
 * its clusters; "is" says of every other map "better", "not better" or "inconclusive". Ended by
 * json_decref. */
static dq_status head_order_trial_try(json_t **out, const char *model, const char *text_path,
                                      dq_logger *logger, dq_err *err)
{
    trial t = {.model = model, .logger = logger, .a = dq_arena_new()};
    *out = NULL;
    if (!t.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    /* The ids, and the head orders to try. */
    dq_model *m = NULL;
    dq_tokenizer *tok = NULL;
    dq_input_text text = {0};
    if (dq_input_model(&m, t.model, NULL, t.logger, err) == DQ_OK &&
        dq_input_tokenizer(&tok, m, true, err) == DQ_OK &&
        dq_input_read(&text, text_path, t.a, err) == DQ_OK &&
        dq_input_encode(&t.in, tok, &text,
                        dq_items_bos_flags(tok, DQ_BOS_AUTO, text.text, text.bytes), t.logger, t.a,
                        err) == DQ_OK) {
        const dq_pairing own = m->map.pairing;
        t.n = (t.in.n < MAX_IDS ? t.in.n : MAX_IDS) - 1;
        if (t.n > m->max_positions) t.n = m->max_positions;
        t.map[t.n_maps++] = own;
        for (int p = 0; p < DQ_PAIR_COUNT; p++) {
            if ((dq_pairing)p != own && dq_head_order_pairing_same_shape(own, (dq_pairing)p))
                t.map[t.n_maps++] = (dq_pairing)p;
        }
        if (t.n < 1) dq_fail(err, DQ_DAMAGED, "%s: fewer than 2 tokens", text.path);
    }
    dq_tokenizer_free(tok);
    dq_model_close(m);
    if (err->code == DQ_OK) dq_backend_open(&t.b, "cpu", 0, err);
    for (int i = 0; err->code == DQ_OK && i < t.n_maps; i++) try_one(&t, i, err);
    if (err->code == DQ_OK) report(out, &t, err);
    dq_backend_close(t.b);
    dq_arena_free(t.a);
    return err->code;
}

static void metric_cell(dq_table *table, const json_t *x, const char *form)
{
    const json_t *e = json_object_get(x, "stderr");
    char text[64];
    int n;
    if (!json_is_object(x)) {
        dq_table_cell(table, "-");
        return;
    }
    n = snprintf(text, sizeof text, form[0] == '+' ? "%+.4f" : "%.4f",
                 json_number_value(json_object_get(x, "value")));
    if (json_is_number(e))
        snprintf(text + n, sizeof text - (size_t)n, " \u00b1 %.4f", json_number_value(e));
    dq_table_cell(table, "%s", text);
}

/* Of the other maps, the least certain one decides the sentence. */
static void print_sentence(const json_t *tried)
{
    const json_t *maps = json_object_get(tried, "maps");
    const char *better = json_string_value(json_object_get(tried, "better"));
    bool open = false;
    for (size_t i = 1; i < json_array_size(maps); i++)
        open = open || strcmp(json_string_value(json_object_get(json_array_get(maps, i), "is")),
                              "inconclusive") == 0;
    if (better)
        printf("\nHead order %s reads this text better by more than %g nats, at 95 %%: the "
               "architecture's "
               "order is in doubt.\n",
               better, clear);
    else if (json_array_size(maps) < 2)
        printf("\nNo other head order has these shapes.\n");
    else if (open)
        printf("\nNot decided: these tokens do not tell whether another head order reads them "
               "better by %g nats. Try another text.\n",
               clear);
    else
        printf("\nNo other head order reads this text better by %g nats, at 95 %%.\n", clear);
}

static dq_status head_order_trial_print(const json_t *tried, dq_err *err)
{
    static const char *const titles[] = {"head order", "NLL (nats)", "against its own", "better"};
    const json_t *maps = json_object_get(tried, "maps");
    dq_table *table;
    printf("\n%s: %lld tokens read with every head order of its shapes; \u00b1 one standard error "
           "over %lld blocks of %d\n\n",
           json_string_value(json_object_get(tried, "model")),
           (long long)json_integer_value(json_object_get(tried, "n")),
           (long long)json_integer_value(json_object_get(tried, "n_clusters")), BLOCK);
    DQ_TRY(dq_table_new(&table, titles, 4, err));
    for (size_t i = 0; i < json_array_size(maps); i++) {
        const json_t *x = json_array_get(maps, i);
        const char *is = json_string_value(json_object_get(x, "is"));
        dq_table_cell(table, "%s%s", json_string_value(json_object_get(x, "head_order")),
                      i == 0 ? " (its own)" : "");
        metric_cell(table, json_object_get(x, "nll_nats"), "");
        metric_cell(table, json_object_get(x, "minus_own"), "+");
        dq_table_cell(table, "%s", is ? is : "-");
    }
    dq_table_print(table, err);
    dq_table_free(table);
    print_sentence(tried);
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

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

static json_t *program(void)
{
    json_t *x = json_object();
    json_object_set_new(x, "dq", json_string(DQ_VERSION));
    json_object_set_new(x, "commit", text_or_null(dq_commit_text()));
#if defined(__clang__)
    json_object_set_new(x, "compiler", json_string("clang " __clang_version__));
#elif defined(__GNUC__)
    json_object_set_new(x, "compiler", json_string("gcc " __VERSION__));
#else
    json_object_set_new(x, "compiler", json_string("unknown"));
#endif
#if defined(__SANITIZE_ADDRESS__)
    json_object_set_new(x, "sanitizers", json_true());
#else
    json_object_set_new(x, "sanitizers", json_false());
#endif
    return x;
}

/* "MemTotal:  123 kB" of /proc/meminfo in bytes; null where there is none. */
static json_t *memory_line(const char *info, const char *key)
{
    const char *p = info ? strstr(info, key) : NULL;
    if (!p) return json_null();
    return json_integer(strtoll(p + strlen(key), NULL, 10) * 1024);
}

static json_t *device(const char *name)
{
    dq_err err = {0};
    dq_backend *b = NULL;
    json_t *x = json_object();
    bool good = dq_backend_open(&b, name, 0, &err) == DQ_OK;
    dq_advice_apply(&err);
    json_object_set_new(x, "name", json_string(name));
    json_object_set_new(x, "usable", json_boolean(good));
    json_object_set_new(x, "about", json_string(good ? b->device : err.text));
    dq_backend_close(b);
    return x;
}

/* Named like a device, under which it is printed. */
static json_t *cublas(dq_arena *a)
{
    dq_err err = {0};
    const char *path, *version;
    json_t *x = json_object();
    const bool good = dq_backend_blas(&path, &version, a, &err) == DQ_OK;
    dq_advice_apply(&err);
    json_object_set_new(x, "name", json_string("cublas"));
    json_object_set_new(x, "usable", json_boolean(good));
    json_object_set_new(x, "path", good ? text_or_null(path) : json_null());
    json_object_set_new(x, "version", good ? text_or_null(version) : json_null());
    json_object_set_new(x, "about",
                        good ? json_sprintf("%s, version %s", path, version ? version : "unknown")
                             : json_string(err.text));
    return x;
}

static void print_group(const char *title, json_t *group)
{
    const char *key;
    json_t *v;
    printf("%s\n", title);
    json_object_foreach(group, key, v)
    {
        char buf[32];
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
                printf("%s", dq_document_size_text(buf, sizeof buf, x));
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

typedef struct request {
    const char *model, *text;
    bool json;
    dq_logger logger;
} request;

static dq_status run(request *q, dq_err *err)
{
    dq_logger *logger = &q->logger;
    json_t *tried = NULL;
    if (q->text && !q->model)
        return dq_fail(err, DQ_USAGE, "--text needs --model: there is nothing to read it.");
    if (q->model) DQ_TRY(head_order_trial_try(&tried, q->model, q->text, logger, err));
    dq_arena *a = dq_arena_new();
    if (!a) {
        json_decref(tried);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    json_t *doc = dq_document_new(logger, "dq-doctor/1"), *r = json_object(),
           *devices = json_array();
    json_array_append_new(devices, device("cpu"));
    json_array_append_new(devices, device("cuda"));
    json_object_set_new(r, "program", program());
    /* Groups of named facts, in the order of printing. */
    char text[128];
    json_t *x = json_object();
    json_object_set_new(x, "hdf5", json_string(dq_h5_result_version(text, sizeof text)));
    json_object_set_new(x, "jansson", json_string(JANSSON_VERSION));
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= (int)sizeof text) {
        pcre2_config(PCRE2_CONFIG_VERSION, text);
        json_object_set_new(x, "pcre2", json_string(text));
    }
    json_object_set_new(x, "utf8proc", json_string(utf8proc_version()));
    json_object_set_new(x, "openssl", json_string(OpenSSL_version(OPENSSL_VERSION)));
    snprintf(text, sizeof text, "%d", _OPENMP);
    json_object_set_new(x, "openmp", json_string(text));
    json_object_set_new(x, "mpi", *dq_ranks_mpi() ? json_string(dq_ranks_mpi()) : json_null());
    json_object_set_new(r, "libraries", x);
    dq_err ignored = {0};
    char *info;
    size_t len;
    bool unknown;
    unsigned have = dq_os_cpu_features(&unknown);
    char arithmetic[DQ_OS_ARITHMETIC];
    json_t *entry = json_object(), *features = json_array();
    const char *limit = getenv("DQ_CPU");
    if (unknown)
        dq_logger_warn(logger, "DQ_CPU=%s is none of scalar, avx2, avx512 and has no effect",
                       limit);
    if (have & DQ_CPU_AVX2) json_array_append_new(features, json_string("avx2"));
    if (have & DQ_CPU_AVX512) json_array_append_new(features, json_string("avx512"));
    if (have & DQ_CPU_VNNI) json_array_append_new(features, json_string("avx512vnni"));
    if (have & DQ_CPU_VBMI) json_array_append_new(features, json_string("avx512vbmi"));
    dq_os_arithmetic(arithmetic);
    dq_file_read(&info, &len, "/proc/meminfo", a, &ignored);
    json_object_set_new(entry, "processors", json_integer(dq_os_cpu_count("")));
    json_object_set_new(entry, "openmp_threads", json_integer(omp_get_max_threads()));
    json_object_set_new(entry, "cpu_features", features);
    json_object_set_new(entry, "arithmetic", json_string(arithmetic));
    json_object_set_new(entry, "dq_cpu_limit", limit && *limit ? json_string(limit) : json_null());
    json_object_set_new(entry, "memory_bytes", memory_line(info, "MemTotal:"));
    json_object_set_new(entry, "memory_available_bytes", memory_line(info, "MemAvailable:"));
    json_object_set_new(entry, "disk_free_bytes", json_integer(dq_file_disk_free("./x")));
    json_object_set_new(r, "machine", entry);
    json_object_set_new(r, "devices", devices);
    json_object_set_new(r, "cublas", cublas(a));
    if (tried) json_object_set_new(r, "head_orders", tried);
    json_array_append_new(json_object_get(doc, "results"), r);
    dq_arena_free(a);
    if (q->json) return dq_stdout_print(doc, err);
    print_group("program", json_object_get(r, "program"));
    print_group("libraries", json_object_get(r, "libraries"));
    print_group("machine", json_object_get(r, "machine"));
    const json_t *blas = json_object_get(r, "cublas");
    size_t i;
    json_t *d;
    printf("devices\n");
    json_array_foreach(devices, i, d) print_device(d);
    print_device(blas);
    if (tried) head_order_trial_print(tried, err);
    json_decref(doc);
    return dq_stdout_flush(err);
}

dq_status dq_cmd_doctor(int argc, char **argv, dq_err *err)
{
    request q = {.json = false};
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
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    if (dq_progress_listen(&q.logger, "doctor", err) == DQ_OK) run(&q, err);
    dq_logger_end(&q.logger);
    return err->code;
}
