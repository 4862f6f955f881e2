/* stats_sensitivity: see stats_sensitivity.h. Windows become a text of the plan's kind, each a cluster of its own; all models share one
 * journal, whose lines have the model's number.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_sensitivity.h"

#include "base/os.h"
#include "base/ranks.h"
#include "record/version.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 512, GROUP = 64, BITS = 4, WINDOWS = 8 };

const char *const cmd_stats_sensitivity_kinds[CMD_STATS_SENSITIVITY_KINDS] = {
    "all", "layers", "heads", "maps", "keys", "values", "weights"};

static unsigned kinds_of(const cmd_stats_sensitivity *x)
{
    unsigned kinds = 0;
    for (int i = 0; i < x->kinds.n; i++)
        kinds |= x->kinds.at[i] ? 1u << (x->kinds.at[i] - 1) : (1u << DQ_SENSITIVITY_KINDS) - 1;
    return kinds;
}

bool cmd_stats_sensitivity_wanted(const cmd_stats_sensitivity *x)
{
    return x->forecast || x->kinds.n;
}

enum {
    LOGIT_KINDS =
        1u << DQ_SENSITIVITY_LAYERS | 1u << DQ_SENSITIVITY_HEADS | 1u << DQ_SENSITIVITY_MAPS
};

/* What is not given. */
static void fill_in(cmd_stats_sensitivity *x)
{
    if (!x->bits) x->bits = BITS;
    if (!x->windows) x->windows = WINDOWS;
    if (!x->tokens) x->tokens = TOKENS;
    if (!x->granularity.text)
        x->granularity =
            (dq_word){dq_granularity_name[DQ_GRANULARITY_TENSOR], DQ_GRANULARITY_TENSOR};
}

dq_status cmd_stats_sensitivity_check(cmd_stats_sensitivity *x, const dq_backend *b, dq_err *err)
{
    if (!x->kinds.n && (x->bits || x->granularity.text))
        return dq_fail(err, DQ_USAGE,
                       "--sensitivity-bits and --logit-granularity are about what --sensitivity "
                       "rounds%s. Add --sensitivity.",
                       x->forecast ? "; --forecast has all of them" : "");
    if (!cmd_stats_sensitivity_wanted(x) && (x->windows || x->tokens))
        return dq_fail(
            err, DQ_USAGE,
            "--sensitivity-windows and --sensitivity-tokens are about rounding, which is "
            "not asked for. Add --sensitivity or --forecast.");
    if (x->kinds.n && x->granularity.text && !(kinds_of(x) & LOGIT_KINDS))
        return dq_fail(err, DQ_USAGE,
                       "--logit-granularity is about attention logits, which --sensitivity %s does "
                       "not round. Leave it out, or add layers, heads or maps.",
                       x->kinds.text);
    fill_in(x);
    if (!cmd_stats_sensitivity_wanted(x)) return DQ_OK;
    if (x->bits == 7)
        return dq_fail(err, DQ_USAGE,
                       "--sensitivity-bits 7: there are no codes of 7 bits. Give 2 to 6, or 8.");
    if (!b->ops->has_rounds)
        return dq_fail(err, DQ_MISMATCH,
                       "on %s heads cannot be rounded alone. Leave out --device, or leave out "
                       "--sensitivity and --forecast.",
                       b->device);
    if (dq_ranks_count() > 1)
        return dq_fail(err, DQ_MISMATCH,
                       "--sensitivity and --forecast run in one process. Run them without "
                       "mpirun.");
    return DQ_OK;
}

void cmd_stats_sensitivity_settings(const cmd_stats_sensitivity *x, json_t *s)
{
    if (!cmd_stats_sensitivity_wanted(x)) return;
    json_t *kinds = json_array();
    for (int k = 0; k < DQ_SENSITIVITY_KINDS; k++) {
        if (kinds_of(x) >> k & 1) json_array_append_new(kinds, json_string(dq_sensitivity_name[k]));
    }
    json_object_set_new(s, "sensitivity", kinds);
    json_object_set_new(s, "sensitivity_bits", x->kinds.n ? json_integer(x->bits) : json_null());
    json_object_set_new(s, "sensitivity_windows", json_integer(x->windows));
    json_object_set_new(s, "sensitivity_tokens", json_integer(x->tokens));
    json_object_set_new(s, "sensitivity_group", x->kinds.n ? json_integer(GROUP) : json_null());
    json_object_set_new(s, "logit_granularity",
                        x->kinds.n ? json_string(x->granularity.text) : json_null());
}

/* The beginnings of some of the sequences that were fed. */
static dq_status cut(dq_calib_text *t, const cmd_stats_entry *e, const cmd_stats_sensitivity *x,
                     dq_arena *a, dq_err *err)
{
    const int64_t n = e->in.n_seq < x->windows ? e->in.n_seq : x->windows;
    int64_t *cu = dq_alloc(a, (size_t)n + 1, sizeof *cu, err);
    int32_t *ids = dq_alloc(a, (size_t)n * (size_t)x->tokens, sizeof *ids, err);
    int32_t *number = dq_alloc(a, (size_t)n, sizeof *number, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = i * e->in.n_seq / n, begin = e->in.cu[from];
        const int64_t all = e->in.cu[from + 1] - begin, take = all < x->tokens ? all : x->tokens;
        memcpy(ids + cu[i], e->in.ids + begin, (size_t)take * sizeof *ids);
        cu[i + 1] = cu[i] + take;
        number[i] = (int32_t)i;
    }
    *t = (dq_calib_text){.ids = ids,
                         .n_ids = cu[n],
                         .cu = cu,
                         .unit = number,
                         .n_seq = n,
                         .ctx = x->tokens,
                         .cluster = number,
                         .n_clusters = n,
                         .n_units = n};
    return DQ_OK;
}

static dq_status take_line(void *arg, json_t *line, dq_err *err)
{
    const cmd_stats_sensitivity_run *r = arg;
    const json_int_t model = json_integer_value(json_object_get(line, "model"));
    if (!json_is_integer(json_object_get(line, "model")) || model < 0 || model >= r->n)
        dq_fail(err, DQ_DAMAGED, "has a model that is none of 0 to %d", r->n - 1);
    else
        dq_sensitivity_take(r->entry[model].sensitivity, line, err);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", r->journal.path);
}

static dq_status open_journal(cmd_stats_sensitivity_run *r, dq_err *err)
{
    char arithmetic[DQ_OS_ARITHMETIC], key[65] = "";
    json_t *of = json_object();
    dq_os_arithmetic(arithmetic);
    json_object_set_new(of, "version", json_string(DQ_VERSION));
    json_object_set_new(of, "arithmetic", json_string(arithmetic));
    json_object_set_new(of, "models and text", json_string(r->key));
    cmd_stats_sensitivity_settings(r->set, of);
    const dq_plan_journal_how how = {.out = r->out,
                                     .key = key,
                                     .of = of,
                                     .resume = r->resume,
                                     .force = r->force,
                                     .take = take_line,
                                     .arg = r};
    if (dq_plan_journal_key(key, of, err) == DQ_OK)
        dq_plan_journal_open(&r->journal, &how, r->arena, err);
    json_decref(of);
    return err->code;
}

/* Scratch files lie beside the output, else where temporary files do. */
static const char *beside_of(const cmd_stats_sensitivity_run *r, dq_err *err)
{
    const char *folder = getenv("TMPDIR");
    return r->out ? r->out : dq_textf(r->arena, err, "%s/dq", folder && *folder ? folder : "/tmp");
}

static bool has(const dq_sensitivity *s, dq_sensitivity_kind kind)
{
    return s->set.kinds >> kind & 1;
}

/* Windows that say nothing of what is rounded. */
static dq_status check_windows(const dq_sensitivity *s, dq_err *err)
{
    const int64_t longest = dq_calib_text_longest(s->text),
                  plain = s->set.kv.recent + DQ_PAGE_TOKENS; /* not coded, at least */
    if (s->set.kinds && longest < 2)
        return dq_fail(err, DQ_MISMATCH,
                       "no window has a token to predict. Give a longer text, or leave out "
                       "--sensitivity.");
    if ((has(s, DQ_SENSITIVITY_KEYS) || has(s, DQ_SENSITIVITY_VALUES)) && longest <= plain)
        return dq_fail(
            err, DQ_MISMATCH,
            "a cache has codes of windows of more than %lld tokens only, and the longest "
            "has %lld. Raise --ctx, or leave keys and values out of --sensitivity.",
            (long long)plain, (long long)longest);
    return DQ_OK;
}

static dq_status prepare(cmd_stats_sensitivity_run *r, int model, dq_err *err)
{
    cmd_stats_entry *e = &r->entry[model];
    dq_calib_text *text = dq_alloc(r->arena, 1, sizeof *text, err);
    dq_sensitivity *s = dq_alloc(r->arena, 1, sizeof *s, err);
    const char *beside = beside_of(r, err);
    if (!text || !s || !beside) return err->code;
    const dq_sensitivity_settings set = {.kinds = kinds_of(r->set),
                                         .bits = (int)r->set->bits,
                                         .granularity = (dq_granularity)r->set->granularity.at,
                                         .group = GROUP,
                                         .kv = dq_kv_config_plain,
                                         .backend = r->backend,
                                         .beside = beside,
                                         .number = model,
                                         .journal = r->out ? &r->journal : NULL};
    DQ_TRY(cut(text, e, r->set, r->arena, err));
    if (dq_sensitivity_new(s, e->model, text, &set, r->arena, err) != DQ_OK ||
        check_windows(s, err) != DQ_OK)
        return dq_in(err, "%s: ", e->model->path);
    e->sensitivity = s;
    return DQ_OK;
}

dq_status cmd_stats_sensitivity_begin(cmd_stats_sensitivity_run *r, dq_err *err)
{
    int64_t units = 0;
    for (int i = 0; i < r->n; i++) {
        DQ_TRY(prepare(r, i, err));
        units += r->entry[i].sensitivity->n;
    }
    const int64_t windows = r->n ? r->entry[0].sensitivity->text->n_clusters : 0;
    if (r->set->kinds.n && windows < DQ_SENSITIVITY_WINDOWS)
        dq_logger_warn(r->logger,
                       "what breaks first will be inconclusive: %lld windows are fewer than the %d "
                       "that it takes, of which half choose it and half judge. Give more with "
                       "--sensitivity-windows, or more text",
                       (long long)windows, DQ_SENSITIVITY_WINDOWS);
    if (r->set->kinds.n && units == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "--sensitivity %s: no model has two maps. Give other kinds.",
                       r->set->kinds.text);
    return r->out && r->set->kinds.n ? open_journal(r, err) : DQ_OK;
}

dq_status cmd_stats_sensitivity_compute(cmd_stats_sensitivity_run *r, dq_err *err)
{
    for (int i = 0; i < r->n; i++) {
        dq_sensitivity *s = r->entry[i].sensitivity;
        if (s->n_known)
            dq_logger_note(r->logger, "%s: %lld of %lld units are known from %s",
                           r->entry[i].model->path, (long long)s->n_known, (long long)s->n,
                           r->journal.path);
        dq_progress_begin(&r->bar, r->logger, r->entry[i].label, 1);
        s->work = (dq_plan_work){.step = dq_progress_step, .arg = &r->bar};
        dq_sensitivity_run(s, err);
        dq_progress_end(&r->bar);
        if (err->code != DQ_OK)
            return err->code == DQ_STOPPED ? err->code
                                           : dq_in(err, "%s: ", r->entry[i].model->path);
    }
    return DQ_OK;
}

void cmd_stats_sensitivity_end(cmd_stats_sensitivity_run *r, dq_err *err)
{
    if (err->code != DQ_OK) dq_plan_journal_failed(&r->journal, err);
    dq_plan_journal_end(&r->journal, err->code == DQ_OK);
}
