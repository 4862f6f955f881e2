/* html_part: see html_part.h. Look-ups never fail: what is absent or of another type is NaN or "", and
 * its cell a dash.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_part.h"

#include "base/os.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *dq_html_last(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    return path + n;
}

/* Steps by which a name grows where another item has it too: the path, its file, its number. */
static const char *longer_name(dq_html *h, int i, const char *key, int step)
{
    const dq_html_item *x = &h->item[i];
    const char *path = dq_html_text(x->j, key);
    if (step == 0) return *path ? path : x->name;
    if (step == 1) return dq_html_words(h, "%s (%s)", x->name, dq_html_last(x->in->name));
    return dq_html_words(h, "%s, %d", x->name, i + 1);
}

static bool is_twice(const dq_html *h, int i)
{
    for (int k = 0; k < h->n; k++) {
        if (k != i && strcmp(h->item[k].name, h->item[i].name) == 0) return true;
    }
    return false;
}

static dq_status name_items(dq_html *h, const char *key, dq_err *err)
{
    bool *twice = dq_alloc(h->a, (size_t)h->n, sizeof *twice, err);
    if (!twice) return err->code;
    for (int i = 0; i < h->n; i++) {
        const char *path = dq_html_text(h->item[i].j, key);
        h->item[i].name = *path ? dq_html_last(path) : dq_html_words(h, "result %d", i + 1);
    }
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < h->n; i++) twice[i] = is_twice(h, i);
        DQ_TRY(dq_os_check_stop(err));
        for (int i = 0; i < h->n; i++) {
            if (twice[i]) h->item[i].name = longer_name(h, i, key, step);
        }
    }
    return err->code;
}

dq_status dq_html_in(const dq_report_input *in, dq_err *err)
{
    if (*in->name && (err->code == DQ_DAMAGED || err->code == DQ_MISMATCH))
        dq_in(err, "%s: ", in->name);
    return err->code;
}

dq_status dq_html_items(dq_html *h, const char *key, dq_html_check_result *check, dq_err *err)
{
    size_t total = 0;
    for (int i = 0; i < h->n_in; i++)
        total += json_array_size(json_object_get(h->in[i].document, "results"));
    h->item = dq_alloc(h->a, total, sizeof *h->item, err);
    if (!h->item) return err->code;
    for (int i = 0; i < h->n_in; i++) {
        const json_t *j;
        size_t k;
        json_array_foreach(json_object_get(h->in[i].document, "results"), k, j)
        {
            char where[40];
            snprintf(where, sizeof where, "results[%zu]", k);
            if (check(j, where, err) != DQ_OK) return dq_html_in(&h->in[i], err);
            h->item[h->n++] = (dq_html_item){.j = j, .in = &h->in[i]};
        }
    }
    return name_items(h, key, err);
}

dq_status dq_html_check(const json_t *object, const char *key, dq_html_need need, const char *where,
                        dq_err *err)
{
    static const char *const words[] = {
        [DQ_NEED_TEXT] = "text",
        [DQ_NEED_OBJECT] = "an object",
        [DQ_NEED_OBJECT_OR_NULL] = "an object or null",
        [DQ_NEED_LIST] = "a list",
        [DQ_NEED_NUMBER] = "a number",
        [DQ_NEED_NUMBER_OR_NULL] = "a number or null",
        [DQ_NEED_BOOL] = "true or false",
    };
    const json_t *x = json_object_get(object, key);
    const bool fits = need == DQ_NEED_TEXT             ? json_is_string(x)
                      : need == DQ_NEED_OBJECT         ? json_is_object(x)
                      : need == DQ_NEED_OBJECT_OR_NULL ? json_is_object(x) || json_is_null(x)
                      : need == DQ_NEED_LIST           ? json_is_array(x)
                      : need == DQ_NEED_NUMBER         ? json_is_number(x)
                      : need == DQ_NEED_NUMBER_OR_NULL ? json_is_number(x) || json_is_null(x)
                                                       : json_is_boolean(x);
    if (fits) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "%s: \"%s\" is %s (expected %s). Is the document cut or edited?", where, key,
                   x ? "of another type" : "missing", words[need]);
}

static dq_status check_members(const json_t *object, const char *where, const dq_html_members *m,
                               dq_err *err)
{
    char key[64];
    for (const char *name = m->names; *name;) {
        const size_t n = strcspn(name, " ");
        snprintf(key, sizeof key, "%.*s", (int)n, name);
        DQ_TRY(dq_html_check(object, key, m->need, where, err));
        name += n + (name[n] == ' ');
    }
    return DQ_OK;
}

/* Of every object at the end of `path`. */
static dq_status check_path(const json_t *object, const char *path, const char *where,
                            const dq_html_members *m, dq_err *err)
{
    const size_t n = strcspn(path, ".");
    const bool each = n > 2 && path[n - 1] == ']';
    char key[64], inside[160];
    size_t i;
    const json_t *x;
    if (!*path) return check_members(object, where, m, err);
    const char *rest = path + n + (path[n] == '.');
    snprintf(key, sizeof key, "%.*s", (int)(each ? n - 2 : n), path);
    x = json_object_get(object, key);
    if (!each) {
        snprintf(inside, sizeof inside, "%s.%s", where, key);
        return check_path(x, rest, inside, m, err);
    }
    const json_t *list = x;
    json_array_foreach(list, i, x)
    {
        snprintf(inside, sizeof inside, "%s.%s[%zu]", where, key, i);
        DQ_TRY(check_path(x, rest, inside, m, err));
    }
    return DQ_OK;
}

dq_status dq_html_check_members(const json_t *object, const char *where,
                                const dq_html_members *table, dq_err *err)
{
    for (const dq_html_members *m = table; m->path; m++)
        DQ_TRY(check_path(object, m->path, where, m, err));
    return DQ_OK;
}

double dq_html_real(const json_t *object, const char *key)
{
    const json_t *x = json_object_get(object, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

double dq_html_real_at(const json_t *list, size_t i)
{
    const json_t *x = json_array_get(list, i);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

const char *dq_html_text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

const json_t *dq_html_member(const dq_html *h, int i, const char *key)
{
    return json_object_get(h->item[i].j, key);
}

double dq_html_metric(const json_t *object, const char *key, double *std_err)
{
    const json_t *m = json_object_get(object, key);
    if (std_err) *std_err = dq_html_real(m, "stderr");
    return dq_html_real(m, "value");
}

void dq_html_json_words(dq_html *h, const json_t *v)
{
    char number[64];
    if (json_is_string(v)) {
        dq_html_page_text(h->p, json_string_value(v));
    } else if (json_is_integer(v)) {
        dq_html_page_html(h->p, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        snprintf(number, sizeof number, "%.6g", json_real_value(v));
        dq_html_page_text(h->p, number);
    } else {
        dq_html_page_text(h->p, json_is_true(v) ? "yes" : json_is_false(v) ? "no" : "–");
    }
}

void dq_html_json_cell(dq_html *h, const json_t *v)
{
    dq_html_page_html(h->p, "<td>");
    dq_html_json_words(h, v);
    dq_html_page_html(h->p, "</td>");
}

void dq_html_count_cell(dq_html *h, double n)
{
    if (isfinite(n))
        dq_html_page_cellf(h->p, "%.0f", n);
    else
        dq_html_page_cellf(h->p, "–");
}

void dq_html_real_cell(dq_html *h, double x)
{
    dq_html_page_value(h->p, x, (double)NAN);
}

void dq_html_ends_cell(dq_html *h, double low, double high)
{
    if (isfinite(low) && isfinite(high))
        dq_html_page_html(h->p, "<td class=\"n\">%.3g to %.3g</td>", low, high);
    else
        dq_html_page_cellf(h->p, "–");
}

void dq_html_token_cell(dq_html *h, const json_t *place, const char *text, const char *id)
{
    const json_t *token = json_object_get(place, text);
    if (json_is_string(token))
        dq_html_page_cell(h->p, dq_html_words(h, "\"%s\"", json_string_value(token)));
    else
        dq_html_page_cell(h->p, dq_html_words(h, "#%.0f", dq_html_real(place, id)));
}

void dq_html_size_cells(dq_html *h, const json_t *object)
{
    const double bits = dq_html_real(object, "bits_per_weight");
    if (isfinite(bits))
        dq_html_page_cellf(h->p, "%.3f", bits);
    else
        dq_html_page_cellf(h->p, "–");
    dq_html_count_cell(h, dq_html_real(object, "file_bytes"));
}

void dq_html_interval_cell(dq_html *h, const json_t *object)
{
    const json_t *ends = json_object_get(object, "interval");
    const double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1);
    if (isfinite(low) && isfinite(high))
        dq_html_page_cellf(h->p, "%+.4f to %+.4f", low, high);
    else
        dq_html_page_cellf(h->p, "–");
}

void dq_html_metric_cell(dq_html *h, const json_t *object, const char *key)
{
    const json_t *ends = json_object_get(json_object_get(object, key), "interval");
    double se, x = dq_html_metric(object, key, &se);
    const double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1);
    if (se != 0 || !isfinite(low) || !isfinite(high) || !isfinite(x))
        dq_html_page_value(h->p, x, se);
    else if (high <= x)
        dq_html_page_cellf(h->p, "%.4f (≥ %.4f)", x, low);
    else
        dq_html_page_cellf(h->p, "%.4f (≤ %.4f)", x, high);
}

void dq_html_token_axis(dq_picture *c, double min, double max)
{
    if (!(max > min && min > 0)) return;
    dq_picture_set(c, "set logscale x 2\nset xrange [%g:%g]\nset xtics (", min / 1.1, max * 1.1);
    double x = exp2(floor(log2(min)));
    for (int n = 0; x <= max; x *= max / min > 64 ? 4 : 2) {
        if (x < min) continue;
        if (x >= 1024 && fmod(x, 1024) == 0)
            dq_picture_set(c, "%s\"%gK\" %g", n++ ? ", " : "", x / 1024, x);
        else
            dq_picture_set(c, "%s\"%g\" %g", n++ ? ", " : "", x, x);
    }
    dq_picture_set(c, ")\n");
}

void dq_html_score_axis(dq_picture *c, double min, double max)
{
    if (!isfinite(min)) return; /* there is nothing to draw */
    const double span = max > min ? max - min : 0.2, unit = pow(10, floor(log10(span)));
    const double step = unit * (span < 1.99 * unit ? 0.2 : span < 4.99 * unit ? 1 : 2);
    if (!(max > min))
        dq_picture_set(c, "set yrange [%g:%g]\n", min > 0.1 ? min - 0.1 : -0.02, min + 0.1);
    dq_picture_set(c, "set ytics 0,%g,1\n", step);
}

void dq_html_loss_axis(dq_picture *c, double min, double max)
{
    enum { DECADES = 100 }; /* what is beyond has no place in a picture */
    double low = fmax(log10(min / 2), -DECADES), high = fmin(log10(max * 2), DECADES);
    if (!isfinite(min)) return;
    if (floor(high) < ceil(low)) low = floor(low);
    dq_picture_set(c, "set logscale y\nset format y \"10^{%%T}\"\nset yrange [%g:%g]\n",
                   pow(10, low), pow(10, high));
}

void dq_html_layer_axis(dq_picture *c, double last)
{
    double step = 1;
    while (last / step > 12) step *= 2;
    dq_picture_set(c, "set xlabel \"layer\"\nset xrange [%g:%g]\nset xtics 0,%g\n", -0.4 * step,
                   last + 0.4 * step, step);
}

const char *dq_html_words(dq_html *h, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    char *s = n < 0 ? NULL : dq_alloc(h->a, (size_t)n + 1, 1, h->p->err);
    if (s) vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return s ? s : "";
}

void dq_html_list_add(dq_html *h, dq_strbuf *list, const char *text)
{
    if (list->n) dq_strbuf_add(list, ", ", 2, h->p->err);
    dq_strbuf_add(list, text, strlen(text), h->p->err);
}

const char *dq_html_list_end(dq_html *h, dq_strbuf *list)
{
    const char *s = list->n ? dq_text(h->a, list->s, list->n, h->p->err) : NULL;
    dq_block_free(list->s);
    return s ? s : "";
}
