/* html_rows: see html_rows.h. A label holds what differs among the rows of a task and nothing else;
 * colours go by model, marks and dashes tell the rows of a model apart.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_rows.h"

#include "base/os.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dq_html_main_metric(const dq_html_row *r)
{
    static const char *const known[] = {"acc", "exact_match"};
    const char *paper = dq_html_text(r->j, "paper_metric");
    if (*paper && json_object_get(r->metrics, paper)) return paper;
    for (int i = 0; i < 2; i++) {
        if (json_object_get(r->metrics, known[i])) return known[i];
    }
    return NULL;
}

const json_t *dq_html_first(const dq_html *h, const char *key)
{
    for (int i = 0; i < h->n; i++) {
        const json_t *x = json_object_get(h->row[i].j, key);
        if (json_is_object(x)) return x;
    }
    return NULL;
}

bool dq_html_any(const dq_html *h, const char *key)
{
    return dq_html_first(h, key) != NULL;
}

bool dq_html_shows_kv(const dq_html *h)
{
    return h->kv_differs || (h->n && *h->row[0].kv);
}

const char *dq_html_cluster(const dq_html *h)
{
    const char *how = dq_html_text(json_object_get(h->document, "settings"), "text_stderr");
    return strstr(how, "document") ? "document" : "window";
}

bool dq_html_first_of_task(const dq_html *h, int i)
{
    for (int k = 0; k < i; k++) {
        if (strcmp(h->row[k].task, h->row[i].task) == 0) return false;
    }
    return true;
}

/* Of the demonstrations. */
static const char *order_of(const dq_html_row *r)
{
    return dq_html_text(json_object_get(r->j, "icl"), "demo_order");
}

static bool same_line(const dq_html_row *a, const dq_html_row *b)
{
    return a->model_index == b->model_index && strcmp(a->task, b->task) == 0 &&
           strcmp(a->math, b->math) == 0 && strcmp(a->kv, b->kv) == 0 &&
           strcmp(order_of(a), order_of(b)) == 0 &&
           (a->bits == 16 || b->bits == 16 || strcmp(a->granularity, b->granularity) == 0);
}

/* Whether a line starts at row i: its first row with this granularity below 16 bits, or a row of 16 bits
 * that no other width continues. */
static bool starts_line(const dq_html *h, int i)
{
    const dq_html_row *r = &h->row[i];
    for (int k = 0; k < h->n; k++) {
        const dq_html_row *o = &h->row[k];
        if (k == i || !same_line(o, r)) continue;
        if (o->bits != 16 ? r->bits == 16 || k < i : r->bits == 16 && k < i) return false;
    }
    return true;
}

int dq_html_line(const dq_html *h, int first, int *index, int cap)
{
    const dq_html_row *f = &h->row[first];
    int n = 0;
    if (!f->starts_line) return 0;
    for (int bits = 16; bits > 0; bits--) {
        for (int i = 0; i < h->n && n < cap; i++) {
            if (h->row[i].bits != bits || !same_line(&h->row[i], f)) continue;
            index[n++] = i;
            break;
        }
    }
    return n;
}

/* Whether some values have a width that is dithered, 4 to 8 bits. In a list, "3|5*2", it stands after the colon, and numbers
 * after a star are layers. */
static bool has_wide_values(const json_t *kv)
{
    const char *widths = dq_html_text(kv, "widths"), *at = strchr(widths, ':');
    const double v = dq_html_real(kv, "v_bits");
    if (!widths[0]) return v >= 4 && v < 16;
    while (at && *at) {
        const bool layers = *at++ == '*';
        const size_t n = strspn(at, "0123456789");
        const long bits = n ? strtol(at, NULL, 10) : 0;
        if (!layers && bits >= 4 && bits < 16) return true;
        at += n;
    }
    return false;
}

/* Whether per-channel codes and dithered ones are the same. */
static bool is_undithered(const json_t *kv)
{
    const char *code = dq_html_text(kv, "quant");
    return (strcmp(code, "per-channel") == 0 || strcmp(code, "dither") == 0) &&
           !has_wide_values(kv);
}

/* "" where nothing is coded. */
static const char *code_of(const json_t *kv)
{
    const bool coded = dq_html_real(kv, "k_bits") < 16 || dq_html_real(kv, "v_bits") < 16;
    return !coded ? "" : is_undithered(kv) ? "per-channel" : dq_html_text(kv, "quant");
}

/* " rotated" or " unrotated" where `auto` would rotate otherwise: per-token codes of at most 4 bits, keys as per-channel codes, and
 * mixed codes. */
static const char *rotation_of(const json_t *kv)
{
    const json_t *r = json_object_get(kv, "rotate");
    const json_t *k = json_object_get(r, "k"), *v = json_object_get(r, "v");
    const bool token = strcmp(dq_html_text(kv, "quant"), "per-token") == 0;
    const bool mixed = strcmp(dq_html_text(kv, "quant"), "mixed") == 0;
    const bool usual_k = dq_html_real(kv, "k_bits") <= (token ? 4 : 8);
    const bool usual_v = (token || mixed) && dq_html_real(kv, "v_bits") <= (token ? 4 : 8);
    if (!json_is_boolean(k) || !json_is_boolean(v)) return "";
    if (json_is_true(k) == usual_k && json_is_true(v) == usual_v) return "";
    return json_is_true(k) || json_is_true(v) ? " rotated" : " unrotated";
}

/* Documents from before the type was named hold f32. */
static bool is_f32(const json_t *kv)
{
    const char *type = dq_html_text(kv, "dense_type");
    return !type[0] || strcmp(type, "f32") == 0;
}

/* What is not coded has 32 bits in f32; documents of before call that 16 too. */
static double width_of(const json_t *kv, const char *key)
{
    const double bits = dq_html_real(kv, key);
    return bits == 16 && is_f32(kv) ? 32 : bits;
}

/* "8:4 per-channel bf16 rotated", as tables of dq eval have it. */
static const char *codes_label(const json_t *kv, dq_arena *a, dq_err *err)
{
    const char *widths = dq_html_text(kv, "widths"), *code = code_of(kv);
    const char *type = dq_html_text(kv, "dense_type");
    const bool say = code[0] && strcmp(code, "per-token") != 0;
    const bool f32 = is_f32(kv);
    const bool dense = strcmp(type, "bf16") == 0 || (f32 && (code[0] || widths[0]));
    if (f32) type = "f32";
    if (!widths[0])
        widths = dq_textf(a, err, "%.0f:%.0f", width_of(kv, "k_bits"), width_of(kv, "v_bits"));
    return dq_textf(a, err, "%s%s%s%s%s%s", widths, say ? " " : "", say ? code : "",
                    dense ? " " : "", dense ? type : "", rotation_of(kv));
}

/* "h2o keep 0.5 heads"; "" where all tokens are kept. */
static const char *kept_label(const json_t *kv, dq_arena *a, dq_err *err)
{
    const double keep = dq_html_real(kv, "keep"), tokens = dq_html_real(kv, "tokens");
    const char *policy = dq_html_text(kv, "policy"), *budget = dq_html_text(kv, "budget");
    budget = budget[0] && strcmp(budget, "uniform") != 0 ? dq_textf(a, err, " %s", budget) : "";
    if (isfinite(tokens)) return dq_textf(a, err, "%s %.0f tokens%s", policy, tokens, budget);
    if (isfinite(keep) && keep < 1) return dq_textf(a, err, "%s keep %g%s", policy, keep, budget);
    return "";
}

/* Fills what a row says of its cache. */
static dq_status read_kv(dq_html_row *r, const json_t *kv, dq_arena *a, dq_err *err)
{
    r->kv = r->kept = "";
    r->code = code_of(kv);
    r->undithered = is_undithered(kv);
    if (!isfinite(dq_html_real(kv, "k_bits")) || !isfinite(dq_html_real(kv, "v_bits")))
        return DQ_OK;
    const char *codes = codes_label(kv, a, err);
    r->kept = kept_label(kv, a, err);
    if (!codes || !r->kept) return err->code;
    if (!r->kept[0] && strcmp(codes, "32:32") == 0) return DQ_OK;
    r->kv = r->kept[0] ? dq_textf(a, err, "%s %s", codes, r->kept) : codes;
    return r->kv ? DQ_OK : err->code;
}

static dq_status read_row(dq_html *h, dq_html_row *r, const json_t *j, dq_err *err)
{
    static const dq_html_members members[] = {
        {"", "model task", DQ_NEED_TEXT}, {"", "metrics", DQ_NEED_OBJECT}, {0}};
    char where[40];
    double bits = dq_html_real(j, "logit_bits");
    snprintf(where, sizeof where, "results[%d]", (int)(r - h->row));
    DQ_TRY(dq_html_check_members(j, where, members, err));
    r->j = j;
    r->metrics = json_object_get(j, "metrics");
    r->model = dq_html_text(j, "model");
    r->task = dq_html_text(j, "task");
    r->granularity = dq_html_text(j, "logit_granularity");
    r->bits = bits >= 2 && bits <= 16 ? (int)bits : 16;
    r->math = dq_html_text(json_object_get(j, "math"), "linear");
    DQ_TRY(read_kv(r, json_object_get(j, "kv"), h->a, err));
    while (r->model_index < h->n_models && strcmp(h->model[r->model_index], r->model) != 0)
        r->model_index++;
    if (r->model_index == h->n_models) h->model[h->n_models++] = r->model;
    return DQ_OK;
}

static bool same_member(const json_t *a, const json_t *b, const char *key)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    return x == y || json_equal(x, y);
}

/* Whether rows differ in the codes of their caches, and in nothing else that makes a label. */
static bool other_code(const dq_html_row *a, const dq_html_row *b)
{
    static const char *const same[] = {"k_bits", "v_bits",     "widths", "policy", "keep",
                                       "tokens", "dense_type", "budget", NULL};
    const json_t *x = json_object_get(a->j, "kv"), *y = json_object_get(b->j, "kv");
    bool alike = a->model_index == b->model_index && strcmp(a->task, b->task) == 0 &&
                 a->bits == b->bits && strcmp(a->granularity, b->granularity) == 0 &&
                 strcmp(a->math, b->math) == 0 && strcmp(order_of(a), order_of(b)) == 0;
    for (int i = 0; alike && same[i]; i++) alike = same_member(x, y, same[i]);
    return alike && strcmp(a->code, b->code) != 0;
}

/* What the label of a row must say, because other rows of its task differ in it. */
typedef struct differences {
    bool bits, granularity, math, kv, code, order;
} differences;

static differences differences_of(const dq_html *h, const dq_html_row *r)
{
    differences d = {false, false, false, false, false, false};
    const char *granularity = NULL;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *o = &h->row[i];
        if (strcmp(o->task, r->task) != 0) continue;
        d.bits = d.bits || o->bits != r->bits;
        d.math = d.math || strcmp(o->math, r->math) != 0;
        d.kv = d.kv || strcmp(o->kv, r->kv) != 0;
        d.code = d.code || other_code(o, r);
        d.order = d.order || strcmp(order_of(o), order_of(r)) != 0;
        if (o->bits == 16) continue;
        d.granularity = d.granularity || (granularity && strcmp(granularity, o->granularity) != 0);
        granularity = o->granularity;
    }
    return d;
}

static dq_status name_row(dq_html *h, dq_html_row *r, dq_err *err)
{
    differences d = differences_of(h, r);
    bool granularity = d.granularity && r->bits != 16, order = d.order && *order_of(r);
    const char *bits = d.bits ? dq_textf(h->a, err, ", %d bits", r->bits) : "";
    r->line = dq_textf(h->a, err, "%s%s%s%s%s%s%s%s", granularity ? ", " : "",
                       granularity ? r->granularity : "", d.math ? ", " : "", d.math ? r->math : "",
                       d.kv ? ", KV " : "",
                       !d.kv    ? ""
                       : *r->kv ? r->kv
                                : "32:32",
                       order ? ", order " : "", order ? order_of(r) : "");
    if (!bits || !r->line) return err->code;
    r->label = dq_textf(h->a, err, "%s%s%s", r->model, bits, r->line);
    r->line = dq_textf(h->a, err, "%s%s", r->model, r->line);
    h->kv_differs = h->kv_differs || d.kv;
    h->codes_differ = h->codes_differ || d.code;
    return r->label && r->line ? DQ_OK : err->code;
}

/* A colour per model; within a model and a task, marks and dashes tell rows and lines apart. */
static void choose_styles(dq_html *h)
{
    enum { WIDTHS = 16 };
    for (int i = 0; i < h->n; i++) {
        dq_html_row *r = &h->row[i];
        int row = 0, line = 0, index[WIDTHS];
        r->starts_line = starts_line(h, i);
        for (int k = 0; k < i; k++) {
            const dq_html_row *o = &h->row[k];
            if (o->model_index != r->model_index || strcmp(o->task, r->task) != 0) continue;
            row++;
            line += o->starts_line;
        }
        r->n_line = dq_html_line(h, i, index, WIDTHS);
        r->style = (dq_picture_style){r->model_index, row, row};
        r->line_style = (dq_picture_style){r->model_index, r->model_index + line, line};
    }
}

dq_status dq_html_rows_read(dq_html *h, dq_err *err)
{
    const json_t *results = json_object_get(h->document, "results");
    size_t n = json_array_size(results);
    h->row = dq_alloc(h->a, n, sizeof *h->row, err);
    h->model = dq_alloc(h->a, n, sizeof *h->model, err);
    if (!h->row || !h->model) return err->code;
    for (size_t i = 0; i < n; i++, h->n++)
        if (read_row(h, &h->row[i], json_array_get(results, i), err) != DQ_OK)
            return dq_html_in(h->in, err);
    for (int i = 0; i < h->n; i++) {
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(name_row(h, &h->row[i], err));
    }
    choose_styles(h);
    h->about = dq_html_words(
        h,
        "%d row%s of results. Every row is compared with its reference: the same "
        "checkpoint at 16-bit logits and a cache of 32 bits, or the model given with "
        "<code>--ref</code>. A container without either is compared with nothing. ± is one "
        "standard error over the clusters of a row (items, queries, documents or windows); where "
        "no item differs, a 95 %% bound stands instead.",
        h->n, h->n == 1 ? "" : "s");
    return err->code;
}
