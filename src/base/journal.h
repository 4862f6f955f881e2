/* journal: finished work as a file that only grows, one hashed line a step, so that whatever stops the
 * program, at any moment, at most the step at hand is lost. (It is handed to the system, not synced: when
 * the machine itself goes down, the last seconds may go with it.)
 *
 *   {"sha256": "HASH OF STEP", "step": STEP}
 *
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JOURNAL_H
#define DQ_JOURNAL_H

#include "base/json.h"

typedef struct dq_steps dq_steps;

/* What a step (a JSON object, borrowed) means; number counts from 0. */
typedef dq_status dq_steps_read(void *arg, const json_t *step, int64_t number, dq_err *err);

/* Whether another process writes to it. */
bool dq_steps_busy(const char *path);
/* An empty file in place of what is there. DQ_RESOURCE: another process writes to it. */
dq_status dq_steps_new(dq_steps **out, const char *path, dq_err *err);
/* Reads the steps of a file and goes on behind the last whole one. A last line that was cut off, or does not
 * fit its hash, is dropped; any other that does not fit is DQ_DAMAGED. */
dq_status dq_steps_resume(dq_steps **out, const char *path, dq_steps_read *read, void *arg,
                          dq_err *err);
/* step[len]: the text of a JSON object, on one line. It is in the file when this returns; after a failure the
 * file is as it was before. */
dq_status dq_steps_add(dq_steps *j, const char *step, size_t len, dq_err *err);
/* Steps in the file. */
int64_t dq_steps_count(const dq_steps *j);
/* `done`: nothing is to be resumed, the file goes away. NULL allowed. */
void dq_steps_close(dq_steps *j, bool done);

#endif
