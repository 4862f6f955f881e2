/* eval_sources: files are read once and hashed as they are read: what results depend on is known by these
 * hashes.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_sources.h"

#include "base/file.h"
#include "base/sha256.h"
#include "checkpoint/container.h"
#include "cmds/cli/document.h"
#include "cmds/cli/logger.h"
#include "tasks/repeats.h"

#include <math.h>

void cmd_eval_warn_bad(dq_logger *logger, const char *path, int64_t n_bad, int64_t first)
{
    if (n_bad > 0)
        dq_logger_warn(logger,
                       "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte "
                       "%lld",
                       path, (long long)n_bad, (long long)first);
}

dq_status cmd_eval_file_note(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char *text, size_t len, dq_err *err)
{
    DQ_TRY(dq_sha256_of(sha, text, len, err));
    json_t *in = json_object();
    json_object_set_new(in, "kind", json_string(kind));
    json_object_set_new(in, "path", dq_document_name(path));
    json_object_set_new(in, "bytes", json_integer((json_int_t)len));
    json_object_set_new(in, "sha256", json_string(sha));
    json_array_append_new(files->inputs, in);
    return DQ_OK;
}

dq_status cmd_eval_file_read(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char **text, size_t *len, dq_arena *a,
                             dq_err *err)
{
    char *s;
    DQ_TRY(dq_file_read_text(&s, len, path, 0, a, err));
    *text = s;
    return cmd_eval_file_note(files, sha, kind, path, s, *len, err);
}

dq_status cmd_eval_source_load(dq_eval *e, dq_eval_source *source, cmd_eval_files *files,
                               dq_err *err)
{
    DQ_TRY(cmd_eval_file_read(files, files->sha[files->n++], source->name, source->path,
                              &source->text, &source->len, e->a, err));
    return source->kind->load ? source->kind->load(e, source, err) : DQ_OK;
}

dq_status cmd_eval_source_read(dq_eval *e, const cmd_eval_options *o, int i, cmd_eval_files *files,
                               dq_err *err)
{
    const dq_eval_source *s = &e->source[i];
    const cmd_eval_kind *kind = cmd_eval_kind_of(s);
    if (kind->load)
        DQ_TRY(kind->load(cmd_eval_own(o, kind), e, o, i, files, err));
    else
        DQ_TRY(cmd_eval_source_load(e, &e->source[i], files, err));
    if (s->n_own_shots)
        dq_logger_warn(
            files->logger,
            "%s: --fewshot-data holds items of %s: before %lld of them, an example that was "
            "the item itself is replaced",
            s->name, s->path, (long long)s->n_own_shots);
    return DQ_OK;
}

/* The largest share of a text of which `of` has a sketch, in itself or deeper, that is in the windows. */
static double seen_share(const json_t *of, const dq_windows *w)
{
    bool found[DQ_REPEATS_SKETCH] = {false};
    dq_repeats_sketch s;
    double most = 0;
    const char *key;
    json_t *v;
    size_t i;
    if (dq_repeats_sketch_read(&s, json_object_get(of, "sketch")) && s.n) {
        int n = 0;
        for (int64_t k = 0; k < w->n; k++)
            dq_repeats_sketch_find(found, &s, w->win[k].ids, w->win[k].n);
        for (int k = 0; k < s.n; k++) n += found[k];
        most = (double)n / s.n;
    }
    json_object_foreach((json_t *)(uintptr_t)of, key, v) most = fmax(most, seen_share(v, w));
    json_array_foreach(of, i, v) most = fmax(most, seen_share(v, w));
    return most;
}

static void warn_seen_by(dq_logger *logger, const char *path, const dq_windows *w, const char *json,
                         size_t len, const char *chosen, const char *name)
{
    json_t *o = NULL;
    dq_err ignored = {0}; /* what is wrong with the file is its reader's business */
    if (!json || dq_json_parse(&o, json, len, name, &ignored) != DQ_OK) return;
    const double share = seen_share(o, w);
    if (share > 0)
        dq_logger_warn(
            logger,
            "%s: has about %.*f %% of the text that calibrated %s of %s, so its error here is "
            "smaller than on other text",
            path, share < 0.1, 100 * share, chosen, name);
    json_decref(o);
}

static bool has_row(const dq_eval *e, int model, int ids)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].model == model && e->row[i].ids == ids) return true;
    }
    return false;
}

void cmd_eval_warn_seen(dq_logger *logger, const cmd_eval_view *v, int ids)
{
    const dq_windows *w = &v->e->ids[ids].win;
    const char *path = v->e->source[v->e->ids[ids].source].path;
    for (int i = 0; i < v->e->n_models; i++) {
        const dq_model *m = v->e->model[i].m;
        size_t len = 0;
        const char *recipe = m->is_container ? dq_container_recipe(m->container, &len) : NULL;
        if (!has_row(v->e, i, ids)) continue;
        warn_seen_by(logger, path, w, recipe, len, "the weights", v->names[i]);
        if (m->gates)
            warn_seen_by(logger, path, w, m->gates->text, m->gates->len, "the gates", v->names[i]);
    }
}

static dq_status dump_sources(FILE *f, const void *sweep, dq_err *err)
{
    const dq_eval *e = sweep;
    for (int i = 0; i < e->n_sources; i++) {
        const cmd_eval_kind *kind = cmd_eval_kind_of(&e->source[i]);
        if (kind->out.requests) DQ_TRY(kind->out.requests(f, &e->source[i], err));
    }
    return DQ_OK;
}

dq_status cmd_eval_dump_requests(const dq_eval *e, const char *path, dq_err *err)
{
    return dq_document_write_lines(path, dump_sources, e, err);
}
