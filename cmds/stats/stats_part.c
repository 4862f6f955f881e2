/* stats_part: see stats_part.h. The blocks of all models are numbered through, and part I of N computes those whose number is
 * I - 1 modulo N: they take about as long. After its head (base/part.h) a file has a line for each,
 *
 *   {"model": M, "block": B, ...}      members of dq_outlier_walk_run
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_part.h"

#include "base/file.h"
#include "base/sha256.h"
#include "checkpoint/container.h"

#include <string.h>

static const char schema[] = "dq-stats-part/1";

dq_status cmd_stats_key_make(cmd_stats_key *key, const cmd_stats_entry *e, int n,
                             const char *head_order, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    dq_sha256_add(&h, key->program, strlen(key->program) + 1);
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

/* One model's blocks. */
typedef struct blocks {
    dq_outlier_walk *walk;
    int first; /* its number among those of all models */
    bool done[DQ_OUTLIER_BLOCKS];
} blocks;

typedef struct work {
    const cmd_stats_part *x;
    bool whole; /* of all parts, which are read */
    blocks model[CMD_STATS_MODELS];
} work;

static dq_status begin(work *w, dq_err *err)
{
    int number = 0;
    for (int i = 0; i < w->x->n; i++) {
        cmd_stats_entry *e = &w->x->entry[i];
        const dq_model *m = e->model;
        const dq_sequences s = {e->in.n_seq, e->in.cu, e->in.ids};
        e->fed = s;
        DQ_TRY(dq_outliers_init(&e->out, m->n_layers, m->map.n_out, err));
        DQ_TRY(dq_outlier_walk_new(&w->model[i].walk, &e->out, m, &e->fed, &w->x->plan, err));
        w->model[i].first = number;
        number += dq_outlier_walk_blocks(w->model[i].walk);
    }
    return DQ_OK;
}

static void end(work *w)
{
    for (int i = 0; i < w->x->n; i++) dq_outlier_walk_free(w->model[i].walk);
    dq_block_free(w);
}

static bool is_mine(const work *w, int model, int block)
{
    return (w->model[model].first + block) % w->x->part->n == w->x->part->shard - 1;
}

/* ---- Reading ---- */

static dq_status take_line(void *arg, int64_t line, const json_t *step, dq_err *err)
{
    work *w = arg;
    int64_t model, block;
    const dq_part_head want = {schema, w->x->key->text, w->whole ? 0 : w->x->part->shard,
                               w->whole ? 0 : w->x->part->n};
    if (line == 0) return dq_part_check(step, &want, w->whole, err);
    DQ_TRY(dq_json_int(&model, step, "model", 0, w->x->n - 1, NULL, err));
    blocks *of = &w->model[model];
    DQ_TRY(dq_json_int(&block, step, "block", 0, dq_outlier_walk_blocks(of->walk) - 1, NULL, err));
    if (w->whole) return dq_outlier_walk_take(of->walk, (int)block, step, err);
    if (of->done[block] || !is_mine(w, (int)model, (int)block))
        return dq_fail(err, DQ_DAMAGED, "block %lld of model %lld is %s", (long long)block,
                       (long long)model, of->done[block] ? "there twice" : "not of this part");
    of->done[block] = true;
    return DQ_OK;
}

dq_status cmd_stats_part_merge(const cmd_stats_part *x, const dq_shard_merge *merge, dq_err *err)
{
    work *w = dq_block_new(1, sizeof *w, err);
    if (!w) return err->code;
    w->x = x;
    w->whole = true;
    begin(w, err);
    for (int i = 0; err->code == DQ_OK && i < merge->n; i++)
        dq_part_read(merge->path[i], take_line, w, err);
    for (int i = 0; err->code == DQ_OK && i < x->n; i++) dq_outlier_walk_end(w->model[i].walk, err);
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

/* The part's file, with its head. */
static dq_status open_file(work *w, dq_journal **j, bool *ended, dq_err *err)
{
    const char *path = w->x->path;
    *ended = false;
    if (w->x->resume && dq_file_exists(path)) {
        if (dq_part_resume(j, ended, path, take_line, w, err) != DQ_OK &&
            (err->code == DQ_DAMAGED || err->code == DQ_MISMATCH))
            dq_fail_more(err, dq_remedy_none, ". Remove it, or run without --resume to start anew");
    } else {
        dq_journal_new(j, path, err);
    }
    DQ_TRY(err->code);
    if (dq_journal_count(*j) > 0 || add_head(w->x, *j, err) == DQ_OK) return DQ_OK;
    dq_journal_close(*j, true); /* without a head nothing can be gone on from */
    *j = NULL;
    return err->code;
}

static dq_status run_block(work *w, dq_journal *j, dq_runner *r, int model, int block, dq_err *err)
{
    dq_strbuf text = {0};
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    fprintf(f, "{\"model\": %d, \"block\": %d", model, block);
    dq_outlier_walk_run(w->model[model].walk, r, block, f, err);
    fputc('}', f);
    dq_strbuf_memory_close(f, err);
    if (err->code == DQ_OK && dq_journal_add(j, text.s, text.n, err) != DQ_OK)
        dq_fail_more(err, dq_remedy_none,
                     ". What it has stays: the same command with --resume goes on from there");
    dq_block_free(text.s);
    return err->code;
}

static dq_status run_model(work *w, dq_journal *j, int model, dq_err *err)
{
    const cmd_stats_part *x = w->x;
    blocks *of = &w->model[model];
    const int n = dq_outlier_walk_blocks(of->walk);
    int64_t rows = 0;
    dq_runner *r = NULL;
    for (int i = 0; i < n; i++) {
        of->done[i] = of->done[i] || !is_mine(w, model, i);
        if (!of->done[i]) rows += dq_outlier_walk_rows(of->walk, i);
    }
    if (rows == 0) return DQ_OK;
    DQ_TRY(x->begin(x->arg, model, rows, &r, err));
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        if (!of->done[i]) run_block(w, j, r, model, i, err);
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
    dq_journal *j = NULL;
    bool ended = false;
    work *w = dq_block_new(1, sizeof *w, err);
    if (!w) return err->code;
    w->x = x;
    if (begin(w, err) == DQ_OK && open_file(w, &j, &ended, err) == DQ_OK) {
        x->share = share_of(w);
        for (int i = 0; err->code == DQ_OK && i < x->n; i++) run_model(w, j, i, err);
        if (err->code == DQ_OK && !ended) dq_part_end(j, err);
    }
    dq_journal_close(j, false);
    end(w);
    return err->code;
}
