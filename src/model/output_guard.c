/* output_guard: see output_guard.h. An existing output is compared with the files of the input as the system knows
 * them, so that links are seen through; a new one by its folder and by the names that checkpoints use.
 * SPDX-License-Identifier: MIT */
#include "model/output_guard.h"

#include "base/file.h"

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
    return DQ_OK;
}

static dq_status check_new(const char *out, const char *model, dq_arena *a, dq_err *err)
{
    const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out;
    const char *dir = slash ? dq_text(a, out, (size_t)(slash - out) + 1, err) : ".";
    if (!dir) return err->code;
    if (of_checkpoint(name) && dq_file_same(dir, model)) return refuse(out, model, err);
    return DQ_OK;
}

dq_status dq_output_guard_protects(const char *out, const char *input, dq_err *err)
{
    if (dq_file_same(out, input) && !dq_file_is_dir(out))
        return dq_fail(err, DQ_USAGE, "%s: input and output are the same file.", out);
    if (!dq_file_is_dir(input)) return DQ_OK;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_file_exists(out))
        check_existing(out, input, a, err);
    else
        check_new(out, input, a, err);
    dq_arena_free(a);
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
        {".gguf", -1},
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
        [DQ_OUTPUT_HTML] = "HTML, name.html",
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

static dq_status check_one(const dq_output *o, const char *const *input, int n_inputs, bool force,
                           dq_err *err)
{
    if (!o->path[0] || strcmp(o->path, "-") == 0)
        return dq_fail(err, DQ_USAGE, "%s: expected the name of a file, found \"%s\".", o->label,
                       o->path);
    for (int i = 0; i < n_inputs; i++) DQ_TRY(dq_output_guard_protects(o->path, input[i], err));
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
        for (int k = 0; k < i && out[i].path; k++) {
            if (out[k].path &&
                (strcmp(out[i].path, out[k].path) == 0 || dq_file_same(out[i].path, out[k].path)))
                return dq_fail(err, DQ_USAGE, "%s: two outputs have this name.", out[i].path);
        }
    }
    for (int i = 0; i < n; i++) {
        if (out[i].path) DQ_TRY(check_one(&out[i], input, n_inputs, force, err));
    }
    return DQ_OK;
}
