/* test_quantize_feed: a method that makes codes, and what is left of its run: progress that may go on stays, with what
 * its bits depend on; what would fail again goes; a head is the method's, tied to the embedding or not.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "quantize/quantize.h"
#include "tests/rigs/edits.h"
#include "tests/rigs/test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define TIED   MODELS "diffllama-f32"
#define UNTIED MODELS "llama-bf16-bias"

/* Feeds the tensors that are its own, zeros all, and fails after so many of them. */
typedef struct fake {
    int good;
    dq_status status; /* of the failure; DQ_OK: there is none */
    int made, found;  /* what it did, and what an earlier run had made */
    bool head;        /* the head was its own */
} fake;

static dq_status begin(void *arg, const dq_model *m, dq_quantize_needs *out, dq_err *err)
{
    (void)arg, (void)m, (void)err;
    out->calib = json_pack("{s:s}", "file", "none");
    return DQ_OK;
}

static dq_status feed_one(fake *f, dq_quantize_feed *feed, const char *name, dq_err *err)
{
    dq_coded coded;
    const dq_quantize_tensor *t = dq_quantize_tensor_of(feed->q, name);
    if (!t || !t->format || !t->is_fed) return DQ_OK;
    if (strstr(name, "lm_head")) f->head = true;
    if (dq_quantize_feed_done(feed, t)) {
        f->found++;
        return DQ_OK;
    }
    if (f->status != DQ_OK && f->made == f->good) return dq_fail(err, f->status, "made to fail");
    f->made++;
    if (dq_coded_new(&coded, t->rows, t->cols, &t->spec, err) != DQ_OK) return err->code;
    coded.weight.name = name;
    dq_quantize_feed_put(feed, t, &coded.weight, 1, err);
    dq_coded_free(&coded);
    return err->code;
}

static dq_status run(void *arg, dq_quantize_feed *feed, dq_err *err)
{
    const dq_model *m = feed->q->model;
    dq_quantize_feed_expect(feed);
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (int k = 0; k < 7; k++) DQ_TRY(feed_one(arg, feed, all[k]->name, err));
    }
    DQ_TRY(feed_one(arg, feed, m->embed.name, err));
    return feed_one(arg, feed, "lm_head.weight", err);
}

static dq_status write_fed(const char *source, fake *f, bool resume, dq_err *err)
{
    const dq_quantize_method method = {.name = "gptq", .begin = begin, .run = run, .arg = f};
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    s.embed_bits = 6;
    if (strcmp(source, UNTIED) == 0) s.head_bits = 5;
    s.method = &method;
    return write_container(source, at("fed.h5"), &s, true, resume, NULL, err);
}

static bool is_left(void)
{
    const bool partial = dq_file_exists(at("fed.h5.partial"));
    assert_int_equal(partial, dq_file_exists(at("fed.h5.journal")));
    assert_false(dq_file_exists(at("fed.h5")));
    return partial;
}

TEST(what_would_fail_again_goes)
{
    static const struct {
        dq_status status;
        bool left;
        const char *text;
    } t[] = {{DQ_DAMAGED, false, "made to fail"},
             {DQ_RESOURCE, true, "made to fail. /"},
             {DQ_FILE, true, "made to fail. /"},
             {DQ_STOPPED, true, "interrupted; /"}};
    for (int i = 0; i < 4; i++) {
        fake f = {.good = 3, .status = t[i].status};
        dq_err err;
        write_fed(TIED, &f, false, &err);
        check_error(&err, t[i].status, t[i].text);
        if (!t[i].left) assert_null(strstr(err.text, "is kept"));
        assert_int_equal(is_left(), t[i].left);
        if (!t[i].left) continue;
        /* and a resumed run that finds damage does not leave it either */
        f = (fake){.good = 1, .status = DQ_DAMAGED};
        write_fed(TIED, &f, true, &err);
        check_error(&err, DQ_DAMAGED, "made to fail");
        assert_int_equal(f.found, 3);
        assert_false(is_left());
    }
}

/* The first byte of a file turned around. */
static void turn(const char *path)
{
    size_t len;
    char *all = bytes_of(path, &len);
    all[0] = (char)~all[0];
    put_bytes(path, all, len);
    free(all);
}

/* A partial that cannot be read is not the method's damage: what it holds may be hours of work. */
TEST(what_cannot_be_taken_up_stays)
{
    fake f = {.good = 3, .status = DQ_STOPPED};
    struct rlimit limit;
    dq_err err;
    write_fed(TIED, &f, false, &err);
    assert_true(is_left());
    /* no more files can be opened than the plan and the journal are */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    bool reached = false;
    for (rlim_t n = 4; n < 64 && !reached; n++) {
        const struct rlimit few = {n, limit.rlim_max};
        f = (fake){.good = 1, .status = DQ_STOPPED};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        write_fed(TIED, &f, true, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        reached = err.code == DQ_STOPPED;
        if (!reached) check_error(&err, DQ_FILE, "cannot");
        assert_true(is_left());
    }
    assert_true(reached);
    /* nor is one that holds something else */
    turn(at("fed.h5.partial"));
    f = (fake){0};
    write_fed(TIED, &f, true, &err);
    check_error(&err, DQ_DAMAGED, "not the skeleton of this container");
    assert_null(strstr(err.text, "is kept"));
    assert_true(is_left());
    turn(at("fed.h5.partial"));
    if (write_fed(TIED, &f, true, &err) != DQ_OK) fail_msg("%s", err.text);
    assert_true(f.found >= 3);
    assert_int_equal(shell("rm", at("fed.h5"), ""), 0);
}

TEST(other_arithmetic_does_not_go_on)
{
    fake f = {.good = 3, .status = DQ_STOPPED};
    char here[DQ_OS_ARITHMETIC];
    const char *was = getenv("DQ_CPU");
    dq_err err;
    dq_os_arithmetic(here);
    write_fed(TIED, &f, false, &err);
    check_error(&err, DQ_STOPPED, "interrupted");
    if (dq_os_cpu_features(NULL) & DQ_CPU_AVX2) {
        f = (fake){0};
        assert_int_equal(setenv("DQ_CPU", "scalar", 1), 0);
        write_fed(TIED, &f, true, &err);
        assert_int_equal(was ? setenv("DQ_CPU", was, 1) : unsetenv("DQ_CPU"), 0);
        check_error(&err, DQ_MISMATCH, "arithmetic: begun with \"ISA avx2 or avx512, ");
        check_error(&err, DQ_MISMATCH, "this run has \"ISA scalar, ");
        assert_true(is_left());
    }
    f = (fake){0};
    if (write_fed(TIED, &f, true, &err) != DQ_OK) fail_msg("%s", err.text);
    assert_int_equal(f.found, 3);
    dq_container *c = given_container(at("fed.h5"));
    assert_string_equal(c->info.arithmetic, here);
    dq_container_close(c);
    assert_int_equal(shell("rm", at("fed.h5"), ""), 0);
    const dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    make_container(TIED, at("near.h5"), &s);
    c = given_container(at("near.h5"));
    assert_null(c->info.arithmetic);
    dq_container_close(c);
}

/* Zeros where the method made codes, the source's values where it did not. */
static bool is_zero(const dq_weight *w)
{
    float row[512];
    bool zero = true;
    assert_true(w->cols <= 512);
    for (int64_t r = 0; r < w->rows; r++) {
        dq_weight_dequantize_rows(row, w, r, r + 1);
        for (int64_t c = 0; c < w->cols; c++) zero = zero && row[c] == 0;
    }
    return zero;
}

TEST(a_head_is_fed_be_it_the_embedding_or_not)
{
    static const char *const source[] = {TIED, UNTIED};
    for (int i = 0; i < 2; i++) {
        fake f = {0};
        dq_err err = {0};
        dq_model *m = NULL;
        if (write_fed(source[i], &f, false, &err) != DQ_OK ||
            dq_model_open(&m, at("fed.h5"), &err) != DQ_OK)
            fail_msg("%s", err.text);
        assert_int_equal(f.head, i == 1);
        assert_int_equal(f.made, 7 * m->n_layers + 1);
        assert_int_equal(m->embed.bits, 6);
        assert_int_equal(is_zero(&m->embed), i == 0);
        assert_int_equal(m->head.bits, i == 1 ? 5 : 6);
        assert_true(is_zero(&m->head));
        dq_model_close(m);
        assert_int_equal(shell("rm", at("fed.h5"), ""), 0);
    }
}

FIXTURES(folder_begin, folder_end)
