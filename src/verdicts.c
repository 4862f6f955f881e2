/* verdicts: see verdicts.h.
 * SPDX-License-Identifier: MIT */
#include "verdicts.h"

#include "task_read.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

/* One line, before lines are sorted into groups. */
typedef struct entry {
    dq_verdict verdict;
    int group;
} entry;

typedef struct reader {
    dq_verdicts *out;
    dq_arena *a;
    entry *entry;
    int64_t n, cap;
    int cap_groups;
} reader;

/* Room for one more in a list in the arena. */
static void *grown(dq_arena *a, void *list, int64_t n, int64_t *cap, size_t size, dq_err *err)
{
    if (n < *cap) return list;
    const int64_t more = *cap ? 2 * *cap : 64;
    void *p = dq_alloc(a, (size_t)more, size, err);
    if (!p) return NULL;
    if (n) memcpy(p, list, (size_t)n * size);
    *cap = more;
    return p;
}

static dq_status read_score(double *score, const json_t *o, dq_err *err)
{
    const json_t *v = json_object_get(o, "verdict");
    const char *word = json_string_value(v);
    *score = json_is_number(v) ? json_number_value(v) : json_is_true(v);
    if (!v || json_is_null(v)) return dq_fail(err, DQ_DAMAGED, "key \"verdict\" is missing");
    if (json_is_boolean(v) || (json_is_number(v) && *score >= 0 && *score <= 1)) return DQ_OK;
    if (word && (strcmp(word, "correct") == 0 || strcmp(word, "incorrect") == 0)) {
        *score = word[0] == 'c';
        return DQ_OK;
    }
    return dq_fail(err, DQ_DAMAGED,
                   "key \"verdict\": expected true, false, \"correct\", \"incorrect\" or a number "
                   "from 0 to 1");
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_kv(const json_t *a, const json_t *b)
{
    return a && b ? json_equal(a, b) : a == b;
}

static bool same_setting(const dq_verdict_group *a, const dq_verdict_group *b)
{
    return same_text(a->task, b->task) && a->bits == b->bits &&
           (a->bits == 16 || strcmp(a->grain, b->grain) == 0) && same_kv(a->kv, b->kv);
}

/* What a line says about itself; words belong to the line. */
static dq_status read_group(dq_verdict_group *g, const json_t *o, dq_err *err)
{
    static const char *const model = "model", *const grain = "tensor", *const no_task = "";
    static const int64_t bits = 16;
    int64_t width;
    *g = (dq_verdict_group){.ref = -1, .cross = -1};
    DQ_TRY(dq_json_text(&g->model, o, "model", &model, err));
    DQ_TRY(dq_json_text(&g->grain, o, "logit_grain", &grain, err));
    DQ_TRY(dq_json_text(&g->task, o, "task", &no_task, err));
    DQ_TRY(dq_json_int(&width, o, "logit_bits", 2, 16, &bits, err));
    g->bits = (int)width;
    g->kv = json_object_get(o, "kv");
    if (!g->task[0]) g->task = NULL;
    if (json_is_null(g->kv)) g->kv = NULL;
    return DQ_OK;
}

/* The index of the line's group, which is made if it is not there; -1: see err. */
static int group_of(reader *r, json_t *o, dq_err *err)
{
    dq_verdict_group g;
    dq_verdicts *v = r->out;
    int64_t cap = r->cap_groups;
    if (read_group(&g, o, err) != DQ_OK) return -1;
    for (int i = 0; i < v->n; i++) {
        if (strcmp(v->group[i].model, g.model) == 0 && same_setting(&v->group[i], &g)) return i;
    }
    dq_verdict_group *list = grown(r->a, v->group, v->n, &cap, sizeof *list, err);
    if (!list) return -1;
    if (json_array_append(v->kept, o) != 0) {
        dq_fail(err, DQ_RESOURCE, "out of memory");
        return -1;
    }
    r->cap_groups = (int)cap;
    v->group = list;
    list[v->n] = g;
    return v->n++;
}

static dq_status read_entry(reader *r, json_t *o, int64_t line, dq_err *err)
{
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    entry *list = grown(r->a, r->entry, r->n, &r->cap, sizeof *list, err);
    if (!list) return err->code;
    r->entry = list;
    entry *e = &list[r->n];
    e->verdict.line = line;
    DQ_TRY(dq_json_int(&e->verdict.item, o, "item", 0, INT64_MAX, NULL, err));
    DQ_TRY(read_score(&e->verdict.score, o, err));
    e->group = group_of(r, o, err);
    r->n++;
    return err->code;
}

static dq_status read_lines(reader *r, const char *text, size_t len, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_next_line(text, len, &at, &s, &n); line++) {
        json_t *o = NULL;
        if (dq_is_blank(s, n)) continue;
        if (dq_json_parse(&o, s, n, "verdict", err) == DQ_OK) read_entry(r, o, line, err);
        json_decref(o);
        if (err->code != DQ_OK) return dq_in(err, "line %lld: ", (long long)line);
    }
    return DQ_OK;
}

static int by_item(const void *a, const void *b)
{
    const dq_verdict *x = a, *y = b;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

/* The group's verdicts and their mean. */
static dq_status fill(const reader *r, int index, dq_err *err)
{
    dq_verdict_group *g = &r->out->group[index];
    int64_t n = 0;
    for (int64_t i = 0; i < r->n; i++) n += r->entry[i].group == index;
    dq_verdict *v = dq_alloc(r->a, (size_t)n, sizeof *v, err);
    double *score = dq_alloc(r->a, (size_t)n, sizeof *score, err);
    if (!v || !score) return err->code;
    for (int64_t i = 0; i < r->n; i++) {
        if (r->entry[i].group == index) v[g->n++] = r->entry[i].verdict;
    }
    qsort(v, (size_t)n, sizeof *v, by_item);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && v[i].item == v[i - 1].item)
            return dq_fail(err, DQ_DAMAGED,
                           "line %lld: item %lld of this model and setting has a verdict in line "
                           "%lld already",
                           (long long)v[i].line, (long long)v[i].item, (long long)v[i - 1].line);
        score[i] = v[i].score;
    }
    g->verdict = v;
    g->acc = dq_scores_mean(score, n, 0, &g->acc_interval);
    return DQ_OK;
}

/* Over the items that both have. */
static dq_status pair(dq_flips *out, const dq_verdict_group *before, const dq_verdict_group *after,
                      dq_arena *a, dq_err *err)
{
    int64_t n = 0;
    double *was = dq_alloc(a, (size_t)after->n, sizeof *was, err);
    double *is = dq_alloc(a, (size_t)after->n, sizeof *is, err);
    if (!was || !is) return err->code;
    for (int64_t i = 0, k = 0; i < after->n; i++) {
        while (k < before->n && before->verdict[k].item < after->verdict[i].item) k++;
        if (k == before->n) break;
        if (before->verdict[k].item != after->verdict[i].item) continue;
        was[n] = before->verdict[k].score;
        is[n++] = after->verdict[i].score;
    }
    *out = dq_flips_of(was, is, n, 0);
    return DQ_OK;
}

static dq_status compare(dq_verdicts *v, int index, dq_arena *a, dq_err *err)
{
    dq_verdict_group *g = &v->group[index];
    for (int i = 0; i < v->n; i++) {
        const dq_verdict_group *o = &v->group[i];
        if (strcmp(o->model, g->model) == 0 && same_text(o->task, g->task) && o->bits == 16 &&
            !o->kv)
            g->ref = i;
        if (strcmp(o->model, v->group[0].model) == 0 && strcmp(o->model, g->model) != 0 &&
            same_setting(o, g))
            g->cross = i;
    }
    if (g->ref >= 0) DQ_TRY(pair(&g->flips, &v->group[g->ref], g, a, err));
    return g->cross >= 0 ? pair(&g->cross_flips, &v->group[g->cross], g, a, err) : DQ_OK;
}

dq_status dq_verdicts_load(dq_verdicts *out, const char *path, const char *text, size_t len,
                           dq_arena *a, dq_err *err)
{
    reader r = {.out = out, .a = a};
    *out = (dq_verdicts){.kept = json_array()};
    if (!out->kept) return dq_fail(err, DQ_RESOURCE, "out of memory");
    read_lines(&r, text, len, err);
    if (err->code == DQ_OK && r.n == 0)
        dq_fail(err, DQ_DAMAGED, "holds no verdicts (expected JSON lines {\"item\", \"verdict\"})");
    for (int i = 0; err->code == DQ_OK && i < out->n; i++) fill(&r, i, err);
    for (int i = 0; err->code == DQ_OK && i < out->n; i++) compare(out, i, a, err);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

void dq_verdicts_end(dq_verdicts *v)
{
    json_decref(v->kept);
    v->kept = NULL;
}
