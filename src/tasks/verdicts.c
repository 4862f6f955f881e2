/* verdicts: see verdicts.h. Lines are read in any order and given to groups by a key of everything that tells rows
 * apart. Each group is sorted by item, and a group is compared with another over the items that both have.
 * SPDX-License-Identifier: MIT */
#include "tasks/verdicts.h"

#include "base/base.h"
#include "base/os.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/repeats.h"
#include "tasks/task_file.h"

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
    int64_t n;
    size_t cap, cap_groups;
    dq_strmap index; /* of each group, by its key */
    dq_strbuf key;
} reader;

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

static const char f32[] = "f32"; /* the arithmetic of references */

/* What makes a group, as bytes in r->key: texts end in a NUL. Of 16 bits the granularity says nothing. */
static dq_status make_key(reader *r, const dq_verdict_group *g, dq_err *err)
{
    const char *granularity = g->bits == 16 ? "" : g->granularity, bits = (char)g->bits;
    const char *const texts[] = {g->model, g->task ? g->task : "", granularity,
                                 g->math ? g->math : f32};
    char *kv = NULL;
    if (g->kv) DQ_TRY(dq_json_dump(&kv, g->kv, JSON_ENCODE_ANY | JSON_SORT_KEYS, err));
    r->key.n = 0;
    dq_strbuf_add(&r->key, &bits, 1, err);
    for (int i = 0; i < 4; i++) dq_strbuf_add(&r->key, texts[i], strlen(texts[i]) + 1, err);
    if (kv) dq_strbuf_add(&r->key, kv, strlen(kv), err);
    free(kv);
    return err->code;
}

/* The group of that key, -1: none. Fails with -1, too. */
static int find_group(reader *r, const dq_verdict_group *g, dq_err *err)
{
    if (make_key(r, g, err) != DQ_OK) return -1;
    return dq_strmap_get(&r->index, r->key.s, r->key.n);
}

/* What a line says about itself; words belong to the line. */
static dq_status read_group(dq_verdict_group *g, const json_t *o, dq_err *err)
{
    static const char *const model = "model", *const granularity = "per-tensor", *const none = "";
    static const int64_t bits = 16;
    int64_t width;
    *g = (dq_verdict_group){.ref = -1, .cross = -1};
    DQ_TRY(dq_json_text(&g->model, o, "model", &model, err));
    DQ_TRY(dq_json_text(&g->granularity, o, "logit_granularity", &granularity, err));
    DQ_TRY(dq_json_text(&g->task, o, "task", &none, err));
    DQ_TRY(dq_json_text(&g->math, o, "math", &none, err));
    DQ_TRY(dq_json_int(&width, o, "logit_bits", 2, 16, &bits, err));
    g->bits = (int)width;
    g->kv = json_object_get(o, "kv");
    if (!g->task[0]) g->task = NULL;
    if (!g->math[0]) g->math = NULL;
    if (json_is_null(g->kv)) g->kv = NULL;
    return DQ_OK;
}

/* The index of the line's group, which is made if it is not there; -1: see err. */
static int group_of(reader *r, json_t *o, dq_err *err)
{
    dq_verdict_group g;
    dq_verdicts *v = r->out;
    if (read_group(&g, o, err) != DQ_OK) return -1;
    const int known = find_group(r, &g, err);
    if (known >= 0 || err->code != DQ_OK) return known;
    const char *key = dq_text(r->a, r->key.s, r->key.n, err);
    if (!key || dq_strmap_add(&r->index, key, r->key.n, v->n, r->a, err) != DQ_OK) return -1;
    dq_verdict_group *list =
        dq_grow(r->a, v->group, (size_t)v->n + 1, &r->cap_groups, sizeof *list, err);
    if (!list) return -1;
    v->group = list;
    if (json_array_append(v->kept, o) != 0) {
        dq_fail(err, DQ_RESOURCE, "out of memory");
        return -1;
    }
    list[v->n] = g;
    return v->n++;
}

static dq_status read_cluster(dq_verdict *v, const json_t *o, dq_err *err)
{
    const json_t *prompt = json_object_get(o, "prompt");
    v->cluster = dq_random_mix((uint64_t)v->item);
    if (json_is_string(prompt))
        v->cluster = dq_repeats_key(json_string_value(prompt), json_string_length(prompt));
    return dq_task_file_read_cluster(&v->cluster, o, err);
}

static dq_status read_entry(reader *r, json_t *o, int64_t line, dq_err *err)
{
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    entry *list = dq_grow(r->a, r->entry, (size_t)r->n + 1, &r->cap, sizeof *list, err);
    if (!list) return err->code;
    r->entry = list;
    entry *e = &list[r->n];
    e->verdict.line = line;
    DQ_TRY(dq_json_int(&e->verdict.item, o, "item", 0, INT64_MAX, NULL, err));
    DQ_TRY(read_score(&e->verdict.score, o, err));
    DQ_TRY(read_cluster(&e->verdict, o, err));
    e->group = group_of(r, o, err);
    r->n++;
    return err->code;
}

static dq_status read_lines(reader *r, const char *text, size_t len, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        json_t *o = NULL;
        if (dq_task_file_is_blank(s, n)) continue;
        DQ_TRY(dq_os_check_stop(err));
        if (dq_json_parse_line(&o, s, n, "verdict", err) == DQ_OK) read_entry(r, o, line, err);
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

static int by_item_alone(const void *a, const void *b)
{
    const dq_verdict *x = a, *y = b;
    return (x->item > y->item) - (x->item < y->item);
}

/* Hands the verdicts to their groups: one list, group after group. */
static dq_status share_out(reader *r, dq_err *err)
{
    dq_verdict_group *group = r->out->group;
    dq_verdict *v = dq_alloc(r->a, (size_t)r->n, sizeof *v, err);
    if (!v) return err->code;
    for (int64_t i = 0; i < r->n; i++) group[r->entry[i].group].n++;
    for (int i = 0; i < r->out->n; i++) {
        group[i].verdict = v;
        v += group[i].n;
        group[i].n = 0;
    }
    for (int64_t i = 0; i < r->n; i++) {
        dq_verdict_group *g = &group[r->entry[i].group];
        g->verdict[g->n++] = r->entry[i].verdict;
    }
    return DQ_OK;
}

/* Places of n scores, and the cluster of each place; *of is NULL where all are independent. */
static dq_status place(int64_t **at, int32_t **of, const uint64_t *cluster, int64_t n, dq_arena *a,
                       dq_err *err)
{
    const int32_t *number;
    *of = NULL;
    *at = dq_alloc(a, (size_t)n, sizeof **at, err);
    if (!*at) return err->code;
    for (int64_t i = 0; i < n; i++) (*at)[i] = i;
    DQ_TRY(dq_repeats_keys(&number, cluster, n, a, err));
    if (!number) return DQ_OK;
    *of = dq_alloc(a, (size_t)n, sizeof **of, err);
    return *of ? dq_repeats_order(*at, *of, number, n, err) : err->code;
}

/* Sorts the group's verdicts; their mean. */
static dq_status fill(const reader *r, int index, dq_err *err)
{
    dq_verdict_group *g = &r->out->group[index];
    const int64_t n = g->n;
    dq_verdict *v = g->verdict;
    double *score = dq_alloc(r->a, (size_t)n, sizeof *score, err);
    uint64_t *cluster = dq_alloc(r->a, (size_t)n, sizeof *cluster, err);
    int64_t *at;
    int32_t *of;
    if (!score || !cluster) return err->code;
    qsort(v, (size_t)n, sizeof *v, by_item);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && v[i].item == v[i - 1].item)
            return dq_fail(err, DQ_DAMAGED,
                           "line %lld: item %lld of this model and setting has a verdict in line "
                           "%lld already",
                           (long long)v[i].line, (long long)v[i].item, (long long)v[i - 1].line);
        cluster[i] = v[i].cluster;
    }
    DQ_TRY(place(&at, &of, cluster, n, r->a, err));
    for (int64_t i = 0; i < n; i++) score[at[i]] = v[i].score;
    g->acc = dq_mean_of_scores(score, of, n, &g->acc_interval);
    return DQ_OK;
}

/* Over the items that both have. */
static dq_status pair(dq_stat_flips *out, const dq_verdict_group *before,
                      const dq_verdict_group *after, dq_arena *a, dq_err *err)
{
    int64_t n = 0;
    double *was = dq_alloc(a, (size_t)after->n, sizeof *was, err);
    double *is = dq_alloc(a, (size_t)after->n, sizeof *is, err);
    const dq_verdict **both = dq_alloc(a, 2 * (size_t)after->n, sizeof *both, err);
    uint64_t *cluster = dq_alloc(a, (size_t)after->n, sizeof *cluster, err);
    int64_t *at;
    int32_t *of;
    if (!was || !is || !both || !cluster) return err->code;
    for (int64_t i = 0; i < after->n; i++) {
        const dq_verdict *b = bsearch(&after->verdict[i], before->verdict, (size_t)before->n,
                                      sizeof *b, by_item_alone);
        if (!b) continue;
        both[2 * n] = b;
        both[2 * n + 1] = &after->verdict[i];
        cluster[n++] = after->verdict[i].cluster;
    }
    DQ_TRY(place(&at, &of, cluster, n, a, err));
    for (int64_t i = 0; i < n; i++) {
        was[at[i]] = both[2 * i]->score;
        is[at[i]] = both[2 * i + 1]->score;
    }
    *out = dq_stat_flips_of(was, is, of, n);
    return DQ_OK;
}

static dq_status compare(reader *r, int index, dq_err *err)
{
    dq_verdicts *v = r->out;
    dq_arena *a = r->a;
    dq_verdict_group *g = &v->group[index], ref = *g, cross = *g;
    ref.bits = 16;
    ref.kv = NULL;
    cross.model = v->group[0].model;
    g->ref = find_group(r, &ref, err);
    ref.math = f32;
    const int in_f32 = find_group(r, &ref, err);
    if (in_f32 >= 0) g->ref = in_f32;
    if (strcmp(cross.model, g->model) != 0) g->cross = find_group(r, &cross, err);
    DQ_TRY(err->code);
    DQ_TRY(dq_os_check_stop(err));
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
    if (err->code == DQ_OK) share_out(&r, err);
    for (int i = 0; err->code == DQ_OK && i < out->n; i++) fill(&r, i, err);
    for (int i = 0; err->code == DQ_OK && i < out->n; i++) compare(&r, i, err);
    dq_block_free(r.key.s);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

void dq_verdicts_end(dq_verdicts *v)
{
    json_decref(v->kept);
    v->kept = NULL;
}
