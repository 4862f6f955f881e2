/* eval_resume: the file in the current folder that holds finished work, so that dq eval goes on where it
 * was stopped.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_RESUME_H
#define DQ_EVAL_RESUME_H

#include "cmds/eval/eval_options.h"
#include "cmds/eval/eval_sources.h"
#include "record/record.h"
#include "settings/inputs.h"

/* What the bits of results depend on. */
typedef struct cmd_eval_identity {
    const dq_eval *e;
    const cmd_eval_options *o;
    const cmd_eval_files *files;
    const char (*content)[65]; /* [e->n_models]: what identifies each model's bytes */
    const dq_backend *backend;
    const char *program; /* of shards that are merged; NULL: this one */
} cmd_eval_identity;

typedef struct cmd_eval_resume {
    char key[65], own[64], old[72];
    char program[DQ_IDENTITY]; /* what computes, as the key has it */
    const char *path;          /* own, or the file of a shard */
    bool shard;
    bool begun; /* the file is this run's, or could not be written */
} cmd_eval_resume;

/* Key and path of a planned sweep, or of its shard. */
dq_status cmd_eval_resume_name(cmd_eval_resume *s, const cmd_eval_identity *id, dq_err *err);
/* Writes finished work down from here on, or (resume) first takes what the file has; with no file to resume
 * there is a warning. A file of an earlier run that is not resumed is set aside as PATH.old until this one is
 * done; where one is there already, the one with more work stays. Where a new file cannot be written the run goes on without, with a warning; not
 * so the file of a shard. */
dq_status cmd_eval_resume_begin(cmd_eval_resume *s, dq_eval *e, bool resume, dq_logger *logger,
                                dq_err *err);
/* Replaces the message of an interruption by one that says how to go on. */
dq_status cmd_eval_resume_stopped(const cmd_eval_resume *s, const dq_eval *e, int argc, char **argv,
                                  dq_err *err);
/* An output could not be written when everything was scored: adds that the scores stay. */
dq_status cmd_eval_resume_keep(const cmd_eval_resume *s, const dq_eval *e, dq_err *err);
/* Closes the file, and removes it unless there is something to go on from. */
void cmd_eval_resume_end(const cmd_eval_resume *s, dq_eval *e, dq_status outcome);

#endif
