/* Opening and closing. Settings become an argument vector, so that the rows of the command line's
 * options read them and say what is wrong with them.
 * SPDX-License-Identifier: MIT */
#include "lib/lm.h"

#include "record/version.h"
#include "settings/quantize_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[sizeof((dq_err *)0)->text];

/* Keeps a failure for dq_lm_error, in the words of the command line; returns its code. */
static int lm_failed(dq_err *err)
{
    if (err->code == DQ_OK) return 0;
    dq_advice_apply(err);
    snprintf(last_error, sizeof last_error, "%s", err->text);
    return (int)err->code;
}

const char *dq_lm_error(void)
{
    return last_error;
}

const char *dq_lm_version(void)
{
    return DQ_VERSION;
}

void dq_lm_free(void *p)
{
    dq_block_free(p);
}

void dq_lm_options_begin(dq_lm_options *o, const char *seed_of)
{
    *o = (dq_lm_options){.device = "auto"};
    dq_pass_options_begin(&o->how, seed_of);
}

dq_status dq_lm_options_read(dq_lm_options *o, dq_err *err)
{
    return dq_kv_options_read(&o->how.kv, false, err);
}

dq_status dq_lm_begin(struct dq_lm *m, const char *path, dq_lm_options *o, dq_err *err)
{
    DQ_TRY(dq_backend_open(&m->backend, o->device, (int)o->threads, err));
    DQ_TRY(dq_input_model(&m->model, path, &o->head_order, m->logger, err));
    o->how.kv.logger = m->logger;
    DQ_TRY(dq_pass_options_of(&m->pass, &m->kv, &o->how, m->model, m->backend, err));
    DQ_TRY(dq_input_tokenizer(&m->tok, m->model, false, err));
    DQ_TRY(dq_stop_ids_add(&m->stops, m->model, m->tok, m->model->vocab, err));
    dq_input_warn_stops(&m->stops, path, m->logger);
    return dq_runner_new(&m->runner, m->model, m->backend, &m->kv, err);
}

void dq_lm_end(struct dq_lm *m)
{
    dq_session_free(m->session);
    dq_runner_free(m->runner);
    dq_tokenizer_free(m->tok);
    dq_model_close(m->model);
    dq_backend_close(m->backend);
    dq_chat_template_free(m->chat);
    free(m->about);
}

dq_status dq_lm_template(struct dq_lm *m, dq_err *err)
{
    if (!m->asked_chat) DQ_TRY(dq_chat_template_of(&m->chat, m->model, err));
    m->asked_chat = true;
    return DQ_OK;
}

dq_status dq_lm_session(struct dq_lm *m, bool evicts, dq_err *err)
{
    dq_session_free(m->session);
    return dq_session_new(&m->session, m->runner, &m->pass, evicts, err);
}

static dq_status open_with(dq_lm *m, const char *path, const char *const *settings, dq_err *err)
{
    dq_lm_options *o = dq_block_new(1, sizeof *o, err); /* too large for a stack */
    if (!o) return err->code;
    dq_lm_options_begin(o, "of the policy random (default 1)");
    const dq_opt rows[] = {DQ_LM_OPTION_ROWS(*o), {0}};
    dq_settings s;
    if (dq_settings_read(&s, settings, rows, err) == DQ_OK && dq_lm_options_read(o, err) == DQ_OK &&
        dq_lm_begin(m, path, o, err) == DQ_OK)
        dq_input_head_order_check(&o->head_order, err);
    dq_settings_free(&s);
    dq_block_free(o);
    return err->code;
}

int dq_lm_open(dq_lm **out, const char *path, const char *const *settings)
{
    dq_err err = {0};
    *out = NULL;
    dq_lm *m = dq_block_new(1, sizeof *m, &err);
    dq_logger *logger = m ? dq_block_new(1, sizeof *logger, &err) : NULL;
    if (logger) {
        m->forks = dq_os_forks();
        m->logger = logger;
        logger->quiet = true;
        if (dq_logger_begin(logger, "lib", &err) == DQ_OK) open_with(m, path, settings, &err);
    }
    if (err.code == DQ_OK)
        *out = m;
    else
        dq_lm_close(m);
    return lm_failed(&err);
}

/* DQ_MISMATCH: one of ids[n] is not below vocab. */
static dq_status lm_check_ids(const struct dq_lm *m, const int32_t *ids, int64_t n, int vocab,
                              dq_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           m->model->path, (int)ids[i], vocab);
    }
    return DQ_OK;
}

/* Takes the model for what runs it. DQ_USAGE: it is taken, as a listener of dq_lm_generate has
 * called, or was when the process was forked. DQ_MISMATCH: a fork has left it without its GPU.
 * lm_leave gives it back, or closes it if dq_lm_close was called meanwhile. */
static dq_status lm_enter(struct dq_lm *m, dq_err *err)
{
    const bool forked = m->forks != dq_os_forks();
    if (forked && strcmp(m->backend->ops->name, "cpu") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: is on a GPU, which a forked process does not have. Start the process "
                       "anew (multiprocessing: spawn) and open the model there",
                       m->model->path);
    if (forked && m->busy)
        return dq_fail(err, DQ_USAGE, "%s: was running when the process was forked. Open it again",
                       m->model->path);
    if (m->busy)
        return dq_fail(err, DQ_USAGE, "%s: a listener cannot run the model that it listens to",
                       m->model->path);
    m->busy = true;
    return DQ_OK;
}

static void lm_leave(struct dq_lm *m)
{
    m->busy = false;
    if (m->closes) dq_lm_close(m);
}

void dq_lm_close(dq_lm *m)
{
    if (!m) return;
    if (m->busy) {
        m->closes = true;
        return;
    }
    dq_lm_end(m);
    if (m->logger) dq_logger_end(m->logger);
    dq_block_free(m->logger);
    dq_block_free(m);
}

int32_t dq_lm_vocab(const dq_lm *m)
{
    return m->model->vocab;
}

int32_t dq_lm_positions(const dq_lm *m)
{
    return m->model->max_positions;
}

int64_t dq_lm_stop_ids(const dq_lm *m, const int32_t **ids)
{
    *ids = m->stops.id;
    return m->stops.n;
}

int32_t dq_lm_prefix_id(const dq_lm *m)
{
    return m->tok ? dq_tokenizer_prefix(m->tok) : -1;
}

const char *dq_lm_describe(dq_lm *m)
{
    const dq_model *model = m->model;
    free(m->about);
    json_t *settings =
        json_pack("{s:i, s:s, s:s, s:o}", "logit_bits", m->pass.logit.bits, "logit_granularity",
                  dq_granularity_name[m->pass.logit.granularity], "math",
                  dq_num_name[m->pass.math.linear], "kv", dq_kv_spec_json(&m->kv));
    json_t *o = json_pack(
        "{s:o, s:s, s:I, s:o, s:i, s:i, s:i, s:s, s:o, s:O}", "name", dq_document_name(model->name),
        "architecture", model->architecture->name, "parameters", (json_int_t)model->n_params,
        "bits_per_weight", dq_document_real(dq_model_size_of(model).bits_per_weight), "layers",
        model->n_layers, "vocabulary", model->vocab, "positions", model->max_positions, "device",
        m->backend->device, "settings", settings, "warnings", m->logger->warnings);
    m->about = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    return m->about ? m->about : "{}";
}

static dq_status need_tokenizer(const dq_lm *m, dq_err *err)
{
    return m->tok ? DQ_OK
                  : dq_fail(err, DQ_MISMATCH, "%s: the model has no tokenizer", m->model->path);
}

static void end_with_zero(char **out, const char *s, size_t len, dq_err *err)
{
    *out = dq_block_new(len + 1, 1, err);
    if (*out && len) memcpy(*out, s, len);
}

int dq_lm_encode(dq_lm *m, const char *text, size_t len, int special, int32_t **ids, int64_t *n)
{
    dq_err err = {0};
    int64_t first_bad, n_bad;
    *ids = NULL;
    *n = 0;
    if (special < 0 || special > 2)
        dq_fail(&err, DQ_USAGE, "special: expected 0, 1 or 2, found %d", special);
    else if (need_tokenizer(m, &err) == DQ_OK) {
        const unsigned flags = special ? dq_items_bos_flags(m->tok, DQ_BOS_AUTO, text, len) : 0;
        dq_tokenizer_encode(m->tok, text, len, flags, ids, n, &first_bad, &n_bad, &err);
        int before, after;
        dq_tokenizer_template(m->tok, flags, &before, &after);
        if (special == 2 && err.code == DQ_OK) *n -= after;
    }
    return lm_failed(&err);
}

void dq_lm_warn_lost(struct dq_lm *m, const char *text, size_t len, const dq_chat_message *said,
                     int n)
{
    const char *role = dq_chat_template_lost(text, len, said, n);
    if (role)
        dq_logger_warn(
            m->logger,
            "%s: the chat template leaves what the %s says out of the prompt, or changes "
            "it",
            m->model->path, role);
}

int dq_lm_chat(dq_lm *m, const dq_lm_message *messages, int n, int answer, char **text, size_t *len)
{
    dq_err err = {0};
    char *rendered = NULL;
    *text = NULL;
    *len = 0;
    dq_chat_message *said = dq_block_new((size_t)n + 1, sizeof *said, &err);
    for (int i = 0; said && i < n; i++)
        said[i] = (dq_chat_message){messages[i].role, messages[i].content};
    if (said && dq_lm_template(m, &err) == DQ_OK && !m->chat)
        dq_fail(&err, DQ_MISMATCH, "%s: the model has no chat template", m->model->path);
    if (err.code == DQ_OK && dq_chat_template_prompt(m->chat, m->model->path, said, n, answer,
                                                     &rendered, len, &err) == DQ_OK) {
        dq_lm_warn_lost(m, rendered, *len, said, n);
        end_with_zero(text, rendered, *len, &err);
    }
    dq_block_free(rendered);
    dq_block_free(said);
    return lm_failed(&err);
}

int dq_lm_decode(dq_lm *m, const int32_t *ids, int64_t n, int special, char **text, size_t *len)
{
    dq_err err = {0};
    char *decoded = NULL;
    *text = NULL;
    *len = 0;
    const int vocab = need_tokenizer(m, &err) == DQ_OK ? dq_tokenizer_vocab(m->tok) : 0;
    const int known = vocab > m->model->vocab ? vocab : m->model->vocab;
    if (err.code == DQ_OK && lm_check_ids(m, ids, n, known, &err) == DQ_OK &&
        dq_tokenizer_decode(m->tok, ids, n, special ? DQ_TOK_SPECIAL : 0, &decoded, len, &err) ==
            DQ_OK)
        end_with_zero(text, decoded, *len, &err);
    dq_block_free(decoded);
    return lm_failed(&err);
}

/* Requests that share a context become an item with choices, scored as dq eval scores multiple
 * choice. */

static dq_status check_ids(const dq_lm *m, const int32_t *ids, int64_t n, dq_err *err)
{
    const dq_model *model = m->model;
    if (model->max_positions > 0 && n > model->max_positions)
        return dq_fail(err, DQ_MISMATCH, "%s: %lld tokens, but the model has %d positions",
                       model->path, (long long)n, model->max_positions);
    return lm_check_ids(m, ids, n, model->vocab, err);
}

typedef struct block {
    float *logits;
    int64_t vocab;
} block;

static dq_status copy_block(void *arg, const float *logits, int64_t first, int64_t n, dq_err *err)
{
    const block *b = arg;
    (void)err;
    memcpy(b->logits + first * b->vocab, logits, (size_t)(n * b->vocab) * sizeof *logits);
    return DQ_OK;
}

static dq_status logits_of(dq_lm *m, const int32_t *ids, int64_t n, int64_t context, float *logits,
                           dq_err *err)
{
    block b = {logits, m->model->vocab};
    if (n < 1 || context < 0 || context > n)
        return dq_fail(err, DQ_USAGE, "logits: %lld tokens with a context of %lld", (long long)n,
                       (long long)context);
    DQ_TRY(dq_lm_session(m, context > 0, err));
    if (context > 0)
        DQ_TRY(dq_session_read(m->session, ids, context, context, copy_block, &b, err));
    const int64_t rest = n - context;
    return dq_session_continue(m->session, ids + context, rest, rest, copy_block, &b, err);
}

int dq_lm_logits(dq_lm *m, const int32_t *ids, int64_t n, int64_t context, float *logits)
{
    dq_err err = {0};
    if (lm_enter(m, &err) == DQ_OK) {
        logits_of(m, ids, n, context, logits, &err);
        lm_leave(m);
    }
    return lm_failed(&err);
}

static bool same_context(const dq_lm_request *a, const dq_lm_request *b)
{
    return a->context == b->context &&
           (a->ids == b->ids || memcmp(a->ids, b->ids, (size_t)a->context * sizeof *a->ids) == 0);
}

static dq_status make_requests(dq_requests *q, const dq_lm *m, const dq_lm_request *r, int64_t n,
                               dq_arena *a, dq_err *err)
{
    dq_request *req = dq_alloc(a, (size_t)n, sizeof *req, err);
    int64_t *at = dq_alloc(a, (size_t)n + 1, sizeof *at, err);
    if (!req || !at) return err->code;
    *q = (dq_requests){.req = req, .at = at, .n = n};
    for (int64_t i = 0; i < n; i++) {
        if (r[i].context < 1 || r[i].n <= r[i].context)
            return dq_fail(
                err, DQ_USAGE,
                "request %lld: %lld tokens with a context of %lld (expected at least one "
                "of context and one to score)",
                (long long)i, (long long)r[i].n, (long long)r[i].context);
        if (check_ids(m, r[i].ids, r[i].n - 1, err) != DQ_OK ||
            check_ids(m, r[i].ids + r[i].n - 1, 1, err) != DQ_OK)
            return dq_in(err, "request %lld: ", (long long)i);
        if (i == 0 || !same_context(&r[i - 1], &r[i])) at[q->n_items++] = i;
        req[i] = (dq_request){.ctx = r[i].ids,
                              .cont = r[i].ids + r[i].context,
                              .n_ctx = r[i].context,
                              .n_cont = r[i].n - r[i].context,
                              .value = q->n_values,
                              .item = q->n_items - 1,
                              .choice = (int)(i - at[q->n_items - 1])};
        q->n_values += req[i].n_cont;
    }
    at[q->n_items] = n;
    return DQ_OK;
}

static dq_status score(dq_lm *m, const dq_lm_request *requests, int64_t n, double *logp,
                       int *greedy, dq_arena *a, dq_err *err)
{
    dq_requests q;
    dq_scores out;
    DQ_TRY(make_requests(&q, m, requests, n, a, err));
    out.logp = dq_alloc(a, (size_t)q.n_values, sizeof *out.logp, err);
    out.top1 = dq_alloc(a, (size_t)q.n_values, sizeof *out.top1, err);
    DQ_TRY(err->code);
    dq_scorer s;
    const bool shared = dq_score_shares(&m->pass, &m->kv);
    const int64_t rows = dq_score_rows(m->runner, shared);
    DQ_TRY(dq_score_begin(&s, m->runner, &m->pass, &m->kv, err));
    for (int64_t begin = 0, end; begin < q.n_items && err->code == DQ_OK; begin = end) {
        end = dq_score_group(&q, begin, rows, shared);
        dq_score_items(&s, &q, begin, end, out, err);
    }
    dq_score_end(&s);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const dq_request *r = &q.req[i];
        logp[i] = 0;
        greedy[i] = 1;
        for (int64_t k = 0; k < r->n_cont; k++) {
            logp[i] += out.logp[r->value + k];
            greedy[i] = greedy[i] && out.top1[r->value + k] == r->cont[k];
        }
    }
    return DQ_OK;
}

int dq_lm_score(dq_lm *m, const dq_lm_request *requests, int64_t n, double *logp, int *greedy)
{
    dq_err err = {0};
    if (lm_enter(m, &err) != DQ_OK) return lm_failed(&err);
    dq_arena *a = dq_arena_new();
    dq_session_free(m->session); /* whose cache is memory */
    m->session = NULL;
    if (!a)
        dq_fail(&err, DQ_RESOURCE, "out of memory");
    else
        score(m, requests, n, logp, greedy, a, &err);
    dq_arena_free(a);
    lm_leave(m);
    return lm_failed(&err);
}

typedef struct told {
    dq_lm_listener *listener;
    void *arg;
} told;

static bool tell(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    const told *t = arg;
    return t->listener(t->arg, id, logp, piece, len) != 0;
}

static dq_sampling sampling_of(const dq_lm_sampling *s)
{
    return s ? (dq_sampling){.temperature = s->temperature,
                             .top_k = s->top_k,
                             .top_p = s->top_p == 0 ? 1 : s->top_p,
                             .min_p = s->min_p,
                             .seed = s->seed}
             : dq_sampler_greedy;
}

int dq_lm_generate(dq_lm *m, const int32_t *ids, int64_t n, int64_t max_new,
                   const dq_lm_sampling *sampling, dq_lm_listener *listener, void *arg,
                   int32_t *out, int64_t *n_out)
{
    dq_err err = {0};
    dq_sampler sampler = {0};
    dq_writer_text text = {0};
    told to = {listener, arg};
    const dq_sampling how = sampling_of(sampling);
    *n_out = 0;
    if (lm_enter(m, &err) != DQ_OK) return lm_failed(&err);
    if (dq_sampler_begin(&sampler, &how, m->model->vocab, &err) == DQ_OK &&
        dq_lm_session(m, true, &err) == DQ_OK) {
        const dq_writer w = {.session = m->session,
                             .sampler = &sampler,
                             .tok = m->tok,
                             .stops = &m->stops,
                             .max_new = max_new,
                             .listener = listener ? tell : NULL,
                             .arg = &to};
        if (dq_writer_run(&w, ids, n, &text, &err) == DQ_OK) {
            if (text.n) memcpy(out, text.ids, (size_t)text.n * sizeof *out);
            *n_out = text.n;
        }
    }
    dq_writer_text_free(&text);
    dq_sampler_end(&sampler);
    lm_leave(m);
    return lm_failed(&err);
}

static dq_status quantize(dq_quantize_request *r, dq_args *args, const char *const *settings,
                          dq_err *err)
{
    const dq_opt rows[] = {DQ_QUANTIZE_REQUEST_OPTIONS(*r),
                           dq_opt_flag("resume", &r->resume, "finish an interrupted run"),
                           dq_opt_flag("force", &r->force, "replace the output"),
                           dq_opt_int("threads", "N", &r->threads, 1, 1024, "threads"),
                           {0}};
    dq_settings s;
    dq_quantizer *q = NULL;
    if (dq_settings_read(&s, settings, rows, err) == DQ_OK &&
        dq_quantize_request_read(r, err) == DQ_OK && dq_options_inputs(args, rows, err) == DQ_OK &&
        dq_quantize_request_open(&q, r, args, err) == DQ_OK &&
        dq_quantize_request_check(r, q, err) == DQ_OK)
        dq_quantize_request_write(r, q, NULL, err);
    dq_quantize_close(q);
    dq_settings_free(&s);
    return err->code;
}

int dq_lm_quantize(const char *model, const char *out, const char *const *settings)
{
    dq_err err = {0};
    dq_logger logger = {.quiet = true};
    dq_quantize_request *r = dq_block_new(1, sizeof *r, &err); /* too large for a stack */
    dq_args *args = dq_block_new(1, sizeof *args, &err);
    if (!r || !args) {
        dq_block_free(r);
        dq_block_free(args);
        return lm_failed(&err);
    }
    args->item[args->n++] = args->input[args->n_inputs++] = model;
    dq_os_forks(); /* a child of this process shall have threads */
    dq_quantize_request_begin(r, &logger);
    r->out = out;
    if (dq_logger_begin(&logger, "quantize", &err) == DQ_OK) quantize(r, args, settings, &err);
    dq_quantize_request_end(r);
    dq_logger_end(&logger);
    dq_block_free(r);
    dq_block_free(args);
    return lm_failed(&err);
}
