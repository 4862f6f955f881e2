/* given: what a case stands on. Where it cannot be had the case fails with the reason.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GIVEN_H
#define DQ_GIVEN_H

#include "calib/outliers.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "engine/runner.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

/* The arena of the case that runs, freed after it. */
dq_arena *given_arena(void);
/* A task by its name, or from the file of that path. */
const struct dq_task *given_task(const char *name);
/* The bytes of the file at the path, of that arena; len may be NULL. */
__attribute__((format(printf, 2, 3))) char *given_file(size_t *len, const char *path, ...);
/* For json_decref: a file's document; a text's. */
__attribute__((format(printf, 1, 2))) json_t *given_json(const char *path, ...);
json_t *given_document(const char *text);
/* For their close and free: the model at the path, the test's device, a cache of 16 bits on both; config may be NULL. */
__attribute__((format(printf, 1, 2))) dq_model *given_model(const char *path, ...);
dq_backend *given_backend(int threads);
dq_runner *given_runner(const dq_model *m, dq_backend *b);
/* Lists of ids, of the arena. */
dq_sequences given_sequences(const json_t *list);
dq_tokenizer *given_tokenizer(const char *json, size_t len, const char *config);
/* The model's own, whose tokenizer.json is text[len]; both may be NULL. */
dq_tokenizer *given_tokenizer_of(const dq_model *m, const char **text, size_t *len);

dq_container *given_container(const char *path);
dq_checkpoint *given_checkpoint(const char *path);

/* The status, and a part of the message, which is one line. */
void check_error(const dq_err *err, dq_status want, const char *text);

#endif
