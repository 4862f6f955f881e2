/* Shares are quotients of the counts in dq_kv_cached, NaN where nothing was counted; JSON, columns
 * and warnings all read them from dq_kv_report_shares_of.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/kv_report.h"

#include "cmds/cli/cli.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

static double quotient(double a, double b)
{
    return b > 0 ? a / b : (double)NAN;
}

dq_kv_report_shares dq_kv_report_shares_of(const dq_kv_spec *set, const dq_kv_cached *h)
{
    const dq_kv_bytes *b = &h->bytes;
    dq_kv_report_shares s = {.measured = h->contexts > 0 && h->missed == 0};
    const dq_kv_cached none = {0};
    const bool codes = dq_kv_has_codes(set);
    s.lowbit = codes ? quotient((double)h->reads_coded, (double)h->reads) : 0;
    if (!s.measured) b = &(h = &none)->bytes;
    s.bytes_cached = b->codes + b->scales + b->unquantized + b->index;
    double coded = (double)(b->codes + b->scales + h->dense16);
    s.bytes_per_token = quotient((double)s.bytes_cached, (double)h->tokens);
    s.ratio_cached = quotient((double)h->baseline, (double)s.bytes_cached);
    s.share = quotient((double)s.bytes_cached, (double)h->baseline);
    s.saves_nothing = s.share >= 1;
    /* ratio_cached if all kept tokens were codes: the limit for long contexts */
    const double cached_coded = quotient((double)b->tokens_coded, (double)b->tokens);
    s.ratio_payload =
        b->tokens_coded ? quotient((double)h->baseline * cached_coded, coded) : (double)NAN;
    s.kept = quotient((double)b->tokens, (double)h->slots);
    s.kvpress = 1 - s.kept;
    s.cut = quotient((double)h->tokens_cut, (double)h->tokens);
    return s;
}

void dq_kv_report_logit_rows(dq_row_writer *w, const dq_logit_spec *s, const char *about)
{
    DQ_PUT(w, "logit_bits", s->bits, about, .min = 2, .max = 16);
    DQ_PUT(w, "logit_granularity", dq_granularity_name[s->granularity], "What shares their scale.",
           DQ_WORDS(dq_granularity_name));
}

static void math_rows(dq_row_writer *w, dq_math m)
{
    DQ_PUT(w, "linear", dq_num_name[m.linear], "Of projections and the head.", DQ_NUM_WORDS);
    DQ_PUT(w, "qk", dq_num_name[m.qk],
           "Of attention scores; where bf16 or int8 is asked for a GPU takes f16, or int8 for some "
           "caches.",
           DQ_WORDS(dq_num_name));
    DQ_PUT(w, "pv", dq_num_name[m.pv], "Of sums of values, likewise.", DQ_WORDS(dq_num_name));
    DQ_PUT(w, "kv", dq_num_name[m.kv], "Of numbers that become the cache.", DQ_NUM_WORDS);
}

json_t *dq_kv_report_math_json(dq_math m)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    math_rows(&w, m);
    return o;
}

void dq_kv_report_math_describe(dq_row_writer *w)
{
    math_rows(w, (dq_math){0});
}

void dq_kv_report_note_math(dq_logger *logger, const char *device, dq_math m)
{
    dq_logger_note(logger, "device: %s; arithmetic: linear %s, qk %s, pv %s, kv %s", device,
                   dq_num_name[m.linear], dq_num_name[m.qk], dq_num_name[m.pv], dq_num_name[m.kv]);
}

void dq_kv_report_note_routes(dq_logger *logger, const dq_backend *b, const dq_model *m,
                              dq_math math, const dq_kv_spec *kv)
{
    char line[DQ_ROUTE_TEXT];
    for (int i = 0; logger->verbose && i < m->n_layers;)
        dq_logger_note(logger, "%s: %s", m->name,
                       dq_kernel_routes_text(line, &i, b, m, i, math, kv));
}

static void kv_rows(dq_row_writer *w, const dq_kv_spec *s, const dq_kv_cached *h)
{
    const dq_kv_report_shares none = {0}, x = w->live ? dq_kv_report_shares_of(s, h) : none;
    const struct {
        const char *name, *about;
        int64_t n;
    } parts[] = {
        {"codes", "Bytes of codes.", w->live ? h->bytes.codes : 0},
        {"scales", "Bytes of scales and steps.", w->live ? h->bytes.scales : 0},
        {"unquantized", "Bytes of numbers that are not codes.", w->live ? h->bytes.unquantized : 0},
        {"index", "Bytes of positions of kept tokens.", w->live ? h->bytes.index : 0}};
    dq_kv_spec_rows(w, s);
    DQ_PUT(w, "contexts", h->contexts, "Contexts that the numbers below are of.");
    DQ_PUT(w, "bytes_held", x.measured ? x.bytes_cached : -1,
           "Bytes that the cache holds for the contexts; null: not measured.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_OBJECT(w, "bytes", "The same by what they hold.");
    for (int i = 0; i < 4; i++)
        DQ_PUT(w, parts[i].name, x.measured ? parts[i].n : -1, parts[i].about,
               .when = DQ_NULL | DQ_BELOW_0);
    dq_row_end(w);
    DQ_PUT(w, "bytes_per_token", x.bytes_per_token, "Bytes held per token of the contexts.",
           .when = DQ_NULL);
    DQ_PUT(w, "baseline_bytes", x.measured ? h->baseline : -1,
           "Bytes that a 16-bit cache of all tokens holds.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "ratio_held", x.ratio_cached, "baseline_bytes over bytes_held.", .when = DQ_NULL);
    DQ_PUT(w, "saves_nothing", (dq_maybe)(x.measured ? x.saves_nothing : -1),
           "Whether that is 1 or less: the cache is no smaller than all tokens in 16 bits.",
           .when = DQ_NULL);
    DQ_PUT(w, "ratio_payload", x.ratio_payload, "The same without what is held besides numbers.",
           .when = DQ_NULL);
    DQ_PUT(w, "lowbit_fraction", x.lowbit,
           "Share of the keys that scored rows read which were codes.", .when = DQ_NULL);
    DQ_PUT(w, "kept_fraction", x.kept, "Share of the contexts' tokens that stayed.",
           .when = DQ_NULL);
    DQ_PUT(w, "kvpress_ratio", x.kvpress,
           "1 less that share, which kvpress calls compression ratio.", .when = DQ_NULL);
    DQ_PUT(w, "raised", s->evict.policy ? h->raised : -1,
           "Contexts whose budget was raised to sink + recent; null: nothing is evicted.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "gap_min", h->evicted ? (double)h->gap_min : (double)NAN,
           "Least distance between the scores of a kept and an evicted token; null: nothing was "
           "evicted.",
           .when = DQ_NULL);
}

json_t *dq_kv_report_json(const dq_kv_spec *s, const dq_kv_cached *h)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    kv_rows(&w, s, h);
    return o;
}

void dq_kv_report_describe(dq_row_writer *w)
{
    kv_rows(w, NULL, NULL);
}

int dq_kv_report_titles(const char **titles)
{
    static const char *const measured[] = {
        "kv_kept_fraction",   "kv_lowbit_fraction", "kv_bytes_held",   "kv_baseline_bytes",
        "kv_bytes_per_token", "kv_ratio_held",      "kv_ratio_payload"};
    enum { N = sizeof measured / sizeof *measured };
    _Static_assert(DQ_KV_COLUMNS + N == DQ_KV_TITLES, "a title for every column");
    for (int i = 0; i < DQ_KV_COLUMNS; i++) titles[i] = dq_kv_field_title(i + 1);
    for (int i = 0; i < N; i++) titles[DQ_KV_COLUMNS + i] = measured[i];
    return DQ_KV_TITLES;
}

void dq_kv_report_columns(dq_table *t, const dq_kv_spec *s, const dq_kv_cached *h)
{
    const dq_kv_report_shares x = dq_kv_report_shares_of(s, h);
    for (int i = 0; i < DQ_KV_COLUMNS; i++) {
        double number;
        const char *text = dq_kv_spec_column(&number, s, i + 1);
        if (text)
            dq_table_cell(t, "%s", text);
        else
            dq_table_real(t, number);
    }
    dq_table_real(t, x.kept);
    dq_table_real(t, x.lowbit);
    dq_table_real(t, x.measured ? (double)x.bytes_cached : (double)NAN);
    dq_table_real(t, x.measured ? (double)h->baseline : (double)NAN);
    dq_table_real(t, x.bytes_per_token);
    dq_table_real(t, x.ratio_cached);
    dq_table_real(t, x.ratio_payload);
}

const char *dq_kv_report_label(char *buf, size_t cap, const dq_kv_spec *s)
{
    const dq_evict_spec *e = &s->evict;
    char widths[DQ_KV_TEXT];
    int n = snprintf(buf, cap, "%s", dq_kv_codes_text(widths, s));
    if (!e->policy || n < 0 || (size_t)n >= cap) return buf;
    if (e->tokens)
        n += snprintf(buf + n, cap - (size_t)n, " %s %lld", e->policy->name, (long long)e->tokens);
    else
        n += snprintf(buf + n, cap - (size_t)n, " %s %g", e->policy->name, e->keep);
    if (e->budget != DQ_KV_BUDGET_UNIFORM && (size_t)n < cap)
        snprintf(buf + n, cap - (size_t)n, " %s", dq_kv_budget_name[e->budget]);
    return buf;
}

void dq_kv_report_warn_policy(dq_logger *logger, const char *what, const dq_kv_spec *s,
                              const dq_kv_cached *h)
{
    char label[DQ_KV_LABEL];
    dq_kv_report_label(label, sizeof label, s);
    if (h->beyond)
        dq_logger_warn(
            logger,
            "%s, KV %s: %s read %lld of %lld contexts again at positions after those that the "
            "model has; give shorter contexts, or another --kv-policy",
            what, label, s->evict.policy->name, (long long)h->beyond, (long long)h->evicted);
    if (h->flat)
        dq_logger_warn(
            logger,
            "%s, KV %s: %s tells tokens apart only where a context has more of them than the "
            "keys of a group have channels, which %lld of %lld have not; give longer contexts, or "
            "another --kv-policy",
            what, label, s->evict.policy->name, (long long)h->flat, (long long)h->evicted);
}

void dq_kv_report_warn(dq_logger *logger, const char *what, const dq_kv_spec *s,
                       const dq_kv_cached *h)
{
    char label[DQ_KV_LABEL];
    dq_kv_report_shares x = dq_kv_report_shares_of(s, h);
    const double least = ceil((s->sink + s->recent) / s->evict.keep);
    dq_kv_report_label(label, sizeof label, s);
    if (dq_kv_has_codes(s) && x.lowbit < 0.5)
        dq_logger_warn(
            logger,
            "%s, KV %s: only %.1f %% of the keys that scored rows read were codes; sequences, and "
            "windows of layers, that are short against --kv-sink %d, --kv-recent %d and pages of "
            "%d tokens stay unquantized",
            what, label, 100 * x.lowbit, s->sink, s->recent, DQ_PAGE_TOKENS);
    if (!x.measured || !s->evict.policy) return;
    if (x.cut < 0.5 && (s->evict.tokens || s->evict.keep < 1))
        dq_logger_warn(
            logger,
            "%s, KV %s: only %.1f %% of the context tokens are in contexts that are longer "
            "than their budget; nothing was evicted of the others",
            what, label, 100 * x.cut);
    if (h->raised)
        dq_logger_warn(
            logger,
            "%s, KV %s: the budget of %lld of %lld contexts was raised to sink + recent = %lld. "
            "Contexts of %.0f tokens (of a text, --ctx %.0f) have it without that, and shorter "
            "ones "
            "with a smaller --kv-recent",
            what, label, (long long)h->raised, (long long)h->evicted,
            (long long)s->sink + s->recent, least, 2 * least);
    dq_kv_report_warn_policy(logger, what, s, h);
}
