/* eval_baseline: what must be the same is compared as JSON, member by member: files by their hashes, settings of the run and
 * of each kind that both documents have. A row's result is the one that holds all members of the row's key.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_baseline.h"

#include "base/file.h"
#include "base/json.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_options.h"
#include "record/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE = 80 };
static const char remedy[] = "Make the baseline anew with this run's files and options (-o FILE), "
                             "or give this run those of the baseline";

/* ---- Reading ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static dq_status check_result(const json_t *r, size_t i, const char *path, dq_err *err)
{
    const char *wrong = !json_is_string(json_object_get(r, "model"))         ? "model"
                        : !json_is_string(json_object_get(r, "task"))        ? "task"
                        : !json_is_integer(json_object_get(r, "logit_bits")) ? "logit_bits"
                        : !json_is_integer(json_object_get(r, "n"))          ? "n"
                        : !json_is_object(json_object_get(r, "metrics"))     ? "metrics"
                                                                             : NULL;
    if (!wrong) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "%s: results[%zu]: \"%s\" is missing or of another type. Is the document cut or "
                   "edited?",
                   path, i, wrong);
}

static dq_status check(const json_t *d, const char *path, dq_err *err)
{
    static const char schema[] = "dq-eval/1";
    const char *found = text_of(d, "schema");
    size_t i;
    json_t *r;
    if (!*found)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: not a document of dq (expected an object with a \"schema\"). Give what "
                       "dq eval -o FILE writes",
                       path);
    if (strcmp(found, schema) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: another document than a baseline is (expected %s, found \"%.60s\"). "
                       "Give what dq eval -o FILE writes",
                       path, schema, found);
    if (!json_is_array(json_object_get(d, "results")) ||
        !json_is_array(json_object_get(d, "inputs")) ||
        !json_is_object(json_object_get(d, "settings")))
        return dq_fail(err, DQ_DAMAGED,
                       "%s: inputs, settings or results are missing. Is the document cut or "
                       "edited?",
                       path);
    json_array_foreach(json_object_get(d, "results"), i, r) DQ_TRY(check_result(r, i, path, err));
    return DQ_OK;
}

dq_status cmd_eval_baseline_read(cmd_eval_baseline *b, const char *path, dq_arena *a, dq_err *err)
{
    char *text;
    size_t len;
    b->path = path;
    DQ_TRY(dq_document_name_text(&b->name, path, a, err));
    DQ_TRY(dq_file_read_small(&text, &len, path, DQ_MAX_DOCUMENT, a, err));
    DQ_TRY(dq_sha256_of(b->sha256, text, len, err));
    b->bytes = (int64_t)len;
    DQ_TRY(dq_json_parse(&b->document, text, len, path, err));
    return check(b->document, path, err);
}

void cmd_eval_baseline_end(cmd_eval_baseline *b)
{
    json_decref(b->document);
}

json_t *cmd_eval_baseline_json(const cmd_eval_baseline *b)
{
    json_t *o = json_object();
    json_object_set_new(o, "path", dq_document_name(b->path));
    json_object_set_new(o, "bytes", json_integer((json_int_t)b->bytes));
    json_object_set_new(o, "sha256", json_string(b->sha256));
    json_object_set_new(o, "dq_version", dq_document_name(text_of(b->document, "dq_version")));
    json_object_set_new(o, "comparison", json_string("point values"));
    return o;
}

/* ---- The run ---- */

/* A value as its JSON, short enough for a sentence. */
static const char *value_text(char buf[VALUE], const json_t *v)
{
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    snprintf(buf, VALUE, "%.*s%s", VALUE - 8, text ? text : "missing",
             text && strlen(text) > VALUE - 8 ? "..." : "");
    free(text);
    return buf;
}

static dq_status compare(const cmd_eval_baseline *b, const char *key, const json_t *there,
                         const json_t *here, dq_err *err)
{
    char x[VALUE], y[VALUE];
    DQ_TRY(dq_json_complete(err)); /* else a part of one is no difference */
    if (there && here && json_equal(there, here)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s: cannot be compared with this run: the setting \"%s\" is %s there and %s "
                   "here. %s",
                   b->path, key, value_text(x, there), value_text(y, here), remedy);
}

static bool holds_task(const json_t *settings, const char *task)
{
    size_t i;
    json_t *t;
    json_array_foreach(json_object_get(settings, "tasks"), i, t)
    {
        if (json_is_string(t) && strcmp(json_string_value(t), task) == 0) return true;
    }
    return false;
}

/* What scores of a kind depend on, where both runs have a source of that kind. */
static dq_status compare_kind(const cmd_eval_baseline *b, const cmd_eval_kind *kind,
                              const cmd_eval_view *v, const cmd_eval_options *o, dq_err *err)
{
    const json_t *there = json_object_get(b->document, "settings");
    json_t *own, *here;
    const char *key;
    bool both = false;
    for (int i = 0; i < v->e->n_sources; i++)
        both = both || (cmd_eval_kind_of(&v->e->source[i]) == kind &&
                        holds_task(there, v->e->source[i].name));
    if (!both || !kind->settings) return DQ_OK;
    own = cmd_eval_kind_scored(kind, cmd_eval_own(o, kind), v->e);
    json_object_foreach(own, key, here)
    {
        json_t *other = json_deep_copy(json_object_get(there, key));
        for (const char *const *name = kind->unscored; name && *name; name++)
            json_object_del(other, *name);
        if (err->code == DQ_OK) compare(b, key, other, here, err);
        json_decref(other);
    }
    json_decref(own);
    return err->code;
}

/* Of files that have the same place in both runs. What a task reads is listed under the name of the task. */
static dq_status compare_files(const cmd_eval_baseline *b, const char *kind, const json_t *inputs,
                               dq_err *err)
{
    const json_t *list[2] = {json_object_get(b->document, "inputs"), inputs};
    json_t *sha[2] = {json_array(), json_array()}, *in;
    size_t i;
    for (int k = 0; k < 2; k++) {
        json_array_foreach(list[k], i, in)
        {
            if (strcmp(text_of(in, "kind"), kind) == 0 && *text_of(in, "sha256"))
                json_array_append(sha[k], json_object_get(in, "sha256"));
        }
    }
    const bool some = json_array_size(sha[0]) > 0;
    if (dq_json_complete(err) == DQ_OK && !some &&
        holds_task(json_object_get(b->document, "settings"), kind))
        dq_fail(
            err, DQ_DAMAGED,
            "%s: inputs: no \"sha256\" of what was read as %.60s. Is the document cut or edited?",
            b->path, kind);
    if (err->code == DQ_OK && some && !json_equal(sha[0], sha[1]))
        dq_fail(err, DQ_MISMATCH,
                "%s: cannot be compared with this run: what was read as %.60s has other bytes "
                "there (SHA-256 %.12s..., here %.12s...). %s",
                b->path, kind, json_string_value(json_array_get(sha[0], 0)),
                json_string_value(json_array_get(sha[1], 0)), remedy);
    for (int k = 0; k < 2; k++) json_decref(sha[k]);
    return err->code;
}

static dq_status compare_run(const cmd_eval_baseline *b, const cmd_eval_view *v,
                             const cmd_eval_options *o, const json_t *inputs,
                             const json_t *settings, dq_err *err)
{
    static const char *const of_all[] = {"limit",      "num_fewshot", "seed", "long",
                                         "head_order", "bos",         NULL};
    const json_t *there = json_object_get(b->document, "settings");
    size_t i;
    json_t *in;
    for (const char *const *key = of_all; *key; key++)
        DQ_TRY(
            compare(b, *key, json_object_get(there, *key), json_object_get(settings, *key), err));
    for (int k = 0; k < DQ_EVAL_KINDS; k++) DQ_TRY(compare_kind(b, cmd_eval_kinds[k], v, o, err));
    json_array_foreach(inputs, i, in)
    {
        if (strcmp(text_of(in, "kind"), "model") != 0)
            DQ_TRY(compare_files(b, text_of(in, "kind"), inputs, err));
    }
    return DQ_OK;
}

/* ---- Rows ---- */

/* Members of a result that tell it from all others. */
static json_t *key_of(const cmd_eval_view *v, const dq_eval_row *r)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    const cmd_eval_kind *kind = cmd_eval_kind_of(s);
    json_t *o = json_object();
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "task", json_string(s->name));
    json_object_set_new(o, "logit_bits", json_integer(r->logit.bits));
    if (r->logit.bits < 16)
        json_object_set_new(o, "logit_granularity",
                            json_string(dq_granularity_name[r->logit.granularity]));
    json_object_set_new(o, "kv", dq_kv_spec_json(&r->kv));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    if (kind->out.told_by) kind->out.told_by(o, s);
    return o;
}

/* Whether the value holds every member of the part. */
static bool holds(const json_t *value, json_t *part)
{
    const char *key;
    json_t *x;
    if (!json_is_object(part)) return json_equal(value, part);
    json_object_foreach(part, key, x)
    {
        const json_t *own = json_object_get(value, key);
        if (!own || !holds(own, x)) return false;
    }
    return true;
}

static dq_status find_result(const cmd_eval_baseline *b, json_t *key, int *found, dq_err *err)
{
    json_t *r;
    size_t i;
    *found = -1;
    json_array_foreach(json_object_get(b->document, "results"), i, r)
    {
        if (!holds(r, key)) continue;
        if (*found >= 0)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: results[%d] and results[%zu] are both of %s on %s with one "
                           "setting, so which is the baseline is not known. Is the document "
                           "edited?",
                           b->path, *found, i, text_of(r, "model"), text_of(r, "task"));
        *found = (int)i;
    }
    return DQ_OK;
}

static dq_status find(const cmd_eval_baseline *b, const cmd_eval_view *v, int row, dq_err *err)
{
    json_t *key = key_of(v, &v->e->row[row]);
    if (dq_json_complete(err) == DQ_OK) find_result(b, key, &b->result[row], err);
    json_decref(key);
    return err->code;
}

/* As many items, or scored tokens of a text: with another tokenizer, or fewer positions, a number is of something else. */
static dq_status compare_units(const cmd_eval_baseline *b, const cmd_eval_view *v, int row,
                               dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    const int64_t units = dq_eval_units(v->e, r),
                  n = s->kind->windows ? dq_eval_values(v->e, r, units) : units;
    const json_t *there = json_object_get(cmd_eval_baseline_result(b, row), "n");
    if (json_is_integer(there) && json_integer_value(there) == n) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s: cannot be compared with this run: %s on %s has %lld %s there and %lld here "
                   "(another tokenizer, or other positions?). %s",
                   b->path, v->names[r->model], s->name, (long long)json_integer_value(there),
                   s->kind->windows ? "scored tokens" : "items", (long long)n, remedy);
}

static const json_t *model_input(const json_t *inputs, const char *name)
{
    size_t i, n;
    json_t *in;
    json_array_foreach(inputs, i, in)
    {
        const char *path = text_of(in, "path"), *end = path + strlen(path);
        if (strcmp(text_of(in, "kind"), "model") != 0) continue;
        while (end > path && end[-1] == '/') end--;
        n = strlen(name);
        if ((size_t)(end - path) >= n && strncmp(end - n, name, n) == 0 &&
            (end - n == path || end[-1 - (long)n] == '/'))
            return in;
    }
    return NULL;
}

/* Allowed, as a model may have been trained further, but told. */
static void warn_references(const cmd_eval_baseline *b, const cmd_eval_view *v,
                            const json_t *inputs, dq_logger *logger)
{
    const json_t *there = json_object_get(b->document, "inputs");
    for (int m = 0; m < v->e->n_models; m++) {
        bool is_reference = false;
        for (int i = 0; i < v->e->n_rows; i++) {
            const dq_eval_row *r = &v->e->row[i];
            is_reference = is_reference || (r->shown && b->result[i] >= 0 && r->ref != i &&
                                            v->e->row[r->ref].model == m);
        }
        const json_t *x = model_input(there, v->names[m]), *y = model_input(inputs, v->names[m]);
        if (is_reference && strcmp(text_of(x, "fingerprint"), text_of(y, "fingerprint")) != 0)
            dq_logger_warn(logger,
                           "%s: the reference %s had other weights there, so differences to it are "
                           "differences to something else",
                           b->path, v->names[m]);
    }
}

dq_status cmd_eval_baseline_fit(cmd_eval_baseline *b, const cmd_eval_view *v,
                                const cmd_eval_options *o, const json_t *inputs,
                                const json_t *settings, dq_logger *logger, dq_err *err)
{
    if (!b->path) return DQ_OK;
    b->result = dq_alloc(v->e->a, (size_t)v->e->n_rows, sizeof *b->result, err);
    if (!b->result) return err->code;
    DQ_TRY(compare_run(b, v, o, inputs, settings, err));
    for (int i = 0; i < v->e->n_rows; i++) {
        b->result[i] = -1;
        if (!v->e->row[i].shown) continue;
        DQ_TRY(find(b, v, i, err));
        if (b->result[i] >= 0) DQ_TRY(compare_units(b, v, i, err));
    }
    warn_references(b, v, inputs, logger);
    return dq_json_complete(err);
}

const json_t *cmd_eval_baseline_result(const cmd_eval_baseline *b, int row)
{
    if (!b->result || b->result[row] < 0) return NULL;
    return json_array_get(json_object_get(b->document, "results"), (size_t)b->result[row]);
}
