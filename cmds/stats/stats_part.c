/* stats_part: see stats_part.h. The blocks of all models are numbered through, and part I of N computes those whose number is
 * I - 1 modulo N: they take about as long. What blocks find adds up, so a file has the state after some of them: after its head
 * (base/work.h) a line for each layer of each model, and one for the blocks,
 *
 *   {"model": M, "layer": L, "found": BASE64}      bytes of dq_outliers_put
 *   {"blocks": [[B, ..], ..]}                      of each model
 *
 * A later state replaces the file. One is written after a block, if writing takes little time beside what was computed since.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_part.h"

#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "checkpoint/container.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char schema[] = "dq-stats-part/2";
enum { SHARE = 20, LEAST_SECONDS = 5 }; /* between states: times the writing, and at least */

dq_status cmd_stats_key_make(cmd_stats_key *key, const cmd_stats_entry *e, int n,
                             const char *head_order, dq_outlier_detail detail, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    dq_sha256_add(&h, key->program, strlen(key->program) + 1);
    dq_sha256_add(&h, dq_outlier_detail_name[detail], strlen(dq_outlier_detail_name[detail]) + 1);
    if (head_order) dq_sha256_add(&h, head_order, strlen(head_order));
    for (int i = 0; i < n; i++, e++) {
        const int64_t ids = e->in.cu[e->in.n_seq];
        const dq_model *m = e->model;
        dq_sha256_add(&h, m->fingerprint, 64);
        if (m->is_container)
            dq_sha256_add(&h, dq_container_header(m->container)->content_sha256, 64);
        dq_sha256_add(&h, &e->in.n_seq, sizeof e->in.n_seq);
        dq_sha256_add(&h, e->in.cu, ((size_t)e->in.n_seq + 1) * sizeof *e->in.cu);
        dq_sha256_add(&h, e->in.ids, (size_t)ids * sizeof *e->in.ids);
    }
    return dq_sha256_end(&h, key->text, err);
}

/* One model's blocks, and a state of it as a file has it. */
typedef struct blocks {
    dq_outlier_walk *walk;
    int first; /* its number among those of all models */
    bool done[DQ_OUTLIER_BLOCKS];
    dq_strbuf *found; /* [n_layers] */
} blocks;

typedef struct work {
    const cmd_stats_part *x;
    bool whole; /* of all parts, which are read */
    blocks model[CMD_STATS_MODELS];
    /* while a part is written */
    dq_journal *journal;
    double wrote_at, writing; /* seconds: when the last state was written, and how long that took */
} work;

static dq_status begin(work *w, dq_err *err)
{
    int number = 0;
    for (int i = 0; i < w->x->n; i++) {
        cmd_stats_entry *e = &w->x->entry[i];
        const dq_model *m = e->model;
        const dq_sequences s = {e->in.n_seq, e->in.cu, e->in.ids};
        e->fed = s;
        w->model[i].found = dq_block_new((size_t)m->n_layers, sizeof *w->model[i].found, err);
        if (!w->model[i].found) return err->code;
        DQ_TRY(dq_outliers_init(&e->out, m, w->x->detail, err));
        DQ_TRY(dq_outlier_walk_new(&w->model[i].walk, &e->out, m, &e->fed, &w->x->plan, err));
        w->model[i].first = number;
        number += dq_outlier_walk_blocks(w->model[i].walk);
    }
    return DQ_OK;
}

static void end(work *w)
{
    for (int i = 0; i < w->x->n; i++) {
        blocks *of = &w->model[i];
        for (int l = 0; of->found && l < w->x->entry[i].model->n_layers; l++)
            dq_block_free(of->found[l].s);
        dq_block_free(of->found);
        dq_outlier_walk_free(of->walk);
    }
    dq_block_free(w);
}

static bool is_mine(const work *w, int model, int block)
{
    return (w->model[model].first + block) % w->x->part->n == w->x->part->shard - 1;
}

/* ---- Reading ---- */

static dq_status take_found(work *w, const json_t *step, dq_err *err)
{
    const char *text;
    int64_t model, layer;
    size_t n;
    DQ_TRY(dq_json_int(&model, step, "model", 0, w->x->n - 1, NULL, err));
    DQ_TRY(
        dq_json_int(&layer, step, "layer", 0, w->x->entry[model].model->n_layers - 1, NULL, err));
    DQ_TRY(dq_json_text(&text, step, "found", NULL, err));
    const size_t len = strlen(text);
    dq_strbuf *to = &w->model[model].found[layer];
    if (to->n) return dq_fail(err, DQ_DAMAGED, "a layer is there twice");
    DQ_TRY(dq_strbuf_reserve(to, len / 4 * 3 + 1, err));
    if (!dq_base64_get(to->s, &n, text, len)) return dq_fail(err, DQ_DAMAGED, "\"found\"");
    to->n = n;
    return DQ_OK;
}

static dq_status mark_blocks(work *w, int model, const json_t *list, dq_err *err)
{
    blocks *of = &w->model[model];
    size_t i;
    json_t *x;
    json_array_foreach(list, i, x)
    {
        const int64_t block = json_is_integer(x) ? json_integer_value(x) : -1;
        if (block < 0 || block >= dq_outlier_walk_blocks(of->walk))
            return dq_fail(err, DQ_DAMAGED, "\"blocks\"");
        if (of->done[block] || (!w->whole && !is_mine(w, model, (int)block)))
            return dq_fail(err, DQ_DAMAGED, "block %lld of model %d is %s", (long long)block, model,
                           of->done[block] ? "there twice" : "not of this part");
        of->done[block] = true;
    }
    return DQ_OK;
}

/* The state that the lines before have, in full. */
static dq_status merge_found(work *w, int model, dq_err *err)
{
    blocks *of = &w->model[model];
    dq_outliers *o = &w->x->entry[model].out;
    for (int l = 0; l < o->n_layers; l++) {
        const char *at = of->found[l].s, *end = at + of->found[l].n;
        DQ_TRY(dq_outliers_merge(o, l, &at, end, err));
        if (at != end) return dq_fail(err, DQ_DAMAGED, "\"found\" is too long");
        of->found[l].n = 0;
    }
    if (dq_outlier_walk_check(of->walk)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "a place outside the sequences");
}

static dq_status take_line(void *arg, int64_t line, const json_t *step, dq_err *err)
{
    work *w = arg;
    const dq_part_head want = {schema, w->x->key->text, w->whole ? 0 : w->x->part->shard,
                               w->whole ? 0 : w->x->part->n};
    if (line == 0) return dq_part_check(step, &want, w->whole, err);
    const json_t *all = json_object_get(step, "blocks");
    if (!all) return take_found(w, step, err);
    if ((int)json_array_size(all) != w->x->n) return dq_fail(err, DQ_DAMAGED, "\"blocks\"");
    for (int i = 0; i < w->x->n; i++) {
        const json_t *list = json_array_get(all, (size_t)i);
        if (json_array_size(list) == 0) continue;
        DQ_TRY(mark_blocks(w, i, list, err));
        DQ_TRY(merge_found(w, i, err));
    }
    return DQ_OK;
}

static dq_status read_part(work *w, const char *path, dq_err *err)
{
    DQ_TRY(dq_part_read(path, take_line, w, err));
    for (int i = 0; i < w->x->n; i++) {
        const blocks *of = &w->model[i];
        for (int l = 0; l < w->x->entry[i].model->n_layers; l++) {
            if (of->found[l].n) return dq_fail(err, DQ_DAMAGED, "%s: it says no blocks", path);
        }
    }
    return DQ_OK;
}

dq_status cmd_stats_part_merge(const cmd_stats_part *x, const dq_shard_merge *merge, dq_err *err)
{
    work *w = dq_block_new(1, sizeof *w, err);
    if (!w) return err->code;
    w->x = x;
    w->whole = true;
    begin(w, err);
    for (int i = 0; err->code == DQ_OK && i < merge->n; i++) read_part(w, merge->path[i], err);
    for (int i = 0; err->code == DQ_OK && i < x->n; i++) {
        const blocks *of = &w->model[i];
        for (int b = 0; b < dq_outlier_walk_blocks(of->walk); b++) {
            if (!of->done[b]) dq_fail(err, DQ_MISMATCH, "a part of the work lacks");
        }
        dq_outlier_walk_end(of->walk);
    }
    end(w);
    return err->code;
}

/* ---- Writing ---- */

static dq_status add_head(const cmd_stats_part *x, dq_journal *j, dq_err *err)
{
    json_t *o = json_object();
    json_object_set_new(o, "schema", json_string(schema));
    json_object_set_new(o, "key", json_string(x->key->text));
    json_object_update(o, x->about);
    return dq_part_add(j, o, err);
}

static dq_status add_layer(dq_journal *j, int model, int layer, const dq_outliers *o, dq_err *err)
{
    dq_strbuf bytes = {0}, line = {0};
    char head[64];
    const int n =
        snprintf(head, sizeof head, "{\"model\": %d, \"layer\": %d, \"found\": \"", model, layer);
    if (dq_outliers_put(o, layer, &bytes, err) == DQ_OK &&
        dq_strbuf_add(&line, head, (size_t)n, err) == DQ_OK &&
        dq_base64_put(&line, bytes.s, bytes.n, err) == DQ_OK &&
        dq_strbuf_add(&line, "\"}", 2, err) == DQ_OK)
        dq_journal_add(j, line.s, line.n, err);
    dq_block_free(bytes.s);
    dq_block_free(line.s);
    return err->code;
}

static dq_status add_state(const work *w, dq_journal *j, dq_err *err)
{
    json_t *all = json_array(), *line = json_object();
    for (int i = 0; i < w->x->n; i++) {
        const blocks *of = &w->model[i];
        const dq_outliers *o = &w->x->entry[i].out;
        json_t *list = json_array();
        for (int b = 0; b < dq_outlier_walk_blocks(of->walk); b++) {
            if (of->done[b] && is_mine(w, i, b)) json_array_append_new(list, json_integer(b));
        }
        for (int l = 0; json_array_size(list) && l < o->n_layers && err->code == DQ_OK; l++)
            add_layer(j, i, l, o, err);
        json_array_append_new(all, list);
    }
    json_object_set_new(line, "blocks", all);
    if (err->code == DQ_OK) return dq_part_add(j, line, err);
    json_decref(line);
    return err->code;
}

/* Puts the state in the place of the one before. */
static dq_status write_state(work *w, bool all, dq_err *err)
{
    const double began = dq_os_seconds();
    dq_journal *j = NULL;
    dq_arena *a = dq_arena_new();
    const char *partial = a ? dq_textf(a, err, "%s.partial", w->x->path) : NULL;
    if (!partial) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK && dq_journal_new(&j, partial, err) == DQ_OK &&
        add_head(w->x, j, err) == DQ_OK && add_state(w, j, err) == DQ_OK &&
        (all ? dq_part_end(j, err) : dq_journal_sync(j, err)) == DQ_OK &&
        rename(partial, w->x->path) != 0)
        dq_fail(err, DQ_FILE, "%s: cannot be written", w->x->path);
    if (err->code == DQ_OK) {
        dq_journal_close(w->journal, false);
        w->journal = j;
    } else {
        dq_journal_close(j, true);
        dq_fail_more(err, dq_remedy_none,
                     ". What it has stays: the same command with --resume goes on from there");
    }
    dq_arena_free(a);
    w->wrote_at = dq_os_seconds();
    w->writing = w->wrote_at - began;
    return err->code;
}

/* The part's file, with its head. */
static dq_status open_file(work *w, bool *ended, dq_err *err)
{
    const char *path = w->x->path;
    *ended = false;
    w->wrote_at = dq_os_seconds();
    if (w->x->resume && dq_file_exists(path)) {
        if (dq_part_resume(&w->journal, ended, path, take_line, w, err) != DQ_OK &&
            (err->code == DQ_DAMAGED || err->code == DQ_MISMATCH))
            dq_fail_more(err, dq_remedy_none, ". Remove it, or run without --resume to start anew");
    } else {
        dq_journal_new(&w->journal, path, err);
    }
    DQ_TRY(err->code);
    if (dq_journal_count(w->journal) > 0 || add_head(w->x, w->journal, err) == DQ_OK) return DQ_OK;
    dq_journal_close(w->journal, true); /* without a head nothing can be gone on from */
    w->journal = NULL;
    return err->code;
}

static dq_status run_block(work *w, dq_runner *r, int model, int block, dq_err *err)
{
    DQ_TRY(dq_outlier_walk_run(w->model[model].walk, r, block, err));
    w->model[model].done[block] = true;
    if (dq_os_seconds() - w->wrote_at < fmax(SHARE * w->writing, LEAST_SECONDS)) return DQ_OK;
    return write_state(w, false, err);
}

static dq_status run_model(work *w, int model, dq_err *err)
{
    const cmd_stats_part *x = w->x;
    const blocks *of = &w->model[model];
    const int n = dq_outlier_walk_blocks(of->walk);
    int64_t rows = 0;
    dq_runner *r = NULL;
    for (int i = 0; i < n; i++) {
        if (!of->done[i] && is_mine(w, model, i)) rows += dq_outlier_walk_rows(of->walk, i);
    }
    if (rows == 0) return DQ_OK;
    DQ_TRY(x->begin(x->arg, model, rows, &r, err));
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        if (!of->done[i] && is_mine(w, model, i)) run_block(w, r, model, i, err);
    }
    x->end(x->arg, r);
    return err->code;
}

static double share_of(const work *w)
{
    double mine = 0, all = 0;
    for (int m = 0; m < w->x->n; m++) {
        const dq_outlier_walk *walk = w->model[m].walk;
        for (int i = 0; i < dq_outlier_walk_blocks(walk); i++) {
            const double rows = (double)dq_outlier_walk_rows(walk, i),
                         one = rows * (double)w->x->entry[m].model->n_params;
            mine += is_mine(w, m, i) ? one : 0;
            all += one;
        }
    }
    return all > 0 ? mine / all : 0;
}

dq_status cmd_stats_part_run(cmd_stats_part *x, dq_err *err)
{
    bool ended = false;
    work *w = dq_block_new(1, sizeof *w, err);
    if (!w) return err->code;
    w->x = x;
    if (begin(w, err) == DQ_OK && open_file(w, &ended, err) == DQ_OK) {
        x->share = share_of(w);
        for (int i = 0; err->code == DQ_OK && i < x->n; i++) run_model(w, i, err);
        if (err->code == DQ_OK && !ended) write_state(w, true, err);
    }
    dq_journal_close(w->journal, false);
    end(w);
    return err->code;
}
