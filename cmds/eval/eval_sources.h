/* eval_sources: the files that dq eval scores.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_SOURCES_H
#define DQ_EVAL_SOURCES_H

#include "cmds/eval/eval_options.h"
#include "cmds/eval/eval_view.h"
#include "record/record.h"

/* What has been read so far: a task can have two files and two of labels. */
typedef struct cmd_eval_files {
    char sha[4 * DQ_EVAL_SOURCES][65];
    int n;
    json_t *inputs; /* gets an object for each */
    dq_logger *logger;
} cmd_eval_files;

/* Reads a whole file into the arena, puts it into `inputs` as a file of that kind and writes its SHA-256 to sha. */
dq_status cmd_eval_file_read(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char **text, size_t *len, dq_arena *a,
                             dq_err *err);
/* The same of a file that has been read. */
dq_status cmd_eval_file_note(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char *text, size_t len, dq_err *err);
/* Reads the files of e->source[i], as its kind says. */
dq_status cmd_eval_source_read(dq_eval *e, const cmd_eval_options *o, int i, cmd_eval_files *files,
                               dq_err *err);
/* One file as a whole, of which the kind makes what it needs. */
dq_status cmd_eval_source_load(dq_eval *e, dq_eval_source *source, cmd_eval_files *files,
                               dq_err *err);
/* A warning about ill-formed UTF-8, if there was any. */
void cmd_eval_warn_bad(dq_logger *logger, const char *path, int64_t n_bad, int64_t first);
/* Warns of what e->ids[ids], or a file of its source among `inputs`, has of a text that chose codes, widths or gates of a
 * model: it is no test of them. */
void cmd_eval_warn_seen(dq_logger *logger, const cmd_eval_view *v, int ids, const json_t *inputs);
/* JSON lines of --dump-requests. */
dq_status cmd_eval_dump_requests(const dq_eval *e, const char *path, dq_err *err);

#endif
