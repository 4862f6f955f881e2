/* test_export_gguf: a GGUF file that was written holds the container's values to the last bit, in the type that its codes ask
 * for; what no type holds is refused by name, and a failure leaves no file.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "export/export.h"
#include "template/chat_template.c" /* what is private there */
#include "tests/rigs/test_folder.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* The plain model of calib/pair; its words are tokens without merges, which no GGUF file says, so bytes alone are. */
static const char *plain(void)
{
    static const char from[] = "\"ignore_merges\": true";
    size_t len;
    if (dq_file_exists(at("plain"))) return at("plain");
    assert_int_equal(shell("cp -r", DQ_TEST_DIR "/../calib/pair/llama", at("plain")), 0);
    char *text = bytes_of(at("plain/tokenizer.json"), &len), *flag = strstr(text, from);
    assert_non_null(flag);
    memcpy(flag, "\"ignore_merges\":false", sizeof from - 1);
    put_bytes(at("plain/tokenizer.json"), text, len);
    free(text);
    return at("plain");
}

static dq_status try_export(const char *to, const dq_export_settings *set, dq_err *err)
{
    dq_model *m = NULL;
    dq_export *x = NULL;
    *err = (dq_err){0};
    if (dq_model_open(&m, at("m.h5"), err) == DQ_OK && dq_export_open(&x, m, set, err) == DQ_OK &&
        dq_export_check(x, at(to), false, err) == DQ_OK && dq_export_write(x, NULL, err) == DQ_OK)
        dq_export_commit(x, err);
    dq_export_close(x);
    dq_model_close(m);
    return err->code;
}

static dq_export_settings exact(void)
{
    return (dq_export_settings){.form = DQ_EXPORT_GGUF, .dtype = DQ_F32, .dq_version = "test"};
}

static void quantize(const char *source, int bits, int64_t group, dq_scale_mode mode)
{
    dq_quantize_settings s = settings_of(bits, group, mode);
    s.skip = "down_proj"; /* of plain: 344 columns */
    make_container(source, at("m.h5"), &s);
}

static double worst_in_steps(const float *a, const float *b, const dq_weight *w, int64_t row)
{
    double worst = 0;
    if (!dq_weight_is_coded(w)) return memcmp(a, b, (size_t)w->cols * sizeof *a) ? INFINITY : 0;
    for (int64_t c = 0; c < w->cols; c++) {
        const float scale = dq_weight_scale(w, w->scale_rows == 1 ? 0 : row, c / w->group_size);
        worst = fmax(worst, fabs((double)a[c] - (double)b[c]) / fabs((double)scale));
    }
    return worst;
}

/* Every tensor of the container is there with its values, or off by so many steps; q_proj has the type. */
static void check_file(const char *to, const char *type, double off)
{
    dq_err err = {0};
    dq_model *m;
    dq_checkpoint *c;
    if (dq_model_open(&m, at("m.h5"), &err) != DQ_OK ||
        dq_checkpoint_open(&c, at(to), &err) != DQ_OK ||
        dq_checkpoint_source(c).load(c, &err) != DQ_OK)
        fail_msg("%s", err.text);
    const int64_t n = c->count;
    assert_int_equal(n, dq_container_source(m->container).count);
    for (int64_t i = 0; i < n; i++) {
        const char *name = c->tensor[i].name;
        dq_weight got, want;
        dq_source source = dq_container_source(m->container);
        assert_true(dq_checkpoint_weight(c, name, &got));
        assert_true(source.find(source.arg, name, &want));
        assert_true(got.rows == want.rows && got.cols == want.cols);
        float *a = malloc((size_t)got.cols * sizeof *a), *b = malloc((size_t)got.cols * sizeof *b);
        for (int64_t r = 0; r < got.rows; r++) {
            dq_weight_dequantize_rows(a, &got, r, r + 1);
            dq_weight_dequantize_rows(b, &want, r, r + 1);
            if (off <= 0 ? memcmp(a, b, (size_t)got.cols * sizeof *a) != 0
                         : worst_in_steps(a, b, &want, r) > off)
                fail_msg("%s, %s: row %d", to, name, (int)r);
        }
        free(a);
        free(b);
        if (type && strstr(name, "q_proj.weight"))
            assert_string_equal(dq_checkpoint_type(c, i), type);
    }
    dq_checkpoint_close(c);
    dq_model_close(m);
}

TEST(test_values)
{
    static const struct {
        int bits;
        int64_t group;
        dq_scale_mode mode;
        const char *type;
    } rows[] = {
        {2, 32, DQ_ABSMAX, "Q4_0"},
        {3, 64, DQ_SEARCH, "Q4_0"},
        {4, 32, DQ_SEARCH, "Q4_0"},
        {4, DQ_GROUP_ROW, DQ_SEARCH, "Q4_0"},
        {5, 32, DQ_SEARCH, "Q5_0"},
        {6, 128, DQ_ABSMAX, "Q8_0"},
        {7, 32, DQ_SEARCH, "Q8_0"},
        {8, 32, DQ_SEARCH, "Q8_0"},
        {8, DQ_GROUP_TENSOR, DQ_ABSMAX, "Q8_0"},
        {2, 32, DQ_ASYM, "Q4_0"},
        {3, 32, DQ_ASYM, "Q4_0"},
        {4, 32, DQ_ASYM, "Q4_1"},
        {5, 96, DQ_ASYM, "Q5_1"},
        {7, 32, DQ_ASYM, "Q8_0"},
    };
    const dq_export_settings set = exact();
    dq_err err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[32], partial[64];
        snprintf(name, sizeof name, "m%zu.gguf", i);
        snprintf(partial, sizeof partial, "%s.partial", name);
        quantize(plain(), rows[i].bits, rows[i].group, rows[i].mode);
        if (try_export(name, &set, &err) != DQ_OK) fail_msg("%s", err.text);
        const bool lows = rows[i].type[3] == '1'; /* in f16 */
        check_file(name, rows[i].type, lows ? 1.0001 / 64 : 0);
        assert_false(dq_file_exists(at(partial)));
    }
}

/* Of one zero point a tensor: the lowest value is rounded alike in every block. */
TEST(test_lowest_values)
{
    const dq_export_settings set = exact();
    int n = 0, wider = 0;
    dq_err err;
    for (int bits = 4; bits <= 5; bits++) {
        quantize(plain(), bits, DQ_GROUP_TENSOR, DQ_ASYM);
        const char *to = bits == 4 ? "low4.gguf" : "low5.gguf";
        if (try_export(to, &set, &err) != DQ_OK) fail_msg("%s", err.text);
        dq_checkpoint *c = given_checkpoint(at(to));
        for (int64_t i = 0; i < c->count; i++) {
            n += strcmp(dq_checkpoint_type(c, i), bits == 4 ? "Q4_1" : "Q5_1") == 0;
            wider += strcmp(dq_checkpoint_type(c, i), bits == 4 ? "Q5_0" : "Q8_0") == 0;
        }
        dq_checkpoint_close(c);
        check_file(to, NULL, 1.0001 / 64);
    }
    assert_true(n > 0 && wider == 0);
}

/* A tokenizer of the 256 bytes. */
static void put_bytes_tokenizer(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"model\": {\"type\": \"BPE\", \"vocab\": {", f);
    for (unsigned b = 0; b < 256; b++) {
        char text[3] = {0};
        dq_utf8_of_byte(text, (uint8_t)b);
        const bool escaped = text[0] == '"' || text[0] == '\\';
        fprintf(f, "%s\"%s%s\": %u", b ? ", " : "", escaped ? "\\" : "", text, b);
    }
    fputs("}, \"merges\": []}, "
          "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}}",
          f);
    assert_int_equal(fclose(f), 0);
}

/* A golden model, which has no tokenizer, with one. */
static const char *with_tokens(const char *name)
{
    static const char config[] = "{\"eos_token\": \"b\"}";
    char path[256];
    snprintf(path, sizeof path, DQ_TEST_DIR "/golden/models/%s", name);
    shell("rm -rf", at("golden"), "");
    assert_int_equal(shell("cp -r", path, at("golden")), 0);
    /* of llama3, the one original length that dq reads from divisors */
    assert_int_equal(shell("sed -i 's/\\(original_max_position_embeddings\": \\)64,*$/\\18192/'",
                           at("golden/config.json"), ""),
                     0);
    put_bytes_tokenizer(at("golden/tokenizer.json"));
    put_bytes(at("golden/tokenizer_config.json"), config, sizeof config - 1);
    return at("golden");
}

/* The file is the same model: biases and rotary scaling too. */
TEST(test_models)
{
    static const struct {
        const char *name, *type;
    } rows[] = {{"llama-bf16-bias", "BF16"}, {"llama-f16-linear", "F16"}, {"llama-yarn", "BF16"},
                {"llama-bf16-far", "BF16"},  {"llama-f32", "F32"},        {"mistral-f16", "F16"},
                {"qwen2-bf16", "BF16"},      {"qwen3-f32", "F32"},        {"smollm3-bf16", "BF16"}};
    const dq_export_settings set = exact();
    dq_err err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_model *a, *b;
        with_tokens(rows[i].name);
        /* of layers without positions, the ones that llama.cpp knows */
        assert_int_equal(shell("sed -i 's/\\(no_rope_layer_interval\": \\)2/\\14/'",
                               at("golden/config.json"), ""),
                         0);
        quantize(at("golden"), 16, 32, DQ_SEARCH);
        remove(at("same.gguf"));
        if (try_export("same.gguf", &set, &err) != DQ_OK) fail_msg("%s", err.text);
        check_file("same.gguf", rows[i].type, 0);
        if (dq_model_open(&a, at("m.h5"), &err) != DQ_OK ||
            dq_model_open(&b, at("same.gguf"), &err) != DQ_OK)
            fail_msg("%s: %s", rows[i].name, err.text);
        assert_true(a->dim == b->dim && a->ffn == b->ffn && a->n_layers == b->n_layers &&
                    a->vocab == b->vocab && a->max_positions == b->max_positions &&
                    a->tied == b->tied && a->map.n_q == b->map.n_q && a->map.n_kv == b->map.n_kv &&
                    a->map.head_dim == b->map.head_dim && a->rope.dim == b->rope.dim);
        assert_float_equal(a->norm_eps, b->norm_eps, 0);
        assert_float_equal(a->rope.amplitude, b->rope.amplitude, 1e-6f);
        for (int k = 0; k < a->rope.dim / 2; k++)
            assert_float_equal(a->rope.inv_freq[k] / b->rope.inv_freq[k], 1, 1e-6f);
        const dq_layer *x = &a->layer[0], *y = &b->layer[0];
        assert_true((x->q_bias == NULL) == (y->q_bias == NULL));
        if (x->q_bias)
            assert_memory_equal(x->q_bias, y->q_bias, (size_t)x->q.rows * sizeof *x->q_bias);
        for (int l = 0; l < a->n_layers; l++)
            assert_true((a->layer[l].rope == &a->no_rope) == (b->layer[l].rope == &b->no_rope));
        dq_model_close(a);
        dq_model_close(b);
    }
}

/* chat_template.jinja stands before what tokenizer_config.json has, in the file as in the folder. */
TEST(test_chat_template)
{
    static const char text[] = "{{ messages[0].content }}, {{ eos_token }}\n";
    static const char config[] = "{\"bos_token\": \"<bos>\", \"eos_token\": \"<bos>\", "
                                 "\"chat_template\": \"other\"}";
    const dq_chat_message m = {"user", "Hi"};
    const dq_export_settings set = exact();
    dq_err err = {0};
    assert_int_equal(shell("cp -r", plain(), at("chat")), 0);
    put_bytes(at("chat/chat_template.jinja"), text, sizeof text - 1);
    put_bytes(at("chat/tokenizer_config.json"), config, sizeof config - 1);
    quantize(at("chat"), 4, 32, DQ_ABSMAX);
    remove(at("chat.gguf"));
    if (try_export("chat.gguf", &set, &err) != DQ_OK) fail_msg("%s", err.text);
    dq_model *model = given_model("%s", at("chat.gguf"));
    dq_chat_template *t;
    char *out;
    size_t len;
    if (dq_chat_template_of(&t, model, &err) != DQ_OK ||
        render_template(t, &m, 1, false, &out, &len, &err) != DQ_OK)
        fail_msg("%s", err.text);
    assert_string_equal(out, "Hi, <bos>");
    dq_block_free(out);
    dq_chat_template_free(t);
    dq_model_close(model);
}

static void expect(dq_export_settings set, const char *what)
{
    dq_err err;
    assert_int_equal(try_export("gone.gguf", &set, &err), DQ_MISMATCH);
    if (!strstr(err.text, what)) fail_msg("\"%s\" is not in: %s", what, err.text);
    assert_false(dq_file_exists(at("gone.gguf")));
    assert_false(dq_file_exists(at("gone.gguf.partial")));
    set.values = true;
    if (strstr(what, "no type of ggml")) {
        if (try_export("values.gguf", &set, &err) != DQ_OK) fail_msg("%s", err.text);
        check_file("values.gguf", "F32", 0);
        remove(at("values.gguf"));
    } else {
        assert_int_equal(try_export("gone.gguf", &set, &err), DQ_MISMATCH);
    }
}

/* The rig's model after one change of a file of it, by sed. */
static void expect_changed(const char *name, const char *file, const char *change, const char *what)
{
    char path[64], command[256];
    with_tokens(name);
    snprintf(path, sizeof path, "golden/%s", file);
    snprintf(command, sizeof command, "sed -i '%s'", change);
    assert_int_equal(shell(command, at(path), ""), 0);
    quantize(at("golden"), 16, 32, DQ_SEARCH);
    expect(exact(), what);
}

TEST(test_refused)
{
    static const char original[] = "s/\\(original_max_position_embeddings\": \\)[0-9]*/\\1";
    char change[96];
    snprintf(change, sizeof change, "%s1e12/", original);
    expect_changed("llama-yarn", "config.json", change, "embeddings\": 1e+12 cannot be said");
    snprintf(change, sizeof change, "%s64.5/", original);
    expect_changed("llama-yarn", "config.json", change, "embeddings\": 64.5 cannot be said");
    /* what dq itself does not read */
    expect_changed("llama-f32", "tokenizer.json", "s/^{/{\"version\": \"2.0\", /",
                   "tokenizer.json: version \"2.0\" is not supported");
    expect_changed("llama-f32", "tokenizer_config.json",
                   "s/^{/{\"added_tokens_decoder\": {\"1\": {\"content\": \"HA\"}}, /",
                   "added token \"HA\" has id 1 where the vocabulary puts it at 256");
    quantize(plain(), 4, 40, DQ_SEARCH);
    expect(exact(), "groups of 40 codes are no whole number of blocks of 32, and no type of ggml");
    quantize(plain(), 8, 32, DQ_ASYM);
    expect(exact(), "need 9, and no type of ggml");
    dq_quantize_settings s = settings_of(4, 32, DQ_SEARCH);
    s.scale_dtype = DQ_F32;
    s.skip = "down_proj";
    make_container(plain(), at("m.h5"), &s);
    expect(exact(), "scales that f16 does not hold, and no type of ggml");
    quantize(DQ_TEST_DIR "/golden/models/llama-f32", 16, 32, DQ_SEARCH);
    expect(exact(), "has no tokenizer.json");
    quantize(DQ_TEST_DIR "/golden/models/diffllama-f32", 4, 32, DQ_SEARCH);
    expect(exact(), "architecture diffllama");
    quantize(DQ_TEST_DIR "/golden/models/plain-norm", 4, 32, DQ_SEARCH);
    expect(exact(), "architecture diff-plain");
    expect_changed("mistral-f16", "config.json",
                   "s/\"sliding_window\": null/\"sliding_window\": 8/",
                   "llama.cpp has no windows of attention in it");
    quantize(DQ_TEST_DIR "/golden/models/smollm3-bf16", 16, 32, DQ_SEARCH);
    expect(exact(), "architecture smollm3: llama.cpp has no layers without positions other than");
    quantize(DQ_TEST_DIR "/golden/models/llama-dynamic", 16, 32, DQ_SEARCH);
    expect(exact(), "rope type \"dynamic\" has no form");
    quantize(DQ_TEST_DIR "/golden/models/llama-yarn-factor", 16, 32, DQ_SEARCH);
    expect(exact(), "key \"attention_factor\" of yarn: 1.25");
}

/* Words by which llama.cpp changes tokens are in no name. */
TEST(test_name)
{
    static const struct {
        const char *folder;
        bool named;
    } rows[] = {{"my-Phi-3-mini", false}, {"PHI3", false}, {"Modern-BERT", false}, {"phi-2", true}};
    const dq_export_settings set = exact();
    dq_err err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *bytes;
        size_t len;
        bool found = false;
        assert_int_equal(shell("cp -r", with_tokens("llama-f32"), at(rows[i].folder)), 0);
        quantize(at(rows[i].folder), 16, 32, DQ_SEARCH);
        remove(at("name.gguf"));
        if (try_export("name.gguf", &set, &err) != DQ_OK) fail_msg("%s", err.text);
        bytes = bytes_of(at("name.gguf"), &len);
        const size_t key = strlen("general.name");
        for (size_t k = 0; k + key <= len && !found; k++)
            found = memcmp(bytes + k, "general.name", key) == 0;
        free(bytes);
        if (found != rows[i].named) fail_msg("%s", rows[i].folder);
    }
}

TEST(test_threads)
{
    const dq_export_settings set = exact();
    dq_err err;
    quantize(plain(), 4, 64, DQ_ASYM);
    assert_int_equal(try_export("one.gguf", &set, &err), DQ_OK);
#ifdef _OPENMP
    omp_set_num_threads(5);
#endif
    assert_int_equal(try_export("five.gguf", &set, &err), DQ_OK);
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    assert_true(same_bytes(at("one.gguf"), at("five.gguf")));
}

/* Ctrl-C after the first block, in a process of its own: the flag stays. OpenMP's threads do not survive fork, so this
 * runs first. */
static void stop(void *arg, double done, double total, const char *what)
{
    (void)arg, (void)done, (void)total, (void)what;
    raise(SIGINT);
}

TEST(test_stopped)
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const dq_export_progress p = {stop, NULL};
        const dq_export_settings set = exact();
        dq_err err = {0};
        dq_model *m = NULL;
        dq_export *x = NULL;
        dq_os_catch_signals();
        quantize(plain(), 4, 32, DQ_SEARCH);
        const bool began = dq_model_open(&m, at("m.h5"), &err) == DQ_OK &&
                           dq_export_open(&x, m, &set, &err) == DQ_OK &&
                           dq_export_check(x, at("stopped.gguf"), false, &err) == DQ_OK;
        const dq_status got = dq_export_write(x, &p, &err);
        dq_export_close(x);
        _exit(began && got == DQ_STOPPED ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_false(dq_file_exists(at("stopped.gguf")));
    assert_false(dq_file_exists(at("stopped.gguf.partial")));
}

FIXTURES(folder_begin, folder_end)
