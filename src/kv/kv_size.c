/* What a form is follows from widths and codes alone.
 * SPDX-License-Identifier: MIT */
#include "kv/kv.h"

#include <math.h>
#include <string.h>

enum { DQ_KV_SIZE_CONTEXT = 1 << 24 }; /* tries of all numbers of tokens take a second */

dq_kv_page_form dq_kv_page_form_of(const dq_kv_spec *spec, bool values, int head_dim)
{
    const int64_t cols = (head_dim + 15) / 16 * 16;
    const int bits = values ? spec->v_bits : spec->k_bits;
    dq_kv_page_form form = {.bits = bits,
                            .plain_floats = (values ? cols : head_dim) * DQ_PAGE_TOKENS};
    if (bits == 16) return form;
    form.group = (int)cols;
    form.has_lows = values && spec->quant == DQ_KV_MIXED;
    const int64_t run = form.has_lows ? 2 * (int64_t)spec->group : bits <= 4 ? spec->group : cols;
    if (dq_kv_by_channel(spec, values)) {
        form.set_scales = 2 * (int64_t)head_dim;
    } else {
        if (run < head_dim) form.group = (int)run;
        form.n_scales = (head_dim + form.group - 1) / form.group * (form.has_lows ? 2 : 1);
    }
    form.code_bytes = cols * DQ_PAGE_TOKENS * bits / 8;
    return form;
}

int64_t dq_kv_page_scale_bytes(const dq_kv_page_form *form, int64_t n_sets, bool wide)
{
    return (form->n_scales * DQ_PAGE_TOKENS + n_sets * form->set_scales) * (wide ? 4 : 2);
}

int64_t dq_kv_page_capacity(int64_t n)
{
    int64_t room = 8;
    while (room < n) room *= 2;
    return room;
}

/* Tokens of a list stand in the order of their positions: sinks, then what is coded, then what is
 * not. How many of the last are kept is the policy's choice, so the most that any number of them
 * takes counts. Where lists share a budget, they have whole pages but for less than one in all
 * (dq_kv_budget_of_groups), so that sums over lists follow from the number of pages. */

const dq_kv_size_row dq_kv_size_rows[DQ_KV_SIZE_ROWS] = {
    {1.0 / 2, 8, -1}, {1.0 / 4, 4, -1}, {1.0 / 8, 6, -1}, {1.0 / 16, 4, 0}};

int dq_kv_size_first(double size)
{
    int i = 0;
    while (i < DQ_KV_SIZE_ROWS - 1 && dq_kv_size_rows[i].size > 1.1 * size) i++;
    return i;
}

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t pages_of(int64_t tokens)
{
    return (tokens + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
}

static int64_t pages_between(int64_t from, int64_t to)
{
    return to > from ? pages_of(to) - from / DQ_PAGE_TOKENS : 0;
}

typedef struct cut {
    int64_t n, sinks, safe; /* tokens; the first ones; all that always stay */
    int64_t coded;          /* positions sinks .. coded - 1 are due as codes */
    int64_t sources;        /* pages that these stand on */
} cut;

static cut cut_of(const dq_kv_spec *s, int64_t context)
{
    cut c = {.n = context, .sinks = least_of(s->sink, context)};
    c.safe = least_of(c.sinks + s->recent, context);
    c.coded = c.sinks;
    if (!dq_kv_has_codes(s)) return c;
    const int64_t end = dq_kv_coded_end(s, (int32_t)context - 1 + dq_kv_ahead(s));
    if (end > c.sinks) c.coded = least_of(end, context);
    c.sources = pages_between(c.sinks, c.coded);
    return c;
}

typedef struct tally {
    int64_t pages, plain, coded; /* pages; those with numbers that are not codes, with codes */
    int64_t sets, sinks;         /* of per-channel codes; tokens that stand beside codes */
} tally;

static int64_t bytes_of(const dq_kv_spec *s, const dq_kv_shape *m, const tally *t)
{
    int64_t bytes = 0;
    for (int values = 0; values < 2; values++) {
        const dq_kv_page_form f = dq_kv_page_form_of(s, values, m->head_dim);
        const int64_t plain = f.plain_floats * dq_kv_dense_bytes(s);
        if (f.code_bytes == 0) {
            bytes += t->pages * plain;
            continue;
        }
        const int64_t scales = dq_kv_page_scale_bytes(&f, 0, false);
        const int64_t set = dq_kv_page_scale_bytes(&f, 1, false) - scales;
        bytes += t->plain * plain + t->coded * (f.code_bytes + scales) + t->sets * set +
                 t->sinks * m->head_dim * dq_kv_dense_bytes(s);
    }
    return bytes * (m->n_kv / m->n_groups) + t->pages * DQ_KV_PAGE_INDEX;
}

/* Those of layers without a window. */
static int64_t lists_of(const dq_kv_shape *m)
{
    return (int64_t)(m->n_layers - m->n_windows) * m->n_groups;
}

/* Uncoded tokens among k kept ones, at least and at most. */
static void open_of(int64_t open[2], const dq_kv_spec *s, const cut *c, int64_t k)
{
    const int64_t all = c->n - c->coded;
    open[1] = least_of(all, k - least_of(c->sinks, k));
    open[0] = k == c->n ? open[1] : least_of(open[1], least_of(all, s->recent));
}

/* Of one list. */
static int64_t of_equal_list(const dq_kv_spec *s, const dq_kv_shape *m, const cut *c, int64_t k)
{
    int64_t open[2], most = 0;
    open_of(open, s, c, k);
    for (int64_t i = open[0]; i <= open[1]; i++) {
        const int64_t sinks = least_of(c->sinks, k), end = k - i;
        tally t = {.pages = pages_of(k), .coded = pages_between(sinks, end)};
        const bool both = t.coded && i && end % DQ_PAGE_TOKENS;
        t.plain = t.pages - t.coded + both;
        t.sinks = t.coded ? sinks % DQ_PAGE_TOKENS : 0;
        t.sets = k == c->n ? c->sources : least_of(end - sinks, c->sources + t.coded - 1);
        if (!t.coded) t.sets = 0;
        const int64_t bytes = bytes_of(s, m, &t);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Of all layers with a window, which hold the same pages. */
static int64_t of_windows(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context)
{
    cut c = cut_of(s, context);
    const int64_t n = dq_kv_window_cached(m->window, context), gone = context - n;
    if (m->n_windows == 0) return 0;
    if (gone) { /* whole pages: what is left stands as at the start */
        c.sinks = c.sinks > gone ? c.sinks - gone : 0;
        c.coded = c.coded > gone + c.sinks ? c.coded - gone : c.sinks;
        c.n = n;
        c.sources = pages_between(c.sinks, c.coded);
    }
    return m->n_windows * m->n_groups * of_equal_list(s, m, &c, n);
}

/* All share the same number; some end in a shorter page, some need one more for uncoded tokens. */
static int64_t of_sharing_lists(const dq_kv_spec *s, const dq_kv_shape *m, const cut *c, int64_t k)
{
    const int64_t lists = lists_of(m), safe = pages_of(c->safe);
    const int64_t over = (k - safe * DQ_PAGE_TOKENS) * lists;
    const bool whole = c->n % DQ_PAGE_TOKENS == 0;
    const int64_t pools = s->evict.budget == DQ_KV_BUDGET_ADAPTIVE ? m->n_layers - m->n_windows : 1;
    int64_t open[2];
    open_of(open, s, c, k);
    tally t = {.pages = lists * safe};
    if (over > 0) t.pages += pages_of(over) + pools - 1 + (whole ? 0 : lists * k / c->n);
    const bool filled = over >= 0 && whole && pools == 1;
    const int64_t empty =
        filled ? t.pages * DQ_PAGE_TOKENS - lists * k : DQ_PAGE_TOKENS * pools - 1;
    /* Pages of sinks alone; uncoded tokens end whole pages, which hold nothing else in a list
     * without codes */
    const int64_t sinks = c->sinks / DQ_PAGE_TOKENS;
    int64_t plain = pages_of(open[1]);
    if (plain < (c->sinks % DQ_PAGE_TOKENS + open[1]) / DQ_PAGE_TOKENS)
        plain = (c->sinks % DQ_PAGE_TOKENS + open[1]) / DQ_PAGE_TOKENS;
    plain += sinks;
    if (over < 0 && plain < safe) plain = safe;
    t.plain = least_of(lists * plain + least_of(empty, lists), t.pages);
    t.coded = t.pages - lists * (open[0] / DQ_PAGE_TOKENS + sinks);
    t.sets =
        least_of(lists * (k - least_of(c->sinks, k) - open[0]), lists * (c->sources - 1) + t.coded);
    t.sinks = lists * (c->sinks % DQ_PAGE_TOKENS);
    return bytes_of(s, m, &t);
}

int64_t dq_kv_size_whole(const dq_kv_shape *m, int64_t context)
{
    const int64_t tokens = context * (m->n_layers - m->n_windows) +
                           dq_kv_window_cached(m->window, context) * m->n_windows;
    return tokens * m->n_kv * m->head_dim * 4;
}

int64_t dq_kv_size_bytes(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context, int64_t kept)
{
    const cut c = cut_of(s, context);
    const bool share = s->evict.budget != DQ_KV_BUDGET_UNIFORM;
    const int64_t list =
        DQ_KV_LIST_INDEX + dq_kv_page_capacity(pages_of(context)) * DQ_KV_POINTER_INDEX;
    const int64_t rest = m->n_layers * m->n_groups * list + of_windows(s, m, context);
    if (share && kept < context) return rest + of_sharing_lists(s, m, &c, kept);
    return rest + lists_of(m) * of_equal_list(s, m, &c, least_of(kept, context));
}

int64_t dq_kv_size_tokens(const dq_kv_spec *s, const dq_kv_shape *m, int64_t context, double bytes,
                          int64_t *least)
{
    const cut c = cut_of(s, context);
    int64_t fewest = INT64_MAX;
    for (int64_t k = context - 1; k > c.safe; k--) {
        const int64_t need = dq_kv_size_bytes(s, m, context, k);
        if ((double)need <= bytes) return k;
        if (need < fewest) fewest = need;
    }
    if (least) *least = fewest;
    return 0;
}

double dq_kv_size_share(int64_t kept, int64_t context)
{
    const double share = (double)kept / (double)context;
    if (kept >= context) return 1;
    for (double unit = 10; unit < 1e15; unit *= 10) {
        const double x = floor(share * unit + 1e-6) / unit;
        if ((int64_t)ceil(x * (double)context - 1e-9) == kept) return x;
    }
    return share;
}

static bool parse_size(double *size, const char *text, const char *end)
{
    char *at;
    double below = 1;
    *size = dq_real_parse(text, &at);
    if (at == text) return false;
    if (*at == '/') {
        const char *from = at + 1;
        below = dq_real_parse(from, &at);
        if (at == from) return false;
    }
    *size /= below;
    return at == end && below > 0 && *size > 0 && *size < 1;
}

dq_status dq_kv_size_parse(double *size, int64_t *context, const char *text, dq_err *err)
{
    const char *end = text + strcspn(text, "@");
    char *at = NULL;
    *context = 0;
    if (!parse_size(size, text, end))
        return dq_fail(
            err, DQ_USAGE,
            "expected a share of the bytes of 16 bits, above 0 and below 1 (1/8 or 0.125).");
    if (!*end) return DQ_OK;
    const double n = dq_real_parse(end + 1, &at);
    if (at == end + 1 || *at || !(n >= 1 && n <= DQ_KV_SIZE_CONTEXT) || n != floor(n))
        return dq_fail(err, DQ_USAGE, "expected a number of tokens after the @, at most %d.",
                       DQ_KV_SIZE_CONTEXT);
    *context = (int64_t)n;
    return DQ_OK;
}
