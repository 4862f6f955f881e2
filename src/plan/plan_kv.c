/* A text is made by the code that reads it, which joins runs with the same widths.
 * SPDX-License-Identifier: MIT */
#include "kv/kv.h"
#include "plan/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dq_plan_kv_unit dq_plan_kv_space_unit(const dq_plan_kv_space *s, int unit)
{
    const int keys = s->n_runs * s->n_maps;
    const bool values = unit >= keys;
    const int run = values ? unit - keys : unit / s->n_maps;
    const int first = run * s->together, left = s->n_layers - first;
    return (dq_plan_kv_unit){.first = first,
                             .layers = left < s->together ? left : s->together,
                             .map = values || s->n_maps == 1 ? -1 : unit % 2,
                             .values = values};
}

/* Costs are whole numbers: bits of a unit; and of a mean over keys and values. */
static double kv_space_cost(const dq_plan_kv_space *s, int unit)
{
    const dq_plan_kv_unit u = dq_plan_kv_space_unit(s, unit);
    return u.layers * (u.values ? s->n_maps : 1);
}

static double budget_of(const dq_plan_kv_space *s, double mean)
{
    return mean * 2 * s->n_layers * s->n_maps + 1e-9;
}

static double cost_of(const dq_plan_kv_space *s, const int *width)
{
    double sum = 0;
    for (int u = 0; u < s->n_units; u++) sum += width[u] * kv_space_cost(s, u);
    return sum;
}

double dq_plan_kv_space_mean(const dq_plan_kv_space *s, const int *width)
{
    return cost_of(s, width) / (2.0 * s->n_layers * s->n_maps);
}

dq_status dq_plan_kv_space_text(char text[DQ_KV_LISTS], const dq_plan_kv_space *s, const int *width,
                                dq_err *err)
{
    dq_kv_widths w = {.n = {s->n_runs, s->n_runs}};
    for (int u = 0; u < s->n_units; u++) {
        const dq_plan_kv_unit x = dq_plan_kv_space_unit(s, u);
        dq_kv_run *r = &w.run[x.values][x.first / s->together];
        r->layers = s->n_runs > 1 ? x.layers : -1;
        for (int map = 0; map < 2; map++) {
            if (x.map < 0 || x.map == map) r->bits[map] = width[u];
        }
    }
    DQ_TRY(dq_kv_widths_fit(&w, s->n_layers, err));
    return dq_kv_widths_text(text, &w, err);
}

/* The longest text belongs to a mix without equal neighbours. */
static bool is_sayable(const dq_plan_kv_space *s)
{
    int width[DQ_PLAN_KV_UNITS];
    char text[DQ_KV_LISTS];
    dq_err err = {0};
    if (s->n_runs > DQ_KV_RUNS) return false;
    for (int u = 0; u < s->n_units; u++) {
        const dq_plan_kv_unit x = dq_plan_kv_space_unit(s, u);
        width[u] = 2 + (x.first / s->together + (x.map == 1)) % 2;
    }
    return dq_plan_kv_space_text(text, s, width, &err) == DQ_OK;
}

static void divide(dq_plan_kv_space *s, int together)
{
    s->together = together;
    s->n_runs = (s->n_layers + together - 1) / together;
    s->n_units = s->n_runs * (s->n_maps + 1);
}

dq_status dq_plan_kv_space_begin(dq_plan_kv_space *s, int n_layers, int together, int n_maps,
                                 dq_err *err)
{
    s->n_layers = n_layers;
    s->n_maps = n_maps;
    divide(s, together);
    if (is_sayable(s)) return DQ_OK;
    while (!is_sayable(s)) divide(s, s->together + 1);
    char how[32] = "one by one";
    if (together > 1) snprintf(how, sizeof how, "%d together", together);
    return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_OPTION},
                        "layers %d: widths of %d layers %s take more text than a KV setting "
                        "holds. Give at least %d layers one width.",
                        together, n_layers, how, s->together);
}

/* The next width up (1) or down (-1); 0: none. */
static int step(const dq_plan_kv_space *s, int width, int by)
{
    int i = 0;
    while (s->bits[i] != width) i++;
    i += by;
    return i < 0 || i >= s->n_bits ? 0 : s->bits[i];
}

dq_status dq_plan_kv_space_near(const dq_plan_kv_space *s, const int *width, double mean,
                                dq_plan_kv_space_take *take, void *arg, dq_err *err)
{
    const double budget = budget_of(s, mean), spent = cost_of(s, width);
    int one[DQ_PLAN_KV_UNITS];
    memcpy(one, width, (size_t)s->n_units * sizeof *one);
    for (int u = 0; u < s->n_units; u++) {
        const int up = step(s, width[u], 1);
        const double more = spent + (up - width[u]) * kv_space_cost(s, u);
        if (!up) continue;
        one[u] = up;
        if (more <= budget) DQ_TRY(take(arg, one, err));
        for (int v = 0; more > budget && v < s->n_units; v++) {
            const int down = step(s, width[v], -1);
            const double less = more - (width[v] - down) * kv_space_cost(s, v);
            if (v == u || !down || less > budget) continue;
            one[v] = down;
            DQ_TRY(take(arg, one, err));
            one[v] = width[v];
        }
        one[u] = width[u];
    }
    return DQ_OK;
}

void dq_plan_kv_space_between(double *loss, const dq_plan_kv_space *s, int k)
{
    const double low = loss[k - 1], high = loss[k + 1];
    const double way =
        (double)(s->bits[k] - s->bits[k - 1]) / (double)(s->bits[k + 1] - s->bits[k - 1]);
    loss[k] = low > 0 && high > 0 ? low * pow(high / low, way) : low + way * (high - low);
}

int dq_plan_kv_space_uniform(int pair[2][2], double mean)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    enum { N = sizeof bits / sizeof *bits };
    int best = 0, apart = 0, n = 0;
    for (int i = 0; i < N * N; i++) {
        const int k = bits[i / N], v = bits[i % N], d = abs(k - v);
        if (k + v > 2 * mean + 1e-9 || k + v < best || (k + v == best && d > apart)) continue;
        if (k + v > best || d < apart) n = 0;
        best = k + v;
        apart = d;
        pair[n][0] = k;
        pair[n++][1] = v;
    }
    return n;
}

/* Whether each KV head's keys serve one map only, so that keys of a layer can have two widths. */
static int key_maps(const dq_head_order *map)
{
    if (map->n_maps < 2) return 1;
    for (int i = 0; i < map->n_kv; i++) {
        if (dq_head_order_key_map(map, i) < 0) return 1;
    }
    return 2;
}

static dq_status kv_config(dq_kv_config *out, const dq_plan_kv *p, const char *widths, dq_err *err)
{
    *out = p->set.kv;
    return dq_kv_config_set_widths(out, widths, err);
}

static dq_status config_of(dq_kv_config *out, const void *arg, const char *name, dq_err *err)
{
    return kv_config(out, arg, name, err);
}

/* Only the text that dq_plan_kv_space_text writes is a name. */
static bool is_widths(const void *arg, const char *name)
{
    const dq_plan_kv *p = arg;
    dq_kv_widths w;
    char text[DQ_KV_LISTS];
    dq_err err = {0};
    return strlen(name) < DQ_KV_LISTS && dq_kv_widths_parse(&w, name, &err) == DQ_OK &&
           dq_kv_widths_fit(&w, p->set.in.model->n_layers, &err) == DQ_OK &&
           dq_kv_widths_text(text, &w, &err) == DQ_OK && strcmp(text, name) == 0;
}

static void add_depends(dq_row_writer *w, const void *arg)
{
    const dq_kv_config *kv = &((const dq_plan_kv *)arg)->set.kv;
    DQ_PUT(w, "quant", dq_kv_quant_name[kv->quant], NULL);
    DQ_PUT(w, "dense_type", dq_kv_dense_name[kv->dense], NULL);
    DQ_PUT(w, "recent", kv->recent, NULL);
    DQ_PUT(w, "sink", kv->sink, NULL);
}

static dq_status too_little(const dq_plan_kv *p, dq_err *err)
{
    return dq_fail_with(
        err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
        "%s: too little text: %lld windows of %lld tokens (expected at least %d, of "
        "which two fifths search and the others decide). Give more text",
        p->set.in.text, (long long)p->caches.win.n, (long long)p->set.in.ctx,
        DQ_PLAN_KV_LEAST_WINDOWS);
}

bool dq_plan_kv_measures(const dq_plan_kv *p, int k)
{
    const int n = p->space.n_bits;
    return !p->coarse || n <= 3 || k % 2 == 0 || k == n - 1;
}

int64_t dq_plan_kv_caches(const dq_plan_kv *p)
{
    int64_t all = 0;
    for (int k = 0; k < p->space.n_bits; k++)
        all += dq_plan_kv_measures(p, k) ? p->space.n_units : 0;
    /* at the others' width all units are one cache */
    const bool with_others = p->space.bits[p->space.n_bits - 1] == DQ_PLAN_KV_OTHERS;
    return with_others ? all - p->space.n_units + 1 : all;
}

dq_status dq_plan_kv_pace(double *seconds, dq_plan_kv *p, dq_err *err)
{
    const int cache = dq_plan_caches_find(&p->caches, "8:8", err);
    return cache < 0 ? err->code : dq_plan_caches_pace(seconds, &p->caches, cache, err);
}

int64_t dq_plan_kv_max_trials(const dq_plan_kv *p)
{
    double mixes = 1;
    for (int u = 0; u < p->space.n_units; u++) mixes *= p->space.n_bits;
    return mixes < (double)p->set.trials ? (int64_t)mixes : p->set.trials;
}

const char *dq_plan_kv_widths(const dq_plan_kv *p)
{
    return p->caches.list[p->trial[p->chosen].mix].name;
}

static dq_status open_all(dq_plan_kv *p, dq_err *err)
{
    const dq_plan_caches_kind kind = {.key = "widths",
                                      .config = config_of,
                                      .is_name = is_widths,
                                      .depend = add_depends,
                                      .arg = p};
    const dq_plan_kv_settings *s = &p->set;
    const int least = s->bits[0], largest = s->bits[s->n_bits - 1];
    if (s->kv.quant == DQ_KV_PER_TOKEN)
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_OPTION},
            "quant per-token: its widths are the same for all layers and maps, so there "
            "is nothing to plan. Use mixed, per-channel or dither.");
    if (s->mean < least || s->mean > largest)
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
            "kv-bits %g: is out of reach of the widths (expected a mean of %d to %d).", s->mean,
            least, largest);
    DQ_TRY(dq_plan_caches_fit(&p->set.in, err));
    p->space.n_bits = s->n_bits;
    memcpy(p->space.bits, s->bits, sizeof p->space.bits);
    DQ_TRY(dq_plan_kv_space_begin(&p->space, s->in.model->n_layers, s->together,
                                  key_maps(&s->in.model->map), err));
    const size_t units = (size_t)p->space.n_units, all = units * (size_t)s->n_bits;
    p->item = dq_alloc(p->arena, units, sizeof *p->item, err);
    p->unit = dq_alloc(p->arena, all, sizeof *p->unit, err);
    p->alone = dq_alloc(p->arena, all, sizeof *p->alone, err);
    for (int u = 0; err->code == DQ_OK && u < p->space.n_units; u++) {
        p->item[u].n = s->n_bits;
        for (int k = 0; k < s->n_bits; k++)
            p->item[u].cost[k] = s->bits[k] * kv_space_cost(&p->space, u);
    }
    if (err->code != DQ_OK) return err->code;
    /* The last scored row must read something as codes. */
    dq_kv_config c;
    dq_kv_spec spec;
    DQ_TRY(kv_config(&c, p, "8:8", err));
    DQ_TRY(dq_model_kv_spec(&spec, &c, s->in.model, DQ_NUM_F32, err));
    if (dq_kv_coded_end(&spec, (int32_t)s->in.ctx - 2) <= spec.sink)
        return dq_fail(
            err, DQ_MISMATCH,
            "windows of %lld tokens with the last %d and the first %d unquantized hold no page "
            "of codes. Use longer windows or fewer recent tokens",
            (long long)s->in.ctx, spec.recent, spec.sink);
    DQ_TRY(dq_plan_caches_cut(&p->caches, &p->set.in, &kind, p->arena, err));
    const int64_t n = p->caches.win.n, begin = n / 5;
    int64_t search = 2 * n / 5;
    if (n < DQ_PLAN_KV_LEAST_WINDOWS) return too_little(p, err);
    p->coarse = dq_plan_kv_caches(p) * search * p->set.in.ctx > DQ_PLAN_KV_ALONE;
    if (p->coarse) {
        const int64_t fit = DQ_PLAN_KV_ALONE / (dq_plan_kv_caches(p) * p->set.in.ctx);
        if (search > fit) search = fit > 1 ? fit : 1;
    }
    return dq_plan_caches_split(&p->caches, begin, begin + search, err);
}

dq_status dq_plan_kv_open(dq_plan_kv **out, const dq_plan_kv_settings *s, dq_err *err)
{
    dq_arena *a;
    dq_plan_kv *p = *out = dq_arena_object(&a, sizeof *p, err);
    if (!p) return err->code;
    p->arena = a;
    p->set = *s;
    p->chosen = -1;
    if (open_all(p, err) == DQ_OK) return DQ_OK;
    dq_plan_kv_close(p);
    *out = NULL;
    return err->code;
}

void dq_plan_kv_close(dq_plan_kv *p)
{
    if (!p) return;
    dq_plan_caches_end(&p->caches);
    dq_arena_free(p->arena);
}

/* Units alone, whole mixes as long as a step helps, then the unseen windows. */

enum {
    USUAL_ROUNDS = 2,
    RIVALS = 2,
    VERDICTS = 2 /* of a baseline: KLD and perplexity */
};

static int64_t mixes_expected(const dq_plan_kv *p)
{
    const int64_t n = USUAL_ROUNDS * DQ_PLAN_KV_ROUND, most = dq_plan_kv_max_trials(p);
    return n < most ? n : most;
}

static dq_status list_alone(dq_plan_kv *p, dq_err *err)
{
    const dq_plan_kv_space *s = &p->space;
    char text[DQ_KV_LISTS];
    int width[DQ_PLAN_KV_UNITS];
    for (int u = 0; u < s->n_units; u++) width[u] = DQ_PLAN_KV_OTHERS;
    for (int u = 0; u < s->n_units; u++) {
        for (int k = 0; k < s->n_bits; k++) {
            int *mix = &p->alone[u * s->n_bits + k];
            *mix = -1;
            if (!dq_plan_kv_measures(p, k)) continue;
            width[u] = s->bits[k];
            DQ_TRY(dq_plan_kv_space_text(text, s, width, err));
            if ((*mix = dq_plan_caches_find(&p->caches, text, err)) < 0) return err->code;
        }
        width[u] = DQ_PLAN_KV_OTHERS;
    }
    return DQ_OK;
}

static int64_t left_alone(const dq_plan_kv *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->caches.n; i++) n += !p->caches.list[i].known[p->caches.end - 1];
    return n;
}

static int list_measured(int *mix, const dq_plan_kv *p)
{
    int n = 0;
    for (int i = 0; i < p->space.n_units * p->space.n_bits; i++) {
        if (p->alone[i] >= 0) mix[n++] = p->alone[i];
    }
    return n;
}

typedef struct offer {
    int mix, place; /* its place among caches */
    double predicted;
    int width[DQ_PLAN_KV_UNITS];
} offer;

typedef struct offers {
    dq_plan_kv *p;
    offer *list; /* [n] a block */
    int n;
    size_t cap;
} offers;

static int option_of(const dq_plan_kv_space *s, int bits)
{
    int k = 0;
    while (k < s->n_bits && s->bits[k] != bits) k++;
    return k < s->n_bits ? k : -1;
}

static double predicted(const dq_plan_kv *p, const int *width)
{
    double sum = 0;
    for (int u = 0; u < p->space.n_units; u++)
        sum += p->item[u].loss[option_of(&p->space, width[u])];
    return sum;
}

static bool is_tried(const dq_plan_kv *p, int mix)
{
    for (int i = 0; i < p->n_trials; i++) {
        if (p->trial[i].mix == mix) return true;
    }
    return false;
}

static dq_status add_offer(void *arg, const int *width, dq_err *err)
{
    offers *o = arg;
    char text[DQ_KV_LISTS];
    DQ_TRY(dq_plan_kv_space_text(text, &o->p->space, width, err));
    const int mix = dq_plan_caches_find(&o->p->caches, text, err);
    if (mix < 0) return err->code;
    if (is_tried(o->p, mix)) return DQ_OK;
    offer *list = dq_grow(NULL, o->list, (size_t)o->n + 1, &o->cap, sizeof *list, err);
    if (!list) return err->code;
    o->list = list;
    offer *x = &list[o->n++];
    *x = (offer){
        .mix = mix, .place = o->p->caches.list[mix].place, .predicted = predicted(o->p, width)};
    memcpy(x->width, width, sizeof x->width);
    return DQ_OK;
}

/* By loss of the units; stable, whatever a journal has of them. */
static int compare(const void *left, const void *right)
{
    const offer *a = left, *b = right;
    if (a->predicted != b->predicted) return a->predicted < b->predicted ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Measures the first n offers; *best: the trial with the least loss, if less than the chosen
 * one's. */
static dq_status try_offers(int *best, offers *o, int n, const char *from, dq_err *err)
{
    dq_plan_kv *p = o->p;
    int mix[DQ_PLAN_KV_ROUND] = {0};
    *best = p->chosen;
    for (int i = 0; i < n; i++) mix[i] = o->list[i].mix;
    DQ_TRY(dq_plan_caches_run(&p->caches, mix, n, DQ_PLAN_CACHES_SEARCH, from, err));
    for (int i = 0; i < n; i++) {
        dq_plan_numbers x;
        dq_plan_kv_trial *list =
            dq_grow(p->arena, p->trial, (size_t)p->n_trials + 1, &p->cap_trials, sizeof *list, err);
        if (!list) return err->code;
        p->trial = list;
        DQ_TRY(dq_plan_caches_numbers_of(&x, &p->caches, mix[i], DQ_PLAN_CACHES_SEARCH, err));
        dq_plan_kv_trial *t = &list[p->n_trials++];
        *t = (dq_plan_kv_trial){.mix = mix[i], .from = from, .kld = x.kld.of.value};
        t->bits = dq_plan_kv_space_mean(&p->space, o->list[i].width);
        t->added = o->list[i].predicted;
        memcpy(t->width, o->list[i].width, sizeof t->width);
        if (*best < 0 || t->kld < list[*best].kld) *best = p->n_trials - 1;
    }
    return DQ_OK;
}

static void choose(dq_plan_kv *p, int trial)
{
    p->chosen = trial;
    p->trial[trial].taken = true;
}

/* False: units cannot have these widths. */
static bool uniform_widths(int *width, const dq_plan_kv *p, const int pair[2])
{
    const dq_plan_kv_space *s = &p->space;
    for (int u = 0; u < s->n_units; u++)
        width[u] = pair[dq_plan_kv_space_unit(s, u).values ? 1 : 0];
    return option_of(s, pair[0]) >= 0 && option_of(s, pair[1]) >= 0;
}

/* Tries the mix from the units, then uniform widths; the best of them is chosen. */
static dq_status first_mixes(offers *o, dq_err *err)
{
    dq_plan_kv *p = o->p;
    int pair[2][2], width[DQ_PLAN_KV_UNITS] = {0}, best;
    const int n = dq_plan_kv_space_uniform(pair, p->set.mean);
    /* What the curve's point leaves of the mean goes to later steps. */
    const double budget = budget_of(&p->space, p->set.mean);
    int choice[DQ_PLAN_KV_UNITS];
    dq_plan_curve c;
    DQ_TRY(dq_plan_alloc_curve(&c, p->item, p->space.n_units, p->arena, err));
    const int64_t point = dq_plan_alloc_by_cost(&c, budget);
    if (point < 0) return dq_fail(err, DQ_BUG, "no widths within the mean");
    dq_plan_alloc_at(choice, &c, point);
    dq_plan_alloc_fill(choice, &c, point, budget);
    for (int u = 0; u < p->space.n_units; u++) width[u] = p->space.bits[choice[u]];
    DQ_TRY(add_offer(o, width, err));
    DQ_TRY(try_offers(&best, o, 1, "units", err));
    choose(p, best);
    o->n = 0;
    for (int i = 0; i < n; i++) {
        if (uniform_widths(width, p, pair[i])) DQ_TRY(add_offer(o, width, err));
    }
    DQ_TRY(try_offers(&best, o, o->n, "uniform", err));
    choose(p, best);
    return DQ_OK;
}

/* Steps from mix to mix as long as the loss falls. */
static dq_status search(offers *o, dq_err *err)
{
    dq_plan_kv *p = o->p;
    dq_plan_caches_stage(&p->caches, "whole mixes");
    DQ_TRY(first_mixes(o, err));
    for (;;) {
        int best;
        int width[DQ_PLAN_KV_UNITS];
        memcpy(width, p->trial[p->chosen].width, sizeof width);
        o->n = 0;
        DQ_TRY(dq_plan_kv_space_near(&p->space, width, p->set.mean, add_offer, o, err));
        qsort(o->list, (size_t)o->n, sizeof *o->list, compare);
        int64_t n = p->set.trials - p->n_trials;
        if (n > o->n) n = o->n;
        if (n > DQ_PLAN_KV_ROUND) n = DQ_PLAN_KV_ROUND;
        if (n <= 0) return DQ_OK;
        dq_plan_caches_expect(&p->caches,
                              n + (mixes_expected(p) > p->n_trials + n ? DQ_PLAN_KV_ROUND : 0),
                              1 + RIVALS);
        DQ_TRY(try_offers(&best, o, (int)n, "trade", err));
        if (best == p->chosen) return DQ_OK;
        choose(p, best);
    }
}

static dq_status decide(dq_plan_kv *p, dq_err *err)
{
    int mix[1 + RIVALS] = {p->trial[p->chosen].mix};
    dq_plan_caches_stage(&p->caches, "unseen windows");
    int pair[2][2], width[DQ_PLAN_KV_UNITS] = {0};
    char text[DQ_KV_LISTS];
    const int n = dq_plan_kv_space_uniform(pair, p->set.mean);
    for (int i = 0; i < n; i++) {
        dq_plan_kv_baseline *r = &p->baseline[p->n_baselines];
        uniform_widths(width, p, pair[i]);
        DQ_TRY(dq_plan_kv_space_text(text, &p->space, width, err));
        r->mix = dq_plan_caches_find(&p->caches, text, err);
        r->bits = dq_plan_kv_space_mean(&p->space, width);
        if (r->mix < 0) return err->code;
        p->n_baselines += r->mix != p->trial[p->chosen].mix;
    }
    const double outside = 0.05 / (VERDICTS * (p->n_baselines > 1 ? p->n_baselines : 1));
    for (int i = 0; i < p->n_baselines; i++) mix[1 + i] = p->baseline[i].mix;
    dq_plan_caches_expect(&p->caches, 0, 1 + p->n_baselines);
    DQ_TRY(dq_plan_caches_run(&p->caches, mix, 1 + p->n_baselines, DQ_PLAN_CACHES_UNSEEN,
                              "plan and uniform", err));
    DQ_TRY(dq_plan_caches_found_of(&p->found, &p->caches, mix[0], -1, 0.05, err));
    for (int i = 0; i < p->n_baselines; i++) {
        dq_plan_beside *b = &p->baseline[i].beside;
        const int other = p->baseline[i].mix;
        DQ_TRY(dq_plan_caches_numbers_of(&b->its, &p->caches, other, DQ_PLAN_CACHES_UNSEEN, err));
        DQ_TRY(dq_plan_caches_found_of(&b->less, &p->caches, mix[0], other, outside, err));
    }
    return DQ_OK;
}

static dq_status run_all(dq_plan_kv *p, dq_err *err)
{
    offers o = {.p = p};
    DQ_TRY(dq_plan_caches_begin(&p->caches, err));
    const int n = p->space.n_units * p->space.n_bits;
    int *mix = dq_alloc(p->arena, (size_t)n, sizeof *mix, err);
    if (!mix) return err->code;
    dq_plan_caches_stage(&p->caches, "units alone");
    DQ_TRY(list_alone(p, err));
    dq_plan_caches_expect(&p->caches, left_alone(p) + mixes_expected(p), 1 + RIVALS);
    DQ_TRY(dq_plan_caches_run(&p->caches, mix, list_measured(mix, p), DQ_PLAN_CACHES_SEARCH,
                              "alone", err));
    for (int i = 0; i < n; i++) {
        if (p->alone[i] < 0) continue;
        DQ_TRY(dq_plan_caches_numbers_of(&p->unit[i], &p->caches, p->alone[i],
                                         DQ_PLAN_CACHES_SEARCH, err));
        p->item[i / p->space.n_bits].loss[i % p->space.n_bits] = p->unit[i].kld.of.value;
    }
    for (int u = 0; u < p->space.n_units; u++) {
        for (int k = 0; k < p->space.n_bits; k++) {
            if (!dq_plan_kv_measures(p, k)) dq_plan_kv_space_between(p->item[u].loss, &p->space, k);
        }
    }
    search(&o, err);
    dq_block_free(o.list);
    return err->code == DQ_OK ? decide(p, err) : err->code;
}

dq_status dq_plan_kv_run(dq_plan_kv *p, dq_err *err)
{
    return run_all(p, err) == DQ_OK ? DQ_OK : dq_work_failed(&p->caches.work, err);
}
