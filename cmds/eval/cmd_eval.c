/* Widths and granularities are those of the rows, which know more than the options where a model
 * stores its own; each kind of evaluation adds its members.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/cmd_eval.h"

#include "base/file.h"
#include "checkpoint/container.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "cmds/eval/inside.h"
#include "cmds/report_page.h"
#include "eval/eval.h"
#include "eval/score.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "work/ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file of finished work. */
typedef struct resume_file {
    char key[65], own[64], old[72];
    char program[DQ_IDENTITY]; /* what computes, as the key has it */
    const char *path;          /* own, or the file of a shard */
    bool shard;
    bool begun; /* the file is this run's, or could not be written */
} resume_file;

typedef struct opened {
    dq_model *m;
    dq_tokenizer *tok;
    bool said; /* with -v, what its kernels are */
} opened;

typedef struct eval_run {
    cmd_eval_options o;
    dq_arena *a;
    dq_backend *backend;
    opened open[DQ_EVAL_MODELS + 1];
    int n_open;
    char content[DQ_EVAL_MODELS + 1][65]; /* what identifies the bytes of each */
    const char *names[DQ_EVAL_MODELS + 1];
    const char *made_from[DQ_EVAL_MODELS + 1]; /* base name of a container's source; NULL: none */
    cmd_eval_files files;
    json_t *inputs, *settings, *doc;
    dq_eval e;
    dq_progress progress;
    resume_file resume;
    bool requested; /* --dump-requests is written */
} eval_run;

/* Everything is said once: by the first row with these widths, cache, tokens or kernels. */

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

static void kv_settings(dq_row_writer *w, const cmd_eval_view *v, const dq_kv_options *o)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    char word[DQ_KV_TEXT];
    DQ_LIST(w, "kv_bits", "Widths of keys and values that rows have.");
    for (int i = 0; DQ_MORE(w, i, e->n_rows); i++) {
        if (DQ_WHEN(w, first_width(e, i)))
            DQ_PUT(w, NULL, dq_kv_spec_widths(word, &e->row[i].kv), NULL);
    }
    dq_row_end(w);
    DQ_OBJECT(w, "kv", "KV caches.");
    DQ_LIST(w, "effective", "Those that rows have.");
    for (int i = 0; DQ_MORE(w, i, e->n_rows); i++) {
        if (DQ_WHEN(w, is_first(e, i)))
            DQ_PUT(w, NULL, dq_kv_spec_json(&e->row[i].kv), NULL, DQ_KV_SPEC);
    }
    dq_row_end(w);
    DQ_BEGIN(w, MAP, "stored", true, "What containers ask for, by their name.");
    for (int i = 0; DQ_MORE(w, i, e->n_models); i++) {
        const dq_model *m = DQ_LIVE(w, e->model[i].m);
        if (DQ_WHEN(w, m->is_container))
            DQ_PUT(w, w->live ? v->names[i] : "", dq_kv_config_json(&m->kv), NULL, DQ_KV_CONFIG);
    }
    dq_row_end(w);
    DQ_LIST(w, "sizes", "What --kv-size has come to.");
    for (int i = 0; DQ_MORE(w, i, o->n_sized); i++) {
        const dq_kv_sized *z = DQ_LIVE(w, &o->sized[i]);
        DQ_ITEM(w);
        DQ_PUT(w, "size", z->of.size, "Share of the bytes of 16 bits that was asked for.");
        DQ_PUT(w, "context", z->of.context, "Tokens of the contexts that it is for.", .min = 1);
        DQ_PUT(w, "bits", z->row.bits, "Bits of keys and values.", .min = 2);
        DQ_PUT(w, "keep", z->keep, "Share of a context's tokens that stay.");
        DQ_PUT(w, "recent", z->row.recent, "Recent tokens; null: as usual, or as given.",
               .when = DQ_NULL | DQ_BELOW_0);
        DQ_PUT(w, "share_at_most", z->share,
               "Share of the bytes of 16 bits that this holds at most.");
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
}

/* A context's last row, which still sees all of it, predicts the next token, so choices of one
 * token do not show what eviction loses. Once per source and tokenizer. */
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

static void kv_warn(dq_logger *logger, const dq_eval *e, const char *const *names)
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

/* Wraps lines at 120 characters, between pieces. */
static void put(int *at, const char *piece)
{
    enum { LINE = 120 };
    int n = 0;
    for (const char *s = piece; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    const bool breaks = *at > 0 && *at + 1 + n > LINE;
    printf("%s%s", breaks ? "\n  " : *at ? " " : "", piece);
    *at = breaks ? 2 + n : *at + (*at > 0) + n;
}

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

/* Rows of one model and source with one cache differ in logits or arithmetic only. */
static bool one_cache(const dq_eval_row *a, const dq_eval_row *b)
{
    return a->model == b->model && a->ids == b->ids && dq_kv_spec_same(&a->kv, &b->kv);
}

/* The first row of those computed alike speaks for the cache. */
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
    /* Rows with one cache have equally many raised budgets. */
    char text[200];
    if (dq_eval_kept_of(e, r) == DQ_EVAL_KEPT_ALL)
        snprintf(text, sizeof text, "It keeps all tokens.");
    else
        snprintf(text, sizeof text,
                 "It keeps the first %d and the last %d tokens of a context%s: nothing is left to "
                 "choose.",
                 r->kv.sink, r->kv.recent,
                 r->work.cached.raised ? ", to which these budgets are raised" : "");
    put_words(&at, text);
    printf("\n");
}

static void kv_print_sizes(const dq_kv_options *o)
{
    char text[DQ_KV_SIZED];
    for (int i = 0; i < o->n_sized; i++)
        printf("%sKV size %s\n", i ? "" : "\n", dq_kv_sweep_sized(text, &o->sized[i]));
}

static void kv_print_same(const cmd_eval_view *v)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        bool several;
        if (speaks(v->e, i, &several)) print_same(v, i, several);
    }
}

static bool same_route(const dq_eval_row *a, const dq_eval_row *b)
{
    char mine[DQ_KV_TEXT], other[DQ_KV_TEXT];
    dq_kv_codes_text(mine, &a->kv);
    return a->model == b->model && dq_math_same(a->math, b->math) &&
           strcmp(mine, dq_kv_codes_text(other, &b->kv)) == 0;
}

static void say_routes(dq_logger *logger, const dq_backend *b, const dq_eval *e, int model)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        int k = 0;
        while (!same_route(r, &e->row[k])) k++;
        if (k == i && r->model == model)
            dq_kv_report_note_routes(logger, b, e->model[model].m, r->math, &r->kv);
    }
}

/* One seed serves all sources; -1 where nothing is drawn. */
static int64_t drawn_seed(const dq_eval *e)
{
    for (int i = 0; i < e->n_sources; i++) {
        if (e->source[i].n_shots) return e->source[i].seed;
    }
    return -1;
}

/* Members of `settings` in dq-eval/1 and dq-eval-plan/1. Needs all rows; may be called again when
 * more is known. */
static void settings_rows(dq_row_writer *w, const cmd_eval_options *o, const cmd_eval_view *v)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_shard_merge *merge = DQ_LIVE(w, o->merge);
    bool bits_seen[17] = {false}, seen[DQ_GRANULARITIES] = {false};
    DQ_LIST(w, "tasks", "Names of what is scored.");
    for (int i = 0; DQ_MORE(w, i, e->n_sources); i++) DQ_PUT(w, NULL, e->source[i].name, NULL);
    dq_row_end(w);
    DQ_PUT(w, "long", o->too_long.text,
           "What becomes of items that are too long; null: as the task says.", .when = DQ_NULL,
           DQ_WORD("error", "skip", "cut"));
    DQ_PUT(w, "num_fewshot", o->num_fewshot, "Solved examples before every item.");
    DQ_PUT(w, "seed", drawn_seed(e), "Of their draw; null: none are drawn.",
           .when = DQ_NULL | DQ_BELOW_0);
    /* Widths and granularities, in the order of the rows. */
    DQ_LIST(w, "logit_bits", "Widths of attention logits that rows have.");
    for (int i = 0; DQ_MORE(w, i, e->n_rows); i++) {
        const dq_eval_row *r = DQ_LIVE(w, &e->row[i]);
        if (DQ_WHEN(w, r->shown && !bits_seen[r->logit.bits])) DQ_PUT(w, NULL, r->logit.bits, NULL);
        if (w->live && r->shown) bits_seen[r->logit.bits] = true;
    }
    dq_row_end(w);
    DQ_LIST(w, "logit_granularity", "Granularities that rows have.");
    for (int i = 0; DQ_MORE(w, i, e->n_rows); i++) {
        const dq_eval_row *r = DQ_LIVE(w, &e->row[i]);
        if (DQ_WHEN(w, r->shown && !seen[r->logit.granularity]))
            DQ_PUT(w, NULL, dq_granularity_name[r->logit.granularity], NULL,
                   DQ_WORDS(dq_granularity_name));
        if (w->live && r->shown) seen[r->logit.granularity] = true;
    }
    dq_row_end(w);
    DQ_PUT(w, "head_order", o->head_order.word.text, "--head-order; null: the models'.",
           .when = DQ_NULL);
    kv_settings(w, v, DQ_LIVE(w, &o->kv));
    DQ_PUT(w, "math", o->math.text, "--math.");
    DQ_PUT(w, "margin", o->margin, "Loss that verdicts allow.");
    DQ_PUT(w, "ref", o->ref, "--ref; null: none.", .when = DQ_NULL);
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->settings) cmd_eval_kinds[i]->settings(w, DQ_LIVE(w, o->own[i]), e);
    }
    DQ_PUT(w, "bos", o->bos.text, "When the begin-of-text token is there.", DQ_WORDS(dq_bos_name));
    DQ_PUT(w, "limit", o->limit, "Items, prompts or windows at most; null: all.",
           .when = DQ_NULL | DQ_AT_0, .min = 1);
    DQ_PUT(w, "device", merge ? json_string_value(merge->device) : e->backend->device,
           "The device and its arithmetic units, in words.");
    DQ_PUT(w, "threads", merge ? json_integer_value(merge->threads) : e->backend->threads,
           "Threads of the CPU.", .min = 1);
}

static void cmd_eval_settings(json_t *s, const cmd_eval_options *o, const cmd_eval_view *v)
{
    dq_row_writer w = dq_row_json(s);
    settings_rows(&w, o, v);
}

static void describe_settings(dq_row_writer *w)
{
    settings_rows(w, NULL, NULL);
}

/* content: see open_model. */
static void model_rows(dq_row_writer *w, const dq_model *m, const char *content)
{
    dq_input_model_rows(w, m);
    if (!DQ_WHEN(w, m->is_container)) return;
    DQ_PUT(w, "content_sha256", content, "Of a container's payloads.", .pattern = DQ_SHA256,
           .when = DQ_SOMETIMES);
    DQ_PUT(w, "stored_logit_bits", m->logit.bits, "Bits of attention logits that it asks for.",
           .min = 2, .max = 16, .when = DQ_SOMETIMES);
    DQ_PUT(w, "stored_logit_granularity", dq_granularity_name[m->logit.granularity],
           "What shares their scale.", DQ_WORDS(dq_granularity_name), .when = DQ_SOMETIMES);
    DQ_PUT(w, "stored_kv", dq_kv_config_json(&m->kv), "The KV cache that it asks for.",
           DQ_KV_CONFIG, .when = DQ_SOMETIMES);
}

static void describe_model(dq_row_writer *w)
{
    model_rows(w, NULL, NULL);
}

void cmd_eval_inputs_rows(dq_row_writer *w, const json_t *inputs)
{
    DQ_LIST(w, "inputs", "Files and models.");
    for (size_t i = 0; DQ_MORE(w, i, json_array_size(inputs)); i++) {
        json_t *in = DQ_LIVE(w, json_incref(json_array_get(inputs, i)));
        const bool model = json_object_get(in, "architecture");
        if (DQ_WHEN(w, model))
            DQ_PUT(w, NULL, in, "A model that was read.", .def = "input_model",
                   .describe = describe_model);
        if (DQ_WHEN(w, !model))
            DQ_PUT(w, NULL, in, "A file that was read.", .def = "input_file",
                   .describe = cmd_eval_file_describe);
    }
    dq_row_end(w);
}

static void document_rows(dq_row_writer *w, const eval_run *x)
{
    cmd_eval_inputs_rows(w, DQ_LIVE(w, x->inputs));
    DQ_PUT(w, "settings", json_incref(x->settings), "As they take effect.", .def = "eval_settings",
           .describe = describe_settings);
}
/* --fail-if with its baseline must be equal in all shards. */
static json_t *conditions(const cmd_eval_options *o)
{
    json_t *list = json_array();
    json_array_append_new(list, o->baseline ? dq_document_name(o->baseline) : json_null());
    for (int i = 0; i < o->fail_if.n; i++)
        json_array_append_new(list, dq_document_name(o->fail_if.item[i]));
    json_array_append_new(list, dq_document_real(o->margin));
    return list;
}

/* Tokens are counted per sequence, its prefix included, shared or not; for a text, those of its
 * windows. */

typedef struct work {
    int64_t units;     /* items or windows */
    int64_t sequences; /* choices or windows */
    int64_t ids;       /* that the sequences feed, each counted for itself */
} work;

/* Rows that share another one's results cost nothing. */
static bool is_computed(const dq_eval *e, const dq_eval_row *r)
{
    return r == &e->row[r->same];
}

static work work_of(const dq_eval *e, const dq_eval_row *r)
{
    const dq_requests *q = &e->ids[r->ids].req;
    const dq_windows *win = &e->ids[r->ids].win;
    bool windows = dq_eval_source_of(e, r)->kind->windows;
    work w = {.units = dq_eval_units(e, r), .sequences = windows ? win->n : q->n};
    for (int64_t i = 0; windows && i < win->n; i++) w.ids += win->win[i].n;
    for (int64_t k = 0; !windows && k < q->n; k++)
        w.ids += dq_items_shared_prefix(q, q->req[k].item)->n + dq_score_fed(&q->req[k]);
    return w;
}

/* Includes references that are computed but not shown. */
static dq_status dry_run_print(const cmd_eval_view *v, double seconds, dq_err *err)
{
    char time[32];
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL,    DQ_KEY_BITS, DQ_KEY_GRANULARITY,
                                        DQ_KEY_KV_SWEPT, DQ_KEY_TASK, DQ_KEYS_END};
    const char *titles[12];
    int n = cmd_eval_key_titles(titles, v->e, keys);
    int64_t all = 0;
    dq_table *t;
    const int n_keys = n;
    if (cmd_eval_kv_swept(v->e)) titles[3] = "KV cache";
    titles[n++] = "examples";
    titles[n++] = "items or windows";
    titles[n++] = "sequences";
    titles[n++] = "tokens";
    titles[n++] = "computed as";
    DQ_TRY(dq_table_new(&t, titles, n, err));
    dq_table_keys(t, n_keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        const dq_eval_source *s = dq_eval_source_of(v->e, r);
        work w = work_of(v->e, r);
        char label[DQ_KV_LABEL];
        cmd_eval_key_cells(t, v, i, keys);
        dq_table_cell(t, "%lld", (long long)s->n_shots);
        dq_table_cell(t, "%lld", (long long)w.units);
        dq_table_cell(t, "%lld", (long long)w.sequences);
        dq_table_cell(t, "%lld", (long long)w.ids);
        if (is_computed(v->e, r))
            dq_table_cell(t, "%s", r->shown ? "result" : "reference");
        else
            dq_table_cell(t, "the same as %s",
                          dq_kv_report_label(label, sizeof label, &v->e->row[r->same].kv));
        if (is_computed(v->e, &v->e->row[i])) all += work_of(v->e, &v->e->row[i]).ids;
    }
    if (dq_table_print(t, err) == DQ_OK)
        printf("rows: %d, tokens: %lld, about %s; nothing was scored (--dry-run)\n", v->e->n_rows,
               (long long)all, dq_document_time_text(time, sizeof time, seconds));
    dq_table_free(t);
    return err->code == DQ_OK ? dq_stdout_flush(err) : err->code;
}

/* The file's name is a SHA-256 over all that the bits of results depend on: program, device,
 * settings, models and rows. A run that succeeds removes it; others keep their work. */

DQ_PRINTF(2, 3) static void add_line(dq_sha256 *h, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    dq_sha256_add(h, line, strlen(line));
}

/* Hashes and frees a value in canonical form: sorted members, no spaces, exact reals. */
static dq_status add_json(dq_sha256 *h, json_t *value, dq_err *err)
{
    char *text = json_dumps(value, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY |
                                       JSON_REAL_PRECISION(17));
    json_decref(value);
    if (!text) return dq_fail(err, DQ_RESOURCE, "out of memory");
    dq_sha256_add(h, text, strlen(text));
    free(text);
    return DQ_OK;
}

static json_t *settings_json(const eval_run *x)
{
    const dq_eval *e = &x->e;
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    DQ_PUT(&w, "ctx", e->n_ctx, NULL);
    DQ_PUT(&w, "limit", e->limit, NULL);
    DQ_PUT(&w, "bos", e->bos, NULL);
    DQ_PUT(&w, "long", e->too_long, NULL);
    DQ_PUT(&w, "head_order", x->o.head_order.word.text, NULL);
    DQ_LIST(&w, "files", NULL);
    for (int i = 0; i < x->files.n; i++) DQ_PUT(&w, NULL, x->files.sha[i], NULL);
    dq_row_end(&w);
    DQ_LIST(&w, "sources", NULL);
    for (int i = 0; i < e->n_sources; i++) {
        DQ_ITEM(&w);
        DQ_PUT(&w, "task", e->source[i].name, NULL);
        DQ_PUT(&w, "num_fewshot", e->source[i].n_shots, NULL);
        DQ_PUT(&w, "seed", e->source[i].seed, NULL);
        dq_row_end(&w);
    }
    dq_row_end(&w);
    DQ_BEGIN(&w, MAP, "kinds", true, NULL);
    for (int i = 0; i < e->n_sources; i++) {
        const cmd_eval_kind *kind = cmd_eval_kind_of(&e->source[i]);
        DQ_PUT(&w, e->source[i].name,
               cmd_eval_kind_settings(kind, cmd_eval_own(&x->o, kind), e, true), NULL);
    }
    dq_row_end(&w);
    return o;
}

static dq_status add_models(dq_sha256 *h, const eval_run *x, dq_err *err)
{
    for (int i = 0; i < x->e.n_models; i++) {
        const dq_eval_model *m = &x->e.model[i];
        dq_stop_ids stop = {0};
        dq_sha256_add(h, x->content[i], 64);
        if (m->m->gates) add_line(h, "gates %s\n", m->m->gates->sha256);
        if (cmd_eval_kind_stops(&x->e)) DQ_TRY(dq_eval_stop_ids(&stop, &x->e, i, err));
        add_line(h, "%zu %d %lld\n", m->tok_len, m->tok ? (int)dq_tokenizer_prefix(m->tok) : -1,
                 (long long)stop.n);
        if (stop.n) dq_sha256_add(h, stop.id, (size_t)stop.n * sizeof *stop.id);
        if (m->tok_len) dq_sha256_add(h, m->tok_text, m->tok_len);
        json_t *added = NULL; /* which the files beside it change */
        if (m->tok) DQ_TRY(dq_tokenizer_added(&added, m->tok, INT64_MAX, err));
        if (added) DQ_TRY(add_json(h, added, err));
    }
    return DQ_OK;
}

static dq_status add_rows(dq_sha256 *h, const dq_eval *e, dq_err *err)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        add_line(h, "%d %d %d %d %d %d %d ", r->model, r->ids, r->ref, r->logit.bits,
                 (int)r->logit.granularity, (int)r->math.linear, (int)r->kv.num);
        DQ_TRY(add_json(h, dq_kv_spec_json(&r->kv), err));
    }
    return DQ_OK;
}

/* The file of another run with unfinished work; "" without one. */
static const char *other_file(dq_arena *a)
{
    const char **name;
    size_t n;
    dq_err ignored = {0};
    if (dq_file_dir_names(&name, &n, ".", a, &ignored) != DQ_OK) return "";
    for (size_t i = 0; i < n; i++) {
        const size_t len = strlen(name[i]);
        if (strncmp(name[i], "dq-eval-", 8) == 0 && len > 7 &&
            strcmp(name[i] + len - 7, ".resume") == 0)
            return name[i];
    }
    return "";
}

/* Says that there is nothing to resume, and what may have been meant. */
static void say_nothing_here(const char *path, dq_logger *logger)
{
    dq_arena *a = dq_arena_new();
    const char *other = a ? other_file(a) : "";
    dq_logger_warn(logger,
                   "%s: is not in this folder, so there is nothing to resume with these inputs and "
                   "settings%s%s%s; everything is computed",
                   path, *other ? " (" : "", other,
                   *other ? " is of others, or of another version of dq)" : "");
    dq_arena_free(a);
}

/* The work of an earlier run is kept beside this one's; of two earlier ones the larger file, as
 * files grow with their scores. */
static void set_aside(const resume_file *s, dq_logger *logger)
{
    const int64_t now = dq_file_bytes(s->path), before = dq_file_bytes(s->old);
    if (now < 0 || dq_work_busy(s->path)) return;
    if (before < now && rename(s->path, s->old) != 0) return;
    if (before < 0)
        dq_logger_warn(logger,
                       "an earlier run of this command left finished work, which --resume would "
                       "go on from; it is in %s until this run is done",
                       s->old);
    else
        dq_logger_warn(logger,
                       "two earlier runs of this command left finished work; what has more of it "
                       "is in %s until this run is done, the other's is replaced",
                       s->old);
}

/* Writes finished work down from here on, or (resume) first takes what the file has; with no file
 * to resume there is a warning. A file of an earlier run that is not resumed is set aside as
 * PATH.old until this one is done; where one is there already, the one with more work stays. Where
 * a new file cannot be written the run goes on without, with a warning; not so the file of a
 * shard. */
static dq_status resume_begin(eval_run *x, const json_t *about, dq_err *err)
{
    resume_file *s = &x->resume;
    dq_logger *logger = &x->o.logger;
    const bool resume = x->o.resume;
    const bool leads = dq_ranks_number() == 0, there = resume && dq_file_exists(s->path);
    dq_work_how how = dq_eval_work(&x->e, s->key, s->path);
    dq_err why = {0};
    how.about = about;
    how.resume = resume;
    s->begun = leads;
    if (s->shard || there || !leads) return dq_work_open(&x->e.work, &how, err);
    if (resume) say_nothing_here(s->path, logger);
    set_aside(s, logger);
    if (dq_work_open(&x->e.work, &how, &why) != DQ_OK) {
        dq_advice_apply(&why);
        dq_logger_warn(logger, "finished work cannot be kept for --resume: %s", why.text);
    }
    return DQ_OK;
}

static dq_status open_model(eval_run *x, const char *path, bool shown, dq_err *err)
{
    opened *o = &x->open[x->n_open];
    dq_eval_model *em = &x->e.model[x->n_open];
    dq_logger_note(&x->o.logger, "opening %s", path);
    DQ_TRY(dq_input_model(&o->m, path, &x->o.head_order, &x->o.logger, err));
    x->n_open++; /* from here on it is closed with the others */
    if (x->o.kv.gates) DQ_TRY(dq_model_take_gates(o->m, x->o.kv.gates, err));
    /* A checkpoint is known by its fingerprint, a container by a hash of its contents, as several
     * come from one checkpoint. */
    const dq_model *m = o->m;
    const int index = x->n_open - 1;
    char *content = x->content[index];
    memcpy(content, m->fingerprint, 65);
    if (m->is_container) {
        const dq_container_info *info = &m->container->info;
        memcpy(content, info->content_sha256, 65);
        x->made_from[index] = dq_text(x->a, info->source, strlen(info->source), err);
    }
    json_t *in = json_object();
    dq_row_writer w = dq_row_json(in);
    model_rows(&w, m, content);
    json_array_append_new(x->inputs, in);
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(dq_model_file(o->m, dq_tokenizer_file[0], &em->tok_text, &em->tok_len, err));
    DQ_TRY(dq_input_tokenizer(&o->tok, o->m, false, err));
    em->tok = o->tok;
    DQ_TRY(dq_model_check_weights(o->m, err));
    dq_model_release(o->m);
    em->m = o->m;
    em->shown = shown;
    x->e.n_models = x->n_open;
    return DQ_OK;
}

/* --ref: a model of the run, by its path or bytes, or one opened for it. */
static dq_status choose_ref(eval_run *x, const dq_args *args, int *ref, dq_err *err)
{
    *ref = -1;
    for (int i = 0; i < args->n; i++) {
        if (dq_file_same(x->o.ref, args->item[i])) *ref = i;
    }
    if (*ref >= 0) return DQ_OK;
    *ref = x->n_open;
    DQ_TRY(open_model(x, x->o.ref, false, err));
    for (int i = 0; i < *ref; i++) {
        if (strcmp(x->content[i], x->content[*ref]) == 0) *ref = i;
    }
    return DQ_OK;
}

static dq_math math_of(const eval_run *x, int i)
{
    return dq_backend_math(x->backend, (dq_num)x->o.math.at[i]);
}

static dq_status open_all(eval_run *x, const dq_args *args, dq_err *err)
{
    x->e.source = x->o.source;
    x->e.n_sources = x->o.n_sources;
    x->e.limit = x->o.limit;
    if (x->o.too_long.text) x->e.too_long = (dq_long)(x->o.too_long.at + 1);
    x->e.bos = (dq_bos)x->o.bos.at;
    x->files.inputs = x->inputs;
    x->files.logger = &x->o.logger;
    for (int i = 0; i < x->e.n_sources; i++)
        DQ_TRY(cmd_eval_source_read(&x->e, &x->o, i, &x->files, err));
    DQ_TRY(dq_backend_open(&x->backend, x->o.device, (int)x->o.threads, err));
    for (int i = 0; i < x->o.math.n; i++)
        dq_kv_report_note_math(&x->o.logger, x->backend->device, math_of(x, i));
    x->e.backend = x->backend;
    x->e.model = dq_alloc(x->a, DQ_EVAL_MODELS + 1, sizeof *x->e.model, err);
    if (!x->e.model) return err->code;
    for (int i = 0; i < args->n; i++) DQ_TRY(open_model(x, args->item[i], true, err));
    /* Each is compared with --ref, else with its container's source in the run, else with
     * itself. */
    int ref = -1;
    if (x->o.ref) DQ_TRY(choose_ref(x, args, &ref, err));
    for (int i = 0; i < x->e.n_models; i++) {
        dq_eval_model *m = &x->e.model[i];
        m->ref = x->o.ref ? ref : i;
        for (int k = 0; !x->o.ref && m->m->is_container && k < x->e.n_models; k++) {
            const dq_model *other = x->e.model[k].m;
            if (!other->is_container && strcmp(other->fingerprint, m->m->fingerprint) == 0)
                m->ref = k;
        }
        m->sourceless = !x->o.ref && m->ref == i && m->m->is_rounded;
    }
    DQ_TRY(dq_input_head_order_check(&x->o.head_order, err));
    /* Models are called by the last part of their paths unless two share it. */
    for (int i = 0; i < x->e.n_models; i++) {
        const char *name = x->e.model[i].m->name;
        for (int k = 0; k < x->e.n_models; k++) {
            if (k != i && strcmp(x->e.model[k].m->name, x->e.model[i].m->name) == 0)
                name = x->e.model[i].m->path;
        }
        DQ_TRY(dq_document_name_text(&x->names[i], name, x->a, err));
    }
    for (int i = 0; i < x->e.n_sources; i++) DQ_TRY(dq_eval_long_fit(&x->e, i, err));
    /* Windows have 2048 tokens, or the fewest positions of all models. */
    int64_t fewest = 2048;
    for (int i = 0; i < x->e.n_models; i++) {
        const dq_model *m = x->e.model[i].m;
        if (x->o.ctx > m->max_positions)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: has %d positions, --ctx %lld is more. Use --ctx %d", m->path,
                           m->max_positions, (long long)x->o.ctx, m->max_positions);
        if (m->max_positions < fewest) fewest = m->max_positions;
    }
    x->e.n_ctx = x->o.ctx ? x->o.ctx : fewest;
    return DQ_OK;
}

/* From a list of several caches, those that model or device lack are left out. */
static dq_status add_math(eval_run *x, int model, int source, const dq_kv_config *cache,
                          dq_math math, dq_err *err)
{
    const dq_model *m = x->e.model[model].m;
    dq_kv_spec kv;
    dq_err lacks = {0};
    DQ_TRY(dq_kv_options_spec(&kv, cache, m, math.kv, err));
    if (dq_kv_options_fit(&kv, cache, m, math, x->backend, &lacks) == DQ_OK) {
        math = dq_backend_math_of(x->backend, math, &kv, m->map.head_dim);
        /* Widths and granularities come from options, or else from the container. */
        const int *bits = x->o.n_bits ? x->o.bits : &m->logit.bits;
        const dq_words *word = &x->o.logit_granularity;
        for (int g = 0; g < (word->n ? word->n : 1); g++) {
            for (int b = 0; b < (x->o.n_bits ? x->o.n_bits : 1); b++) {
                dq_logit_spec spec = {.bits = bits[b], .granularity = m->logit.granularity};
                if (word->n) spec.granularity = (dq_granularity)word->at[g];
                DQ_TRY(dq_eval_add(&x->e, model, source, spec, math, &kv, err));
            }
        }
        return DQ_OK;
    }
    dq_advice_apply(&lacks);
    if (x->o.math.n > 1 && lacks.code == DQ_MISMATCH)
        dq_logger_left_out(&x->o.logger, NULL, lacks.text);
    else
        *err = lacks;
    return err->code;
}

static void warn_truncated(eval_run *x, const dq_eval_ids *ids)
{
    const dq_eval_source *s = &x->e.source[ids->source];
    const dq_requests *q = &ids->req;
    char first[64] = "";
    int64_t k = 0;
    while (k < q->n && !q->req[k].truncated) k++;
    if (k < q->n && dq_eval_line(s, q->req[k].item))
        snprintf(first, sizeof first, ", the first is item %lld, line %lld",
                 (long long)dq_eval_number(s, q->req[k].item),
                 (long long)dq_eval_line(s, q->req[k].item));
    dq_logger_warn(&x->o.logger,
                   "%s: %lld of %lld items are longer than the %d positions of %s%s and lost the "
                   "beginning of their context%s",
                   s->path, (long long)q->n_truncated, (long long)q->n_items,
                   x->e.model[ids->model].m->max_positions, x->names[ids->model],
                   q->req[0].cont ? "" : " with room for --max-new", first);
}

static cmd_eval_view view_of(const eval_run *x)
{
    return (cmd_eval_view){.e = &x->e, .names = x->names, .margin = x->o.margin};
}

static dq_status list_rows(eval_run *x, dq_err *err)
{
    const cmd_eval_view v = view_of(x);
    for (int i = 0; i < x->e.n_sources; i++) {
        const dq_eval_source *s = &x->e.source[i];
        if (s->n_skipped)
            dq_logger_warn(
                &x->o.logger,
                "%s: items that have more tokens than a model has positions are left out: %lld",
                s->path, (long long)s->n_skipped);
    }
    for (int m = 0; m < x->e.n_models; m++) {
        for (int s = 0; x->e.model[m].shown && s < x->e.n_sources; s++) {
            dq_kv_config *list;
            int n;
            x->o.kv.context = x->e.source[s].kind->windows ? x->e.n_ctx / 2 : 0;
            dq_kv_sweep_list(&list, &n, &x->o.kv, &x->e.model[m].m->kv, x->e.model[m].m, err);
            for (int i = 0; err->code == DQ_OK && i < n; i++) {
                for (int k = 0; err->code == DQ_OK && k < x->o.math.n; k++)
                    add_math(x, m, s, &list[i], math_of(x, k), err);
            }
            dq_block_free(list);
            if (err->code != DQ_OK) return err->code;
        }
    }
    dq_logger_say_left_out(&x->o.logger);
    DQ_TRY(dq_kv_options_check(&x->o.kv, err));
    if (x->e.n_rows == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "nothing is left of --math %s for these models. Add f32, or give packed "
                       "containers and --kv-bits 8",
                       x->o.math.text);
    bool rounded = false;
    for (int i = 0; i < x->e.n_rows; i++) rounded = rounded || x->e.row[i].logit.bits < 16;
    if (x->o.logit_granularity.text && !rounded)
        dq_logger_warn(&x->o.logger,
                       "--logit-granularity says nothing here: no logits are rounded. Add "
                       "--logit-bits of 2 to 8");
    cmd_eval_warn_sources(&x->o.logger, &v, x->made_from);
    for (int m = 0; x->o.dry_run && m < x->e.n_models; m++)
        say_routes(&x->o.logger, x->backend, &x->e, m);
    for (int i = 0; i < x->e.n_ids; i++) {
        const dq_eval_ids *ids = &x->e.ids[i];
        const char *path = x->e.source[ids->source].path;
        if (ids->req.n_truncated) warn_truncated(x, ids);
        dq_input_warn_bad(&x->o.logger, path, ids->n_bad, ids->first_bad);
    }
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->warn) cmd_eval_kinds[i]->warn(&x->o.logger, &v, false);
    }
    for (int i = 0; i < x->e.n_ids; i++) cmd_eval_warn_seen(&x->o.logger, &v, i, x->inputs);
    return DQ_OK;
}

/* Gates are checked once rows and settings are known. */
static dq_status begin_gates(eval_run *x, dq_err *err)
{
    const cmd_eval_view v = view_of(x);
    cmd_eval_settings(x->settings, &x->o, &v);
    DQ_TRY(cmd_eval_baseline_fit(&x->o.gates.baseline, &v, &x->o, x->inputs, x->settings,
                                 &x->o.logger, err));
    cmd_eval_gates_begin(&x->o.gates, &x->o.logger, &v);
    return DQ_OK;
}

static void on_progress(void *arg, double share, const char *note)
{
    eval_run *x = arg;
    x->progress.wait = !x->e.is_paced;
    dq_progress_set(&x->progress, share, note);
}

/* A model's kernels are known only once its weights are in place. */
static void on_begins(void *arg, int model)
{
    eval_run *x = arg;
    if (!x->open[model].said) say_routes(&x->o.logger, x->backend, &x->e, model);
    x->open[model].said = true;
}

static dq_status run(eval_run *x, const json_t *about, dq_err *err)
{
    const cmd_eval_view v = view_of(x);
    if (cmd_eval_kv_policies(&x->e)) {
        int64_t ids = 0;
        int shown = 0, computed = 0;
        char same[64] = "";
        for (int i = 0; i < v.e->n_rows; i++) {
            const dq_eval_row *r = &v.e->row[i];
            if (!is_computed(v.e, r)) continue;
            ids += work_of(v.e, r).ids;
            shown += r->shown;
            computed++;
        }
        if (computed < v.e->n_rows)
            snprintf(same, sizeof same, "; %d more results are of the same caches",
                     v.e->n_rows - computed);
        dq_logger_say(
            &x->o.logger,
            "%d results and %d references to compute, %lld tokens in all (--dry-run lists them)%s",
            shown, computed - shown, (long long)ids, same);
    }
    for (int i = 0; cmd_eval_kind_stops(&x->e) && i < x->e.n_models; i++) {
        dq_stop_ids stops;
        DQ_TRY(dq_eval_stop_ids(&stops, &x->e, i, err));
        for (int64_t k = 0; k < stops.n; k++)
            dq_logger_note(&x->o.logger, "%s: id %d ends a text", v.names[i], (int)stops.id[k]);
        dq_input_warn_stops(&stops, v.names[i], &x->o.logger);
    }
    resume_begin(x, about, err);
    DQ_TRY(dq_ranks_agree("evaluation, program or processor", x->resume.key, err));
    dq_progress_begin(&x->progress, &x->o.logger, "scored", 1);
    x->progress.rough = x->e.n_rows > 1; /* rows take different time */
    x->e.progress = on_progress;
    x->e.begins = on_begins;
    x->e.progress_arg = x;
    dq_status s = dq_eval_run(&x->e, err);
    dq_progress_end(&x->progress);
    dq_advice_apply(&x->e.work.lost);
    if (x->e.work.lost.code != DQ_OK)
        dq_logger_warn(&x->o.logger, "finished work could not be kept for --resume: %s",
                       x->e.work.lost.text);
    return s == DQ_STOPPED ? dq_work_failed(&x->e.work, err) : s;
}

static dq_status print_kinds(const cmd_eval_view *v, bool last, dq_err *err)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (kind->tables && kind->tables_last == last) DQ_TRY(kind->tables(v, err));
    }
    return DQ_OK;
}

static dq_status print_table(const eval_run *x, const cmd_eval_view *v, dq_err *err)
{
    dq_table *t = NULL;
    cmd_eval_table_sizes(v);
    if (cmd_eval_table(&t, v, err) == DQ_OK && dq_table_print(t, err) == DQ_OK) kv_print_same(v);
    if (err->code == DQ_OK) kv_print_sizes(&x->o.kv);
    if (err->code == DQ_OK && print_kinds(v, false, err) == DQ_OK &&
        cmd_eval_averages(v, err) == DQ_OK) {
        cmd_eval_claims(v);
        if (cmd_eval_pareto(v, err) == DQ_OK) print_kinds(v, true, err);
    }
    if (err->code == DQ_OK) cmd_eval_gate_table(&x->o.gates, v, x->doc, err);
    dq_table_free(t);
    return err->code == DQ_OK ? dq_stdout_flush(err) : err->code;
}

static dq_status eval_rows(dq_row_writer *w, eval_run *x, cmd_eval_view *v, dq_err *err)
{
    document_rows(w, x);
    if (!w->live) cmd_judged_settings(w);
    DQ_LIST(w, "results", "A row of the table each.");
    DQ_TRY(cmd_eval_results_rows(w, v, err));
    if (!w->live) cmd_judged_rows(w, NULL);
    dq_row_end(w);
    if (w->live) cmd_eval_warn_clusters(&x->o.logger, v);
    cmd_eval_averages_rows(w, v);
    cmd_eval_claims_rows(w, v);
    DQ_TRY(cmd_eval_pareto_rows(w, v, err));
    return cmd_eval_gates_apply(w, DQ_LIVE(w, &x->o.gates), DQ_LIVE(w, &x->o.logger), v, err);
}

static void describe(dq_row_writer *w)
{
    dq_err none = {0};
    DQ_PUT(w, "command", "", "The command that printed it, without dq.", DQ_WORD("eval", "judged"));
    eval_rows(w, NULL, NULL, &none);
}

const dq_document dq_eval_document = {
    "dq-eval/1", "What dq eval prints with --json and writes with -o, and what dq judged does.",
    NULL, describe};

static dq_status make_document(eval_run *x, cmd_eval_view *v, dq_err *err)
{
    v->doc = x->doc = dq_document_new(&x->o.logger, dq_eval_document.name);
    dq_row_writer w = dq_row_json(x->doc);
    return eval_rows(&w, x, v, err);
}

/* written[]: the n files that now hold results of this run. */
static dq_status write_files(eval_run *x, const cmd_eval_view *v, const char **written, int *n,
                             dq_err *err)
{
    dq_table *t = NULL;
    if (x->o.dump && cmd_eval_dump(v, NULL, x->o.dump, err) == DQ_OK) written[(*n)++] = x->o.dump;
    for (int i = 0; err->code == DQ_OK && i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        const char *path = cmd_eval_kind_file(kind, x->o.own[i]);
        if (path && cmd_eval_dump(v, kind, path, err) == DQ_OK) written[(*n)++] = path;
    }
    if (err->code == DQ_OK && x->o.csv && cmd_eval_columns(&t, v, err) == DQ_OK &&
        dq_table_csv(t, x->o.csv, err) == DQ_OK)
        written[(*n)++] = x->o.csv;
    dq_table_free(t);
    if (err->code == DQ_OK && x->o.document &&
        dq_document_write(json_incref(x->doc), x->o.document, err) == DQ_OK)
        written[(*n)++] = x->o.document;
    return err->code;
}

/* A document with too many rows has no page: only `drawing` says so, and the data are written. */
static dq_status write_page(eval_run *x, const char **written, int *n, dq_err *drawing, dq_err *err)
{
    const dq_page_input in = {"", x->doc};
    if (dq_page_write(&in, 1, x->o.html, drawing) == DQ_OK)
        written[(*n)++] = x->o.html;
    else if (drawing->code != DQ_RESOURCE && drawing->code != DQ_MISMATCH)
        *err = *drawing;
    return err->code;
}

static dq_status hand_out(eval_run *x, dq_err *err)
{
    cmd_eval_view v = view_of(x);
    dq_err drawing = {0}, gate = {0};
    const char *written[4 + DQ_EVAL_KINDS];
    int n = 0;
    cmd_eval_settings(x->settings, &x->o, &v);
    kv_warn(&x->o.logger, &x->e, x->names);
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->warn) cmd_eval_kinds[i]->warn(&x->o.logger, &v, true);
    }
    if (make_document(x, &v, err) == DQ_OK && write_files(x, &v, written, &n, err) == DQ_OK &&
        (!x->o.html || write_page(x, written, &n, &drawing, err) == DQ_OK)) {
        if (x->o.json)
            dq_stdout_print(json_incref(x->doc), err);
        else
            print_table(x, &v, err);
    }
    if (err->code != DQ_OK) { /* a failed command leaves no output */
        for (int i = 0; i < n; i++) remove(written[i]);
        return dq_work_failed(&x->e.work, err);
    }
    cmd_eval_gates_outcome(&x->o.gates, &gate);
    if (drawing.code == DQ_OK) {
        *err = gate;
        return err->code;
    }
    if (gate.code != DQ_OK) dq_in(&drawing, "%s, but there is no page: ", gate.text);
    *err = drawing;
    return dq_work_failed(&x->e.work, err);
}

/* The file of finished work must not be one that the run reads or writes otherwise. */
static dq_status name_work(eval_run *x, const dq_args *args, dq_err *err)
{
    resume_file *s = &x->resume;
    dq_sha256 h;
    dq_identity_text(s->program, x->backend);
    if (x->o.merge) snprintf(s->program, sizeof s->program, "%s", x->o.merge->program);
    DQ_TRY(dq_sha256_begin(&h, err));
    add_line(&h, "%s\n", s->program);
    if (add_json(&h, settings_json(x), err) != DQ_OK || add_models(&h, x, err) != DQ_OK ||
        add_rows(&h, &x->e, err) != DQ_OK) {
        dq_sha256_drop(&h);
        return err->code;
    }
    DQ_TRY(dq_sha256_end(&h, s->key, err));
    snprintf(s->own, sizeof s->own, "dq-eval-%.12s.resume", s->key);
    snprintf(s->old, sizeof s->old, "%s.old", s->own);
    s->shard = x->o.shard.n > 0;
    s->path = s->shard ? x->o.document : s->own;
    return cmd_eval_check_outputs(&x->o, args, x->resume.path, err);
}

static dq_status dump_requests(eval_run *x, dq_err *err)
{
    if (!x->o.requests || x->o.shard.n || dq_ranks_number() > 0) return DQ_OK;
    DQ_TRY(cmd_eval_dump_requests(&x->e, x->o.requests, err));
    x->requested = true;
    return DQ_OK;
}

/* windows, choices: of the row's source. */
static void dry_run_rows(dq_row_writer *w, const cmd_eval_view *v, int row, bool windows,
                         bool choices)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row]);
    const work n = w->live ? work_of(e, r) : (work){0};
    DQ_ITEM(w);
    DQ_PUT(w, "model", v->names[r->model], "Its name in the run.");
    DQ_PUT(w, "reference", v->names[e->row[r->ref].model], "The model that it is compared with.");
    DQ_PUT(w, "shown", r->shown, "Whether it is a result, not a reference alone.");
    DQ_PUT(w, "same_as", cmd_eval_same_as(e, row),
           "Index of the result whose numbers it shares; null: none.",
           .when = DQ_NULL | DQ_BELOW_0);
    dq_kv_report_logit_rows(w, DQ_LIVE(w, &r->logit), "Bits of attention logits.");
    DQ_PUT(w, "kv", dq_kv_spec_json(&r->kv), "The KV cache.", DQ_KV_SPEC);
    DQ_PUT(w, "math", dq_kv_report_math_json(r->math), "The arithmetic.", DQ_MATH);
    DQ_PUT(w, "passes", dq_eval_passes(r), "How tokens are fed.",
           DQ_WORD("whole", "context+rest", "decode"));
    DQ_PUT(w, "task", dq_eval_source_of(e, r)->name, "What is scored.");
    DQ_PUT(w, windows ? "windows" : "items", n.units,
           windows ? "Windows of a text." : "Items, or prompts.");
    if (choices) cmd_eval_choices_rows(w, e, r);
    DQ_PUT(w, "sequences", n.sequences, "Sequences that are fed: choices, or windows.");
    DQ_PUT(w, "tokens", n.ids, "Tokens, each sequence counted for itself.");
    dq_row_end(w);
}

static void dry_rows(dq_row_writer *w, const eval_run *x, const cmd_eval_view *v)
{
    const int n = w->live ? v->e->n_rows : 0;
    document_rows(w, x);
    DQ_LIST(w, "results", "Rows, those of results first.");
    /* References that are only computed come last, as they have no result. */
    for (int i = 0; i < 2 * n; i++) {
        const dq_eval_row *r = &v->e->row[i % n];
        const dq_eval_source *s = dq_eval_source_of(v->e, r);
        if (r->shown == (i < n))
            dry_run_rows(w, v, i % n, s->kind->windows, s->task && s->task->choices);
    }
    for (int i = 0; !w->live && i < 3; i++) dry_run_rows(w, NULL, 0, i == 1, i == 0);
    dq_row_end(w);
}

static void describe_dry_run(dq_row_writer *w)
{
    dry_rows(w, NULL, NULL);
}

const dq_document dq_eval_plan_document = {
    "dq-eval-plan/1", "What dq eval --dry-run prints with --json: what would be computed.", "eval",
    describe_dry_run};

static dq_status show_dry_run(eval_run *x, dq_err *err)
{
    cmd_eval_view v = view_of(x);
    double seconds = 0;
    if (!x->o.json) DQ_TRY(dq_eval_expected(&seconds, &x->e, false, err));
    if (dq_progress_is_long(seconds)) DQ_TRY(dq_eval_expected(&seconds, &x->e, true, err));
    if (!x->o.json && !x->o.document) return dry_run_print(&v, seconds, err);
    cmd_eval_settings(x->settings, &x->o, &v);
    json_t *doc = dq_document_new(&x->o.logger, dq_eval_plan_document.name);
    dq_row_writer w = dq_row_json(doc);
    dry_rows(&w, x, &v);
    if (x->o.document) dq_document_write(json_incref(doc), x->o.document, err);
    if (err->code == DQ_OK && x->o.json) {
        dq_stdout_print(json_incref(doc), err);
        if (err->code != DQ_OK && x->o.document) remove(x->o.document);
    }
    json_decref(doc);
    if (err->code != DQ_OK || x->o.json) return err->code;
    return dry_run_print(&v, seconds, err);
}

static dq_status take_shards(eval_run *x, dq_err *err)
{
    const dq_work_how how = dq_eval_work(&x->e, x->resume.key, x->resume.path);
    for (int i = 0; i < x->o.merge->n; i++) DQ_TRY(dq_work_merge(&how, x->o.merge->path[i], err));
    for (int i = 0; i < x->e.n_rows; i++) {
        const dq_eval_row *row = &x->e.row[i];
        const int64_t units = dq_eval_units(&x->e, row);
        if (dq_eval_lacking(row, 0, units) < units)
            return dq_fail(err, DQ_MISMATCH,
                           "the shards together lack a part of the work, as if they "
                           "were cut in another way");
        x->e.row[i].work = x->e.row[row->same].work;
    }
    return DQ_OK;
}

static dq_status score_or_show(eval_run *x, int argc, char **argv, dq_err *err)
{
    const bool hands_out = dq_ranks_number() == 0;
    if (x->o.dry_run) return hands_out ? show_dry_run(x, err) : DQ_OK;
    if (x->o.merge) return take_shards(x, err) == DQ_OK ? hand_out(x, err) : err->code;
    if (x->o.shard.n) {
        /* --shard: the file of -o is the journal; its last line marks the shard as complete. */
        x->e.shard = x->o.shard.index - 1;
        x->e.n_shards = x->o.shard.n;
        const dq_shard_about about = {"eval", &x->o.shard, x->resume.program, x->backend,
                                      conditions(&x->o)};
        json_t *head;
        if (dq_shard_head(&head, &about, argc, argv, err) == DQ_OK && run(x, head, err) == DQ_OK)
            dq_work_end(&x->e.work, err);
        json_decref(head);
        if (err->code != DQ_OK) return dq_work_failed(&x->e.work, err);
        dq_shard_say(&x->o.shard, x->o.document, x->e.share, "OUT.json", &x->o.logger);
        return DQ_OK;
    }
    DQ_TRY(run(x, NULL, err));
    return hands_out ? hand_out(x, err) : DQ_OK;
}

dq_status dq_cmd_eval(int argc, char **argv, dq_err *err)
{
    return cmd_eval_merged(NULL, argc, argv, err);
}

dq_status cmd_eval_merged(const dq_shard_merge *merge, int argc, char **argv, dq_err *err)
{
    dq_args args;
    eval_run *x = dq_block_new(1, sizeof *x, err);
    if (!x) return err->code;
    x->a = x->e.a = dq_arena_new();
    x->inputs = json_array();
    x->settings = json_object();
    if (!x->a) dq_fail(err, DQ_RESOURCE, "out of memory");
    x->o.merge = merge;
    if (err->code == DQ_OK && cmd_eval_parse(&x->o, &args, argc, argv, x->a, err) == DQ_OK &&
        !args.help && cmd_eval_understand(&x->o, &args, err) == DQ_OK &&
        dq_progress_listen(&x->o.logger, "eval", err) == DQ_OK) {
        if (open_all(x, &args, err) == DQ_OK && list_rows(x, err) == DQ_OK &&
            begin_gates(x, err) == DQ_OK && name_work(x, &args, err) == DQ_OK &&
            dump_requests(x, err) == DQ_OK)
            score_or_show(x, argc, argv, err);
    }
    /* Removes the file unless it is worth resuming. */
    const resume_file *s = &x->resume;
    const dq_status outcome = err->code;
    bool passed = outcome == DQ_OK || outcome == DQ_GATE;
    bool keep = outcome == DQ_STOPPED || (!passed && dq_work_has_lines(&x->e.work)) ||
                (s->shard && s->begun);
    dq_work_close(&x->e.work, !keep);
    if (passed && s->begun && !s->shard) remove(s->old);
    bool fine = err->code == DQ_OK || err->code == DQ_GATE;
    if (!fine && x->requested) remove(x->o.requests);
    for (int i = 0; i < x->n_open; i++) {
        dq_tokenizer_free(x->open[i].tok);
        dq_model_close(x->open[i].m);
    }
    dq_backend_close(x->backend);
    json_decref(x->inputs);
    json_decref(x->settings);
    json_decref(x->doc);
    cmd_eval_baseline_end(&x->o.gates.baseline);
    dq_logger_end(&x->o.logger);
    dq_arena_free(x->a);
    dq_block_free(x);
    return err->code;
}
