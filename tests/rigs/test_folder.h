/* test_folder: a folder of a test's own, files in it, and containers made from checkpoints.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEST_FOLDER_H
#define DQ_TEST_FOLDER_H

#include "quantize/quantize.h"

/* Group fixtures: makes it in TMPDIR or /tmp; removes it with all that is in it. */
int folder_begin(void **state);
int folder_end(void **state);
/* The path of a name in it, "" is itself; valid for a few calls. */
const char *at(const char *name);

/* "VERB A B" by the shell; its status. */
int shell(const char *verb, const char *a, const char *b);
/* A file's bytes, for free(); the other way; whether two files have the same. */
char *bytes_of(const char *path, size_t *len);
void put_bytes(const char *path, const void *bytes, size_t len);
bool same_bytes(const char *a, const char *b);

/* F16 scales, 16 bits of logits, a plain cache, version "test"; the rest is zero. */
dq_quantize_settings settings_of(int bits, int64_t group, dq_scale_mode mode);
/* dq quantize in one call; *err is begun anew and keeps the text of a refusal. p may be NULL. */
dq_status write_container(const char *source, const char *out, const dq_quantize_settings *s,
                          bool force, bool resume, const dq_quantize_progress *p, dq_err *err);
/* The same, replacing what is there, for what must work. */
void make_container(const char *source, const char *out, const dq_quantize_settings *s);

#endif
