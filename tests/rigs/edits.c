/* edits: see edits.h. A model of the fixtures is read, changed in memory key by key and tensor by tensor, and
 * written to the folder of the test.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/edits.h"
#include "tests/rigs/suite.h"

#include "checkpoint/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void edits_put(const char *name, const void *bytes, size_t len)
{
    unlink(at(name)); /* where it is a link */
    put_bytes(at(name), bytes, len);
}

static void base_path(char path[512], const edit *e, const char *name)
{
    snprintf(path, 512, "%s%s%s", e->base[0] == '/' ? "" : MODELS, e->base, name);
}

static void set_key(json_t *config, const char *key, const char *value)
{
    if (!key) return;
    if (!value) {
        json_object_del(config, key);
        return;
    }
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    assert_int_equal(json_object_set_new(config, key, v), 0);
}

static void put_config(const edit *e)
{
    char path[512];
    base_path(path, e, "/config.json");
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    set_key(config, e->key, e->value);
    set_key(config, e->key2, e->value2);
    char *text = json_dumps(config, 0);
    assert_non_null(text);
    edits_put("config.json", text, strlen(text));
    free(text);
    json_decref(config);
}

/* ---- Weights: a header and the data, each written to memory ---- */

typedef struct sink {
    FILE *header, *data;
    size_t end; /* bytes of data so far */
    bool more;  /* than no entry */
    const edit *e;
} sink;

static void add_header(sink *s, const char *name, const char *dtype, const char *shape, size_t n)
{
    fprintf(s->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
            s->more ? "," : "", name, dtype, shape, s->end, s->end + n);
    s->end += n;
    s->more = true;
}

static void add_entry(sink *s, const char *name, const dq_tensor *t)
{
    const edit *e = s->e;
    bool mine = e->tensor && strcmp(t->name, e->tensor) == 0;
    size_t n = dq_tensor_bytes(t);
    char shape[256] = "";
    for (int i = 0; i < t->n_dims; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", i ? "," : "",
                 (long long)t->shape[i]);
    add_header(s, name, mine && e->kind == RETYPE ? e->arg : dq_dtypes[t->dtype].name,
               mine && e->kind == RESHAPE ? e->arg : shape, n);
    if (n == 0) return;
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, t->data, n);
    const float nan = NAN;
    if (mine && e->kind == POKE) memcpy(bytes + 12, &nan, 4);
    if (mine && e->kind == BLANK) memset(bytes, 0, n);
    if (mine && e->kind == VARY && strcmp(name, e->arg) == 0) bytes[0] ^= 1;
    if (e->change) {
        const dq_weight w = {.name = name,
                             .rows = t->n_dims > 0 ? t->shape[0] : 1,
                             .cols = t->n_dims > 1 ? t->shape[1] : 1,
                             .bits = 16,
                             .dtype = t->dtype,
                             .data = t->data};
        e->change(bytes, &w);
    }
    assert_int_equal(fwrite(bytes, 1, n, s->data), n);
    free(bytes);
}

static void add_all(sink *s, const dq_checkpoint *c)
{
    const edit *e = s->e;
    for (int64_t i = 0; i < c->count; i++) {
        const dq_tensor *t = &c->tensor[i];
        bool mine = e->tensor && strcmp(t->name, e->tensor) == 0;
        if (mine && e->kind == STRAY) add_header(s, e->arg, dq_dtypes[t->dtype].name, "0,4", 0);
        if (mine && e->kind == DROP) continue;
        add_entry(s, mine && e->kind == RENAME ? e->arg : t->name, t);
        if (mine && (e->kind == COPY || e->kind == VARY)) add_entry(s, e->arg, t);
    }
}

static void put_weights(const edit *e)
{
    char path[512], *header = NULL, *data = NULL;
    size_t header_len = 0, data_len = 0;
    base_path(path, e, "");
    dq_checkpoint *c = given_checkpoint(path);
    sink s = {.header = open_memstream(&header, &header_len),
              .data = open_memstream(&data, &data_len),
              .e = e};
    assert_true(s.header && s.data);
    fputc('{', s.header);
    add_all(&s, c);
    fputc('}', s.header);
    fflush(s.header);
    if (e->odd_header && header_len % 2 == 0) fputc(' ', s.header);
    fclose(s.header);
    fclose(s.data);
    const uint64_t n = header_len;
    char *file = malloc(8 + header_len + data_len);
    assert_non_null(file);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, header_len);
    memcpy(file + 8 + header_len, data, data_len);
    edits_put("model.safetensors", file, 8 + header_len + data_len);
    free(file);
    free(header);
    free(data);
    dq_checkpoint_close(c);
}

void edits_write(const edit *e)
{
    put_config(e);
    put_weights(e);
}

dq_model *edits_open(const edit *e, dq_err *err)
{
    dq_model *m;
    edits_write(e);
    dq_model_open(&m, at(""), err);
    if (err->code != DQ_OK) assert_null(m);
    return m;
}

void edits_try(const edits_trial *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&t[i].e, &err);
        if (err.code != t[i].status || !strstr(err.text, t[i].text))
            print_error("%s with %s = %s: ", t[i].e.base, t[i].e.key ? t[i].e.key : t[i].e.tensor,
                        t[i].e.key ? t[i].e.value : t[i].e.arg);
        check_error(&err, t[i].status, t[i].text);
        dq_model_close(m);
    }
}
