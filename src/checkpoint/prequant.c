/* prequant: finds the weights by the suffix of their codes, asks the format's row for the scheme of each, reserves memory,
 * and lays them out by all threads, a weight at a time. The first error in the order of names is the one told.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/prequant.h"

#include "base/os.h"
#include "checkpoint/prequant_format.h"

#include <stdlib.h>
#include <string.h>

static const char key[] = "quantization_config", weight[] = ".weight";

struct dq_prequant {
    dq_arena *arena; /* owns this struct too */
    const dq_checkpoint *checkpoint;
    dq_prequant_config config;
    dq_prequant_info info;
    dq_prequant_linear *linear; /* [info.n_weights], by name */
    const char **name;          /* [n_names]: what the source has */
    int64_t n_names;
    const char *warnings[DQ_PREQUANT_WARNINGS + 1];
};

/* ---- Names ---- */

static int by_name(const void *x, const void *y)
{
    const dq_prequant_linear *a = x, *b = y;
    return strcmp(a->name, b->name);
}

/* Length of what is before the suffix; 0: the name does not end in it. */
static size_t before(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = suffix ? strlen(suffix) : 0;
    return m && n > m && strcmp(name + n - m, suffix) == 0 ? n - m : 0;
}

static bool is_named(const char *name, const char *start, size_t n)
{
    return strncmp(name, start, n) == 0 && name[n] == 0;
}

/* The weight whose name is the first n bytes. */
static dq_prequant_linear *find_linear(const dq_prequant *p, const char *start, size_t n)
{
    int64_t low = 0, high = p->info.n_weights;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const char *name = p->linear[middle].name;
        const int order = strncmp(name, start, n);
        if (order < 0)
            low = middle + 1;
        else
            high = middle; /* a longer name comes behind */
    }
    return n && low < p->info.n_weights && is_named(p->linear[low].name, start, n) ? &p->linear[low]
                                                                                   : NULL;
}

/* The tensor is part of a quantized weight, or of activations that are not quantized here. */
static bool is_hidden(const dq_prequant *p, const char *name)
{
    const dq_prequant_format *f = p->config.format;
    for (int i = 0; i < DQ_PREQUANT_PARTS; i++) {
        const size_t n = before(name, f->suffix[i]);
        if (n && find_linear(p, name, n)) return true;
    }
    for (const char *const *s = f->unused; s && *s && p->config.activations; s++) {
        if (before(name, *s)) return true;
    }
    return false;
}

static dq_status find_parts(dq_prequant *p, dq_prequant_linear *l, dq_err *err)
{
    for (int i = 0; i < DQ_PREQUANT_PARTS; i++) {
        const char *suffix = p->config.format->suffix[i];
        if (!suffix) continue;
        const char *name = dq_textf(p->arena, err, "%s%s", l->name, suffix);
        if (!name) return err->code;
        l->part[i] = dq_checkpoint_find(p->checkpoint, name);
    }
    l->w.name = dq_textf(p->arena, err, "%s%s", l->name, weight);
    if (!l->w.name) return err->code;
    if (dq_checkpoint_find(p->checkpoint, l->w.name))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" is there beside \"%s\"", l->w.name,
                       l->part[DQ_PREQUANT_CODES]->name);
    return DQ_OK;
}

static dq_status find_linears(dq_prequant *p, dq_err *err)
{
    const char *suffix = p->config.format->suffix[DQ_PREQUANT_CODES];
    const int64_t n = dq_checkpoint_count(p->checkpoint);
    int64_t count = 0;
    p->linear = dq_alloc(p->arena, (size_t)n, sizeof *p->linear, err);
    p->name = dq_alloc(p->arena, (size_t)n, sizeof *p->name, err);
    if (!p->linear || !p->name) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const char *name = dq_checkpoint_at(p->checkpoint, i)->name;
        const size_t len = before(name, suffix);
        if (!len) continue;
        p->linear[count].name = dq_text(p->arena, name, len, err);
        if (!p->linear[count++].name) return err->code;
    }
    if (count == 0)
        return dq_fail(err, DQ_MISMATCH, "config.json has a %s (%s), but no tensor ends in \"%s\"",
                       key, p->config.about, suffix);
    qsort(p->linear, (size_t)count, sizeof *p->linear, by_name);
    p->info.n_weights = count;
    for (int64_t i = 0; i < count; i++) DQ_TRY(find_parts(p, &p->linear[i], err));
    for (int64_t i = 0; i < count; i++) p->name[p->n_names++] = p->linear[i].w.name;
    for (int64_t i = 0; i < n; i++) {
        const char *name = dq_checkpoint_at(p->checkpoint, i)->name;
        if (!is_hidden(p, name)) p->name[p->n_names++] = name;
    }
    return DQ_OK;
}

/* ---- Weights ---- */

static void release(const dq_prequant_linear *l)
{
    for (int i = 0; i < DQ_PREQUANT_PARTS; i++) {
        if (l->part[i]) dq_os_map_release(l->part[i]->data, dq_tensor_bytes(l->part[i]));
    }
}

static dq_status fill(dq_prequant *p, dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    const int64_t n = p->info.n_weights;
#pragma omp parallel for schedule(dynamic, 1) if (p->info.own_bytes > SMALL_BYTES)
    for (int64_t i = 0; i < n; i++) {
        dq_prequant_linear *l = &p->linear[i];
        if (dq_os_check_stop(&l->err) != DQ_OK) continue;
        dq_prequant_linear_fill(l, &p->config);
        release(l);
    }
    for (int64_t i = 0; i < n; i++) {
        const dq_prequant_linear *l = &p->linear[i];
        if (l->err.code != DQ_OK) return dq_fail_as(err, &l->err);
        p->info.n_zeros += l->w.zero != NULL;
        p->info.n_indexed += l->w.index != NULL;
    }
    return DQ_OK;
}

static dq_status say(dq_prequant *p, dq_err *err)
{
    int64_t wrapped = 0;
    for (int i = 0; i < p->config.n_warnings; i++)
        p->warnings[p->info.n_warnings++] = p->config.warnings[i];
    p->info.warnings = p->warnings;
    for (int64_t i = 0; i < p->info.n_weights; i++) wrapped += p->linear[i].n_wrapped;
    if (wrapped == 0) return DQ_OK;
    const char *text = dq_textf(p->arena, err,
                                "%lld zero points of checkpoint_format gptq are 0, stored as one "
                                "less; programs differ in how "
                                "they read that: it is read as GPTQModel does, word by word",
                                (long long)wrapped);
    if (!text) return err->code;
    p->warnings[p->info.n_warnings++] = text;
    return DQ_OK;
}

static dq_status read_all(dq_prequant *p, const json_t *config, dq_err *err)
{
    if (dq_prequant_config_read(&p->config, config, p->arena, err) != DQ_OK)
        return dq_in(err, "config.json: \"%s\": ", key);
    p->info.method = p->config.format->method;
    p->info.about = p->config.about;
    DQ_TRY(find_linears(p, err));
    for (int64_t i = 0; i < p->info.n_weights; i++)
        DQ_TRY(dq_prequant_linear_fit(&p->linear[i], &p->config, err));
    for (int64_t i = 0; i < p->info.n_weights; i++)
        DQ_TRY(dq_prequant_linear_reserve(&p->linear[i], &p->info.own_bytes, p->arena, err));
    DQ_TRY(fill(p, err));
    return say(p, err);
}

/* A folder whose configuration is not with it (early AutoGPTQ and AutoAWQ: a file of its own). */
static dq_status check_plain(const dq_checkpoint *c, dq_err *err)
{
    static const char *const codes[] = {".qweight", ".weight_packed"};
    for (int64_t i = 0; i < dq_checkpoint_count(c); i++) {
        for (int k = 0; k < 2; k++) {
            const char *name = dq_checkpoint_at(c, i)->name;
            if (before(name, codes[k]))
                return dq_fail(err, DQ_MISMATCH,
                               "tensor \"%s\" is quantized, but config.json has no %s. Early tools "
                               "wrote it as a file of its own: put that object there, with its "
                               "\"quant_method\".",
                               name, key);
        }
    }
    return DQ_OK;
}

dq_status dq_prequant_open(dq_prequant **out, const dq_checkpoint *c, dq_err *err)
{
    const json_t *config = json_object_get(dq_checkpoint_config(c), key);
    *out = NULL;
    if (!config || json_is_null(config)) return check_plain(c, err);
    dq_arena *arena = dq_arena_new();
    dq_prequant *p = arena ? dq_alloc(arena, 1, sizeof *p, err) : NULL;
    if (!p) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    p->arena = arena;
    p->checkpoint = c;
    if (read_all(p, config, err) != DQ_OK) {
        dq_prequant_close(p);
        return err->code;
    }
    *out = p;
    return DQ_OK;
}

void dq_prequant_close(dq_prequant *p)
{
    if (p) dq_arena_free(p->arena); /* p itself lives there */
}

const dq_prequant_info *dq_prequant_header(const dq_prequant *p)
{
    return &p->info;
}

/* ---- As a source ---- */

static bool find(void *arg, const char *name, dq_weight *w)
{
    const dq_prequant *p = arg;
    const size_t n = before(name, weight);
    const dq_prequant_linear *l = n ? find_linear(p, name, n) : NULL;
    if (l) *w = l->w;
    return l || (!is_hidden(p, name) && dq_checkpoint_weight(p->checkpoint, name, w));
}

static const char *name_at(void *arg, int64_t i)
{
    return ((const dq_prequant *)arg)->name[i];
}

dq_source dq_prequant_source(dq_prequant *p)
{
    return (dq_source){p, find, p->n_names, name_at};
}
