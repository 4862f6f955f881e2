/* eval_sources: files are read once and hashed as they are read: what results depend on is known by these
 * hashes.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_sources.h"

#include "base/file.h"
#include "checkpoint/container.h"
#include "plan/plan_weights.h"
#include "record/record.h"
#include "tasks/documents.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* Ids that come piece by piece, of which places may begin in one and end in another. */
enum { TAIL = DQ_REPEATS_IDS - 1 };
typedef struct pieces {
    bool *found;
    const dq_repeats_sketch *sketch;
    int32_t tail[TAIL];
    int64_t n_tail;
} pieces;

static void find_piece(pieces *p, const int32_t *ids, int64_t n)
{
    int32_t seam[2 * TAIL];
    const int64_t more = n < TAIL ? n : TAIL, all = p->n_tail + more;
    if (n == 0) return;
    memcpy(seam, p->tail, (size_t)p->n_tail * sizeof *seam);
    memcpy(seam + p->n_tail, ids, (size_t)more * sizeof *seam);
    dq_repeats_sketch_find(p->found, p->sketch, seam, all);
    dq_repeats_sketch_find(p->found, p->sketch, ids, n);
    p->n_tail = n > TAIL || all > TAIL ? TAIL : all;
    memcpy(p->tail, n > TAIL ? ids + n - TAIL : seam + all - p->n_tail,
           (size_t)p->n_tail * sizeof *seam);
}

static void find_requests(bool *found, const dq_repeats_sketch *s, const dq_requests *q)
{
    const dq_shared_prefix *prefix = NULL;
    pieces before = {.found = found, .sketch = s}, context = before;
    for (int64_t i = 0; i < q->n; i++) {
        const dq_request *r = &q->req[i];
        const dq_shared_prefix *own = dq_items_shared_prefix(q, r->item);
        const bool other = own != prefix;
        if (other) {
            before = (pieces){.found = found, .sketch = s};
            find_piece(&before, own->ids, own->n);
            prefix = own;
        }
        if (i == 0 || other || r->ctx != r[-1].ctx || r->n_ctx != r[-1].n_ctx) {
            context = before;
            find_piece(&context, r->ctx, r->n_ctx);
        }
        pieces all = context;
        if (r->cont) find_piece(&all, r->cont, r->n_cont);
    }
}

typedef struct seen {
    double share;     /* of a text that chose something, the largest that is found */
    const char *file; /* that is this text, whole; NULL: none */
    int n_files;      /* that are scored */
} seen;

static void find_file(seen *out, const json_t *sha256, const json_t *inputs, const char *kind)
{
    const json_t *in;
    size_t i;
    out->n_files = 0;
    json_array_foreach(inputs, i, in)
    {
        if (strcmp(json_string_value(json_object_get(in, "kind")), kind) != 0) continue;
        out->n_files++;
        if (sha256 && json_equal(json_object_get(in, "sha256"), sha256))
            out->file = json_string_value(json_object_get(in, "path"));
    }
}

/* What of texts that `of` knows, in itself or deeper, is among the ids and the files. */
static void find_seen(seen *out, const json_t *of, const dq_eval_ids *ids, const json_t *inputs,
                      const char *kind)
{
    static const char *const sha256[] = {"sha256", "text_sha256"};
    bool found[DQ_REPEATS_SKETCH] = {false};
    dq_repeats_sketch s;
    const char *key;
    json_t *v;
    size_t i;
    const char *part = json_string_value(json_object_get(of, "part"));
    if (part && strcmp(part, dq_plan_text_name[DQ_PLAN_UNSEEN]) == 0) return; /* it chose nothing */
    for (i = 0; i < 2; i++) find_file(out, json_object_get(of, sha256[i]), inputs, kind);
    if (dq_repeats_sketch_read(&s, json_object_get(of, "sketch")) && s.n) {
        int n = 0;
        for (int64_t k = 0; k < ids->win.n; k++)
            dq_repeats_sketch_find(found, &s, ids->win.win[k].ids, ids->win.win[k].n);
        find_requests(found, &s, &ids->req);
        for (int k = 0; k < s.n; k++) n += found[k];
        out->share = fmax(out->share, (double)n / s.n);
    }
    json_object_foreach((json_t *)(uintptr_t)of, key, v) find_seen(out, v, ids, inputs, kind);
    json_array_foreach(of, i, v) find_seen(out, v, ids, inputs, kind);
}

static void warn_seen_by(dq_logger *logger, const dq_eval_source *source, const dq_eval_ids *ids,
                         const json_t *inputs, const json_t *of, const char *chose,
                         const char *name)
{
    seen it = {.share = 0};
    char part[64] = "is", more[32] = "";
    find_seen(&it, of, ids, inputs, source->name);
    if (!it.file && it.n_files > 1) snprintf(more, sizeof more, " and %d more", it.n_files - 1);
    if (!it.file)
        snprintf(part, sizeof part, "has about %.*f %% of", it.share < 0.1, 100 * it.share);
    if (it.file || it.share > 0)
        dq_logger_warn(logger,
                       "%s%s: %s the text that %s of %s, so its error here is smaller than on "
                       "other text",
                       it.file ? it.file : source->path, more, part, chose, name);
}

/* What is wrong with the texts is their readers' business. */
static json_t *parsed(const char *text, size_t len)
{
    json_t *o = NULL;
    dq_err ignored = {0};
    if (text) dq_json_parse(&o, text, len, "", &ignored);
    return o;
}

static bool has_row(const dq_eval *e, int model, int ids)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].model == model && e->row[i].ids == ids) return true;
    }
    return false;
}

void cmd_eval_warn_seen(dq_logger *logger, const cmd_eval_view *v, int ids, const json_t *inputs)
{
    const dq_eval_ids *scored = &v->e->ids[ids];
    const dq_eval_source *s = &v->e->source[scored->source];
    for (int i = 0; i < v->e->n_models; i++) {
        const dq_model *m = v->e->model[i].m;
        size_t len = 0;
        if (!has_row(v->e, i, ids)) continue;
        const char *text = m->is_container ? dq_container_recipe(m->container, &len) : NULL;
        json_t *recipe = parsed(text, len);
        json_t *gates = m->gates ? parsed(m->gates->text, m->gates->len) : NULL;
        warn_seen_by(logger, s, scored, inputs, json_object_get(recipe, "texts"),
                     "calibrated the KV cache", v->names[i]);
        json_object_del(recipe, "texts");
        warn_seen_by(logger, s, scored, inputs, recipe, "calibrated the weights", v->names[i]);
        warn_seen_by(logger, s, scored, inputs, gates, "calibrated the gates", v->names[i]);
        json_decref(recipe);
        json_decref(gates);
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
