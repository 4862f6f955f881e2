/* test_calib_text: how documents become sequences: pieces of ctx ids, even distances, what is too short, what is cut.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "calibrate/calibrate.h"
#include "tasks/documents.h"
#include "tests/rigs/given.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* Words of the pair are one id each, with the space in front. */
static void write_documents(const char *path, const int *words, int n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        fputs("{\"text\": \"", f);
        for (int k = 0; k < words[i]; k++) fputs(" bear", f);
        fputs("\"}\n", f);
    }
    fclose(f);
}

static dq_status read_text(dq_calib_text *out, const int *words, int n, int64_t tokens, int64_t ctx,
                           dq_arena *a, dq_err *err)
{
    const char *path = "calib_text.jsonl";
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/llama");
    write_documents(path, words, n);
    dq_calib_text_read(out, path, m, tokens, ctx, DQ_CALIB_TEXT_ALL, a, err);
    unlink(path);
    dq_model_close(m);
    return err->code;
}

TEST(pieces_of_documents)
{
    static const int words[] = {25, 0, 1, 10, 21};
    /* with the BOS of the template; one id alone is no sequence: the fourth leaves one */
    static const int64_t want[] = {10, 10, 6, 2, 10, 10, 10, 2};
    dq_arena *a = given_arena();
    dq_calib_text t;
    dq_err err = {0};
    assert_int_equal(read_text(&t, words, 5, 1000, 10, a, &err), DQ_OK);
    assert_int_equal(t.found, 61);
    assert_int_equal(t.n_seq, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(t.cu[i + 1] - t.cu[i], want[i]);
        assert_int_equal(t.ids[t.cu[i]], t.ids[0]); /* BOS before every piece */
        for (int64_t k = t.cu[i] + 1; k < t.cu[i + 1]; k++) assert_int_equal(t.ids[k], t.ids[1]);
    }
    assert_int_not_equal(t.ids[0], t.ids[1]);
    assert_int_equal(t.n_ids, t.cu[8]);
    assert_int_equal(t.requested, 1000);
    assert_int_equal(strlen(t.sha256), 64);
}

/* Never more than was requested; the last piece is cut for it, and left out where one id would be all of it: that has no
 * context. */
TEST(as_many_as_requested)
{
    static const int words[] = {100, 100, 100, 100};
    for (int64_t tokens = 1; tokens <= 400; tokens += 7) {
        dq_arena *a = given_arena();
        dq_calib_text t;
        dq_err err = {0};
        assert_int_equal(read_text(&t, words, 4, tokens, 10, a, &err), DQ_OK);
        const int64_t want = tokens > 1 && tokens % 10 == 1 ? tokens - 1 : tokens;
        assert_int_equal(t.n_ids, want);
        assert_int_equal(t.n_seq, (want + 9) / 10);
        assert_int_equal(t.cu[t.n_seq], want);
    }
}

TEST(defaults_and_limits)
{
    static const int words[] = {30, 0};
    dq_arena *a = given_arena();
    dq_calib_text t;
    dq_err err = {0};
    assert_int_equal(read_text(&t, words, 1, 0, 0, a, &err), DQ_OK);
    assert_int_equal(t.ctx, 512);
    assert_int_equal(t.requested, 16384);
    assert_int_equal(read_text(&t, words, 1, 0, 513, a, &err), DQ_USAGE);
    err = (dq_err){0};
    assert_int_equal(read_text(&t, words + 1, 1, 0, 0, a, &err), DQ_DAMAGED);
    assert_non_null(strstr(err.text, "holds no text"));
}

/* Documents of the same word are copies where they have the same length; one that repeats a word has few runs of its own. */
TEST(copies_are_counted)
{
    static const int words[] = {25, 40, 25, 40, 30};
    dq_arena *a = given_arena();
    dq_calib_text t, other;
    dq_err err = {0};
    int64_t n;
    assert_int_equal(read_text(&t, words, 5, 1000, 100, a, &err), DQ_OK);
    assert_int_equal(t.n_seq, 5);
    assert_int_equal(t.n_clusters, 3);
    assert_int_equal(t.n_copies, 2);
    assert_int_equal(t.cluster[2], 0);
    assert_int_equal(t.cluster[3], 1);
    assert_int_equal(t.cluster[4], 2);
    assert_int_equal(t.n_places, 25 + 40 + 25 + 40 + 30 + 5 - 5 * 15);
    assert_int_equal(t.n_new, 2); /* with BOS in front, and the word alone */
    assert_int_equal(read_text(&other, words + 2, 2, 1000, 100, a, &err), DQ_OK);
    assert_int_equal(dq_calib_text_shared(&n, &t, &other, &err), DQ_OK);
    assert_int_equal(n, 4);
}

/* A file of `mib` MiB whose words count up, so that no two places are the same. */
static void write_large(const char *path, bool lines, int mib)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (long at = 0, i = 0; at < (long)mib << 20; i++)
        at += fprintf(f,
                      lines ? "{\"text\": \"a cold bear [ %ld ] \u00e9 [ %ld ]\"}\n"
                            : "a cold bear [ %ld ] \xc3\xa9 [ %ld ]\n",
                      i, i * i % 1009);
    fclose(f);
}

/* Of a large file little is read, and as many tokens are found; quarters share nothing, and come from all over it. */
TEST(large_files_are_read_in_part)
{
    static const char *const path[] = {"calib_large.txt", "calib_large.jsonl"};
    const unsigned quarter[3] = {5, 2, 8};
    dq_err err = {0};
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/llama");
    for (int k = 0; k < 2; k++) {
        dq_arena *a = given_arena();
        dq_calib_text t, part[3];
        int64_t n;
        write_large(path[k], k == 1, 6);
        for (int i = 0; i < 3; i++) {
            dq_calib_text_read(&part[i], path[k], m, 2000, 100, quarter[i], a, &err);
            assert_int_equal(err.code, DQ_OK);
            assert_int_equal(part[i].n_ids, 2000);
            assert_int_equal(part[i].n_bad, 0);
            assert_true(part[i].bytes > 6 << 20 && part[i].bytes_read < 100000);
            for (int j = 0; j < i; j++) {
                assert_int_equal(dq_calib_text_shared(&n, &part[i], &part[j], &err), DQ_OK);
                assert_int_equal(n, 0);
            }
            assert_int_equal(part[i].n_copies, 0);
            assert_true(part[i].unit[part[i].n_seq - 1] >= part[i].n_units / 8 * (i == 1 ? 3 : 5));
        }
        /* what is asked of it decides: half a million tokens are all there is to a file of this size */
        dq_calib_text_read(&t, path[k], m, 500000, 100, DQ_CALIB_TEXT_ALL, a, &err);
        assert_int_equal(err.code, DQ_OK);
        assert_int_equal(t.bytes_read, t.bytes);
        unlink(path[k]);
    }
    dq_model_close(m);
}

/* Text of which no two places are the same: `dense` bytes with a token for each, then those with one for each word. */
static void put_text(FILE *f, long dense, long bytes, const char *sep)
{
    static const char *const word[] = {" horse", " sheep", " snail", " swan",  " bear", " mouse",
                                       " sees",  " likes", " hears", " river", " tower"};
    uint64_t x = 1;
    for (long at = 0, i = 0; at < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        const char *end = i % 16 ? "" : sep;
        at += at < dense ? fprintf(f, "%016llx%s", (unsigned long long)x, end)
                         : fprintf(f, "%s%s", word[(x >> 33) % 11], end);
    }
}

/* Places of `n` texts, all together, at which a run of DQ_REPEATS_IDS tokens begins that is there for the first time. */
static int64_t count_new(const dq_calib_text *t, int n)
{
    int64_t n_seq = 0, at = 0, places, found;
    dq_err err = {0};
    for (int i = 0; i < n; i++) n_seq += t[i].n_seq;
    dq_repeats_run *run = malloc((size_t)n_seq * sizeof *run);
    assert_non_null(run);
    for (int i = 0; i < n; i++) {
        for (int64_t s = 0; s < t[i].n_seq; s++, at++)
            run[at] =
                (dq_repeats_run){t[i].ids + t[i].cu[s], t[i].cu[s + 1] - t[i].cu[s], (int32_t)at};
    }
    assert_int_equal(dq_repeats_count(&places, &found, run, n_seq, &err), DQ_OK);
    free(run);
    return found;
}

/* Parts share no run of tokens, whichever of them is read whole and whichever in part; the same part is the same. */
TEST(parts_agree_on_quarters)
{
    enum { BYTES = DQ_CALIB_EXCERPT_FROM + 100000, MOST = BYTES / DQ_CALIB_EXCERPT_BYTES };
    static const unsigned quarter[] = {5, 2, 8};
    static const int64_t tokens[][3] = {{16 * MOST, 2000, 2000}, {3000, MOST + 64, 1}};
    const char *path = "calib_uneven.txt";
    dq_err err = {0};
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/llama");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    put_text(f, BYTES / 2, BYTES, "\n"); /* quarters of tokens are not quarters of bytes */
    fclose(f);
    for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++) {
        dq_arena *a = given_arena();
        dq_calib_text part[3];
        int64_t each = 0;
        for (int i = 0; i < 3; i++) {
            dq_calib_text_read(&part[i], path, m, tokens[k][i], 100, quarter[i], a, &err);
            assert_int_equal(err.code, DQ_OK);
            assert_true(part[i].n_ids + 1 >= (tokens[k][i] < MOST * 3 ? tokens[k][i] : MOST * 3));
            assert_int_equal(part[i].bytes_read == part[i].bytes, tokens[k][i] > MOST);
            each += count_new(&part[i], 1);
        }
        assert_int_equal(count_new(part, 3), each);
    }
    unlink(path);
    dq_model_close(m);
}

/* No byte is of two documents, of one part or of several, whatever each asks for, and no character is cut: lines of up to
 * 8000 bytes, regions from 32 bytes on. */
TEST(documents_share_no_byte)
{
    enum { BYTES = DQ_CALIB_EXCERPT_FROM + 100003, MOST = BYTES / DQ_CALIB_EXCERPT_BYTES };
    static const unsigned quarter[] = {5, 2, 8};
    static const int64_t tokens[][3] = {
        {MOST, 2000, 2000}, {3000, MOST, 1}, {MOST - 1, MOST - 1, MOST - 1}, {777, 10000, 20011}};
    static const int64_t ctx[] = {2, 16, 2048};
    char *text = malloc(BYTES), *taken = malloc(BYTES);
    assert_true(text && taken);
    for (long i = 0, line = 0; i < BYTES; i++) { /* of U+00E9 */
        const bool ends = ++line % 2 == 0 && line > i % 8000;
        text[i] = (char)(ends ? '\n' : line % 2 ? 0xc3 : 0xa9);
        if (ends) line = 0;
    }
    for (int k = 0; k < 12; k++) {
        memset(taken, 0, BYTES);
        for (int i = 0; i < 3; i++) {
            dq_arena *a = given_arena();
            dq_calib_excerpt x;
            dq_err err = {0};
            assert_int_equal(dq_calib_excerpt_make(&x, "t.txt", text, BYTES, tokens[k / 3][i],
                                                   ctx[k % 3], quarter[i], 16, a, &err),
                             DQ_OK);
            for (int64_t d = 0; d < x.docs.n; d++) {
                const dq_doc *doc = &x.docs.doc[d];
                if (x.quarters && !(quarter[i] >> d & 1)) continue;
                if (doc->len == 0) continue;
                assert_null(memchr(taken + (doc->text - text), 1, doc->len));
                memset(taken + (doc->text - text), 1, doc->len);
                assert_int_not_equal((unsigned char)doc->text[0], 0xa9);
            }
        }
    }
    free(text);
    free(taken);
}

/* A large .jsonl: `front`, empty documents, and `n` documents of 60 words, with that between and after them. */
static void write_lines(const char *path, const char *front, int n, const char *end)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(front, f);
    for (long at = 0; at <= DQ_CALIB_EXCERPT_FROM;) at += fprintf(f, "{\"text\": \"\"}%s", end);
    for (int i = 0; i < n; i++) {
        fputs("{\"text\": \"", f);
        for (int k = 0; k < 60; k++) fputs(" bear", f);
        fprintf(f, "\"}%s", end);
    }
    fclose(f);
}

static dq_status read_large(dq_calib_text *out, const char *path, int64_t tokens, unsigned part,
                            dq_arena *a, dq_err *err)
{
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/llama");
    *err = (dq_err){0};
    dq_calib_text_read(out, path, m, tokens, 100, part, a, err);
    dq_model_close(m);
    return err->code;
}

/* Text that stands in few places of a large file is found; only where all was read there is none. */
TEST(uneven_text_is_found)
{
    const char *path = "calib_rare.jsonl";
    dq_arena *a = given_arena();
    dq_calib_text t;
    dq_err err;
    write_lines(path, "", 20, "\n");
    assert_int_equal(read_large(&t, path, 2000, DQ_CALIB_TEXT_ALL, a, &err), DQ_OK);
    assert_int_equal(t.n_ids, 20 * 61); /* with the BOS of the template */
    assert_int_equal(read_large(&t, path, 2000, 2, a, &err), DQ_OK);
    assert_int_equal(t.n_ids, 5 * 61);
    write_lines(path, "", 0, "\n");
    assert_int_equal(read_large(&t, path, 2000, DQ_CALIB_TEXT_ALL, a, &err), DQ_DAMAGED);
    assert_non_null(strstr(err.text, "calib_rare.jsonl: holds no text"));
    unlink(path);
}

/* Byte order mark, line ends of two bytes and blank lines are no documents of a large file either. */
TEST(forms_of_large_lines)
{
    static const char *const front[] = {"\xef\xbb\xbf", "\xef\xbb\xbf\r\n \t\n", "\n"};
    static const char *const end[] = {"\n", "\r\n", "\r\n\r\n"};
    const char *path = "calib_forms.jsonl";
    for (int i = 0; i < 3; i++) {
        dq_arena *a = given_arena();
        dq_calib_text t;
        dq_err err;
        write_lines(path, front[i], 20, end[i]);
        assert_int_equal(read_large(&t, path, 1000, DQ_CALIB_TEXT_ALL, a, &err), DQ_OK);
        assert_int_equal(t.n_ids, 1000);
        assert_int_equal(t.n_units, 20 + DQ_CALIB_EXCERPT_FROM / (12 + strlen(end[i])) + 1);
        assert_int_equal(t.unit[t.n_seq - 1] >= t.n_units - 20, true);
    }
    unlink(path);
}

/* One large line is a single text: each part has its quarter of the tokens, whatever is asked for. */
TEST(a_single_large_line)
{
    static const unsigned quarter[] = {5, 2, 8};
    static const int64_t tokens[] = {DQ_CALIB_EXCERPT_FROM, 2000, 2000};
    const char *path = "calib_line.jsonl";
    dq_arena *a = given_arena();
    dq_calib_text part[3];
    int64_t each = 0;
    dq_err err;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("\n{\"text\": \"", f);
    put_text(f, 0, DQ_CALIB_EXCERPT_FROM, "");
    fputs("\"}\n \n", f);
    fclose(f);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(read_large(&part[i], path, tokens[i], quarter[i], a, &err), DQ_OK);
        assert_true(part[i].n_ids == 2000 || (i == 0 && part[i].n_ids > 200000));
        each += count_new(&part[i], 1);
    }
    assert_int_equal(count_new(part, 3), each);
    unlink(path);
}

/* What is ill-formed is placed in the file, however little of it is read. */
TEST(ill_formed_text_is_placed)
{
    enum { HALF = DQ_CALIB_EXCERPT_FROM / 2 + 50000 };
    static const char *const path[] = {"calib_bad.txt", "calib_bad.jsonl"};
    static const int64_t tokens[] = {2000, DQ_CALIB_EXCERPT_FROM};
    for (int i = 0; i < 4; i++) {
        const bool lines = i & 1;
        dq_arena *a = given_arena();
        dq_calib_text t;
        dq_err err;
        FILE *f = fopen(path[lines], "w+");
        assert_non_null(f);
        if (lines) fputs("{\"text\": \"", f);
        put_text(f, 0, HALF, lines ? "\"}\n{\"text\": \"" : "\n");
        put_text(f, 0, HALF, lines ? "\xff\"}\n{\"text\": \"" : "\xff\n");
        if (lines) fputs("\"}\n", f);
        fflush(f);
        assert_int_equal(read_large(&t, path[lines], tokens[i / 2], 8, a, &err), DQ_OK);
        assert_true(t.n_bad > 0 && t.first_bad >= HALF);
        fseek(f, t.first_bad, SEEK_SET);
        assert_int_equal(fgetc(f), 0xff);
        fclose(f);
        unlink(path[lines]);
    }
}

static void hear_share(void *arg, double share)
{
    *(double *)arg += share;
}

/* Draws ids that begin with what `t` begins with, so many sequences at once. Returns n_ids. */
static int64_t sample(int32_t **ids, dq_calib_text *t, const dq_model *m, dq_backend *b,
                      int64_t tokens, int64_t ctx, int64_t at_once, dq_arena *a)
{
    dq_err err = {0};
    double heard = 0;
    assert_int_equal(dq_calib_text_sampled(t, ids, m, tokens, ctx, a, &err), DQ_OK);
    const dq_calib_sampler to = {.m = m,
                                 .b = b,
                                 .text = t,
                                 .ids = *ids,
                                 .at_once = at_once,
                                 .tell = hear_share,
                                 .arg = &heard};
    assert_int_equal(dq_calib_sample(&to, &err), DQ_OK);
    assert_true(fabs(heard - 1) < 1e-9);
    return t->n_ids;
}

/* Ids do not depend on how many sequences run at once; every sequence begins alike and goes on otherwise. */
TEST(a_model_writes_its_text)
{
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/diffllama");
    dq_backend *b = given_backend(2);
    dq_arena *a = given_arena();
    dq_calib_text t, again;
    int32_t *ids, *others;
    assert_int_equal(sample(&ids, &t, m, b, 205, 20, 0, a), 205);
    assert_int_equal(t.n_seq, 11);
    assert_int_equal(t.cu[11] - t.cu[10], 5);
    sample(&others, &again, m, b, 205, 20, 3, a);
    assert_memory_equal(ids, others, 205 * sizeof *ids);
    for (int64_t s = 0; s < t.n_seq; s++) {
        assert_int_equal(ids[t.cu[s]], ids[0]);
        if (s > 0) assert_memory_not_equal(ids + 1, ids + t.cu[s] + 1, 4 * sizeof *ids);
    }
    dq_backend_close(b);
    dq_model_close(m);
}

/* The second ids of many sequences have the frequencies of the softmax after the first. */
TEST(ids_are_drawn_by_softmax)
{
    enum { N = 4000 };
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/llama");
    dq_backend *b = given_backend(2);
    dq_arena *a = given_arena();
    dq_calib_text t;
    int32_t *ids, id, pos = 0, next;
    sample(&ids, &t, m, b, 2 * N, 2, 0, a);
    int *count = dq_alloc(a, (size_t)m->vocab, sizeof *count, &(dq_err){0});
    for (int64_t s = 0; s < N; s++) count[ids[t.cu[s] + 1]]++;
    dq_err err = {0};
    dq_runner *r;
    dq_mat hidden;
    assert_int_equal(dq_runner_new(&r, m, b, &dq_kv_plain, &err), DQ_OK);
    id = ids[0];
    const int32_t seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
    const int64_t cu[] = {0, 1};
    const dq_batch batch = {1, 1, cu, &seq, &id, &pos};
    const dq_pass pass = {.logit = dq_logit_plain,
                          .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32}};
    assert_int_equal(dq_runner_pass(r, &batch, &pass, &hidden, &err), DQ_OK);
    double most = 0;
    for (next = 0; next < m->vocab; next++) {
        double logp;
        b->ops->logprob(b, &logp, NULL, hidden, &m->head, &next, DQ_NUM_F32);
        assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
        const double p = exp(logp), off = (double)count[next] - N * p;
        most = fmax(most, p);
        assert_true(off * off <= 36 * (N * p * (1 - p) + 1)); /* 6 standard deviations */
    }
    assert_true(most > 0.02 && most < 0.98); /* else it would show little */
    dq_runner_free(r);
    dq_backend_close(b);
    dq_model_close(m);
}
