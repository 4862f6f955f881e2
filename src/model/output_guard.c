/* output_guard: see output_guard.h. Every file that a command makes, partial files and journals too, is one row of a list,
 * and all rows are compared with each other and with all inputs, as the system knows them (dq_file_same). What would be
 * new in a folder that is read is told by the names that checkpoints use.
 * SPDX-License-Identifier: MIT */
#include "model/output_guard.h"

#include "base/file.h"
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static bool ends(const char *name, const char *with)
{
    size_t n = strlen(name), k = strlen(with);
    return n >= k && strcmp(name + n - k, with) == 0;
}

/* Whether a checkpoint may hold a file of this name. */
static bool of_checkpoint(const char *name)
{
    static const char *const whole[] = {"config.json",
                                        "generation_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt"};
    static const char *const first[] = {"tokenizer", "chat_template"};
    static const char *const last[] = {".safetensors", ".index.json"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (strcmp(name, whole[i]) == 0) return true;
    }
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        if (begins(name, first[i])) return true;
    }
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        if (ends(name, last[i])) return true;
    }
    return false;
}

static dq_status refuse(const char *out, const char *model, dq_err *err)
{
    return dq_fail(err, DQ_USAGE,
                   "%s: the output would overwrite a file of the input %s. Choose another name.",
                   out, model);
}

/* An existing output: its folder says nothing, links may lead from there into the model. */
static dq_status check_existing(const char *out, const char *model, dq_arena *a, dq_err *err)
{
    const char **name;
    size_t n;
    DQ_TRY(dq_file_dir_names(&name, &n, model, a, err));
    for (size_t i = 0; i < n; i++) {
        const char *file = dq_textf(a, err, "%s/%s", model, name[i]);
        if (!file) return err->code;
        if (of_checkpoint(name[i]) && dq_file_same(file, out)) return refuse(out, model, err);
    }
    DQ_TRY(dq_checkpoint_index_files(&name, &n, model, a, err)); /* in folders below, too */
    for (size_t i = 0; i < n; i++) {
        if (dq_file_same(name[i], out)) return refuse(out, model, err);
    }
    return DQ_OK;
}

static const char *folder_of(const char *path, dq_arena *a, dq_err *err)
{
    const char *slash = strrchr(path, '/');
    return slash ? dq_text(a, path, (size_t)(slash - path) + 1, err) : ".";
}

static dq_status check_new(const char *out, const char *model, dq_arena *a, dq_err *err)
{
    const char *slash = strrchr(out, '/'), *dir = folder_of(out, a, err);
    if (!dir) return err->code;
    if (of_checkpoint(slash ? slash + 1 : out) && dq_file_same(dir, model))
        return refuse(out, model, err);
    return DQ_OK;
}

/* A file that the command makes: an output, or one that it has beside it. */
typedef struct written {
    const char *path;
    const dq_output *of;
} written;

typedef struct written_list {
    written *item;
    size_t n, capacity;
    dq_arena *arena;
} written_list;

static void add(written_list *l, const dq_output *of, const char *path, const char *ending,
                dq_err *err)
{
    const char *name = path ? dq_textf(l->arena, err, "%s%s", path, ending) : NULL;
    written *item =
        name ? dq_grow(l->arena, l->item, l->n + 1, &l->capacity, sizeof *item, err) : NULL;
    if (!item) return;
    l->item = item;
    l->item[l->n++] = (written){name, of};
}

static dq_status list_written(written_list *l, const dq_output *out, int n, dq_err *err)
{
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        const dq_output *o = &out[i];
        if (!o->path) continue;
        const char *real = dq_file_resolved(o->path, l->arena, err);
        add(l, o, o->path, "", err);
        add(l, o, o->path, ".partial", err);
        if (real && strcmp(real, o->path) != 0) add(l, o, real, ".partial", err);
        for (int k = 0; o->beside && o->beside[k]; k++) add(l, o, o->path, o->beside[k], err);
    }
    return err->code;
}

static dq_status check_pairs(const written_list *l, dq_err *err)
{
    static const char printed[] = "/dev/fd/1";
    const bool to_file = dq_file_is_regular(printed);
    for (size_t i = 0; i < l->n; i++) {
        const written *w = &l->item[i];
        for (size_t k = 0; k < i; k++) {
            const written *v = &l->item[k];
            if (v->of == w->of || !dq_file_same(v->path, w->path)) continue;
            return dq_fail(err, DQ_USAGE,
                           "%s: %s and %s write this file (%s). Give each a name of its own.",
                           w->path, v->of->label, w->of->label, v->path);
        }
        if (to_file && dq_file_same(w->path, printed))
            return dq_fail(err, DQ_USAGE,
                           "%s: %s and standard output write this file. Choose another name.",
                           w->path, w->of->label);
    }
    return DQ_OK;
}

/* What holds an input's own name is never replaced, as a folder is. */
static dq_status protect(const written *w, const char *input, dq_arena *a, dq_err *err)
{
    const bool folder = w->of->form == DQ_OUTPUT_FOLDER;
    if (strcmp(input, "-") == 0) input = "/dev/fd/0";
    if (dq_file_same(w->path, input) && (folder || !dq_file_is_dir(w->path)))
        return dq_fail(err, DQ_USAGE,
                       "%s: input and output are the same file (the input is %s). Choose another "
                       "name.",
                       w->path, input);
    if (folder) {
        const char *real = dq_file_resolved(input, a, err);
        const char *here = real ? folder_of(real, a, err) : NULL;
        const char *named = folder_of(input, a, err);
        if (!here || !named) return err->code;
        if (dq_file_same(w->path, here) || dq_file_same(w->path, named))
            return dq_fail(err, DQ_USAGE,
                           "%s: holds the input %s, which the output would remove. Choose another "
                           "name.",
                           w->path, input);
        return DQ_OK;
    }
    if (!dq_file_is_dir(input)) return DQ_OK;
    return dq_file_exists(w->path) ? check_existing(w->path, input, a, err)
                                   : check_new(w->path, input, a, err);
}

static dq_status check_names(written_list *l, const dq_output *out, int n, const char *const *input,
                             int n_inputs, dq_err *err)
{
    DQ_TRY(list_written(l, out, n, err));
    DQ_TRY(check_pairs(l, err));
    for (size_t i = 0; i < l->n; i++) {
        for (int k = 0; k < n_inputs; k++) {
            if (input[k]) DQ_TRY(protect(&l->item[i], input[k], l->arena, err));
        }
    }
    return DQ_OK;
}

dq_status dq_output_guard_names(const dq_output *out, int n, const char *const *input, int n_inputs,
                                dq_err *err)
{
    written_list l = {.arena = dq_arena_new()};
    if (!l.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    check_names(&l, out, n, input, n_inputs, err);
    dq_arena_free(l.arena);
    return err->code;
}

/* A name that ends as files of another form do is taken for a mistake, other names for what they are. */
static dq_status check_form(const dq_output *o, dq_err *err)
{
    static const struct {
        const char *end;
        int form; /* -1: nothing that dq writes */
    } known[] = {
        {".h5", DQ_OUTPUT_HDF5},
        {".hdf5", DQ_OUTPUT_HDF5},
        {".json", DQ_OUTPUT_JSON},
        {".jsonl", DQ_OUTPUT_LINES},
        {".csv", DQ_OUTPUT_CSV},
        {".html", DQ_OUTPUT_HTML},
        {".htm", DQ_OUTPUT_HTML},
        {".gguf", DQ_OUTPUT_GGUF},
        {".safetensors", -1},
        {".bin", -1},
        {".pt", -1},
        {".pth", -1},
        {".onnx", -1},
        {".npz", -1},
        {".npy", -1},
    };
    static const char *const what[] = {
        [DQ_OUTPUT_HDF5] = "HDF5, name.h5",           [DQ_OUTPUT_JSON] = "JSON, name.json",
        [DQ_OUTPUT_LINES] = "JSON lines, name.jsonl", [DQ_OUTPUT_CSV] = "CSV, name.csv",
        [DQ_OUTPUT_HTML] = "HTML, name.html",         [DQ_OUTPUT_GGUF] = "GGUF, name.gguf",
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool lines = o->form == DQ_OUTPUT_LINES && known[i].form == DQ_OUTPUT_JSON; /* also usual */
        if (!ends(o->path, known[i].end) || known[i].form == (int)o->form || lines) continue;
        return dq_fail(err, DQ_USAGE,
                       "%s: %s writes no such file (expected %s, found a name in %s). Choose "
                       "another name.",
                       o->path, o->label, what[o->form], known[i].end);
    }
    return DQ_OK;
}

static dq_status check_name(const dq_output *o, dq_err *err)
{
    if (!o->path[0] || strcmp(o->path, "-") == 0)
        return dq_fail(err, DQ_USAGE, "%s: expected the name of a %s, found \"%s\".", o->label,
                       o->form == DQ_OUTPUT_FOLDER ? "folder" : "file", o->path);
    return DQ_OK;
}

static dq_status check_one(const dq_output *o, bool force, dq_err *err)
{
    if (o->form >= DQ_OUTPUT_FOLDER) return DQ_OK;
    DQ_TRY(check_form(o, err));
    DQ_TRY(dq_file_check(o->path, err));
    if (!force && dq_file_exists(o->path))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists.",
                            o->path);
    return DQ_OK;
}

dq_status dq_output_guard_check(const dq_output *out, int n, const char *const *input, int n_inputs,
                                bool force, dq_err *err)
{
    for (int i = 0; i < n; i++) {
        if (out[i].path) DQ_TRY(check_name(&out[i], err));
    }
    DQ_TRY(dq_output_guard_names(out, n, input, n_inputs, err));
    for (int i = 0; i < n; i++) {
        if (out[i].path) DQ_TRY(check_one(&out[i], force, err));
    }
    return DQ_OK;
}
