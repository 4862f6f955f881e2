/* Windows of documents and the slices of their ids: what each scheme covers, at random lengths; slices
 * against a search through every earlier pair; documents as files give them.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "tasks/documents.c" /* what is private there */

#include <stdlib.h>
#include <string.h>

enum { MAX_DOCS = 6, MAX_IDS = 300, PREFIX = 999, BOS = 888 };

typedef struct rig {
    dq_arena *a;
    uint32_t seed;
    int32_t ids[MAX_DOCS][MAX_IDS];
    dq_doc_ids doc[MAX_DOCS];
    int64_t n_docs;
    dq_windows w;
} rig;

static int64_t below(rig *x, int64_t n)
{
    x->seed = x->seed * 1664525u + 1013904223u;
    return (int64_t)(x->seed >> 8) % n;
}

/* Documents of up to max_ids ids below `vocab`, some of them empty. */
static void make_docs(rig *x, int64_t max_ids, int64_t vocab)
{
    x->n_docs = 1 + below(x, MAX_DOCS);
    for (int64_t d = 0; d < x->n_docs; d++) {
        x->doc[d] = (dq_doc_ids){.ids = x->ids[d], .n = below(x, max_ids + 1)};
        for (int64_t i = 0; i < x->doc[d].n; i++) x->ids[d][i] = (int32_t)below(x, vocab);
    }
}

static dq_status cut_rig(rig *x, dq_scheme scheme, int64_t ctx, int64_t stride, int64_t limit)
{
    dq_err err = {0};
    dq_window_spec spec = {.scheme = scheme, .n_ctx = ctx, .stride = stride, .limit = limit};
    dq_status s = cut(&x->w, x->doc, x->n_docs, x->n_docs, &spec, PREFIX, BOS, x->a, &err);
    assert_true(s == DQ_OK || s == DQ_MISMATCH);
    return s;
}

/* What is true of windows of any scheme; times[d][i] counts how often id i is scored. */
static void check_windows(const rig *x, dq_scheme scheme, int64_t ctx, int times[][MAX_IDS])
{
    int64_t values = 0, last = 0;
    memset(times, 0, MAX_DOCS * sizeof times[0]);
    for (int64_t i = 0; i < x->w.n; i++) {
        const dq_window *w = &x->w.win[i];
        assert_true(w->n >= 1 && w->n <= ctx && w->n <= x->w.longest);
        assert_true(w->doc >= last && w->doc < x->n_docs);
        assert_int_equal(w->value, values);
        assert_true(dq_window_scored(w) > 0);
        for (int64_t t = 0; t < w->n + w->past; t++) {
            int32_t want = w->at + t < 0 ? PREFIX : x->ids[w->doc][w->at + t];
            if (scheme == DQ_WINDOW_CHUNK && t == 0) want = BOS;
            assert_true(w->at + t < x->doc[w->doc].n);
            assert_int_equal(w->ids[t], want);
            if (t > w->first) times[w->doc][w->at + t]++;
        }
        values += dq_window_scored(w);
        last = w->doc;
    }
    assert_int_equal(values, x->w.n_values);
    assert_int_equal(dq_windows_values(&x->w, x->w.n), values);
}

TEST(test_cover)
{
    rig *x = *case_state;
    int times[MAX_DOCS][MAX_IDS];
    for (int round = 0; round < 600; round++) {
        const dq_scheme scheme = (dq_scheme)(round % DQ_SCHEMES);
        const int64_t ctx = 4 + below(x, 60), stride = 1 + below(x, ctx - 1);
        make_docs(x, round % 3 ? MAX_IDS : 2 * ctx, 500);
        if (cut_rig(x, scheme, ctx, stride, 0) != DQ_OK) continue;
        check_windows(x, scheme, ctx, times);
        int64_t docs = 0;
        for (int64_t d = 0; d < x->n_docs; d++) {
            const int64_t n = x->doc[d].n;
            int64_t scored = 0;
            for (int64_t i = 0; i < n; i++) {
                assert_true(times[d][i] <= 1);
                scored += times[d][i];
            }
            const int64_t want[DQ_SCHEMES] = {n / ctx * (ctx - 1 - ctx / 2), n > 0 ? n - 1 : 0,
                                              n / ctx * (ctx - 1), n, n > ctx ? ctx : 0};
            assert_int_equal(scored, want[scheme]);
            if (scheme != DQ_WINDOW_ROLLING && n > 0) assert_int_equal(times[d][0], 0);
            docs += want[scheme] > 0;
        }
        assert_int_equal(x->w.n_docs, docs);
        assert_int_equal(x->w.n_short, x->n_docs - docs);
    }
}

/* With a context of L - S ids at least; rolling windows are as long as they can be. */
TEST(test_context)
{
    rig *x = *case_state;
    for (int round = 0; round < 200; round++) {
        const int64_t ctx = 4 + below(x, 60), stride = 1 + below(x, ctx - 1);
        const dq_scheme scheme = round % 2 ? DQ_WINDOW_STRIDE : DQ_WINDOW_ROLLING;
        make_docs(x, MAX_IDS, 500);
        if (cut_rig(x, scheme, ctx, stride, 0) != DQ_OK) continue;
        for (int64_t i = 0; i < x->w.n; i++) {
            const dq_window *w = &x->w.win[i];
            const int64_t n = x->doc[w->doc].n;
            if (scheme == DQ_WINDOW_STRIDE) {
                assert_int_equal(w->first, w->at ? ctx - stride - 1 : 0);
                assert_int_equal(w->n, n - w->at < ctx ? n - w->at : ctx);
            } else {
                assert_int_equal(w->n, n < ctx ? n : ctx);
            }
        }
    }
}

/* The worked examples of the sources. */
TEST(test_examples)
{
    rig *x = *case_state;
    x->n_docs = 1;
    x->doc[0] = (dq_doc_ids){.ids = x->ids[0], .n = 7};
    assert_int_equal(cut_rig(x, DQ_WINDOW_STRIDE, 4, 2, 0), DQ_OK);
    const int64_t scored[] = {3, 2, 1};
    assert_int_equal(x->w.n, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(dq_window_scored(&x->w.win[i]), scored[i]);
    x->doc[0].n = 10;
    assert_int_equal(cut_rig(x, DQ_WINDOW_ROLLING, 4, 0, 0), DQ_OK);
    assert_int_equal(x->w.n, 3);
    assert_int_equal(x->w.win[0].ids[0], PREFIX);
    assert_int_equal(x->w.win[2].at, 5);
    assert_int_equal(x->w.win[2].first, 2);
    assert_false(x->w.cut);
    assert_int_equal(cut_rig(x, DQ_WINDOW_ROLLING, 4, 0, 2), DQ_OK);
    assert_true(x->w.cut);
    assert_int_equal(x->w.n_values, 8);
    x->doc[0].n = 1300 / 5;
    assert_int_equal(cut_rig(x, DQ_WINDOW_CHUNK, 512 / 5, 0, 0), DQ_OK);
    assert_int_equal(x->w.n, 2);
    x->doc[0].n = 203;
    assert_int_equal(cut_rig(x, DQ_WINDOW_CHUNK, 102, 0, 0), DQ_MISMATCH);
    for (int s = 0; s < DQ_SCHEMES; s++) {
        x->doc[0].n = 0;
        assert_int_equal(cut_rig(x, (dq_scheme)s, 4, 0, 0), DQ_MISMATCH);
    }
}

/* How often the corpus has a pair, without document `but`. */
static int64_t occurs(const rig *x, int64_t but, int32_t a, int32_t b, int64_t *ids)
{
    int64_t n = 0;
    *ids = 0;
    for (int64_t d = 0; d < x->n_docs; d++) {
        const dq_doc_ids *o = &x->doc[d];
        const int64_t end = o->n - o->n_after;
        if (d == but || end <= o->n_before) continue;
        *ids += end - o->n_before;
        for (int64_t i = o->n_before + 1; i < end; i++) n += o->ids[i - 1] == a && o->ids[i] == b;
    }
    return n;
}

static bool hit(const rig *x, const dq_window *w, int64_t t, bool own, double threshold)
{
    const int32_t a = w->ids[t - 1], b = w->ids[t];
    int64_t ids;
    const double n = (double)occurs(x, own ? w->doc : -1, a, b, &ids);
    const double max = threshold * (double)ids / 1e10;
    for (int64_t i = 1; i < t; i++) {
        if (w->ids[i - 1] == a && w->ids[i] == b) return !(n > (max > 1 ? max : 1));
    }
    return false;
}

TEST(test_slices)
{
    rig *x = *case_state;
    int64_t hits = 0, all = 0;
    for (int round = 0; round < 150; round++) {
        const dq_scheme scheme = (dq_scheme)(round % DQ_SCHEMES);
        const bool own = round % 2 == 0;
        const double threshold = round % 3 ? 8e7 : 1250;
        dq_slices s;
        dq_err err = {0};
        make_docs(x, MAX_IDS, 3 + below(x, 40));
        for (int64_t d = 0; d < x->n_docs; d++) {
            x->doc[d].n_before = below(x, 2);
            x->doc[d].n_after = below(x, 2);
        }
        if (cut_rig(x, scheme, 8 + below(x, 60), 0, 0) != DQ_OK) continue;
        assert_int_equal(
            dq_slices_make(&s, &x->w, own ? NULL : x->doc, x->n_docs, threshold, x->a, &err),
            DQ_OK);
        for (int64_t i = 0; i < x->w.n; i++) {
            const dq_window *w = &x->w.win[i];
            for (int64_t k = 0; k < dq_window_scored(w); k++) {
                const bool want = hit(x, w, w->first + 1 + k, own, threshold);
                assert_int_equal(s.hit[w->value + k], want);
                hits += want;
                all++;
            }
        }
    }
    assert_true(hits > all / 50 && hits < all / 2); /* both answers were asked for */
}

/* A B C A B D A B: hits at 4 and 7 where nothing is frequent. */
TEST(test_slice_example)
{
    rig *x = *case_state;
    static const int32_t ids[] = {1, 2, 3, 1, 2, 4, 1, 2};
    static const int32_t often[] = {1, 2, 1, 2, 1, 2};
    const dq_doc_ids corpus = {.ids = often, .n = 6};
    dq_slices s;
    dq_err err = {0};
    x->n_docs = 1;
    x->doc[0] = (dq_doc_ids){.ids = ids, .n = 8};
    assert_int_equal(cut_rig(x, DQ_WINDOW_BLOCK, 8, 0, 0), DQ_OK);
    dq_slices_make(&s, &x->w, NULL, 0, 1250, x->a, &err);
    for (int i = 0; i < 7; i++) assert_int_equal(s.hit[i], i == 3 || i == 6);
    assert_int_equal(dq_slices_make(&s, &x->w, &corpus, 1, 1250, x->a, &err), DQ_OK);
    for (int i = 0; i < 7; i++) assert_false(s.hit[i]);
}

TEST(test_documents)
{
    rig *x = *case_state;
    static const char lines[] = "{\"text\": \"one two\"}\n\n  \r\n{\"text\": \"\", \"id\": 3}\n"
                                "{\"text\": \" = A = \\n b c \\n\"}";
    static const struct {
        const char *text;
        int64_t words;
    } counts[] = {{"", 1},
                  {"a", 1},
                  {" ", 2},
                  {"a b", 2},
                  {" = A = \n b c \n", 7},
                  {"a\u00a0b\u2003 c", 3},
                  {"a\x1c\x1f b", 2}};
    dq_docs d = {0};
    dq_err err = {0};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        assert_int_equal(count_words(counts[i].text, strlen(counts[i].text)), counts[i].words);
    assert_int_equal(dq_documents_add(&d, "a.jsonl", lines, sizeof lines - 1, x->a, &err), DQ_OK);
    assert_int_equal(dq_documents_add(&d, "b.txt", "x\xff y", 4, x->a, &err), DQ_OK);
    assert_int_equal(dq_documents_add(&d, "c.txt", "", 0, x->a, &err), DQ_OK);
    assert_int_equal(d.n, 5);
    assert_int_equal(d.doc[0].line, 1);
    assert_int_equal(d.doc[2].line, 5);
    assert_int_equal(d.doc[2].words, 7);
    assert_int_equal(d.doc[3].words, 2);
    assert_int_equal(d.doc[3].len, 4);
    assert_int_equal(d.n_bad, 1);
    assert_int_equal(d.first_bad, 1);
    assert_string_equal(d.bad_path, "b.txt");
    static const char marked[] = "\xef\xbb\xbf{\"text\": \"a\"}";
    assert_int_equal(dq_documents_add(&d, "m.jsonl", marked, sizeof marked - 1, x->a, &err), DQ_OK);
    assert_int_equal(dq_documents_add(&d, "m.txt", marked, sizeof marked - 1, x->a, &err), DQ_OK);
    assert_int_equal(d.doc[5].len, 1); /* of a form the mark is no part, of a text it is */
    assert_int_equal(d.doc[6].len, sizeof marked - 1);
    static const char *const broken[] = {"{\"text\": 3}", "{\"txt\": \"a\"}", "[]",
                                         "{\"text\": \"a\""};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        dq_err e = {0};
        assert_int_equal(dq_documents_add(&d, "c.jsonl", broken[i], strlen(broken[i]), x->a, &e),
                         DQ_DAMAGED);
        assert_non_null(strstr(e.text, "c.jsonl: line 1"));
    }
    assert_int_equal(d.n, 7);
}

/* Documents that are copies, in whole, are one piece; so are windows of a single document. */
TEST(test_copies)
{
    rig *x = *case_state;
    enum { IDS = 40 };
    const int same[] = {0, 0, 1, 0, 2, 1}, want[] = {0, 0, 1, 0, 2, 1};
    x->n_docs = MAX_DOCS;
    for (int d = 0; d < MAX_DOCS; d++) {
        x->doc[d] = (dq_doc_ids){.ids = x->ids[d], .n = IDS};
        for (int i = 0; i < IDS; i++) x->ids[d][i] = i;
        x->ids[d][IDS - 1] += same[d]; /* the last window alone differs */
    }
    assert_int_equal(cut_rig(x, DQ_WINDOW_BLOCK, 10, 0, 0), DQ_OK);
    assert_int_equal(x->w.n, 4 * MAX_DOCS);
    assert_int_equal(x->w.n_clusters, 3);
    assert_int_equal(x->w.n_copies, 3);
    for (int64_t i = 0; i < x->w.n; i++) assert_int_equal(x->w.cluster[i], want[x->w.win[i].doc]);
    x->n_docs = 1;
    for (int i = 0; i < IDS; i++) x->ids[0][i] = i < 20 ? 0 : i;
    assert_int_equal(cut_rig(x, DQ_WINDOW_BLOCK, 10, 0, 0), DQ_OK);
    assert_int_equal(x->w.n_clusters, 3);
    assert_int_equal(x->w.cluster[1], 0);
    assert_int_equal(x->w.cluster[3], 2);
}

static int begin(void **state)
{
    rig *x = calloc(1, sizeof *x);
    if (!x || !(x->a = dq_arena_new())) return -1;
    x->seed = 7;
    *state = x;
    return 0;
}

static int end(void **state)
{
    rig *x = *state;
    dq_arena_free(x->a);
    free(x);
    return 0;
}

CASE_FIXTURES(begin, end)

/* A sketch is the same however its text is cut into runs that overlap by what a place has, and finds that share of it. */
TEST(sketches)
{
    enum { N = 4000 };
    static int32_t ids[N], other[N];
    dq_repeats_sketch whole = {.n = 0}, parts = {.n = 0}, read, few = {.n = 0};
    bool found[DQ_REPEATS_SKETCH] = {false}, none[DQ_REPEATS_SKETCH] = {false};
    int n = 0, stray = 0;
    dq_random r = dq_random_of(1, 0);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)dq_random_below(&r, 640);
    for (int i = 0; i < N; i++) other[i] = (int32_t)dq_random_below(&r, 640);
    dq_repeats_sketch_add(&whole, ids, N);
    assert_int_equal(whole.n, DQ_REPEATS_SKETCH);
    dq_repeats_sketch_add(&parts, ids + 1000 - DQ_REPEATS_IDS + 1, N - 1000 + DQ_REPEATS_IDS - 1);
    dq_repeats_sketch_add(&parts, ids, 1000);
    assert_memory_equal(&whole, &parts, sizeof whole);
    json_t *text = dq_repeats_sketch_json(&whole);
    assert_true(dq_repeats_sketch_read(&read, text));
    assert_memory_equal(&whole, &read, sizeof whole);
    json_decref(text);
    dq_repeats_sketch_find(found, &whole, ids, N / 10);
    dq_repeats_sketch_find(none, &whole, other, N);
    for (int i = 0; i < DQ_REPEATS_SKETCH; i++) n += found[i], stray += none[i];
    assert_true(n >= 10 && n <= 42); /* 25.6 are expected, with a standard deviation of 4.8 */
    assert_int_equal(stray, 0);
    dq_repeats_sketch_add(&few, ids, DQ_REPEATS_IDS);
    assert_int_equal(few.n, 1);
    static const char *const bad[] = {"0", "000000000000000g", "00000000000000020000000000000001"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        text = json_string(bad[i]);
        assert_false(dq_repeats_sketch_read(&read, text));
        json_decref(text);
    }
    assert_false(dq_repeats_sketch_read(&read, NULL));
}
