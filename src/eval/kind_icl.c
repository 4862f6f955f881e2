/* Scores of a run and query are averaged over the shots first, as these share both; what is left
 * is a table of runs by queries.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"
#include "tasks/documents.h"
#include "tasks/tasks.h"

#include <math.h>
#include <string.h>

static bool has_shots(const dq_icl_plan *p, int shots)
{
    for (int i = 0; i < p->n_shots; i++) {
        if (p->shots[i] == shots) return true;
    }
    return false;
}

/* Whether the row is shown and has the same task, in any order of demonstrations. */
static bool is_beside(const dq_eval *e, int row, int other)
{
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[row]);
    const dq_eval_source *o = dq_eval_source_of(e, &e->row[other]);
    const dq_icl_settings *a = s->settings, *b = o->settings;
    return e->row[other].shown && s->kind == o->kind && a->task == b->task;
}

dq_icl_range dq_icl_range_of(const dq_eval *e, int row, int from)
{
    const dq_icl_plan *p = e->ids[e->row[row].ids].own;
    dq_icl_range all = {.n = 0}, range = {.from = from};
    for (int i = 0; i < p->n_shots; i++) {
        bool common = true;
        for (int k = 0; k < e->n_rows; k++)
            common = common &&
                     (!is_beside(e, row, k) || has_shots(e->ids[e->row[k].ids].own, p->shots[i]));
        if (common) all.shots[all.n++] = p->shots[i];
    }
    if (all.n && !from) range.from = (all.shots[all.n - 1] + 1) / 2;
    for (int i = 0; i < all.n; i++) {
        if (all.shots[i] >= range.from) range.shots[range.n++] = all.shots[i];
    }
    return range;
}

/* Sum of squared deviations of n means, `step` apart, each of `width` numbers `stride` apart. */
static double squares(const double *x, int64_t n, int64_t step, int64_t width, int64_t stride,
                      double mean)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double total = 0;
        for (int64_t k = 0; k < width; k++) total += x[i * step + k * stride] - mean;
        sum += total / (double)width * (total / (double)width);
    }
    return sum;
}

static double squared(double x)
{
    return x * x;
}

/* The squared error times runs * queries, and its degrees of freedom. */
static double combined(double r, double q, double e, int64_t runs, int64_t queries, double *df)
{
    const double of_r = (double)(runs - 1), of_q = (double)(queries - 1);
    const double sum = r + q - e;
    if (sum >= r && sum >= q) {
        *df = squared(sum) / (squared(r) / of_r + squared(q) / of_q + squared(e) / (of_r * of_q));
        return sum;
    }
    *df = r > q ? of_r : of_q;
    return r > q ? r : q;
}

dq_icl_plateau dq_icl_plateau_of(const double *x, int64_t runs, int64_t queries, double low,
                                 double high)
{
    const double n = (double)(runs * queries), of_r = (double)(runs - 1),
                 of_q = (double)(queries - 1);
    dq_icl_plateau o = {.mean = {0, (double)NAN, queries}, .interval = dq_interval_none};
    double all = 0, df = of_q;
    for (int64_t i = 0; i < runs * queries; i++) o.mean.value += x[i];
    o.mean.value /= n;
    if (queries < 2) return o;
    for (int64_t i = 0; i < runs * queries; i++) all += squared(x[i] - o.mean.value);
    const double by_run = (double)queries * squares(x, runs, queries, queries, 1, o.mean.value);
    const double by_query = (double)runs * squares(x, queries, 1, runs, queries, o.mean.value);
    const double left = fmax(0, all - by_run - by_query);
    double error = by_query / of_q;
    if (runs > 1)
        error = combined(by_run / of_r, by_query / of_q, left / (of_r * of_q), runs, queries, &df);
    if (error <= 1e-24) { /* rounding of sums is no spread */
        o.mean.std_err = 0;
        o.interval = dq_interval_still(o.mean.value, queries, low, high);
        return o;
    }
    o.mean.std_err = sqrt(error / n);
    o.mean.clusters = (int64_t)fmax(1, df) + 1;
    o.interval = dq_interval_t(o.mean.value, o.mean.std_err, o.mean.clusters);
    return o;
}

/* Adds sign times the row's scores, summed over the range, to x. */
static dq_status add_scores(double *x, const dq_eval *e, const dq_eval_row *row,
                            const dq_icl_range *range, double sign, dq_err *err)
{
    const dq_icl_plan *p = e->ids[row->ids].own;
    const int64_t n = p->n_queries;
    double *score = dq_block_new((size_t)(p->n_blocks * n), sizeof *score, err);
    if (!score) return err->code;
    dq_eval_icl_kind.judge(e, row, dq_eval_quoted(dq_eval_source_of(e, row)), score);
    for (int64_t b = 0; b < p->n_blocks; b++) {
        const dq_icl_block *of = &p->block[b];
        bool in = false;
        for (int i = 0; i < range->n; i++) in = in || (!of->order && of->shots == range->shots[i]);
        for (int64_t q = 0; in && q < n; q++) x[of->run * n + q] += sign * score[b * n + q];
    }
    dq_block_free(score);
    return DQ_OK;
}

dq_status dq_icl_plateau_find(dq_icl_plateau *out, const dq_eval *e, int before, int after,
                              const dq_icl_range *range, dq_err *err)
{
    const dq_eval_row *row = &e->row[after];
    const dq_icl_plan *p = e->ids[row->ids].own;
    const dq_icl_settings *s = dq_eval_source_of(e, row)->settings;
    const int64_t n = s->runs * p->n_queries;
    double *x = dq_block_new((size_t)n, sizeof *x, err);
    if (!x) return err->code;
    add_scores(x, e, row, range, 1, err);
    if (err->code == DQ_OK && before >= 0) add_scores(x, e, &e->row[before], range, -1, err);
    for (int64_t i = 0; i < n; i++) x[i] /= range->n;
    if (err->code == DQ_OK)
        *out = dq_icl_plateau_of(x, s->runs, p->n_queries, before < 0 ? 0 : -1, 1);
    dq_block_free(x);
    return err->code;
}

static const dq_icl_plan *plan_of(const dq_eval *e, const dq_eval_row *row)
{
    return e->ids[row->ids].own;
}

int dq_icl_pick(const dq_eval *e, const dq_eval_row *row, int metric, int64_t i)
{
    const dq_icl_data *d = dq_eval_source_of(e, row)->own;
    const dq_icl_plan *p = plan_of(e, row);
    const double *logp = row->logp + i * p->n_label_ids;
    if (metric == 0) return dq_icl_walk(p->label, d->n_labels, logp, p->alive);
    return dq_icl_likeliest(p->label, d->n_labels, logp);
}

dq_status dq_icl_scores(const dq_eval *e, const dq_eval_row *row, dq_icl_score *out, dq_err *err)
{
    const dq_icl_plan *p = plan_of(e, row);
    double *score = dq_block_new((size_t)(p->n_blocks * p->n_queries), sizeof *score, err);
    if (!score) return err->code;
    for (int metric = 0; metric < 2; metric++) {
        dq_eval_icl_kind.judge(e, row, metric, score);
        for (int64_t b = 0; b < p->n_blocks; b++) {
            int64_t right = 0;
            for (int64_t q = 0; q < p->n_queries; q++) right += score[b * p->n_queries + q] == 1;
            dq_mean m = dq_mean_share(right, p->n_queries);
            if (metric == 0)
                out[b].acc = m;
            else
                out[b].acc_ll = m;
        }
    }
    dq_block_free(score);
    return DQ_OK;
}

/* Run 0 is the first block of both sets. */
static bool counts(const dq_icl_block *b, int64_t shots, bool by_order)
{
    return b->shots == shots && (by_order ? b->run == 0 : b->order == 0);
}

dq_icl_point dq_icl_point_of(const dq_icl_plan *p, const dq_icl_score *score, int64_t shots,
                             bool by_order)
{
    dq_icl_point x = {.min = INFINITY, .max = -INFINITY};
    double sum = 0, squares = 0;
    for (int64_t b = 0; b < p->n_blocks; b++) {
        double acc = score[b].acc.value;
        if (!counts(&p->block[b], shots, by_order)) continue;
        x.blocks++;
        sum += acc;
        if (acc < x.min) x.min = acc;
        if (acc > x.max) x.max = acc;
    }
    x.mean = x.max > x.min ? sum / (double)x.blocks : x.max; /* equal ones have no deviation */
    for (int64_t b = 0; b < p->n_blocks; b++) {
        double off = score[b].acc.value - x.mean;
        if (counts(&p->block[b], shots, by_order)) squares += off * off;
    }
    x.std = x.blocks > 1 ? sqrt(squares / (double)(x.blocks - 1)) : (double)NAN;
    return x;
}

void dq_icl_cost(const dq_requests *q, int64_t *naive, int64_t *shared)
{
    *naive = *shared = 0;
    for (int64_t t = 0; t < q->n_shared_prefixes; t++) *shared += q->shared_prefix[t].n;
    for (int64_t i = 0; i < q->n_items; i++) {
        const dq_request *r = &q->req[q->at[i]];
        int64_t n = q->at[i + 1] - q->at[i];
        *naive += n * (dq_items_shared_prefix(q, i)->n + r->n_ctx);
        *shared += r->n_ctx;
        for (int64_t k = 0; k < n; k++) {
            *naive += r[k].n_cont - 1;
            *shared += r[k].n_cont - 1;
        }
    }
}

static const char between[] = "\n==\n";

static dq_status add(dq_strbuf *out, const char *s, dq_err *err)
{
    return dq_strbuf_add(out, s, strlen(s), err);
}

/* label NULL: a query, which ends without a space. */
static dq_status add_example(dq_strbuf *out, const dq_icl_task *task, const dq_icl_example *x,
                             const char *label, dq_err *err)
{
    DQ_TRY(add(out, task->x_prefix, err));
    DQ_TRY(dq_strbuf_add(out, x->text, x->len, err));
    DQ_TRY(add(out, "\n", err));
    DQ_TRY(add(out, task->y_prefix, err));
    if (label) return add(out, label, err);
    out->n = dq_items_strip_end(out->s, out->n);
    return DQ_OK;
}

static dq_status add_demos(dq_strbuf *out, const dq_icl_task *task, const dq_icl_data *d,
                           const dq_icl_block *b, dq_err *err)
{
    for (int64_t i = 0; i < b->shots; i++) {
        const dq_icl_example *x = &d->demos.ex[b->demo[i]];
        DQ_TRY(add_example(out, task, x, d->label[x->label], err));
        DQ_TRY(add(out, between, err));
    }
    return DQ_OK;
}

typedef struct ids {
    int32_t *p; /* block */
    int64_t n;
} ids;

typedef struct span {
    const int32_t *p;
    int64_t n;
} span;

typedef struct maker {
    dq_eval *e;
    dq_arena *a;
    const dq_tokenizer *t;
    int64_t max_len, vocab;
    const dq_icl_settings *s;
    const dq_icl_data *d;
    int32_t *left; /* [n_left] demonstrations that are not too long */
    int64_t n_left;
    int64_t longest; /* ids of a label */
    dq_icl_plan *p;
    dq_icl_block *block; /* [n_blocks], with shared prefix and context */
    dq_shared_prefix *shared_prefix;
    span *ctx; /* [n_blocks * n_queries] */
    size_t cap_block, cap_prefix, cap_ctx;
    dq_strbuf buf;
} maker;

static dq_status encode(const maker *m, dq_bos bos, ids *out, dq_err *err)
{
    const char *s = m->buf.s ? m->buf.s : "";
    return dq_tokenizer_encode(m->t, s, m->buf.n, dq_items_bos_flags(m->t, bos, s, m->buf.n),
                               &out->p, &out->n, NULL, NULL, err);
}

/* Drops examples longer than 99 % of all. */
static dq_status drop_longest(maker *m, const dq_icl_pool *pool, bool labels, int32_t *left,
                              int64_t *n_left, dq_err *err)
{
    double *len = dq_alloc(m->a, 2 * (size_t)pool->n, sizeof *len, err);
    if (!len) return err->code;
    for (int64_t i = 0; i < pool->n; i++) {
        const dq_icl_example *x = &pool->ex[i];
        ids w = {0};
        m->buf.n = 0;
        DQ_TRY(add_example(&m->buf, m->s->task, x, labels ? m->d->label[x->label] : NULL, err));
        DQ_TRY(encode(m, DQ_BOS_OFF, &w, err));
        dq_block_free(w.p);
        len[i] = len[pool->n + i] = (double)w.n;
    }
    dq_stat_sort(len + pool->n, pool->n);
    double max = dq_stat_percentile(len + pool->n, pool->n, 0.99);
    *n_left = 0;
    for (int64_t i = 0; i < pool->n; i++) {
        if (len[i] <= max) left[(*n_left)++] = (int32_t)i;
    }
    return DQ_OK;
}

static int64_t common(const ids *a, const ids *b)
{
    int64_t n = 0;
    while (n < a->n && n < b->n && a->p[n] == b->p[n]) n++;
    return n;
}

static dq_status keep(const maker *m, const int32_t **out, const int32_t *p, int64_t n, dq_err *err)
{
    int32_t *copy = dq_alloc(m->a, (size_t)n, sizeof *copy, err);
    if (!copy) return err->code;
    if (n) memcpy(copy, p, (size_t)n * sizeof *copy);
    *out = copy;
    return dq_tokenizer_check_ids(copy, n, m->vocab, err);
}

/* Encodes every prompt of the block; w[n_queries]: the demonstrations alone. *fits: all fit with
 * their longest label. */
static dq_status encode_prompts(maker *m, const dq_icl_block *b, ids *w, bool *fits, dq_err *err)
{
    int64_t n = m->p->n_queries, capacity = m->max_len + 1 - m->longest;
    m->buf.n = 0;
    DQ_TRY(add_demos(&m->buf, m->s->task, m->d, b, err));
    DQ_TRY(encode(m, m->e->bos, &w[n], err));
    size_t demos = m->buf.n;
    *fits = w[n].n <= capacity;
    for (int64_t q = 0; *fits && q < n; q++) {
        m->buf.n = demos;
        DQ_TRY(add_example(&m->buf, m->s->task, &m->d->queries.ex[m->p->query[q]], NULL, err));
        DQ_TRY(encode(m, m->e->bos, &w[q], err));
        *fits = w[q].n <= capacity;
    }
    return DQ_OK;
}

/* The shared prefix is the common start of all prompts and the demonstrations; one id of each
 * prompt stays. */
static dq_status store_prompts(maker *m, const ids *w, dq_err *err)
{
    int64_t n = m->p->n_queries, b = m->p->n_blocks, shared_prefix = w[n].n;
    const int32_t *kept;
    for (int64_t q = 0; q < n; q++) {
        int64_t k = common(&w[q], &w[n]);
        if (w[q].n == 0)
            return dq_fail(err, DQ_MISMATCH, "a prompt gives no tokens in this tokenizer");
        if (k > w[q].n - 1) k = w[q].n - 1;
        if (k < shared_prefix) shared_prefix = k;
    }
    DQ_TRY(keep(m, &kept, w[n].p, shared_prefix, err));
    m->shared_prefix[b] = (dq_shared_prefix){.ids = kept, .n = shared_prefix, .end = (b + 1) * n};
    for (int64_t q = 0; q < n; q++) {
        DQ_TRY(keep(m, &kept, w[q].p + shared_prefix, w[q].n - shared_prefix, err));
        m->ctx[b * n + q] = (span){kept, w[q].n - shared_prefix};
    }
    return DQ_OK;
}

static dq_status add_block(maker *m, dq_icl_block b, bool *fits, dq_err *err)
{
    const int64_t n = m->p->n_queries;
    const size_t want = (size_t)m->p->n_blocks + 1;
    m->block = dq_grow(m->a, m->block, want, &m->cap_block, sizeof *m->block, err);
    m->shared_prefix =
        dq_grow(m->a, m->shared_prefix, want, &m->cap_prefix, sizeof *m->shared_prefix, err);
    m->ctx = dq_grow(m->a, m->ctx, want * (size_t)n, &m->cap_ctx, sizeof *m->ctx, err);
    if (!m->block || !m->shared_prefix || !m->ctx) return err->code;
    /* Demonstrations are the first of the run's permutation, perhaps reshuffled, in the order of
     * the settings. */
    int64_t shots = b.shots;
    int32_t *perm = dq_block_new((size_t)m->n_left, sizeof *perm, err);
    int32_t *again = dq_block_new((size_t)shots, sizeof *again, err);
    int32_t *demo = dq_alloc(m->a, (size_t)shots, sizeof *demo, err);
    if (perm && again && demo) {
        dq_icl_permute(perm, m->n_left, m->s->seed, 1 + (uint64_t)b.run);
        for (int64_t i = 0; i < shots; i++) again[i] = (int32_t)i;
        if (b.order > 0)
            dq_icl_permute(again, shots, m->s->seed, (uint64_t)b.order << 32 | (uint64_t)shots);
        for (int64_t i = 0; i < shots; i++) demo[i] = m->left[perm[again[i]]];
        dq_icl_arrange(demo, shots, &m->d->demos, m->d->n_labels, m->s->order, err);
    }
    b.demo = demo;
    dq_block_free(perm);
    dq_block_free(again);
    if (err->code != DQ_OK) return err->code;
    ids *w = dq_block_new((size_t)n + 1, sizeof *w, err);
    if (!w) return err->code;
    if (encode_prompts(m, &b, w, fits, err) == DQ_OK && *fits && store_prompts(m, w, err) == DQ_OK)
        m->block[m->p->n_blocks++] = b;
    for (int64_t q = 0; q <= n; q++) dq_block_free(w[q].p);
    dq_block_free(w);
    return err->code;
}

/* If some number of shots does not fit, no larger one does: sets are nested. */
static dq_status make_blocks(maker *m, dq_err *err)
{
    static const int first[] = {1, 10, 25, 50, 100};
    const int n_first = sizeof first / sizeof first[0];
    bool fits = true;
    int n = m->s->n_shots ? m->s->n_shots : DQ_ICL_SHOTS;
    int64_t shots = 0;
    for (int i = 0; i < n; i++) {
        shots = m->s->n_shots ? m->s->shots[i] : i < n_first ? first[i] : 2 * shots;
        if (fits) {
            /* All blocks with so many shots, or none if one does not fit. */
            int64_t before = m->p->n_blocks;
            fits = shots <= m->n_left;
            for (int64_t r = 0; fits && r < m->s->runs; r++)
                DQ_TRY(add_block(m, (dq_icl_block){.run = r, .shots = shots}, &fits, err));
            for (int64_t k = 1; fits && k < m->s->orders; k++)
                DQ_TRY(add_block(m, (dq_icl_block){.order = k, .shots = shots}, &fits, err));
            if (fits)
                m->p->shots[m->p->n_shots++] = (int)shots;
            else
                m->p->n_blocks = before;
        }
        if (!fits && !m->s->n_shots) break;
        if (!fits) m->p->over[m->p->n_over++] = (int)shots;
    }
    if (m->p->n_shots > 0) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_OPTION},
                        "shots: not even %d fits (the model has %lld positions, the data %lld "
                        "demonstrations). Use fewer",
                        m->s->n_shots ? m->s->shots[0] : 1, (long long)m->max_len,
                        (long long)m->n_left);
}

/* One request per item and label; ids of queries and labels are shared. */
static dq_status make_requests(maker *m, dq_requests *out, dq_err *err)
{
    int64_t n_items = m->p->n_blocks * m->p->n_queries, n = m->d->n_labels, k = 0;
    dq_request *req = dq_alloc(m->a, (size_t)(n_items * n), sizeof *req, err);
    int64_t *at = dq_alloc(m->a, (size_t)n_items + 1, sizeof *at, err);
    if (!req || !at) return err->code;
    for (int64_t i = 0; i < n_items; i++) {
        for (int c = 0; c < n; c++) {
            const dq_icl_label *l = &m->p->label[c];
            req[k++] = (dq_request){.ctx = m->ctx[i].p,
                                    .n_ctx = m->ctx[i].n,
                                    .cont = l->ids,
                                    .n_cont = l->n_cont,
                                    .value = i * m->p->n_label_ids + l->at,
                                    .item = i,
                                    .choice = c};
        }
        at[i + 1] = k;
    }
    *out = (dq_requests){.req = req,
                         .at = at,
                         .n = k,
                         .n_items = n_items,
                         .n_values = n_items * m->p->n_label_ids,
                         .shared_prefix = m->shared_prefix,
                         .n_shared_prefixes = m->p->n_blocks};
    return DQ_OK;
}

static dq_status load_icl(dq_eval *e, dq_eval_source *s, dq_err *err)
{
    const dq_icl_settings *x = s->settings;
    dq_icl_data *d = dq_alloc(e->a, 1, sizeof *d, err);
    if (!d) return err->code;
    s->own = d;
    DQ_TRY(dq_icl_read(d, x->task, &(dq_icl_file){s->path, s->text, s->len}, &x->demos, e->a, err));
    s->items.n_bad = d->n_bad;
    s->items.first_bad = d->first_bad;
    return DQ_OK;
}

static dq_status make_plan(maker *m, dq_requests *req, dq_err *err)
{
    dq_icl_label *label;
    int labels = m->d->n_labels;
    DQ_TRY(dq_icl_labels(&label, m->d->label, labels, m->t, m->vocab, m->a, err));
    m->p->alive = dq_alloc(m->a, (size_t)labels, sizeof *m->p->alive, err);
    if (!m->p->alive) return err->code;
    m->p->label = label;
    m->p->n_label_ids = label[labels - 1].at + label[labels - 1].n_cont;
    for (int i = 0; i < labels; i++) {
        if (label[i].n_cont > m->longest) m->longest = label[i].n_cont;
    }
    const dq_icl_data *d = m->d;
    int32_t *left = dq_alloc(m->a, (size_t)d->queries.n, sizeof *left, err);
    int32_t *perm = dq_alloc(m->a, (size_t)d->queries.n, sizeof *perm, err);
    m->left = dq_alloc(m->a, (size_t)d->demos.n, sizeof *m->left, err);
    int64_t n = 0;
    if (!left || !perm || !m->left) return err->code;
    DQ_TRY(drop_longest(m, &d->demos, true, m->left, &m->n_left, err));
    DQ_TRY(drop_longest(m, &d->queries, false, left, &n, err));
    m->p->demos = m->n_left;
    m->p->demos_dropped = d->demos.n - m->n_left;
    m->p->queries_dropped = d->queries.n - n;
    dq_icl_permute(perm, n, m->s->seed, 0);
    for (int64_t i = 0; i < n; i++) perm[i] = left[perm[i]];
    m->p->query = perm;
    m->p->n_queries = n < m->s->queries ? n : m->s->queries;
    DQ_TRY(make_blocks(m, err));
    m->p->block = m->block;
    return make_requests(m, req, err);
}

static dq_status encode_icl(dq_eval *e, dq_eval_ids *out, dq_err *err)
{
    const dq_eval_source *s = &e->source[out->source];
    const dq_eval_model *em = &e->model[out->model];
    dq_icl_plan *p = dq_alloc(e->a, 1, sizeof *p, err);
    if (!p) return err->code;
    maker m = {.e = e,
               .a = e->a,
               .t = em->tok,
               .max_len = em->m->max_positions,
               .vocab = em->m->vocab,
               .s = s->settings,
               .d = s->own,
               .p = p};
    out->own = p;
    DQ_TRY(dq_items_bos_check(em->tok, e->bos, err));
    make_plan(&m, &out->req, err);
    dq_block_free(m.buf.s);
    if (err->code != DQ_OK) return err->code;
    /* Blocks share their queries, some of which may be copies. */
    const int64_t n = m.p->n_queries, all = m.p->n_blocks * n;
    const int32_t *of = NULL;
    uint64_t *key = dq_alloc(m.a, (size_t)n, sizeof *key, err);
    int32_t *cluster = dq_alloc(m.a, (size_t)all, sizeof *cluster, err);
    if (!key || !cluster) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const dq_icl_example *x = &m.d->queries.ex[m.p->query[i]];
        key[i] = dq_repeats_key(x->text, x->len);
    }
    DQ_TRY(dq_repeats_keys(&of, key, n, m.a, err));
    for (int64_t i = 0; i < all; i++) cluster[i] = of ? of[i % n] : (int32_t)(i % n);
    out->cluster = cluster;
    return DQ_OK;
}

static void judge_icl(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_icl_data *d = dq_eval_source_of(e, row)->own;
    const dq_icl_plan *p = e->ids[row->ids].own;
    for (int64_t i = 0; i < p->n_blocks * p->n_queries; i++)
        score[i] =
            dq_icl_pick(e, row, metric, i) == d->queries.ex[p->query[i % p->n_queries]].label;
}

static dq_status icl_words(const dq_eval *e, const dq_eval_ids *x, const dq_request *r,
                           dq_eval_words *out, dq_err *err)
{
    const dq_eval_source *s = &e->source[x->source];
    const dq_icl_settings *settings = s->settings;
    const dq_icl_data *d = s->own;
    const dq_icl_plan *p = x->own;
    const dq_icl_label *l = &p->label[r->choice];
    out->n_cont = l->n;
    DQ_TRY(add(&out->cont, l->text, err));
    const dq_icl_task *task = settings->task;
    DQ_TRY(add_demos(&out->ctx, task, d, &p->block[r->item / p->n_queries], err));
    return add_example(&out->ctx, task, &d->queries.ex[p->query[r->item % p->n_queries]], NULL,
                       err);
}

const dq_eval_kind dq_eval_icl_kind = {
    .metric = {"acc", "acc_ll"},
    .load = load_icl,
    .encode = encode_icl,
    .judge = judge_icl,
    .cluster = "query",
    .words = icl_words,
};
