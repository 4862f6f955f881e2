/* Answers are forced or generated, then judged; attention has passes of its own.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"

#include <math.h>
#include <string.h>

typedef struct run {
    dq_eval *e;
    dq_eval_row *row;
    dq_scorer *s;
    const dq_needle_set *set;
    const dq_tokenizer *tok;
    int64_t begin, end; /* units */
    dq_arena *a;        /* of this group */
} run;

static double *extra_of(const run *x, int64_t unit)
{
    return x->row->extra + unit * x->e->ids[x->row->ids].n_extra;
}

static void keep_recall(double *extra, const dq_needle_recall *sum)
{
    extra[DQ_NEEDLE_AT_CORRECT] = (double)sum->correct;
    extra[DQ_NEEDLE_AT_OTHER] = (double)sum->other;
    extra[DQ_NEEDLE_AT_NEAR] = (double)sum->near;
    extra[DQ_NEEDLE_AT_NONE] = (double)sum->none;
}

static dq_status force(const run *x, dq_err *err)
{
    const dq_requests *q = &x->e->ids[x->row->ids].req;
    const dq_scores out = {x->row->logp, x->row->top1};
    DQ_TRY(dq_score_items(x->s, q, x->begin, x->end, out, err));
    for (int64_t i = x->begin; i < x->end; i++) {
        const dq_needle_prompt *p = &x->set->prompt[i];
        double *extra = extra_of(x, i);
        dq_needle_recall sum = {0};
        extra[DQ_NEEDLE_AT_LL] = 0;
        for (int k = 0; k < p->requested; k++) {
            const int64_t v = dq_needle_value(x->e, x->row, i, k);
            DQ_TRY(dq_needle_judge_ids(&sum, p, k, x->tok, x->row->top1 + v, err));
            for (int64_t t = 0; t < p->answer[k].to - p->answer[k].from; t++)
                extra[DQ_NEEDLE_AT_LL] += x->row->logp[v + t];
        }
        keep_recall(extra, &sum);
    }
    return DQ_OK;
}

/* An answer ends at two newlines. */
static bool is_over(const void *arg, int64_t prompt, const char *text, size_t len)
{
    bool over = false;
    (void)arg;
    (void)prompt;
    for (size_t i = 0; i + 1 < len; i++) over = over || (text[i] == '\n' && text[i + 1] == '\n');
    return over;
}

/* The prompt of a unit with its answers so far. */
typedef struct asking {
    int32_t *ids; /* [n], with capacity for dq_needle_cell.length */
    int64_t n;
    dq_needle_recall sum;
} asking;

/* Stores what was generated for city k of a unit and appends the next question. */
static dq_status take_answer(const run *x, int64_t unit, int k, const dq_generate_result *g,
                             asking *q, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    const int64_t v = dq_needle_value(x->e, x->row, unit, k);
    char *text;
    size_t len;
    int64_t kept;
    dq_eval_store(x->row, v, DQ_NEEDLE_NEW, g);
    for (int64_t i = 0; i < DQ_NEEDLE_NEW; i++) x->row->logp[v + i] = i < g->n ? g->logp[i] : 0;
    DQ_TRY(dq_tokenizer_decode(x->tok, g->ids, g->n, 0, &text, &len, err));
    dq_needle_judge_text(&q->sum, p, k, text, len, err);
    dq_block_free(text);
    if (err->code != DQ_OK || k + 1 == p->requested) return err->code;
    /* Keeps the first ids without newline or period in their text. */
    for (kept = 0; kept < g->n; ++kept) {
        char *piece;
        size_t bytes;
        DQ_TRY(dq_tokenizer_decode(x->tok, g->ids, kept + 1, 0, &piece, &bytes, err));
        const bool ends = memchr(piece, '\n', bytes) || memchr(piece, '.', bytes);
        dq_block_free(piece);
        if (ends) break;
    }
    memcpy(q->ids + q->n, g->ids, (size_t)kept * sizeof *q->ids);
    const int64_t from = p->answer[k].to, to = p->answer[k + 1].begin;
    memcpy(q->ids + q->n + kept, p->ids + p->n + from, (size_t)(to - from) * sizeof *q->ids);
    q->n += kept + to - from;
    return DQ_OK;
}

/* Cities are asked one after the other, each in all units that have so many. */
static dq_status generate(const run *x, dq_err *err)
{
    const int64_t n = x->end - x->begin;
    int64_t asked = n;
    asking *of = dq_alloc(x->a, (size_t)n, sizeof *of, err);
    dq_generate_prompt *prompt = dq_alloc(x->a, (size_t)n, sizeof *prompt, err);
    int64_t *unit = dq_alloc(x->a, (size_t)n, sizeof *unit, err);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        const dq_needle_prompt *p = &x->set->prompt[x->begin + i];
        of[i].n = p->n;
        of[i].ids = dq_alloc(x->a, (size_t)(p->n + p->budget), sizeof *of[i].ids, err);
        if (of[i].ids) memcpy(of[i].ids, p->ids, (size_t)p->n * sizeof *of[i].ids);
    }
    DQ_TRY(err->code);
    for (int k = 0; asked > 0; k++) {
        dq_generate_state g;
        asked = 0;
        for (int64_t i = 0; i < n; i++) {
            if (x->set->prompt[x->begin + i].requested <= k) continue;
            unit[asked] = i;
            prompt[asked++] =
                (dq_generate_prompt){.ids = of[i].ids, .n = of[i].n, .max_new = DQ_NEEDLE_NEW};
        }
        if (asked)
            DQ_TRY(dq_eval_continue(&g, x->e, x->row, x->s, prompt, asked, is_over, NULL, true,
                                    x->a, err));
        for (int64_t j = 0; j < asked; j++)
            DQ_TRY(take_answer(x, x->begin + unit[j], k, &g.of[j], &of[unit[j]], err));
    }
    for (int64_t i = 0; i < n; i++) {
        keep_recall(extra_of(x, x->begin + i), &of[i].sum);
        extra_of(x, x->begin + i)[DQ_NEEDLE_AT_LL] = 0;
    }
    return DQ_OK;
}

/* `spans` receives sums of attention. */
static dq_status run_rows(const run *x, const dq_needle_prompt *p, int32_t seq, int64_t begin,
                          int64_t end, const dq_attention_spans *spans, dq_err *err)
{
    dq_pass_plan plan;
    dq_mat hidden;
    DQ_TRY(dq_pass_plan_begin(&plan, x->s, x->a, 1, end - begin, 0, err));
    plan.spans = spans;
    dq_pass_plan_sequence(&plan, seq);
    dq_pass_plan_rows(&plan, p->ids + begin, end - begin, begin);
    DQ_TRY(dq_pass_plan_run(&plan, &hidden, err));
    return dq_backend_sync(dq_runner_backend(x->s->r), err);
}

/* The question reads back a compressed cache only in a pass of its own. */
static dq_status attend(const run *x, int64_t unit, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    const dq_model *m = dq_runner_model(x->s->r);
    const int n_layers = m->n_layers, n_out = m->map.n_out;
    const int64_t at = 0, last = x->set->settings->query_rows ? p->n - p->question : 1;
    const bool plain = dq_kv_spec_is_plain(&x->row->kv);
    uint8_t *label = dq_alloc(x->a, (size_t)p->n, 1, err);
    dq_span_share *sums = dq_alloc(x->a, (size_t)(n_layers * n_out), sizeof *sums, err);
    dq_attention_spans *spans = dq_alloc(x->a, (size_t)n_layers, sizeof *spans, err);
    if (!label || !sums || !spans) return err->code;
    dq_needle_labels(label, p);
    for (int l = 0; l < n_layers; l++)
        spans[l] = (dq_attention_spans){DQ_NEEDLE_CLASSES, label, &at, &last, sums + l * n_out};
    int32_t seq = dq_score_open(x->s, -1, err);
    if (seq < 0) return err->code;
    if (plain || run_rows(x, p, seq, 0, p->question, NULL, err) == DQ_OK)
        run_rows(x, p, seq, plain ? 0 : p->question, p->n, spans, err);
    dq_score_close(x->s, &seq, 1);
    x->s->work.tokens += p->n;
    if (err->code == DQ_OK)
        dq_needle_shares(extra_of(x, unit) + DQ_NEEDLE_AT_SHARE, sums, n_layers, n_out);
    return err->code;
}

static dq_status needle_score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin,
                              int64_t end, dq_arena *a, dq_err *err)
{
    const run x = {.e = e,
                   .row = row,
                   .s = s,
                   .set = dq_needle_set_of(e, row),
                   .tok = e->model[e->ids[row->ids].model].tok,
                   .begin = begin,
                   .end = end,
                   .a = a};
    if (x.set->settings->generated)
        generate(&x, err);
    else
        force(&x, err);
    for (int64_t i = begin; x.set->settings->attention && err->code == DQ_OK && i < end; i++)
        attend(&x, i, err);
    return err->code;
}

/* A cell is a length and a depth; its prompts depend on the seed, the cell and the sample alone, so
 * that any subset of cells gives the same ones. Values of a unit lie at the offsets
 * DQ_NEEDLE_AT_*. */

const dq_needle_set *dq_needle_set_of(const dq_eval *e, const dq_eval_row *row)
{
    return e->ids[row->ids].own;
}

const double *dq_needle_unit(const dq_eval *e, const dq_eval_row *row, int64_t unit)
{
    return row->extra + unit * e->ids[row->ids].n_extra;
}

int64_t dq_needle_value(const dq_eval *e, const dq_eval_row *row, int64_t unit, int k)
{
    const dq_needle_set *s = dq_needle_set_of(e, row);
    const dq_needle_prompt *p = &s->prompt[unit];
    const int64_t first = e->ids[row->ids].req.req[unit].value;
    if (s->settings->generated) return first + (int64_t)k * DQ_NEEDLE_NEW;
    return first + p->n - p->question + p->answer[k].from;
}

static dq_status load(dq_eval *e, dq_eval_source *source, dq_err *err)
{
    (void)e;
    return source->len ? DQ_OK : dq_fail(err, DQ_DAMAGED, "%s: holds no text", source->path);
}

static dq_status template_ids(dq_needle_maker *m, dq_bos bos, dq_err *err)
{
    const unsigned flags = dq_items_bos_flags(m->t, bos, "a", 1);
    int after;
    int32_t *ids;
    int64_t n;
    DQ_TRY(dq_items_bos_check(m->t, bos, err));
    dq_tokenizer_template(m->t, flags, &m->n_bos, &after);
    if (m->n_bos == 0) return DQ_OK;
    int32_t *kept = dq_alloc(m->a, (size_t)m->n_bos, sizeof *kept, err);
    if (!kept) return err->code;
    DQ_TRY(dq_tokenizer_encode(m->t, "a", 1, flags, &ids, &n, NULL, NULL, err));
    memcpy(kept, ids, (size_t)m->n_bos * sizeof *kept);
    dq_block_free(ids);
    m->bos = kept;
    return dq_tokenizer_check_ids(kept, m->n_bos, m->vocab, err);
}

static dq_status make_cells(dq_needle_set *set, const dq_eval *e, dq_err *err)
{
    const dq_needle_settings *s = set->settings;
    int length[DQ_NEEDLE_SWEEP], n_lengths;
    DQ_TRY(dq_eval_lengths(length, &n_lengths, s->length, s->n_lengths, e, err));
    dq_needle_cell *cell =
        dq_alloc(e->a, (size_t)(s->n_pairs * n_lengths * s->n_depths), sizeof *cell, err);
    if (!cell) return err->code;
    for (int p = 0; p < s->n_pairs; p++) {
        for (int l = 0; l < n_lengths; l++) {
            for (int d = 0; d < s->n_depths; d++)
                cell[set->n_cells++] =
                    (dq_needle_cell){length[l], s->depth[d], s->needles[p], s->requested[p]};
        }
    }
    set->cell = cell;
    return DQ_OK;
}

static dq_status encode(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *em = &e->model[ids->model];
    dq_needle_filler *filler = dq_alloc(e->a, 1, sizeof *filler, err);
    dq_needle_set *set = dq_alloc(e->a, 1, sizeof *set, err);
    if (!filler || !set) return err->code;
    dq_needle_maker m = {.t = em->tok, .filler = filler, .vocab = em->m->vocab, .a = e->a};
    set->settings = s->settings;
    m.depth_first = set->settings->depth_first;
    set->samples = set->settings->samples;
    for (int i = 0; i < e->n_models; i++) {
        const int64_t heads = (int64_t)e->model[i].m->n_layers * e->model[i].m->map.n_out;
        if (heads > set->n_heads) set->n_heads = heads;
    }
    DQ_TRY(template_ids(&m, e->bos, err));
    const size_t own = dq_items_bos_spelled(m.t, e->bos, s->text, s->len);
    DQ_TRY(dq_needle_filler_read(filler, m.t, s->text + own, s->len - own, m.vocab, e->a, err));
    ids->n_bad = filler->n_bad;
    ids->first_bad = filler->first_bad < 0 ? -1 : filler->first_bad + (int64_t)own;
    DQ_TRY(make_cells(set, e, err));
    const int64_t n = set->n_cells * set->samples;
    dq_needle_prompt *prompt = dq_alloc(m.a, (size_t)n, sizeof *prompt, err);
    dq_request *r = dq_eval_requests(&ids->req, n, m.a, err);
    if (!prompt || !r) return err->code;
    for (int64_t i = 0; i < n; i++) {
        DQ_TRY(dq_needle_make(&prompt[i], &m, &set->cell[i / set->samples], set->settings->seed,
                              i % set->samples, err));
        const dq_needle_prompt *p = &prompt[i];
        const bool generated = set->settings->generated;
        const int64_t ctx = generated ? p->n : p->question;
        r[i] = (dq_request){.ctx = p->ids,
                            .n_ctx = ctx,
                            .cont = generated ? NULL : p->ids + ctx,
                            .n_cont = generated ? (int64_t)p->requested * DQ_NEEDLE_NEW
                                                : p->n - ctx + p->n_answer,
                            .value = ids->req.n_values,
                            .item = i};
        ids->req.n_values += r[i].n_cont;
    }
    set->prompt = prompt;
    ids->n_extra =
        set->settings->attention ? DQ_NEEDLE_AT_HEADS + set->n_heads : DQ_NEEDLE_AT_SHARE;
    ids->own = set;
    return DQ_OK;
}

static void judge(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_needle_set *s = dq_needle_set_of(e, row);
    for (int64_t i = 0; i < s->n_cells * s->samples; i++) {
        const double found = dq_needle_unit(e, row, i)[DQ_NEEDLE_AT_CORRECT];
        const double share = found / (double)s->prompt[i].requested;
        score[i] = metric == 0 || share == 1 ? share : 0;
    }
}

static dq_status takes(const dq_eval_source *source, const dq_kv_spec *kv, dq_err *err)
{
    const dq_needle_settings *s = source->settings;
    if (!s->attention || !kv->evict.policy) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_ATTENTION},
                        "attention is not defined where tokens are evicted (%s): shares would be "
                        "of what is left",
                        kv->evict.policy->name);
}

const dq_eval_kind dq_eval_needle = {
    .metric = {"acc", "all_correct"},
    .load = load,
    .encode = encode,
    .judge = judge,
    .cluster = "prompt",
    .score = needle_score,
    .takes = takes,
};

void dq_needle_shares(double *into, const dq_span_share *sums, int n_layers, int n_out)
{
    double *skipped = into + DQ_NEEDLE_AT_SKIPPED - DQ_NEEDLE_AT_SHARE;
    double *heads = into + DQ_NEEDLE_AT_HEADS - DQ_NEEDLE_AT_SHARE;
    double *rows = into + DQ_NEEDLE_AT_ROWS - DQ_NEEDLE_AT_SHARE;
    double *small = into + DQ_NEEDLE_AT_SMALL - DQ_NEEDLE_AT_SHARE;
    *rows = *small = 0;
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        const dq_span_norm norm = (dq_span_norm)k;
        skipped[k] = 0;
        for (int i = 0; i < n_layers * n_out; i++) skipped[k] += (double)sums[i].skipped[k];
        for (int c = 0; c < DQ_NEEDLE_CLASSES; c++) {
            double sum = 0;
            int layers = 0;
            for (int l = 0; l < n_layers; l++) {
                double of_layer = 0;
                int n = 0;
                for (int h = 0; h < n_out; h++) {
                    const double x = dq_attention_spans_mean(&sums[l * n_out + h], norm, c);
                    if (isnan(x)) continue;
                    of_layer += x;
                    n++;
                }
                if (n == 0) continue;
                sum += of_layer / n;
                layers++;
            }
            into[k * DQ_NEEDLE_CLASSES + c] = layers ? sum / layers : (double)NAN;
        }
    }
    for (int i = 0; i < n_layers * n_out; i++) {
        *rows += (double)sums[i].rows;
        *small += (double)sums[i].small;
        heads[i] = dq_attention_spans_mean(&sums[i], DQ_NEEDLE_NORM, DQ_NEEDLE_ANSWER);
    }
}

/* Mean over units whose value is a number; NaN: none. */
static double mean_at(const dq_eval *e, const dq_eval_row *row, int64_t begin, int64_t end,
                      int64_t at)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) {
        const double x = dq_needle_unit(e, row, i)[at];
        if (isnan(x)) continue;
        sum += x;
        n++;
    }
    return n ? sum / (double)n : (double)NAN;
}

/* Mean over units of one share, or of two together (`second` not -1); scratch room[end - begin]. */
static dq_mean mean_of_sum(const dq_eval *e, const dq_eval_row *row, int64_t begin, int64_t end,
                           int64_t first, int64_t second, double *room)
{
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) {
        const double *x = dq_needle_unit(e, row, i), sum = x[first] + (second < 0 ? 0 : x[second]);
        if (!isnan(sum)) room[n++] = sum;
    }
    return dq_mean_of(room, n);
}

dq_status dq_needle_numbers_of(dq_needle_numbers *out, const dq_eval *e, const dq_eval_row *row,
                               int64_t cell, dq_err *err)
{
    const dq_needle_set *s = dq_needle_set_of(e, row);
    const int64_t begin = cell < 0 ? 0 : cell * s->samples;
    const int64_t end = cell < 0 ? s->n_cells * s->samples : begin + s->samples;
    int64_t all = 0, requested = 0;
    *out = (dq_needle_numbers){.n = end - begin, .best_layer = -1, .best_head = -1};
    double *acc = dq_block_new((size_t)out->n, sizeof *acc, err);
    double *ll = dq_block_new((size_t)out->n, sizeof *ll, err);
    for (int64_t i = 0; acc && ll && i < out->n; i++) {
        const double *x = dq_needle_unit(e, row, begin + i);
        const int r = s->prompt[begin + i].requested;
        for (int k = 0; k < 4; k++) out->confusion[k] += x[k];
        acc[i] = x[DQ_NEEDLE_AT_CORRECT] / r;
        ll[i] = x[DQ_NEEDLE_AT_LL] / r;
        all += acc[i] == 1;
        requested += r;
    }
    if (acc && ll) {
        for (int k = 0; k < 4; k++) out->confusion[k] /= (double)requested;
        out->acc = dq_mean_of(acc, out->n);
        out->all_correct = dq_mean_share(all, out->n);
        out->ll = s->settings->generated ? dq_mean_none : dq_mean_of(ll, out->n);
        if (s->settings->attention) {
            const dq_model *m = e->model[row->model].m;
            for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
                const int64_t at = DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES;
                out->answer[k] = mean_of_sum(e, row, begin, end, at + DQ_NEEDLE_ANSWER, -1, acc);
                out->noise[k] = mean_of_sum(e, row, begin, end, at + DQ_NEEDLE_NOISE,
                                            at + DQ_NEEDLE_DISTRACTOR, acc);
                for (int c = 0; c < DQ_NEEDLE_CLASSES; c++)
                    out->share[k][c] =
                        mean_at(e, row, begin, end, DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES + c);
                for (int64_t i = begin; i < end; i++)
                    out->skipped[k] += (int64_t)dq_needle_unit(e, row, i)[DQ_NEEDLE_AT_SKIPPED + k];
            }
            for (int64_t i = begin; i < end; i++) {
                out->rows += (int64_t)dq_needle_unit(e, row, i)[DQ_NEEDLE_AT_ROWS];
                out->small += (int64_t)dq_needle_unit(e, row, i)[DQ_NEEDLE_AT_SMALL];
            }
            for (int i = 0; i < m->n_layers * m->map.n_out; i++) {
                const double x = mean_at(e, row, begin, end, DQ_NEEDLE_AT_HEADS + i);
                if (isnan(x) || (out->best_layer >= 0 && x <= out->best)) continue;
                out->best = x;
                out->best_layer = i / m->map.n_out;
                out->best_head = i % m->map.n_out;
            }
        }
    }
    dq_block_free(acc);
    dq_block_free(ll);
    return err->code;
}
