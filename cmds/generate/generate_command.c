/* A turn renders the whole conversation anew and feeds what the session has not had. Where what it
 * has had reads otherwise now, as after a text that its tokens do not spell again, it begins anew.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "lib/lm.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "tasks/items.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

typedef struct answer {
    char *s; /* n bytes, and a NUL */
    size_t n;
} answer;

typedef struct dq_conversation {
    dq_lm lm;
    bool raw; /* texts are continued as they stand */
    dq_sampler sampler;
    dq_chat_message *said; /* [n_said], owned texts */
    int n_said;
    size_t cap_said;
    int32_t *ids;            /* [n_ids]: the last turn's prompt and what was written after it */
    int64_t n_ids, n_cached; /* of them, those in the cache */
    size_t cap_ids;
    int64_t n_prompt;    /* tokens before what the last turn wrote */
    int64_t n_read;      /* of them, those that it had to read; the others were in the cache */
    dq_writer_text text; /* of the last turn */
    answer words;        /* the same in words, without special tokens; owned */
} dq_conversation;

/* Where two texts part: after `same` tokens they differ, or one ends. */
typedef struct dq_compare_parting {
    int64_t same;
    bool parts;     /* false: they are equal */
    int32_t id[2];  /* the token of each there; -1: it ended */
    double p[2][2]; /* of model i, the probability of id[k]; NaN for an end */
} dq_compare_parting;

/* The text of ids in a block, which may contain NULs; flags: of dq_tokenizer_decode. */
static dq_status decode(answer *out, const dq_conversation *t, const int32_t *ids, int64_t n,
                        unsigned flags, dq_err *err)
{
    char *decoded = NULL;
    *out = (answer){0};
    if (n) DQ_TRY(dq_tokenizer_decode(t->lm.tok, ids, n, flags, &decoded, &out->n, err));
    out->s = dq_block_new(out->n + 1, 1, err);
    if (out->s && out->n) memcpy(out->s, decoded, out->n);
    dq_block_free(decoded);
    return err->code;
}

static void drop_said(dq_conversation *t, int n)
{
    while (t->n_said > n) dq_block_free((char *)(uintptr_t)t->said[--t->n_said].content);
}

static void conversation_end(dq_conversation *t)
{
    drop_said(t, 0);
    dq_block_free(t->said);
    dq_block_free(t->ids);
    dq_block_free(t->words.s);
    dq_writer_text_free(&t->text);
    dq_sampler_end(&t->sampler);
    dq_lm_end(&t->lm);
}

/* U+001A (SUBSTITUTE) replaces zero bytes, which would end the text. */
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

static void begin_anew(dq_conversation *t)
{
    dq_err again = {0};
    t->n_cached = 0;
    dq_session_clear(t->lm.session, &again); /* a failure comes back with the next pass */
}

/* The text so far with `text` appended, or that alone. */
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

/* Feeds the new part of the prompt ids[n], and writes. */
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

/* The model answers `text`, or continues it without a chat template. A failed turn is undone, and
 * the next starts with an empty cache. */
static dq_status conversation_turn(dq_conversation *t, const char *text, int64_t max_new,
                                   dq_writer_listener *listener, void *arg, dq_err *err)
{
    const int before = t->n_said;
    int32_t *ids = NULL;
    int64_t n = 0;
    if (!t->raw) {
        if (say(t, "user", text, strlen(text), err) == DQ_OK) {
            char *chat = NULL;
            size_t length;
            int64_t bad, first;
            if (dq_chat_template_prompt(t->lm.chat, t->lm.model->path, t->said, t->n_said, true,
                                        &chat, &length, err) == DQ_OK) {
                dq_lm_warn_lost(&t->lm, chat, length, t->said, t->n_said);
                dq_tokenizer_encode(t->lm.tok, chat, length, 0, &ids, &n, &first, &bad, err);
            }
            dq_block_free(chat);
        }
    } else {
        encode_raw(t, text, &ids, &n, err);
    }
    dq_block_free(t->words.s);
    t->words = (answer){0};
    if (err->code == DQ_OK && run_turn(t, ids, n, max_new, listener, arg, err) == DQ_OK &&
        decode(&t->words, t, t->text.ids, t->text.n, 0, err) == DQ_OK && !t->raw)
        say(t, "assistant", t->words.s, t->words.n, err);
    if (err->code != DQ_OK) {
        drop_said(t, before);
        begin_anew(t);
    }
    dq_block_free(ids);
    return err->code;
}

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

/* The common beginning is printed once; the rest wraps at spaces into two columns, by the
 * terminal's character widths. */

enum { COLUMN = 48 };

/* After one turn of each; uses up the sessions. */
static dq_status compare_texts(dq_compare_parting *out, dq_conversation side[2], dq_err *err)
{
    const dq_writer_text *a = &side[0].text, *b = &side[1].text;
    *out = (dq_compare_parting){.id = {-1, -1}};
    while (out->same < a->n && out->same < b->n && a->ids[out->same] == b->ids[out->same])
        out->same++;
    out->parts = out->same < a->n || out->same < b->n;
    for (int i = 0; i < 2; i++) {
        out->id[i] = out->same < side[i].text.n ? side[i].text.ids[out->same] : -1;
        for (int k = 0; k < 2; k++) out->p[i][k] = (double)NAN;
    }
    if (!out->parts) return DQ_OK;
    const int32_t known = out->id[0] >= 0 ? out->id[0] : out->id[1];
    const int32_t asked[2] = {out->id[0] >= 0 ? out->id[0] : known,
                              out->id[1] >= 0 ? out->id[1] : known};
    for (int i = 0; i < 2; i++) {
        double logp[2];
        /* ln probabilities of two ids after the first n ids of the last turn. Uses up the session:
         * only conversation_end may follow. */
        dq_conversation *t = &side[i];
        two x = {asked, logp, t->lm.model->vocab};
        dq_session *s = t->lm.session;
        DQ_TRY(dq_session_clear(s, err));
        DQ_TRY(dq_session_read(s, t->ids, t->n_prompt, 1, take_two, &x, err));
        for (int64_t j = 0; j < out->same; j++) /* as they were written */
            DQ_TRY(dq_session_continue(s, &t->text.ids[j], 1, 1, take_two, &x, err));
        for (int k = 0; k < 2; k++) {
            if (out->id[k] >= 0) out->p[i][k] = exp(logp[k]);
        }
    }
    return DQ_OK;
}

/* Bytes and width of the next line of s, which ends at a newline or the last space that fits. */
static size_t next_line(const char *s, int *width)
{
    size_t end = 0, n = 0;
    int wide = 0;
    *width = 0;
    while (s[n] && s[n] != '\n') {
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s + n, -1, &c);
        if (len < 1) {
            len = 1;
            c = '?';
        }
        if (wide + utf8proc_charwidth(c) > COLUMN) break;
        wide += utf8proc_charwidth(c);
        n += (size_t)len;
        if (c == ' ') {
            end = n;
            *width = wide;
        }
    }
    if (!s[n] || s[n] == '\n' || end == 0) {
        *width = wide;
        return n;
    }
    return end;
}

static const char *print_cell(const char *s, bool pad)
{
    int width = 0;
    const size_t n = next_line(s, &width);
    fwrite(s, 1, n, stdout);
    if (pad) printf("%*s", COLUMN - width, "");
    s += n;
    return *s == '\n' ? s + 1 : s;
}

static void print_columns(const char *a, const char *b)
{
    while (*a || *b) {
        a = print_cell(a, true);
        fputs(" | ", stdout);
        b = print_cell(b, false);
        putchar('\n');
    }
}

/* Control characters and tabs would break the columns. Returns the new length. */
static size_t make_plain(char *s, size_t n)
{
    const size_t to = dq_utf8_plain(s, s, n);
    for (size_t i = 0; i < to; i++) {
        if (s[i] == '\t') s[i] = ' ';
    }
    return to;
}

static dq_status print_token(const dq_conversation *t, int32_t id, dq_err *err)
{
    answer text;
    if (id < 0) {
        printf("its end");
        return DQ_OK;
    }
    DQ_TRY(decode(&text, t, &id, 1, DQ_TOK_SPECIAL, err));
    json_t *quoted = json_stringn(text.s, text.n);
    char *line = quoted ? json_dumps(quoted, JSON_ENCODE_ANY) : NULL;
    printf("%s", line ? line : "\"?\"");
    free(line);
    json_decref(quoted);
    dq_block_free(text.s);
    return DQ_OK;
}

static dq_status print_parting(const dq_compare_parting *p, const dq_conversation side[2],
                               dq_err *err)
{
    printf("\nThey part after %lld equal token%s:\n", (long long)p->same, p->same == 1 ? "" : "s");
    for (int i = 0; i < 2; i++) {
        printf("  %s writes ", side[i].lm.model->name);
        DQ_TRY(print_token(&side[i], p->id[i], err));
        if (p->id[i] >= 0) printf(", probability %.3f", p->p[i][i]);
        if (p->id[1 - i] >= 0) printf("; the other's has %.3f", p->p[i][1 - i]);
        putchar('\n');
    }
    return DQ_OK;
}

/* Whole characters only. */
static size_t common(answer a, answer b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.s[n] == b.s[n]) n++;
    while (n > 0 && ((a.s[n] & 0xC0) == 0x80 || (b.s[n] & 0xC0) == 0x80)) n--;
    return n;
}

/* Drops empty lines at the end. */
static void end_text(answer *a)
{
    while (a->n > 0 && (a->s[a->n - 1] == ' ' || a->s[a->n - 1] == '\n')) a->n--;
    a->s[a->n] = 0;
}

enum { MODELS = 2, MAX_PROMPT = 16 << 20 };

typedef struct generate {
    const char *compare, *prompt_file, *system;
    int64_t max_new, top_k;
    double temperature, top_p, min_p;
    bool interactive, raw, json;
    dq_lm_options lm; /* of both models */
    dq_sampling how;
    dq_logger logger;
    dq_arena *arena;
    const char *prompt;
    dq_conversation side[MODELS];
    dq_compare_parting parting; /* of --compare */
    int n_models;
    bool streams;  /* pieces go to stdout */
    bool said;     /* some have in this turn */
    int n_refused; /* turns of a conversation, the last of them for this reason */
    dq_status refusal;
} generate;

static const dq_usage usage = {
    .name = "generate",
    .synopsis = "MODEL [\"PROMPT\"] [options]",
    .about =
        "Prints what a model writes after a prompt, token by token. A model with a chat template "
        "is asked with it; --raw lets it continue the text as it stands. The most likely token is "
        "taken unless --temperature says otherwise. --compare runs a second model on the same "
        "prompt and shows the token at which they part. -i is a conversation: a line is a "
        "turn, Ctrl-C ends an answer, Ctrl-D the conversation, and /new begins another one.\n",
    .examples = "  dq generate model.gguf \"What is attention?\"\n"
                "  dq generate model.gguf \"What is attention?\" --compare small.h5\n"
                "  dq generate small.h5 -i --temperature 0.7 --top-p 0.9 --seed 1\n"
                "  dq generate base-model/ --raw \"Once upon a time\" -n 64\n"
                "  dq generate model.gguf --prompt-file report.txt --kv-bits 4 --kv-keep 0.25\n",
    .min_args = 1,
    .max_args = 2,
    .args = "one MODEL and one prompt"};

/* A longer text than any model reads would waste memory before its tokens are counted. */
static dq_status check_text(const char *what, const char *text, size_t len, dq_err *err)
{
    int64_t first;
    if (len > MAX_PROMPT)
        return dq_fail(err, DQ_MISMATCH, "%s: %zu bytes (expected at most %d)", what, len,
                       MAX_PROMPT);
    if (memchr(text, 0, len))
        return dq_fail(err, DQ_DAMAGED, "%s: a zero byte, which no text has", what);
    if (dq_utf8_check(text, len, &first) == 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: not UTF-8 at byte %lld", what, (long long)first);
}

static dq_status read_texts(generate *x, const dq_args *args, dq_err *err)
{
    char *text;
    size_t len;
    if (x->system) DQ_TRY(check_text("--system", x->system, strlen(x->system), err));
    if (x->prompt_file) {
        DQ_TRY(dq_file_read_text(&text, &len, x->prompt_file, MAX_PROMPT, x->arena, err));
        if (len && text[len - 1] == '\n')
            text[--len] = 0; /* the file's end, as llama.cpp's -f has it */
        x->prompt = text;
        return check_text(x->prompt_file, text, len, err);
    }
    if (args->n > 1) x->prompt = args->item[1];
    return x->prompt ? check_text("the prompt", x->prompt, strlen(x->prompt), err) : DQ_OK;
}

/* The model's side, which conversation_end ends, after a failure too. */
static dq_status open_model(generate *x, const char *path, dq_err *err)
{
    dq_conversation *t = &x->side[x->n_models++];
    t->lm.logger = &x->logger;
    DQ_TRY(dq_lm_begin(&t->lm, path, &x->lm, err));
    if (!t->lm.tok)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: the model has no tokenizer, so it cannot read a prompt", path);
    if (!x->raw) DQ_TRY(dq_lm_template(&t->lm, err));
    t->raw = !t->lm.chat;
    DQ_TRY(dq_sampler_begin(&t->sampler, &x->how, t->lm.model->vocab, err));
    DQ_TRY(dq_lm_session(&t->lm, true, err));
    if (x->system && t->raw)
        return dq_fail(err, DQ_MISMATCH, "%s: without a chat template there is no system message",
                       t->lm.model->path);
    return x->system ? say(t, "system", x->system, strlen(x->system), err) : DQ_OK;
}

static bool chat_say(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    generate *x = arg;
    (void)id;
    (void)logp;
    if (x->streams && len) {
        dq_stdout_put_exact(piece, len);
        x->said = true;
    }
    return ferror(stdout) || dq_stdout_reader_left();
}

static dq_status one_turn(generate *x, dq_conversation *t, const char *prompt, dq_err *err)
{
    x->said = false;
    conversation_turn(t, prompt, x->max_new, chat_say, x, err);
    if (x->streams && (x->said || err->code == DQ_OK)) putchar('\n');
    DQ_TRY(err->code);
    if (x->streams) DQ_TRY(dq_stdout_flush(err));
    const dq_writer_text *text = &t->text;
    const int64_t steps = text->n - (text->end != DQ_TEXT_END_STOP_ID);
    const char *what = text->end == DQ_TEXT_END_MAX_NEW     ? " (--max-new)"
                       : text->end == DQ_TEXT_END_POSITIONS ? " (the model has no more positions)"
                       : text->end == DQ_TEXT_END_STOP_ID   ? " (the model ends its text)"
                                                            : "";
    char of[300] = "", read[48] = "", rate[48] = "";
    if (x->n_models > 1) snprintf(of, sizeof of, "%.255s: ", t->lm.model->name);
    if (t->n_read < t->n_prompt) snprintf(read, sizeof read, " (%lld new)", (long long)t->n_read);
    if (steps > 0 && text->write_seconds > 0)
        snprintf(rate, sizeof rate, ", %.1f a second", (double)steps / text->write_seconds);
    dq_logger_say(&x->logger, "%sprompt of %lld token%s%s in %.2f s; %lld token%s%s%s", of,
                  (long long)t->n_prompt, t->n_prompt == 1 ? "" : "s", read, text->read_seconds,
                  (long long)text->n, text->n == 1 ? "" : "s", what, rate);
    return DQ_OK;
}

/* Reads a line without its end; *more: there was one. DQ_DAMAGED: no text; DQ_RESOURCE: longer than
 * a prompt, perhaps endless. */
static dq_status chat_next_line(dq_strbuf *line, bool *more, const char *mark, dq_err *err)
{
    int c;
    fputs(mark, stderr);
    fflush(stderr);
    line->n = 0;
    while ((c = getc(stdin)) != EOF && c != '\n') {
        const char byte = (char)c;
        if (line->n == MAX_PROMPT)
            return dq_fail(err, DQ_RESOURCE,
                           "standard input: a line of more than the %d bytes that a "
                           "prompt may have",
                           MAX_PROMPT);
        DQ_TRY(dq_strbuf_add(line, &byte, 1, err));
    }
    *more = c == '\n' || line->n > 0;
    if (c == EOF && (ferror(stdin) || dq_os_stop_signal())) {
        *more = false;
        return dq_os_stop_signal() ? DQ_OK
                                   : dq_fail(err, DQ_FILE, "standard input: %s", strerror(errno));
    }
    while (line->n > 0 && line->s[line->n - 1] == '\r') line->n--;
    DQ_TRY(dq_strbuf_add(line, "", 1, err));
    return check_text("standard input", line->s, --line->n, err);
}

/* An interrupted answer or refused turn does not end the conversation. */
static dq_status end_turn(generate *x, dq_err *err)
{
    if (err->code == DQ_STOPPED && dq_os_stop_signal() == SIGINT) {
        dq_os_clear_stop();
        dq_logger_say(&x->logger, "interrupted; this turn is discarded");
    } else if (err->code == DQ_MISMATCH || err->code == DQ_DAMAGED) {
        dq_advice_apply(err);
        fprintf(stderr, "dq generate: error: %s\n", err->text);
        dq_logger_say(&x->logger, "this turn is discarded; /new begins another "
                                  "conversation");
        x->n_refused++;
        x->refusal = err->code;
    } else {
        return err->code;
    }
    *err = (dq_err){0};
    return DQ_OK;
}

static void put_ids(dq_row_writer *w, const char *name, const int32_t *ids, int64_t n,
                    const char *about)
{
    DQ_LIST(w, name, about);
    for (int64_t i = 0; DQ_MORE(w, i, n); i++) DQ_PUT(w, NULL, ids[i], NULL);
    dq_row_end(w);
}

static void result_rows(dq_row_writer *w, const void *sides, int64_t i)
{
    const dq_conversation *t = DQ_LIVE(w, &((const dq_conversation *)sides)[i]);
    const dq_writer_text *text = DQ_LIVE(w, &t->text);
    DQ_PUT(w, "model", t->lm.model->path, "Path as given.");
    DQ_PUT(w, "text", json_stringn(t->words.s, t->words.n),
           "What was written, without special tokens.", .ref = "string");
    DQ_PUT(w, "end", dq_text_end_name[text->end], "Why it ended.",
           DQ_WORD("stop_id", "max_new", "positions", "asked"));
    DQ_PUT(w, "chat_template", (bool)!t->raw, "Whether the model's chat template was applied.");
    DQ_PUT(w, "prompt_tokens", t->n_prompt, "Tokens of the prompt, template and all.", .min = 1);
    DQ_PUT(w, "new_tokens", text->n, "Tokens written.");
    put_ids(w, "prompt_ids", DQ_LIVE(w, t->ids), w->live ? t->n_prompt : 0, "The prompt as ids.");
    put_ids(w, "ids", DQ_LIVE(w, text->ids), w->live ? text->n : 0,
            "The text as ids, without the one that ended it.");
    DQ_LIST(w, "logp_nats", "Natural logarithm of the probability of each id.");
    for (int64_t j = 0; DQ_MORE(w, j, text->n); j++) DQ_PUT(w, NULL, text->logp[j], NULL);
    dq_row_end(w);
    DQ_PUT(w, "read_seconds", text->read_seconds, "Wall-clock time of the prompt.");
    DQ_PUT(w, "write_seconds", text->write_seconds, "Wall-clock time of the ids after the first.");
    DQ_PUT(w, "logit_bits", t->lm.pass.logit.bits, "Bits of attention logits, 16: not rounded.");
    DQ_PUT(w, "kv", dq_kv_spec_json(&t->lm.kv), "The KV cache.", DQ_KV_SPEC);
}

/* p NULL: two texts are not compared. */
static void parting_rows(dq_row_writer *w, const dq_compare_parting *p)
{
    if (!DQ_BEGIN(w, OBJECT, "comparison", p, "Where two texts part; with --compare.",
                  .when = DQ_OUT))
        return;
    DQ_PUT(w, "equal_tokens", p->same, "Tokens that both begin with.");
    DQ_PUT(w, "parts", p->parts, "Whether they differ after these.");
    DQ_LIST(w, "token_ids", "The next id of each; null: its text ends there.", .max = 2);
    for (int i = 0; DQ_MORE(w, i, 2); i++)
        DQ_PUT(w, NULL, p->id[i], NULL, .when = DQ_NULL | DQ_BELOW_0);
    dq_row_end(w);
    DQ_LIST(w, "probabilities", "By each model, of each of these ids; null: of an end.", .max = 2);
    for (int i = 0; DQ_MORE(w, i, 2); i++) {
        DQ_LIST(w, NULL, NULL, .max = 2);
        for (int k = 0; DQ_MORE(w, k, 2); k++) DQ_PUT(w, NULL, p->p[i][k], NULL, .when = DQ_NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
}

static void document_rows(dq_row_writer *w, const void *arg)
{
    const generate *x = arg;
    const int n = w->live ? x->n_models : 1;
    DQ_LIST(w, "inputs", "The model, and the one it is compared with.");
    for (int i = 0; i < n; i++) dq_input_put_model(w, DQ_LIVE(w, x->side[i].lm.model));
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "As they took effect for every model.");
    DQ_PUT(w, "prompt", x->prompt, "The prompt as given.");
    DQ_PUT(w, "system", x->system, "What the model was told before it; null: nothing.",
           .when = DQ_NULL);
    DQ_PUT(w, "max_new", x->max_new, "Tokens to write at most.", .min = 1);
    DQ_PUT(w, "temperature", x->temperature,
           "Divides logits before a token is drawn; 0: the most likely one.", .when = DQ_POSITIVE);
    DQ_PUT(w, "top_k", x->top_k, "Most likely tokens that are drawn from; 0: all.");
    DQ_PUT(w, "top_p", x->top_p, "Share of the probability that is drawn from.");
    DQ_PUT(w, "min_p", x->min_p, "Least share of the largest probability.");
    DQ_PUT(w, "seed", (int64_t)x->how.seed, "Of the draws.", .when = DQ_SIGNED);
    DQ_PUT(w, "device", x->side[0].lm.backend->device,
           "The device and its arithmetic units, in words.");
    dq_row_end(w);
    DQ_ITEMS(w, "results", result_rows, x->side, n, "A text of each model.");
    parting_rows(w, w->live && x->compare ? &x->parting : NULL);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL);
}

const dq_document dq_generate_document = {"dq-generate/1", "What dq generate --json prints.",
                                          "generate", describe};

/* The common text, each one's own in a column, and the tokens where they part. */
static dq_status print_compared(generate *x, dq_err *err)
{
    const dq_compare_parting *p = &x->parting;
    const dq_conversation *side = x->side;
    answer *a = &x->side[0].words, *b = &x->side[1].words;
    end_text(a);
    end_text(b);
    const size_t n = common(*a, *b);
    a->s[n + make_plain(a->s + n, a->n - n)] = 0;
    b->s[n + make_plain(b->s + n, b->n - n)] = 0;
    const int plain = (int)make_plain(a->s, n);
    if (n) printf("%s:\n%.*s\n", p->parts ? "both" : "both, every token", plain, a->s);
    if (!p->parts) return DQ_OK;
    if (n) putchar('\n');
    print_columns(side[0].lm.model->name, side[1].lm.model->name);
    print_columns(a->s + n, b->s + n);
    return print_parting(p, side, err);
}

static dq_status run(generate *x, const dq_args *args, dq_err *err)
{
    const bool given = args->n > 1;
    if (x->interactive && x->json)
        return dq_fail(err, DQ_USAGE,
                       "-i is a conversation; --json is for one prompt. Leave one of them out.");
    if (x->interactive && x->compare)
        return dq_fail(err, DQ_USAGE, "--compare takes one prompt. Leave out -i.");
    if (given && x->prompt_file)
        return dq_fail(err, DQ_USAGE,
                       "a prompt and --prompt-file are two prompts. Give one of them.");
    if (x->interactive && x->prompt_file && strcmp(x->prompt_file, "-") == 0)
        return dq_fail(err, DQ_USAGE,
                       "-i reads turns from standard input. Give --prompt-file a file.");
    if (!x->interactive && !given && !x->prompt_file)
        return dq_fail(
            err, DQ_USAGE,
            "no prompt. Add one in quotes, --prompt-file FILE, or -i for a conversation.");
    if (x->raw && x->system)
        return dq_fail(err, DQ_USAGE, "--system needs the chat template. Leave out --raw.");
    if (x->temperature == 0 && (x->top_k || x->top_p < 1 || x->min_p > 0))
        return dq_fail(err, DQ_USAGE,
                       "--top-k, --top-p and --min-p choose what is drawn from. Add "
                       "--temperature 1.");
    x->lm.how.kv.draws = x->temperature > 0;
    DQ_TRY(dq_lm_options_read(&x->lm, err));
    if (x->lm.how.kv.seed >= 0 && x->temperature == 0 && x->lm.how.kv.n_policies == 0)
        return dq_fail(err, DQ_USAGE, "--seed: nothing is drawn. Add --temperature 1.");
    x->how = (dq_sampling){x->temperature, x->top_k, x->top_p, x->min_p,
                           (x->lm.how.kv.seed < 0 ? 1 : (uint64_t)x->lm.how.kv.seed)};
    DQ_TRY(read_texts(x, args, err));
    DQ_TRY(open_model(x, args->item[0], err));
    if (x->compare) {
        DQ_TRY(open_model(x, x->compare, err));
        const dq_lm *a = &x->side[0].lm, *b = &x->side[1].lm;
        if (a->model->vocab != b->model->vocab ||
            !dq_tokenizer_same(a->tok, b->tok, a->model->vocab))
            return dq_fail(
                err, DQ_MISMATCH,
                "--compare: %s has another tokenizer or vocabulary than %s, so their tokens do not "
                "compare",
                x->compare, args->item[0]);
        for (int i = 0; i < MODELS; i++) /* a container that kept no generation_config.json */
            DQ_TRY(dq_stop_ids_add(&x->side[i].lm.stops, x->side[1 - i].lm.model, x->side[i].lm.tok,
                                   x->side[i].lm.model->vocab, err));
    }
    DQ_TRY(dq_input_head_order_check(&x->lm.head_order, err));
    if (x->interactive) {
        const char *mark = isatty(STDIN_FILENO) ? "> " : "";
        dq_strbuf line = {0};
        bool more = true;
        x->streams = true;
        if (x->prompt) one_turn(x, &x->side[0], x->prompt, err);
        while (more && end_turn(x, err) == DQ_OK) {
            if (chat_next_line(&line, &more, mark, err) != DQ_OK || line.n == 0) continue;
            if (strcmp(line.s, "/new") == 0) {
                /* Forgets all but the system message. */
                dq_conversation *t = &x->side[0];
                drop_said(t, t->n_said > 0 && strcmp(t->said[0].role, "system") == 0);
                t->n_ids = 0;
                begin_anew(t);
            } else
                one_turn(x, &x->side[0], line.s, err);
        }
        dq_block_free(line.s);
        DQ_TRY(err->code);
        if (*mark) fputc('\n', stderr);
        DQ_TRY(dq_os_check_stop(err));
        if (x->n_refused && !*mark)
            return dq_fail(err, x->refusal, "%d turn%s refused, see above", x->n_refused,
                           x->n_refused == 1 ? " was" : "s were");
        return DQ_OK;
    }
    x->streams = !x->json && !x->compare;
    for (int i = 0; i < x->n_models; i++) DQ_TRY(one_turn(x, &x->side[i], x->prompt, err));
    if (x->compare) DQ_TRY(compare_texts(&x->parting, x->side, err));
    if (x->json)
        return dq_stdout_print(dq_document_of(&x->logger, &dq_generate_document, document_rows, x),
                               err);
    if (x->compare) DQ_TRY(print_compared(x, err));
    return dq_stdout_flush(err);
}

dq_status dq_cmd_generate(int argc, char **argv, dq_err *err)
{
    dq_arena *a;
    generate *x = dq_arena_object(&a, sizeof *x, err); /* too large for a stack */
    if (!x) return err->code;
    x->arena = a;
    x->max_new = 256;
    x->top_p = 1;
    dq_lm_options_begin(&x->lm, "of --temperature and of the policy random (default 1)");
    const dq_opt opts[] = {
        dq_opt_letter('n', dq_opt_int("max-new", "N", &x->max_new, 1, 1000000,
                                      "tokens to write at most (default 256)")),
        dq_opt_text("prompt-file", "FILE", &x->prompt_file,
                    "take the prompt from a file; - for standard input"),
        dq_opt_text("system", "TEXT", &x->system, "what the model is told before the prompt"),
        dq_opt_flag("raw", &x->raw, "continue the text as it stands, without the chat template"),
        dq_opt_letter('i',
                      dq_opt_flag("interactive", &x->interactive, "a conversation, line by line")),
        dq_opt_text("compare", "MODEL", &x->compare,
                    "let this model answer too, and show where the two part"),
        dq_opt_heading("how a token is chosen:"),
        dq_opt_float("temperature", "X", &x->temperature, 0, 100,
                     "divides logits before a token is drawn; 0: the most likely one (default 0)"),
        dq_opt_int("top-k", "N", &x->top_k, 0, 1e9,
                   "draw from the N most likely tokens; 0: from all (default 0)"),
        dq_opt_float("top-p", "P", &x->top_p, 1e-9, 1,
                     "draw from the fewest tokens with this share of the probability (default 1)"),
        dq_opt_float("min-p", "P", &x->min_p, 0, 1,
                     "draw from tokens with at least this share of the largest probability "
                     "(default 0)"),
        DQ_LM_OPTION_ROWS(x->lm),
        dq_opt_flag("json", &x->json, "one JSON document (dq-generate/1) when the text has ended"),
        DQ_LOGGER_OPTIONS(x->logger),
        {0}};
    dq_args args;
    if (dq_help_begin(&args, argc, argv, opts, &usage, &x->logger, err)) run(x, &args, err);
    for (int i = 0; i < x->n_models; i++) conversation_end(&x->side[i]);
    dq_logger_end(&x->logger);
    dq_arena_free(a);
    return err->code;
}
