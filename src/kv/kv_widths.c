/* A text is read from left to right into runs of layers, and written from them; what a model's
 * number of layers makes of runs without one of their own is filled in once.
 * SPDX-License-Identifier: MIT */
#include "kv/kv.h"

#include <stdio.h>
#include <string.h>

static const char *const side_name[2] = {"keys", "values"};
enum { MOST_LAYERS = 10000 };

/* A number below MOST_LAYERS; -1: none. */
static int take_number(const char **text)
{
    int x = 0, digits = 0;
    for (; **text >= '0' && **text <= '9' && digits < 4; digits++) x = 10 * x + *(*text)++ - '0';
    return digits ? x : -1;
}

static bool is_width(int bits)
{
    return bits == 16 || bits == 8 || (bits >= 2 && bits <= 6);
}

static dq_status wrong(const char *at, dq_err *err)
{
    return dq_fail(
        err, DQ_USAGE,
        "expected widths by layer as \"3|5+3:3|6\" at \"%.40s\": | between layers, : between keys "
        "and values, + between the keys of two maps, *N for N layers, * for those that are left.",
        at);
}

static dq_status take_side(dq_kv_widths *w, const char **text, int side, dq_err *err)
{
    dq_kv_run *run = w->run[side];
    int n = 0, rests = 0;
    bool wide = false, coded = false;
    do {
        if (n == DQ_KV_RUNS)
            return dq_fail(err, DQ_USAGE, "more than %d entries for %s.", DQ_KV_RUNS,
                           side_name[side]);
        if (n) ++*text;
        dq_kv_run *r = &run[n];
        const char *begin = *text;
        *r = (dq_kv_run){.layers = -1};
        r->bits[0] = r->bits[1] = take_number(text);
        if (**text == '+') {
            if (side != 0)
                return dq_fail(err, DQ_USAGE, "values have no maps, found \"%.40s\".", begin);
            ++*text;
            r->bits[1] = take_number(text);
        }
        if (r->bits[0] < 0 || r->bits[1] < 0) return wrong(begin, err);
        for (int map = 0; map < 2; map++) {
            if (!is_width(r->bits[map]))
                return dq_fail(err, DQ_USAGE, "%d bits for %s are not offered (8, 6, 5, 4, 3, 2).",
                               r->bits[map], side_name[side]);
        }
        if (**text == '*') {
            ++*text;
            r->layers = take_number(text);
            if (r->layers == 0) return wrong(begin, err);
            if (r->layers < 0) r->layers = 0;
        }
        rests += run[n].layers == 0;
        wide = wide || run[n].bits[0] == 16 || run[n].bits[1] == 16;
        coded = coded || run[n].bits[0] != 16 || run[n].bits[1] != 16;
        n++;
    } while (**text == '|');
    w->n[side] = n;
    for (int i = 0; n > 1 && i < n; i++) run[i].layers = run[i].layers < 0 ? 1 : run[i].layers;
    if (rests > 1)
        return dq_fail(err, DQ_USAGE, "two entries for %s are for the layers that are left.",
                       side_name[side]);
    if (wide && coded)
        return dq_fail(err, DQ_USAGE, "16 bits for some %s and codes for others are not offered.",
                       side_name[side]);
    return DQ_OK;
}

dq_status dq_kv_widths_parse(dq_kv_widths *out, const char *text, dq_err *err)
{
    const char *at = text;
    DQ_TRY(take_side(out, &at, 0, err));
    if (*at && *at != ':') return wrong(at, err);
    at = *at ? at + 1 : text; /* both sides alike */
    DQ_TRY(take_side(out, &at, 1, err));
    return *at ? wrong(at, err) : DQ_OK;
}

static bool same_bits(const dq_kv_run *a, const dq_kv_run *b)
{
    return a->bits[0] == b->bits[0] && a->bits[1] == b->bits[1];
}

static dq_status fit_side(dq_kv_widths *w, int side, int n_layers, dq_err *err)
{
    dq_kv_run *run = w->run[side], *rest = NULL;
    int said = 0, n = 0;
    for (int i = 0; i < w->n[side]; i++) {
        if (run[i].layers > 0) said += run[i].layers;
        if (run[i].layers <= 0) rest = &run[i];
    }
    if (said > n_layers || (!rest && said < n_layers) ||
        (rest && rest->layers == 0 && said == n_layers))
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_LAYERS},
                            "the widths of %s are for %d layers%s, and the model has %d",
                            side_name[side], said, rest ? " and one or more that are left" : "",
                            n_layers);
    if (rest) rest->layers = n_layers - said;
    for (int i = 0; i < w->n[side]; i++) {
        if (n && same_bits(&run[n - 1], &run[i]))
            run[n - 1].layers += run[i].layers;
        else
            run[n++] = run[i];
    }
    w->n[side] = n;
    if (n == 1) run->layers = -1;
    return DQ_OK;
}

dq_status dq_kv_widths_fit(dq_kv_widths *w, int n_layers, dq_err *err)
{
    DQ_TRY(fit_side(w, 0, n_layers, err));
    return fit_side(w, 1, n_layers, err);
}

static void add_run(char *text, size_t cap, const dq_kv_run *r, bool alone)
{
    char maps[16] = "", layers[16] = "";
    const size_t n = strlen(text);
    if (r->bits[0] != r->bits[1]) snprintf(maps, sizeof maps, "+%d", r->bits[1]);
    if (r->layers == 0) snprintf(layers, sizeof layers, "*");
    if (r->layers > 1 || (r->layers > 0 && alone))
        snprintf(layers, sizeof layers, "*%d", r->layers);
    snprintf(text + n, cap - n, "%d%s%s", r->bits[0], maps, layers);
}

dq_status dq_kv_widths_text(char text[DQ_KV_LISTS], const dq_kv_widths *w, dq_err *err)
{
    char line[2 * DQ_KV_RUNS * 32] = "";
    for (int side = 0; side < 2; side++) {
        if (side) strcat(line, ":");
        for (int i = 0; i < w->n[side]; i++) {
            if (i) strcat(line, "|");
            add_run(line, sizeof line, &w->run[side][i], w->n[side] == 1);
        }
    }
    if (strlen(line) >= DQ_KV_LISTS)
        return dq_fail(err, DQ_USAGE, "the widths by layer take %zu characters (at most %d).",
                       strlen(line), DQ_KV_LISTS - 1);
    memcpy(text, line, strlen(line) + 1);
    return DQ_OK;
}

bool dq_kv_widths_uniform(const dq_kv_widths *w, int side)
{
    for (int i = 0; i < w->n[side]; i++) {
        const dq_kv_run *r = &w->run[side][i];
        if (r->bits[0] != r->bits[1] || !same_bits(r, w->run[side])) return false;
    }
    return true;
}

bool dq_kv_widths_by_map(const dq_kv_widths *w)
{
    for (int i = 0; i < w->n[0]; i++) {
        if (w->run[0][i].bits[0] != w->run[0][i].bits[1]) return true;
    }
    return false;
}

int dq_kv_widths_largest(const dq_kv_widths *w, int side)
{
    int most = 0;
    for (int i = 0; i < w->n[side]; i++) {
        const int *bits = w->run[side][i].bits;
        if (bits[0] > most) most = bits[0];
        if (bits[1] > most) most = bits[1];
    }
    return most;
}

double dq_kv_widths_mean(const dq_kv_widths *w, int side)
{
    int layers = 0, sum = 0;
    for (int i = 0; i < w->n[side]; i++) {
        const dq_kv_run *r = &w->run[side][i];
        layers += r->layers;
        sum += r->layers * (r->bits[0] + r->bits[1]);
    }
    return sum / (2.0 * layers);
}

int dq_kv_widths_of(const dq_kv_widths *w, int side, int layer, int map)
{
    const dq_kv_run *r = w->run[side];
    while (r->layers > 0 && layer >= r->layers) layer -= r++->layers;
    return r->bits[map];
}

/* Shares start at the protected tokens, then grow in turns over the sharing groups, and once more
 * over all in order of need. */

/* A number below 10000 without leading zeros; -1: none. */
static int heads_take_number(const char **text)
{
    int x = 0, digits = 0;
    if (**text == '0') {
        ++*text;
        return 0;
    }
    for (; **text >= '0' && **text <= '9' && digits < 4; digits++) x = 10 * x + *(*text)++ - '0';
    return digits ? x : -1;
}

static dq_status heads_wrong(const char *at, dq_err *err)
{
    return dq_fail(
        err, DQ_USAGE,
        "expected layers and their groups of KV heads in order of need, as \"1.0,1.1,0.0,0.1\", or "
        "with one / between those that share and the others, at \"%.40s\".",
        at);
}

dq_status dq_kv_heads_parse(dq_kv_heads *out, const char *text, dq_err *err)
{
    out->n = out->sharing = 0;
    if (strlen(text) >= DQ_KV_HEADS_TEXT)
        return dq_fail(err, DQ_USAGE, "the heads take %zu characters (at most %d).", strlen(text),
                       DQ_KV_HEADS_TEXT - 1);
    for (const char *p = text;; p++) {
        const char *begin = p;
        const int layer = heads_take_number(&p);
        if (layer < 0 || *p != '.') return heads_wrong(begin, err);
        ++p;
        const int group = heads_take_number(&p);
        if (group < 0 || !strchr(",/", *p)) return heads_wrong(begin, err);
        for (int i = 0; i < out->n; i++) {
            if (out->at[i].layer == layer && out->at[i].group == group)
                return dq_fail(err, DQ_USAGE, "group %d.%d stands twice.", layer, group);
        }
        if (out->n == DQ_KV_HEADS_MAX)
            return dq_fail(err, DQ_USAGE, "more than %d groups of KV heads.", DQ_KV_HEADS_MAX);
        out->at[out->n++] = (dq_kv_heads_group){(int16_t)layer, (int16_t)group};
        if (!*p) return DQ_OK;
        if (*p == '/' && out->sharing) return heads_wrong(p, err);
        if (*p == '/') out->sharing = out->n;
        if (*p == '/' && !p[1]) return DQ_OK;
    }
}

dq_status dq_kv_heads_fit(const dq_kv_heads *r, int n_layers, int n_groups, int n_full, dq_err *err)
{
    const dq_remedy remedy = {.code = DQ_REMEDY_KV_HEADS};
    for (int i = 0; i < r->n; i++) {
        if (r->at[i].layer >= n_layers || r->at[i].group >= n_groups)
            return dq_fail_with(
                err, DQ_MISMATCH, remedy,
                "the heads name group %d.%d, and the model has %d layers of %d groups of KV heads",
                r->at[i].layer, r->at[i].group, n_layers, n_groups);
    }
    if (r->n == n_full * n_groups) return DQ_OK; /* none stands twice */
    return dq_fail_with(
        err, DQ_MISMATCH, remedy,
        "the heads name %d of the %d groups of KV heads that the model has (%d layers of %d)%s",
        r->n, n_full * n_groups, n_full, n_groups,
        n_full < n_layers ? "; layers with a window have none to share" : "");
}

/* Tokens that a group still lacks. */
static int64_t lack(const int64_t *share, const dq_pool *pool, int group)
{
    return pool->group[group].n - share[group];
}

/* Gives a group what it can take of `tokens`; returns the rest. */
static int64_t give(int64_t *share, const dq_pool *pool, int group, int64_t tokens, int64_t left)
{
    const int64_t lacks = lack(share, pool, group), most = tokens < left ? tokens : left;
    const int64_t gets = most < lacks ? most : lacks;
    share[group] += gets;
    return left - gets;
}

void dq_kv_budget_of_heads(int64_t *share, const dq_pool *pool, const dq_kv_heads *r, int n_groups)
{
    int64_t left = 0;
    int open = r->sharing;
    for (int g = 0; g < pool->n_groups; g++) {
        share[g] = dq_kv_policy_protected(pool->group[g].pos, pool->group[g].n, pool->safe);
        if (pool->group[g].n && pool->budget > share[g]) left += pool->budget - share[g];
    }
    while (open && left) { /* dealt out in turns */
        const int64_t part = left > open ? left / open : 1;
        open = 0;
        for (int i = 0; i < r->sharing; i++) {
            const int g = r->at[i].layer * n_groups + r->at[i].group;
            left = give(share, pool, g, part, left);
            open += lack(share, pool, g) > 0;
        }
    }
    for (int i = 0; i < r->n; i++)
        left = give(share, pool, r->at[i].layer * n_groups + r->at[i].group, left, left);
}
