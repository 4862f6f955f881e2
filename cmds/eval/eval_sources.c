/* eval_sources: files are read once and hashed as they are read: what results depend on is known by these
 * hashes.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_sources.h"

#include "base/file.h"
#include "base/sha256.h"
#include "cmds/cli/document.h"
#include "cmds/cli/logger.h"

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
