/* test_container: what is written is what is read; damage is found and named; interrupted runs end in
 * the same bytes.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* usleep */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/h5_result.h"
#include "tests/rigs/given.h"
#include "tests/rigs/test_folder.h"
#include "work/work.h"

#include <fcntl.h>
#include <hdf5.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char model[] = DQ_TEST_DIR "/golden/models/diffllama-f32";
static void make(const char *out, int bits, int64_t group, dq_scale_mode mode)
{
    const dq_quantize_settings s = settings_of(bits, group, mode);
    make_container(model, out, &s);
}

/* The definition, one value at a time. */
static void check_tensor(const dq_tensor *t, const dq_weight *w, int64_t group)
{
    int64_t cols = t->shape[1], size = group < 0 || group > cols ? cols : group;
    float *x = malloc(dq_tensor_bytes(t) * 2), *got = malloc(dq_tensor_bytes(t) * 2), top = 0;
    int64_t n = dq_tensor_numel(t);
    assert_non_null(x);
    assert_non_null(got);
    dq_tensor_to_f32(x, t->data, t->dtype, n);
    for (int64_t r = 0; r < w->rows; r++) dq_weight_dequantize_rows(got + r * cols, w, r, r + 1);
    for (int64_t i = 0; i < n; i++) top = fmaxf(top, fabsf(x[i]));
    for (int64_t i = 0; i < n; i++) {
        int64_t c = i % cols, begin = i - c + c / size * size, end = begin + size;
        float max = 0, limit = (float)((1 << (w->bits - 1)) - 1);
        if (end > i - c + cols) end = i - c + cols;
        for (int64_t k = begin; k < end; k++) max = fmaxf(max, fabsf(x[k]));
        if (group == DQ_GROUP_TENSOR) max = top;
        float s = max / limit;
        if (w->scale_dtype == DQ_F16) s = dq_f32_from_f16(dq_f16_from_f32(s));
        float q = s == 0 ? 0 : fmaxf(-limit, fminf(limit, rintf(x[i] / s)));
        assert_true(got[i] == q * s);
    }
    free(x);
    free(got);
}

TEST(containers_hold_the_defined_values)
{
    static const int64_t groups[] = {128, 7, DQ_GROUP_ROW, DQ_GROUP_TENSOR};
    dq_err err = {0};
    dq_checkpoint *k;
    assert_int_equal(dq_checkpoint_open(&k, model, &err), DQ_OK);
    for (int bits = 2; bits <= 8; bits++) {
        int64_t group = groups[bits % 4];
        dq_container *c;
        int packed = 0;
        make(at("v.h5"), bits, group, DQ_ABSMAX);
        if (dq_container_open(&c, at("v.h5"), &err) != DQ_OK) fail_msg("%s", err.text);
        dq_source s = dq_container_source(c);
        assert_int_equal(s.count, k->count);
        for (int64_t i = 0; i < s.count; i++) {
            const dq_tensor *t = dq_checkpoint_find(k, s.name_at(s.arg, i));
            dq_weight w;
            assert_non_null(t);
            assert_true(s.find(s.arg, t->name, &w));
            packed += dq_weight_is_coded(&w);
            if (!dq_weight_is_coded(&w))
                assert_memory_equal(w.data, t->data, dq_tensor_bytes(t));
            else
                check_tensor(t, &w, group);
        }
        assert_true(packed > 0);
        for (int64_t i = 0; i < c->n_payloads; i++)
            assert_int_equal(dq_container_payload_check(c, i, &err), DQ_OK);
        assert_int_equal(dq_container_check_index(c, &err), DQ_OK);
        assert_int_equal(c->info.weight_bits, bits);
        dq_container_close(c);
    }
    dq_checkpoint_close(k);
}

/* Opens and checks everything; the text names what is damaged. */
static dq_status check_file(const char *path, dq_err *err)
{
    dq_container *c;
    *err = (dq_err){0};
    if (dq_container_open(&c, path, err) != DQ_OK) return err->code;
    dq_container_check_index(c, err);
    for (int64_t i = 0; err->code == DQ_OK && i < c->n_payloads; i++)
        dq_container_payload_check(c, i, err);
    dq_container_close(c);
    return err->code;
}

/* Every value within a step of its own, as verify finds the file, for groups of any form. */
TEST(zero_points_hold_for_any_group)
{
    static const int64_t groups[] = {128, 7, DQ_GROUP_ROW, DQ_GROUP_TENSOR};
    dq_err err = {0};
    dq_checkpoint *k;
    assert_int_equal(dq_checkpoint_open(&k, model, &err), DQ_OK);
    for (int bits = 2; bits <= 8; bits++) {
        make(at("z.h5"), bits, groups[bits % 4], DQ_ASYM);
        if (check_file(at("z.h5"), &err) != DQ_OK) fail_msg("%s", err.text);
        dq_container *c = given_container(at("z.h5"));
        assert_string_equal(c->info.scale_mode, "asym");
        dq_source s = dq_container_source(c);
        for (int64_t i = 0; i < s.count; i++) {
            const dq_tensor *t = dq_checkpoint_find(k, s.name_at(s.arg, i));
            dq_weight w;
            assert_true(s.find(s.arg, t->name, &w));
            if (!dq_weight_is_coded(&w)) continue;
            assert_non_null(w.zero);
            float *got = malloc((size_t)(w.rows * w.cols) * sizeof *got),
                  *x = malloc(dq_tensor_bytes(t));
            assert_true(got && x);
            dq_weight_dequantize_rows(got, &w, 0, w.rows);
            dq_tensor_to_f32(x, t->data, t->dtype, w.rows * w.cols);
            for (int64_t n = 0; n < w.rows * w.cols; n++) {
                const float step = dq_weight_scale(&w, n / w.cols, n % w.cols / w.group_size);
                assert_true(fabsf(got[n] - x[n]) <= 1.01f * step);
            }
            free(got);
            free(x);
        }
        dq_container_close(c);
    }
    dq_checkpoint_close(k);
}

TEST(payloads_begin_on_pages)
{
    make(at("p.h5"), 6, 128, DQ_SEARCH);
    dq_container *c = given_container(at("p.h5"));
    for (int64_t i = 0; i < c->n_payloads; i++)
        assert_int_equal((uintptr_t)c->payload[i].data % 4096, 0);
    dq_container_close(c);
}

TEST(runs_give_the_same_bytes)
{
    make(at("a.h5"), 4, 32, DQ_SEARCH);
    make(at("b.h5"), 4, 32, DQ_SEARCH);
    make(at("c.h5"), 4, 32, DQ_ASYM);
    make(at("d.h5"), 4, 32, DQ_ASYM);
    assert_true(same_bytes(at("c.h5"), at("d.h5")));
    assert_true(same_bytes(at("a.h5"), at("b.h5")));
    assert_false(dq_file_exists(at("a.h5.partial")));
    assert_false(dq_file_exists(at("a.h5.journal")));
}

TEST(truncations_are_found)
{
    size_t len;
    dq_err err;
    make(at("t.h5"), 4, 128, DQ_ABSMAX);
    char *whole = bytes_of(at("t.h5"), &len);
    for (size_t cut = 0; cut < len; cut += cut < 64 || cut > len - 64 ? 1 : len / 150) {
        if (cut + len / 150 > len - 64 && cut < len - 64) cut = len - 64;
        put_bytes(at("cut.h5"), whole, cut);
        assert_int_equal(check_file(at("cut.h5"), &err), DQ_DAMAGED);
    }
    free(whole);
}

TEST(flips_are_named)
{
    dq_err err = {0};
    size_t len;
    make(at("f.h5"), 4, 128, DQ_ASYM);
    dq_container *c = given_container(at("f.h5"));
    char *whole = bytes_of(at("f.h5"), &len);
    const char *base = NULL;
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        /* the first bytes of the file tell where the mapping begins */
        for (base = (const char *)p->data; memcmp(base, "\211HDF\r\n\032\n", 8) != 0;) base -= 4096;
        size_t where = (size_t)((const char *)p->data - base) + (size_t)p->bytes * 2 / 3;
        whole[where] ^= 16;
        put_bytes(at("flip.h5"), whole, len);
        whole[where] ^= 16;
        dq_status got = check_file(at("flip.h5"), &err);
        assert_int_equal(got, DQ_DAMAGED);
        if (!strstr(err.text, p->path)) fail_msg("%s is not named: %s", p->path, err.text);
    }
    dq_container_close(c);
    free(whole);
}

/* Any byte: never a crash, and never an undetected change of what a reader uses. */
TEST(flips_anywhere_do_no_harm)
{
    dq_err err;
    size_t len;
    make(at("w.h5"), 4, 128, DQ_ASYM);
    char *whole = bytes_of(at("w.h5"), &len);
    size_t step = len / 400 + 1;
    for (size_t i = 0; i < len; i += i < 600 ? 7 : step) {
        whole[i] = (char)~whole[i];
        put_bytes(at("flip.h5"), whole, len);
        whole[i] = (char)~whole[i];
        dq_status got = check_file(at("flip.h5"), &err);
        assert_true(got == DQ_OK || got == DQ_DAMAGED || got == DQ_MISMATCH);
    }
    free(whole);
}

typedef struct stopper {
    int steps, after, signal;
} stopper;

static void stop_later(void *arg, const dq_pace *pace, const char *what)
{
    stopper *s = arg;
    (void)pace;
    (void)what;
    if (++s->steps == s->after) raise(s->signal);
}

static const char *source = model; /* of interrupted runs */

/* A run in a process of its own that sends itself the signal at the n-th step; its wait status. */
static int interrupted_run(const char *out, int after, int number, bool resume)
{
    dq_quantize_settings set = settings_of(4, 16, DQ_ASYM);
    pid_t pid = fork();
    if (pid == 0) {
        dq_err err;
        stopper s = {0, after, number};
        dq_quantize_progress p = {stop_later, &s};
        if (number == SIGINT) dq_os_catch_signals();
        _exit((int)write_container(source, out, &set, false, resume, &p, &err));
    }
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

/* OpenMP's threads do not survive fork: the parent of these tests must not have started any, so they
 * run first. */
TEST(interrupted_runs_end_in_the_same_bytes)
{
    static const int numbers[] = {SIGINT, SIGKILL};
    dq_quantize_settings other = settings_of(8, 16, DQ_ASYM);
    assert_int_equal(interrupted_run(at("whole.h5"), 0, SIGKILL, false), 0);
    for (int k = 0; k < 2; k++) {
        for (int after = 1, ended = 0; !ended && after < 400; after += 1 + after) {
            const char *out = at("half.h5");
            int status = interrupted_run(out, after, numbers[k], false);
            ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            if (!ended) {
                assert_false(dq_file_exists(out));
                /* once more in the middle of the resumed run */
                interrupted_run(out, after + 3, numbers[k], true);
            }
            if (!dq_file_exists(out)) assert_int_equal(interrupted_run(out, 0, SIGKILL, true), 0);
            assert_true(same_bytes(out, at("whole.h5")));
            assert_false(dq_file_exists(at("half.h5.journal")));
            unlink(at("half.h5"));
        }
    }
    /* other settings are refused */
    for (int after = 1; !dq_file_exists(at("half.h5.partial")) && after < 400; after++) {
        unlink(at("half.h5"));
        interrupted_run(at("half.h5"), after, SIGKILL, false);
    }
    dq_err err;
    assert_int_equal(write_container(model, at("half.h5"), &other, false, true, NULL, &err),
                     DQ_MISMATCH);
    assert_non_null(strstr(err.text, "bits: begun with 4, this run has 8"));
    assert_int_equal(write_container(model, at("half.h5"), &other, false, false, NULL, &err),
                     DQ_FILE);
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_RESUME_OR_FORCE);
    /* so is a journal of another form, as versions of dq before this one wrote */
    static const char old[] = "dq-journal 2 4c7b8b14\nversion 0.3.0 18a1f4d3\n";
    put_bytes(at("half.h5.journal"), old, sizeof old - 1);
    assert_int_equal(write_container(model, at("half.h5"), &other, false, true, NULL, &err),
                     DQ_MISMATCH);
    assert_non_null(strstr(err.text, "half.h5.journal: is not a journal of this version of dq."));
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_START_OVER);
    assert_true(dq_file_exists(at("half.h5.partial")));
    assert_int_equal(write_container(model, at("half.h5"), &other, true, false, NULL, &err), DQ_OK);
}

/* A journal has a line a step, whatever the names in it hold. */
TEST(a_name_of_two_lines_is_resumed)
{
    char quoted[300], plain[256];
    dq_err err = {0};
    json_t *head;
    bool ended;
    snprintf(plain, sizeof plain, "%s", at("two\nlines"));
    snprintf(quoted, sizeof quoted, "'%s'", plain);
    assert_int_equal(shell("cp -r", model, quoted), 0);
    source = plain;
    for (int after = 1; !dq_file_exists(at("lines.h5.partial")); after++)
        assert_int_not_equal(interrupted_run(at("lines.h5"), after, SIGKILL, false), 0);
    assert_int_equal(dq_work_head(&head, &ended, at("lines.h5.journal"), &err), DQ_OK);
    assert_string_equal(json_string_value(json_object_get(json_object_get(head, "of"), "source")),
                        "two?lines");
    json_decref(head);
    assert_int_equal(interrupted_run(at("lines.h5"), 0, SIGKILL, true), 0);
    source = model;
}

TEST(outputs_are_refused)
{
    dq_err err;
    dq_quantize_settings s = settings_of(4, 128, DQ_ABSMAX);
    make(at("o.h5"), 4, 128, DQ_ABSMAX);
    assert_int_equal(write_container(model, at("o.h5"), &s, false, false, NULL, &err), DQ_FILE);
    assert_int_equal(write_container(model, at("no/o.h5"), &s, false, false, NULL, &err), DQ_FILE);
    assert_int_equal(write_container(model, at(""), &s, true, false, NULL, &err), DQ_FILE);
    assert_int_equal(write_container(at("o.h5"), at("p.h5"), &s, true, false, NULL, &err),
                     DQ_MISMATCH);
    assert_int_equal(write_container(at("none"), at("p.h5"), &s, true, false, NULL, &err), DQ_FILE);
    assert_int_equal(shell("cp -r", model, at("copy")), 0);
    assert_int_equal(symlink("copy/model.safetensors", at("link.h5")), 0);
    assert_int_equal(symlink("copy/config.json", at("two.h5.partial")), 0);
    assert_int_equal(write_container(at("copy"), at("link.h5"), &s, true, false, NULL, &err),
                     DQ_USAGE);
    assert_int_equal(write_container(at("copy"), at("two.h5"), &s, true, false, NULL, &err),
                     DQ_USAGE);
    /* names that would become a part of the checkpoint; others beside it may be replaced */
    static const char *const parts[] = {"copy/config.json", "copy/model.safetensors",
                                        "copy/generation_config.json", "copy/extra.safetensors"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_int_equal(write_container(at("copy"), at(parts[i]), &s, true, false, NULL, &err),
                         DQ_USAGE);
    assert_int_equal(write_container(at("copy"), at("copy/q.h5"), &s, false, false, NULL, &err),
                     DQ_OK);
    assert_int_equal(write_container(at("copy"), at("copy/q.h5"), &s, true, false, NULL, &err),
                     DQ_OK);
    s.skip = "self_atn";
    assert_int_equal(write_container(model, at("s.h5"), &s, true, false, NULL, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "self_attn"));
    s.skip = "(";
    assert_int_equal(write_container(model, at("s.h5"), &s, true, false, NULL, &err), DQ_USAGE);
    s.skip = "q_proj";
    assert_int_equal(write_container(model, at("s.h5"), &s, true, false, NULL, &err), DQ_OK);
}

/* As a user whom the folder's mode binds; root may write everywhere. */
TEST(folders_that_cannot_be_written_are_named)
{
    assert_int_equal(mkdir(at("closed"), 0555), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dq_err err[3] = {{0}};
        bool dropped = geteuid() != 0 || (chmod(at(""), 0755) == 0 && setuid(65534) == 0);
        _exit(dropped && dq_file_check(at("closed/new.csv"), &err[0]) == DQ_FILE &&
                      strstr(err[0].text, "cannot be written") &&
                      dq_h5_result_check(at("closed/new.h5"), false, &err[1]) == DQ_FILE &&
                      strstr(err[1].text, "cannot be written") &&
                      dq_file_check("/dev/null/new.csv", &err[2]) == DQ_FILE &&
                      strstr(err[2].text, "does not exist")
                  ? 0
                  : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(rmdir(at("closed")), 0);
}

TEST(values_that_are_not_finite_are_named)
{
    dq_err err = {0};
    dq_quantize_settings s = settings_of(4, 128, DQ_ABSMAX);
    dq_checkpoint *k;
    size_t len;
    const uint8_t *data;
    const float bad = (float)NAN;
    assert_int_equal(shell("cp -r", model, at("nan")), 0);
    assert_int_equal(dq_checkpoint_open(&k, at("nan"), &err), DQ_OK);
    const dq_tensor *t = dq_checkpoint_find(k, "model.layers.0.self_attn.k_proj.weight");
    assert_non_null(t);
    data = k->file[0].map.data;
    size_t where = (size_t)((const uint8_t *)t->data - data) + ((size_t)t->shape[1] * 3 + 5) * 4;
    dq_checkpoint_close(k);
    char *whole = bytes_of(at("nan/model.safetensors"), &len);
    memcpy(whole + where, &bad, sizeof bad);
    put_bytes(at("nan/model.safetensors"), whole, len);
    free(whole);
    assert_int_equal(write_container(at("nan"), at("n.h5"), &s, true, false, NULL, &err),
                     DQ_DAMAGED);
    assert_non_null(strstr(err.text, "k_proj.weight\": the value at row 3, column 5"));
    assert_false(dq_file_exists(at("n.h5")) || dq_file_exists(at("n.h5.partial")));
}

TEST(a_full_disk_leaves_no_output)
{
    for (rlim_t limit = 100; limit < 200000; limit *= 8) {
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit l = {limit, limit};
            dq_quantize_settings s = settings_of(4, 128, DQ_ABSMAX);
            dq_err err;
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &l);
            _exit((int)write_container(model, at("full.h5"), &s, false, false, NULL, &err));
        }
        int status = -1;
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), DQ_FILE);
        assert_false(dq_file_exists(at("full.h5")));
        assert_false(dq_file_exists(at("full.h5.partial")));
    }
}

enum { LIES = 9 };
static void tell_lie(hid_t f, int lie, const char *group)
{
    static const char *const names[] = {"group_size", "group_size", "bits", "shape"};
    static const int64_t values[4][2] = {{0, 0}, {1 << 30, 0}, {9, 0}, {1, INT64_MAX}};
    char path[300];
    if (lie < 4) {
        hsize_t dim = 2;
        hid_t g = H5Gopen2(f, group, H5P_DEFAULT);
        hid_t s = lie == 3 ? H5Screate_simple(1, &dim, NULL) : H5Screate(H5S_SCALAR);
        assert_true(g >= 0 && H5Adelete(g, names[lie]) >= 0);
        hid_t a = H5Acreate2(g, names[lie], H5T_STD_I64LE, s, H5P_DEFAULT, H5P_DEFAULT);
        assert_true(a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, values[lie]) >= 0);
        H5Aclose(a);
        H5Sclose(s);
        H5Gclose(g);
        return;
    }
    snprintf(path, sizeof path, "%s/%s", group, lie == 4 ? "scale" : lie < 7 ? "packed" : "zero");
    assert_true(H5Ldelete(f, path, H5P_DEFAULT) >= 0);
    if (lie == 6 || lie == 8) { /* another type and shape in its place */
        hsize_t dim = 3;
        hid_t s = H5Screate_simple(1, &dim, NULL);
        hid_t d = H5Dcreate2(f, path, H5T_IEEE_F64LE, s, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        double v[3] = {0, 0, 0};
        assert_true(d >= 0 &&
                    H5Dwrite(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
        H5Dclose(d);
        H5Sclose(s);
    }
}

/* Writes a container whose attribute `name` of a group is `value`, or is not there (NULL): opening it must say so. */
static void expect_refusal(const dq_quantize_settings *s, const char *group, const char *name,
                           hid_t type, const void *value, const char *says)
{
    dq_err err = {0};
    dq_container *c;
    assert_int_equal(write_container(model, at("attr.h5"), s, true, false, NULL, &err), DQ_OK);
    hid_t f = H5Fopen(at("attr.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t g = H5Gopen2(f, group, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
    assert_true(g >= 0 && H5Adelete(g, name) >= 0);
    if (value) {
        hid_t a = H5Acreate2(g, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        assert_true(H5Awrite(a, type, value) >= 0);
        H5Aclose(a);
    }
    H5Sclose(space);
    H5Gclose(g);
    H5Fclose(f);
    assert_int_equal(dq_container_open(&c, at("attr.h5"), &err), DQ_DAMAGED);
    if (!strstr(err.text, says)) fail_msg("%s: %s", name, err.text);
    const char *path = strstr(err.text, "attr.h5"); /* once */
    if (!path || strstr(path + 1, "attr.h5")) fail_msg("%s: %s", name, err.text);
}

/* Attributes have no hash, but the recipe, which says the same, has one. */
TEST(attributes_agree_with_the_recipe)
{
    static const struct {
        const char *group, *name;
        int64_t value;
        const char *says;
    } lies[] = {
        {"/attention", "logit_bits", 4, "differs from /attention"},
        {"/kv_cache", "sink", 0, "differs from the attributes of /kv_cache"},
        {"/kv_cache", "sink", INT64_MAX, "attribute sink: expected 0 to"},
        {"/kv_cache", "every", INT64_MAX, "every 9223372036854775807"},
        {"/kv_cache", "seed", -1, "seed -1"},
        {"/kv_cache", "tokens", 9, "tokens 9 is less than sink 4 and recent 60"},
        {"/kv_cache", "policy", 0, "attribute policy is missing"},
    };
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    dq_err none = {0};
    s.kv.evict.policy = dq_kv_policy_find("random", &none);
    s.kv.evict.keep = 0;
    s.kv.evict.tokens = 100;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const bool there = strcmp(lies[i].name, "policy") != 0;
        expect_refusal(&s, lies[i].group, lies[i].name, H5T_NATIVE_INT64,
                       there ? &lies[i].value : NULL, lies[i].says);
    }
}

/* A file of before, in which nothing is coded or evicted: 64 recent tokens, of which its recipe says nothing. */
TEST(old_files_agree_with_their_recipe)
{
    const int64_t before = 64;
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    dq_err err = {0};
    dq_container *c = NULL;
    assert_int_equal(write_container(model, at("old.h5"), &s, true, false, NULL, &err), DQ_OK);
    hid_t f = H5Fopen(at("old.h5"), H5F_ACC_RDWR, H5P_DEFAULT),
          g = H5Gopen2(f, "/kv_cache", H5P_DEFAULT);
    hid_t a = H5Aopen(g, "recent", H5P_DEFAULT);
    assert_true(a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, &before) >= 0);
    H5Aclose(a);
    H5Gclose(g);
    H5Fclose(f);
    assert_int_equal(dq_container_open(&c, at("old.h5"), &err), DQ_OK);
    assert_int_equal(c->info.kv.recent, DQ_KV_RECENT);
    dq_container_close(c);
}

/* The same of a list of heads, which is a text. */
TEST(roles_agree_with_the_recipe)
{
    static char endless[9000];
    static const struct {
        const char *text, *says;
    } lies[] = {{"2.0/0.0,1.0", "differs from the attributes of /kv_cache"},
                {"", "the budget \"heads\" needs heads"},
                {"2.0,0.0,", "heads: expected layers and their groups"},
                {"2.0,0.0,2.0", "group 2.0 stands twice"},
                {endless, "attribute heads"},
                {NULL, "the budget \"heads\" needs heads"}};
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    dq_err err = {0};
    memset(endless, '1', sizeof endless - 1);
    s.kv.evict.policy = dq_kv_policy_find("random", &err);
    s.kv.evict.budget = DQ_KV_BUDGET_HEADS;
    assert_int_equal(dq_kv_config_set_heads(&s.kv, "2.0,0.0/1.0", &err), DQ_OK);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        hid_t type = H5Tcopy(H5T_C_S1);
        assert_true(H5Tset_size(type, lies[i].text ? strlen(lies[i].text) + 1 : 1) >= 0);
        expect_refusal(&s, "/kv_cache", "heads", type, lies[i].text, lies[i].says);
        H5Tclose(type);
    }
}

TEST(lies_are_refused)
{
    dq_err err;
    for (int lie = 0; lie < LIES; lie++) {
        make(at("lie.h5"), 4, 128, DQ_ASYM);
        hid_t f = H5Fopen(at("lie.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
        assert_true(f >= 0);
        tell_lie(f, lie, "/tensors/model.layers.0.self_attn.q_proj.weight");
        assert_true(H5Fclose(f) >= 0);
        assert_int_equal(check_file(at("lie.h5"), &err), DQ_DAMAGED);
        assert_non_null(strstr(err.text, "q_proj"));
    }
    put_bytes(at("lie.h5"), "", 0);
    assert_int_equal(check_file(at("lie.h5"), &err), DQ_DAMAGED);
    put_bytes(at("lie.h5"), "GGUF", 4);
    assert_int_equal(check_file(at("lie.h5"), &err), DQ_DAMAGED);
    assert_int_equal(check_file(at("absent.h5"), &err), DQ_FILE);
}

static void check_source(dq_scale_mode mode)
{
    dq_err err = {0};
    dq_quantizer *q;
    dq_quantize_settings s;
    json_t *recipe;
    make(at("m.h5"), 3, DQ_GROUP_TENSOR, mode);
    dq_container *c = given_container(at("m.h5"));
    assert_int_equal(dq_quantize_settings_of(&s, &recipe, c, &err), DQ_OK);
    assert_int_equal(s.bits, 3);
    assert_int_equal(s.group, DQ_GROUP_TENSOR);
    assert_int_equal(dq_quantize_open(&q, model, &s, &err), DQ_OK);
    if (dq_quantize_compare(q, c, NULL, &err) != DQ_OK) fail_msg("%s", err.text);
    dq_quantize_close(q);
    s.dq_version = "other"; /* which attributes alone have */
    assert_int_equal(dq_quantize_open(&q, model, &s, &err), DQ_OK);
    assert_int_equal(dq_quantize_compare(q, c, NULL, &err), DQ_DAMAGED);
    assert_string_equal(err.text,
                        "/: not as the source gives it: attribute dq_version is text:test "
                        "(expected text:other)");
    err = (dq_err){0};
    dq_quantize_close(q);
    assert_int_equal(
        dq_quantize_open(&q, DQ_TEST_DIR "/golden/models/diffllama-f16-shards", &s, &err), DQ_OK);
    assert_int_equal(dq_quantize_compare(q, c, NULL, &err), DQ_MISMATCH);
    dq_quantize_close(q);
    dq_container_close(c);
    json_decref(recipe);
}

TEST(containers_match_their_source)
{
    check_source(DQ_SEARCH);
    check_source(DQ_ASYM);
}

/* Settings of the KV cache come back as they were, from the header and from the recipe; a file of
 * before they existed stands for none. */
TEST(kv_settings_are_remembered)
{
    dq_err err = {0};
    dq_container *c;
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX), back;
    json_t *recipe;
    s.kv = (dq_kv_config){.k_bits = 6,
                          .v_bits = 3,
                          .group = 8,
                          .sink = 1,
                          .recent = 9,
                          .rotate = DQ_ROTATE_OFF,
                          .evict = {.policy = dq_kv_policy_find("h2o", &err),
                                    .keep = 0.3,
                                    .every = 5,
                                    .window = 7,
                                    .budget = DQ_KV_BUDGET_ADAPTIVE,
                                    .seed = 11}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(write_container(model, at("kv.h5"), &s, true, false, NULL, &err), DQ_OK);
        c = given_container(at("kv.h5"));
        assert_true(dq_kv_config_same(&c->info.kv, &s.kv));
        assert_int_equal(dq_quantize_settings_of(&back, &recipe, c, &err), DQ_OK);
        assert_true(dq_kv_config_same(&back.kv, &s.kv));
        json_decref(recipe);
        dq_container_close(c);
        s.kv.evict.keep = 0;
        s.kv.evict.tokens = 100;
        s.kv.evict.budget = DQ_KV_BUDGET_HEADS;
        assert_int_equal(dq_kv_config_set_heads(&s.kv, "2.0,0.0/1.0", &err), DQ_OK);
    }
    s.kv.k_bits = 5;
    assert_int_not_equal(write_container(model, at("kv.h5"), &s, true, false, NULL, &err), DQ_OK);
}

TEST(h5py_reads_the_same_values)
{
    static const char name[] = "model.layers.0.mlp.down_proj.weight";
    dq_container *c;
    dq_weight w;
    size_t len;
    if (shell("python3 -c 'import h5py, numpy' 2>/dev/null", "", "") != 0) skip();
    for (int i = 2; i <= 16; i++) {
        const int bits = i <= 8 ? i : i < 16 ? i - 7 : 4;
        make(at("h.h5"), bits, i < 16 ? 24 : DQ_GROUP_TENSOR, i <= 8 ? DQ_ABSMAX : DQ_ASYM);
        char tail[300];
        snprintf(tail, sizeof tail, "%s %s", name, at("h.f32"));
        assert_int_equal(shell("python3 " DQ_TEST_DIR "/read_container.py", at("h.h5"), tail), 0);
        c = given_container(at("h.h5"));
        dq_source s = dq_container_source(c);
        assert_true(s.find(s.arg, name, &w));
        char *got = bytes_of(at("h.f32"), &len);
        float *want = malloc(len + 4);
        assert_non_null(want);
        assert_int_equal(len, w.rows * w.cols * 4);
        dq_weight_dequantize_rows(want, &w, 0, w.rows);
        assert_memory_equal(got, want, len);
        free(got);
        free(want);
        dq_container_close(c);
    }
}

FIXTURES(folder_begin, folder_end)
