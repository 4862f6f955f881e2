/* Every sequence has a generator of its own and a row's logits do not depend on the other rows, so
 * that ids are the same however many sequences memory allows at once.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/random.h"
#include "calibrate/inside.h"
#include "tasks/items.h"
#include "work/ranks.h"

#include <math.h>

/* The token that texts begin with; -1: none is known. */
static dq_status first_id(int32_t *id, const dq_model *m, dq_err *err)
{
    dq_tokenizer *t = NULL;
    *id = -1;
    DQ_TRY(dq_calib_tokenizer(&t, m, err));
    if (t) *id = dq_items_bos(t, DQ_BOS_AUTO);
    if (t && *id < 0) *id = dq_tokenizer_prefix(t);
    dq_tokenizer_free(t);
    if (*id >= m->vocab) *id = -1;
    return DQ_OK;
}

dq_status dq_calib_text_sampled(dq_calib_text *out, int32_t **ids, const dq_model *m,
                                int64_t tokens, int64_t ctx, dq_arena *a, dq_err *err)
{
    int32_t first;
    DQ_TRY(dq_calib_text_begin(out, m, tokens, ctx, err));
    DQ_TRY(first_id(&first, m, err));
    const int64_t n = out->requested, n_seq = (n + out->ctx - 1) / out->ctx;
    int64_t *cu = dq_alloc(a, (size_t)n_seq + 1, sizeof *cu, err);
    int32_t *unit = dq_alloc(a, (size_t)n_seq, sizeof *unit, err);
    *ids = dq_alloc(a, (size_t)n, sizeof **ids, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t s = 0; s < n_seq; s++) {
        unit[s] = (int32_t)s;
        cu[s + 1] = dq_least(n, (s + 1) * out->ctx);
        dq_random r = dq_random_of(DQ_CALIB_SAMPLE_SEED, (uint64_t)s);
        const int32_t begin = first < 0 ? (int32_t)dq_random_below(&r, (uint64_t)m->vocab) : first;
        for (int64_t i = cu[s]; i < cu[s + 1]; i++) (*ids)[i] = begin; /* until they are sampled */
    }
    out->ids = *ids;
    out->cu = cu;
    out->unit = out->cluster = unit;
    out->n_ids = out->found = n;
    out->n_seq = out->n_units = out->n_clusters = n_seq;
    return DQ_OK;
}

double dq_calib_sample_flop(const dq_model *m, const dq_calib_text *t)
{
    double n = (double)t->n_ids * dq_calibrate_work_rows(&m->head, 1);
    for (int l = 0; l < m->n_layers; l++) {
        n += (double)t->n_ids * dq_calibrate_work_layer(&m->layer[l]);
        for (int64_t s = 0; s < t->n_seq; s++)
            n += dq_calibrate_work_attention(m, t->cu[s + 1] - t->cu[s]);
    }
    return n;
}

/* Of a sequence: its cache and a row of logits. */
static int64_t sequence_bytes(const dq_model *m, int64_t ctx)
{
    const int64_t cache = 2 * (int64_t)m->map.n_kv * m->map.head_dim * m->n_layers * ctx;
    return (cache + m->vocab) * (int64_t)sizeof(float);
}

/* Sequences at once: those that half of memory holds. */
static int64_t at_once(const dq_model *m, const dq_calib_text *t)
{
    const int64_t have = dq_os_memory_bytes() / 2 / sequence_bytes(m, t->ctx);
    return have < 1 ? 1 : dq_least(have, t->n_seq);
}

int64_t dq_calib_sample_bytes(const dq_model *m, const dq_calib_text *t)
{
    return at_once(m, t) * sequence_bytes(m, t->ctx);
}

/* An id by its share of softmax; -1: a logit is NaN or infinite. */
static int32_t draw(const float *logits, int64_t vocab, double u)
{
    double max = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < vocab; i++) max = fmax(max, (double)logits[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - max);
    if (!isfinite(sum)) return -1;
    double left = u * sum;
    int64_t i = 0;
    for (; i < vocab - 1; i++) {
        left -= exp((double)logits[i] - max);
        if (left < 0) break;
    }
    return (int32_t)i;
}

/* Sequences begin .. begin + n - 1 of a text side by side, a token of each a pass. */
typedef struct sampling {
    const dq_calib_sampler *to;
    dq_runner *r;
    int64_t begin, n;
    dq_random *random;       /* [n] */
    int32_t *seq, *id, *pos; /* [n] */
    int64_t *cu;             /* [n + 1] */
    float *logits;           /* [n][vocab] */
} sampling;

static dq_status sample_position(sampling *x, int64_t at, dq_err *err)
{
    const dq_calib_sampler *to = x->to;
    const dq_calib_text *t = to->text;
    const int64_t vocab = to->m->vocab;
    dq_mat hidden;
    int64_t n = 0;
    while (n < x->n && t->cu[x->begin + n] + at + 1 < t->cu[x->begin + n + 1]) n++;
    const dq_batch batch = {
        .n_seq = (int)n, .n_rows = n, .cu_rows = x->cu, .seq = x->seq, .ids = x->id, .pos = x->pos};
    const dq_pass pass = {.logit = dq_logit_plain,
                          .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32}};
    if (n == 0) return DQ_OK; /* the last one alone is shorter */
    for (int64_t i = 0; i < n; i++) {
        x->id[i] = to->ids[t->cu[x->begin + i] + at];
        x->pos[i] = (int32_t)at;
    }
    DQ_TRY(dq_runner_pass(x->r, &batch, &pass, &hidden, err));
    const dq_mat logits = {x->logits, n, vocab};
    to->b->ops->matmul(to->b, logits, hidden, &to->m->head, NULL, DQ_NUM_F32);
    DQ_TRY(dq_backend_sync(to->b, err));
    bool bad = false;
#pragma omp parallel for schedule(dynamic) reduction(|| : bad)
    for (int64_t i = 0; i < n; i++) {
        const double u = (double)(dq_random_next(&x->random[i]) >> 11) * 0x1p-53;
        const int32_t id = draw(x->logits + i * vocab, vocab, u);
        bad = bad || id < 0;
        to->ids[t->cu[x->begin + i] + at + 1] = id;
    }
    if (bad)
        return dq_fail(err, DQ_DAMAGED, "%s: writes no text: its logits are NaN or infinite",
                       to->m->path);
    to->tell(to->arg, (double)n / (double)(t->n_ids - t->n_seq));
    return DQ_OK;
}

static dq_status sample_some(sampling *x, dq_err *err)
{
    const dq_calib_sampler *to = x->to;
    const size_t n = (size_t)x->n;
    x->random = dq_block_new(n, sizeof *x->random, err);
    x->seq = dq_block_new(n, sizeof *x->seq, err);
    x->id = dq_block_new(n, sizeof *x->id, err);
    x->pos = dq_block_new(n, sizeof *x->pos, err);
    x->cu = dq_block_new(n + 1, sizeof *x->cu, err);
    x->logits = to->b->ops->alloc(to->b, n * (size_t)to->m->vocab * sizeof *x->logits);
    if (err->code == DQ_OK && !x->logits) dq_backend_sync(to->b, err);
    if (err->code == DQ_OK && !x->logits) dq_fail(err, DQ_RESOURCE, "out of memory for logits");
    if (err->code == DQ_OK) dq_runner_new(&x->r, to->m, to->b, &dq_kv_plain, err);
    for (int64_t i = 0; err->code == DQ_OK && i < x->n; i++) {
        x->random[i] = dq_random_of(DQ_CALIB_SAMPLE_SEED, (uint64_t)(x->begin + i));
        dq_random_next(&x->random[i]); /* which a first id may have taken */
        x->cu[i + 1] = i + 1;
        x->seq[i] = to->b->ops->kv_seq_new(to->b, dq_runner_kv(x->r));
        if (x->seq[i] < 0 && dq_backend_sync(to->b, err) == DQ_OK)
            dq_fail(err, DQ_RESOURCE, "out of memory for a KV cache");
    }
    for (int64_t at = 0; err->code == DQ_OK && at + 1 < to->text->ctx; at++)
        sample_position(x, at, err);
    dq_runner_free(x->r);
    to->b->ops->free(to->b, x->logits);
    dq_block_free(x->random);
    dq_block_free(x->seq);
    dq_block_free(x->id);
    dq_block_free(x->pos);
    dq_block_free(x->cu);
    return err->code;
}

dq_status dq_calib_sample(const dq_calib_sampler *to, dq_err *err)
{
    const dq_calib_text *t = to->text;
    const int64_t most = to->at_once > 0 ? to->at_once : at_once(to->m, t);
    for (int64_t s = 0; dq_ranks_number() == 0 && err->code == DQ_OK && s < t->n_seq; s += most) {
        sampling x = {.to = to, .begin = s, .n = dq_least(most, t->n_seq - s)};
        sample_some(&x, err);
    }
    return dq_ranks_share(to->ids, (size_t)t->n_ids * sizeof *to->ids, err);
}
