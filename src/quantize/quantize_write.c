/* What is timed is a small tensor of chance on its way into nothing.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "quantize/inside.h"
#include "work/ranks.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int quantize_out_datasets(const dq_slot *s)
{
    return s->encoding == DQ_ENC_DATASET ? s->weight.format->n_datasets : 1;
}

/* Slot i is the first dataset. */
static inline bool quantize_out_done(const dq_quantize_feed *w, int64_t i)
{
    bool done = true;
    for (int k = 0; k < quantize_out_datasets(&w->q->skeleton.slot[i]); k++)
        done = done && w->done[i + k];
    return done;
}

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

static double rates_tensor(const dq_quantize_rates *r, const dq_quantize_tensor *t)
{
    return t->format ? (double)(t->rows * t->cols) * r->value[t->spec.mode][t->spec.bits]
                     : (double)dq_tensor_bytes(t->t) * r->dense;
}

enum { STRIP_COLS = 64, COLS = 256, VALUES = 1 << 19, HASH_BYTES = 4 << 20 };

static dq_status drop(void *arg, int dataset, const void *p, size_t bytes, dq_err *err)
{
    (void)arg;
    (void)dataset;
    (void)p;
    (void)bytes;
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
        /* Random values distributed like weights. */
        dq_random random = dq_random_of(0, 0);
        for (int64_t i = 0; i < rows * cols; i++) {
            const uint64_t x = dq_random_next(&random);
            w[i] = 0;
            for (int k = 0; k < 64; k += 16) w[i] += (float)(x >> k & 0xffff) / 65536.0f - 0.5f;
        }
        t.t = &source;
        t.w = dq_weight_of_f32(like->t->name, rows, cols, w);
        t.rows = rows;
        t.cols = cols;
        t.group_size = t.group_size < cols ? t.group_size : cols;
        t.spec.group = t.spec.group > cols ? cols : t.spec.group;
        t.spec.column = t.column;
        t.scale_rows = t.one_scale ? 1 : rows;
        /* The scan, and the writing. */
        dq_quantize_tensor_buffers buffers = {.bytes = {0}};
        const dq_quantize_sink sink = {drop, NULL};
        dq_quant_error e;
        const double begin = dq_os_seconds();
        double middle = begin;
#pragma omp parallel
#pragma omp single
        {
            dq_quantize_tensor_scan(&t, &buffers, NULL, err);
            middle = dq_os_seconds();
            if (err->code == DQ_OK) dq_quantize_tensor_write(&t, &buffers, &sink, &e, NULL, err);
        }
        scan = middle - begin;
        write = dq_os_seconds() - middle;
        dq_quantize_tensor_buffers_free(&buffers);
        if (err->code == DQ_OK)
            r->value[t.spec.mode][t.spec.bits] = (scan + write) / (double)values;
    }
    dq_block_free(w);
    dq_block_free(t.column);
    return err->code;
}

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
    char sha[65];
    uint8_t *p = dq_block_new(HASH_BYTES, 1, err);
    if (!p) return err->code;
    const double begin = dq_os_seconds();
    dq_sha256_of(sha, p, HASH_BYTES, err);
    const double each = (dq_os_seconds() - begin) / HASH_BYTES;
    q->rates.hash = each / dq_os_threads(); /* other threads do something else meanwhile */
    q->rates.dense = each + dq_quantize_rates_usual.scan;
    dq_block_free(p);
    return err->code;
}

static void expect_all(const dq_quantizer *q, dq_pace *p)
{
    const dq_quantize_method *m = q->set.method;
    dq_pace_expect(p, DQ_QUANTIZE_HASH, (double)q->info.source_bytes * q->rates.hash);
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const dq_quantize_tensor *t = &q->tensor[i];
        dq_pace_expect(p, DQ_QUANTIZE_SCAN, (double)dq_tensor_bytes(t->t) * q->rates.scan);
        if (!is_method_s(q, t))
            dq_pace_expect(p, (int)kind_of(t), rates_tensor(&q->rates, t));
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

static void begin_progress(dq_quantizer *q, const dq_quantize_progress *p)
{
    q->progress = p;
    dq_pace_begin(&q->pace, dq_os_seconds());
    expect_all(q, &q->pace);
    q->what = "checking";
}

static void begin_kind(dq_quantizer *q, dq_quantize_kind kind, double rate)
{
    q->kind = kind;
    q->rate = rate;
}

static void begin_tensor(dq_quantizer *q, int64_t tensor)
{
    const dq_quantize_tensor *t = &q->tensor[tensor];
    const double bytes = (double)dq_tensor_bytes(t->t);
    begin_kind(q, kind_of(t), bytes > 0 ? rates_tensor(&q->rates, t) / bytes : 0);
}

/* Reports `seconds` of expected work and releases what was read. */
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

static void advance_kind(void *arg, int64_t bytes)
{
    dq_quantizer *q = arg;
    advance(q, (int)q->kind, (double)bytes * q->rate, bytes);
}

static void advance_hash(void *arg, int64_t bytes)
{
    dq_quantizer *q = arg;
    advance(q, DQ_QUANTIZE_HASH, (double)bytes * q->rates.hash, bytes);
}

/* On the thread of the job, which also serves other ranks. */
static void advance_job(void *arg, int64_t bytes)
{
    advance_kind(arg, bytes);
    dq_ranks_poll();
}

/* The tensor was written by an earlier run or another rank. */
static void skip(dq_quantizer *q, int64_t tensor)
{
    const dq_quantize_tensor *t = &q->tensor[tensor];
    if (is_method_s(q, t)) return;
#pragma omp critical(dq_quantize_progress)
    dq_pace_expect(&q->pace, (int)kind_of(t), -rates_tensor(&q->rates, t));
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

static dq_status know_hashes(dq_quantizer *q, dq_err *err)
{
    if (q->hashed) return DQ_OK;
#pragma omp taskwait
    for (int i = 0; i < q->n_files; i++) {
        const dq_err *e = &q->file_err[i];
        if (e->code != DQ_OK) return dq_fail_as(err, e);
    }
    union { /* the table was allocated by the plan; a blob is read-only for everybody else */
        const void *in;
        uint8_t *out;
    } table = {.in = q->blob[q->table].data};
    dq_container_source_table(table.out, q->n_files, q->file, q->file_bytes,
                              (const char(*)[65])q->file_sha);
    q->hashed = true;
    return DQ_OK;
}

/* Lines of the journal (work/work.h). The head is on the disk before the partial file exists;
 * hashes of the source follow when known; a payload's line comes after the payload:
 *
 *   {"file": NAME, "bytes": N, "sha256": HEX}
 *   {"slot": I, "sha256": HEX, "numbers": "SQNR LOSS"}
 *   {"complete": HEX}      content_sha256 of the partial file, which is whole */

/* Names may hold anything; NULL: see err. */
static const char *plain(dq_quantizer *q, const char *name, dq_err *err)
{
    char *text = dq_textf(q->arena, err, "%s", name);
    if (text) dq_one_line(text);
    return text;
}

static dq_status put_files(dq_quantize_feed *w, dq_err *err)
{
    const dq_quantizer *q = w->q;
    for (int i = w->n_sources; i < q->n_files; i = ++w->n_sources)
        DQ_TRY(
            dq_work_put(&w->ledger,
                        json_pack("{s:s, s:I, s:s}", "file", plain(w->q, q->file[i], err), "bytes",
                                  (json_int_t)q->file_bytes[i], "sha256", q->file_sha[i]),
                        err));
    return DQ_OK;
}

static dq_status put_slot(dq_quantize_feed *w, int64_t i, dq_err *err)
{
    const dq_slot *s = &w->q->skeleton.slot[i];
    const double numbers[] = {s->sqnr_db, s->origin >= 0 ? w->q->loss[s->origin] : (double)NAN};
    return dq_work_put(&w->ledger,
                       json_pack("{s:I, s:s, s:o}", "slot", (json_int_t)i, "sha256", s->sha256,
                                 "numbers", dq_work_reals(numbers, 2)),
                       err);
}

/* Syncs payloads, then writes down their lines, on rank 0 after those of the source. */
static dq_status journal_flush(void *arg, dq_err *err)
{
    dq_quantize_feed *w = arg;
    const bool leads = dq_ranks_number() == 0;
    if (w->n_pending == 0) return DQ_OK;
    DQ_TRY(dq_os_maps_check(err));
    if (leads) DQ_TRY(know_hashes(w->q, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    if (leads) DQ_TRY(put_files(w, err));
    for (int64_t i = 0; i < w->n_pending; i++) DQ_TRY(put_slot(w, w->pending[i], err));
    if (leads) DQ_TRY(dq_work_sync(&w->ledger, err));
    w->n_done += w->n_pending;
    w->n_pending = 0;
    w->unsynced = 0;
    w->synced = dq_os_seconds();
    return DQ_OK;
}

/* Inside a job: whether all hashes are known; and waiting for them, which fills the table of source
 * files. */
static bool hashes_are_ready(const dq_quantizer *q)
{
    return atomic_load(&q->hashing) == 0;
}

/* Slot i is written. Flushes now and then. */
static dq_status journal_finish(dq_quantize_feed *w, int64_t i, dq_err *err)
{
    enum { SYNC_BYTES = 256 << 20, SYNC_SECONDS = 2 };
    w->pending[w->n_pending++] = i;
    w->done[i] = true;
    w->unsynced += w->q->skeleton.slot[i].bytes;
    if (w->unsynced < SYNC_BYTES && dq_os_seconds() - w->synced < SYNC_SECONDS) return DQ_OK;
    /* before the source is hashed nothing may be recorded, and waiting gains nothing */
    return hashes_are_ready(w->q) ? journal_flush(w, err) : DQ_OK;
}

/* What a resumed run must find unchanged, but for the source's files; a new reference. */
static dq_status depends_on(json_t **out, dq_quantizer *q, dq_err *err)
{
    DQ_TRY(dq_json_parse(out, q->recipe, strlen(q->recipe), "recipe", err));
    json_t *o = *out, *payloads = json_object();
    json_object_del(json_object_get(o, "calib"), "sketch"); /* it follows from text and tokens */
    json_object_set_new(o, "version", json_string(q->set.dq_version));
    json_object_set_new(o, "source", json_string(plain(q, q->model->name, err)));
    json_object_set_new(o, "fingerprint", json_string(q->model->fingerprint));
    json_object_set_new(o, "payloads", payloads);
    if (*q->skeleton.arithmetic) /* codes of a method stand on the forward pass */
        json_object_set_new(o, "arithmetic", json_string(q->skeleton.arithmetic));
    for (int i = 0; i < q->n_blobs; i++) {
        const dq_blob *b = &q->blob[i];
        char sha[65];
        if (i == q->table || i == q->objects || b->data == q->recipe) continue; /* they follow */
        DQ_TRY(dq_sha256_of(sha, b->data, b->bytes, err));
        json_object_set_new(payloads, b->path, json_string(sha));
    }
    return err->code;
}

static dq_status take_file(dq_quantize_feed *w, const char *name, const json_t *line, dq_err *err)
{
    const dq_quantizer *q = w->q;
    const char *sha;
    int64_t bytes;
    DQ_TRY(know_hashes(w->q, err));
    DQ_TRY(dq_json_int(&bytes, line, "bytes", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_text(&sha, line, "sha256", NULL, err));
    const int i = w->n_sources++;
    if (i < q->n_files && strcmp(name, plain(w->q, q->file[i], err)) == 0 &&
        bytes == q->file_bytes[i] && strcmp(sha, q->file_sha[i]) == 0)
        return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "belongs to a run with other inputs or settings (%s)", name);
}

/* A payload that is in the file. */
static dq_status take_slot(dq_quantize_feed *w, const json_t *line, bool told, dq_err *err)
{
    dq_quantizer *q = w->q;
    const char *sha;
    double numbers[2];
    int64_t i;
    DQ_TRY(dq_json_int(&i, line, "slot", 0, q->skeleton.n_slots - 1, NULL, err));
    DQ_TRY(dq_json_text(&sha, line, "sha256", NULL, err));
    DQ_TRY(dq_work_take_reals(numbers, 2, line, "numbers", err));
    dq_slot *s = &q->skeleton.slot[i];
    if (strlen(sha) != 64) return dq_fail(err, DQ_DAMAGED, "\"%s\" is no SHA-256", sha);
    memcpy(s->sha256, sha, 65);
    s->sqnr_db = numbers[0];
    if (s->origin >= 0) q->loss[s->origin] = numbers[1];
    w->n_done += !w->done[i];
    w->done[i] = true;
    if (told && (s->encoding != DQ_ENC_DATASET || s->dataset == 0)) {
        const dq_quantize_tensor *t = &q->tensor[s->origin];
        advance(q, (int)kind_of(t), rates_tensor(&q->rates, t), (int64_t)dq_tensor_bytes(t->t));
    }
    return DQ_OK;
}

static dq_status take_line(void *arg, const json_t *line, bool told, dq_err *err)
{
    dq_quantize_feed *w = arg;
    const char *name = json_string_value(json_object_get(line, "file"));
    const char *content = json_string_value(json_object_get(line, "complete"));
    if (content) snprintf(w->complete, sizeof w->complete, "%s", content);
    if (content) return DQ_OK;
    return name ? take_file(w, name, line, err) : take_slot(w, line, told, err);
}

/* True: `out` is the whole file, as the earlier run was killed between rename and removal of its
 * journal. */
static bool finished_before(dq_quantize_feed *w)
{
    dq_err ignore = {0};
    dq_container *c;
    if (!*w->complete || dq_file_exists(w->partial)) return false;
    if (dq_container_open(&c, w->out, &ignore) != DQ_OK) return false;
    bool same = strcmp(c->info.content_sha256, w->complete) == 0;
    if (same) w->q->info.file_bytes = c->info.file_bytes;
    dq_container_close(c);
    if (same) memcpy(w->q->info.content_sha256, w->complete, sizeof w->complete);
    return same;
}

/* Payloads of an earlier run count once the source's files are known to be the same. */
static dq_status begin_files(dq_quantize_feed *w, dq_work_how *how, bool *finished, dq_err *err)
{
    dq_quantizer *q = w->q;
    const bool usable = w->n_sources == q->n_files;
    *finished = usable && finished_before(w);
    if (*finished) return DQ_OK;
    if (usable && dq_file_exists(w->partial)) {
        q->info.n_resumed = w->n_done;
        DQ_TRY(dq_inplace_file_open(&w->file, w->partial, err));
        return dq_container_skeleton_locate(&q->skeleton, w->partial, err);
    }
    if (!w->force && dq_file_exists(w->out))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists.",
                            w->out);
    w->n_done = w->n_sources = 0;
    memset(w->done, 0, (size_t)q->skeleton.n_slots * sizeof *w->done);
    if (dq_work_has_lines(&w->ledger)) {
        dq_work_close(&w->ledger, false);
        how->resume = false;
        DQ_TRY(dq_work_open(&w->ledger, how, err));
    }
    DQ_TRY(dq_work_sync(&w->ledger, err));
    DQ_TRY(dq_container_skeleton_create(&q->skeleton, w->partial, err));
    DQ_TRY(dq_inplace_file_open(&w->file, w->partial, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    if (hashes_are_ready(q)) DQ_TRY(put_files(w, err));
    return dq_container_skeleton_locate(&q->skeleton, w->partial, err);
}

/* By all ranks: rank 0 resumes an earlier run's files, or begins. *finished: nothing is left. */
static dq_status journal_take_up(dq_quantize_feed *w, bool *finished, dq_err *err)
{
    json_t *of = NULL;
    depends_on(&of, w->q, err);
    dq_work_how how = {.path = w->journal_path,
                       .kept = w->partial,
                       .schema = "dq-quantize-work/1",
                       .of = of,
                       .resume = w->resume,
                       .force = true,
                       .beside = true,
                       .take = take_line,
                       .flush = journal_flush,
                       .arg = w};
    dq_work_open(&w->ledger, &how, err);
    if (err->code == DQ_OK && dq_ranks_number() == 0) begin_files(w, &how, finished, err);
    json_decref(of);
    return err->code;
}

/* A payload is in the journal when it is taken. */

const dq_quantize_tensor *dq_quantize_tensor_of(const dq_quantizer *q, const char *name)
{
    int64_t low = 0, high = q->info.n_tensors; /* in name order */
    while (low < high) {
        const int64_t at = (low + high) / 2;
        const int order = strcmp(name, q->tensor[at].t->name);
        if (order == 0) return &q->tensor[at];
        if (order < 0)
            high = at;
        else
            low = at + 1;
    }
    return NULL;
}

static int64_t slot_of(const dq_quantize_feed *f, const dq_quantize_tensor *t)
{
    int64_t i = 0;
    while (f->q->skeleton.slot[i].origin != t - f->q->tensor) i++;
    return i;
}

bool dq_quantize_feed_done(const dq_quantize_feed *f, const dq_quantize_tensor *t)
{
    return quantize_out_done(f, slot_of(f, t));
}

dq_status dq_quantize_feed_take(dq_quantize_feed *f, const dq_quantize_tensor *t, dq_coded *out,
                                dq_err *err)
{
    const int64_t i = slot_of(f, t);
    dq_coded_new(out, t->rows, t->cols, &t->spec, err);
    for (int k = 0; err->code == DQ_OK && dq_ranks_number() == 0 && k < t->format->n_datasets;
         k++) {
        const dq_slot *s = &f->q->skeleton.slot[i + k];
        char sha[65];
        uint8_t *dataset = dq_coded_dataset(out, k);
        if (dq_inplace_file_get(&f->file, s->offset, dataset, (size_t)s->bytes, err) == DQ_OK &&
            dq_sha256_of(sha, dataset, (size_t)s->bytes, err) == DQ_OK &&
            memcmp(sha, s->sha256, 64) != 0)
            dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_START_OVER},
                         "%s: %s is not what an earlier run wrote.", f->partial, s->path);
    }
    dq_ranks_agree(NULL, NULL, err);
    for (int k = 0; err->code == DQ_OK && k < t->format->n_datasets; k++)
        dq_ranks_spread(0, dq_coded_dataset(out, k), (size_t)f->q->skeleton.slot[i + k].bytes);
    if (err->code != DQ_OK) dq_coded_free(out);
    return err->code;
}

dq_status dq_quantize_feed_put(dq_quantize_feed *f, const dq_quantize_tensor *t, const dq_weight *w,
                               double loss, dq_err *err)
{
    dq_slot *s = &f->q->skeleton.slot[slot_of(f, t)];
    const int n = quantize_out_datasets(s);
    dq_quant_error e;
    if (dq_ranks_number() > 0) {
        const int64_t i = s - f->q->skeleton.slot;
        for (int k = 0; k < quantize_out_datasets(&f->q->skeleton.slot[i]); k++)
            f->done[i + k] = true;
        return DQ_OK;
    }
    DQ_TRY(dq_quantize_tensor_error(&e, t, w, err));
    f->q->loss[t - f->q->tensor] = loss;
    for (int k = 0; k < n; k++) {
        const dq_dataset p = dq_weight_dataset(w, k);
        if ((int64_t)dq_dataset_bytes(&p) != s[k].bytes)
            return dq_fail(err, DQ_BUG, "%s: of another size than planned", s[k].path);
        DQ_TRY(dq_sha256_of(s[k].sha256, p.data, (size_t)s[k].bytes, err));
        DQ_TRY(dq_inplace_file_put(&f->file, s[k].offset, p.data, (size_t)s[k].bytes, err));
        if (t->format->dataset[k].is_codes) s[k].sqnr_db = dq_quant_sqnr_db(&e);
    }
    for (int k = n - 1; k >= 0; k--) DQ_TRY(journal_finish(f, s - f->q->skeleton.slot + k, err));
    return journal_flush(f, err); /* it took longer than a sync does */
}

/* A single process hashes in tasks beside the job; ranks take files and tensors one at a time. */

static void hash_file(dq_quantizer *q, int i, const dq_quantize_tick *tick, dq_err *err)
{
    enum { STEP = 4 << 20 };
    const dq_os_map *map = &q->checkpoint->file[i].map;
    const uint8_t *data = map->data;
    const size_t bytes = map->bytes;
    dq_sha256 h;
    if (dq_sha256_begin(&h, err) != DQ_OK) return;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < STEP ? bytes - at : STEP;
        if (atomic_load(&q->give_up) || dq_os_check_stop(err) != DQ_OK) break;
        dq_sha256_add(&h, data + at, n);
        dq_os_map_release(data + at, n);
        tick->step(tick->arg, (int64_t)n);
        at += n;
    }
    if (err->code == DQ_OK)
        dq_sha256_end(&h, q->file_sha[i], err);
    else
        dq_sha256_drop(&h);
    if (err->code == DQ_OK) atomic_fetch_sub(&q->hashing, 1);
}

static dq_status run_job(dq_quantizer *q, dq_status (*job)(void *arg, dq_err *err), void *arg,
                         dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    q->file_err = dq_alloc(q->arena, (size_t)q->n_files, sizeof *q->file_err, err);
    if (!q->file_err) return err->code;
    const dq_quantize_tick tick = {advance_hash, q};
    const int tasks = dq_ranks_count() == 1 ? q->n_files : 0;
    atomic_store(&q->hashing, tasks);
    atomic_store(&q->give_up, 0);
    q->hashed = false;
#pragma omp parallel if (q->info.source_bytes > SMALL_BYTES)
#pragma omp single
    {
        for (int i = 0; i < tasks; i++) {
#pragma omp task firstprivate(i)
            hash_file(q, i, &tick, &q->file_err[i]);
        }
        if (job(arg, err) != DQ_OK) atomic_store(&q->give_up, 1);
    }
    return err->code;
}

/* What ranks send about a weight file or a tensor; factors of columns follow. */
typedef struct finding {
    int64_t file, tensor; /* the other one is -1 */
    char sha[65];
    dq_dtype scale_dtype;
    dq_grid grid;
} finding;

/* Ranks take weight files and tensors one at a time, the largest first. */
typedef struct scan_piece {
    int64_t bytes, file, tensor; /* as in a finding */
} scan_piece;
typedef struct scan_job {
    dq_quantizer *q;
    scan_piece *piece;
} scan_job;

static int by_bytes(const void *a, const void *b)
{
    const scan_piece *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->file != y->file) return x->file > y->file ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static dq_status scan_piece_run(void *arg, int64_t i, dq_err *err)
{
    const scan_job *s = arg;
    dq_quantizer *q = s->q;
    const scan_piece *p = &s->piece[i];
    const dq_quantize_tick tick = {p->file >= 0 ? advance_hash : advance_job, q};
    if (p->file >= 0) {
        atomic_fetch_add(&q->hashing, 1);
        hash_file(q, (int)p->file, &tick, err);
    } else {
        dq_quantize_tensor_scan(&q->tensor[p->tensor], &q->buffers, &tick, err);
    }
    if (err->code != DQ_OK || dq_ranks_number() == 0) return err->code;
    const dq_quantize_tensor *t = p->tensor >= 0 ? &q->tensor[p->tensor] : NULL;
    const size_t columns = t && t->column ? (size_t)t->cols : 0;
    char *text = dq_block_new(1, sizeof(finding) + columns, err);
    if (!text) return err->code;
    finding f = {.file = p->file, .tensor = p->tensor};
    if (t) f.scale_dtype = t->spec.scale_dtype;
    if (t) f.grid = t->grid;
    if (p->file >= 0) memcpy(f.sha, q->file_sha[p->file], sizeof f.sha);
    memcpy(text, &f, sizeof f);
    if (columns) memcpy(text + sizeof f, t->column, columns);
    dq_ranks_tell(text, sizeof f + columns, err);
    dq_block_free(text);
    return err->code;
}

static dq_status take_finding(void *arg, const char *text, size_t len, dq_err *err)
{
    dq_quantizer *q = ((scan_job *)arg)->q;
    finding f;
    memcpy(&f, text, sizeof f);
    if (f.file >= 0) {
        memcpy(q->file_sha[f.file], f.sha, sizeof f.sha);
        advance_hash(q, q->file_bytes[f.file]);
        return DQ_OK;
    }
    dq_quantize_tensor *t = &q->tensor[f.tensor];
    t->spec.scale_dtype = f.scale_dtype;
    t->grid = f.grid;
    if (t->column) memcpy(t->column, text + sizeof f, len - sizeof f);
    advance_kind(q, (int64_t)dq_tensor_bytes(t->t));
    return err->code;
}

/* Sends what rank 0 knows to all. */
static dq_status share_findings(dq_quantizer *q, dq_err *err)
{
    DQ_TRY(dq_ranks_share(q->file_sha, (size_t)q->n_files * sizeof *q->file_sha, err));
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        dq_quantize_tensor *t = &q->tensor[i];
        dq_ranks_spread(0, &t->spec.scale_dtype, sizeof t->spec.scale_dtype);
        dq_ranks_spread(0, &t->grid, sizeof t->grid);
        if (t->column) dq_ranks_spread(0, t->column, (size_t)t->cols);
    }
    return DQ_OK;
}

static dq_status scan_by_ranks(dq_quantizer *q, dq_err *err)
{
    const int64_t n = q->n_files + q->info.n_tensors;
    scan_job job = {q, dq_block_new((size_t)n, sizeof *job.piece, err)};
    if (!job.piece) return dq_ranks_agree(NULL, NULL, err);
    for (int i = 0; i < q->n_files; i++) job.piece[i] = (scan_piece){q->file_bytes[i], i, -1};
    for (int64_t i = 0; i < q->info.n_tensors; i++)
        job.piece[q->n_files + i] = (scan_piece){(int64_t)dq_tensor_bytes(q->tensor[i].t), -1, i};
    qsort(job.piece, (size_t)n, sizeof *job.piece, by_bytes);
    const dq_ranks_work work = {.n = n, .run = scan_piece_run, .take = take_finding, .arg = &job};
    if (dq_ranks_run(&work, err) == DQ_OK) share_findings(q, err);
    dq_block_free(job.piece);
    return err->code;
}

static dq_status scan_alone(dq_quantizer *q, dq_err *err)
{
    const dq_quantize_tick tick = {advance_kind, q};
    for (int64_t i = 0; err->code == DQ_OK && i < q->info.n_tensors; i++)
        dq_quantize_tensor_scan(&q->tensor[i], &q->buffers, &tick, err);
    return err->code;
}

static dq_status scan_source(dq_quantizer *q, dq_err *err)
{
    begin_kind(q, DQ_QUANTIZE_SCAN, q->rates.scan);
    dq_ranks_count() == 1 ? scan_alone(q, err) : scan_by_ranks(q, err);
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        return dq_fail(err, DQ_STOPPED, "interrupted before anything was written");
    }
    if (err->code != DQ_OK) return dq_in(err, "%s: ", q->dir);
    return dq_quantize_layout_slots(q, err);
}

/* The second half of quantize.h. Ranks write payloads where they belong; the journal is that of
 * rank 0, to which the others tell what they have on the disk. The order of steps makes every
 * moment safe to be killed in: the journal's head is on the disk before the partial file exists;
 * the hashes of the source follow when they are known, perhaps while payloads are written already;
 * a line about a payload comes after these hashes and after the payload; the output appears by one
 * rename. */

static dq_status write_dataset(void *arg, int dataset, const void *p, size_t bytes, dq_err *err)
{
    enum { SMALL_BYTES = 1 << 16 };
    dq_quantize_feed *w = arg;
#pragma omp taskgroup
    {
#pragma omp task if (bytes > SMALL_BYTES) firstprivate(w, dataset, p, bytes)
        dq_sha256_add(&w->hash[dataset], p, bytes);
        dq_inplace_file_put(&w->file, w->at[dataset], p, bytes, err);
        if (bytes > SMALL_BYTES) dq_inplace_file_start(&w->file, w->at[dataset], bytes);
    }
    w->at[dataset] += (int64_t)bytes;
    return err->code;
}

static dq_status run_tensor(dq_quantize_feed *w, int64_t i, dq_err *err)
{
    dq_slot *s = &w->q->skeleton.slot[i];
    const dq_quantize_tensor *x = &w->q->tensor[s->origin];
    dq_quantize_sink sink = {write_dataset, w};
    dq_quantize_tick tick = {advance_job, w->q};
    dq_quant_error e;
    const int n = quantize_out_datasets(s);
    for (int k = 0; k < n; k++) {
        w->at[k] = s[k].offset;
        DQ_TRY(dq_sha256_begin(&w->hash[k], err));
    }
    DQ_TRY(dq_quantize_tensor_write(x, &w->q->buffers, &sink, &e, &tick, err));
    for (int k = n - 1; k >= 0; k--) {
        if (x->format && x->format->dataset[k].is_codes) s[k].sqnr_db = dq_quant_sqnr_db(&e);
        DQ_TRY(dq_sha256_end(&w->hash[k], s[k].sha256, err));
        DQ_TRY(journal_finish(w, i + k, err));
    }
    return DQ_OK;
}

static dq_status run_slot(dq_quantize_feed *w, int64_t i, dq_err *err)
{
    dq_quantizer *q = w->q;
    dq_slot *s = &q->skeleton.slot[i];
    q->what = s->path;
    if (s->origin >= 0) {
        if (quantize_out_done(w, i)) {
            skip(q, s->origin);
            return DQ_OK;
        }
        begin_tensor(q, s->origin);
        run_tensor(w, i, err);
        for (int k = 0; k < DQ_MAX_DATASETS; k++) dq_sha256_drop(&w->hash[k]);
        return err->code;
    }
    const dq_blob *b = &q->blob[-1 - s->origin];
    if (w->done[i]) return DQ_OK;
    DQ_TRY(dq_sha256_of(s->sha256, b->data, b->bytes, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->offset, b->data, b->bytes, err));
    return journal_finish(w, i, err);
}

static dq_status name_files(dq_quantizer *q, dq_quantize_feed *w, const char *out, dq_err *err)
{
    memset(w, 0, sizeof *w);
    w->q = q;
    w->file.fd = -1;
    w->out = out;
    w->partial = dq_textf(q->arena, err, "%s.partial", out);
    w->journal_path = dq_textf(q->arena, err, "%s.journal", out);
    return err->code;
}

const char *const dq_quantize_beside[] = {".journal", NULL};

dq_status dq_quantize_check_output(dq_quantizer *q, const char *out, bool force, bool resume,
                                   dq_err *err)
{
    dq_quantize_feed w;
    if (dq_ranks_number() > 0) return err->code; /* rank 0 may have begun it */
    DQ_TRY(name_files(q, &w, out, err));
    const dq_output own = {"-o", out, DQ_OUTPUT_HDF5, dq_quantize_beside};
    const char *const input = q->dir;
    DQ_TRY(dq_output_guard_names(&own, 1, &input, 1, err));
    DQ_TRY(dq_file_check(out, err));
    bool half = dq_file_exists(w.partial), journal = dq_file_exists(w.journal_path);
    /* a journal without a partial file: the run may have been killed right after its rename */
    if (dq_file_exists(out) && !force && !(resume && journal && !half))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists%s.",
                            out, resume && !half ? ", and there is nothing to resume" : "");
    if (resume && half && !journal)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_START_OVER},
                            "%s: has no journal (%s) to go on from.", w.partial, w.journal_path);
    if (!resume && !force && (half || journal))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_RESUME_OR_FORCE},
                            "%s: exists from an interrupted run.",
                            half ? w.partial : w.journal_path);
    int64_t buffers = dq_file_disk_free(out);
    const int64_t wanted = (half ? 0 : q->info.file_bytes) + q->info.scratch_bytes;
    if (buffers >= 0 && buffers < wanted)
        return dq_fail(err, DQ_FILE,
                       "%s: not enough space (expected %lld bytes, the disk has %lld free).", out,
                       (long long)wanted, (long long)buffers);
    return DQ_OK;
}

/* First datasets of unwritten tensors, largest tensor first. */
typedef struct pieces {
    dq_quantize_feed *w;
    int64_t *slot;
} pieces;

static int64_t source_bytes(const dq_quantize_feed *w, int64_t slot)
{
    return (int64_t)dq_tensor_bytes(w->q->tensor[w->q->skeleton.slot[slot].origin].t);
}

static dq_status write_piece(void *arg, int64_t piece, dq_err *err)
{
    const pieces *p = arg;
    DQ_TRY(dq_os_check_stop(err));
    return run_slot(p->w, p->slot[piece], err);
}

static int64_t list_pieces(pieces *p)
{
    dq_quantize_feed *w = p->w;
    const dq_container_skeleton *s = &w->q->skeleton;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_slots; i++) {
        const bool later = s->slot[i].encoding == DQ_ENC_DATASET && s->slot[i].dataset > 0;
        if (s->slot[i].origin < 0 || later) continue;
        if (dq_ranks_count() > 1 && quantize_out_done(w, i))
            skip(w->q, s->slot[i].origin);
        else
            p->slot[n++] = i;
    }
    return n;
}

static dq_status write_tensors(dq_quantize_feed *w, dq_err *err)
{
    pieces p = {w, dq_alloc(w->q->arena, (size_t)w->q->skeleton.n_slots, sizeof *p.slot, err)};
    const int64_t n = p.slot ? list_pieces(&p) : 0;
    if (dq_ranks_count() > 1) {
        /* Insertion keeps the order of slots among tensors of a size. */
        for (int64_t i = 1; i < n; i++) {
            const int64_t slot = p.slot[i], bytes = source_bytes(p.w, slot);
            int64_t k = i;
            for (; k > 0 && source_bytes(p.w, p.slot[k - 1]) < bytes; k--)
                p.slot[k] = p.slot[k - 1];
            p.slot[k] = slot;
        }
    }
    return dq_work_run(&w->ledger, n, write_piece, &p, err);
}

/* On rank 0: all but tensors; the table of source files needs the hashes, so it comes last. */
static dq_status write_blobs(dq_quantize_feed *w, dq_err *err)
{
    const dq_quantizer *q = w->q;
    int64_t table = 0;
    for (int64_t i = 0; i < q->skeleton.n_slots; i++) {
        if (q->skeleton.slot[i].origin >= 0) continue;
        if (q->skeleton.slot[i].origin == -1 - q->table)
            table = i;
        else
            DQ_TRY(run_slot(w, i, err));
    }
    DQ_TRY(know_hashes(w->q, err));
    return run_slot(w, table, err);
}

static dq_status commit(dq_quantize_feed *w, dq_err *err)
{
    dq_quantizer *q = w->q;
    DQ_TRY(journal_flush(w, err));
    /* /index and the two hashes depend on everything else. */
    dq_container_skeleton *s = &w->q->skeleton;
    char sha[65];
    uint8_t *rows = dq_alloc(w->q->arena, (size_t)s->index_bytes, 1, err);
    if (!rows) return err->code;
    DQ_TRY(dq_container_index_encode(rows, s, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->index_at, rows, (size_t)s->index_bytes, err));
    DQ_TRY(dq_sha256_of(sha, rows, (size_t)s->index_bytes, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->index_sha_at, sha, 64, err));
    DQ_TRY(dq_container_content_sha256(w->q->info.content_sha256, s, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->content_at, w->q->info.content_sha256, 64, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    DQ_TRY(dq_os_maps_check(err));
    DQ_TRY(dq_work_put(&w->ledger, json_pack("{s:s}", "complete", q->info.content_sha256), err));
    DQ_TRY(dq_work_sync(&w->ledger, err));
    q->info.file_bytes = q->skeleton.file_bytes;
    return dq_file_commit(w->partial, w->out, err);
}

static dq_status share_info(dq_quantizer *q, dq_err *err)
{
    DQ_TRY(dq_ranks_share(q->info.content_sha256, sizeof q->info.content_sha256, err));
    dq_ranks_spread(0, &q->info.file_bytes, sizeof q->info.file_bytes);
    dq_ranks_spread(0, &q->info.n_resumed, sizeof q->info.n_resumed);
    return DQ_OK;
}

static dq_status write_all(dq_quantize_feed *w, dq_err *err)
{
    const bool leads = dq_ranks_number() == 0;
    w->synced = dq_os_seconds();
    write_tensors(w, err);
    if (leads && err->code == DQ_OK) write_blobs(w, err);
    if (leads && err->code != DQ_OK) {
        dq_err later = {0}; /* keep what is done, whatever the first failure was */
        journal_flush(w, &later);
    }
    if (leads && err->code == DQ_OK) commit(w, err);
    return share_info(w->q, err);
}

/* After a failure: keeps what can be resumed, and an earlier run's work unless it is useless. */
static void clean_up(dq_quantize_feed *w, dq_err *err)
{
    dq_err ignore = {0};
    const bool stopped = err->code == DQ_STOPPED;
    if (!w->ledger.open || err->code == DQ_MISMATCH) return; /* not ours */
    if (!stopped && (w->broken || (w->n_done == 0 && !w->resume))) {
        dq_file_remove(w->partial, &ignore);
        dq_work_close(&w->ledger, true);
    } else if (stopped || (w->n_done > 0 && dq_work_resumable(err))) {
        dq_work_failed(&w->ledger, err);
    }
}

/* Sends rank 0's start to all: what is done, and where everything lies in the file. */
static dq_status share_start(dq_quantize_feed *w, dq_err *err)
{
    dq_container_skeleton *s = &w->q->skeleton;
    DQ_TRY(dq_ranks_share(&w->finished, sizeof w->finished, err));
    if (w->finished) return share_info(w->q, err);
    dq_ranks_spread(0, w->done, (size_t)s->n_slots * sizeof *w->done);
    dq_ranks_spread(0, &s->index_at, sizeof s->index_at);
    for (int64_t i = 0; i < s->n_slots; i++) {
        dq_ranks_spread(0, &s->slot[i].offset, sizeof s->slot[i].offset);
        dq_ranks_spread(0, s->slot[i].sha256, sizeof s->slot[i].sha256);
    }
    /* Other ranks open the partial file and check that it is rank 0's, by a mark in the index's
     * place. */
    const int64_t at = w->q->skeleton.index_at;
    double mark = dq_os_seconds(), found = -1;
    if (dq_ranks_count() == 1) return DQ_OK;
    if (dq_ranks_number() == 0 &&
        dq_inplace_file_put(&w->file, at, &mark, sizeof mark, err) == DQ_OK)
        dq_inplace_file_sync(&w->file, err);
    DQ_TRY(dq_ranks_share(&mark, sizeof mark, err));
    if (dq_ranks_number() == 0) return dq_ranks_agree(NULL, NULL, err);
    if (dq_inplace_file_open(&w->file, w->partial, err) == DQ_OK)
        dq_inplace_file_get(&w->file, at, &found, sizeof found, err);
    if (found != mark) {
        *err = (dq_err){0};
        dq_fail(err, DQ_FILE,
                "%s: is not the file that rank 0 writes. Write into a folder that all ranks share",
                w->partial);
    }
    return dq_ranks_agree(NULL, NULL, err);
}

static dq_status begin_output(void *arg, dq_err *err)
{
    dq_quantize_feed *w = arg;
    dq_quantizer *q = w->q;
    DQ_TRY(scan_source(q, err));
    w->done = dq_alloc(q->arena, (size_t)q->skeleton.n_slots, sizeof *w->done, err);
    w->pending = dq_alloc(q->arena, (size_t)q->skeleton.n_slots, sizeof *w->pending, err);
    if (err->code == DQ_OK) journal_take_up(w, &w->finished, err);
    DQ_TRY(share_start(w, err));
    w->synced = dq_os_seconds();
    if (q->set.method) know_hashes(q, err);
    return err->code;
}

static dq_status write_output(void *arg, dq_err *err)
{
    dq_quantize_feed *w = arg;
    DQ_TRY(begin_output(w, err));
    return w->finished ? DQ_OK : write_all(w, err);
}

/* A method's codes come first. */
static dq_status write_with_method(dq_quantize_feed *w, dq_err *err)
{
    const dq_quantize_method *m = w->q->set.method;
    dq_err later = {0};
    DQ_TRY(run_job(w->q, begin_output, w, err));
    if (w->finished) return DQ_OK;
    m->run(m->arg, w, err);
    if (err->code != DQ_OK) {
        w->broken = err->code == DQ_DAMAGED;
        if (dq_ranks_number() == 0) journal_flush(w, &later); /* keep what is done */
        return err->code;
    }
    if (dq_ranks_number() == 0) journal_flush(w, err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
#pragma omp parallel
#pragma omp single
    write_all(w, err);
    return err->code;
}

dq_status dq_quantize_write(dq_quantizer *q, const char *out, bool force, bool resume,
                            const dq_quantize_progress *p, dq_err *err)
{
    dq_quantize_feed w;
    begin_progress(q, p);
    dq_quantize_check_output(q, out, force, resume, err);
    /* Ranks must produce the same. */
    char sha[65] = "";
    const char *text = dq_textf(q->arena, err, "%s %s %s", q->recipe, q->model->fingerprint,
                                q->skeleton.arithmetic);
    if (text) dq_sha256_of(sha, text, strlen(text), err);
    DQ_TRY(dq_ranks_agree("set of model, settings and processor", sha, err));
    DQ_TRY(name_files(q, &w, out, err));
    w.force = force;
    w.resume = resume;
    if (q->set.method)
        write_with_method(&w, err);
    else
        run_job(q, write_output, &w, err);
    if (err->code != DQ_OK) clean_up(&w, err);
    dq_inplace_file_close(&w.file);
    dq_work_close(&w.ledger, err->code == DQ_OK);
    return err->code;
}

/* ---- Comparing ---- */

typedef struct comparison {
    const dq_payload *dataset[DQ_MAX_DATASETS];
    int64_t at[DQ_MAX_DATASETS];
} comparison;

static dq_status compare_dataset(void *arg, int dataset, const void *p, size_t bytes, dq_err *err)
{
    comparison *c = arg;
    const dq_payload *want = c->dataset[dataset];
    const uint8_t *stored = want->data + c->at[dataset];
    if (memcmp(stored, p, bytes) != 0)
        return dq_fail(err, DQ_DAMAGED, "%s: differs from what the source gives", want->path);
    c->at[dataset] += (int64_t)bytes;
    dq_os_map_release(want->data, (size_t)c->at[dataset]);
    return DQ_OK;
}

static const dq_payload *codes_of(const comparison *now, const dq_slot *first)
{
    int k = 0;
    while (!first->weight.format->dataset[k].is_codes) k++;
    return now->dataset[k];
}

static dq_status check_sqnr(const dq_payload *codes, const dq_quant_error *e, dq_err *err)
{
    const double sqnr = dq_quant_sqnr_db(e);
    if (sqnr == codes->sqnr_db) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: SQNR against the source is %.4f dB (expected %.4f)",
                   codes->path, sqnr, codes->sqnr_db);
}

static dq_status compare_slot(dq_quantizer *q, const dq_container *c, int64_t i, dq_err *err)
{
    const dq_slot *s = &q->skeleton.slot[i];
    const dq_payload *p = &c->payload[i];
    comparison now = {.dataset = {p}};
    if (s->origin == -1 - q->objects && strcmp(p->path, s->path) == 0) {
        const dq_blob *b = &q->blob[q->objects];
        return dq_container_compare_objects(c, b->data, b->bytes, err);
    }
    if (strcmp(p->path, s->path) != 0 || p->bytes != s->bytes)
        return dq_fail(err, DQ_DAMAGED, "%s: expected %s of %lld bytes from the source", p->path,
                       s->path, (long long)s->bytes);
    if (p->bits_per_weight != s->bits_per_weight)
        return dq_fail(err, DQ_DAMAGED, "%s: /index has %.17g bits per weight (expected %.17g)",
                       p->path, p->bits_per_weight, s->bits_per_weight);
    if (s->origin < 0) {
        const dq_blob *b = &q->blob[-1 - s->origin];
        return compare_dataset(&now, 0, b->data, b->bytes, err);
    }
    if (s->encoding == DQ_ENC_DATASET && s->dataset > 0) return DQ_OK; /* with the first one */
    for (int k = 1; s->encoding == DQ_ENC_DATASET && k < s->weight.format->n_datasets; k++) {
        if (i + k >= c->n_payloads || c->payload[i + k].bytes != s[k].bytes)
            return dq_fail(err, DQ_DAMAGED, "%s: of another size than the source gives", s[k].path);
        now.dataset[k] = &c->payload[i + k];
    }
    if (s->encoding == DQ_ENC_DATASET && q->set.method_name && q->tensor[s->origin].is_fed) {
        /* A method's codes are its own business; only their recorded error is compared. */
        const dq_quantize_tensor *x = &q->tensor[s->origin];
        dq_weight w = dq_quantize_tensor_weight(x);
        dq_quant_error error;
        for (int k = 0; k < x->format->n_datasets; k++) {
            const dq_dataset dataset = dq_weight_dataset(&w, k);
            const dq_tensor found = {.dtype = dataset.dtype,
                                     .n_dims = 2,
                                     .shape = {dataset.shape[0], dataset.shape[1]},
                                     .data = now.dataset[k]->data};
            dq_dataset_take(&w, &x->format->dataset[k], &found);
        }
        DQ_TRY(dq_quantize_tensor_error(&error, x, &w, err));
        q->info.n_by_sqnr++;
        begin_kind(q, DQ_QUANTIZE_DENSE, q->rates.dense);
        advance_kind(q, (int64_t)dq_tensor_bytes(x->t));
        return check_sqnr(codes_of(&now, s), &error, err);
    }
    dq_quantize_sink sink = {compare_dataset, &now};
    dq_quantize_tick tick = {advance_kind, q};
    dq_quant_error e;
    q->what = s->path;
    begin_tensor(q, s->origin);
    DQ_TRY(dq_quantize_tensor_write(&q->tensor[s->origin], &q->buffers, &sink, &e, &tick, err));
    return s->encoding == DQ_ENC_DATASET ? check_sqnr(codes_of(&now, s), &e, err) : DQ_OK;
}

typedef struct compare_job {
    dq_quantizer *q;
    const dq_container *c;
} compare_job;

static dq_status compare_all(void *arg, dq_err *err)
{
    dq_quantizer *q = ((compare_job *)arg)->q;
    const dq_container *c = ((compare_job *)arg)->c;
    DQ_TRY(scan_source(q, err));
    if (c->n_payloads != q->skeleton.n_slots)
        return dq_fail(err, DQ_DAMAGED, "/index has %lld rows (expected %lld from the source)",
                       (long long)c->n_payloads, (long long)q->skeleton.n_slots);
    DQ_TRY(know_hashes(q, err));
    for (int64_t i = 0; i < q->skeleton.n_slots; i++) DQ_TRY(compare_slot(q, c, i, err));
    return DQ_OK;
}

dq_status dq_quantize_compare(dq_quantizer *q, const dq_container *c, const dq_quantize_progress *p,
                              dq_err *err)
{
    compare_job job = {q, c};
    const dq_container_info *info = &c->info;
    /* where a container was made does not matter; the version is among the settings */
    q->skeleton.source = info->source;
    if (q->set.method_name && info->arithmetic)
        snprintf(q->skeleton.arithmetic, sizeof q->skeleton.arithmetic, "%s", info->arithmetic);
    begin_progress(q, p);
    if (strcmp(info->fingerprint, q->model->fingerprint) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "made from another checkpoint (fingerprint %.16s..., %s has %.16s...)",
                       info->fingerprint, q->dir, q->model->fingerprint);
    return run_job(q, compare_all, &job, err);
}
