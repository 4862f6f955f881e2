/* plan_kv_run: dq_plan_kv_run of plan_kv.h: units alone, whole mixes as long as a step helps, then the windows that none of that
 * has seen.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_kv.h"
#include "plan/plan_decide.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- Units alone ---- */

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

/* Caches of units that are still to be measured. */
static int64_t left_alone(const dq_plan_kv *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->caches.n; i++) n += !p->caches.list[i].known[p->caches.end - 1];
    return n;
}

/* The measured mixes of units alone, one after another. */
static int list_measured(int *mix, const dq_plan_kv *p)
{
    int n = 0;
    for (int i = 0; i < p->space.n_units * p->space.n_bits; i++) {
        if (p->alone[i] >= 0) mix[n++] = p->alone[i];
    }
    return n;
}

static dq_status measure_alone(dq_plan_kv *p, dq_err *err)
{
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
        DQ_TRY(dq_plan_caches_numbers_of(&p->unit[i], &p->caches, p->alone[i], -1,
                                         DQ_PLAN_CACHES_SEARCH, err));
        p->item[i / p->space.n_bits].loss[i % p->space.n_bits] = p->unit[i].kld.value;
    }
    for (int u = 0; u < p->space.n_units; u++) {
        for (int k = 0; k < p->space.n_bits; k++) {
            if (!dq_plan_kv_measures(p, k)) dq_plan_kv_space_between(p->item[u].loss, &p->space, k);
        }
    }
    return DQ_OK;
}

/* ---- Whole mixes ---- */

/* A mix that may be measured. */
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

/* By what units lose; equal ones as they came first, whatever a journal has of them. */
static int compare(const void *left, const void *right)
{
    const offer *a = left, *b = right;
    if (a->predicted != b->predicted) return a->predicted < b->predicted ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Measures the first n offers; *best: the trial that loses least, if it loses less than the one chosen. */
static dq_status try_offers(int *best, offers *o, int n, const char *from, dq_err *err)
{
    dq_plan_kv *p = o->p;
    int mix[DQ_PLAN_KV_ROUND] = {0};
    *best = p->chosen;
    for (int i = 0; i < n; i++) mix[i] = o->list[i].mix;
    DQ_TRY(dq_plan_caches_run(&p->caches, mix, n, DQ_PLAN_CACHES_SEARCH, from, err));
    for (int i = 0; i < n; i++) {
        dq_plan_caches_numbers x;
        dq_plan_kv_trial *list =
            dq_grow(p->arena, p->trial, (size_t)p->n_trials + 1, &p->cap_trials, sizeof *list, err);
        if (!list) return err->code;
        p->trial = list;
        DQ_TRY(dq_plan_caches_numbers_of(&x, &p->caches, mix[i], -1, DQ_PLAN_CACHES_SEARCH, err));
        dq_plan_kv_trial *t = &list[p->n_trials++];
        *t = (dq_plan_kv_trial){.mix = mix[i], .from = from, .kld = x.kld.value};
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

/* What is left of the mean after the curve's point goes to later steps. */
static dq_status by_units(int *width, dq_plan_kv *p, dq_err *err)
{
    const double budget = dq_plan_kv_space_budget(&p->space, p->set.mean);
    int choice[DQ_PLAN_KV_UNITS];
    dq_plan_curve c;
    DQ_TRY(dq_plan_alloc_curve(&c, p->item, p->space.n_units, p->arena, err));
    const int64_t point = dq_plan_alloc_by_cost(&c, budget);
    if (point < 0) return dq_fail(err, DQ_BUG, "no widths within the mean");
    dq_plan_alloc_at(choice, &c, point);
    dq_plan_alloc_fill(choice, &c, point, budget);
    for (int u = 0; u < p->space.n_units; u++) width[u] = p->space.bits[choice[u]];
    return DQ_OK;
}

/* All keys and all values alike; false where the widths are none that units may have. */
static bool uniform_widths(int *width, const dq_plan_kv *p, const int pair[2])
{
    const dq_plan_kv_space *s = &p->space;
    for (int u = 0; u < s->n_units; u++)
        width[u] = pair[dq_plan_kv_space_unit(s, u).values ? 1 : 0];
    return option_of(s, pair[0]) >= 0 && option_of(s, pair[1]) >= 0;
}

/* The mix of the units, then uniform widths: the first that loses least. */
static dq_status first_mixes(offers *o, dq_err *err)
{
    dq_plan_kv *p = o->p;
    int pair[2][2], width[DQ_PLAN_KV_UNITS] = {0}, best;
    const int n = dq_plan_kv_space_uniform(pair, p->set.mean);
    DQ_TRY(by_units(width, p, err));
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

/* Steps from mix to mix, as long as one loses less. */
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

/* ---- The windows that are left ---- */

static dq_status list_baselines(dq_plan_kv *p, dq_err *err)
{
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
    p->outside = 0.05 / (VERDICTS * (p->n_baselines > 1 ? p->n_baselines : 1));
    return DQ_OK;
}

static dq_status compare_baseline(dq_plan_kv *p, dq_plan_kv_baseline *r, dq_err *err)
{
    const int mine = p->trial[p->chosen].mix;
    const dq_plan_caches_numbers *d = &r->difference;
    DQ_TRY(dq_plan_caches_numbers_of(&r->its, &p->caches, r->mix, -1, DQ_PLAN_CACHES_UNSEEN, err));
    DQ_TRY(dq_plan_caches_numbers_of(&r->difference, &p->caches, mine, r->mix,
                                     DQ_PLAN_CACHES_UNSEEN, err));
    r->kld = dq_plan_decide_interval(d->kld, d->kld_skew, p->outside);
    r->loss = dq_plan_decide_interval(d->loss, d->loss_skew, p->outside);
    return DQ_OK;
}

static dq_status decide(dq_plan_kv *p, dq_err *err)
{
    int mix[1 + RIVALS] = {p->trial[p->chosen].mix};
    dq_plan_caches_stage(&p->caches, "unseen windows");
    DQ_TRY(list_baselines(p, err));
    for (int i = 0; i < p->n_baselines; i++) mix[1 + i] = p->baseline[i].mix;
    dq_plan_caches_expect(&p->caches, 0, 1 + p->n_baselines);
    DQ_TRY(dq_plan_caches_run(&p->caches, mix, 1 + p->n_baselines, DQ_PLAN_CACHES_UNSEEN,
                              "plan and uniform", err));
    DQ_TRY(
        dq_plan_caches_numbers_of(&p->found, &p->caches, mix[0], -1, DQ_PLAN_CACHES_UNSEEN, err));
    for (int i = 0; i < p->n_baselines; i++) DQ_TRY(compare_baseline(p, &p->baseline[i], err));
    return DQ_OK;
}

static dq_status run_all(dq_plan_kv *p, dq_err *err)
{
    offers o = {.p = p};
    DQ_TRY(dq_plan_caches_begin(&p->caches, err));
    DQ_TRY(measure_alone(p, err));
    search(&o, err);
    dq_block_free(o.list);
    return err->code == DQ_OK ? decide(p, err) : err->code;
}

dq_status dq_plan_kv_run(dq_plan_kv *p, dq_err *err)
{
    return run_all(p, err) == DQ_OK ? DQ_OK : dq_plan_kv_failed(p, err);
}
