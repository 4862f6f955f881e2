/* conversation: a turn renders the whole conversation anew and feeds what the session has not had. Where what it has had reads
 * otherwise now, as after a text that its tokens do not spell again, it begins anew.
 * SPDX-License-Identifier: MIT */
#include "cmds/generate/conversation.h"

#include "tasks/items.h"

#include <string.h>

dq_status dq_conversation_begin(dq_conversation *t, const char *path, dq_lm_options *o,
                                const dq_sampling *how, bool raw, dq_err *err)
{
    DQ_TRY(dq_lm_begin(&t->lm, path, o, err));
    if (!t->lm.tok)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: the model has no tokenizer, so it cannot read a prompt", path);
    if (!raw) DQ_TRY(dq_lm_template(&t->lm, err));
    t->raw = !t->lm.chat;
    DQ_TRY(dq_sampler_begin(&t->sampler, how, t->lm.model->vocab, err));
    return dq_lm_session(&t->lm, true, err);
}

static void drop_said(dq_conversation *t, int n)
{
    while (t->n_said > n) dq_block_free((char *)(uintptr_t)t->said[--t->n_said].content);
}

void dq_conversation_end(dq_conversation *t)
{
    drop_said(t, 0);
    dq_block_free(t->said);
    dq_block_free(t->ids);
    dq_writer_text_free(&t->text);
    dq_sampler_end(&t->sampler);
    dq_lm_end(&t->lm);
}

/* A zero byte that a model wrote would end the text: U+001A, SUBSTITUTE, stands for it. */
static dq_status say(dq_conversation *t, const char *role, const char *text, size_t len,
                     dq_err *err)
{
    dq_chat_message *said =
        dq_grow(NULL, t->said, (size_t)t->n_said + 1, &t->cap_said, sizeof *said, err);
    if (!said) return err->code;
    t->said = said;
    char *copy = dq_block_new(len + 1, 1, err);
    if (!copy) return err->code;
    for (size_t i = 0; i < len; i++) copy[i] = text[i] ? text[i] : '\x1a';
    t->said[t->n_said++] = (dq_chat_message){role, copy};
    return DQ_OK;
}

dq_status dq_conversation_system(dq_conversation *t, const char *text, dq_err *err)
{
    if (t->raw)
        return dq_fail(err, DQ_MISMATCH, "%s: without a chat template there is no system message",
                       t->lm.model->path);
    return say(t, "system", text, strlen(text), err);
}

static int n_kept(const dq_conversation *t)
{
    return t->n_said > 0 && strcmp(t->said[0].role, "system") == 0;
}

static void begin_anew(dq_conversation *t)
{
    dq_err again = {0};
    t->n_cached = 0;
    dq_session_clear(t->lm.session, &again); /* a failure comes back with the next pass */
}

void dq_conversation_restart(dq_conversation *t)
{
    drop_said(t, n_kept(t));
    t->n_ids = 0;
    begin_anew(t);
}

/* ---- A turn ---- */

static dq_status encode_chat(dq_conversation *t, int32_t **ids, int64_t *n, dq_err *err)
{
    char *text = NULL;
    size_t len;
    int64_t bad, first;
    if (dq_chat_template_prompt(t->lm.chat, t->lm.model->path, t->said, t->n_said, true, &text,
                                &len, err) == DQ_OK) {
        dq_lm_warn_lost(&t->lm, text, len, t->said, t->n_said);
        dq_tokenizer_encode(t->lm.tok, text, len, 0, ids, n, &first, &bad, err);
    }
    dq_block_free(text);
    return err->code;
}

/* What has been written so far with `text` after it, or that alone. */
static dq_status encode_raw(dq_conversation *t, const char *text, int32_t **ids, int64_t *n,
                            dq_err *err)
{
    const size_t len = strlen(text);
    const unsigned flags = t->n_ids ? 0 : dq_items_bos_flags(t->lm.tok, DQ_BOS_AUTO, text, len);
    int64_t bad, first, own;
    int before, after;
    int32_t *new_ids;
    DQ_TRY(dq_tokenizer_encode(t->lm.tok, text, len, flags, &new_ids, &own, &first, &bad, err));
    dq_tokenizer_template(t->lm.tok, flags, &before, &after);
    own -= after; /* nothing follows an end */
    const int64_t old = t->n_ids;
    *n = old + own;
    *ids = dq_block_new((size_t)*n + 1, sizeof **ids, err);
    if (*ids) {
        if (old) memcpy(*ids, t->ids, (size_t)old * sizeof **ids);
        memcpy(*ids + old, new_ids, (size_t)own * sizeof **ids);
        const int32_t prefix = dq_tokenizer_prefix(t->lm.tok);
        if (*n == 0 && prefix >= 0) (*ids)[(*n)++] = prefix;
    }
    dq_block_free(new_ids);
    return err->code;
}

static dq_status remember(dq_conversation *t, const int32_t *ids, int64_t n, dq_err *err)
{
    int32_t *all = dq_grow(NULL, t->ids, (size_t)(t->n_ids + n), &t->cap_ids, sizeof *all, err);
    if (!all) return err->code;
    t->ids = all;
    if (n) memcpy(t->ids + t->n_ids, ids, (size_t)n * sizeof *all);
    t->n_ids += n;
    return DQ_OK;
}

/* Feeds what is new of the prompt ids[n], and writes. */
static dq_status run_turn(dq_conversation *t, const int32_t *ids, int64_t n, int64_t max_new,
                          dq_writer_listener *listener, void *arg, dq_err *err)
{
    const int64_t cached = t->n_cached;
    if (n <= cached || (cached && memcmp(ids, t->ids, (size_t)cached * sizeof *ids) != 0)) {
        t->n_cached = 0;
        DQ_TRY(dq_session_clear(t->lm.session, err));
    }
    const dq_writer w = {.session = t->lm.session,
                         .sampler = &t->sampler,
                         .tok = t->lm.tok,
                         .stops = &t->lm.stops,
                         .max_new = max_new,
                         .listener = listener,
                         .arg = arg};
    t->n_prompt = n;
    t->n_read = n - t->n_cached;
    DQ_TRY(dq_writer_run(&w, ids + t->n_cached, n - t->n_cached, &t->text, err));
    t->n_ids = 0;
    DQ_TRY(remember(t, ids, n, err));
    DQ_TRY(remember(t, t->text.ids, t->text.n, err));
    t->n_cached = dq_session_length(t->lm.session);
    return DQ_OK;
}

dq_status dq_conversation_turn(dq_conversation *t, const char *text, int64_t max_new,
                               dq_writer_listener *listener, void *arg, dq_err *err)
{
    const int before = t->n_said;
    int32_t *ids = NULL;
    int64_t n = 0;
    char *answer = NULL;
    size_t len;
    if (!t->raw) {
        if (say(t, "user", text, strlen(text), err) == DQ_OK) encode_chat(t, &ids, &n, err);
    } else {
        encode_raw(t, text, &ids, &n, err);
    }
    if (err->code == DQ_OK && run_turn(t, ids, n, max_new, listener, arg, err) == DQ_OK &&
        !t->raw && dq_conversation_text(&answer, &len, t, t->text.ids, t->text.n, 0, err) == DQ_OK)
        say(t, "assistant", answer, len, err);
    if (err->code != DQ_OK) {
        drop_said(t, before);
        begin_anew(t);
    }
    dq_block_free(answer);
    dq_block_free(ids);
    return err->code;
}

/* ---- After it ---- */

typedef struct two {
    const int32_t *id;
    double *logp;
    int64_t vocab;
} two;

static dq_status take_two(void *arg, const float *logits, int64_t first, int64_t n, dq_err *err)
{
    const two *x = arg;
    (void)first;
    (void)n;
    (void)err;
    for (int i = 0; i < 2; i++) x->logp[i] = dq_sampler_logp(logits, x->vocab, x->id[i]);
    return DQ_OK;
}

dq_status dq_conversation_probe(double logp[2], dq_conversation *t, int64_t n, const int32_t id[2],
                                dq_err *err)
{
    two x = {id, logp, t->lm.model->vocab};
    dq_session *s = t->lm.session;
    DQ_TRY(dq_session_clear(s, err));
    DQ_TRY(dq_session_read(s, t->ids, t->n_prompt, 1, take_two, &x, err));
    for (int64_t i = 0; i < n; i++) /* as they were written */
        DQ_TRY(dq_session_continue(s, &t->text.ids[i], 1, 1, take_two, &x, err));
    return DQ_OK;
}

dq_status dq_conversation_text(char **text, size_t *len, const dq_conversation *t,
                               const int32_t *ids, int64_t n, unsigned flags, dq_err *err)
{
    char *decoded = NULL;
    *text = NULL;
    *len = 0;
    if (n == 0)
        *text = dq_block_new(1, 1, err);
    else if (dq_tokenizer_decode(t->lm.tok, ids, n, flags, &decoded, len, err) == DQ_OK)
        *text = dq_block_new(*len + 1, 1, err);
    if (*text && *len) memcpy(*text, decoded, *len);
    dq_block_free(decoded);
    return err->code;
}
