/* Documents are checked for what the script cannot do without. A mark "@name@" of page.html is
 * replaced by a file's text, the documents, or the script's hash.
 * SPDX-License-Identifier: MIT */
#include "cmds/report_page.h"

#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "record/record.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAJOR = 1, RESULTS_MAX = 5000, PARTS_MAX = 50000 };

/* ---- What a document must have ---- */

/* Members of objects at a path from a result: "" itself, "layers[].x" of each element. */
typedef enum kind_of_member {
    TEXT,
    WORK,
    BOOLEAN,
    OBJECT,
    LIST,
    NUMBER,
    NUMBER_OR_NULL
} kind_of_member;
typedef struct member {
    const char *path, *names;
    kind_of_member is;
} member;

static const member of_stats[] = {
    {"", "model", TEXT},
    {"", "table5", OBJECT},
    {"table5", "attention_logits hidden_states", OBJECT},
    {"", "layers", LIST},
    {"layers[]", "layer", NUMBER},
    {"layers[]", "attention_logits hidden_states", OBJECT},
    {0},
};
static const member of_quantize[] = {
    {"", "tensors packed params packed_params weight_bytes file_bytes bits_per_weight", NUMBER},
    {"", "rows", LIST},
    {"rows[]", "name", TEXT},
    {"rows[]", "bits rows cols bytes bits_per_weight", NUMBER},
    {"rows[]", "sqnr_db", NUMBER_OR_NULL},
    {0},
};
static const member of_plan_weights[] = {
    {"", "budget", TEXT},
    {"", "packed_bits_per_weight interim_looks", NUMBER},
    {"", "chosen", OBJECT},
    {"", "curve trials units", LIST},
    {"curve[]", "packed_bits_per_weight predicted_kld", NUMBER},
    {"trials[]", "packed_bits_per_weight predicted_kld", NUMBER},
    {"units[]", "weights bits", NUMBER},
    {0},
};
static const member of_plan_kv[] = {
    {"", "chosen", OBJECT},
    {"chosen", "kv unseen", OBJECT},
    {"chosen.kv", "widths quant", TEXT},
    {"chosen", "mean_bits", NUMBER},
    {"", "baselines trials units", LIST},
    {"baselines[]", "widths", TEXT},
    {"baselines[]", "mean_bits", NUMBER},
    {"baselines[]", "unseen plan_less_it", OBJECT},
    {"trials[]", "widths from", TEXT},
    {"trials[]", "mean_bits", NUMBER},
    {"trials[]", "kld_nats", NUMBER_OR_NULL},
    {"units[]", "side", TEXT},
    {"units[]", "layers alone", LIST},
    {"units[]", "bits", NUMBER},
    {"units[].alone[]", "bits", NUMBER},
    {"units[].alone[]", "kld_nats", OBJECT},
    {0},
};
static const member of_plan_heads[] = {
    {"", "chosen", OBJECT},
    {"chosen", "kv unseen", OBJECT},
    {"chosen.kv", "policy heads", TEXT},
    {"chosen.kv", "keep sink recent", NUMBER},
    {"chosen", "sharing", NUMBER},
    {"", "baselines trials units", LIST},
    {"baselines[]", "unseen plan_less_it", OBJECT},
    {"trials[]", "sharing", NUMBER},
    {"trials[]", "kld_nats lack_nats", NUMBER_OR_NULL},
    {"trials[]", "taken", BOOLEAN},
    {"units[]", "layer group", NUMBER},
    {"units[]", "shares", BOOLEAN},
    {0},
};
static const member of_bench[] = {{"", "model", TEXT}, {"", "what", WORK}, {0}};
static const member of_eval[] = {{"", "model task", TEXT}, {"", "metrics", OBJECT}, {0}};

/* A kind of document: its schema "dq-stats/1", of plans the setting "kind". */
static const struct kind {
    const char *schema, *plan;
    const member *members;
} kinds[] = {
    {"stats", NULL, of_stats},
    {"quantize", NULL, of_quantize},
    {"plan", "weights", of_plan_weights},
    {"plan", "kv", of_plan_kv},
    {"plan", "heads", of_plan_heads},
    {"bench", NULL, of_bench},
    {"eval", NULL, of_eval},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *text_of(const json_t *object, const char *key)
{
    const json_t *x = json_object_get(object, key);
    const char *s = json_string_value(x);
    return s && strlen(s) == json_string_length(x) ? s : ""; /* a NUL ends what is compared */
}

static dq_status check_member(const json_t *object, const char *key, kind_of_member is,
                              const char *where, dq_err *err)
{
    enum { NUMBERS = 1 << JSON_INTEGER | 1 << JSON_REAL };
    static const struct {
        const char *word;
        unsigned types;
    } kind[] = {
        [TEXT] = {"text", 1 << JSON_STRING},
        [WORK] = {"prefill, attention, generate, decode, evict or items", 1 << JSON_STRING},
        [BOOLEAN] = {"true or false", 1 << JSON_TRUE | 1 << JSON_FALSE},
        [OBJECT] = {"an object", 1 << JSON_OBJECT},
        [LIST] = {"a list", 1 << JSON_ARRAY},
        [NUMBER] = {"a number", NUMBERS},
        [NUMBER_OR_NULL] = {"a number or null", NUMBERS | 1 << JSON_NULL},
    };
    /* What dq bench times, as sections.js knows it. */
    static const char *const works[] = {"prefill", "attention", "generate",
                                        "decode",  "evict",     "items"};
    const json_t *x = json_object_get(object, key);
    bool fits = x && is != WORK && kind[is].types >> json_typeof(x) & 1;
    for (int i = 0; is == WORK && i < 6; i++)
        fits = fits || strcmp(text_of(object, key), works[i]) == 0;
    if (fits) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "%s: \"%s\" is %s (expected %s). Is the document cut or edited?", where, key,
                   !x           ? "missing"
                   : is == WORK ? "another word"
                                : "of another type",
                   kind[is].word);
}

/* Of every object at the end of `path`. */
static dq_status check_path(const json_t *object, const char *path, const char *where,
                            const member *m, dq_err *err)
{
    char key[64], inside[160];
    if (!*path) {
        for (const char *name = m->names; *name;) {
            const size_t n = strcspn(name, " ");
            snprintf(key, sizeof key, "%.*s", (int)n, name);
            DQ_TRY(check_member(object, key, m->is, where, err));
            name += n + (name[n] == ' ');
        }
        return DQ_OK;
    }
    const size_t n = strcspn(path, ".");
    const bool each = n > 2 && path[n - 1] == ']';
    const char *rest = path + n + (path[n] == '.');
    snprintf(key, sizeof key, "%.*s", (int)(each ? n - 2 : n), path);
    const json_t *x = json_object_get(object, key), *one;
    if (!each) {
        snprintf(inside, sizeof inside, "%s.%s", where, key);
        return check_path(x, rest, inside, m, err);
    }
    size_t i;
    json_array_foreach(x, i, one)
    {
        snprintf(inside, sizeof inside, "%s.%s[%zu]", where, key, i);
        DQ_TRY(check_path(one, rest, inside, m, err));
    }
    return DQ_OK;
}

/* "1" or "1." and digits. */
static bool is_of_version(const char *version)
{
    char *end;
    if (!isdigit((unsigned char)*version) || strtol(version, &end, 10) != MAJOR) return false;
    return *end == 0 || (*end == '.' && end[1] && end[1 + strspn(end + 1, "0123456789")] == 0);
}

static dq_status find_kind(const struct kind **kind, const json_t *document, dq_err *err)
{
    const char *schema = text_of(document, "schema"), *version = text_of(document, "dq_version");
    const char *plan = text_of(json_object_get(document, "settings"), "kind");
    bool is_plan = false;
    if (!*schema)
        return dq_fail(err, DQ_DAMAGED,
                       "not a document of dq (expected an object with a \"schema\"). Give what dq "
                       "stats, dq quantize, dq plan, dq bench or dq eval print with --json");
    for (const struct kind *k = kinds; k < kinds + KINDS; k++) {
        const size_t n = strlen(k->schema);
        if (strncmp(schema, "dq-", 3) != 0 || strncmp(schema + 3, k->schema, n) != 0 ||
            schema[3 + n] != '/')
            continue;
        if (!is_of_version(schema + 4 + n))
            return dq_fail(err, DQ_MISMATCH,
                           "a document of another version (expected dq-%s/%d, found \"%.60s\"). "
                           "Use the dq that made it%s%.30s",
                           k->schema, MAJOR, schema, *version ? ", " : "", version);
        *kind = k;
        if (!k->plan || strcmp(k->plan, plan) == 0) return DQ_OK;
        is_plan = true;
    }
    if (is_plan && strcmp(plan, "gates") == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "no page is made of gates (expected a plan of weights, kv or heads)");
    if (is_plan)
        return dq_fail(err, DQ_DAMAGED,
                       "settings: \"kind\" is \"%.60s\" (expected weights, kv or heads). Is the "
                       "document cut or edited?",
                       plan);
    return dq_fail(err, DQ_MISMATCH,
                   "no page is made of such a document (expected dq-stats/1, dq-quantize/1, "
                   "dq-plan/1, dq-bench/1 or dq-eval/1, found \"%.60s\")",
                   schema);
}

/* Counts over all documents so far: a page with more than these would be illegible. */
static dq_status check_document(const json_t *document, size_t *results, size_t *parts, dq_err *err)
{
    static const char *const lists[] = {"rows", "units", "trials"};
    const struct kind *kind = NULL;
    const json_t *result;
    size_t i;
    char where[40];
    DQ_TRY(find_kind(&kind, document, err));
    DQ_TRY(check_member(document, "results", LIST, "the document", err));
    json_array_foreach(json_object_get(document, "results"), i, result)
    {
        ++*results;
        for (int k = 0; k < 3; k++) *parts += json_array_size(json_object_get(result, lists[k]));
    }
    if (*results > RESULTS_MAX)
        return dq_fail(err, DQ_MISMATCH,
                       "too many results for a page (expected at most %d in all documents, found "
                       "%zu). Make several pages of them",
                       RESULTS_MAX, *results);
    if (*parts > PARTS_MAX)
        return dq_fail(err, DQ_MISMATCH,
                       "too many tensors, units, groups and trials for a page (expected at most "
                       "%d in all documents, found %zu). Make several pages of them",
                       PARTS_MAX, *parts);
    json_array_foreach(json_object_get(document, "results"), i, result)
    {
        snprintf(where, sizeof where, "results[%zu]", i);
        if (kind->plan && !json_object_get(result, "chosen") &&
            json_object_get(result, "caches_alone"))
            return dq_fail(err, DQ_MISMATCH,
                           "%s: a plan of --dry-run, which measures nothing (expected one of a "
                           "whole run). Run dq plan without --dry-run",
                           where);
        for (const member *m = kind->members; m->path; m++)
            DQ_TRY(check_path(result, m->path, where, m, err));
    }
    return DQ_OK;
}

/* ---- The page ---- */

/* A page of one document does not depend on its file's name. "<" occurs in strings alone and
 * becomes \u003c, so that no text of a document ends the element that holds it. */
static void add_documents(dq_strbuf *page, const dq_page_input *in, int n, dq_err *err)
{
    json_t *all = json_array();
    char *text = NULL;
    for (int i = 0; i < n; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "name", dq_document_name(n > 1 ? in[i].name : ""));
        json_object_set(one, "document",
                        (json_t *)(uintptr_t)in[i].document); /* counted, not changed */
        json_array_append_new(all, one);
    }
    dq_json_dump(&text, all, JSON_COMPACT, err);
    json_decref(all);
    for (const char *at = text; at && err->code == DQ_OK && *at;) {
        const size_t plain = strcspn(at, "<");
        dq_strbuf_add(page, at, plain, err);
        if (at[plain]) dq_strbuf_add(page, "\\u003c", 6, err);
        at += plain + (at[plain] != 0);
    }
    free(text);
}

/* The hash by which the page's own script alone may run, whatever a document holds. */
static void add_hash(dq_strbuf *page, const dq_strbuf *script, dq_err *err)
{
    char hex[65];
    unsigned char hash[32];
    if (dq_sha256_of(hex, script->s, script->n, err) != DQ_OK) return;
    for (int i = 0; i < 32; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], 0};
        hash[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    dq_strbuf_add(page, "sha256-", 7, err);
    if (err->code == DQ_OK) dq_base64_put(page, hash, sizeof hash, err);
}

/* Puts the parts of the page where page.html has marks for them. */
static dq_status fill_template(dq_strbuf *page, const dq_strbuf *script, const dq_page_input *in,
                               int n, dq_err *err)
{
    static const char *const marks[] = {"@script@", "@page.css@", "@documents@", "@sections.js@"};
    const char *rest = dq_page_html;
    for (int i = 0; i < 4; i++) {
        const char *at = strstr(rest, marks[i]);
        if (!at) return dq_fail(err, DQ_BUG, "page: no %s", marks[i]);
        DQ_TRY(dq_strbuf_add(page, rest, (size_t)(at - rest), err));
        if (i == 0) add_hash(page, script, err);
        if (i == 1) dq_strbuf_add(page, dq_page_css, dq_page_css_len, err);
        if (i == 2) add_documents(page, in, n, err);
        if (i == 3) dq_strbuf_add(page, script->s, script->n, err);
        if (err->code != DQ_OK) return err->code;
        rest = at + strlen(marks[i]);
    }
    return dq_strbuf_add(page, rest, strlen(rest), err);
}

dq_status dq_page_write(const dq_page_input *in, int n, const char *path, dq_err *err)
{
    const struct file {
        const char *text;
        size_t len;
    } files[] = {{dq_page_draw, dq_page_draw_len},
                 {dq_page_documents, dq_page_documents_len},
                 {dq_page_sections, dq_page_sections_len}};
    size_t results = 0, parts = 0;
    dq_strbuf page = {0}, script = {0};
    DQ_TRY(dq_json_complete(err));
    for (int i = 0; i < n; i++) {
        DQ_TRY(dq_os_check_stop(err));
        if (check_document(in[i].document, &results, &parts, err) == DQ_OK) continue;
        return *in[i].name ? dq_in(err, "%s: ", in[i].name) : err->code;
    }
    for (int i = 0; i < 3 && err->code == DQ_OK; i++)
        dq_strbuf_add(&script, files[i].text, files[i].len, err);
    if (err->code == DQ_OK) fill_template(&page, &script, in, n, err);
    if (err->code == DQ_OK && path)
        dq_file_write(path, page.s, page.n, err);
    else if (err->code == DQ_OK)
        fwrite(page.s, 1, page.n, stdout); /* a failure stays with the stream */
    dq_block_free(script.s);
    dq_block_free(page.s);
    return err->code;
}
