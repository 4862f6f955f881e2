/* Text that a model goes on with, in dq eval: questions, whose answers are judged, and prompts,
 * whose texts are what comes out.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/text.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NEW = 256, STOP_TEXTS = 32 };

typedef struct generate_options {
    int64_t max_new; /* 0: not given */
    dq_list stop_words;
    dq_word sampler; /* of sampler_names */
    const char *completions;
    int64_t num_fewshot; /* before questions */
    uint64_t seed;       /* of drawn examples */
    const char *stop[STOP_TEXTS];
    dq_eval_generate of_questions, of_prompts; /* what all settings have */
    dq_eval_generate setting[DQ_EVAL_SOURCES]; /* [n], of the sources */
    const char *shots_path[DQ_EVAL_SOURCES];   /* NULL: none */
    int n;
} generate_options;

static const char *const sampler_names[] = {"first", "random"};

static const cmd_eval_kind_option options[] = {
    {.opt = {.value = "generate",
             .help = "generated text (gsm8k, math, ..., xsum, ..., generate)"}},
    DQ_KIND_OPTION(INT, "max-new", "N", generate_options, max_new, .min = 1, .max = 1e6,
                   .help = "new tokens of a prompt at most (default 256)"),
    DQ_KIND_OPTION(LIST, "stop", "TEXT", generate_options, stop_words,
                   .help =
                       "text that ends a continuation, with \\n, \\t and \\\\; may be repeated. "
                       "gsm8k and svamp end at \"Question:\" too, everything at the model's EOS"),
    DQ_KIND_OPTION(WORD, "fewshot-sampler", "WHICH", generate_options, sampler,
                   .words = sampler_names, .n_words = 2,
                   .help = "examples before questions: first (default), those of the file, the "
                           "same before all of them; random: drawn for each by "
                           "lm-evaluation-harness's generator (--seed, default 1234)"),
    DQ_KIND_OPTION(TEXT, "dump-completions", "FILE", generate_options, completions,
                   .use = DQ_OPT_OUTPUT,
                   .help = "write every continuation as JSON lines, which dq judged reads back "
                           "with a \"verdict\" in each"),
    {.opt = {.name = NULL}},
};

static const char *task(int i, const char **form)
{
    *form = NULL;
    return dq_task_questions[i];
}

/* What all sources have. */
static dq_status read_words(generate_options *o, const cmd_eval_options *run, dq_err *err)
{
    const int n = o->stop_words.n, builtin = dq_answer_n_stops;
    if (n + builtin > STOP_TEXTS)
        return dq_fail(err, DQ_USAGE, "--stop is given %d times (expected at most %d).", n,
                       STOP_TEXTS - builtin);
    for (int i = 0; i < builtin; i++) o->stop[i] = dq_answer_stop[i];
    for (int i = 0; i < n; i++) {
        /* Decodes \n, \t and \\. */
        const char **out = &o->stop[builtin + i];
        const char *word = o->stop_words.item[i];
        static const char from[] = "nt\\", to[] = "\n\t\\";
        int64_t first_bad;
        char *s = dq_text(run->a, word, strlen(word), err), *end = s;
        if (!s) return err->code;
        for (const char *c = word; *c; c++) {
            const char *at = *c == '\\' && c[1] ? strchr(from, c[1]) : NULL;
            if (*c == '\\' && !at)
                return dq_fail(err, DQ_USAGE,
                               "--stop: expected \\n, \\t or \\\\ in \"%s\", found \\%c.", word,
                               c[1] ? c[1] : ' ');
            *end++ = at ? to[at - from] : *c;
            c += at != NULL;
        }
        *end = 0;
        if (!*s) return dq_fail(err, DQ_USAGE, "--stop: an empty text would end everything.");
        if (dq_utf8_check(s, (size_t)(end - s), &first_bad) > 0)
            return dq_fail(err, DQ_USAGE, "--stop: \"%s\" is not UTF-8.", word);
        *out = s;
    }
    o->of_questions.stop = o->stop;
    o->of_questions.n_stop = builtin + n;
    o->of_prompts.stop = o->stop + builtin;
    o->of_prompts.n_stop = n;
    o->of_questions.max_new = o->of_prompts.max_new = o->max_new ? o->max_new : MAX_NEW;
    return DQ_OK;
}

static dq_status choose(void *own, cmd_eval_options *o, const char *name, const char *path,
                        dq_err *err)
{
    generate_options *g = own;
    const bool answered = o->task->answered, drawn = g->sampler.at;
    dq_eval_generate *set = &g->setting[g->n];
    const dq_eval_source source = {.name = name,
                                   .path = path,
                                   .kind = answered ? &dq_eval_answers : &dq_eval_prompts,
                                   .task = o->task,
                                   .settings = set};
    const int at = o->n_sources;
    DQ_TRY(cmd_eval_add_source(o, &source, "tasks", err));
    if (g->n == 0) DQ_TRY(read_words(g, o, err));
    *set = answered ? g->of_questions : g->of_prompts;
    if (answered) DQ_TRY(cmd_eval_take_examples(o, drawn, err));
    g->shots_path[g->n++] = o->examples[at];
    if (o->examples[at]) {
        set->shots.n = g->num_fewshot = o->num_fewshot;
        set->shots.drawn = drawn;
        set->shots.seed = g->seed = (uint64_t)o->source[at].seed;
    }
    if (g->sampler.text && !o->num_fewshot)
        return dq_fail(
            err, DQ_USAGE,
            "--fewshot-sampler is about examples before questions: give --num-fewshot N.");
    return DQ_OK;
}

static dq_status load(void *own, dq_eval *e, const cmd_eval_options *o, int i,
                      cmd_eval_files *files, dq_err *err)
{
    dq_eval_source *s = &e->source[i];
    dq_eval_generate *set = s->settings;
    const generate_options *g = own;
    const char *path = o->examples[i], *text;
    size_t len;
    if (!s->task->answered && !g->completions && !o->shard.n && !o->dry_run)
        return dq_fail(err, DQ_USAGE,
                       "--task %s judges nothing, its texts are what comes out: give "
                       "--dump-completions FILE.",
                       s->name);
    if (path) {
        DQ_TRY(cmd_eval_file_read(files, files->sha[files->n++], "fewshot", path, &text, &len, e->a,
                                  err));
        DQ_TRY(dq_questions_shots(&set->shots, s->task, path, text, len, e->a, err));
    }
    return cmd_eval_source_load(e, s, files, err);
}

static void put_texts(dq_row_writer *w, const dq_eval_generate *s)
{
    DQ_LIST(w, "stop", "Texts that end a continuation.");
    for (int i = 0; DQ_MORE(w, i, s->n_stop); i++) DQ_PUT(w, NULL, s->stop[i], NULL);
    dq_row_end(w);
}

static void put_examples(dq_row_writer *w, const generate_options *o)
{
    const char *path[DQ_EVAL_SOURCES];
    int n = 0;
    for (int i = 0; w->live && i < o->n; i++) {
        int k = 0;
        while (o->shots_path[i] && k < n && strcmp(o->shots_path[i], path[k]) != 0) k++;
        if (o->shots_path[i] && k == n) path[n++] = o->shots_path[i];
    }
    if (DQ_WHEN(w, n < 2))
        DQ_PUT(w, "fewshot_data", n ? path[0] : NULL,
               "Their file, or a list where tasks have several; null: none.",
               .when = DQ_NULL | DQ_UNSCORED);
    if (!DQ_BEGIN(w, LIST, "fewshot_data", n > 1, "Files of several tasks.",
                  .when = DQ_OUT | DQ_UNSCORED))
        return;
    for (int i = 0; DQ_MORE(w, i, n); i++) DQ_PUT(w, NULL, path[i], NULL);
    dq_row_end(w);
}

static void settings(dq_row_writer *w, const void *own, const dq_eval *e)
{
    const generate_options *o = own;
    const bool there = w->live && cmd_eval_kind_source(&cmd_eval_generate, e->source, e->n_sources);
    const bool drawn = w->live && o->sampler.at && o->num_fewshot;
    if (!DQ_BEGIN(w, OBJECT, "generation", there, "Of --task generate and gsm8k.", .when = DQ_OUT))
        return;
    DQ_PUT(w, "max_new", o->of_prompts.max_new, "New tokens at most.");
    put_texts(w, DQ_LIVE(w, &o->of_prompts));
    DQ_PUT(w, "num_fewshot", o->num_fewshot, "Solved examples before every prompt.");
    put_examples(w, o);
    DQ_PUT(w, "fewshot_sampler", drawn ? "random" : NULL,
           "How examples are chosen: drawn for each question; absent: the first of the file.",
           .when = DQ_OUT, DQ_WORD("random"));
    DQ_PUT(w, "fewshot_seed", drawn ? (int64_t)o->seed : -1, "Of their draws; absent: none.",
           .when = DQ_OUT | DQ_BELOW_0);
    dq_row_end(w);
}

enum { N_ENDS = DQ_TEXT_END_POSITIONS + 1 };

typedef struct totals {
    int64_t n, end[N_ENDS], prompt_ids, new_ids;
} totals;

static totals totals_of(const dq_eval *e, const dq_eval_row *row)
{
    const dq_requests *q = &e->ids[row->ids].req;
    totals t = {.n = dq_eval_units(e, row)};
    for (int64_t i = 0; i < t.n; i++) {
        const double *extra = row->extra + i * DQ_GEN_EXTRA;
        const int end = (int)extra[DQ_GEN_END];
        if (end >= 0 && end < N_ENDS) t.end[end]++;
        t.new_ids += (int64_t)extra[DQ_GEN_COUNT];
        t.prompt_ids += q->req[i].n_ctx;
    }
    return t;
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row]);
    const dq_eval_source *source = DQ_LIVE(w, dq_eval_source_of(e, r));
    const dq_eval_generate *s = DQ_LIVE(w, source->settings);
    totals t = {0};
    dq_stop_ids stops = {0};
    if (w->live) DQ_TRY(dq_eval_stop_ids(&stops, e, r->model, err));
    if (w->live) t = totals_of(e, r);
    dq_row_again(w, "throughput");
    DQ_PUT(w, "prompt_tokens", t.prompt_ids, "Tokens of prompts.");
    DQ_PUT(w, "new_tokens", t.new_ids, "New tokens.");
    DQ_PUT(w, "new_tokens_per_second",
           r->work.seconds > 0 ? (double)t.new_ids / r->work.seconds : DQ_NO_REAL,
           "New tokens per second.", .when = DQ_NULL);
    dq_row_end(w);
    DQ_OBJECT(w, "generation", "Continuations.");
    DQ_PUT(w, "max_new", s->max_new, "New tokens at most.");
    put_texts(w, s);
    DQ_METRIC(w, "finished",
              dq_mean_share(t.end[DQ_TEXT_END_STOP_ID] + t.end[DQ_TEXT_END_REQUESTED], t.n),
              "Share that ended by itself.");
    DQ_OBJECT(w, "ends", "How they ended.");
    for (int i = DQ_TEXT_END_STOP_ID; i < N_ENDS; i++)
        DQ_PUT(w, dq_text_end_name[i], t.end[i], "Continuations.");
    dq_row_end(w);
    DQ_PUT(w, "new_tokens_mean", (double)t.new_ids / (double)t.n, "Mean new tokens.",
           .when = DQ_NULL);
    DQ_INTS(w, "stop_ids", stops.id, stops.n, "Tokens that end one.");
    DQ_PUT(w, "truncated_items", e->ids[r->ids].req.n_truncated, "Prompts that were cut.");
    DQ_PUT(w, "skipped_items", source->n_skipped, "Prompts that were left out.");
    dq_row_end(w);
    return err->code;
}

static void warn(dq_logger *logger, const cmd_eval_view *v, bool done)
{
    for (int i = 0; done && i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        if (!cmd_eval_kind_shows(&cmd_eval_generate, v->e, i)) continue;
        const totals sum = totals_of(v->e, r);
        if (sum.end[DQ_TEXT_END_POSITIONS])
            dq_logger_warn(
                logger,
                "%s, %s: %lld of %lld continuations were cut at the last of %d positions; "
                "shorten prompts, or use fewer shots",
                v->names[r->model], dq_eval_source_of(v->e, r)->name,
                (long long)sum.end[DQ_TEXT_END_POSITIONS], (long long)sum.n,
                v->e->model[r->model].m->max_positions);
    }
}

static dq_status put_question(dq_row_writer *w, const dq_question *q, dq_err *err)
{
    json_t *id = NULL, *references = NULL;
    if (q->id) DQ_TRY(dq_json_parse(&id, q->id, strlen(q->id), "id", err));
    DQ_PUT(w, "id", id, NULL);
    DQ_PUT(w, "prompt", json_stringn(q->prompt, q->len), NULL);
    if (!q->reference) return DQ_OK;
    DQ_TRY(dq_json_parse(&references, q->reference, strlen(q->reference), "reference", err));
    DQ_PUT(w, "query", q->query, NULL);
    DQ_PUT(w, "reference", references, NULL);
    return DQ_OK;
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    const dq_question *q = s->items.item[unit].question;
    const double *extra = r->extra + unit * DQ_GEN_EXTRA;
    char *text, cluster[17];
    size_t len;
    DQ_TRY(dq_eval_completion(v->e, r, unit, &text, &len, err));
    snprintf(cluster, sizeof cluster, "%016" PRIx64, q->cluster);
    DQ_PUT(w, "item", dq_eval_number(s, unit), NULL);
    DQ_PUT(w, "cluster", cluster, NULL);
    put_question(w, q, err);
    DQ_PUT(w, "completion", json_stringn(text, len), NULL);
    DQ_PUT(w, "end", dq_text_end_name[(int)extra[DQ_GEN_END]], NULL);
    DQ_PUT(w, "tokens", (int64_t)extra[DQ_GEN_COUNT], NULL);
    if (q->gold) {
        DQ_PUT(w, "gold", q->gold, NULL);
        DQ_PUT(w, "exact_match", (bool)(extra[DQ_GEN_EXACT] == 1), NULL);
        DQ_PUT(w, "strict_match", (bool)(extra[DQ_GEN_STRICT] == 1), NULL);
    }
    dq_block_free(text);
    return err->code;
}

const cmd_eval_kind cmd_eval_generate = {
    .kind = {&dq_eval_answers, &dq_eval_prompts},
    .size = sizeof(generate_options),
    .options = options,
    .needs = "is for tasks that generate text (gsm8k, math, generate, ...); there is none.",
    .tasks_help =
        "gsm8k, svamp, math, asdiv, mawps, carp, tabmwp, college_math: questions answered in "
        "free text, the published files;\nxsum, cnn_dailymail, multi_news, qasper, hotpotqa, "
        "2wikimqa: the published files, continued for a judge; generate: {\"prompt\"} lines "
        "likewise (--dump-completions)",
    .task = task,
    .choose = choose,
    .load = load,
    .settings = settings,
    .warn = warn,
    .details = details,
    .item = item,
};
