/* cmd_eval: scores models on tasks and text over widths of attention logits.
 * SPDX-License-Identifier: MIT */
#include "cmds.h"
#include "container.h"
#include "eval_report.h"
#include "hash.h"
#include "options.h"
#include "os.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MODELS = 64, MAX_SOURCES = 16, MAX_BITS = 8, N_GRAINS = 4 };

/* One model with all that hangs on it. */
typedef struct opened {
    dq_model *m;
    dq_tokenizer *tok;
    dq_runner *runner;
    char content[65]; /* what identifies its bytes */
} opened;

typedef struct eval_run {
    /* options */
    dq_list tasks, data;
    const char *text, *logit_bits, *logit_grain, *window, *bos_word, *math_word, *ref, *device;
    const char *dump, *csv;
    int64_t ctx, threads, limit;
    bool json, resume;
    dq_talk talk;
    /* what they mean */
    int bits[MAX_BITS], n_bits; /* 0: as each model says */
    dq_grain grain[N_GRAINS];
    int n_grains; /* 0: as each model says */
    dq_math math;
    /* the run */
    dq_arena *a;
    dq_backend *backend;
    opened open[MAX_MODELS + 1];
    int n_open;
    const char *names[MAX_MODELS + 1];
    char sha[MAX_SOURCES][65];
    json_t *inputs, *settings;
    dq_eval e;
    dq_progress progress;
    char key[65], state[64];
} eval_run;

static const dq_usage usage = {
    .name = "eval",
    .synopsis = "MODEL... (--task NAME --data FILE | --text FILE) [options]",
    .about =
        "Scores checkpoints and containers on multiple-choice tasks and on text, at one or many "
        "widths of attention logits, in one table. Every row is compared with the same checkpoint "
        "at 16-bit logits in f32: its source folder if it is in the run, else itself. Standard "
        "errors of tasks are over items; those of texts treat each window as one cluster. Ctrl-C "
        "keeps what is finished; the same command with --resume goes on from there.",
    .examples = "  dq eval llama diffllama --task mc --data choices.jsonl --logit-bits 16,8,6,4\n"
                "  dq eval model model.h5 --text book.txt --ctx 512 --json\n"
                "  dq eval model --task hellaswag --data hellaswag_val.jsonl --limit 500\n",
    .min_args = 1,
    .max_args = MAX_MODELS,
    .args = "one MODEL or more (at most 64)",
};

static dq_status parse(eval_run *x, dq_args *args, int argc, char **argv, dq_err *err)
{
    const dq_opt opts[] = {
        {.help = "what is scored"},
        {.name = "task", .kind = DQ_OPT_LIST, .to = &x->tasks, .value = "NAME[,NAME]",
         .help = "mc: your own items, JSON lines {\"ctx\", \"choices\", \"gold\"};\nhellaswag: the "
                 "official JSON lines, or six lines an item"},
        {.name = "data", .kind = DQ_OPT_LIST, .to = &x->data, .value = "FILE",
         .help = "file of the task; with several tasks once for each, in the same order, or "
                 "NAME=FILE"},
        {.name = "text", .kind = DQ_OPT_TEXT, .to = &x->text, .value = "FILE",
         .help = "UTF-8 text: NLL and perplexity, KLD and top-1 agreement with the reference"},
        {.name = "limit", .kind = DQ_OPT_INT, .to = &x->limit, .min = 1, .max = 1e15, .value = "N",
         .help = "only the first N items of each task and N windows of the text"},
        {.name = "window", .kind = DQ_OPT_TEXT, .to = &x->window, .value = "FORM",
         .help = "chunk (default): windows one behind the other, second half of each scored"},
        {.name = "ctx", .kind = DQ_OPT_INT, .to = &x->ctx, .min = 4, .max = 1e9, .value = "N",
         .help = "ids per window (default 2048, or the fewest positions of the models)"},
        {.name = "bos", .kind = DQ_OPT_TEXT, .to = &x->bos_word, .value = "WHEN",
         .help = "auto, on or off (default auto: as the tokenizer's own template says)"},
        {.help = "how it is computed"},
        {.name = "logit-bits", .kind = DQ_OPT_TEXT, .to = &x->logit_bits, .value = "LIST",
         .help = "widths of attention logits, 16 (not rounded) or 2 to 8 (default: as a container "
                 "says, else 16)"},
        {.name = "logit-grain", .kind = DQ_OPT_TEXT, .to = &x->logit_grain, .value = "LIST",
         .help = "what shares a scale: tensor, head, row, tile (default: as a container says, else "
                 "tensor)"},
        {.name = "math", .kind = DQ_OPT_TEXT, .to = &x->math_word, .value = "KIND",
         .help = "f32, bf16 or int8 (default f32); refused where the device lacks it"},
        {.name = "ref", .kind = DQ_OPT_TEXT, .to = &x->ref, .value = "MODEL",
         .help = "compare every row with this model at 16 bits"},
        {.name = "device", .kind = DQ_OPT_TEXT, .to = &x->device, .value = "NAME",
         .help = "auto, cpu or cuda[:N] (default auto)"},
        {.name = "threads", .kind = DQ_OPT_INT, .to = &x->threads, .min = 0, .max = 4096,
         .value = "N", .help = "0 (default): all processors"},
        {.name = "resume", .kind = DQ_OPT_FLAG, .to = &x->resume,
         .help = "go on where the same command was interrupted"},
        {.help = "what comes out"},
        {.name = "json", .kind = DQ_OPT_FLAG, .to = &x->json,
         .help = "one JSON document (dq-eval/1) instead of the table"},
        {.name = "csv", .kind = DQ_OPT_TEXT, .to = &x->csv, .value = "FILE",
         .help = "write the table as CSV too, one column per number"},
        {.name = "dump-items", .kind = DQ_OPT_TEXT, .to = &x->dump, .value = "FILE",
         .help = "write the log-likelihood of every choice as JSON lines"},
        DQ_TALK_OPTIONS(x->talk),
        {0},
    };
    return dq_parse(args, argc, argv, opts, &usage, err);
}

/* A name per comma. */
static dq_status each_word(const char *text, const char *option, dq_list *out, dq_arena *a,
                           dq_err *err)
{
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        if (n == 0)
            return dq_fail(err, DQ_USAGE, "--%s: an empty part in \"%s\".", option, text);
        if (out->n == DQ_LIST_MAX)
            return dq_fail(err, DQ_USAGE, "--%s: more than %d parts.", option, DQ_LIST_MAX);
        out->item[out->n] = dq_text(a, p, n, err);
        if (!out->item[out->n++]) return err->code;
        p += n;
        if (!*p) return DQ_OK;
    }
}

static dq_status read_logits(eval_run *x, dq_err *err)
{
    dq_list words = {.n = 0};
    if (x->logit_bits) {
        DQ_TRY(dq_parse_ints(x->bits, &x->n_bits, MAX_BITS, x->logit_bits, "logit-bits", 2, 16,
                             err));
        for (int i = 0; i < x->n_bits; i++) {
            if (x->bits[i] > 8 && x->bits[i] != 16)
                return dq_fail(err, DQ_USAGE, "--logit-bits: expected 16 or 2 to 8, found %d.",
                               x->bits[i]);
        }
    }
    if (!x->logit_grain) return DQ_OK;
    DQ_TRY(each_word(x->logit_grain, "logit-grain", &words, x->a, err));
    for (int i = 0; i < words.n; i++) {
        int g = dq_parse_word(words.item[i], "logit-grain", dq_grain_name, N_GRAINS, err);
        if (g < 0) return err->code;
        for (int k = 0; k < x->n_grains; k++) {
            if (x->grain[k] == (dq_grain)g)
                return dq_fail(err, DQ_USAGE, "--logit-grain: %s stands twice.", words.item[i]);
        }
        x->grain[x->n_grains++] = (dq_grain)g;
    }
    return DQ_OK;
}

static dq_status read_words(eval_run *x, dq_err *err)
{
    static const char *const windows[] = {"chunk", "stride", "block", "rolling"};
    static const char *const maths[] = {"f32", "bf16", "int8"};
    int w = dq_parse_word(x->window, "window", windows, 4, err);
    if (w < 0) return err->code;
    if (w > 0)
        return dq_fail(err, DQ_MISMATCH, "--window %s is not available yet. Use --window chunk",
                       x->window);
    int bos = dq_parse_word(x->bos_word, "bos", dq_bos_name, 3, err);
    if (bos < 0) return err->code;
    x->e.bos = (dq_bos)bos;
    int m = dq_parse_word(x->math_word, "math", maths, 3, err);
    if (m < 0) return err->code;
    dq_num num = m == 0 ? DQ_NUM_F32 : m == 1 ? DQ_NUM_BF16 : DQ_NUM_INT8;
    x->math = (dq_math){num, num, num, num};
    return read_logits(x, err);
}

/* The path of task `name`, which stands at position `at`. */
static const char *path_for(const eval_run *x, const char *name, int at)
{
    size_t n = strlen(name);
    for (int i = 0; i < x->data.n; i++) {
        if (strncmp(x->data.item[i], name, n) == 0 && x->data.item[i][n] == '=')
            return x->data.item[i] + n + 1;
    }
    return at < x->data.n ? x->data.item[at] : NULL;
}

static dq_status add_source(eval_run *x, const char *name, const char *path, const dq_task *task,
                            dq_err *err)
{
    if (x->e.n_sources == MAX_SOURCES)
        return dq_fail(err, DQ_USAGE, "more than %d tasks.", MAX_SOURCES);
    x->e.source[x->e.n_sources++] = (dq_eval_source){.name = name, .path = path, .task = task};
    return DQ_OK;
}

/* Which files belong to which task, before any of them is read. */
static dq_status read_sources(eval_run *x, dq_err *err)
{
    dq_list names = {.n = 0};
    x->e.source = dq_alloc(x->a, MAX_SOURCES, sizeof *x->e.source, err);
    if (!x->e.source) return err->code;
    for (int i = 0; i < x->tasks.n; i++)
        DQ_TRY(each_word(x->tasks.item[i], "task", &names, x->a, err));
    for (int i = 0; i < names.n; i++) {
        const dq_task *task = dq_task_find(names.item[i], err);
        if (!task) return err->code;
        for (int k = 0; k < i; k++) {
            if (strcmp(names.item[k], names.item[i]) == 0)
                return dq_fail(err, DQ_USAGE, "--task: %s stands twice.", names.item[i]);
        }
        const char *path = path_for(x, names.item[i], i);
        if (!path)
            return dq_fail(err, DQ_USAGE,
                           "--task %s needs its file: give --data FILE (expected %s).",
                           names.item[i], task->form);
        DQ_TRY(add_source(x, task->name, path, task, err));
    }
    if (x->data.n > names.n)
        return dq_fail(err, DQ_USAGE, "--data is given %d times for %d task%s.", x->data.n, names.n,
                       names.n == 1 ? "" : "s");
    if (x->text) DQ_TRY(add_source(x, "text", x->text, NULL, err));
    if (x->e.n_sources == 0)
        return dq_fail(err, DQ_USAGE,
                       "nothing to score: give --task NAME --data FILE or --text FILE.");
    if (x->dump && names.n == 0)
        return dq_fail(err, DQ_USAGE, "--dump-items writes items of a --task; there is none.");
    return DQ_OK;
}

static dq_status refuse_overwrite(const eval_run *x, const char *out, const dq_args *args,
                                  dq_err *err)
{
    if (!out) return DQ_OK;
    bool same = false;
    for (int i = 0; i < x->e.n_sources; i++) same = same || dq_same_file(out, x->e.source[i].path);
    for (int i = 0; i < args->n; i++) same = same || dq_same_file(out, args->item[i]);
    return same ? dq_fail(err, DQ_USAGE, "%s is an input; the output needs another name.", out)
                : DQ_OK;
}

static void warn_bad(eval_run *x, const char *path, int64_t n_bad, int64_t first)
{
    if (n_bad > 0)
        dq_warn(&x->talk, "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte "
                          "%lld",
                path, (long long)n_bad, (long long)first);
}

static dq_status load_source(eval_run *x, int i, dq_err *err)
{
    dq_eval_source *s = &x->e.source[i];
    char *text;
    DQ_TRY(dq_file_read(&text, &s->len, s->path, x->a, err));
    s->text = text;
    DQ_TRY(dq_sha256_of(x->sha[i], text, s->len, err));
    json_t *in = json_object();
    json_object_set_new(in, "path", json_string(s->path));
    json_object_set_new(in, "bytes", json_integer((json_int_t)s->len));
    json_object_set_new(in, "sha256", json_string(x->sha[i]));
    json_array_append_new(x->inputs, in);
    if (!s->task)
        return s->len ? DQ_OK : dq_fail(err, DQ_DAMAGED, "%s: holds no text", s->path);
    DQ_TRY(dq_task_load(&s->items, s->task, s->path, text, s->len, x->limit, x->a, err));
    warn_bad(x, s->path, s->items.n_bad, s->items.first_bad);
    return DQ_OK;
}

/* A checkpoint is known by its fingerprint; a container by the hash over its own contents, because
 * several are made from one checkpoint. */
static dq_status identify(eval_run *x, opened *o, json_t *in, dq_err *err)
{
    const dq_model *m = o->m;
    json_object_set_new(in, "path", json_string(m->path));
    json_object_set_new(in, "fingerprint", json_string(m->fingerprint));
    memcpy(o->content, m->fingerprint, sizeof o->content);
    if (m->is_container) {
        dq_container *c;
        DQ_TRY(dq_container_open(&c, m->path, err));
        const dq_container_info *info = dq_container_header(c);
        memcpy(o->content, info->content_sha256, sizeof o->content);
        json_object_set_new(in, "bytes", json_integer((json_int_t)info->file_bytes));
        json_object_set_new(in, "content_sha256", json_string(o->content));
        json_object_set_new(in, "stored_logit_bits", json_integer(m->logit_bits));
        json_object_set_new(in, "stored_logit_grain", json_string(m->logit_grain));
        dq_container_close(c);
    }
    for (int i = 0; i < m->n_warnings; i++) dq_warn(&x->talk, "%s", m->warnings[i]);
    return DQ_OK;
}

static dq_status open_tokenizer(opened *o, dq_eval_model *em, dq_err *err)
{
    const char *config;
    size_t config_len;
    DQ_TRY(dq_model_file(o->m, "tokenizer.json", &em->tok_text, &em->tok_len, err));
    if (!em->tok_text) return DQ_OK;
    DQ_TRY(dq_model_file(o->m, "tokenizer_config.json", &config, &config_len, err));
    if (dq_tokenizer_load(&o->tok, em->tok_text, em->tok_len, config, config_len, err) != DQ_OK)
        return dq_in(err, "%s: ", o->m->path);
    em->tok = o->tok;
    return DQ_OK;
}

static dq_status open_model(eval_run *x, const char *path, bool shown, dq_err *err)
{
    opened *o = &x->open[x->n_open];
    dq_eval_model *em = &x->e.model[x->n_open];
    dq_say(&x->talk, "opening %s", path);
    DQ_TRY(dq_model_open(&o->m, path, err));
    x->n_open++; /* from here on it is closed with the others */
    json_t *in = json_object();
    json_array_append_new(x->inputs, in);
    DQ_TRY(identify(x, o, in, err));
    DQ_TRY(dq_backend_can(x->backend, o->m, x->math, &dq_kv_plain, err));
    DQ_TRY(open_tokenizer(o, em, err));
    DQ_TRY(dq_runner_new(&o->runner, o->m, x->backend, &dq_kv_plain, err));
    em->m = o->m;
    em->runner = o->runner;
    em->shown = shown;
    x->e.n_models = x->n_open;
    return DQ_OK;
}

/* Which model each is compared with. */
static dq_status choose_references(eval_run *x, const dq_args *args, dq_err *err)
{
    int ref = -1;
    for (int i = 0; x->ref && i < args->n; i++) {
        if (dq_same_file(x->ref, args->item[i])) ref = i;
    }
    if (x->ref && ref < 0) {
        ref = x->n_open;
        DQ_TRY(open_model(x, x->ref, false, err));
    }
    for (int i = 0; i < x->e.n_models; i++) {
        dq_eval_model *m = &x->e.model[i];
        m->ref = x->ref ? ref : i;
        for (int k = 0; !x->ref && m->m->is_container && k < x->e.n_models; k++) {
            const dq_model *other = x->e.model[k].m;
            if (!other->is_container && strcmp(other->fingerprint, m->m->fingerprint) == 0)
                m->ref = k;
        }
    }
    return DQ_OK;
}

/* The last part of the path; the whole path where two models share it. */
static void choose_names(eval_run *x)
{
    for (int i = 0; i < x->e.n_models; i++) {
        x->names[i] = x->e.model[i].m->name;
        for (int k = 0; k < x->e.n_models; k++) {
            if (k != i && strcmp(x->e.model[k].m->name, x->e.model[i].m->name) == 0)
                x->names[i] = x->e.model[i].m->path;
        }
    }
}

static dq_status choose_ctx(eval_run *x, dq_err *err)
{
    int64_t fewest = 2048;
    for (int i = 0; i < x->e.n_models; i++) {
        const dq_model *m = x->e.model[i].m;
        if (m->max_positions < fewest) fewest = m->max_positions;
        if (x->text && x->ctx > m->max_positions)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: has %d positions, --ctx %lld is more. Use --ctx %d", m->path,
                           m->max_positions, (long long)x->ctx, m->max_positions);
    }
    x->e.n_ctx = x->ctx ? x->ctx : fewest;
    return DQ_OK;
}

static dq_status open_all(eval_run *x, const dq_args *args, dq_err *err)
{
    for (int i = 0; i < x->e.n_sources; i++) DQ_TRY(load_source(x, i, err));
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    dq_say(&x->talk, "device: %s", x->backend->device);
    x->e.model = dq_alloc(x->a, MAX_MODELS + 1, sizeof *x->e.model, err);
    if (!x->e.model) return err->code;
    for (int i = 0; i < args->n; i++) DQ_TRY(open_model(x, args->item[i], true, err));
    DQ_TRY(choose_references(x, args, err));
    choose_names(x);
    return choose_ctx(x, err);
}

/* Widths and grains of one model: the options, or what it stores itself. */
static dq_status add_rows(eval_run *x, int model, int source, dq_err *err)
{
    const dq_model *m = x->e.model[model].m;
    int bits[MAX_BITS] = {m->logit_bits}, n_bits = 1, n_grains = 1;
    dq_grain grain[N_GRAINS] = {DQ_GRAIN_TENSOR};
    for (int g = 0; g < N_GRAINS; g++) {
        if (strcmp(m->logit_grain, dq_grain_name[g]) == 0) grain[0] = (dq_grain)g;
    }
    if (x->n_bits) memcpy(bits, x->bits, sizeof bits);
    if (x->n_bits) n_bits = x->n_bits;
    if (x->n_grains) memcpy(grain, x->grain, sizeof grain);
    if (x->n_grains) n_grains = x->n_grains;
    for (int g = 0; g < n_grains; g++) {
        for (int b = 0; b < n_bits; b++) {
            dq_logit_spec spec = {.bits = bits[b], .grain = grain[g]};
            DQ_TRY(dq_eval_add(&x->e, model, source, spec, x->math, err));
        }
    }
    return DQ_OK;
}

static dq_status plan(eval_run *x, dq_err *err)
{
    for (int m = 0; m < x->e.n_models; m++) {
        for (int s = 0; x->e.model[m].shown && s < x->e.n_sources; s++)
            DQ_TRY(add_rows(x, m, s, err));
    }
    for (int i = 0; i < x->e.n_ids; i++) {
        const dq_eval_ids *ids = &x->e.ids[i];
        const char *path = x->e.source[ids->source].path;
        if (ids->req.n_truncated)
            dq_warn(&x->talk, "%s: %lld of %lld items are longer than the %d positions of %s and "
                              "lost the beginning of their context",
                    path, (long long)ids->req.n_truncated, (long long)ids->req.n_items,
                    x->e.model[ids->model].m->max_positions, x->names[ids->model]);
        warn_bad(x, path, ids->win.n_bad, ids->win.first_bad);
    }
    return DQ_OK;
}

static json_t *int_list(const int *v, int n)
{
    json_t *l = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(l, json_integer(v[i]));
    return l;
}

/* The widths and grains that occur, in the order of the rows. */
static void put_sweep(const eval_run *x, json_t *s)
{
    int bits[16], n = 0;
    bool seen[N_GRAINS] = {false};
    json_t *grains = json_array();
    for (int i = 0; i < x->e.n_rows; i++) {
        const dq_eval_row *r = &x->e.row[i];
        bool known = !r->shown;
        for (int k = 0; k < n; k++) known = known || bits[k] == r->logit.bits;
        if (!known && n < 16) bits[n++] = r->logit.bits;
        if (r->shown && !seen[r->logit.grain]) {
            seen[r->logit.grain] = true;
            json_array_append_new(grains, json_string(dq_grain_name[r->logit.grain]));
        }
    }
    json_object_set_new(s, "logit_bits", int_list(bits, n));
    json_object_set_new(s, "logit_grain", grains);
}

static void make_settings(eval_run *x)
{
    json_t *s = x->settings, *tasks = json_array();
    for (int i = 0; i < x->e.n_sources; i++)
        json_array_append_new(tasks, json_string(x->e.source[i].name));
    json_object_set_new(s, "tasks", tasks);
    put_sweep(x, s);
    json_object_set_new(s, "kv_bits", json_string("16:16"));
    json_object_set_new(s, "math", json_string(x->math_word));
    json_object_set_new(s, "ref", x->ref ? json_string(x->ref) : json_null());
    json_object_set_new(s, "window", x->text ? json_string(x->window) : json_null());
    json_object_set_new(s, "ctx", x->text ? json_integer((json_int_t)x->e.n_ctx) : json_null());
    json_object_set_new(s, "text_stderr", json_string("clustered by window"));
    json_object_set_new(s, "bos", json_string(x->bos_word));
    json_object_set_new(s, "limit", x->limit ? json_integer((json_int_t)x->limit) : json_null());
    json_object_set_new(s, "device", json_string(x->backend->device));
    json_object_set_new(s, "threads", json_integer(x->backend->threads));
}

/* What the bits of the results depend on, as one hash; not the number of threads. */
static dq_status make_key(eval_run *x, dq_err *err)
{
    dq_sha256 h;
    char line[256];
    DQ_TRY(dq_sha256_begin(&h, err));
    int n = snprintf(line, sizeof line, "%s %s %u %lld %d\n", DQ_VERSION, x->backend->ops->name,
                     dq_cpu_features(NULL), (long long)x->e.n_ctx, (int)x->e.bos);
    dq_sha256_add(&h, line, (size_t)n);
    for (int i = 0; i < x->e.n_sources; i++) {
        n = snprintf(line, sizeof line, "%s %s %lld\n", x->e.source[i].name, x->sha[i],
                     (long long)x->limit);
        dq_sha256_add(&h, line, (size_t)n);
    }
    for (int i = 0; i < x->n_open; i++) dq_sha256_add(&h, x->open[i].content, 64);
    for (int i = 0; i < x->e.n_rows; i++) {
        const dq_eval_row *r = &x->e.row[i];
        n = snprintf(line, sizeof line, "%d %d %d %d %d %d\n", r->model, r->ids, r->ref,
                     r->logit.bits, (int)r->logit.grain, (int)r->math.linear);
        dq_sha256_add(&h, line, (size_t)n);
    }
    DQ_TRY(dq_sha256_end(&h, x->key, err));
    snprintf(x->state, sizeof x->state, "dq-eval-%.12s.resume", x->key);
    return DQ_OK;
}

static void on_progress(void *arg, double share, const char *note)
{
    eval_run *x = arg;
    dq_progress_set(&x->progress, share, note);
}

/* Saves what is finished and replaces the message by one that says how to go on. */
static dq_status stop(eval_run *x, int argc, char **argv, dq_err *err)
{
    char again[600] = "";
    dq_err e = {0};
    for (int i = 1; i < argc; i++) {
        size_t used = strlen(again);
        bool plain = argv[i][strcspn(argv[i], " \t'\"\\$*?;&|<>()")] == 0 && argv[i][0];
        if (strcmp(argv[i], "--resume") == 0) continue;
        snprintf(again + used, sizeof again - used, plain ? " %s" : " '%s'", argv[i]);
    }
    if (dq_eval_save(&x->e, x->key, x->state, &e) != DQ_OK) {
        dq_warn(&x->talk, "finished work could not be saved: %s", e.text);
        return err->code;
    }
    memset(err, 0, sizeof *err);
    return dq_fail(err, DQ_STOPPED,
                   "interrupted; finished work is in %s. Go on with: dq eval --resume%s", x->state,
                   again);
}

static dq_status run(eval_run *x, int argc, char **argv, dq_err *err)
{
    DQ_TRY(plan(x, err));
    DQ_TRY(make_key(x, err));
    if (x->resume) {
        if (!dq_file_exists(x->state))
            return dq_fail(err, DQ_FILE,
                           "%s: is not here, so there is nothing to resume with these inputs and "
                           "settings. Run without --resume",
                           x->state);
        DQ_TRY(dq_eval_load(&x->e, x->key, x->state, err));
    }
    dq_progress_begin(&x->progress, &x->talk, "scored", 1);
    x->e.progress = on_progress;
    x->e.progress_arg = x;
    dq_status s = dq_eval_run(&x->e, err);
    dq_progress_end(&x->progress);
    return s == DQ_STOPPED ? stop(x, argc, argv, err) : s;
}

static dq_status print_table(const dq_eval_view *v, dq_err *err)
{
    dq_table *t = NULL;
    if (dq_eval_table(&t, v, err) == DQ_OK && dq_table_print(t, err) == DQ_OK)
        dq_eval_verdicts(v, err);
    dq_table_free(t);
    return err->code == DQ_OK ? dq_flush_stdout(err) : err->code;
}

static dq_status print_json(eval_run *x, const dq_eval_view *v, dq_err *err)
{
    json_t *doc = dq_document(&x->talk, "dq-eval/1");
    json_object_set(doc, "inputs", x->inputs);
    json_object_set(doc, "settings", x->settings);
    if (dq_eval_json(json_object_get(doc, "results"), v, err) == DQ_OK)
        return dq_document_print(doc, err);
    json_decref(doc);
    return err->code;
}

static dq_status hand_out(eval_run *x, dq_err *err)
{
    dq_eval_view v = {.e = &x->e, .names = x->names};
    dq_table *t = NULL;
    make_settings(x);
    if (x->dump) DQ_TRY(dq_eval_dump(&v, x->dump, err));
    if (x->csv && dq_eval_columns(&t, &v, err) == DQ_OK) dq_table_csv(t, x->csv, err);
    dq_table_free(t);
    DQ_TRY(err->code);
    DQ_TRY(x->json ? print_json(x, &v, err) : print_table(&v, err));
    remove(x->state); /* left by an interrupted run of the same work */
    return DQ_OK;
}

static void close_all(eval_run *x)
{
    for (int i = 0; i < x->n_open; i++) {
        dq_runner_free(x->open[i].runner);
        dq_tokenizer_free(x->open[i].tok);
        dq_model_close(x->open[i].m);
    }
    dq_backend_close(x->backend);
    json_decref(x->inputs);
    json_decref(x->settings);
    dq_talk_end(&x->talk);
    dq_arena_free(x->a);
}

dq_status dq_cmd_eval(int argc, char **argv, dq_err *err)
{
    dq_args args;
    eval_run *x = dq_block_new(1, sizeof *x, err);
    if (!x) return err->code;
    x->window = "chunk";
    x->bos_word = "auto";
    x->math_word = "f32";
    x->device = "auto";
    if (parse(x, &args, argc, argv, err) == DQ_OK && !args.help) {
        x->a = x->e.a = dq_arena_new();
        x->inputs = json_array();
        x->settings = json_object();
        x->e.limit = x->limit;
        if (!x->a) dq_fail(err, DQ_RESOURCE, "out of memory");
        if (err->code == DQ_OK && read_words(x, err) == DQ_OK && read_sources(x, err) == DQ_OK &&
            refuse_overwrite(x, x->csv, &args, err) == DQ_OK &&
            refuse_overwrite(x, x->dump, &args, err) == DQ_OK &&
            dq_talk_begin(&x->talk, "eval", err) == DQ_OK && open_all(x, &args, err) == DQ_OK &&
            run(x, argc, argv, err) == DQ_OK)
            hand_out(x, err);
        close_all(x);
    }
    dq_block_free(x);
    return err->code;
}
