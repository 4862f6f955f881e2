/* html_settings: see html_settings.h. Rows of all documents go into one list, sorted by model, margin, axis, kind, document, task
 * and size, so that a group is a run of it.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dq_html_axis_names[] = {
    "logits", "weights", "KV cache, codes", "KV cache, eviction", "KV cache, both", "several"};

double dq_html_weight_bits(const dq_html_row *r)
{
    return dq_html_real(json_object_get(r->j, "weights"), "bits_per_weight");
}

double dq_html_cache_share(const dq_html_row *r)
{
    const json_t *kv = json_object_get(r->j, "kv");
    const double all = dq_html_real(kv, "baseline_bytes");
    return all > 0 ? dq_html_real(kv, "bytes_held") / all : (double)NAN;
}

bool dq_html_saves_nothing(const dq_html_setting *s)
{
    return dq_html_cache_share(s->row) >= 1;
}

/* A container compared with another model than itself has other weights. */
static bool has_other_weights(const dq_html_row *r)
{
    const char *whose = dq_html_text(r->j, "reference_weights");
    if (*whose) return strcmp(whose, "own") != 0;
    return strcmp(dq_html_text(r->j, "reference"), r->model) != 0;
}

static dq_html_axis axis_of(const dq_html_row *r)
{
    const bool weights = has_other_weights(r), logits = r->bits < 16, cache = *r->kv;
    if (weights + logits + cache != 1) return DQ_HTML_MIXED;
    if (weights) return DQ_HTML_WEIGHTS;
    if (logits) return DQ_HTML_LOGITS;
    if (!*r->kept) return DQ_HTML_CODES;
    return dq_html_real(json_object_get(r->j, "kv"), "k_bits") >= 16 &&
                   dq_html_real(json_object_get(r->j, "kv"), "v_bits") >= 16
               ? DQ_HTML_EVICTED
               : DQ_HTML_CACHE;
}

static const char *label_of(dq_html *h, const dq_html_setting *s)
{
    const dq_html_row *r = s->row;
    const char *logits =
        r->bits < 16 ? dq_html_words(h, "logits %d bits %s", r->bits, r->granularity) : "";
    if (s->axis == DQ_HTML_LOGITS) return dq_html_words(h, "%d bits", r->bits);
    if (s->axis == DQ_HTML_WEIGHTS) return r->model;
    if (s->axis != DQ_HTML_MIXED) return r->kv;
    return dq_html_words(h, "%s%s%s%s%s", r->model, *logits ? ", " : "", logits,
                         *r->kv ? ", KV " : "", r->kv);
}

static dq_interval_decision decision_of(const char *word)
{
    for (int is = DQ_WITHIN; is <= DQ_EXCEEDS; is++) {
        if (strcmp(word, dq_interval_decision_name[is]) == 0) return (dq_interval_decision)is;
    }
    return DQ_INCONCLUSIVE;
}

static bool fill(dq_html_setting *s, dq_html_part *part, const dq_html_row *r, bool several)
{
    dq_html *h = &part->h;
    *s = (dq_html_setting){.h = h,
                           .row = r,
                           .document = several ? h->in->name : "",
                           .kld = dq_html_metric(r->metrics, "kld_nats", NULL),
                           .verdict = json_object_get(r->j, "verdict")};
    s->margin = dq_html_real(s->verdict, "margin");
    s->is = decision_of(dq_html_text(s->verdict, "is"));
    if (!isfinite(s->kld) || !isfinite(s->margin)) return false;
    s->axis = axis_of(r);
    s->model = dq_html_text(r->j, "reference");
    if (!*s->model) s->model = r->model;
    const char *math = strcmp(r->math, "f32") != 0 && *r->math ? r->math : "";
    const char *granularity = s->axis == DQ_HTML_LOGITS ? r->granularity : "";
    s->kind = dq_html_words(h, "%s%s%s", granularity, *granularity && *math ? ", " : "", math);
    s->label = label_of(h, s);
    s->size = s->axis == DQ_HTML_LOGITS    ? r->bits
              : s->axis == DQ_HTML_WEIGHTS ? dq_html_weight_bits(r)
              : s->axis == DQ_HTML_MIXED   ? (double)NAN
                                           : dq_html_cache_share(r);
    return true;
}

/* Unknown sizes last. */
static int by_size(double x, double y)
{
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return x > y ? -1 : x < y;
}

static int by_group(const dq_html_setting *x, const dq_html_setting *y)
{
    int d = strcmp(x->model, y->model);
    if (!d) d = by_size(x->margin, y->margin);
    if (!d) d = (int)x->axis - (int)y->axis;
    if (!d) d = strcmp(x->kind, y->kind);
    if (!d) d = x->h == y->h ? 0 : x->h < y->h ? -1 : 1; /* parts of one array */
    return d ? d : strcmp(x->row->task, y->row->task);
}

static int compare(const void *a, const void *b)
{
    const dq_html_setting *x = a, *y = b;
    int d = by_group(x, y);
    if (!d) d = by_size(x->size, y->size);
    return d ? d : x->row < y->row ? -1 : x->row > y->row;
}

dq_html_setting *dq_html_settings_of(dq_html_part *part, int n_parts, int *n)
{
    size_t all = 0;
    *n = 0;
    for (int i = 0; i < n_parts; i++) all += part[i].h.row ? (size_t)part[i].h.n : 0;
    if (!all) return NULL;
    dq_html_setting *list = dq_alloc(part->h.a, all, sizeof *list, part->h.p->err);
    if (!list) return NULL;
    for (int i = 0; i < n_parts; i++) {
        for (int k = 0; part[i].h.row && k < part[i].h.n; k++)
            *n += fill(&list[*n], &part[i], &part[i].h.row[k], n_parts > 1);
    }
    qsort(list, (size_t)*n, sizeof *list, compare);
    return *n ? list : NULL;
}

int dq_html_settings_group(const dq_html_setting *at, int n)
{
    int i = 1;
    while (i < n && by_group(&at[0], &at[i]) == 0) i++;
    return n < i ? n : i;
}

const char *dq_html_settings_where(dq_html *h, const dq_html_setting *s)
{
    return dq_html_words(h, "%s%s%s", s->document, *s->document ? ", " : "", s->row->task);
}

const dq_html_setting *dq_html_settings_lowest(const dq_html_setting *group, int n)
{
    const dq_html_setting *found = NULL;
    for (int i = 0; i < n; i++) {
        const bool within = group[i].is == DQ_WITHIN && isfinite(group[i].size) &&
                            !dq_html_saves_nothing(&group[i]);
        if (!within && group[i].axis == DQ_HTML_LOGITS) break;
        if (within) found = &group[i];
    }
    return found;
}
