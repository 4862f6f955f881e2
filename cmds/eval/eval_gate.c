/* Recursive descent, a function a level: sum, product, factor. Each appends its steps after those
 * of its parts, so that one pass over the steps gives the value.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "record/record.h"
#include "stat/stat.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const json_t *baseline_result(const cmd_eval_baseline *b, int row);

typedef struct reader {
    cmd_eval_gate_expr *e;
    const char *text, *p;
    int depth; /* of parentheses and signs */
    dq_err *err;
} reader;

static const char baseline_word[] = "baseline";

/* UTF-8 characters before a byte. */
static int characters(const char *text, size_t at)
{
    int n = 0;
    for (size_t i = 0; i < at; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static dq_status gate_expr_refuse(const char *text, size_t at, const char *what, dq_err *err)
{
    const char *found = text + at;
    if (!*found)
        return dq_fail(err, DQ_USAGE,
                       "--fail-if \"%.200s\": character %d: expected %s, found the end.", text,
                       characters(text, at) + 1, what);
    return dq_fail(err, DQ_USAGE,
                   "--fail-if \"%.200s\": character %d: expected %s, found \"%.20s\".", text,
                   characters(text, at) + 1, what, found);
}

static dq_status refuse(const reader *r, const char *what)
{
    return gate_expr_refuse(r->text, (size_t)(r->p - r->text), what, r->err);
}

static void skip_blanks(reader *r)
{
    r->p += strspn(r->p, " \t");
}

static dq_status add(reader *r, char what, double number)
{
    cmd_eval_gate_expr *e = r->e;
    if (e->n == DQ_GATE_STEPS) return refuse(r, "fewer than 64 numbers and operations before this");
    e->step[e->n++] = (cmd_eval_gate_step){what, number};
    e->baseline = e->baseline || what == 'b';
    return DQ_OK;
}

static dq_status sum(reader *r);

static dq_status in_parentheses(reader *r)
{
    if (++r->depth > DQ_GATE_DEPTH) return refuse(r, "at most 16 parentheses within each other");
    r->p++;
    DQ_TRY(sum(r));
    if (*r->p != ')') return refuse(r, "an operation or \")\"");
    r->p++;
    r->depth--;
    return DQ_OK;
}

static bool at_word(const char *p)
{
    const char next = strncmp(p, baseline_word, sizeof baseline_word - 1) == 0
                          ? p[sizeof baseline_word - 1]
                          : 'x';
    return !isalnum((unsigned char)next) && next != '_' && next != '.';
}

/* factor: signs, then a number, `baseline` or parentheses. */
static dq_status factor(reader *r)
{
    bool negative = false;
    for (skip_blanks(r); *r->p == '-' || *r->p == '+'; r->p++, skip_blanks(r))
        negative = negative != (*r->p == '-');
    if (*r->p == '(') {
        DQ_TRY(in_parentheses(r));
    } else if (at_word(r->p)) {
        DQ_TRY(add(r, 'b', 0));
        r->p += sizeof baseline_word - 1;
    } else {
        char *end;
        const double x = dq_real_parse(r->p, &end);
        if (end == r->p) return refuse(r, "a number, baseline or \"(\"");
        DQ_TRY(add(r, '#', x));
        r->p = end;
    }
    skip_blanks(r);
    return negative ? add(r, '_', 0) : DQ_OK;
}

static dq_status product(reader *r)
{
    DQ_TRY(factor(r));
    while (*r->p == '*' || *r->p == '/') {
        const char what = *r->p++;
        DQ_TRY(factor(r));
        DQ_TRY(add(r, what, 0));
    }
    return DQ_OK;
}

static dq_status sum(reader *r)
{
    DQ_TRY(product(r));
    while (*r->p == '+' || *r->p == '-') {
        const char what = *r->p++;
        DQ_TRY(product(r));
        DQ_TRY(add(r, what, 0));
    }
    return DQ_OK;
}

dq_status cmd_eval_gate_expr_read(cmd_eval_gate_expr *e, const char *text, size_t at, dq_err *err)
{
    reader r = {.e = e, .text = text, .p = text + at, .err = err};
    *e = (cmd_eval_gate_expr){.n = 0};
    DQ_TRY(sum(&r));
    return *r.p ? refuse(&r, "an operation or the end") : DQ_OK;
}

static double apply(char what, double x, double y)
{
    return what == '+' ? x + y : what == '-' ? x - y : what == '*' ? x * y : x / y;
}

double cmd_eval_gate_expr_value(const cmd_eval_gate_expr *e, double baseline)
{
    double stack[DQ_GATE_STEPS] = {0};
    int n = 0;
    for (int i = 0; i < e->n; i++) {
        const cmd_eval_gate_step *s = &e->step[i];
        if (s->what == '#' || s->what == 'b') {
            stack[n++] = s->what == 'b' ? baseline : s->number;
        } else if (s->what == '_') {
            stack[n - 1] = -stack[n - 1];
        } else {
            stack[n - 2] = apply(s->what, stack[n - 2], stack[n - 1]);
            n--;
        }
    }
    return stack[0];
}

/* What must be equal is compared as JSON: files by hash, settings of the run and of each kind that
 * both documents have. A row's result is the one that has all members of the row's key. */

enum { VALUE = 80 };
static const char remedy[] = "Make the baseline anew with this run's files and options (-o FILE), "
                             "or give this run those of the baseline";

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
    const json_t *d = b->document;
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

void cmd_eval_baseline_end(cmd_eval_baseline *b)
{
    json_decref(b->document);
}

static void baseline_rows(dq_row_writer *w, const cmd_eval_baseline *b)
{
    if (!DQ_BEGIN(w, OBJECT, "baseline", b->path, "The document of --baseline.", .when = DQ_OUT))
        return;
    DQ_PUT(w, "path", b->path, "As it was given.");
    DQ_PUT(w, "bytes", b->bytes, "Its size.");
    DQ_PUT(w, "sha256", b->sha256, "Of its bytes.", .pattern = DQ_SHA256);
    DQ_PUT(w, "dq_version", text_of(b->document, "dq_version"), "The version of dq that wrote it.");
    DQ_PUT(w, "comparison", "point values", "What a change is a difference of.",
           DQ_WORD("point values"));
    dq_row_end(w);
}

/* A value as JSON, shortened for a sentence. */
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

/* Only where both runs have a source of that kind. */
static dq_status compare_kind(const cmd_eval_baseline *b, const cmd_eval_kind *kind,
                              const cmd_eval_view *v, const cmd_eval_options *o, dq_err *err)
{
    const json_t *there = json_object_get(b->document, "settings");
    json_t *own, *all, *here;
    const char *key;
    bool both = false;
    for (int i = 0; i < v->e->n_sources; i++)
        both = both || (cmd_eval_kind_of(&v->e->source[i]) == kind &&
                        holds_task(there, v->e->source[i].name));
    if (!both || !kind->settings) return DQ_OK;
    own = cmd_eval_kind_settings(kind, cmd_eval_own(o, kind), v->e, true);
    all = cmd_eval_kind_settings(kind, cmd_eval_own(o, kind), v->e, false);
    json_object_foreach(own, key, here)
    {
        json_t *other = json_deep_copy(json_object_get(there, key)), *member;
        const char *name;
        json_object_foreach(json_object_get(all, key), name, member)
        {
            if (!json_object_get(here, name)) json_object_del(other, name);
        }
        if (err->code == DQ_OK) compare(b, key, other, here, err);
        json_decref(other);
    }
    json_decref(own);
    json_decref(all);
    return err->code;
}

/* Files are paired by place in both runs, those of a task by its name. */
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

/* Whether `value` has every member of `part`. */
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

/* Another tokenizer or fewer positions change the number of items or tokens, and thus what a number
 * means. */
static dq_status compare_units(const cmd_eval_baseline *b, const cmd_eval_view *v, int row,
                               dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    const int64_t units = dq_eval_units(v->e, r),
                  n = s->kind->windows ? dq_eval_values(v->e, r, units) : units;
    const json_t *there = json_object_get(baseline_result(b, row), "n");
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

dq_status cmd_eval_baseline_fit(cmd_eval_baseline *b, const cmd_eval_view *v,
                                const cmd_eval_options *o, const json_t *inputs,
                                const json_t *settings, dq_logger *logger, dq_err *err)
{
    if (!b->path) return DQ_OK;
    b->result = dq_alloc(v->e->a, (size_t)v->e->n_rows, sizeof *b->result, err);
    if (!b->result) return err->code;
    static const char *const of_all[] = {"limit",      "num_fewshot", "seed", "long",
                                         "head_order", "bos",         NULL};
    const json_t *there = json_object_get(b->document, "settings");
    size_t j;
    json_t *in;
    for (const char *const *key = of_all; *key; key++)
        DQ_TRY(
            compare(b, *key, json_object_get(there, *key), json_object_get(settings, *key), err));
    for (int k = 0; k < DQ_EVAL_KINDS; k++) DQ_TRY(compare_kind(b, cmd_eval_kinds[k], v, o, err));
    json_array_foreach(inputs, j, in)
    {
        if (strcmp(text_of(in, "kind"), "model") != 0)
            DQ_TRY(compare_files(b, text_of(in, "kind"), inputs, err));
    }
    for (int i = 0; i < v->e->n_rows; i++) {
        b->result[i] = -1;
        if (!v->e->row[i].shown) continue;
        /* Members that identify a result. */
        const dq_eval_row *r = &v->e->row[i];
        const dq_eval_source *s = dq_eval_source_of(v->e, r);
        json_t *key = json_object();
        dq_row_writer w = dq_row_json(key);
        DQ_PUT(&w, "model", v->names[r->model], NULL);
        DQ_PUT(&w, "task", s->name, NULL);
        dq_kv_report_logit_rows(&w, &r->logit, NULL);
        if (r->logit.bits == 16) json_object_del(key, "logit_granularity");
        DQ_PUT(&w, "kv", dq_kv_spec_json(&r->kv), NULL, DQ_KV_SPEC);
        DQ_PUT(&w, "math", dq_kv_report_math_json(r->math), NULL, DQ_MATH);
        if (DQ_BEGIN(&w, OBJECT, s->told_by[0], s->told_by[0], NULL, .when = DQ_OUT)) {
            DQ_PUT(&w, s->told_by[1], s->told_by[2], NULL);
            dq_row_end(&w);
        }
        if (dq_json_complete(err) == DQ_OK) find_result(b, key, &b->result[i], err);
        json_decref(key);
        if (err->code != DQ_OK) return err->code;
        if (b->result[i] >= 0) DQ_TRY(compare_units(b, v, i, err));
    }
    /* Other models are allowed, as training may have gone on, but reported. */
    const json_t *references = json_object_get(b->document, "inputs");
    for (int m = 0; m < v->e->n_models; m++) {
        bool is_reference = false;
        for (int i = 0; i < v->e->n_rows; i++) {
            const dq_eval_row *r = &v->e->row[i];
            is_reference = is_reference || (r->shown && b->result[i] >= 0 && r->ref != i &&
                                            v->e->row[r->ref].model == m);
        }
        const json_t *x = model_input(references, v->names[m]),
                     *y = model_input(inputs, v->names[m]);
        if (is_reference && strcmp(text_of(x, "fingerprint"), text_of(y, "fingerprint")) != 0)
            dq_logger_warn(logger,
                           "%s: the reference %s had other weights there, so differences to it are "
                           "differences to something else",
                           b->path, v->names[m]);
    }
    return dq_json_complete(err);
}

static const json_t *baseline_result(const cmd_eval_baseline *b, int row)
{
    if (!b->result || b->result[row] < 0) return NULL;
    return json_array_get(json_object_get(b->document, "results"), (size_t)b->result[row]);
}

static void number_cell(dq_table *t, double x, double std_err)
{
    if (isnan(x))
        dq_table_cell(t, "-");
    else if (isnan(std_err))
        dq_table_cell(t, "%.5g", x);
    else
        dq_table_cell(t, "%.5g \u00b1 %.2g", x, std_err);
}

static void add_row(dq_table *t, const cmd_eval_view *v, const char *condition, const json_t *c)
{
    int64_t i = json_integer_value(json_object_get(c, "result"));
    int index = 0;
    while (!v->e->row[index].shown || i-- > 0) index++;
    const dq_eval_row *r = &v->e->row[index];
    const json_t *met = json_object_get(c, "met");
    const double change = cmd_eval_real(c, "change");
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL, DQ_KEY_TITLE, DQ_KEY_BITS, DQ_KEY_GRANULARITY,
                                        DQ_KEYS_END};
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", condition);
    cmd_eval_key_cells(t, v, index, keys);
    dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    dq_table_cell(t, "%s", dq_kv_report_label(label, sizeof label, &r->kv));
    number_cell(t, cmd_eval_real(c, "value"), cmd_eval_real(c, "stderr"));
    number_cell(t, cmd_eval_real(c, "baseline"), cmd_eval_real(c, "baseline_stderr"));
    dq_table_known(t, !isnan(change), "%+.4g", change);
    number_cell(t, cmd_eval_real(c, "limit"), (double)NAN);
    dq_table_cell(t, "%s",
                  json_is_null(met)   ? "not checked"
                  : json_is_true(met) ? "met"
                                      : "not met");
}

dq_status cmd_eval_gate_table(const cmd_eval_gates *g, const cmd_eval_view *v,
                              const json_t *document, dq_err *err)
{
    static const char *const titles[] = {"condition",   "model",  "task",     "logit bits",
                                         "granularity", "math",   "KV cache", "here",
                                         "baseline",    "change", "limit",    "outcome"};
    enum { N = sizeof titles / sizeof *titles, KEYS = 7 };
    const json_t *gates = json_object_get(document, "gates");
    dq_table *t;
    size_t i, k;
    json_t *gate, *c;
    if (!g->baseline.path) return DQ_OK;
    printf("\nAgainst the baseline %s:\n\n", g->baseline.name);
    DQ_TRY(dq_table_new(&t, titles, N, err));
    dq_table_keys(t, KEYS);
    json_array_foreach(gates, i, gate)
    {
        json_array_foreach(json_object_get(gate, "compared"), k, c)
            add_row(t, v, g->gate[i].text, c);
    }
    if (dq_table_print(t, err) == DQ_OK)
        printf("\nA change is the difference of two point values: a document has no results of "
               "single items, so no interval\nbelongs to it. \u00b1 is the standard error of a "
               "number in its own run.\n");
    dq_table_free(t);
    return err->code;
}

/* A name is looked up in the JSON of each result and of the baseline; the schema of results knows
 * valid names before anything is scored. */

enum { SHORT_NAME = 60 }; /* bytes of a model's name in an error */

static dq_status read_one(cmd_eval_gate *g, const char *text, dq_err *err)
{
    const size_t at = strcspn(text, "<>");
    size_t n = at;
    while (n > 0 && text[n - 1] == ' ') n--;
    g->text = text;
    if (n == 0) return gate_expr_refuse(text, 0, "the name of a number", err);
    if (n >= sizeof g->name)
        return gate_expr_refuse(text, sizeof g->name, "< <= > or >= before this", err);
    if (!text[at]) return gate_expr_refuse(text, at, "< <= > or >= after a name", err);
    memcpy(g->name, text, n);
    g->name[n] = 0;
    g->less = text[at] == '<';
    g->equal = text[at + 1] == '=';
    DQ_TRY(cmd_eval_gate_expr_read(&g->limit, text, at + 1 + g->equal, err));
    if (g->limit.baseline || isfinite(cmd_eval_gate_expr_value(&g->limit, 0))) return DQ_OK;
    return dq_fail(err, DQ_USAGE, "--fail-if \"%s\": the limit is no finite number.", text);
}

dq_status cmd_eval_gates_read(cmd_eval_gates *g, const dq_list *texts, const char *baseline,
                              dq_err *err)
{
    for (int i = 0; i < texts->n; i++) {
        cmd_eval_gate *one = &g->gate[g->n++];
        DQ_TRY(read_one(one, texts->item[i], err));
        g->uses_baseline = g->uses_baseline || one->limit.baseline;
        if (one->limit.baseline && !baseline)
            return dq_fail(err, DQ_USAGE,
                           "--fail-if \"%s\": names a baseline. Add --baseline OLD.json.",
                           one->text);
    }
    if (baseline && !g->uses_baseline)
        return dq_fail(err, DQ_USAGE,
                       "--baseline has nothing to act on: no --fail-if has the word baseline, as "
                       "'kld_nats > 1.1 * baseline' has.");
    return DQ_OK;
}

static bool ends_in(const char *name, const char *end, char *base)
{
    size_t n = strlen(name), k = strlen(end);
    if (n <= k || strcmp(name + n - k, end) != 0) return false;
    memcpy(base, name, n - k);
    base[n - k] = 0;
    return true;
}

/* What a name stands for in a result. */
typedef struct quantity {
    bool there;       /* the result has such a member */
    double x;         /* NaN: without a value, or beyond the range of doubles */
    double std_err;   /* NaN: none is known */
    const json_t *of; /* the mean or difference that it is of; NULL: another number */
} quantity;

static quantity quantity_of(const json_t *row, const char *name)
{
    const json_t *metrics = json_object_get(row, "metrics");
    const json_t *paired = json_object_get(row, "paired"), *v = cmd_eval_at(metrics, name);
    const bool ratio = strcmp(name, "ppl_ratio") == 0;
    char base[DQ_GATE_NAME], beside[DQ_GATE_NAME + 8];
    quantity n = {.std_err = (double)NAN, .x = (double)NAN};
    if (ratio) {
        n.of = json_object_get(metrics, "ln_ppl_ratio");
        v = json_object_get(n.of, "value");
    } else if (v) {
        snprintf(beside, sizeof beside, "%s_stderr", name);
        if (cmd_eval_at(metrics, beside))
            n.std_err = json_number_value(cmd_eval_at(metrics, beside));
        n.of = json_is_object(v) ? v : NULL;
        if (n.of) v = json_object_get(v, "value");
        if (ends_in(name, ".value", base)) n.of = cmd_eval_at(metrics, base);
    } else if (ends_in(name, "_delta", base) && json_object_get(metrics, base)) {
        n.of = json_object_get(paired, base);
        v = json_object_get(n.of, "delta");
    } else if (ends_in(name, "_p", base) && json_object_get(metrics, base)) {
        v = json_object_get(json_object_get(paired, base), "p");
    } else {
        v = cmd_eval_at(row, name);
        if (json_is_object(v) || json_is_array(v) || json_is_string(v)) v = NULL;
    }
    n.there = v != NULL;
    if (n.of && !ratio) n.std_err = cmd_eval_real(n.of, "stderr");
    if (!json_is_number(v) || fabs(json_number_value(v)) >= DBL_MAX) return n;
    n.x = ratio ? exp(json_number_value(v)) : json_number_value(v);
    return n;
}

/* Its own 95 % interval, or one from its standard error, or none. */
static dq_interval interval_of(const quantity *n, const char *name)
{
    const json_t *value = json_object_get(n->of, "value");
    const dq_mean m = cmd_eval_mean_of(n->of);
    dq_interval x = cmd_eval_interval_of(n->of);
    if (isnan(x.low) && json_is_number(value) && !isnan(m.std_err))
        x = dq_interval_t(m.value, m.std_err, m.clusters);
    return strcmp(name, "ppl_ratio") == 0 ? (dq_interval){exp(x.low), exp(x.high)} : x;
}

static bool is_metric(const char *metric, const dq_eval_source *s)
{
    char path[DQ_GATE_NAME + 16];
    snprintf(path, sizeof path, "metrics.%s.value", metric);
    return s->kind->windows ? cmd_eval_field_find(s, metric, NULL) != NULL
                            : cmd_eval_result_has(s, path);
}

static bool is_paired(const char *name, const dq_eval_source *s)
{
    char base[DQ_GATE_NAME];
    bool delta = ends_in(name, "_delta", base);
    if (!delta && !ends_in(name, "_p", base)) return false;
    for (int m = 0; m < 2 && s->kind->metric[m]; m++) {
        if (strcmp(base, s->kind->metric[m]) == 0) return true;
    }
    return delta && s->kind->windows && strcmp(base, DQ_EVAL_LOSS) == 0;
}

/* Whether a number exists beside a reference only. ppl_ratio is another form of ln_ppl_ratio. */
static bool is_difference(const char *name, const dq_eval_source *s)
{
    static const char metrics[] = "metrics.", paired[] = "paired.", verdict[] = "verdict.";
    const cmd_eval_field *f = NULL;
    if (strncmp(name, paired, sizeof paired - 1) == 0 || strstr(name, ".paired.") ||
        strncmp(name, verdict, sizeof verdict - 1) == 0)
        return true;
    if (strncmp(name, metrics, sizeof metrics - 1) == 0) name += sizeof metrics - 1;
    const size_t n = strcspn(name, ".");
    char metric[DQ_GATE_NAME];
    snprintf(metric, sizeof metric, "%.*s", (int)n, name);
    if (strcmp(metric, "ppl_ratio") == 0) snprintf(metric, sizeof metric, "ln_ppl_ratio");
    if (is_paired(name, s)) return true;
    if (name[n]) f = cmd_eval_field_find(s, metric, name + n + 1);
    if (!f) f = cmd_eval_field_find(s, metric, NULL);
    return (f && f->differs) ||
           (s->kind->windows && (strstr(name, ".delta_nats") || strstr(name, ".difference_nats")));
}

static bool known(const char *name, const dq_eval_source *s)
{
    char path[DQ_GATE_NAME + 16];
    const size_t n = strcspn(name, ".");
    if (cmd_eval_result_has(s, name)) return true;
    if (!name[n]) return is_metric(name, s) || is_difference(name, s);
    snprintf(path, sizeof path, "%.*s", (int)n, name);
    if (!is_metric(path, s)) return false;
    if (strcmp(name + n, ".value") == 0 || strcmp(name + n, ".stderr") == 0 ||
        cmd_eval_field_find(s, path, name + n + 1))
        return true;
    snprintf(path, sizeof path, "metrics.%s", name);
    return cmd_eval_result_has(s, path);
}

dq_status cmd_eval_gates_check(const cmd_eval_gates *g, const dq_eval_source *source, int n_sources,
                               dq_err *err)
{
    const char *first = source[0].kind->windows ? "kld_nats, ppl_ratio, same_top1, " DQ_EVAL_LOSS
                                                : source[0].kind->metric[0];
    for (int i = 0; i < g->n; i++) {
        bool there = false;
        for (int k = 0; k < n_sources; k++) there = there || known(g->gate[i].name, &source[k]);
        if (!there)
            return dq_fail(err, DQ_USAGE,
                           "--fail-if \"%s\": what is scored has no %s. There are: %s%s"
                           "kv.kept_fraction and other numbers of the JSON results.",
                           g->gate[i].text, g->gate[i].name, first ? first : "", first ? ", " : "");
    }
    return DQ_OK;
}

/* "x.h5, text, 16-bit logits (per-tensor), f32, KV 4:4 h2o 0.5" */
static const char *row_text(char *buf, size_t cap, const char *model, const dq_eval *e, int index)
{
    const dq_eval_row *r = &e->row[index];
    char label[DQ_KV_LABEL] = "";
    dq_kv_report_label(label, sizeof label, &r->kv);
    snprintf(buf, cap, "%s, %s, %d-bit logits (%s), %s, KV %s", model,
             dq_eval_source_of(e, r)->name, r->logit.bits,
             dq_granularity_name[r->logit.granularity], dq_num_name[r->math.linear], label);
    return buf;
}

/* Compared with another model, a difference means something else. */
static bool same_reference(const json_t *there, const cmd_eval_view *v, const dq_eval_row *r)
{
    const char *name = json_string_value(json_object_get(there, "reference"));
    const char *weights = json_string_value(json_object_get(there, "reference_weights"));
    return name && strcmp(name, v->names[v->e->row[r->ref].model]) == 0 && weights &&
           strcmp(weights, cmd_eval_reference_weights(v->e, r)) == 0;
}

/* Why the baseline has no number for a row; NULL: it has one. */
static const char *why_unmatched(const cmd_eval_gates *all, const cmd_eval_gate *g,
                                 const cmd_eval_view *v, int row)
{
    const json_t *there = baseline_result(&all->baseline, row);
    const dq_eval_row *r = &v->e->row[row];
    if (!there) return "the baseline has no such result";
    if (isnan(quantity_of(there, g->name).x))
        return "its result in the baseline has no such number";
    if (is_difference(g->name, dq_eval_source_of(v->e, r)) && !same_reference(there, v, r))
        return "it is compared with another reference in the baseline";
    return NULL;
}

static void begin_baseline(const cmd_eval_gates *all, const cmd_eval_gate *g, dq_logger *logger,
                           const cmd_eval_view *v)
{
    char result[800];
    for (int r = 0; r < v->e->n_rows; r++) {
        const dq_eval_row *row = &v->e->row[r];
        const dq_eval_source *s = dq_eval_source_of(v->e, row);
        const bool has =
            row->shown && known(g->name, s) && !(row->ref == r && is_difference(g->name, s));
        const char *why = has ? why_unmatched(all, g, v, r) : NULL;
        if (why)
            dq_logger_warn(logger, "--fail-if \"%s\": %s: cannot be checked, %s", g->text,
                           row_text(result, sizeof result, v->names[row->model], v->e, r), why);
    }
}

void cmd_eval_gates_begin(const cmd_eval_gates *g, dq_logger *logger, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    for (int i = 0; i < g->n; i++) {
        const char *name = g->gate[i].name;
        bool requested = false, there = false;
        if (g->gate[i].limit.baseline) begin_baseline(g, &g->gate[i], logger, v);
        for (int r = 0; r < e->n_rows; r++) {
            const bool is =
                e->row[r].shown && is_difference(name, dq_eval_source_of(e, &e->row[r]));
            requested = requested || is;
            there = there || (is && e->row[r].ref != r);
        }
        if (requested && !there)
            dq_logger_warn(
                logger,
                "--fail-if \"%s\": every result is its own reference, so there will be no %s. "
                "Add what differs (a source checkpoint, --ref, --logit-bits, ...)",
                g->gate[i].text, name);
    }
}

static bool gate_holds(const cmd_eval_gate *g, double x, double limit)
{
    if (g->less) return g->equal ? x <= limit : x < limit;
    return g->equal ? x >= limit : x > limit;
}

/* Shortens a name for an error message, at a whole character. */
static const char *shortened(char buf[SHORT_NAME + 4], const char *name)
{
    size_t n = strlen(name);
    if (n <= SHORT_NAME) return name;
    for (n = SHORT_NAME; n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80;) n--;
    snprintf(buf, SHORT_NAME + 4, "%.*s\u2026", (int)n, name);
    return buf;
}

/* A result that has the number. */
typedef struct seen {
    char name[800], brief[320]; /* which it is, whole, and for an error */
    int number;                 /* among the results */
    quantity is, there;         /* here and in the baseline */
    dq_interval in;
    double baseline, limit; /* NaN: there is none */
    bool met;
    const char *unchecked; /* why there is no limit; NULL: there is one */
} seen;

typedef struct looked {
    seen *of;            /* [n] */
    int n, checked, bad; /* of them those with a limit, and those in which the condition holds */
    int sourceless;      /* results that would have a number if their source were in the run */
    int unmatched;       /* and those that the baseline has nothing to compare with */
} looked;

static void say(dq_logger *logger, cmd_eval_gates *all, const cmd_eval_gate *g, looked *sum,
                seen *it)
{
    const char *why = json_string_value(json_object_get(it->is.of, "reason"));
    char value[96], around[80] = "", against[80] = "";
    if (!isnan(it->is.x))
        snprintf(value, sizeof value, "is %.6g", it->is.x);
    else
        snprintf(value, sizeof value, "has no value%s%s", why ? ", as " : "", why ? why : "");
    if (!isnan(it->is.x) && !isnan(it->in.low))
        snprintf(around, sizeof around, " (95 %% interval %.6g to %.6g)", it->in.low, it->in.high);
    if (g->limit.baseline)
        snprintf(against, sizeof against, ", baseline %.6g, limit %.6g", it->baseline, it->limit);
    dq_logger_warn(logger, "--fail-if \"%s\": %s: %s %s%s%s", g->text, it->name, g->name, value,
                   around, against);
    if (all->missed + sum->bad < DQ_GATES_TOLD)
        snprintf(all->told[all->missed + sum->bad], sizeof all->told[0],
                 "%s: %s %s%s%s, \"%.100s\"", it->brief, g->name, value, around, against, g->text);
    sum->bad++;
}

/* Finds the limit; without one the result is not checked. */
static void take_limit(const cmd_eval_gates *all, const cmd_eval_gate *g, dq_logger *logger,
                       const cmd_eval_view *v, int index, seen *it)
{
    it->unchecked = g->limit.baseline ? why_unmatched(all, g, v, index) : NULL;
    it->there = quantity_of(baseline_result(&all->baseline, index), g->name);
    it->baseline = it->limit = (double)NAN;
    if (it->unchecked) return;
    if (g->limit.baseline) it->baseline = it->there.x;
    it->limit = cmd_eval_gate_expr_value(&g->limit, it->baseline);
    if (isfinite(it->limit)) return;
    it->unchecked = "the limit is no finite number with that baseline";
    dq_logger_warn(logger, "--fail-if \"%s\": %s: cannot be checked, %s (%.6g)", g->text, it->name,
                   it->unchecked, it->baseline);
}

static void look_at(cmd_eval_gates *all, const cmd_eval_gate *g, dq_logger *logger,
                    const cmd_eval_view *view, int index, looked *sum)
{
    const dq_eval *e = view->e;
    const char *model = view->names[e->row[index].model];
    char name[SHORT_NAME + 4];
    seen *it = &sum->of[sum->n];
    it->number = cmd_eval_result_of(e, index);
    it->is = quantity_of(cmd_eval_result(view, index), g->name);
    row_text(it->name, sizeof it->name, model, e, index);
    row_text(it->brief, sizeof it->brief, shortened(name, model), e, index);
    if (e->row[index].ref == index &&
        is_difference(g->name, dq_eval_source_of(e, &e->row[index]))) {
        if (!e->model[e->row[index].model].sourceless)
            return; /* a reference differs from nothing */
        sum->sourceless++;
        dq_logger_warn(
            logger,
            "--fail-if \"%s\": %s: could not be checked, its source checkpoint is not in the run",
            g->text, it->name);
        return;
    }
    if (!it->is.there) return;
    sum->n++;
    take_limit(all, g, logger, view, index, it);
    it->in = interval_of(&it->is, g->name);
    it->met = !it->unchecked && (isnan(it->is.x) || gate_holds(g, it->is.x, it->limit));
    if (it->unchecked)
        sum->unmatched++;
    else
        sum->checked++;
    if (it->met) say(logger, all, g, sum, it);
}

static void gate_rows(dq_row_writer *w, const cmd_eval_gate *g, const looked *sum)
{
    DQ_ITEM(w);
    DQ_PUT(w, "fail_if", g->text, "The condition.");
    DQ_PUT(w, "checked", sum->checked, "Results that have the number.");
    DQ_PUT(w, "missed", sum->bad, "Of them those in which the condition holds.");
    DQ_LIST(w, "met", "Those.");
    for (int i = 0; DQ_MORE(w, i, sum->n); i++) {
        const seen *it = DQ_LIVE(w, &sum->of[i]);
        if (!DQ_WHEN(w, it->met)) continue;
        DQ_ITEM(w);
        DQ_PUT(w, "result", it->number, "Index of the result.");
        DQ_PUT(w, "value", it->is.x, "Its number; null: none.", .when = DQ_NULL);
        DQ_INTERVAL(w, "interval", isnan(it->is.x) ? dq_interval_none : it->in,
                    "Its 95 % interval.");
        dq_row_end(w);
    }
    dq_row_end(w);
    DQ_PUT(w, "unchecked", sum->sourceless + sum->unmatched, "Results that could not be checked.");
    if (DQ_BEGIN(w, LIST, "compared", g->limit.baseline,
                 "Numbers beside the baseline's, where the condition has the word.",
                 .when = DQ_OUT)) {
        for (int i = 0; DQ_MORE(w, i, sum->n); i++) {
            const seen *it = DQ_LIVE(w, &sum->of[i]);
            DQ_ITEM(w);
            DQ_PUT(w, "result", it->number, "Index of the result.");
            DQ_PUT(w, "value", it->is.x, "Its number; null: none.", .when = DQ_NULL);
            DQ_PUT(w, "stderr", it->is.std_err, "Its standard error.", .when = DQ_NULL);
            DQ_PUT(w, "baseline", it->baseline, "The same number in the baseline; null: none.",
                   .when = DQ_NULL);
            DQ_PUT(w, "baseline_stderr", isnan(it->baseline) ? DQ_NO_REAL : it->there.std_err,
                   "Its standard error there.", .when = DQ_NULL);
            DQ_PUT(w, "change", it->is.x - it->baseline, "value less baseline.", .when = DQ_NULL);
            DQ_PUT(w, "limit", it->limit, "What the condition compares with.", .when = DQ_NULL);
            DQ_PUT(w, "met", (dq_maybe)(it->unchecked ? -1 : it->met),
                   "Whether the condition holds; null: not checked.", .when = DQ_NULL);
            DQ_PUT(w, "unchecked", it->unchecked, "Why it was not checked; null: it was.",
                   .when = DQ_NULL);
            dq_row_end(w);
        }
        dq_row_end(w);
    }
    dq_row_end(w);
}

dq_status cmd_eval_gates_apply(dq_row_writer *w, cmd_eval_gates *g, dq_logger *logger,
                               const cmd_eval_view *v, dq_err *err)
{
    const int n_rows = w->live ? v->e->n_rows : 0;
    seen *of = NULL;
    if (w->live && !(of = dq_alloc(v->e->a, (size_t)n_rows, sizeof *of, err))) return err->code;
    if (DQ_BEGIN(w, LIST, "gates", g->n, "Conditions of --fail-if.", .when = DQ_OUT)) {
        for (int i = 0; DQ_MORE(w, i, g->n); i++) {
            const cmd_eval_gate *gate = DQ_LIVE(w, &g->gate[i]);
            looked sum = {.of = of};
            for (int r = 0; r < n_rows; r++) {
                if (v->e->row[r].shown) look_at(g, gate, logger, v, r, &sum);
            }
            gate_rows(w, gate, &sum);
            if (!w->live) break;
            if (sum.checked == 0 && sum.sourceless == 0 && sum.unmatched == 0)
                dq_logger_warn(logger,
                               "--fail-if \"%s\": no result has a %s, so nothing was looked at",
                               gate->text, gate->name);
            g->missed += sum.bad;
            g->unchecked += sum.checked == 0 || sum.sourceless > 0 || sum.unmatched > 0;
            g->sourceless += sum.sourceless > 0;
            g->unmatched += sum.unmatched > 0;
        }
        dq_row_end(w);
    }
    baseline_rows(w, DQ_LIVE(w, &g->baseline));
    return DQ_OK;
}

dq_status cmd_eval_gates_outcome(const cmd_eval_gates *g, dq_err *err)
{
    char missed[DQ_GATES_TOLD * sizeof g->told[0] + 120] = "", unchecked[80] = "";
    size_t n = 0;
    if (g->missed == 0 && g->unchecked == 0) return DQ_OK;
    if (g->missed)
        n = (size_t)snprintf(missed, sizeof missed, "%d result%s a condition of --fail-if",
                             g->missed, g->missed == 1 ? " meets" : "s meet");
    for (int i = 0; i < g->missed && i < DQ_GATES_TOLD; i++)
        n += (size_t)snprintf(missed + n, sizeof missed - n, "%s%s", i ? "; " : " (", g->told[i]);
    if (g->missed > DQ_GATES_TOLD)
        n += (size_t)snprintf(missed + n, sizeof missed - n, "; and %d more",
                              g->missed - DQ_GATES_TOLD);
    if (g->missed) snprintf(missed + n, sizeof missed - n, ")");
    if (g->unchecked)
        snprintf(unchecked, sizeof unchecked, "%d condition%s of --fail-if could not be checked",
                 g->unchecked, g->unchecked == 1 ? "" : "s");
    return dq_fail(err, DQ_GATE, "%s%s%s; all results are written%s%s", missed,
                   g->missed && g->unchecked ? ", and " : "", unchecked,
                   g->sourceless ? ". Add the source checkpoint to the run, or --ref MODEL" : "",
                   g->unmatched ? ". Make the baseline anew (-o FILE), or compare what it has"
                                : "");
}
