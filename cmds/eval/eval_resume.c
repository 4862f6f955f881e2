/* eval_resume: see eval_resume.h. The file is named by a SHA-256 over all that the bits of results depend on:
 * program, device, the canonical JSON of the settings, models and rows. A run that ends well removes it, others keep their work.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_resume.h"

#include "base/file.h"
#include "base/os.h"
#include "cmds/cli/progress.h"
#include "cmds/shard.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DQ_PRINTF(2, 3) static void add_line(dq_sha256 *h, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    dq_sha256_add(h, line, strlen(line));
}

/* The canonical form of a value, which it takes over: sorted members, no spaces, reals to the last bit. */
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

static json_t *source_json(const dq_eval_source *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "task", json_string(s->name));
    json_object_set_new(o, "num_fewshot", json_integer((json_int_t)s->n_shots));
    json_object_set_new(o, "seed", json_integer((json_int_t)s->seed));
    return o;
}

static json_t *settings_json(const cmd_eval_identity *id)
{
    const dq_eval *e = id->e;
    const char *order = id->o->head_order.word.text;
    json_t *o = json_object(), *kinds = json_object(), *files = json_array();
    json_t *sources = json_array();
    json_object_set_new(o, "ctx", json_integer((json_int_t)e->n_ctx));
    json_object_set_new(o, "limit", json_integer((json_int_t)e->limit));
    json_object_set_new(o, "bos", json_integer(e->bos));
    json_object_set_new(o, "long", json_integer(e->too_long));
    json_object_set_new(o, "head_order", order ? json_string(order) : json_null());
    for (int i = 0; i < id->files->n; i++)
        json_array_append_new(files, json_string(id->files->sha[i]));
    for (int i = 0; i < e->n_sources; i++) {
        const cmd_eval_kind *kind = cmd_eval_kind_of(&e->source[i]);
        json_array_append_new(sources, source_json(&e->source[i]));
        json_object_set_new(kinds, kind->name,
                            cmd_eval_kind_scored(kind, cmd_eval_own(id->o, kind), e));
    }
    json_object_set_new(o, "files", files);
    json_object_set_new(o, "sources", sources);
    json_object_set_new(o, "kinds", kinds);
    return o;
}

static dq_status add_models(dq_sha256 *h, const cmd_eval_identity *id, dq_err *err)
{
    for (int i = 0; i < id->e->n_models; i++) {
        const dq_eval_model *m = &id->e->model[i];
        dq_stop_ids stop = {0};
        dq_sha256_add(h, id->content[i], 64);
        if (m->m->gates) add_line(h, "gates %s\n", m->m->gates->sha256);
        if (cmd_eval_kind_stops(id->e)) DQ_TRY(dq_eval_stop_ids(&stop, id->e, i, err));
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

dq_status cmd_eval_resume_name(cmd_eval_resume *s, const cmd_eval_identity *id, dq_err *err)
{
    dq_sha256 h;
    dq_identity_text(s->program, id->backend);
    if (id->program) snprintf(s->program, sizeof s->program, "%s", id->program);
    DQ_TRY(dq_sha256_begin(&h, err));
    add_line(&h, "%s\n", s->program);
    if (add_json(&h, settings_json(id), err) != DQ_OK || add_models(&h, id, err) != DQ_OK ||
        add_rows(&h, id->e, err) != DQ_OK) {
        dq_sha256_drop(&h);
        return err->code;
    }
    DQ_TRY(dq_sha256_end(&h, s->key, err));
    snprintf(s->own, sizeof s->own, "dq-eval-%.12s.resume", s->key);
    snprintf(s->old, sizeof s->old, "%s.old", s->own);
    s->shard = id->o->part.n > 0;
    s->path = s->shard ? id->o->document : s->own;
    return DQ_OK;
}

dq_status cmd_eval_resume_stopped(const cmd_eval_resume *s, const dq_eval *e, int argc, char **argv,
                                  dq_err *err)
{
    if (!e->journal) return err->code;
    return dq_shard_stopped("eval", s->path, e->journal_err.code == DQ_OK, argc, argv, err);
}

static dq_status go_on(const cmd_eval_resume *s, dq_eval *e, dq_err *err)
{
    if (dq_eval_journal(e, s->key, s->path, true, err) == DQ_OK) return DQ_OK;
    if (err->code == DQ_DAMAGED || err->code == DQ_MISMATCH)
        dq_fail_more(err, dq_remedy_none, ". Remove it, or run without --resume to start anew");
    return err->code;
}

/* Another run's file of finished work; "" without one. */
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

/* That there is nothing to resume; and what there is, if it may have been meant. */
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

/* The finished work of an earlier run stays beside this one's; of two earlier ones, what has more: files of one command grow
 * with their scores. */
static void set_aside(const cmd_eval_resume *s, dq_logger *logger)
{
    const int64_t now = dq_file_bytes(s->path), before = dq_file_bytes(s->old);
    if (now < 0 || dq_journal_busy(s->path)) return;
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

dq_status cmd_eval_resume_begin(cmd_eval_resume *s, dq_eval *e, bool resume, dq_logger *logger,
                                dq_err *err)
{
    dq_err why = {0};
    s->begun = true;
    if (s->shard && !(resume && dq_file_exists(s->path)))
        return dq_eval_journal(e, s->key, s->path, false, err);
    if (resume && dq_file_exists(s->path)) return go_on(s, e, err);
    if (resume) say_nothing_here(s->path, logger);
    set_aside(s, logger);
    if (dq_eval_journal(e, s->key, s->path, false, &why) != DQ_OK) {
        dq_advice_apply(&why);
        dq_logger_warn(logger, "finished work cannot be kept for --resume: %s", why.text);
    }
    return DQ_OK;
}

/* Whether a resumed run would have less to compute: the first step is a head. */
static bool has_work(const dq_eval *e)
{
    return e->journal && dq_journal_count(e->journal) > 1;
}

dq_status cmd_eval_resume_keep(const cmd_eval_resume *s, const dq_eval *e, dq_err *err)
{
    if (!has_work(e)) return err->code;
    return dq_fail_more(
        err, dq_remedy_none,
        ". %s scores are in %s: the same command with --resume, and with --force or "
        "other outputs where files are in the way, goes on from there",
        e->journal_err.code == DQ_OK ? "The" : "Not all, but the first", s->path);
}

void cmd_eval_resume_end(const cmd_eval_resume *s, dq_eval *e, dq_status outcome)
{
    bool fine = outcome == DQ_OK || outcome == DQ_GATE;
    bool keep = outcome == DQ_STOPPED || (!fine && has_work(e)) || (s->shard && s->begun);
    dq_journal_close(e->journal, !keep);
    if (fine && s->begun && !s->shard) remove(s->old);
}
