/* given: see given.h. The arena is made when it is first asked for and freed by the suite when the case is over.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"

#include "base/file.h"
#include "base/json.h"
#include "tasks/tasks.h"
#include "tests/rigs/device.h"
#include "tests/rigs/suite.h"

#include <stdio.h>

static dq_arena *arena;

static void free_arena(void)
{
    dq_arena_free(arena);
    arena = NULL;
}

dq_arena *given_arena(void)
{
    if (!arena) arena = dq_arena_new();
    assert_non_null(arena);
    suite_after_case(free_arena);
    return arena;
}

const dq_task *given_task(const char *name)
{
    dq_err err = {0};
    const dq_task *t = dq_task_find(name, given_arena(), &err);
    if (!t) fail_msg("%s", err.text);
    return t;
}

#define PATH_OF(path)                                                                              \
    char at[1024];                                                                                 \
    va_list args;                                                                                  \
    va_start(args, path);                                                                          \
    vsnprintf(at, sizeof at, path, args);                                                          \
    va_end(args)

static char *read_at(size_t *len, const char *path)
{
    char *bytes;
    size_t n;
    dq_err err = {0};
    if (dq_file_read(&bytes, &n, path, given_arena(), &err) != DQ_OK) fail_msg("%s", err.text);
    if (len) *len = n;
    return bytes;
}

char *given_file(size_t *len, const char *path, ...)
{
    PATH_OF(path);
    return read_at(len, at);
}

json_t *given_json(const char *path, ...)
{
    PATH_OF(path);
    return given_document(read_at(NULL, at));
}

json_t *given_document(const char *text)
{
    json_t *v;
    dq_err err = {0};
    if (dq_json_parse(&v, text, strlen(text), "document", &err) != DQ_OK) fail_msg("%s", err.text);
    return v;
}

dq_model *given_model(const char *path, ...)
{
    dq_model *m;
    dq_err err = {0};
    PATH_OF(path);
    if (dq_model_open(&m, at, &err) != DQ_OK) fail_msg("%s", err.text);
    return m;
}

dq_backend *given_backend(int threads)
{
    dq_backend *b;
    dq_err err = {0};
    if (dq_backend_open(&b, test_device(), threads, &err) != DQ_OK) fail_msg("%s", err.text);
    return b;
}

dq_runner *given_runner(const dq_model *m, dq_backend *b)
{
    dq_runner *r;
    dq_err err = {0};
    if (dq_runner_new(&r, m, b, &dq_kv_plain, &err) != DQ_OK) fail_msg("%s", err.text);
    return r;
}

dq_tokenizer *given_tokenizer(const char *json, size_t len, const char *config)
{
    dq_tokenizer *t;
    dq_err err = {0};
    if (dq_tokenizer_load(&t, json, len, config, config ? strlen(config) : 0, &err) != DQ_OK)
        fail_msg("%s", err.text);
    return t;
}

dq_tokenizer *given_tokenizer_of(const dq_model *m, const char **text, size_t *len)
{
    const char *json, *config;
    size_t n, n_config;
    dq_err err = {0};
    if (dq_model_file(m, "tokenizer.json", &json, &n, &err) != DQ_OK ||
        dq_model_file(m, "tokenizer_config.json", &config, &n_config, &err) != DQ_OK)
        fail_msg("%s", err.text);
    if (text) *text = json;
    if (len) *len = n;
    return given_tokenizer(json, n, config);
}

dq_container *given_container(const char *path)
{
    dq_container *c;
    dq_err err = {0};
    if (dq_container_open(&c, path, &err) != DQ_OK) fail_msg("%s", err.text);
    return c;
}

dq_checkpoint *given_checkpoint(const char *path)
{
    dq_checkpoint *c;
    dq_err err = {0};
    if (dq_checkpoint_open(&c, path, &err) != DQ_OK) fail_msg("%s", err.text);
    return c;
}

void check_error(const dq_err *err, dq_status want, const char *text)
{
    if (err->code != want || !strstr(err->text, text) || strchr(err->text, '\n'))
        fail_msg("status %d, \"%s\" (wanted %d, \"%s\")", (int)err->code, err->text, (int)want,
                 text);
}

dq_sequences given_sequences(const json_t *list)
{
    dq_arena *a = given_arena();
    dq_err err = {0};
    size_t n = json_array_size(list), total = 0, i, k;
    json_t *seq, *id;
    json_array_foreach(list, i, seq) total += json_array_size(seq);
    int64_t *cu = dq_alloc(a, n + 1, sizeof *cu, &err);
    int32_t *ids = dq_alloc(a, total, sizeof *ids, &err);
    assert_true(cu && ids);
    json_array_foreach(list, i, seq)
    {
        cu[i + 1] = cu[i];
        json_array_foreach(seq, k, id) ids[cu[i + 1]++] = (int32_t)json_integer_value(id);
    }
    return (dq_sequences){.n = (int64_t)n, .cu = cu, .ids = ids};
}
