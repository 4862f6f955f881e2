/* html_quantize: what containers are: bits per weight, and the signal-to-quantization-noise ratio of their
 * tensors by role and layer.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290, ROLES = 16, WORST = 10 };

/* ----- reading ----- */

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
    static const dq_html_members members[] = {
        {"", "tensors packed params packed_params weight_bytes file_bytes bits_per_weight",
         DQ_NEED_NUMBER},
        {"", "rows", DQ_NEED_LIST},
        {"rows[]", "name", DQ_NEED_TEXT},
        {"rows[]", "bits rows cols bytes bits_per_weight", DQ_NEED_NUMBER},
        {"rows[]", "sqnr_db", DQ_NEED_NUMBER_OR_NULL},
        {0}};
    return dq_html_check_members(result, where, members, err);
}

dq_status dq_html_quantize_read(dq_html *h, dq_err *err)
{
    DQ_TRY(dq_html_items(h, "path", check_result, err));
    h->about =
        "SQNR is the signal-to-quantization-noise ratio of a tensor: 10 log10 of the sum of "
        "its squares over the sum of the squared errors. It says what was done to the weights, "
        "not what the model lost: <code>dq eval</code> does.";
    return err->code;
}

static const json_t *rows_of(const dq_html *h, int i)
{
    return json_object_get(h->item[i].j, "rows");
}

static bool is_packed(const json_t *row)
{
    return json_is_number(json_object_get(row, "group_size"));
}

static double sqnr(const json_t *row)
{
    return is_packed(row) ? dq_html_real(row, "sqnr_db") : (double)NAN;
}

/* The packed tensor with the lowest SQNR; NULL: none is known. */
static const json_t *worst_of(const dq_html *h, int i)
{
    const json_t *row, *worst = NULL;
    size_t k;
    json_array_foreach(rows_of(h, i), k, row)
    {
        if (isfinite(sqnr(row)) && (!worst || sqnr(row) < sqnr(worst))) worst = row;
    }
    return worst;
}

bool dq_html_has_sqnr(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (worst_of(h, i)) return true;
    }
    return false;
}

static void db_cell(dq_html *h, double x)
{
    if (isfinite(x))
        dq_html_page_cellf(h->p, "%.2f", x);
    else
        dq_html_page_cellf(h->p, "–");
}

/* ----- containers ----- */

static const json_t *settings_of(const dq_html *h, int i)
{
    return json_object_get(h->item[i].in->document, "settings");
}

/* The width of the packed tensors, or the least and the most; as was asked where none is packed. */
static void bits_cell(dq_html *h, int i)
{
    const json_t *row;
    size_t k;
    double least = (double)INFINITY, most = 0;
    json_array_foreach(rows_of(h, i), k, row)
    {
        if (!is_packed(row)) continue;
        least = fmin(least, dq_html_real(row, "bits"));
        most = fmax(most, dq_html_real(row, "bits"));
    }
    if (least < most)
        dq_html_page_cellf(h->p, "%.0f to %.0f", least, most);
    else if (least > most)
        dq_html_json_cell(h, json_object_get(settings_of(h, i), "bits"));
    else
        dq_html_page_cellf(h->p, "%.0f", most);
}

static void group_cell(dq_html *h, const json_t *set)
{
    if (json_array_size(json_object_get(set, "rules")))
        dq_html_page_cell(h->p, dq_html_words(h, "%s, rules", dq_html_text(set, "group")));
    else
        dq_html_json_cell(h, json_object_get(set, "group"));
}

static void container_row(dq_html *h, int i)
{
    const json_t *j = h->item[i].j, *set = settings_of(h, i), *worst = worst_of(h, i);
    const json_t *in = json_array_get(json_object_get(h->item[i].in->document, "inputs"), 0);
    const double packed = dq_html_real(j, "packed_params"), bytes = dq_html_real(in, "file_bytes");
    char hash[17];
    snprintf(hash, sizeof hash, "%s", dq_html_text(j, "content_sha256"));
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, h->item[i].name);
    dq_html_page_cellf(h->p, "%.3f", dq_html_real(j, "bits_per_weight"));
    dq_html_count_cell(h, dq_html_real(j, "file_bytes"));
    dq_html_page_cell(h->p, dq_html_last(dq_html_text(in, "path")));
    bits_cell(h, i);
    group_cell(h, set);
    dq_html_json_cell(h, json_object_get(set, "scale"));
    dq_html_page_cellf(h->p, "%.0f of %.0f", dq_html_real(j, "packed"), dq_html_real(j, "tensors"));
    dq_html_real_cell(h, packed > 0 ? 8 * dq_html_real(j, "packed_bytes") / packed : (double)NAN);
    dq_html_count_cell(h, dq_html_real(j, "weight_bytes"));
    dq_html_real_cell(h, bytes > 0 ? dq_html_real(j, "file_bytes") / bytes : (double)NAN);
    db_cell(h, sqnr(worst));
    dq_html_page_html(h->p, "<td class=\"l\"><code>");
    dq_html_page_text(h->p, *hash ? hash : "–");
    dq_html_page_html(h->p, "</code></td></tr>\n");
}

/* A container that was only planned has no hash. */
static bool any_planned(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (!*dq_html_text(h->item[i].j, "content_sha256")) return true;
    }
    return false;
}

void dq_html_containers(dq_html *h)
{
    static const char *const titles[] = {"<container",
                                         "bits per weight",
                                         "file bytes",
                                         "<made from",
                                         "bits",
                                         "group",
                                         "scale",
                                         "packed tensors",
                                         "bits per packed weight",
                                         "payload bytes",
                                         "file / source",
                                         "worst SQNR, dB",
                                         "<content SHA-256",
                                         NULL};
    dq_html_page_table(
        h->p,
        dq_html_words(h,
                      "What each container holds. Bits per weight count codes, scales and "
                      "what stays dense, over all parameters; bits per packed weight those of "
                      "the packed tensors alone. File bytes include alignment and metadata.%s",
                      any_planned(h) ? " Without a hash: planned (--dry-run), not written; "
                                       "its sizes are estimates."
                                     : ""),
        titles);
    for (int i = 0; i < h->n; i++) container_row(h, i);
    dq_html_page_table_end(h->p);
}

/* ----- roles and layers ----- */

/* "model.layers.12.self_attn.q_proj.weight": layer 12, role "q_proj". */
typedef struct place {
    double layer; /* NaN: of no layer */
    const char *role;
    int role_len;
} place;

static place place_of(const json_t *row)
{
    const char *name = dq_html_text(row, "name"), *end = name + strlen(name), *part;
    place p = {(double)NAN, name, 0};
    for (part = name; *part; part += strcspn(part, "."), part += *part == '.') {
        const size_t n = strcspn(part, ".");
        if (isnan(p.layer) && n > 0 && n < 6 && strspn(part, "0123456789") == n)
            p.layer = strtod(part, NULL);
    }
    if (end - name > 7 && strcmp(end - 7, ".weight") == 0) end -= 7;
    for (part = end; part > name && part[-1] != '.';) part--;
    p.role = part;
    p.role_len = (int)(end - part);
    return p;
}

typedef struct roles {
    struct {
        const char *name;
        int len;
    } at[ROLES];
    int n;
    bool more; /* than there is room for */
} roles;

static int role_index(const roles *r, const place *p)
{
    for (int k = 0; k < r->n; k++) {
        if (r->at[k].len == p->role_len &&
            strncmp(r->at[k].name, p->role, (size_t)p->role_len) == 0)
            return k;
    }
    return -1;
}

/* Roles of packed tensors, in the order in which they first occur in any container. */
static roles roles_of(const dq_html *h)
{
    roles r = {.n = 0};
    for (int i = 0; i < h->n; i++) {
        const json_t *row;
        size_t k;
        json_array_foreach(rows_of(h, i), k, row)
        {
            const place p = place_of(row);
            if (!isfinite(sqnr(row)) || role_index(&r, &p) >= 0) continue;
            if (r.n == ROLES) {
                r.more = true;
                continue;
            }
            r.at[r.n].name = p.role;
            r.at[r.n++].len = p.role_len;
        }
    }
    return r;
}

typedef struct point {
    double layer, db;
} point;

static int by_layer(const void *a, const void *b)
{
    const point *x = a, *y = b;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* A line of the picture: the tensors of a role by layer. */
static void draw_role(dq_html *h, dq_picture *c, int i, const roles *r, int role)
{
    const json_t *row;
    size_t k, n = 0;
    const size_t all = json_array_size(rows_of(h, i));
    point *at = dq_alloc(h->a, all, sizeof *at, h->p->err);
    double *x = dq_alloc(h->a, all, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, all, sizeof *y, h->p->err);
    if (!at || !x || !y) return;
    json_array_foreach(rows_of(h, i), k, row)
    {
        const place p = place_of(row);
        if (role_index(r, &p) == role && isfinite(sqnr(row)) && !isnan(p.layer))
            at[n++] = (point){p.layer, sqnr(row)};
    }
    qsort(at, n, sizeof *at, by_layer); /* layer 10 comes before 2 in names */
    for (k = 0; k < n; k++) {
        x[k] = at[k].layer;
        y[k] = at[k].db;
    }
    dq_picture_line(c, (dq_picture_style){role, role, role / 7}, (int)n, x, y, NULL, NULL);
}

static void legend(dq_html *h, const roles *r)
{
    dq_picture_legend_begin(h->p);
    for (int k = 0; k < r->n; k++)
        dq_picture_legend_item(h->p, (dq_picture_style){k, k, k / 7},
                               dq_html_words(h, "%.*s", r->at[k].len, r->at[k].name));
    dq_picture_legend_end(h->p);
}

/* The last layer with a packed tensor; -1: there is nothing to draw. */
static double last_layer(const dq_html *h, int i)
{
    const json_t *row;
    size_t k;
    double last = -1;
    json_array_foreach(rows_of(h, i), k, row)
    {
        if (isfinite(sqnr(row))) last = fmax(last, place_of(row).layer);
    }
    return last;
}

static void picture(dq_html *h, int i, const roles *r)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set ylabel \"SQNR, dB\"\nset offsets 0,0,graph 0.08,graph 0.08\n");
    dq_html_layer_axis(&c, last_layer(h, i));
    for (int k = 0; k < r->n; k++) draw_role(h, &c, i, r, k);
    dq_picture_end(&c, dq_html_words(h,
                                     "SQNR of the packed tensors of %s over layers, a line for "
                                     "each role. The tables hold the numbers.",
                                     h->item[i].name));
    legend(h, r);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, h->item[i].name);
    dq_html_page_html(
        h->p, ": SQNR of its packed tensors by layer, in dB; higher is closer to the source.");
    dq_picture_figure_end(h->p);
}

static void role_row(dq_html *h, int i, const char *name, const roles *r, int role)
{
    const json_t *row;
    size_t k;
    double min = HUGE_VAL, max = -HUGE_VAL, at = (double)NAN, n = 0;
    json_array_foreach(rows_of(h, i), k, row)
    {
        const place p = place_of(row);
        const double x = sqnr(row);
        if (role_index(r, &p) != role || !isfinite(x)) continue;
        n++;
        max = fmax(max, x);
        if (x < min) at = p.layer;
        min = fmin(min, x);
    }
    if (n == 0) return;
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, name);
    dq_html_page_cell(h->p, dq_html_words(h, "%.*s", r->at[role].len, r->at[role].name));
    dq_html_count_cell(h, n);
    db_cell(h, min);
    dq_html_count_cell(h, at);
    db_cell(h, max);
    dq_html_page_html(h->p, "</tr>\n");
}

void dq_html_sqnr(dq_html *h)
{
    static const char *const titles[] = {"<container", "<role",       "tensors", "lowest, dB",
                                         "in layer",   "highest, dB", NULL};
    const roles r = roles_of(h);
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int i = 0; i < h->n; i++) {
        if (last_layer(h, i) >= 0) picture(h, i, &r);
    }
    dq_html_page_html(h->p, "</div>\n");
    dq_html_page_table(
        h->p,
        dq_html_words(h,
                      "SQNR of the packed tensors of each role, the lowest and the highest "
                      "over layers.%s",
                      r.more ? " Only the first 16 roles; the table of all tensors has the "
                               "others."
                             : ""),
        titles);
    for (int i = 0; i < h->n; i++) {
        for (int k = 0; k < r.n; k++) role_row(h, i, k ? "" : h->item[i].name, &r, k);
    }
    dq_html_page_table_end(h->p);
}

/* ----- tensors ----- */

static void tensor_row(dq_html *h, const char *name, const json_t *row)
{
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, name);
    dq_html_page_cell(h->p, dq_html_text(row, "name"));
    dq_html_page_cellf(h->p, "%.0f × %.0f", dq_html_real(row, "rows"), dq_html_real(row, "cols"));
    dq_html_page_cell(h->p, json_is_true(json_object_get(row, "skipped"))
                                ? dq_html_words(h, "%s, skipped", dq_html_text(row, "encoding"))
                                : dq_html_text(row, "encoding"));
    dq_html_count_cell(h, dq_html_real(row, "bits"));
    dq_html_count_cell(h, dq_html_real(row, "group_size"));
    dq_html_page_cellf(h->p, "%.3f", dq_html_real(row, "bits_per_weight"));
    dq_html_count_cell(h, dq_html_real(row, "bytes"));
    db_cell(h, sqnr(row));
    dq_html_page_html(h->p, "</tr>\n");
}

static const char *const tensor_titles[] = {
    "<container", "<tensor",         "shape", "<stored as", "bits",
    "group",      "bits per weight", "bytes", "SQNR, dB",   NULL};

static int by_sqnr(const void *a, const void *b)
{
    const double x = sqnr(*(const json_t *const *)a), y = sqnr(*(const json_t *const *)b);
    return x < y ? -1 : x > y;
}

void dq_html_worst(dq_html *h)
{
    dq_html_page_table(h->p,
                       dq_html_words(h,
                                     "The packed tensors with the lowest SQNR, at most %d of each "
                                     "container.",
                                     WORST),
                       tensor_titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *row, **all;
        size_t k;
        int n = 0;
        all = dq_alloc(h->a, json_array_size(rows_of(h, i)), sizeof(const json_t *), h->p->err);
        if (!all) return;
        json_array_foreach(rows_of(h, i), k, row)
        {
            if (isfinite(sqnr(row))) all[n++] = row;
        }
        qsort(all, (size_t)n, sizeof *all, by_sqnr);
        for (int w = 0; w < n && w < WORST; w++) tensor_row(h, w ? "" : h->item[i].name, all[w]);
    }
    dq_html_page_table_end(h->p);
}

void dq_html_tensors(dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        const json_t *row;
        size_t k;
        dq_html_page_fold(h->p, NULL, false);
        dq_html_page_text(h->p, h->item[i].name);
        dq_html_page_fold_inside(h->p);
        dq_html_page_table(h->p, "All tensors, as they are stored.", tensor_titles);
        json_array_foreach(rows_of(h, i), k, row) tensor_row(h, k ? "" : h->item[i].name, row);
        dq_html_page_table_end(h->p);
        dq_html_page_fold_end(h->p);
    }
}
