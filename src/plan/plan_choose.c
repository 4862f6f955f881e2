/* Steps of all tensors are sorted by what they save for their cost; along one tensor's hull that
 * falls, so that its steps keep their order.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "work/ranks.h"
#include "plan/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A step, and what it saves per unit of cost. */
typedef struct move {
    dq_plan_step step;
    double rate;
} move;

/* More bits never hurt, so an option loses at most what a cheaper one loses. */
static double loss_of(const dq_plan_item *t, int option)
{
    double least = t->loss[0];
    for (int i = 1; i <= option; i++) least = t->loss[i] < least ? t->loss[i] : least;
    return least;
}

static double rate_of(const dq_plan_item *t, int from, int to)
{
    return (loss_of(t, from) - loss_of(t, to)) / (t->cost[to] - t->cost[from]);
}

/* By falling rate, then by tensor, then upwards within a tensor. */
static int compare(const void *left, const void *right)
{
    const move *x = left, *y = right;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    if (x->step.item != y->step.item) return x->step.item < y->step.item ? -1 : 1;
    return x->step.to < y->step.to ? -1 : x->step.to > y->step.to;
}

dq_status dq_plan_alloc_curve(dq_plan_curve *out, const dq_plan_item *item, int64_t n, dq_arena *a,
                              dq_err *err)
{
    size_t max = 1;
    *out = (dq_plan_curve){.item = item, .n_items = n};
    for (int64_t i = 0; i < n; i++) max += (size_t)item[i].n - 1;
    move *all = dq_alloc(a, max, sizeof *all, err);
    int *choice = dq_alloc(a, (size_t)n, sizeof *choice, err);
    out->step = dq_alloc(a, max, sizeof *out->step, err);
    out->cost = dq_alloc(a, max, sizeof *out->cost, err);
    out->loss = dq_alloc(a, max, sizeof *out->loss, err);
    if (err->code != DQ_OK) return err->code;
    /* Along a hull rates fall, but for rounding. */
    int64_t steps = 0;
    for (int64_t t = 0; t < n; t++) {
        double last = 0;
        for (int from = 0, to; from + 1 < item[t].n; from = to) {
            /* The next corner saves most per cost; of equals, the farthest. */
            to = from + 1;
            for (int k = from + 2; k < item[t].n; k++) {
                if (rate_of(&item[t], from, k) >= rate_of(&item[t], from, to)) to = k;
            }
            double rate = rate_of(&item[t], from, to);
            if (from > 0 && rate > last) rate = last;
            all[steps++] = (move){{t, to}, last = rate};
        }
    }
    qsort(all, (size_t)steps, sizeof *all, compare);
    out->n = steps + 1;
    for (int64_t k = 0; k < out->n; k++) {
        out->cost[k] = dq_plan_alloc_cost(out, choice);
        out->loss[k] = dq_plan_alloc_loss(out, choice);
        if (k == steps) break;
        out->step[k] = all[k].step;
        choice[all[k].step.item] = all[k].step.to;
    }
    return DQ_OK;
}

void dq_plan_alloc_at(int *choice, const dq_plan_curve *c, int64_t point)
{
    memset(choice, 0, (size_t)c->n_items * sizeof *choice);
    for (int64_t k = 0; k < point; k++) choice[c->step[k].item] = c->step[k].to;
}

int64_t dq_plan_alloc_by_cost(const dq_plan_curve *c, double cost)
{
    int64_t k = -1;
    while (k + 1 < c->n && c->cost[k + 1] <= cost) k++;
    return k;
}

int64_t dq_plan_alloc_by_loss(const dq_plan_curve *c, double loss)
{
    int64_t k = 0;
    while (k < c->n && c->loss[k] > loss) k++;
    return k;
}

void dq_plan_alloc_fill(int *choice, const dq_plan_curve *c, int64_t point, double cost)
{
    for (int64_t k = point; k + 1 < c->n; k++) {
        const dq_plan_step s = c->step[k];
        const int before = choice[s.item];
        choice[s.item] = s.to;
        if (dq_plan_alloc_cost(c, choice) > cost) choice[s.item] = before;
    }
}

double dq_plan_alloc_cost(const dq_plan_curve *c, const int *choice)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n_items; i++) sum += c->item[i].cost[choice[i]];
    return sum;
}

double dq_plan_alloc_loss(const dq_plan_curve *c, const int *choice)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n_items; i++) sum += loss_of(&c->item[i], choice[i]);
    return sum;
}

dq_interval dq_plan_decide_interval(dq_mean m, double skew, double outside)
{
    return dq_interval_t_skewed(m.value, m.std_err, m.clusters, skew, outside);
}

dq_interval dq_plan_decide_kld(dq_mean m, double skew, double outside)
{
    dq_interval i = dq_plan_decide_interval(m, skew, outside);
    if (i.low < 0) i.low = 0;
    return i;
}

double dq_plan_decide_outside(int look)
{
    return 0.05 / ldexp(1, look - 1);
}

double dq_plan_decide_outside_of(int look, int n)
{
    return 0.05 / ldexp(1, look) / (n > 1 ? n : 1);
}

bool dq_plan_decide_keeps(dq_interval i, double limit)
{
    return i.high <= limit;
}

dq_plan_turn dq_plan_decide_turn(dq_plan_decider *l)
{
    const int64_t last = l->curve->n - 1;
    const bool first = l->n == 0;
    if (l->met || l->n >= l->max || (!first && !l->at_uniform && l->point == last))
        return DQ_PLAN_TURN_END;
    if (first && l->point < 0) l->point = last;
    if (first && l->uniform) {
        l->at_uniform = true;
        return DQ_PLAN_TURN_UNIFORM;
    }
    if (!first && !l->at_uniform) l->point = dq_plan_search_next(l->curve, l->point);
    if (!first && l->n == l->max - 1) l->point = last;
    l->at_uniform = false;
    return DQ_PLAN_TURN_POINT;
}

dq_interval dq_plan_decide_look(dq_plan_decider *l, dq_mean found, double skew, int look)
{
    const dq_interval i = dq_plan_decide_interval(found, skew, dq_plan_decide_outside(look));
    l->n++;
    l->met = dq_plan_decide_keeps(i, l->limit);
    return i;
}

bool dq_plan_decide_uniform(dq_plan_offer mix, dq_plan_offer uniform)
{
    if (uniform.excess > 0) return false;
    return mix.excess > 0 || uniform.kld < mix.kld;
}

dq_status dq_plan_decide_mean(dq_mean *out, const double *sums, const int64_t *ids, int64_t n,
                              dq_err *err)
{
    int64_t all = 0, at = 0;
    for (int64_t c = 0; c < n; c++) all += ids[c];
    double *x = dq_block_new((size_t)all, sizeof *x, err);
    int32_t *cluster = dq_block_new((size_t)all, sizeof *cluster, err);
    for (int64_t c = 0; err->code == DQ_OK && c < n; c++) {
        for (int64_t i = 0; i < ids[c]; i++, at++) {
            x[at] = sums[c] / (double)ids[c];
            cluster[at] = (int32_t)c;
        }
    }
    if (err->code == DQ_OK) *out = dq_mean_clustered(x, cluster, all);
    dq_block_free(x);
    dq_block_free(cluster);
    return err->code;
}

double dq_plan_decide_skew(const double *sums, const int64_t *ids, int64_t n)
{
    double all = 0, total = 0, two = 0, three = 0, used = 0;
    for (int64_t c = 0; c < n; c++) {
        total += sums[c];
        all += (double)ids[c];
    }
    for (int64_t c = 0; c < n; c++) {
        if (ids[c] == 0) continue;
        const double d = sums[c] - total / all * (double)ids[c];
        two += d * d;
        three += d * d * d;
        used++;
    }
    return two > 0 ? three / used / pow(two / used, 1.5) : 0;
}

/* Reals have 17 digits, so that they come back to the last bit. A key that differs is compared
 * member by member, so that the failure names the first. */

dq_status dq_plan_journal_key(char hex[65], const json_t *of, dq_err *err)
{
    char *text = NULL;
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, of, JSON_SORT_KEYS, err) == DQ_OK)
        dq_sha256_of(hex, text, strlen(text), err);
    free(text);
    return err->code;
}

static bool is_new(const json_t *was, const char *key, const json_t *now)
{
    const json_t *old = json_object_get(was, key);
    return !old || !json_equal(old, now);
}

/* Hashes are shortened, long values left out; in the arena. */
static const char *shown(dq_arena *a, const json_t *v, dq_err *err)
{
    enum { SHORT = 60, SHA = 64, DIGITS = 12 };
    const char *s = json_string_value(v);
    if (s && strlen(s) == SHA && strspn(s, "0123456789abcdef") == SHA)
        return dq_textf(a, err, "%.*s...", (int)DIGITS, s);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const bool fits = text && strlen(text) <= SHORT;
    const char *out = fits ? dq_text(a, text, strlen(text), err) : NULL;
    free(text);
    return out;
}

/* "calib.sha256: begun with X, this run has Y": the first difference below `path`. */
static const char *difference(dq_arena *a, const char *path, const json_t *was, const json_t *now,
                              dq_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)was, key, v)
    {
        if (!json_object_get(now, key)) return dq_textf(a, err, "%s%s", path, key);
    }
    json_object_foreach((json_t *)(uintptr_t)now, key, v)
    {
        const json_t *old = json_object_get(was, key);
        if (!is_new(was, key, v)) continue;
        const char *inner = dq_textf(a, err, "%s%s.", path, key);
        if (inner && json_is_object(v) && json_is_object(old))
            return difference(a, inner, old, v, err);
        const char *from = shown(a, old, err), *to = shown(a, v, err);
        if (!from || !to) return dq_textf(a, err, "%s%s", path, key);
        return dq_textf(a, err, "%s%s: begun with %s, this run has %s", path, key, from, to);
    }
    return NULL;
}

/* The file that a difference comes from; NULL: none. */
static const char *file_of(const dq_plan_journal_how *how, const char *what)
{
    for (int i = 0; i < DQ_PLAN_JOURNAL_FILES && how->file[i].member; i++) {
        const size_t n = strlen(how->file[i].member);
        if (strncmp(how->file[i].member, what, n) == 0 && strcspn(what, ".:") == n)
            return how->file[i].path;
    }
    return NULL;
}

/* line: the first of a journal with another key. */
static dq_status other_key(const dq_plan_journal *j, const json_t *line,
                           const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    const json_t *was = json_object_get(line, "of");
    const char *what = was ? difference(a, "", was, how->of, err) : NULL;
    const char *file = what ? file_of(how, what) : NULL;
    if (err->code != DQ_OK) return err->code;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_REPEAT_OR_FORCE},
                        "%s: was begun with another model, text or settings%s%.200s%s%.300s%s.",
                        j->path, what ? "; what differs first is " : "", what ? what : "",
                        file ? " (" : "", file ? file : "", file ? ")" : "");
}

dq_status dq_plan_journal_put(dq_plan_journal *j, json_t *line, dq_err *err)
{
    char *text = NULL;
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, line, JSON_COMPACT, err) == DQ_OK)
        dq_journal_add(j->file, text, strlen(text), err);
    free(text);
    json_decref(line);
    return err->code;
}

/* Bound on nats per token in a file: more than any model's, and small enough for finite sums. */
static const double MAX_NATS = 1e9;

json_t *dq_plan_journal_reals(const double *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

dq_status dq_plan_journal_take_reals(double *x, int64_t n, int64_t *found, const json_t *line,
                                     const char *key, dq_err *err)
{
    const json_t *list = json_object_get(line, key);
    *found = (int64_t)json_array_size(list);
    if (*found < 1 || *found > n)
        return dq_fail(err, DQ_DAMAGED, "%lld numbers of \"%s\" (expected 1 to %lld)",
                       (long long)*found, key, (long long)n);
    for (int64_t i = 0; i < *found; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        if (!json_is_number(one))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds what is no number", key);
        x[i] = json_number_value(one);
        if (!(fabs(x[i]) < MAX_NATS))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds %g, which is no loss of a cache", key,
                           x[i]);
    }
    return DQ_OK;
}

static dq_status put_key(dq_plan_journal *j, const dq_plan_journal_how *how, dq_err *err)
{
    json_t *line = json_pack("{s: s}", "key", how->key);
    json_object_set(line, "of", (json_t *)(uintptr_t)how->of);
    return dq_plan_journal_put(j, line, err);
}

static dq_status take_lines(const dq_plan_journal *j, const dq_journal_lines *found,
                            const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    for (int64_t i = 0; err->code == DQ_OK && i < found->n; i++) {
        json_t *line = NULL;
        DQ_TRY(dq_json_parse(&line, found->text[i], strlen(found->text[i]), j->path, err));
        const char *key = json_string_value(json_object_get(line, "key"));
        if (i > 0)
            how->take(how->arg, line, err);
        else if (!key || strcmp(key, how->key) != 0)
            other_key(j, line, how, a, err);
        json_decref(line);
    }
    return err->code;
}

dq_status dq_plan_journal_check(const char *path, dq_err *err)
{
    if (!dq_file_exists(path) || dq_file_is_regular(path)) return DQ_OK;
    return dq_fail(
        err, DQ_FILE,
        "%s: is not a regular file, and a plan keeps its journal there. Move it away, or "
        "choose another name for the recipe.",
        path);
}

/* A file that is no such journal is never replaced unasked. */
static dq_status read_back(dq_plan_journal *j, dq_journal_lines *found, dq_arena *a, dq_err *err)
{
    dq_journal_resume(&j->file, j->path, DQ_JOURNAL_CUT, found, a, err);
    if (err->code != DQ_MISMATCH) return err->code;
    const dq_err why = *err;
    *err = (dq_err){0};
    return dq_fail_with(err, why.code, (dq_remedy){.code = DQ_REMEDY_START_OVER}, "%s.", why.text);
}

static dq_status go_on(dq_plan_journal *j, dq_journal_lines *found, const dq_plan_journal_how *how,
                       dq_arena *a, dq_err *err)
{
    DQ_TRY(read_back(j, found, a, err));
    if (found->n > 0) return take_lines(j, found, how, a, err);
    return put_key(j, how, err);
}

/* Bytes of all lines, each with a NUL; written to `out` unless NULL. */
static size_t join(char *out, const dq_journal_lines *found)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < found->n; i++) {
        const size_t n = strlen(found->text[i]) + 1;
        if (out) memcpy(out + bytes, found->text[i], n);
        bytes += n;
    }
    return bytes;
}

/* Rebuilds rank 0's lines on other ranks, as views into `text`. */
static dq_status split(dq_journal_lines *found, char *text, size_t bytes, dq_arena *a, dq_err *err)
{
    for (size_t i = 0; i < bytes; i++) found->n += !text[i];
    found->text = dq_alloc(a, (size_t)found->n, sizeof *found->text, err);
    if (!found->text) return err->code;
    for (int64_t i = 0; i < found->n; i++, text += strlen(text) + 1) found->text[i] = text;
    return DQ_OK;
}

static dq_status open_file(dq_plan_journal *j, dq_journal_lines *found,
                           const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    DQ_TRY(dq_plan_journal_check(j->path, err));
    if (how->resume && dq_file_exists(j->path)) {
        DQ_TRY(go_on(j, found, how, a, err));
    } else {
        if (dq_file_exists(j->path) && !how->force)
            return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_RESUME_OR_FORCE},
                                "%s: an interrupted run left it.", j->path);
        DQ_TRY(dq_journal_new(&j->file, j->path, err));
        j->ours = j->made = true;
        DQ_TRY(put_key(j, how, err));
    }
    j->ours = true;
    return DQ_OK;
}

dq_status dq_plan_journal_open(dq_plan_journal *j, const dq_plan_journal_how *how, dq_arena *a,
                               dq_err *err)
{
    dq_journal_lines found = {0};
    *j = (dq_plan_journal){.resumes = how->resume};
    j->path = dq_textf(a, err, "%s.journal", how->out);
    if (j->path && dq_ranks_number() == 0) open_file(j, &found, how, a, err);
    /* All ranks take the lines that rank 0 has read. */
    dq_journal_lines same = {0};
    uint64_t bytes = join(NULL, &found);
    if (dq_ranks_count() == 1) return err->code;
    DQ_TRY(dq_ranks_share(&bytes, sizeof bytes, err));
    if (bytes == 0) return DQ_OK;
    char *text = dq_block_new(bytes, 1, err);
    if (text) join(text, &found);
    if (dq_ranks_share(text, bytes, err) == DQ_OK && dq_ranks_number() > 0 &&
        split(&same, text, bytes, a, err) == DQ_OK)
        take_lines(j, &same, how, a, err);
    dq_block_free(text);
    return err->code;
}

void dq_plan_journal_end(dq_plan_journal *j, bool done)
{
    if (j->file) dq_journal_close(j->file, done);
    *j = (dq_plan_journal){0};
}

bool dq_plan_journal_resumable(const dq_err *err)
{
    return err->code == DQ_STOPPED || err->code == DQ_FILE || err->code == DQ_RESOURCE;
}

dq_status dq_plan_journal_failed(dq_plan_journal *j, dq_err *err)
{
    enum { MAX_TEXT = 600 }; /* so that there is space for what follows */
    if (!j->ours) return err->code;
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        return dq_fail_with(err, DQ_STOPPED, (dq_remedy){.code = DQ_REMEDY_RESUME},
                            "interrupted; %s is kept.", j->path);
    }
    const bool empty = dq_journal_count(j->file) <= 1;
    if (empty || !dq_plan_journal_resumable(err)) {
        const bool drop = empty ? j->made : !j->resumes && err->code != DQ_MISMATCH;
        if (drop) dq_plan_journal_end(j, true);
        return err->code;
    }
    /* Words about the part of the run give way. */
    dq_remedy_at *last = err->n_remedies > 0 ? &err->remedy[err->n_remedies - 1] : NULL;
    if (last && last->code == DQ_REMEDY_RESUMABLE) {
        err->text[last->begin] = 0;
        err->n_remedies--;
    }
    err->text[MAX_TEXT] = 0;
    return dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_RESUMABLE}, ". %.200s is kept", j->path);
}
