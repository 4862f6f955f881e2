/* test_export: an exported folder, read back by other code, holds the container's values to the last bit; nothing that is
 * not an export is replaced, and a failure leaves no folder.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/edits.h"
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "export/export.h"
#include "tests/rigs/test_folder.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- What is exported ---- */

typedef struct exported {
    dq_model *model;
    dq_export *export;
    dq_checkpoint *folder;
} exported;

static const char *golden(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, DQ_TEST_DIR "/golden/models/%s", name);
    return path;
}

static void quantize(const char *source, const char *out, int bits, int64_t group,
                     dq_scale_mode mode, const char *skip)
{
    dq_quantize_settings s = settings_of(bits, group, mode);
    s.skip = skip;
    s.logit = (dq_logit_spec){.bits = 8, .granularity = DQ_GRANULARITY_ROW};
    make_container(source, out, &s);
}

static dq_export_settings settings(dq_export_form form, dq_dtype dtype)
{
    return (dq_export_settings){
        .form = form, .dtype = dtype, .shard_bytes = 5000000000, .dq_version = "test"};
}

/* "out" of the container at "m.h5". */
static dq_status try_export(exported *e, const dq_export_settings *s, bool force, dq_err *err)
{
    *e = (exported){0};
    *err = (dq_err){0};
    if (dq_model_open(&e->model, at("m.h5"), err) == DQ_OK &&
        dq_export_open(&e->export, e->model, s, err) == DQ_OK &&
        dq_export_check(e->export, at("out/"), force, err) == DQ_OK &&
        dq_export_write(e->export, NULL, err) == DQ_OK)
        dq_export_commit(e->export, err);
    return err->code;
}

static void end(exported *e)
{
    dq_checkpoint_close(e->folder);
    dq_export_close(e->export);
    dq_model_close(e->model);
}

static exported export_to_out(const dq_export_settings *s)
{
    exported e;
    dq_err err;
    if (try_export(&e, s, true, &err) != DQ_OK) fail_msg("%s", err.text);
    if (dq_checkpoint_open(&e.folder, at("out"), &err) != DQ_OK) fail_msg("%s", err.text);
    return e;
}

/* ---- Reading it, by the definition of pack-quantized ---- */

static const dq_tensor *part(const dq_checkpoint *c, const char *tensor, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%.*s.%s", (int)(strlen(tensor) - strlen(".weight")), tensor, name);
    return dq_checkpoint_find(c, full);
}

static int code_at(const dq_tensor *t, int64_t row, int64_t col, int bits)
{
    const int64_t per_word = 32 / bits;
    uint32_t word;
    memcpy(&word, (const uint8_t *)t->data + 4 * (row * t->shape[1] + col / per_word), 4);
    return (int)(word >> col % per_word * bits & ((1u << bits) - 1));
}

static int zero_at(const dq_tensor *t, int64_t row, int64_t group, int bits)
{
    const int64_t per_word = 32 / bits;
    uint32_t word;
    if (!t) return 1 << (bits - 1);
    memcpy(&word, (const uint8_t *)t->data + 4 * (row / per_word * t->shape[1] + group), 4);
    return (int)(word >> row % per_word * bits & ((1u << bits) - 1));
}

static float scale_at(const dq_tensor *t, int64_t row, int64_t group)
{
    float x;
    const size_t item = dq_dtypes[t->dtype].bytes;
    const uint8_t *from = (const uint8_t *)t->data + (size_t)(row * t->shape[1] + group) * item;
    assert_true(dq_tensor_to_f32(&x, from, t->dtype, 1));
    return x;
}

static void check_codes(const exported *e, const dq_weight *w, const dq_export_scheme *s)
{
    const dq_tensor *codes = part(e->folder, w->name, "weight_packed");
    const dq_tensor *scales = part(e->folder, w->name, "weight_scale");
    const dq_tensor *shape = part(e->folder, w->name, "weight_shape");
    const dq_tensor *zeros = part(e->folder, w->name, "weight_zero_point");
    const int64_t size = s->group ? s->group : w->cols, want_shape[2] = {w->rows, w->cols};
    assert_non_null(codes);
    assert_non_null(scales);
    assert_non_null(shape);
    assert_true((zeros == NULL) == s->symmetric);
    assert_null(dq_checkpoint_find(e->folder, w->name));
    assert_int_equal(codes->dtype, DQ_I32);
    assert_int_equal(codes->shape[0], w->rows);
    assert_int_equal(codes->shape[1], (w->cols * s->bits + 31) / 32);
    assert_int_equal(scales->shape[0], w->rows);
    assert_int_equal(scales->shape[1], w->cols / size);
    assert_true(shape->dtype == DQ_I64 && shape->n_dims == 1 && shape->shape[0] == 2);
    assert_memory_equal(shape->data, want_shape, sizeof want_shape);
    if (zeros) assert_int_equal(zeros->shape[0], (w->rows * s->bits + 31) / 32);
    if (w->bits == s->bits) assert_memory_equal(codes->data, w->data, dq_tensor_bytes(codes));
    float *want = malloc((size_t)w->cols * sizeof *want);
    assert_non_null(want);
    for (int64_t r = 0; r < w->rows; r++) {
        dq_weight_dequantize_rows(want, w, r, r + 1);
        for (int64_t c = 0; c < w->cols; c++) {
            const int q = code_at(codes, r, c, s->bits) - zero_at(zeros, r, c / size, s->bits);
            const float got = (float)q * scale_at(scales, r, c / size);
            assert_memory_equal(&got, &want[c], sizeof got);
        }
    }
    free(want);
}

/* A tensor that is there as values; `type`: what they were rounded to. */
static void check_values(const exported *e, const dq_weight *w, dq_dtype type)
{
    const dq_tensor *t = dq_checkpoint_find(e->folder, w->name);
    assert_non_null(t);
    assert_int_equal(t->dtype, type);
    const int64_t n = w->rows * w->cols;
    assert_int_equal(dq_tensor_numel(t), n);
    float *want = malloc((size_t)n * sizeof *want);
    assert_non_null(want);
    dq_weight_dequantize_rows(want, w, 0, w->rows);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *p = (const uint8_t *)t->data + (size_t)i * dq_dtypes[type].bytes;
        const uint16_t half = type == DQ_F16 ? dq_f16_from_f32(want[i]) : dq_bf16_from_f32(want[i]);
        if (type == DQ_F32)
            assert_memory_equal(p, &want[i], sizeof *want);
        else
            assert_memory_equal(p, &half, sizeof half);
    }
    free(want);
}

static void check_alignment(const exported *e)
{
    for (int64_t i = 0; i < e->folder->count; i++) {
        const dq_tensor *t = &e->folder->tensor[i];
        assert_int_equal((uintptr_t)t->data % dq_dtypes[t->dtype].bytes, 0);
    }
}

static void check_all(const exported *e)
{
    const dq_export_info *info = &e->export->info;
    dq_source source = dq_container_source(e->model->container);
    assert_int_equal(info->n_rows, source.count);
    for (int64_t i = 0; i < info->n_rows; i++) {
        const dq_export_row *r = dq_export_row_at(e->export, i);
        dq_weight w;
        assert_true(source.find(source.arg, r->name, &w));
        if (r->scheme >= 0)
            check_codes(e, &w, &e->export->scheme[r->scheme]);
        else
            check_values(e, &w, r->dtype);
    }
    check_alignment(e);
}

TEST(codes_are_the_containers)
{
    static const int64_t groups[] = {16, DQ_GROUP_ROW, DQ_GROUP_TENSOR};
    const dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    for (int i = 0; i < 7 * DQ_TRELLIS; i++) { /* not of the trellis, which has no integers */
        const int bits = 2 + i % 7;
        const dq_scale_mode mode = (dq_scale_mode)(i / 7);
        quantize(golden(i % 2 ? "motif-gqa-f32" : "diffllama-f32"), at("m.h5"), bits, groups[i % 3],
                 mode, NULL);
        exported e = export_to_out(&s);
        const dq_export_info *info = &e.export->info;
        assert_true(info->n_packed > 0 && info->has_logit && !info->has_kv);
        assert_int_equal(info->n_widened, bits == 4 || bits == 8 ? 0 : info->n_packed);
        for (int k = 0; k < info->n_schemes; k++) {
            const dq_export_scheme *x = &e.export->scheme[k];
            assert_int_equal(x->bits, bits <= 4 ? 4 : 8);
            assert_int_equal(x->symmetric, mode != DQ_ASYM || x->bits != bits);
        }
        check_all(&e);
        end(&e);
    }
}

/* Rows and columns that fill no word; a short last group; types of values. */
TEST(what_has_no_place_becomes_values)
{
    quantize(golden("gda-f32-shards"), at("m.h5"), 4, 12, DQ_ASYM, NULL);
    for (int i = 0; i < 3; i++) {
        const dq_dtype type = (dq_dtype[]){DQ_F32, DQ_F16, DQ_BF16}[i];
        dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, type);
        exported e = export_to_out(&s);
        check_all(&e);
        for (int64_t k = 0; k < e.export->info.n_rows; k++) {
            const dq_export_row *r = dq_export_row_at(e.export, k);
            if (!r->group_size) continue;
            assert_true((r->why != NULL) == (r->cols % 12 != 0));
            assert_true((r->why != NULL) == (r->scheme < 0));
            if (r->why) assert_int_equal(r->dtype, type);
            if (r->why) assert_non_null(strstr(r->why, "37 columns in groups of 12"));
        }
        assert_true(e.export->info.n_decoded > 0);
        end(&e);
        s.form = DQ_EXPORT_SAFETENSORS;
        e = export_to_out(&s);
        check_all(&e);
        assert_int_equal(e.export->info.n_packed, 0);
        end(&e);
    }
    quantize(golden("gda-f32-shards"), at("m.h5"), 4, DQ_GROUP_ROW, DQ_ASYM, NULL);
    const dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    exported e = export_to_out(&s); /* 37 rows: five words of zero points */
    assert_int_equal(e.export->info.n_decoded, 0);
    check_all(&e);
    end(&e);
}

/* Scalars and vectors keep their shapes, so that the folder is a checkpoint again, of the same values. */
TEST(values_make_a_checkpoint)
{
    const dq_export_settings s = settings(DQ_EXPORT_SAFETENSORS, DQ_F32);
    dq_model *m;
    dq_checkpoint *source;
    dq_err err = {0};
    quantize(golden("motif-gqa-f32"), at("m.h5"), 5, 16, DQ_SEARCH, NULL);
    exported e = export_to_out(&s);
    assert_int_equal(dq_checkpoint_open(&source, golden("motif-gqa-f32"), &err), DQ_OK);
    for (int64_t i = 0; i < e.folder->count; i++) {
        const dq_tensor *b = &e.folder->tensor[i];
        const dq_tensor *a = dq_checkpoint_find(source, b->name);
        assert_non_null(a);
        assert_int_equal(a->n_dims, b->n_dims);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    }
    dq_checkpoint_close(source);
    if (dq_model_open(&m, at("out"), &err) != DQ_OK) fail_msg("%s", err.text);
    dq_model_close(m);
    end(&e);
}

/* ---- Texts and files ---- */

static json_t *read_json(const char *path)
{
    json_error_t why;
    json_t *v = json_load_file(path, 0, &why);
    if (!v) fail_msg("%s: %s", path, why.text);
    return v;
}

static bool has_text(const json_t *array, const char *text)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        if (strcmp(json_string_value(json_array_get(array, i)), text) == 0) return true;
    }
    return false;
}

/* Through a container, which has it among the tokenizer's files. */
TEST(a_chat_template_comes_back)
{
    static const char text[] = "{{ messages[0].content }}\r\n\n";
    const dq_export_settings s = settings(DQ_EXPORT_SAFETENSORS, DQ_F32);
    size_t len;
    assert_int_equal(shell("cp -r", golden("llama-f32"), at("source")), 0);
    put_bytes(at("source/chat_template.jinja"), text, sizeof text - 1);
    quantize(at("source"), at("m.h5"), 4, 32, DQ_ABSMAX, NULL);
    exported e = export_to_out(&s);
    char *got = bytes_of(at("out/chat_template.jinja"), &len);
    assert_int_equal(len, sizeof text - 1);
    assert_memory_equal(got, text, len);
    free(got);
    end(&e);
}

TEST(config_names_what_is_coded)
{
    const dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    quantize(golden("diffllama-f32"), at("m.h5"), 4, 16, DQ_ASYM, "v_proj");
    exported e = export_to_out(&s);
    json_t *v = read_json(at("out/config.json")), *q = json_object_get(v, "quantization_config");
    assert_string_equal(json_string_value(json_object_get(q, "quant_method")),
                        "compressed-tensors");
    assert_string_equal(json_string_value(json_object_get(q, "format")), "pack-quantized");
    const json_t *ignore = json_object_get(q, "ignore");
    assert_true(has_text(ignore, "model.layers.0.self_attn.v_proj"));
    assert_true(has_text(ignore, "model.embed_tokens") && has_text(ignore, "lm_head"));
    assert_false(has_text(ignore, "model.layers.0.self_attn.q_proj"));
    const json_t *group = json_object_get(json_object_get(q, "config_groups"), "group_0");
    const json_t *weights = json_object_get(group, "weights");
    assert_true(has_text(json_object_get(group, "targets"), "Linear"));
    assert_int_equal(json_integer_value(json_object_get(weights, "num_bits")), 4);
    assert_int_equal(json_integer_value(json_object_get(weights, "group_size")), 16);
    assert_true(json_is_false(json_object_get(weights, "symmetric")));
    assert_string_equal(json_string_value(json_object_get(weights, "strategy")), "group");
    assert_int_equal(e.export->info.split_layer, 0); /* q and k are coded, v is not */
    json_decref(v);
    v = read_json(at("out/dq_settings.json"));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(v, "logit"), "bits")), 8);
    assert_non_null(json_object_get(v, "kv"));
    json_decref(v);
    end(&e);
    quantize(golden("llama-f16-linear"), at("m.h5"), 4, 64, DQ_SEARCH, NULL);
    e = export_to_out(
        &s); /* rows of 64 columns, and of 128: two schemes, which name their modules */
    check_all(&e);
    assert_int_equal(e.export->info.n_schemes, 2);
    v = read_json(at("out/config.json"));
    const json_t *groups =
        json_object_get(json_object_get(v, "quantization_config"), "config_groups");
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "group_%d", i);
        const json_t *o = json_object_get(groups, name), *targets = json_object_get(o, "targets");
        const json_t *w = json_object_get(o, "weights");
        const bool whole =
            strcmp(json_string_value(json_object_get(w, "strategy")), "channel") == 0;
        assert_true(json_is_null(json_object_get(w, "group_size")) == whole);
        assert_true(has_text(targets, "model.layers.1.mlp.up_proj") == whole);
        assert_true(has_text(targets, "model.layers.1.self_attn.o_proj") == !whole);
        assert_false(has_text(targets, "Linear") || has_text(targets, "lm_head"));
    }
    json_decref(v);
    end(&e);
}

TEST(a_coded_head_is_not_tied)
{
    const dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    const edit same = WEIGHT("llama-f32", COPY, "model.embed_tokens.weight", "lm_head.weight");
    dq_quantize_settings coded = settings_of(4, 16, DQ_ABSMAX);
    coded.embed_bits = 4;
    edits_write(&same);
    make_container(at(""), at("m.h5"), &coded);
    exported e = export_to_out(&s);
    json_t *v = read_json(at("out/config.json"));
    assert_true(json_is_false(json_object_get(v, "tie_word_embeddings")));
    json_decref(v);
    end(&e);
}

TEST(several_files_have_an_index)
{
    dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    quantize(golden("diffllama-f32"), at("m.h5"), 8, 16, DQ_SEARCH, NULL);
    s.shard_bytes = 20000; /* the embedding alone has more */
    exported e = export_to_out(&s);
    check_all(&e);
    const dq_export_info *info = &e.export->info;
    json_t *v = read_json(at("out/model.safetensors.index.json"));
    const json_t *map = json_object_get(v, "weight_map");
    assert_int_equal(json_object_size(map), e.folder->count);
    assert_false(dq_file_exists(at("out/model.safetensors")));
    int64_t bytes = 0;
    int shards = 0;
    for (int i = 0; i < info->n_files; i++) {
        const dq_export_file *f = &e.export->file[i];
        char path[128], sha[65];
        dq_os_map m;
        dq_err err = {0};
        snprintf(path, sizeof path, "out/%s", f->name);
        assert_int_equal(dq_os_map_open(&m, at(path), &err), DQ_OK);
        assert_int_equal(m.bytes, f->bytes);
        assert_int_equal(dq_sha256_of(sha, m.data, m.bytes, &err), DQ_OK);
        assert_string_equal(sha, f->sha256);
        dq_os_map_close(&m);
        bytes += f->bytes;
        shards += strncmp(f->name, "model-0", 7) == 0;
    }
    assert_int_equal(bytes, info->bytes);
    assert_true(shards > 2);
    /* the parts of a module lie in one file */
    const char *a =
        json_string_value(json_object_get(map, "model.layers.2.mlp.up_proj.weight_packed"));
    assert_string_equal(
        a, json_string_value(json_object_get(map, "model.layers.2.mlp.up_proj.weight_scale")));
    json_decref(v);
    end(&e);
}

TEST(threads_make_no_difference)
{
    quantize(golden("gda-f32-shards"), at("m.h5"), 3, 12, DQ_ASYM, NULL);
    for (int form = 0; form <= DQ_EXPORT_SAFETENSORS; form++) { /* folders */
        const dq_export_settings s = settings((dq_export_form)form, DQ_F16);
        exported e = export_to_out(&s);
        end(&e);
        assert_int_equal(shell("rm -rf", at("one"), ""), 0);
        assert_int_equal(rename(at("out"), at("one")), 0);
#ifdef _OPENMP
        omp_set_num_threads(5);
#endif
        e = export_to_out(&s);
        end(&e);
#ifdef _OPENMP
        omp_set_num_threads(1);
#endif
        assert_int_equal(shell("diff -r", at("one"), at("out")), 0);
    }
}

/* ---- Refusals ---- */

static void refused(const dq_export_settings *s, bool force, dq_status want, const char *text)
{
    exported e;
    dq_err err;
    assert_int_equal(try_export(&e, s, force, &err), want);
    if (!strstr(err.text, text)) fail_msg("\"%s\" is not in: %s", text, err.text);
    end(&e);
    assert_false(dq_file_exists(at("out.old")));
}

TEST(only_exports_are_replaced)
{
    const dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    quantize(golden("diffllama-f32"), at("m.h5"), 4, 16, DQ_ABSMAX, NULL);
    assert_int_equal(shell("rm -rf", at("out"), ""), 0);
    assert_int_equal(mkdir(at("out"), 0777), 0);
    refused(&s, false, DQ_FILE, "exists");
    exported e = export_to_out(&s); /* an empty one is, with force */
    end(&e);
    refused(&s, false, DQ_FILE, "exists");
    assert_int_equal(shell("touch", at("out/notes.txt"), ""), 0);
    refused(&s, true, DQ_FILE, "it holds notes.txt");
    assert_int_equal(unlink(at("out/notes.txt")), 0);
    assert_int_equal(mkdir(at("out/tokenizer"), 0777), 0);
    refused(&s, true, DQ_FILE, "it holds tokenizer");
    assert_int_equal(rmdir(at("out/tokenizer")), 0);
    e = export_to_out(&s);
    end(&e);
    assert_int_equal(unlink(at("out/dq_settings.json")), 0); /* as a checkpoint of somebody else */
    refused(&s, true, DQ_FILE, "it has no dq_settings.json");
    assert_true(dq_file_exists(at("out/model.safetensors")));
    assert_int_equal(rename(at("out"), at("other")), 0);
    assert_int_equal(symlink(at("other"), at("out")), 0);
    refused(&s, true, DQ_FILE, "is not a folder");
    assert_int_equal(unlink(at("out")), 0);
    assert_int_equal(mkdir(at("out.partial"), 0777), 0);
    refused(&s, false, DQ_FILE, "exists from an interrupted run");
    assert_int_equal(shell("touch", at("out.partial/config.json"), ""), 0);
    e = export_to_out(&s);
    end(&e);
    assert_false(dq_file_exists(at("out.partial")));
    assert_int_equal(mkdir(at("out.old"), 0777), 0);
    dq_err err;
    assert_int_equal(try_export(&e, &s, true, &err), DQ_FILE);
    assert_non_null(strstr(err.text, "Rename or remove it"));
    end(&e);
    assert_int_equal(rmdir(at("out.old")), 0);
}

/* Whoever makes the folder while it is written keeps it. */
TEST(a_folder_that_comes_meanwhile_stays)
{
    const dq_export_settings s = settings(DQ_EXPORT_SAFETENSORS, DQ_BF16);
    exported e = {0};
    dq_err err = {0};
    assert_int_equal(shell("rm -rf", at("out"), ""), 0);
    assert_int_equal(dq_model_open(&e.model, at("m.h5"), &err), DQ_OK);
    assert_int_equal(dq_export_open(&e.export, e.model, &s, &err), DQ_OK);
    assert_int_equal(dq_export_check(e.export, at("out"), true, &err), DQ_OK);
    assert_int_equal(dq_export_write(e.export, NULL, &err), DQ_OK);
    assert_int_equal(mkdir(at("out"), 0777), 0);
    assert_int_equal(dq_export_commit(e.export, &err), DQ_FILE);
    assert_non_null(strstr(err.text, "has come while it was written"));
    end(&e);
    assert_false(dq_file_exists(at("out.partial")));
    assert_int_equal(rmdir(at("out")), 0);
}

TEST(codes_are_needed)
{
    dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    assert_int_equal(shell("rm -rf", at("out"), ""), 0);
    quantize(golden("diffllama-f32"), at("m.h5"), 16, 16, DQ_ABSMAX, NULL);
    refused(&s, false, DQ_MISMATCH, "no tensor has codes");
    quantize(golden("diffllama-f32"), at("m.h5"), 4, 7, DQ_ABSMAX, NULL);
    refused(&s, false, DQ_MISMATCH, "no place for any of its codes");
    s.form = DQ_EXPORT_SAFETENSORS;
    exported e = export_to_out(&s);
    end(&e);
}

/* A value beyond f16: named, and no folder. */
TEST(failures_leave_no_folder)
{
    static const uint8_t large[2] = {0xc3, 0x47}; /* bf16 99840 */
    dq_export_settings s = settings(DQ_EXPORT_SAFETENSORS, DQ_F16);
    const uint8_t *data;
    assert_int_equal(shell("rm -rf", at("out"), at("large")), 0);
    assert_int_equal(shell("cp -r", golden("diffllama-bf16-untied"), at("large")), 0);
    dq_checkpoint *c = given_checkpoint(at("large"));
    const dq_tensor *t = dq_checkpoint_find(c, "model.embed_tokens.weight");
    data = c->file[0].map.data;
    const long where = (long)((const uint8_t *)t->data - data) + 2 * (3 * (long)t->shape[1] + 5);
    dq_checkpoint_close(c);
    FILE *f = fopen(at("large/model.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, where, SEEK_SET), 0);
    assert_int_equal(fwrite(large, 1, sizeof large, f), sizeof large);
    assert_int_equal(fclose(f), 0);
    quantize(at("large"), at("m.h5"), 4, 16, DQ_ABSMAX, NULL);
    refused(&s, false, DQ_MISMATCH,
            "model.embed_tokens.weight: the value 99840 in row 3, column 5 is beyond F16");
    assert_false(dq_file_exists(at("out")) || dq_file_exists(at("out.partial")));
    s.dtype = DQ_BF16;
    exported e = export_to_out(&s);
    check_all(&e);
    end(&e);
}

TEST(damage_is_found_before_it_is_exported)
{
    const dq_export_settings s = settings(DQ_EXPORT_COMPRESSED_TENSORS, DQ_F32);
    dq_err err = {0};
    assert_int_equal(shell("rm -rf", at("out"), ""), 0);
    quantize(golden("diffllama-f32"), at("m.h5"), 4, 16, DQ_ABSMAX, NULL);
    dq_container *k;
    assert_int_equal(dq_container_open(&k, at("m.h5"), &err), DQ_OK);
    dq_source source = dq_container_source(k);
    dq_weight w;
    dq_os_map m;
    assert_true(source.find(source.arg, "model.layers.1.mlp.up_proj.weight", &w));
    uint8_t sample[64];
    memcpy(sample, w.data, sizeof sample);
    dq_container_close(k);
    assert_int_equal(dq_os_map_open(&m, at("m.h5"), &err), DQ_OK);
    size_t found = 0;
    while (memcmp(m.data + found, sample, sizeof sample) != 0) found += 64;
    dq_os_map_close(&m);
    FILE *f = fopen(at("m.h5"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)found, SEEK_SET), 0);
    assert_int_equal(fputc(sample[0] ^ 1, f), sample[0] ^ 1);
    assert_int_equal(fclose(f), 0);
    refused(&s, false, DQ_DAMAGED, "up_proj.weight/packed: damaged");
    assert_false(dq_file_exists(at("out")) || dq_file_exists(at("out.partial")));
}

/* Ctrl-C after the first block, in a process of its own: the flag stays. OpenMP's threads do not survive fork, so this
 * runs first. */
static void stop(void *arg, double done, double total, const char *what)
{
    (void)arg, (void)done, (void)total, (void)what;
    raise(SIGINT);
}

TEST(an_interrupted_export_leaves_no_folder)
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const dq_export_settings s = settings(DQ_EXPORT_SAFETENSORS, DQ_F32);
        const dq_export_progress p = {stop, NULL};
        exported e = {0};
        dq_err err = {0};
        dq_os_catch_signals();
        quantize(golden("diffllama-f32"), at("m.h5"), 4, 16, DQ_ABSMAX, NULL);
        const bool began = dq_model_open(&e.model, at("m.h5"), &err) == DQ_OK &&
                           dq_export_open(&e.export, e.model, &s, &err) == DQ_OK &&
                           dq_export_check(e.export, at("out"), false, &err) == DQ_OK;
        const dq_status got = dq_export_write(e.export, &p, &err);
        end(&e);
        _exit(began && got == DQ_STOPPED ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_false(dq_file_exists(at("out")) || dq_file_exists(at("out.partial")));
}

FIXTURES(folder_begin, folder_end)
