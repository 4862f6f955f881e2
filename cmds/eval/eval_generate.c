/* eval_generate: see eval_generate.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_generate.h"

#include "base/os.h"
#include "base/utf8.h"
#include "cmds/cli/document.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/progress.h"
#include "tasks/answers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NEW = 256 };

/* ---- Tasks and options ---- */

const char dq_generate_tasks[] = "gsm8k, svamp, generate";

bool dq_generate_is_task(const char *name)
{
    return strcmp(name, "gsm8k") == 0 || strcmp(name, "svamp") == 0 ||
           strcmp(name, "generate") == 0;
}

const dq_eval_kind *dq_generate_task(dq_generate_options *o, const char *name,
                                     const void **settings)
{
    const bool prompts = strcmp(name, "generate") == 0;
    if (!dq_generate_is_task(name)) return NULL;
    o->questions = o->questions || !prompts;
    o->prompts = o->prompts || prompts;
    *settings = prompts ? &o->of_prompts : &o->of_questions;
    return prompts ? &dq_eval_prompts : &dq_eval_answers;
}

const char *dq_generate_form(const dq_eval_kind *kind)
{
    return dq_question_form_text[kind == &dq_eval_prompts ? DQ_FORM_PROMPT : DQ_FORM_ANSWERED];
}

/* \n, \t and \\ as what they stand for. */
static dq_status unescape(const char **out, const char *word, dq_arena *a, dq_err *err)
{
    static const char from[] = "nt\\", to[] = "\n\t\\";
    int64_t first_bad;
    char *s = dq_text(a, word, strlen(word), err), *end = s;
    if (!s) return err->code;
    for (const char *c = word; *c; c++) {
        const char *at = *c == '\\' && c[1] ? strchr(from, c[1]) : NULL;
        if (*c == '\\' && !at)
            return dq_fail(err, DQ_USAGE,
                           "--stop: expected \\n, \\t or \\\\ in \"%s\", found \\%c.", word,
                           c[1] ? c[1] : ' ');
        *end++ = at ? to[at - from] : *c;
        c += at != NULL;
    }
    *end = 0;
    if (!*s) return dq_fail(err, DQ_USAGE, "--stop: an empty text would end everything.");
    if (dq_utf8_check(s, (size_t)(end - s), &first_bad) > 0)
        return dq_fail(err, DQ_USAGE, "--stop: \"%s\" is not UTF-8.", word);
    *out = s;
    return DQ_OK;
}

static dq_status read_stops(dq_generate_options *o, dq_arena *a, dq_err *err)
{
    const int n = o->stop_words.n, own = dq_n_answer_stops;
    if (n + own > DQ_STOP_TEXTS)
        return dq_fail(err, DQ_USAGE, "--stop is given %d times (expected at most %d).", n,
                       DQ_STOP_TEXTS - own);
    for (int i = 0; i < own; i++) o->stop[i] = dq_answer_stop[i];
    for (int i = 0; i < n; i++) DQ_TRY(unescape(&o->stop[own + i], o->stop_words.item[i], a, err));
    o->of_questions.stop = o->stop;
    o->of_questions.n_stop = own + n;
    o->of_prompts.stop = o->stop + own;
    o->of_prompts.n_stop = n;
    return DQ_OK;
}

/* Options that nothing in the run would take. */
static dq_status check_use(const dq_generate_options *o, dq_err *err)
{
    const char *unused = NULL;
    if (!o->questions && !o->prompts)
        unused = o->max_new        ? "max-new"
                 : o->stop_words.n ? "stop"
                 : o->completions  ? "dump-completions"
                                   : NULL;
    if (unused)
        return dq_fail(err, DQ_USAGE, "--%s is for tasks that generate text (%s); there is none.",
                       unused, dq_generate_tasks);
    if (o->prompts && !o->completions)
        return dq_fail(err, DQ_USAGE,
                       "--task generate judges nothing, its texts are what comes out: give "
                       "--dump-completions FILE.");
    return DQ_OK;
}

dq_status dq_generate_read(dq_generate_options *o, dq_arena *a, dq_err *err)
{
    DQ_TRY(check_use(o, err));
    DQ_TRY(read_stops(o, a, err));
    o->of_questions.max_new = o->of_prompts.max_new = o->max_new ? o->max_new : MAX_NEW;
    return DQ_OK;
}

dq_status dq_generate_open(dq_generate_options *o, json_t *inputs, dq_arena *a, dq_err *err)
{
    char *text;
    size_t len;
    if (!o->num_fewshot) return DQ_OK;
    DQ_TRY(dq_file_read(&text, &len, o->shots_path, a, err));
    DQ_TRY(dq_sha256_of(o->shots_sha, text, len, err));
    json_t *in = json_object();
    json_object_set_new(in, "kind", json_string("fewshot"));
    json_object_set_new(in, "path", dq_name_json(o->shots_path));
    json_object_set_new(in, "bytes", json_integer((json_int_t)len));
    json_object_set_new(in, "sha256", json_string(o->shots_sha));
    json_array_append_new(inputs, in);
    return dq_questions_shots(&o->of_questions.shots, o->num_fewshot, o->shots_path, text, len, a,
                              err);
}

/* ---- Settings ---- */

/* Adds a text with its length, so that two lists of texts never look alike. */
static void add_text(dq_sha256 *h, const char *text, size_t len)
{
    char line[32];
    int n = snprintf(line, sizeof line, "%zu:", len);
    dq_sha256_add(h, line, (size_t)n);
    dq_sha256_add(h, text, len);
}

static dq_status add_model(dq_sha256 *h, const dq_eval *e, int model, dq_err *err)
{
    const int32_t *ids;
    int64_t n;
    const dq_eval_model *m = &e->model[model];
    add_text(h, m->tok_text ? m->tok_text : "", m->tok_len);
    DQ_TRY(dq_eval_stop_ids(e, model, &ids, &n, e->a, err));
    add_text(h, (const char *)ids, (size_t)n * sizeof *ids);
    return DQ_OK;
}

dq_status dq_generate_key(dq_sha256 *h, const dq_generate_options *o, const dq_eval *e, dq_err *err)
{
    char line[128];
    if (!o->questions && !o->prompts) return DQ_OK;
    int n = snprintf(line, sizeof line, "generate %lld %lld %s\n",
                     (long long)o->of_questions.max_new, (long long)o->num_fewshot, o->shots_sha);
    dq_sha256_add(h, line, (size_t)n);
    for (int i = 0; i < o->of_questions.n_stop; i++) add_text(h, o->stop[i], strlen(o->stop[i]));
    for (int i = 0; i < e->n_models; i++) DQ_TRY(add_model(h, e, i, err));
    return DQ_OK;
}

static json_t *texts_json(const char *const *text, int n)
{
    json_t *l = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(l, json_string(text[i]));
    return l;
}

void dq_generate_settings(json_t *settings, const dq_generate_options *o)
{
    if (!o->questions && !o->prompts) return;
    json_t *g = json_object();
    json_object_set_new(g, "max_new", json_integer((json_int_t)o->of_prompts.max_new));
    json_object_set_new(g, "stop", texts_json(o->of_prompts.stop, o->of_prompts.n_stop));
    json_object_set_new(g, "num_fewshot", json_integer((json_int_t)o->num_fewshot));
    json_object_set_new(g, "fewshot_data",
                        o->shots_path ? dq_name_json(o->shots_path) : json_null());
    json_object_set_new(settings, "generation", g);
}

/* ---- What is known about a row ---- */

enum { N_ENDS = DQ_END_POSITIONS + 1 };

typedef struct totals {
    int64_t n, end[N_ENDS], prompt_ids, new_ids;
} totals;

static totals totals_of(const dq_eval *e, const dq_eval_row *row)
{
    const dq_requests *q = &e->ids[row->ids].req;
    totals t = {.n = dq_eval_units(e, row)};
    for (int64_t i = 0; i < t.n; i++) {
        const double *extra = row->extra + i * DQ_GEN_EXTRA;
        const int end = (int)extra[DQ_GEN_END];
        if (end >= 0 && end < N_ENDS) t.end[end]++;
        t.new_ids += (int64_t)extra[DQ_GEN_COUNT];
        t.prompt_ids += q->req[i].n_ctx;
    }
    return t;
}

static bool shows(const dq_eval *e, int row)
{
    return e->row[row].shown && dq_eval_generates(dq_eval_source_of(e, &e->row[row])->kind);
}

static json_t *generation_json(const totals *t, const dq_eval_generate *s)
{
    json_t *o = json_object(), *ends = json_object();
    const dq_mean finished = dq_share(t->end[DQ_END_STOP_ID] + t->end[DQ_END_ASKED], t->n);
    json_object_set_new(o, "max_new", json_integer((json_int_t)s->max_new));
    json_object_set_new(o, "stop", texts_json(s->stop, s->n_stop));
    json_object_set_new(o, "finished", dq_metric(finished.value, finished.std_err));
    for (int i = DQ_END_STOP_ID; i < N_ENDS; i++)
        json_object_set_new(ends, dq_end_name[i], json_integer((json_int_t)t->end[i]));
    json_object_set_new(o, "ends", ends);
    json_object_set_new(o, "new_tokens_mean", dq_real((double)t->new_ids / (double)t->n));
    return o;
}

dq_status dq_generate_details(json_t *o, const dq_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const totals t = totals_of(e, r);
    const int32_t *ids;
    int64_t n;
    json_t *g = generation_json(&t, dq_eval_source_of(e, r)->settings), *list = json_array();
    json_t *work = json_object_get(o, "throughput");
    json_object_set_new(o, "passes", json_string("decode"));
    json_object_set_new(o, "generation", g);
    json_object_set_new(g, "stop_ids", list);
    json_object_set_new(g, "truncated_items",
                        json_integer((json_int_t)e->ids[r->ids].req.n_truncated));
    json_object_set_new(g, "skipped_items",
                        json_integer((json_int_t)dq_eval_source_of(e, r)->n_skipped));
    DQ_TRY(dq_eval_stop_ids(e, r->model, &ids, &n, e->a, err));
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    json_object_set_new(work, "prompt_tokens", json_integer((json_int_t)t.prompt_ids));
    json_object_set_new(work, "new_tokens", json_integer((json_int_t)t.new_ids));
    json_object_set_new(
        work, "new_tokens_per_second",
        dq_real(r->work.seconds > 0 ? (double)t.new_ids / r->work.seconds : (double)NAN));
    return DQ_OK;
}

dq_status dq_generate_say(dq_talk *t, const dq_eval_view *v, dq_err *err)
{
    const dq_eval *e = v->e;
    for (int i = 0; i < e->n_rows; i++) {
        const int32_t *ids;
        int64_t n;
        bool seen = !shows(e, i);
        for (int k = 0; k < i; k++)
            seen = seen || (shows(e, k) && e->row[k].model == e->row[i].model);
        if (seen) continue;
        DQ_TRY(dq_eval_stop_ids(e, e->row[i].model, &ids, &n, e->a, err));
        for (int64_t k = 0; k < n; k++)
            dq_say(t, "%s: id %d ends a continuation", v->names[e->row[i].model], (int)ids[k]);
        if (n == 0)
            dq_warn(t,
                    "%s: neither config.json nor tokenizer_config.json names an EOS; only --stop "
                    "and --max-new end its continuations",
                    v->names[e->row[i].model]);
    }
    return DQ_OK;
}

void dq_generate_warn(dq_talk *t, const dq_eval_view *v)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        if (!shows(v->e, i)) continue;
        const totals sum = totals_of(v->e, r);
        if (sum.end[DQ_END_POSITIONS])
            dq_warn(t,
                    "%s, %s: %lld of %lld continuations were cut at the last of %d positions; "
                    "shorten prompts, or use fewer shots",
                    v->names[r->model], dq_eval_source_of(v->e, r)->name,
                    (long long)sum.end[DQ_END_POSITIONS], (long long)sum.n,
                    v->e->model[r->model].m->max_positions);
    }
}

/* ---- Completions ---- */

static dq_status put_question(json_t *o, const dq_question *q, dq_err *err)
{
    json_t *id = NULL;
    if (q->id) DQ_TRY(dq_json_parse(&id, q->id, strlen(q->id), "id", err));
    json_object_set_new(o, "id", id ? id : json_null());
    json_object_set_new(o, "prompt", json_stringn(q->prompt, q->len));
    return DQ_OK;
}

static dq_status dump_unit(FILE *f, const dq_eval_view *v, int row, int64_t unit, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_eval_source *s = dq_eval_source_of(e, r);
    const dq_questions *all = s->own;
    const dq_question *q = &all->question[unit];
    const double *extra = r->extra + unit * DQ_GEN_EXTRA;
    char *text;
    size_t len;
    DQ_TRY(dq_eval_completion(e, r, unit, &text, &len, err));
    json_t *o = json_object();
    dq_eval_row_keys(o, v, r);
    json_object_set_new(o, "item", json_integer((json_int_t)dq_eval_number(s, unit)));
    put_question(o, q, err);
    json_object_set_new(o, "completion", json_stringn(text, len));
    json_object_set_new(o, "end", json_string(dq_end_name[(int)extra[DQ_GEN_END]]));
    json_object_set_new(o, "tokens", json_integer((json_int_t)extra[DQ_GEN_COUNT]));
    if (q->gold) {
        json_object_set_new(o, "gold", json_string(q->gold));
        json_object_set_new(o, "exact_match", json_boolean(extra[DQ_GEN_EXACT] == 1));
        json_object_set_new(o, "strict_match", json_boolean(extra[DQ_GEN_STRICT] == 1));
    }
    dq_block_free(text);
    dq_line_put(f, o, err);
    return err->code;
}

static dq_status dump_units(FILE *f, const void *view, dq_err *err)
{
    const dq_eval_view *v = view;
    for (int i = 0; i < v->e->n_rows; i++) {
        const int64_t n = shows(v->e, i) ? dq_eval_units(v->e, &v->e->row[i]) : 0;
        for (int64_t k = 0; k < n; k++) DQ_TRY(dump_unit(f, v, i, k, err));
    }
    return DQ_OK;
}

dq_status dq_generate_dump(const dq_eval_view *v, const char *path, dq_err *err)
{
    return dq_lines_write(path, dump_units, v, err);
}
