/* Ids of the configurations come first, then the named tokens, each once.
 * SPDX-License-Identifier: MIT */
#include "session/session.h"

#include "base/json.h"
#include "base/os.h"
#include "base/random.h"
#include "engine/runner.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_id(const dq_stop_ids *s, int32_t id)
{
    for (int64_t i = 0; i < s->n; i++) {
        if (s->id[i] == id) return true;
    }
    return false;
}

typedef struct adding {
    dq_stop_ids *s;
    const dq_tokenizer *t;
    const char *file;
    int vocab;
} adding;

static void add_id(const adding *x, const char *key, const json_t *v, int64_t id)
{
    dq_stop_ids *s = x->s;
    if (id < 0 || id >= x->vocab || (s->n == DQ_STOP_IDS && !has_id(s, (int32_t)id))) {
        /* Only the first id that a file names and the vocabulary lacks is reported. */
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
        if (!x->s->unknown[0])
            snprintf(x->s->unknown, sizeof x->s->unknown, "%s: %s %.60s", x->file, key,
                     text ? text : "");
        free(text);
    } else if (!has_id(s, (int32_t)id)) {
        s->id[s->n++] = (int32_t)id;
    }
}

/* A number or a list of them. */
static void add_number(const adding *x, const json_t *v)
{
    static const char key[] = "eos_token_id";
    int64_t id;
    for (size_t i = 0; i < json_array_size(v); i++) add_number(x, json_array_get(v, i));
    if (json_is_array(v) || !v || json_is_null(v)) return;
    add_id(x, key, v, dq_json_whole(&id, v) ? id : -1);
}

/* A text, or an object with one. */
static void add_named(const adding *x, const json_t *v)
{
    static const char key[] = "eos_token";
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!v || json_is_null(v) || !x->t) return;
    add_id(x, key, v,
           json_is_string(v) ? dq_tokenizer_id(x->t, json_string_value(v), json_string_length(v))
                             : -1);
}

dq_status dq_stop_ids_add(dq_stop_ids *s, const dq_model *m, const dq_tokenizer *t, int vocab,
                          dq_err *err)
{
    static const char *const files[] = {"config.json", "generation_config.json",
                                        "tokenizer_config.json", "special_tokens_map.json"};
    for (int i = 0; i < 4; i++) {
        const adding x = {s, t, files[i], vocab};
        const char *text;
        size_t len;
        json_t *root = NULL;
        DQ_TRY(dq_model_file(m, files[i], &text, &len, err));
        if (!text) continue;
        if (dq_json_parse_config(&root, text, len, files[i], err) == DQ_OK && !json_is_object(root))
            dq_fail(err, DQ_DAMAGED, "%s: the document is not an object", files[i]);
        if (err->code != DQ_OK) {
            json_decref(root);
            return dq_in(err, "%s: ", m->path);
        }
        if (i < 2)
            add_number(&x, json_object_get(root, "eos_token_id"));
        else
            add_named(&x, json_object_get(root, "eos_token"));
        json_decref(root);
    }
    return DQ_OK;
}

/* Ids are sorted by logit, so that every cut leaves a prefix. */

typedef struct dq_sampler_choice {
    int32_t id;
    double p;
} dq_sampler_choice;

const dq_sampling dq_sampler_greedy = {.top_p = 1};

dq_status dq_sampler_begin(dq_sampler *s, const dq_sampling *how, int64_t vocab, dq_err *err)
{
    *s = (dq_sampler){.how = *how, .random = dq_random_of(how->seed, 0), .vocab = vocab};
    if (!(how->temperature >= 0) || !isfinite(how->temperature))
        return dq_fail(err, DQ_USAGE, "temperature: expected 0 or more, found %g",
                       how->temperature);
    if (how->top_k < 0)
        return dq_fail(err, DQ_USAGE, "top_k: expected 0 or more, found %lld",
                       (long long)how->top_k);
    if (!(how->top_p > 0 && how->top_p <= 1))
        return dq_fail(err, DQ_USAGE, "top_p: expected more than 0 and at most 1, found %g",
                       how->top_p);
    if (!(how->min_p >= 0 && how->min_p <= 1))
        return dq_fail(err, DQ_USAGE, "min_p: expected 0 to 1, found %g", how->min_p);
    if (how->temperature > 0) s->choice = dq_block_new((size_t)vocab, sizeof *s->choice, err);
    return err->code;
}

void dq_sampler_end(dq_sampler *s)
{
    dq_block_free(s->choice);
    s->choice = NULL;
}

static int32_t largest(const float *logits, int64_t vocab)
{
    int64_t at = 0;
    for (int64_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[at]) at = i;
    }
    return (int32_t)at;
}

double dq_sampler_logp(const float *logits, int64_t vocab, int32_t id)
{
    const double max = (double)logits[largest(logits, vocab)];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

static int by_logit(const void *a, const void *b)
{
    const dq_sampler_choice *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The fewest that have `share` together: an id stays while those before it have less. */
static int64_t cut_share(const dq_sampler_choice *choice, int64_t n, double share)
{
    double before = 0;
    int64_t i = 0;
    while (i < n && (i == 0 || before < share)) before += choice[i++].p;
    return i;
}

/* Candidates of a pick with probabilities, most likely first, in s->choice; returns how many. */
static int64_t choices(dq_sampler *s, const float *logits)
{
    const dq_sampling *how = &s->how;
    int64_t n = s->vocab;
    const double max = (double)logits[largest(logits, n)]; /* else a small temperature overflows */
    for (int64_t i = 0; i < n; i++)
        s->choice[i] =
            (dq_sampler_choice){(int32_t)i, ((double)logits[i] - max) / how->temperature};
    qsort(s->choice, (size_t)n, sizeof *s->choice, by_logit);
    if (how->top_k > 0 && how->top_k < n) n = how->top_k;
    /* choice[n], falling logits less the largest, become probabilities. */
    dq_sampler_choice *choice = s->choice;
    double whole = 0;
    for (int64_t i = 0; i < n; i++) whole += choice[i].p = exp(choice[i].p);
    for (int64_t i = 0; i < n; i++) choice[i].p /= whole;
    const double least = how->min_p * s->choice[0].p;
    if (how->top_p < 1) n = cut_share(s->choice, n, how->top_p);
    while (n > 1 && s->choice[n - 1].p < least) n--;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += s->choice[i].p;
    for (int64_t i = 0; i < n; i++) s->choice[i].p /= sum;
    return n;
}

/* An id by finite logits[vocab]. *logp, unless NULL: see dq_sampler_logp. */
static int32_t pick(dq_sampler *s, const float *logits, double *logp)
{
    int32_t id;
    if (s->how.temperature == 0) {
        id = largest(logits, s->vocab);
    } else {
        const int64_t n = choices(s, logits);
        double left = (double)(dq_random_next(&s->random) >> 11) * 0x1p-53;
        int64_t i = 0;
        while (i < n - 1 && left >= s->choice[i].p) left -= s->choice[i++].p;
        id = s->choice[i].id;
    }
    if (logp) *logp = dq_sampler_logp(logits, s->vocab, id);
    return id;
}

const char *const dq_text_end_name[] = {"none", "stop_id", "asked", "max_new", "positions"};

/* The text of ids that arrive one by one, as soon as it is certain. All ids are decoded each time,
 * as decoders may look back; thousands take less than a millisecond.
 * Text that ends with U+FFFD may still change, as may bytes of a run before it, so both wait. */

typedef struct text_stream {
    const dq_tokenizer *t;
    unsigned flags; /* of dq_tokenizer_decode */
    int32_t *ids;   /* [n] */
    int64_t n;
    size_t cap;
    dq_strbuf text; /* what dq_tokenizer_decode makes of all ids */
    dq_strbuf said; /* what of it was said */
} text_stream;

static void stream_free(text_stream *s)
{
    dq_block_free(s->ids);
    dq_block_free(s->text.s);
    dq_block_free(s->said.s);
    *s = (text_stream){0};
}

/* Tells the text up to byte `until` that was not told before. */
static dq_status say(text_stream *s, size_t until, const char **piece, size_t *len, dq_err *err)
{
    size_t from = s->said.n;
    while (from < until && ((unsigned char)s->text.s[from] & 0xC0) == 0x80) from++;
    *piece = "";
    *len = 0;
    if (until <= from) return DQ_OK;
    *piece = s->text.s + from;
    *len = until - from;
    return dq_strbuf_add(&s->said, *piece, *len, err);
}

/* *piece[*len] (valid until the next call): what id makes certain, maybe nothing; a character
 * spread over ids waits for the last one. */
static dq_status stream_add(text_stream *s, int32_t id, const char **piece, size_t *len,
                            dq_err *err)
{
    dq_strbuf text = {0};
    int32_t *ids = dq_grow(NULL, s->ids, (size_t)s->n + 1, &s->cap, sizeof *ids, err);
    *piece = "";
    *len = 0;
    if (!ids) return err->code;
    s->ids = ids;
    s->ids[s->n++] = id;
    DQ_TRY(dq_tokenizer_decode(s->t, s->ids, s->n, s->flags, &text.s, &text.n, err));
    dq_block_free(s->text.s);
    s->text = text;
    size_t until = s->text.n;
    while (until >= 3 && memcmp(s->text.s + until - 3, "\xEF\xBF\xBD", 3) == 0) until -= 3;
    const bool goes_on =
        until > s->said.n && (!s->said.n || memcmp(s->text.s, s->said.s, s->said.n) == 0);
    return goes_on ? say(s, until, piece, len, err) : DQ_OK;
}

/* After the last id: what was waiting, U+FFFD where it is no character. All pieces together are the
 * text of all ids; but of a tokenizer with byte fallback, where bytes that were characters turn
 * out to belong to none, they stay said. */
static dq_status stream_end(text_stream *s, const char **piece, size_t *len, dq_err *err)
{
    return say(s, s->text.n, piece, len, err);
}

/* A due eviction waits for the next token, so that none is in vain. Logits leave in blocks: those
 * of a long context would not fit into memory. */

/* Logits that are passed to the caller at once. */
enum { BLOCK_BYTES = 32 << 20, BLOCK_ROWS = 256 };

struct dq_session {
    dq_runner *r;
    const dq_model *m;
    dq_backend *b;
    dq_pass pass;
    dq_evictor *evictor; /* NULL: nothing is evicted */
    dq_evict_report evicted;
    int32_t seq;    /* -1: none is open */
    int64_t length; /* tokens that it was given */
    int64_t since;  /* of them, those after the last eviction */
    bool cut;       /* a context was evicted from */
    int32_t *pos;   /* [cap] of the pass at hand */
    size_t cap;
    float *rows, *logits; /* backend memory: [block][dim], [block][vocab]; NULL: not needed yet */
    float *host;          /* [block][vocab] */
};

typedef struct target {
    int64_t first; /* the first wanted position */
    dq_session_sink *sink;
    void *arg;
} target;

dq_status dq_session_new(dq_session **out, dq_runner *r, const dq_pass *pass, bool evicts,
                         dq_err *err)
{
    const dq_kv_spec *kv = dq_runner_kv_spec(r);
    *out = NULL;
    dq_session *s = dq_block_new(1, sizeof *s, err);
    if (!s) return err->code;
    s->r = r;
    s->m = dq_runner_model(r);
    s->b = dq_runner_backend(r);
    s->pass = (dq_pass){.logit = pass->logit, .math = pass->math, .listener = pass->listener};
    s->seq = -1;
    if (evicts && kv->evict.policy) dq_evictor_new(&s->evictor, r, kv, &s->pass, err);
    if (err->code == DQ_OK) dq_session_clear(s, err);
    if (err->code == DQ_OK)
        *out = s;
    else
        dq_session_free(s);
    return err->code;
}

static void close_sequence(dq_session *s)
{
    if (s->seq < 0) return;
    if (s->evictor) dq_evictor_forget(s->evictor, s->seq);
    s->b->ops->kv_seq_free(s->b, dq_runner_kv(s->r), s->seq);
    s->seq = -1;
}

void dq_session_free(dq_session *s)
{
    if (!s) return;
    close_sequence(s);
    dq_evictor_free(s->evictor);
    s->b->ops->free(s->b, s->rows);
    s->b->ops->free(s->b, s->logits);
    dq_block_free(s->host);
    dq_block_free(s->pos);
    dq_block_free(s);
}

dq_status dq_session_clear(dq_session *s, dq_err *err)
{
    close_sequence(s);
    s->length = s->since = 0;
    s->cut = false;
    s->evicted = dq_evict_report_none;
    s->seq = s->b->ops->kv_seq_new(s->b, dq_runner_kv(s->r));
    if (s->seq >= 0) return DQ_OK;
    DQ_TRY(dq_backend_sync(s->b, err));
    return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
}

int64_t dq_session_length(const dq_session *s)
{
    return s->length;
}

int32_t dq_session_seq(const dq_session *s)
{
    return s->seq;
}

const dq_evict_report *dq_session_evicted(const dq_session *s)
{
    return &s->evicted;
}

static int64_t block_rows(const dq_model *m)
{
    const int64_t n = BLOCK_BYTES / (4 * (int64_t)m->vocab);
    return n < 1 ? 1 : n > BLOCK_ROWS ? BLOCK_ROWS : n;
}

static dq_status make_blocks(dq_session *s, dq_err *err)
{
    const size_t n = (size_t)block_rows(s->m);
    if (s->host) return DQ_OK;
    if (!s->rows) s->rows = s->b->ops->alloc(s->b, n * (size_t)s->m->dim * sizeof *s->rows);
    if (!s->logits) s->logits = s->b->ops->alloc(s->b, n * (size_t)s->m->vocab * sizeof *s->logits);
    if (!s->rows || !s->logits) {
        dq_backend_sync(s->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for a block of logits");
    }
    s->host = dq_block_new(n * (size_t)s->m->vocab, sizeof *s->host, err);
    return err->code;
}

/* Logits of rows at .. at + n - 1 of hidden, whose row 0 is at position `base`. */
static dq_status give_block(dq_session *s, dq_mat hidden, int64_t at, int64_t n, int64_t base,
                            const target *to, dq_err *err)
{
    const dq_mat rows = {s->rows, n, s->m->dim}, logits = {s->logits, n, s->m->vocab};
    const dq_num num = s->pass.math.linear == DQ_NUM_INT8 ? DQ_NUM_F32 /* as logprob has it */
                                                          : s->pass.math.linear;
    int64_t index[BLOCK_ROWS];
    for (int64_t i = 0; i < n; i++) index[i] = at + i;
    s->b->ops->gather(s->b, rows, hidden, index);
    s->b->ops->matmul(s->b, logits, rows, &s->m->head, NULL, num);
    s->b->ops->get(s->b, s->host, s->logits, (size_t)n * (size_t)s->m->vocab * sizeof *s->host);
    DQ_TRY(dq_backend_sync(s->b, err));
    const int64_t vocab = s->m->vocab;
    for (int64_t k = 0; k < n * vocab; k++) {
        if (!isfinite(s->host[k]))
            return dq_fail(err, DQ_DAMAGED,
                           "%s: the logit of id %lld at position %lld is %g, which a damaged "
                           "output head or final norm does",
                           s->m->path, (long long)(k % vocab), (long long)((base + at) + k / vocab),
                           (double)s->host[k]);
    }
    return to->sink(to->arg, s->host, base + at, n, err);
}

static dq_status run_pass(dq_session *s, const int32_t *ids, int64_t n, const target *to,
                          dq_err *err)
{
    const int64_t cu[2] = {0, n};
    dq_mat hidden;
    dq_pass pass = s->pass;
    int32_t *pos = dq_grow(NULL, s->pos, (size_t)n, &s->cap, sizeof *pos, err);
    if (!pos) return err->code;
    s->pos = pos;
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)(s->length + i);
    const dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &s->seq, .ids = ids, .pos = pos};
    if (s->evictor) DQ_TRY(dq_evictor_watch(s->evictor, &batch, &pass.columns, err));
    DQ_TRY(dq_runner_pass(s->r, &batch, &pass, &hidden, err));
    const int64_t base = s->length;
    s->length += n;
    s->since += n;
    const int64_t step = block_rows(s->m), rows = hidden.rows;
    int64_t at = to->first > base ? to->first - base : 0;
    if (at < rows) DQ_TRY(make_blocks(s, err));
    for (; at < rows; at += step) {
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(give_block(s, hidden, at, rows - at < step ? rows - at : step, base, to, err));
    }
    return DQ_OK;
}

static dq_status check(const dq_session *s, const int32_t *ids, int64_t n, dq_err *err)
{
    if (s->m->max_positions > 0 && s->length + n > s->m->max_positions)
        return dq_fail(err, DQ_MISMATCH, "%s: %lld tokens, but the model has %d positions",
                       s->m->path, (long long)(s->length + n), s->m->max_positions);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->m->vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           s->m->path, (int)ids[i], s->m->vocab);
    }
    return DQ_OK;
}

dq_status dq_session_feed(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err)
{
    const target to = {s->length + n - rows, sink, arg};
    DQ_TRY(check(s, ids, n, err));
    return n > 0 ? run_pass(s, ids, n, &to, err) : DQ_OK;
}

dq_status dq_session_evict(dq_session *s, dq_err *err)
{
    const int32_t length = (int32_t)s->length;
    const dq_batch batch = {.n_seq = 1, .seq = &s->seq};
    if (!s->evictor) return DQ_OK;
    s->since = 0;
    s->cut = true;
    return dq_evictor_run(s->evictor, &batch, &length, &s->evicted, err);
}

dq_status dq_session_read(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err)
{
    DQ_TRY(dq_session_feed(s, ids, n, rows, sink, arg, err));
    return n > 0 ? dq_session_evict(s, err) : DQ_OK;
}

dq_status dq_session_continue(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                              dq_session_sink *sink, void *arg, dq_err *err)
{
    const target to = {s->length + n - rows, sink, arg};
    const int64_t every = s->cut ? dq_runner_kv_spec(s->r)->evict.every : 0;
    DQ_TRY(check(s, ids, n, err));
    while (n > 0) {
        if (every > 0 && s->since >= every) DQ_TRY(dq_session_evict(s, err));
        const int64_t now = every > 0 && every - s->since < n ? every - s->since : n;
        DQ_TRY(run_pass(s, ids, now, &to, err));
        ids += now;
        n -= now;
    }
    return DQ_OK;
}

/* One pass over the prompt, then one of a row for each new id but the last; each pass's sink picks
 * the next id. */

void dq_writer_text_free(dq_writer_text *t)
{
    dq_block_free(t->ids);
    dq_block_free(t->logp);
    *t = (dq_writer_text){0};
}

typedef struct next {
    const dq_writer *w;
    int32_t id;
    double logp;
} next;

static dq_status take_id(void *arg, const float *logits, int64_t first, int64_t n, dq_err *err)
{
    next *x = arg;
    (void)first;
    (void)n;
    (void)err;
    x->id = pick(x->w->sampler, logits, &x->logp);
    return DQ_OK;
}

static dq_status write_all(const dq_writer *w, next *x, text_stream *stream, dq_writer_text *t,
                           dq_err *err)
{
    while (!has_id(w->stops, x->id)) {
        /* Takes an id and tells its text. */
        const dq_model *m = dq_runner_model(w->session->r);
        const char *piece = "";
        size_t len = 0;
        const size_t want = (size_t)t->n + 1;
        int32_t *ids = dq_grow(NULL, t->ids, want, &t->cap, sizeof *ids, err);
        if (!ids) return err->code;
        t->ids = ids;
        double *logp = dq_grow(NULL, t->logp, want, &t->cap_logp, sizeof *logp, err);
        if (!logp) return err->code;
        t->logp = logp;
        t->ids[t->n] = x->id;
        t->logp[t->n++] = x->logp;
        if (w->tok) DQ_TRY(stream_add(stream, x->id, &piece, &len, err));
        if (w->listener && w->listener(w->arg, x->id, x->logp, piece, len))
            t->end = DQ_TEXT_END_REQUESTED;
        else if (t->n >= w->max_new)
            t->end = DQ_TEXT_END_MAX_NEW;
        else if (m->max_positions > 0 && dq_session_length(w->session) >= m->max_positions)
            t->end = DQ_TEXT_END_POSITIONS;
        if (t->end != DQ_TEXT_END_NONE) return DQ_OK;
        DQ_TRY(dq_session_continue(w->session, &x->id, 1, 1, take_id, x, err));
    }
    t->end = DQ_TEXT_END_STOP_ID;
    return DQ_OK;
}

dq_status dq_writer_run(const dq_writer *w, const int32_t *ids, int64_t n, dq_writer_text *out,
                        dq_err *err)
{
    next x = {.w = w};
    text_stream stream = {.t = w->tok};
    const char *rest;
    size_t len;
    const double begin = dq_os_seconds();
    dq_writer_text_free(out);
    if (n < 1) return dq_fail(err, DQ_MISMATCH, "a text without tokens, so nothing can follow it");
    if (dq_session_read(w->session, ids, n, 1, take_id, &x, err) == DQ_OK) {
        const double read = dq_os_seconds();
        out->read_seconds = read - begin;
        if (w->max_new > 0)
            write_all(w, &x, &stream, out, err);
        else
            out->end = DQ_TEXT_END_MAX_NEW;
        out->write_seconds = dq_os_seconds() - read;
    }
    if (stream_end(&stream, &rest, &len, err) == DQ_OK && len && w->listener)
        w->listener(w->arg, -1, 0, rest, len);
    stream_free(&stream);
    return err->code;
}
