/* judge: see judge.h. A completion is known by the number of its line and a hash of it, so replies to other completions
 * are told apart. Replies are read into a map by these names; completions then take theirs.
 * SPDX-License-Identifier: MIT */
#include "tasks/judge.h"

#include "base/base.h"
#include "base/file.h"
#include "base/text.h"
#include "tasks/task_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { ID = 48, HASH = 16 };

static dq_status name_line(char id[ID], int64_t line, const char *s, size_t n, dq_err *err)
{
    char hex[65];
    DQ_TRY(dq_sha256_of(hex, s, n, err));
    snprintf(id, ID, "dq-%lld-%.*s", (long long)line, HASH, hex);
    return DQ_OK;
}

/* ---- Requests ---- */

/* "- one\n- two\n" */
static dq_status list_references(const char **out, const json_t *list, dq_arena *a, dq_err *err)
{
    dq_strbuf all = {0};
    for (size_t i = 0; err->code == DQ_OK && i < json_array_size(list); i++) {
        const json_t *text = json_array_get(list, i);
        if (!json_is_string(text))
            dq_json_wrong("reference", "a list of texts", list, err);
        else if (dq_strbuf_add(&all, "- ", 2, err) == DQ_OK &&
                 dq_strbuf_add(&all, json_string_value(text), json_string_length(text), err) ==
                     DQ_OK)
            dq_strbuf_add(&all, "\n", 1, err);
    }
    if (err->code == DQ_OK) *out = dq_text(a, all.s ? all.s : "", all.n, err);
    dq_block_free(all.s);
    return err->code;
}

static dq_status question_for(const char **out, const json_t *o, dq_arena *a, dq_err *err)
{
    const char *prompt, *completion, *references = "";
    const bool summary = json_is_null(json_object_get(o, "query"));
    const char *what = summary ? "summary" : "answer";
    DQ_TRY(dq_json_text(&prompt, o, "prompt", NULL, err));
    DQ_TRY(dq_json_text(&completion, o, "completion", NULL, err));
    DQ_TRY(list_references(&references, json_object_get(o, "reference"), a, err));
    *out = dq_textf(a, err,
                    "A language model was given this text to go on with:\n\n<text>\n%s\n</text>\n\n"
                    "%s%s%sIt wrote this %s:\n\n<%s>\n%s\n</%s>\n\n"
                    "Is the %s accurate%s, and free of anything that the text does not support? "
                    "Reply with one word, correct or incorrect.",
                    prompt, *references ? "These are right:\n\n" : "", references,
                    *references ? "\n" : "", what, what, completion, what, what,
                    *references ? " beside those that are right" : "");
    return err->code;
}

static dq_status add_request(json_t *o, const char *id, const char *judge, dq_judge_take *take,
                             void *arg, dq_arena *a, dq_err *err)
{
    const char *question;
    DQ_TRY(question_for(&question, o, a, err));
    json_t *request =
        json_pack("{s:s, s:s, s:s, s:{s:s, s:[{s:s, s:s}], s:i, s:i}}", "custom_id", id, "method",
                  "POST", "url", "/v1/chat/completions", "body", "model", judge, "messages", "role",
                  "user", "content", question, "temperature", 0, "max_tokens", 8);
    if (!request) return dq_fail(err, DQ_RESOURCE, "out of memory");
    take(arg, request, err);
    json_decref(request);
    return err->code;
}

dq_status dq_judge_requests(const char *text, size_t len, const char *judge, dq_judge_take *take,
                            void *arg, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        char id[ID];
        json_t *o = NULL;
        if (dq_task_file_is_blank(s, n)) continue;
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        if (dq_json_parse_line(&o, s, n, "completion", err) == DQ_OK &&
            name_line(id, line, s, n, err) == DQ_OK)
            add_request(o, id, judge, take, arg, a, err);
        json_decref(o);
        dq_arena_free(a);
        if (err->code != DQ_OK) return dq_in(err, "line %lld: ", (long long)line);
    }
    return DQ_OK;
}

/* ---- Replies ---- */

typedef struct reply {
    const char *verdict; /* JSON text of it; NULL: unclear */
    int64_t line;
    bool taken;
} reply;

typedef struct reader {
    dq_judge_tally *tally;
    dq_strmap index;
    reply *reply;
    int n;
    size_t cap;
    dq_arena *a;
} reader;

/* The next word of letters in *s, whose end *s becomes; 0 bytes: there is none. */
static size_t next_word(const char **word, const char **s)
{
    while (**s && !isalpha((unsigned char)**s)) ++*s;
    *word = *s;
    while (isalpha((unsigned char)**s)) ++*s;
    return (size_t)(*s - *word);
}

static bool is_one_of(const char *word, size_t n, const char *const *list)
{
    while (*list && (strlen(*list) != n || strncasecmp(*list, word, n) != 0)) list++;
    return *list != NULL;
}

/* Whether a verdict ends before the next word, s[n] between them: "Correct answer: S" and "correct/incorrect" go on. */
static bool is_apart(const char *s, size_t n)
{
    bool apart = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '?' || s[i] == ':') return false;
        apart = apart || strchr(".,!;\n)", s[i]) || (s[i] & 0x80) || (s[i] == '-' && i > 0);
    }
    return apart;
}

/* The word that a text begins with, after a label or none, as JSON. NULL: neither, or the text takes it back: it has the other
 * word too, asks, goes on with the sentence but for a reason, or says how far. */
static const char *first_word(const char *text)
{
    static const char *const labels[] = {"final",     "verdict",  "answer",
                                         "judgement", "judgment", NULL};
    static const char *const says[2][2] = {{"correct", NULL}, {"incorrect", NULL}};
    static const char *const reasons[] = {"because", "since", "as", "due", "given", NULL};
    static const char *const degrees[] = {
        "partially", "partly", "partial", "mostly",  "largely",  "mainly",   "somewhat", "nearly",
        "almost",    "half",   "maybe",   "perhaps", "possibly", "probably", "neither",  NULL};
    static const char *const undone[] = {"not", "or", "no", "but", NULL};
    const char *word, *s = text;
    size_t n = next_word(&word, &s);
    while (n && is_one_of(word, n, labels)) n = next_word(&word, &s);
    const bool wrong = n && is_one_of(word, n, says[1]);
    if (!wrong && !(n && is_one_of(word, n, says[0]))) return NULL;
    const char *end = s;
    n = next_word(&word, &s);
    if (n ? is_one_of(word, n, undone) ||
                !(is_apart(end, (size_t)(word - end)) || is_one_of(word, n, reasons))
          : strchr(end, '?') != NULL)
        return NULL;
    for (; n; n = next_word(&word, &s)) {
        if (is_one_of(word, n, says[!wrong]) || is_one_of(word, n, degrees)) return NULL;
    }
    return wrong ? "\"incorrect\"" : "\"correct\"";
}

/* A verdict that stands there, or what the judge's text begins with. */
static dq_status verdict_of(const char **out, const char **said, const json_t *o, dq_arena *a,
                            dq_err *err)
{
    const json_t *given = json_object_get(o, "verdict");
    const json_t *body = json_object_get(json_object_get(o, "response"), "body");
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    char *dumped = NULL;
    *said = text ? text : "";
    *out = first_word(*said);
    if (!given) {
        if (json_object_get(o, "response") || json_object_get(o, "error")) return DQ_OK;
        return dq_fail(err, DQ_DAMAGED, "neither a \"verdict\" nor a \"response\"");
    }
    if (dq_json_dump(&dumped, given, JSON_ENCODE_ANY | JSON_COMPACT, err) == DQ_OK)
        *out = dq_text(a, dumped, strlen(dumped), err);
    free(dumped);
    return err->code;
}

static dq_status read_reply(reader *r, const json_t *o, int64_t line, dq_err *err)
{
    const char *id, *said;
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    DQ_TRY(dq_json_text(
        &id, o, json_object_get(o, "id") && !json_object_get(o, "custom_id") ? "id" : "custom_id",
        NULL, err));
    const int known = dq_strmap_get(&r->index, id, strlen(id));
    if (known >= 0)
        return dq_fail(err, DQ_DAMAGED, "%s has a reply in line %lld already", id,
                       (long long)r->reply[known].line);
    reply *more = dq_grow(r->a, r->reply, (size_t)r->n + 1, &r->cap, sizeof *more, err);
    const char *key = dq_text(r->a, id, strlen(id), err);
    if (!more || !key) return err->code;
    r->reply = more;
    more[r->n] = (reply){.line = line};
    DQ_TRY(verdict_of(&more[r->n].verdict, &said, o, r->a, err));
    DQ_TRY(dq_strmap_add(&r->index, key, strlen(key), r->n, r->a, err));
    r->tally->replies++;
    if (more[r->n++].verdict || r->tally->unclear++ > 0) return DQ_OK;
    r->tally->first_unclear = line;
    snprintf(r->tally->said, sizeof r->tally->said, "%s", said);
    return DQ_OK;
}

static dq_status read_replies(reader *r, const char *text, size_t len, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        json_t *o = NULL;
        if (dq_task_file_is_blank(s, n)) continue;
        if (dq_json_parse_line(&o, s, n, "reply", err) == DQ_OK) read_reply(r, o, line, err);
        json_decref(o);
        if (err->code != DQ_OK) return dq_in(err, "line %lld: ", (long long)line);
    }
    return DQ_OK;
}

/* s[n], one object, with the verdict as its last member. */
static dq_status add_line(dq_strbuf *out, const char *s, size_t n, const char *verdict, dq_err *err)
{
    static const char key[] = ", \"verdict\": ";
    while (n && s[n - 1] != '}') n--;
    if (n == 0) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    DQ_TRY(dq_strbuf_add(out, s, n - 1, err));
    DQ_TRY(dq_strbuf_add(out, key, sizeof key - 1, err));
    DQ_TRY(dq_strbuf_add(out, verdict, strlen(verdict), err));
    return dq_strbuf_add(out, "}", 1, err);
}

static dq_status join_lines(reader *r, dq_strbuf *out, const char *text, size_t len, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        char id[ID];
        DQ_TRY(name_line(id, line, s, n, err));
        const int i = dq_task_file_is_blank(s, n) ? -1 : dq_strmap_get(&r->index, id, strlen(id));
        r->tally->completions += !dq_task_file_is_blank(s, n);
        if (i >= 0) r->reply[i].taken = true;
        if (i >= 0 && r->reply[i].verdict)
            DQ_TRY(add_line(out, s, n, r->reply[i].verdict, err));
        else
            r->tally->lacking += !dq_task_file_is_blank(s, n);
        DQ_TRY(dq_strbuf_add(out, "\n", 1, err));
    }
    return DQ_OK;
}

dq_status dq_judge_join(dq_strbuf *out, dq_judge_tally *tally, const char *text, size_t len,
                        const char *path, const char *replies, size_t replies_len, dq_arena *a,
                        dq_err *err)
{
    reader r = {.tally = tally, .a = a};
    *tally = (dq_judge_tally){0};
    if (read_replies(&r, replies, replies_len, err) != DQ_OK) return dq_in(err, "%s: ", path);
    DQ_TRY(join_lines(&r, out, text, len, err));
    for (int i = 0; i < r.n; i++) {
        if (!r.reply[i].taken)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: line %lld: a reply to none of these completions. Give the file "
                           "that its requests were made of",
                           path, (long long)r.reply[i].line);
    }
    return DQ_OK;
}
