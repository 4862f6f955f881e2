/* html_size: KL divergence over what a setting takes, every setting of all documents of a page in one section: over bits per weight
 * and over bytes of weights, all of them; over the bytes of the cache, those that change it. The table has the numbers.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_settings.h"

#include <math.h>
#include <string.h>

enum { WIDE = 460, HIGH = 310 };

typedef double size_of(const dq_html_setting *s);

static double bits(const dq_html_setting *s)
{
    return dq_html_weight_bits(s->row);
}

static double megabytes(const dq_html_setting *s)
{
    return dq_html_real(json_object_get(s->row->j, "weights"), "file_bytes") / 1e6;
}

static double share(const dq_html_setting *s)
{
    return *s->row->kv ? dq_html_cache_share(s->row) : (double)NAN;
}

/* One colour an axis, one mark a model. */
typedef struct points {
    double *x, *y;
    int n;
} points;

/* Where the settings of the model of setting `first` end; those of a model stand together. */
static int model_end(const dq_html_setting *all, int n, int first)
{
    int end = first + 1;
    while (end < n && strcmp(all[end].model, all[first].model) == 0) end++;
    return end;
}

static points collect(dq_html *h, const dq_html_setting *all, int n, int axis, size_of *size)
{
    points p = {dq_alloc(h->a, (size_t)n, sizeof *p.x, h->p->err),
                dq_alloc(h->a, (size_t)n, sizeof *p.y, h->p->err), 0};
    for (int i = 0; p.x && p.y && i < n; i++) {
        const double x = size(&all[i]);
        if ((int)all[i].axis != axis || !isfinite(x) || !(all[i].kld > 0)) continue;
        p.x[p.n] = x;
        p.y[p.n++] = all[i].kld;
    }
    return p;
}

static dq_picture_style style_of(int model, int axis)
{
    static const int colours[DQ_HTML_AXES] = {0, 1, 2, 3, 4, 6};
    return (dq_picture_style){colours[axis], model, 0};
}

/* Least and largest KLD that a logarithm has. */
static void reach_of(double reach[2], const dq_html_setting *all, int n)
{
    reach[0] = reach[1] = (double)NAN;
    for (int i = 0; i < n; i++) {
        if (!(all[i].kld > 0)) continue;
        reach[0] = fmin(reach[0], all[i].kld); /* a number beside NaN is the less and the greater */
        reach[1] = fmax(reach[1], all[i].kld);
    }
}

/* Whether settings differ in a size; a picture over one size alone says nothing. */
static bool differ(const dq_html_setting *all, int n, size_of *size)
{
    double first = (double)NAN;
    for (int i = 0; i < n; i++) {
        const double x = size(&all[i]);
        if (!isfinite(x) || !(all[i].kld > 0)) continue;
        if (isnan(first)) first = x;
        if (x != first) return true;
    }
    return false;
}

static void picture(dq_html *h, const dq_html_setting *all, int n, size_of *size, const char *axis,
                    const char *caption)
{
    dq_picture c;
    double reach[2];
    if (!differ(all, n, size)) return;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    reach_of(reach, all, n);
    dq_html_loss_axis(&c, reach[0], reach[1]);
    dq_picture_set(&c,
                   "set ylabel \"KL divergence, nats per token\"\nset xlabel \"%s\"\n"
                   "set offsets graph 0.05, graph 0.05, 0, 0\n",
                   axis);
    for (int first = 0, end, m = 0; first < n; first = end, m++) {
        end = model_end(all, n, first);
        for (int a = 0; a < DQ_HTML_AXES; a++) {
            const points p = collect(h, all + first, end - first, a, size);
            dq_picture_marks(&c, style_of(m, a), p.n, p.x, p.y);
        }
    }
    dq_picture_end(&c, dq_html_words(h, "KL divergence of every setting over %s.", axis));
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "%s", caption);
    dq_picture_figure_end(h->p);
}

static void legend(dq_html *h, const dq_html_setting *all, int n)
{
    const char *const *names = dq_html_axis_names;
    const bool several = model_end(all, n, 0) < n;
    dq_picture_legend_begin(h->p);
    for (int a = 0; a < DQ_HTML_AXES; a++) {
        bool there = false;
        for (int i = 0; i < n; i++) there = there || (int)all[i].axis == a;
        if (there) dq_picture_legend_bar(h->p, style_of(0, a).colour, names[a]);
    }
    for (int i = 0, m = 0; several && i < n; i = model_end(all, n, i), m++)
        dq_picture_legend_item(h->p, (dq_picture_style){6, m, 0}, all[i].model);
    dq_picture_legend_end(h->p);
}

static void setting_row(dq_html *h, const dq_html_setting *s, const char *model)
{
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, model);
    dq_html_page_cell(h->p, dq_html_words(h, "%s%s%s", dq_html_axis_names[s->axis],
                                          *s->kind ? ", " : "", s->kind));
    dq_html_page_cell(h->p, s->label);
    dq_html_size_cells(h, json_object_get(s->row->j, "weights"));
    dq_html_real_cell(h, share(s));
    dq_html_real_cell(h, s->kld);
    dq_html_real_cell(h, dq_html_real(s->verdict, "loss"));
    dq_html_interval_cell(h, s->verdict);
    dq_html_page_cell(h->p, dq_interval_decision_name[s->is]);
    dq_html_page_cell(h->p, dq_html_settings_where(h, s));
    dq_html_page_html(h->p, "</tr>\n");
}

static void table(dq_html *h, const dq_html_setting *all, int n)
{
    static const char *const titles[] = {"<model",        "<what",    "<setting", "bits per weight",
                                         "file bytes",    "share",    "KLD",      "loss",
                                         "95 % interval", "<verdict", "<task",    NULL};
    dq_html_page_table(h->p,
                       "Every setting of the run; share: bytes of the KV cache as a share of 16 "
                       "bits for every element of every token; loss: nats of NLL.",
                       titles);
    for (int i = 0; i < n; i++)
        setting_row(h, &all[i],
                    i && strcmp(all[i].model, all[i - 1].model) == 0 ? "" : all[i].model);
    dq_html_page_table_end(h->p);
}

void dq_html_size(dq_html_part *part, int n)
{
    int n_all;
    const dq_html_setting *all = dq_html_settings_of(part, n, &n_all);
    if (!differ(all, n_all, bits) && !differ(all, n_all, megabytes) && !differ(all, n_all, share))
        return;
    dq_html *h = &part->h;
    dq_html_page_section(h->p, "size", "KL divergence over size");
    legend(h, all, n_all);
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    picture(h, all, n_all, bits, "bits per weight",
            "Over bits per weight, every setting. Above one another stand settings of the same "
            "weights.");
    picture(h, all, n_all, megabytes, "megabytes of weight files",
            "Over the bytes of the files of weights.");
    picture(h, all, n_all, share, "bytes of the KV cache / bytes at 16 bits",
            "Over the bytes that the KV cache takes, settings that change it.");
    dq_html_page_html(h->p, "</div>\n");
    table(h, all, n_all);
    dq_html_page_section_end(h->p);
}
