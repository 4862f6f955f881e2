/* generate_command: dq generate MODEL "prompt": what a model writes, as it comes; two of them side by side; a conversation.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/stdout.h"
#include "cmds/command.h"
#include "cmds/generate/compare.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- Before a model is open ---- */

static uint64_t seed_of(const generate *x)
{
    return x->lm.how.kv.seed < 0 ? 1 : (uint64_t)x->lm.how.kv.seed;
}

static dq_status check_options(generate *x, const dq_args *args, dq_err *err)
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
    x->how = (dq_sampling){x->temperature, x->top_k, x->top_p, x->min_p, seed_of(x)};
    return DQ_OK;
}

/* A text that the model is told. More of it than any model reads would cost memory before its tokens are counted. */
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

static dq_status open_model(generate *x, const char *path, dq_err *err)
{
    dq_conversation *t = &x->side[x->n_models++];
    t->lm.logger = &x->logger;
    dq_conversation_begin(t, path, &x->lm, &x->how, x->raw, err);
    if (err->code == DQ_OK && x->system) dq_conversation_system(t, x->system, err);
    return err->code;
}

/* ---- Turns ---- */

static bool say(void *arg, int32_t id, double logp, const char *piece, size_t len)
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

static void say_speed(generate *x, const dq_conversation *t)
{
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
}

static dq_status one_turn(generate *x, dq_conversation *t, const char *prompt, dq_err *err)
{
    x->said = false;
    dq_conversation_turn(t, prompt, x->max_new, say, x, err);
    if (x->streams && (x->said || err->code == DQ_OK)) putchar('\n');
    DQ_TRY(err->code);
    if (x->streams) DQ_TRY(dq_stdout_flush(err));
    say_speed(x, t);
    return DQ_OK;
}

/* ---- A conversation ---- */

/* Reads the next line, without its end, into *line; *more: there is one. DQ_DAMAGED: it is no text; DQ_RESOURCE: it is
 * longer than a prompt, and may have no end. */
static dq_status next_line(dq_strbuf *line, bool *more, const char *mark, dq_err *err)
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

/* An interrupted answer ends the turn, not the conversation, and so does a turn that is refused. */
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

static dq_status converse(generate *x, dq_err *err)
{
    const char *mark = isatty(STDIN_FILENO) ? "> " : "";
    dq_strbuf line = {0};
    bool more = true;
    x->streams = true;
    if (x->prompt) one_turn(x, &x->side[0], x->prompt, err);
    while (more && end_turn(x, err) == DQ_OK) {
        if (next_line(&line, &more, mark, err) != DQ_OK || line.n == 0) continue;
        if (strcmp(line.s, "/new") == 0)
            dq_conversation_restart(&x->side[0]);
        else
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

/* ---- One prompt ---- */

static json_t *ids_json(const int32_t *ids, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *text_json(const dq_conversation *t, dq_err *err)
{
    const dq_writer_text *text = &t->text;
    json_t *o = json_object(), *logp = json_array();
    char *words;
    size_t len;
    for (int64_t i = 0; i < text->n; i++)
        json_array_append_new(logp, dq_document_real(text->logp[i]));
    json_object_set_new(o, "model", dq_document_name(t->lm.model->path));
    if (dq_conversation_text(&words, &len, t, text->ids, text->n, 0, err) == DQ_OK)
        json_object_set_new(o, "text", json_stringn(words, len));
    dq_block_free(words);
    json_object_set_new(o, "end", json_string(dq_text_end_name[text->end]));
    json_object_set_new(o, "chat_template", json_boolean(!t->raw));
    json_object_set_new(o, "prompt_tokens", json_integer(t->n_prompt));
    json_object_set_new(o, "new_tokens", json_integer(text->n));
    json_object_set_new(o, "prompt_ids", ids_json(t->ids, t->n_prompt));
    json_object_set_new(o, "ids", ids_json(text->ids, text->n));
    json_object_set_new(o, "logp_nats", logp);
    json_object_set_new(o, "read_seconds", dq_document_real(text->read_seconds));
    json_object_set_new(o, "write_seconds", dq_document_real(text->write_seconds));
    json_object_set_new(o, "logit_bits", json_integer(t->lm.pass.logit.bits));
    json_object_set_new(o, "kv", dq_kv_spec_json(&t->lm.kv));
    return o;
}

static dq_status print_json(generate *x, const dq_compare_parting *p, dq_err *err)
{
    json_t *doc = dq_document_new(&x->logger, "dq-generate/1"), *s = json_object();
    json_object_set_new(s, "prompt", json_string(x->prompt));
    json_object_set_new(s, "system", x->system ? json_string(x->system) : json_null());
    json_object_set_new(s, "max_new", json_integer(x->max_new));
    json_object_set_new(s, "temperature", dq_document_real(x->temperature));
    json_object_set_new(s, "top_k", json_integer(x->top_k));
    json_object_set_new(s, "top_p", dq_document_real(x->top_p));
    json_object_set_new(s, "min_p", dq_document_real(x->min_p));
    json_object_set_new(s, "seed", json_integer((json_int_t)x->how.seed));
    json_object_set_new(s, "device", json_string(x->side[0].lm.backend->device));
    json_object_set_new(doc, "settings", s);
    for (int i = 0; i < x->n_models; i++) {
        json_array_append_new(json_object_get(doc, "inputs"),
                              dq_input_model_json(x->side[i].lm.model));
        json_array_append_new(json_object_get(doc, "results"), text_json(&x->side[i], err));
    }
    if (p) json_object_set_new(doc, "comparison", dq_compare_json(p));
    if (err->code == DQ_OK) return dq_stdout_print(doc, err);
    json_decref(doc);
    return err->code;
}

static dq_status compare(generate *x, dq_err *err)
{
    dq_compare_parting p;
    for (int i = 0; i < MODELS; i++) DQ_TRY(one_turn(x, &x->side[i], x->prompt, err));
    DQ_TRY(dq_compare_texts(&p, x->side, err));
    if (x->json) return print_json(x, &p, err);
    DQ_TRY(dq_compare_print(&p, x->side, err));
    return dq_stdout_flush(err);
}

static dq_status run(generate *x, const dq_args *args, dq_err *err)
{
    DQ_TRY(check_options(x, args, err));
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
    if (x->interactive) return converse(x, err);
    if (x->compare) return compare(x, err);
    x->streams = !x->json;
    DQ_TRY(one_turn(x, &x->side[0], x->prompt, err));
    return x->json ? print_json(x, NULL, err) : DQ_OK;
}

dq_status dq_cmd_generate(int argc, char **argv, dq_err *err)
{
    generate *x = dq_block_new(1, sizeof *x, err); /* too large for a stack */
    if (!x) return err->code;
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
    x->arena = dq_arena_new();
    if (!x->arena) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK && dq_help_parse(&args, argc, argv, opts, &usage, err) == DQ_OK &&
        !args.help && dq_progress_listen(&x->logger, "generate", err) == DQ_OK)
        run(x, &args, err);
    for (int i = 0; i < x->n_models; i++) dq_conversation_end(&x->side[i]);
    dq_logger_end(&x->logger);
    dq_arena_free(x->arena);
    dq_block_free(x);
    return err->code;
}
