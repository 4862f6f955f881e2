/* prequant: finds the weights by the suffix of their codes, asks the format's row for the scheme of each and reads zero
 * points and indices, which are few. Codes and scales get addresses only, so that a model can be built, and are laid out by
 * all threads, a weight at a time, when it is to be run. The first error in the order of names is the one told.
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
    dq_os_block
        late; /* of codes and scales that are laid out anew; none: all stay where they are */
    size_t late_bytes;
    bool loaded;
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
            high = middle; /* a longer name comes after */
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

typedef void step(dq_prequant_linear *l, const dq_prequant_config *c);

static dq_status for_all(dq_prequant *p, step *f, dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    const int64_t n = p->info.n_weights;
#pragma omp parallel for schedule(dynamic, 1) if (p->info.own_bytes > SMALL_BYTES)
    for (int64_t i = 0; i < n; i++) {
        dq_prequant_linear *l = &p->linear[i];
        if (dq_os_check_stop(&l->err) != DQ_OK) continue;
        f(l, &p->config);
        release(l);
    }
    for (int64_t i = 0; i < n; i++) DQ_TRY(dq_fail_as(err, &p->linear[i].err));
    return DQ_OK;
}

/* Zero points and indices get memory. */
static dq_status place_early(dq_prequant_linear *l, dq_arena *a, dq_err *err)
{
    static const dq_prequant_part early[] = {DQ_PREQUANT_ZEROS, DQ_PREQUANT_INDEX};
    for (int i = 0; i < 2; i++) {
        const size_t bytes = l->own_bytes[early[i]];
        if (bytes) l->own[early[i]] = dq_alloc(a, bytes, 1, err);
    }
    return err->code;
}

/* Codes and scales get addresses, those at p on: as many bytes as are used. NULL where there are none to have: such a
 * model can be described. */
static size_t place_late(dq_prequant_linear *l, uint8_t *p)
{
    enum { LINE = 64 };
    const size_t codes = l->own_bytes[DQ_PREQUANT_CODES], scales = l->own_bytes[DQ_PREQUANT_SCALES],
                 before_scales = (codes + LINE - 1) / LINE * LINE;
    if (codes && p) l->own[DQ_PREQUANT_CODES] = p;
    if (scales && p) l->own[DQ_PREQUANT_SCALES] = p + before_scales;
    l->w.data = codes ? l->own[DQ_PREQUANT_CODES] : l->codes.data;
    l->w.scale = scales ? l->own[DQ_PREQUANT_SCALES] : l->part[DQ_PREQUANT_SCALES]->data;
    return before_scales + (scales + LINE - 1) / LINE * LINE;
}

static dq_status place(dq_prequant *p, dq_err *err)
{
    size_t at = 0;
    for (int64_t i = 0; i < p->info.n_weights; i++) {
        dq_prequant_linear *l = &p->linear[i];
        DQ_TRY(dq_prequant_linear_size(l, err));
        DQ_TRY(place_early(l, p->arena, err));
        for (int k = 0; k < DQ_PREQUANT_PARTS; k++) p->info.own_bytes += (int64_t)l->own_bytes[k];
        p->late_bytes += place_late(l, NULL);
    }
    if (p->late_bytes) dq_os_block_reserve(&p->late, p->late_bytes);
    for (int64_t i = 0; i < p->info.n_weights && p->late.data; i++)
        at += place_late(&p->linear[i], p->late.data + at);
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
    DQ_TRY(dq_prequant_match(p->linear, p->info.n_weights, &p->config, err));
    for (int64_t i = 0; i < p->info.n_weights; i++)
        DQ_TRY(dq_prequant_linear_fit(&p->linear[i], &p->config, err));
    DQ_TRY(place(p, err));
    DQ_TRY(for_all(p, dq_prequant_linear_read, err));
    for (int64_t i = 0; i < p->info.n_weights; i++) {
        p->info.n_zeros += p->linear[i].w.zero != NULL;
        p->info.n_indexed += p->linear[i].w.index != NULL;
    }
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
    if (!p) return;
    dq_os_block_free(&p->late);
    dq_arena_free(p->arena); /* p itself lives there */
}

dq_status dq_prequant_load(dq_prequant *p, dq_err *err)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t have = dq_os_memory_bytes(), want = (int64_t)p->late_bytes;
    if (p->loaded) return DQ_OK;
    if (want > 0 && ((have > 0 && want > have) || !dq_os_block_take(&p->late)))
        return dq_fail(
            err, DQ_RESOURCE,
            "not enough memory for weights that are laid out anew (%s; expected %.1f "
            "MiB beside the files, this process can have %.1f MiB in all). Use a machine "
            "with more, or quantize the original checkpoint: a container is read where "
            "it lies.",
            p->config.about, (double)want / mib, (double)have / mib);
    DQ_TRY(for_all(p, dq_prequant_linear_fill, err));
    p->loaded = true;
    return DQ_OK;
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

static int64_t part_bytes(const dq_prequant_linear *l)
{
    int64_t bytes = 0;
    for (int i = 0; i < DQ_PREQUANT_PARTS; i++)
        bytes += l->part[i] ? (int64_t)dq_tensor_bytes(l->part[i]) : 0;
    return bytes;
}

/* Of a quantized weight its codes, scales, zero points and index as its tool wrote them. */
static int64_t stored_bytes(void *arg, const char *name)
{
    const dq_prequant *p = arg;
    const size_t n = before(name, weight);
    const dq_prequant_linear *l = n ? find_linear(p, name, n) : NULL;
    const dq_tensor *t = l ? NULL : dq_checkpoint_find(p->checkpoint, name);
    return l ? part_bytes(l) : t ? (int64_t)dq_tensor_bytes(t) : 0;
}

static dq_status load(void *arg, dq_err *err)
{
    return dq_prequant_load(arg, err);
}

dq_source dq_prequant_source(dq_prequant *p)
{
    return (dq_source){p, find, p->n_names, name_at, stored_bytes, load};
}
