/* quantize_pace: see quantize_pace.h. What is timed is a small tensor of chance on its way into nothing.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_pace.h"

#include "base/file.h"
#include "base/os.h"
#include "base/random.h"
#include "base/ranks.h"
#include "quantize/quantize_out.h"

#define ALL(x)                                                                                     \
    {                                                                                              \
        0, 0, x, x, x, x, x, x, x                                                                  \
    }
const dq_quantize_rates dq_quantize_rates_usual = {.scan = 0.3e-9,
                                                   .hash = 1e-9,
                                                   .dense = 1.5e-9,
                                                   .value = {[DQ_ABSMAX] = ALL(3e-9),
                                                             [DQ_SEARCH] = ALL(60e-9),
                                                             [DQ_ASYM] = ALL(6e-9),
                                                             [DQ_TRELLIS] = ALL(4e-6)}};

double dq_quantize_rates_tensor(const dq_quantize_rates *r, const dq_quantize_tensor *t)
{
    return t->format ? (double)(t->rows * t->cols) * r->value[t->spec.mode][t->spec.bits]
                     : (double)dq_tensor_bytes(t->t) * r->dense;
}

/* ---- Timing ---- */

enum { STRIP_COLS = 64, COLS = 256, VALUES = 1 << 19, HASH_BYTES = 4 << 20 };

static dq_status drop(void *arg, int part, const void *p, size_t bytes, dq_err *err)
{
    (void)arg;
    (void)part;
    (void)p;
    (void)bytes;
    return err->code;
}

/* Sums of numbers of chance, as weights are distributed. */
static void fill(float *w, int64_t n)
{
    dq_random r = dq_random_of(0, 0);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t x = dq_random_next(&r);
        w[i] = 0;
        for (int k = 0; k < 64; k += 16) w[i] += (float)(x >> k & 0xffff) / 65536.0f - 0.5f;
    }
}

/* The passes over a tensor: the scan, and the writing. */
static dq_status time_passes(double *scan, double *write, dq_quantize_tensor *t, dq_err *err)
{
    dq_quantize_tensor_buffers buffers = {.bytes = {0}};
    const dq_quantize_sink sink = {drop, NULL};
    dq_quant_error e;
    const double begin = dq_os_seconds();
    double middle = begin;
#pragma omp parallel
#pragma omp single
    {
        dq_quantize_tensor_scan(t, &buffers, NULL, err);
        middle = dq_os_seconds();
        if (err->code == DQ_OK) dq_quantize_tensor_write(t, &buffers, &sink, &e, NULL, err);
    }
    *scan = middle - begin;
    *write = dq_os_seconds() - middle;
    dq_quantize_tensor_buffers_free(&buffers);
    return err->code;
}

static dq_status time_like(dq_quantize_rates *r, const dq_quantize_tensor *like, dq_err *err)
{
    const bool strips = like->format->encode_strip;
    const int64_t most = strips ? STRIP_COLS : COLS, cols = like->cols < most ? like->cols : most,
                  rows = strips ? (int64_t)DQ_STRIP_ROWS * dq_os_threads() : VALUES / cols;
    dq_quantize_tensor t = *like;
    const size_t values = (size_t)(rows * cols);
    float *w = dq_block_new(values, sizeof *w, err);
    t.column = like->column ? dq_block_new((size_t)cols, 1, err) : NULL;
    if (err->code == DQ_OK) {
        double scan, write;
        const dq_tensor source = {.name = like->t->name,
                                  .dtype = DQ_F32,
                                  .n_dims = 2,
                                  .shape = {rows, cols},
                                  .data = (const void *)w};
        fill(w, rows * cols);
        t.t = &source;
        t.w = dq_weight_of_f32(like->t->name, rows, cols, w);
        t.rows = rows;
        t.cols = cols;
        t.group_size = t.group_size < cols ? t.group_size : cols;
        t.spec.group = t.spec.group > cols ? cols : t.spec.group;
        t.spec.column = t.column;
        t.scale_rows = t.one_scale ? 1 : rows;
        if (time_passes(&scan, &write, &t, err) == DQ_OK)
            r->value[t.spec.mode][t.spec.bits] = (scan + write) / (double)values;
    }
    dq_block_free(w);
    dq_block_free(t.column);
    return err->code;
}

static dq_status time_hash(dq_quantize_rates *r, dq_err *err)
{
    char sha[65];
    uint8_t *p = dq_block_new(HASH_BYTES, 1, err);
    if (!p) return err->code;
    const double begin = dq_os_seconds();
    dq_sha256_of(sha, p, HASH_BYTES, err);
    const double each = (dq_os_seconds() - begin) / HASH_BYTES;
    r->hash = each / dq_os_threads(); /* other threads do something else meanwhile */
    r->dense = each + dq_quantize_rates_usual.scan;
    dq_block_free(p);
    return err->code;
}

/* ---- A run ---- */

static dq_quantize_kind kind_of(const dq_quantize_tensor *t)
{
    return t->format ? DQ_QUANTIZE_VALUES : DQ_QUANTIZE_DENSE;
}

static bool is_method_s(const dq_quantizer *q, const dq_quantize_tensor *t)
{
    return q->set.method_name && t->format && t->is_fed;
}

dq_status dq_quantize_measure(dq_quantizer *q, dq_err *err)
{
    bool known[DQ_QUANT_MODES][9] = {{false}};
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const dq_quantize_tensor *t = &q->tensor[i];
        if (!t->format || is_method_s(q, t) || known[t->spec.mode][t->spec.bits]) continue;
        known[t->spec.mode][t->spec.bits] = true;
        DQ_TRY(time_like(&q->rates, t, err));
    }
    return time_hash(&q->rates, err);
}

static void expect_all(const dq_quantizer *q, dq_pace *p)
{
    const dq_quantize_method *m = q->set.method;
    dq_pace_expect(p, DQ_QUANTIZE_HASH, (double)q->info.source_bytes * q->rates.hash);
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const dq_quantize_tensor *t = &q->tensor[i];
        dq_pace_expect(p, DQ_QUANTIZE_SCAN, (double)dq_tensor_bytes(t->t) * q->rates.scan);
        if (!is_method_s(q, t))
            dq_pace_expect(p, (int)kind_of(t), dq_quantize_rates_tensor(&q->rates, t));
        else if (!m) /* compared, not made */
            dq_pace_expect(p, DQ_QUANTIZE_DENSE, (double)dq_tensor_bytes(t->t) * q->rates.dense);
    }
    if (m && m->expect) m->expect(m->arg, q, NULL, p);
}

double dq_quantize_expected(const dq_quantizer *q)
{
    dq_pace p;
    dq_pace_begin(&p, 0);
    expect_all(q, &p);
    return dq_pace_left(&p);
}

void dq_quantize_plan_progress(dq_quantizer *q, const dq_quantize_progress *p)
{
    q->progress = p;
    dq_pace_begin(&q->pace, dq_os_seconds());
    expect_all(q, &q->pace);
    q->what = "checking";
}

void dq_quantize_plan_begin(dq_quantizer *q, dq_quantize_kind kind, double rate)
{
    q->kind = kind;
    q->rate = rate;
}

void dq_quantize_plan_begin_tensor(dq_quantizer *q, int64_t tensor)
{
    const dq_quantize_tensor *t = &q->tensor[tensor];
    const double bytes = (double)dq_tensor_bytes(t->t);
    dq_quantize_plan_begin(q, kind_of(t),
                           bytes > 0 ? dq_quantize_rates_tensor(&q->rates, t) / bytes : 0);
}

/* Tells of `seconds` of expected work, and lets go of what was read. */
static void advance(dq_quantizer *q, int kind, double seconds, int64_t bytes)
{
    enum { RELEASE_BYTES = 64 << 20 };
#pragma omp critical(dq_quantize_progress)
    {
        dq_pace_step(&q->pace, kind, seconds, dq_os_seconds());
        q->unreleased += bytes;
        if (q->unreleased > RELEASE_BYTES) {
            dq_checkpoint_release(q->checkpoint);
            q->unreleased = 0;
        }
        if (q->progress && q->progress->step)
            q->progress->step(q->progress->arg, &q->pace, q->what);
    }
}

void dq_quantize_plan_advance(void *arg, int64_t bytes)
{
    dq_quantizer *q = arg;
    advance(q, (int)q->kind, (double)bytes * q->rate, bytes);
}

void dq_quantize_plan_advance_hash(void *arg, int64_t bytes)
{
    dq_quantizer *q = arg;
    advance(q, DQ_QUANTIZE_HASH, (double)bytes * q->rates.hash, bytes);
}

void dq_quantize_plan_advance_job(void *arg, int64_t bytes)
{
    dq_quantize_plan_advance(arg, bytes);
    dq_ranks_poll();
}

void dq_quantize_plan_skip(dq_quantizer *q, int64_t tensor)
{
    const dq_quantize_tensor *t = &q->tensor[tensor];
    if (is_method_s(q, t)) return;
#pragma omp critical(dq_quantize_progress)
    dq_pace_expect(&q->pace, (int)kind_of(t), -dq_quantize_rates_tensor(&q->rates, t));
}

void dq_quantize_plan_told(dq_quantizer *q, int64_t tensor)
{
    const dq_quantize_tensor *t = &q->tensor[tensor];
    advance(q, (int)kind_of(t), dq_quantize_rates_tensor(&q->rates, t),
            (int64_t)dq_tensor_bytes(t->t));
}

void dq_quantize_feed_advance(dq_quantize_feed *f, int kind, double seconds, const char *what)
{
    f->q->what = what;
    advance(f->q, DQ_QUANTIZE_METHOD + kind, seconds, 0);
}

void dq_quantize_feed_expect(dq_quantize_feed *f)
{
    const dq_quantize_method *m = f->q->set.method;
    for (int k = DQ_QUANTIZE_METHOD; k < DQ_PACE_KINDS; k++) f->q->pace.left[k] = 0;
    if (m->expect) m->expect(m->arg, f->q, f, &f->q->pace);
}
