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

void dq_kv_report_logit(json_t *o, dq_logit_spec s)
{
    dq_row_writer w = dq_row_json(o);
    dq_kv_report_logit_rows(&w, &s, NULL);
}

json_t *dq_kv_report_math_json(dq_math m)
{
    json_t *o = json_object();
    json_object_set_new(o, "linear", json_string(dq_num_name[m.linear]));
    json_object_set_new(o, "qk", json_string(dq_num_name[m.qk]));
    json_object_set_new(o, "pv", json_string(dq_num_name[m.pv]));
    json_object_set_new(o, "kv", json_string(dq_num_name[m.kv]));
    return o;
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

static json_t *count(bool there, int64_t n)
{
    return there ? json_integer(n) : json_null();
}

json_t *dq_kv_report_json(const dq_kv_spec *s, const dq_kv_cached *h)
{
    dq_kv_report_shares x = dq_kv_report_shares_of(s, h);
    json_t *o = dq_kv_spec_json(s), *bytes = json_object();
    json_object_set_new(bytes, "codes", count(x.measured, h->bytes.codes));
    json_object_set_new(bytes, "scales", count(x.measured, h->bytes.scales));
    json_object_set_new(bytes, "unquantized", count(x.measured, h->bytes.unquantized));
    json_object_set_new(bytes, "index", count(x.measured, h->bytes.index));
    json_object_set_new(o, "contexts", json_integer(h->contexts));
    json_object_set_new(o, "bytes_held", count(x.measured, x.bytes_cached));
    json_object_set_new(o, "bytes", bytes);
    json_object_set_new(o, "bytes_per_token", dq_document_real(x.bytes_per_token));
    json_object_set_new(o, "baseline_bytes", count(x.measured, h->baseline));
    json_object_set_new(o, "ratio_held", dq_document_real(x.ratio_cached));
    json_object_set_new(o, "saves_nothing",
                        x.measured ? json_boolean(x.saves_nothing) : json_null());
    json_object_set_new(o, "ratio_payload", dq_document_real(x.ratio_payload));
    json_object_set_new(o, "lowbit_fraction", dq_document_real(x.lowbit));
    json_object_set_new(o, "kept_fraction", dq_document_real(x.kept));
    json_object_set_new(o, "kvpress_ratio", dq_document_real(x.kvpress));
    json_object_set_new(o, "raised", count(s->evict.policy != NULL, h->raised));
    json_object_set_new(o, "gap_min", h->evicted ? dq_document_real(h->gap_min) : json_null());
    return o;
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
            "%s, KV %s: only %.1f %% of the keys that scored rows read were codes; sequences "
            "that are short against --kv-sink %d, --kv-recent %d and pages of %d tokens stay "
            "unquantized",
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
