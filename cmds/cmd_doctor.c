/* cmd_doctor: what a bug report needs to say about the program and the machine.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "checkpoint/h5_result.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/stdout.h"
#include "cmds/cli/table.h"
#include "cmds/command.h"
#include "cmds/head_order_trial.h"
#include "engine/backend.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"

#include <omp.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

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

/* Groups of named facts, in the order in which they are printed. */
static json_t *libraries(void)
{
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
    return x;
}

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

/* A line "MemTotal:  123 kB" of /proc/meminfo in bytes; null where there is no such file. */
static json_t *memory_line(const char *info, const char *key)
{
    const char *p = info ? strstr(info, key) : NULL;
    if (!p) return json_null();
    return json_integer(strtoll(p + strlen(key), NULL, 10) * 1024);
}

static json_t *machine(dq_logger *logger, dq_arena *a)
{
    dq_err ignored = {0};
    char *info;
    size_t len;
    bool unknown;
    unsigned have = dq_os_cpu_features(&unknown);
    char arithmetic[DQ_OS_ARITHMETIC];
    json_t *x = json_object(), *features = json_array();
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
    json_object_set_new(x, "processors", json_integer(dq_os_cpu_count("")));
    json_object_set_new(x, "openmp_threads", json_integer(omp_get_max_threads()));
    json_object_set_new(x, "cpu_features", features);
    json_object_set_new(x, "arithmetic", json_string(arithmetic));
    json_object_set_new(x, "dq_cpu_limit", limit && *limit ? json_string(limit) : json_null());
    json_object_set_new(x, "memory_bytes", memory_line(info, "MemTotal:"));
    json_object_set_new(x, "memory_available_bytes", memory_line(info, "MemAvailable:"));
    json_object_set_new(x, "disk_free_bytes", json_integer(dq_file_disk_free("./x")));
    return x;
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

/* In the form of a device, below which it is printed. */
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

static void print_value(const char *key, const json_t *v)
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

static void print_group(const char *title, json_t *group)
{
    const char *key;
    json_t *v;
    printf("%s\n", title);
    json_object_foreach(group, key, v) print_value(key, v);
}

static void print_device(const json_t *d)
{
    printf("  %-24s %s\n", json_string_value(json_object_get(d, "name")),
           json_string_value(json_object_get(d, "about")));
}

static void print_devices(const json_t *devices, const json_t *blas)
{
    size_t i;
    json_t *d;
    printf("devices\n");
    json_array_foreach(devices, i, d) print_device(d);
    print_device(blas);
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
    if (q->model) DQ_TRY(dq_head_order_trial_try(&tried, q->model, q->text, logger, err));
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
    json_object_set_new(r, "libraries", libraries());
    json_object_set_new(r, "machine", machine(logger, a));
    json_object_set_new(r, "devices", devices);
    json_object_set_new(r, "cublas", cublas(a));
    if (tried) json_object_set_new(r, "head_orders", tried);
    json_array_append_new(json_object_get(doc, "results"), r);
    dq_arena_free(a);
    if (q->json) return dq_stdout_print(doc, err);
    print_group("program", json_object_get(r, "program"));
    print_group("libraries", json_object_get(r, "libraries"));
    print_group("machine", json_object_get(r, "machine"));
    print_devices(devices, json_object_get(r, "cublas"));
    if (tried) dq_head_order_trial_print(tried, err);
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
