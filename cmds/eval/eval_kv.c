/* eval_kv: see eval_kv.h. Everything is said once: a row speaks if none before it has the same widths, the same
 * cache, the same tokens or the same kernels.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_kv.h"

#include "eval/eval.h"
#include "record/record.h"
#include "settings/cache_options.h"

#include <stdio.h>
#include <string.h>

/* The first shown row with this cache. */
static bool is_first(const dq_eval *e, int row)
{
    for (int i = 0; i < row; i++) {
        if (e->row[i].shown && dq_kv_spec_same(&e->row[i].kv, &e->row[row].kv)) return false;
    }
    return e->row[row].shown;
}

static bool same_widths(const dq_kv_spec *a, const dq_kv_spec *b)
{
    return a->k_bits == b->k_bits && a->v_bits == b->v_bits && strcmp(a->widths, b->widths) == 0;
}

static bool first_width(const dq_eval *e, int row)
{
    for (int i = 0; i < row; i++) {
        if (e->row[i].shown && same_widths(&e->row[i].kv, &e->row[row].kv)) return false;
    }
    return e->row[row].shown;
}

static json_t *sizes_json(const dq_kv_options *o)
{
    json_t *list = json_array();
    for (int i = 0; i < o->n_sized; i++) {
        const dq_kv_sized *s = &o->sized[i];
        json_t *x = json_object();
        json_object_set_new(x, "size", dq_document_real(s->of.size));
        json_object_set_new(x, "context", json_integer((json_int_t)s->of.context));
        json_object_set_new(x, "bits", json_integer(s->row.bits));
        json_object_set_new(x, "keep", dq_document_real(s->keep));
        json_object_set_new(x, "recent",
                            s->row.recent < 0 ? json_null() : json_integer(s->row.recent));
        json_object_set_new(x, "share_at_most", dq_document_real(s->share));
        json_array_append_new(list, x);
    }
    return list;
}

void cmd_eval_kv_settings(json_t *settings, const dq_eval *e, const dq_kv_options *o,
                          const char *const *names)
{
    json_t *bits = json_array(), *kv = json_object();
    json_t *effective = json_array(), *stored = json_object();
    char word[DQ_KV_TEXT];
    for (int i = 0; i < e->n_rows; i++) {
        const dq_kv_spec *s = &e->row[i].kv;
        if (first_width(e, i)) json_array_append_new(bits, json_string(dq_kv_spec_widths(word, s)));
        if (is_first(e, i)) json_array_append_new(effective, dq_kv_spec_json(s));
    }
    for (int i = 0; i < e->n_models; i++) {
        const dq_model *m = e->model[i].m;
        if (m->is_container) json_object_set_new(stored, names[i], dq_kv_config_json(&m->kv));
    }
    json_object_set_new(settings, "kv_bits", bits);
    json_object_set_new(kv, "effective", effective);
    json_object_set_new(kv, "stored", stored);
    json_object_set_new(kv, "sizes", sizes_json(o));
    json_object_set_new(settings, "kv", kv);
}

/* The id after a context is predicted by the context's last row, which still sees all of it: a choice of
 * one id says nothing about what was evicted. Once per source and tokenizer. */
static void warn_short_choices(dq_logger *logger, const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    const dq_requests *req = &e->ids[r->ids].req;
    int64_t n = 0;
    for (int i = 0; i < row; i++) {
        if (e->row[i].shown && e->row[i].kv.evict.policy && e->row[i].ids == r->ids) return;
    }
    if (!r->kv.evict.policy) return;
    for (int64_t i = 0; i < req->n; i++) n += req->req[i].cont && req->req[i].n_cont == 1;
    if (n)
        dq_logger_warn(
            logger,
            "%s: %lld of %lld choices are a single token, which is predicted before anything is "
            "evicted; to measure eviction, let choices begin with the question",
            e->source[e->ids[r->ids].source].name, (long long)n, (long long)req->n);
}

void cmd_eval_kv_warn(dq_logger *logger, const dq_eval *e, const char *const *names)
{
    char what[400];
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        if (!r->shown || r->same != i) continue;
        warn_short_choices(logger, e, i);
        snprintf(what, sizeof what, "%s, %s", names[r->model],
                 e->source[e->ids[r->ids].source].name);
        dq_kv_report_warn(logger, what, &r->kv, &r->work.cached);
    }
}

/* Prints a piece of text and keeps the column; the lines are of at most 120 characters where pieces are. */
static void put(int *at, const char *piece)
{
    enum { LINE = 120 };
    int n = 0;
    for (const char *s = piece; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    const bool breaks = *at > 0 && *at + 1 + n > LINE;
    printf("%s%s", breaks ? "\n  " : *at ? " " : "", piece);
    *at = breaks ? 2 + n : *at + (*at > 0) + n;
}

/* The piece's words. */
static void put_words(int *at, const char *text)
{
    char word[64];
    while (*text) {
        const int n = (int)strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", n, text);
        put(at, word);
        text += n + (text[n] == ' ');
    }
}

/* Rows of one model and source with the same cache, which have the same others; they differ in logits or arithmetic. */
static bool one_cache(const dq_eval_row *a, const dq_eval_row *b)
{
    return a->model == b->model && a->ids == b->ids && dq_kv_spec_same(&a->kv, &b->kv);
}

/* Whether shown rows are computed as this one, and no row before it speaks for its cache. */
static bool speaks(const dq_eval *e, int row, bool *several)
{
    int others = 0;
    *several = false;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        others += i != row && r->same == row && r->shown;
        if (r->same != i || i == row || !one_cache(r, &e->row[row])) continue;
        if (i < row) return false;
        *several = true;
    }
    return others > 0;
}

/* What the cache has kept, as measured: the rows have as many raised budgets. */
static void put_kept(int *at, const dq_eval *e, const dq_eval_row *r)
{
    char text[200];
    if (dq_eval_kept_of(e, r) == DQ_EVAL_KEPT_ALL)
        snprintf(text, sizeof text, "It keeps all tokens.");
    else
        snprintf(text, sizeof text,
                 "It keeps the first %d and the last %d tokens of a context%s: nothing is left to "
                 "choose.",
                 r->kv.sink, r->kv.recent,
                 r->work.cached.raised ? ", to which these budgets are raised" : "");
    put_words(at, text);
}

static void print_same(const cmd_eval_view *v, int computed, bool several)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[computed];
    char label[DQ_KV_LABEL], piece[DQ_KV_LABEL + 2], bits[32] = "", head[1024];
    int at = 0, left = 0;
    if (!several) snprintf(bits, sizeof bits, ", %d-bit logits", r->logit.bits);
    snprintf(head, sizeof head, "One cache, computed once%s (%s, %s%s):",
             several ? " for each kind of logits and arithmetic" : "", v->names[r->model],
             cmd_eval_title(e, computed), bits);
    printf("\n");
    put(&at, head);
    for (int i = computed; i < e->n_rows; i++)
        left += e->row[i].same == computed && e->row[i].shown;
    for (int i = computed; i < e->n_rows; i++) {
        if (e->row[i].same != computed || !e->row[i].shown) continue;
        snprintf(piece, sizeof piece, "%s%s",
                 dq_kv_report_label(label, sizeof label, &e->row[i].kv), --left ? "," : ".");
        put(&at, piece);
    }
    put_kept(&at, e, r);
    printf("\n");
}

void cmd_eval_kv_print_sizes(const dq_kv_options *o)
{
    char text[DQ_KV_SIZED];
    for (int i = 0; i < o->n_sized; i++)
        printf("%sKV size %s\n", i ? "" : "\n", dq_kv_sweep_sized(text, &o->sized[i]));
}

void cmd_eval_kv_print_same(const cmd_eval_view *v)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        bool several;
        if (speaks(v->e, i, &several)) print_same(v, i, several);
    }
}

bool cmd_eval_kv_swept(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].shown && !dq_kv_spec_is_plain(&e->row[i].kv)) return true;
    }
    return false;
}

bool cmd_eval_kv_policies(const dq_eval *e)
{
    const dq_kv_policy *seen = NULL;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_kv_policy *p = e->row[i].shown ? e->row[i].kv.evict.policy : NULL;
        if (p && seen && p != seen) return true;
        if (p) seen = p;
    }
    return false;
}

const char *cmd_eval_kv_keep_text(char buf[DQ_KV_KEEP], const dq_kv_spec *s)
{
    const dq_evict_spec *x = &s->evict;
    if (!x->policy) return "-";
    if (x->tokens)
        snprintf(buf, DQ_KV_KEEP, "%lld tokens", (long long)x->tokens);
    else
        snprintf(buf, DQ_KV_KEEP, "%g", x->keep);
    return buf;
}

bool cmd_eval_kv_keeps(const dq_eval *e)
{
    char one[DQ_KV_KEEP], other[DQ_KV_KEEP];
    const char *first = NULL;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (!first)
            first = cmd_eval_kv_keep_text(one, &e->row[i].kv);
        else if (strcmp(first, cmd_eval_kv_keep_text(other, &e->row[i].kv)) != 0)
            return true;
    }
    return false;
}

bool cmd_eval_kv_budgets(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_evict_spec *s = &e->row[i].kv.evict;
        if (e->row[i].shown && s->policy && s->budget != DQ_KV_BUDGET_UNIFORM) return true;
    }
    return false;
}

static bool same_route(const dq_eval_row *a, const dq_eval_row *b)
{
    char mine[DQ_KV_TEXT], other[DQ_KV_TEXT];
    dq_kv_codes_text(mine, &a->kv);
    return a->model == b->model && dq_math_same(a->math, b->math) &&
           strcmp(mine, dq_kv_codes_text(other, &b->kv)) == 0;
}

void cmd_eval_say_routes(dq_logger *logger, const dq_backend *b, const dq_eval *e, int model)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        int k = 0;
        while (!same_route(r, &e->row[k])) k++;
        if (k == i && r->model == model)
            dq_kv_report_note_routes(logger, b, e->model[model].m, r->math, &r->kv);
    }
}
