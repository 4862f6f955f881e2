/* test_simt_far: addresses at 40 000 rows of 64K keys or columns. Arrays take memory only where they are touched,
 * and of a grid only the corners run: the first, middle and last block of each axis. What they write must be
 * where 64-bit arithmetic says; a pointer that went wrong finds zeros, poison or no memory.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"
#include "tests/simt/check.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"

#include <math.h>

enum : int64_t { ROWS = 40000, COLS = 65536, KEYS = 65536, MANY = ROWS * COLS };

/* Device memory, zero, which the test reads in place. */
template <class T> struct far {
    T *p;
    explicit far(int64_t n, bool filled = false, T value = T())
    {
        assert_int_equal(cudaMalloc((void **)&p, (size_t)n * sizeof(T)), cudaSuccess);
        for (int64_t i = 0; i < n && (filled || (size_t)n * sizeof(T) < 256u << 20); i++)
            p[i] = value;
    }
    ~far()
    {
        cudaFree(p);
    }
    far(const far &) = delete;
    T &operator[](int64_t i) const
    {
        return p[i];
    }
    void fill(int64_t from, int64_t n, T value) const
    {
        for (int64_t i = from; i < from + n; i++) p[i] = value;
    }
};

static void run(cudaError_t e)
{
    assert_int_equal(e, cudaSuccess);
    const cudaError_t ran = cudaDeviceSynchronize();
    if (ran != cudaSuccess) fail_msg("%s", dq_simt_report());
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-4 * fabs(want))) fail_msg("%.9g, expected %.9g", got, want);
}

/* Rows of blocks that run; the index that the last thread of the last block of a grid over n values handles last. */
static const int64_t some_rows[3] = {0, ROWS / 2, ROWS - 1};
static int64_t last_of(int64_t n)
{
    const int64_t grid = (n + 255) / 256 < 65536 ? (n + 255) / 256 : 65536, step = 256 * grid;
    return (n - step) / step * step + step - 1;
}

/* --------------------------------------------------------------------------------- rows, products */

TEST(test_rows)
{
    far<float> x(MANY), y(MANY), gain(COLS);
    far<int32_t> ids(ROWS, true, 1);
    far<int64_t> index(ROWS);
    dq_cuda_weight table = {};
    table.kind = DQ_STORED_F32;
    table.rows = ROWS;
    table.cols = COLS;
    table.data = x.p;
    for (int64_t r : some_rows) {
        ids[r] = (int32_t)(ROWS - 1 - r);
        index[r] = ROWS - 1 - r;
        x.fill(r * COLS, COLS, (float)(r + 1));
    }
    run(dq_rows_embed(y.p, &table, ids.p, 1.0f, ROWS, NULL));
    for (int64_t r : some_rows)
        if (r != ROWS / 2) near(y[(r + 1) * COLS - 1], (double)(ROWS - r));
    run(dq_rows_gather(y.p, x.p, index.p, ROWS, COLS, NULL));
    for (int64_t r : some_rows)
        if (r != ROWS / 2) near(y[(r + 1) * COLS - 1], (double)(ROWS - r));
    run(dq_rows_rms_norm(y.p, x.p, NULL, 1e-5f, ROWS, COLS, NULL));
    for (int64_t r : some_rows) near(y[(r + 1) * COLS - 1], 1);
    const float line[4] = {0, 0, 1, 0.5f};
    run(dq_rows_polynorm(y.p, x.p, line, ROWS, COLS, NULL));
    for (int64_t r : some_rows) near(y[(r + 1) * COLS - 1], 1.5 * (double)(r + 1));
    y.fill((ROWS - 1) * COLS, COLS, 1.0f);
    run(dq_rows_hadamard(y.p, MANY / 64, 64, 0.5f, NULL));
    near(y[MANY - 64], 32);
    assert_true(y[MANY - 1] == 0);
    far<uint32_t> found(1);
    y[MANY - 1] = NAN;
    run(dq_rows_first_bad(found.p, y.p, ROWS, COLS, NULL));
    assert_int_equal(found[0], 0xffffffffu - (uint32_t)(ROWS - 1));
}

TEST(test_rope)
{
    const int64_t half = COLS / 2, last = last_of(ROWS * half), row = last / half, j = last % half;
    far<float> table(MANY), x(MANY), inv(half, true, 0.001f);
    far<int32_t> pos(ROWS);
    assert_true(row > 39000);
    pos[row] = 500;
    run(dq_rows_rope_table(table.p, pos.p, inv.p, 1.0f, ROWS, half, NULL));
    near(table[row * COLS + j], cos(0.5));
    near(table[row * COLS + half + j], sin(0.5));
    x[row * COLS + 2 * j] = 1;
    run(dq_rows_rope(x.p, table.p, true, ROWS, COLS, COLS, NULL));
    near(x[row * COLS + 2 * j], cos(0.5));
    near(x[row * COLS + 2 * j + 1], sin(0.5));
}

TEST(test_values)
{
    const int64_t last = last_of(MANY);
    far<float> x(MANY), y(MANY), bias(COLS, true, 4.0f);
    far<uint16_t> half(MANY);
    x[last] = 1, y[last] = 2;
    run(dq_rows_add(x.p, y.p, MANY, NULL));
    near(x[last], 3);
    run(dq_linear_bias(x.p, bias.p, ROWS, COLS, NULL));
    near(x[last], 7);
    const int64_t last8 = 8 * last_of(MANY / 8) + 7; /* a thread takes eight */
    y[last8] = 7;
    run(dq_linear_bf16(half.p, y.p, MANY, NULL));
    assert_int_equal(half[last8], 0x40e0);
    run(dq_rows_silu(x.p, y.p, MANY, NULL));
    near(x[last], 14 / (1 + exp(-7.0)));
    x[last] = 1;
    run(dq_rows_gelu(x.p, y.p, MANY, NULL));
    near(x[last], 2 * 0.841192);
    run(dq_rows_sigmoid(y.p, MANY, NULL));
    near(y[last], 1 / (1 + exp(-2.0)));
    half[MANY - 1] = 0x3c00;
    run(dq_kv_launch_widen(x.p, half.p, MANY, NULL));
    near(x[MANY - 1], 1);
}

TEST(test_differ)
{
    far<float> x(MANY), row(COLS);
    far<int32_t> differs(1);
    run(dq_linear_differ(differs.p, x.p, COLS, row.p, ROWS, COLS, NULL));
    assert_int_equal(differs[0], 0);
    x[MANY - 1] = 1;
    run(dq_linear_differ(differs.p, x.p, COLS, row.p, ROWS, COLS, NULL));
    assert_int_equal(differs[0], 1);
}

/* Codes of 40 000 x 64K activations in groups of 64, and a product with as many results. */
TEST(test_packed)
{
    dq_cuda_weight w = {};
    w.kind = DQ_STORED_PACKED;
    w.bits = 8;
    w.rows = w.scale_pitch = COLS;
    w.cols = w.pitch = COLS;
    w.group = w.group_codes = 64;
    w.groups = COLS / 64;
    far<float> x(MANY), scale(w.groups * ROWS), y(MANY);
    far<int8_t> code(MANY);
    x[MANY - 1] = 127;
    run(dq_linear_round(code.p, scale.p, NULL, x.p, ROWS, &w, NULL));
    assert_int_equal(code[MANY - 1], 127);
    near(scale[w.groups * ROWS - 1], 1);
    far<uint8_t> data(COLS * COLS);
    far<float> of_w(w.groups * COLS);
    w.data = data.p;
    w.scale = of_w.p;
    data[COLS * COLS - 1] = 128 + 3;
    of_w[w.groups * COLS - 1] = 2;
    run(dq_linear_widen(y.p, false, &w, 0, ROWS, NULL));
    run(dq_linear_widen(y.p, false, &w, COLS - ROWS, ROWS, NULL));
    near(y[MANY - 1], 6);
    w.cols = w.pitch = 128;
    w.groups = 2;
    code.fill((ROWS - 1) * 128, 128, 5);
    data.fill((COLS - 1) * 128, 128, 128 + 3);
    for (int g = 0; g < 2; g++) scale[g * ROWS + ROWS - 1] = of_w[g * COLS + COLS - 1] = 1;
    run(dq_linear_packed(y.p, code.p, scale.p, NULL, ROWS, &w, NULL, NULL));
    near(y[MANY - 1], 128 * 15);
}

TEST(test_logprob)
{
    far<float> p(MANY), q(MANY);
    far<dq_logprob_row> row(ROWS);
    far<dq_logprob_kld_row> kld(ROWS);
    far<int32_t> target(ROWS, true, COLS - 1), top(ROWS);
    far<double> out(ROWS);
    p[MANY - 1] = 20;
    run(dq_logprob_piece(row.p, p.p, COLS, 0, COLS, target.p, ROWS, NULL));
    run(dq_logprob_end(out.p, top.p, row.p, target.p, ROWS, NULL));
    near(out[ROWS - 1], -log(1 + (double)(COLS - 1) * exp(-20.0)));
    near(out[0], -log((double)COLS));
    assert_int_equal(top[ROWS - 1], COLS - 1);
    run(dq_logprob_kld_piece(kld.p, q.p, p.p, COLS, 0, COLS, ROWS, NULL));
    run(dq_logprob_kld_end(out.p, kld.p, ROWS, NULL));
    assert_true(out[0] == 0 && out[ROWS - 1] > 1);
}

TEST(test_tally)
{
    far<float> x(MANY);
    far<int32_t> pos(ROWS);
    far<dq_observe_piece> piece(1);
    far<dq_observe_call> call(1);
    far<dq_observe_top> top(1);
    far<dq_observe_bins> bins(1);
    far<double> sums(4 * ROWS);
    far<uint32_t> tied(ROWS);
    piece[0] = dq_observe_piece{x.p, COLS, NULL, NULL, NULL, pos.p, COLS, (int32_t)ROWS, 0, 0, 0};
    pos[ROWS - 1] = 7;
    x[MANY - 1] = -3;
    run(dq_observe_launch(dq_observe_rows{piece.p, 1, (int32_t)ROWS, (int32_t)ROWS}, call.p, top.p,
                          bins.p, sums.p, tied.p, NULL));
    near(sums[4 * (ROWS - 1)], 3);
    near(call[0].total[1], 9);
    assert_true(top[0].found[0].value == 3 && top[0].found[0].row == 7);
    assert_int_equal(top[0].found[0].col, COLS - 1);
}

/* --------------------------------------------------------------------------------------- attention */

enum { DIM = 16, UNITS = ROWS / 64, PAGES = KEYS / 64, LD = KEYS + 8, Q = 2 };

/* One list of 64K tokens and all rows at its end, in units of 64; every unit has pages of its own, of which those
 * of corners are there. Key t has t / 64K in channel 0, values are 1. */
struct scene {
    far<dq_attention_unit> unit;
    far<dq_page> page;
    far<int32_t> visible, first;
    far<float> k, v, q, strip, factor, out;
    far<double> sum;
    far<dq_q_head> q_head;
    far<dq_o_head> o_head;
    dq_attention_units u = {};
    dq_attention_finish f = {};
    scene()
        : unit(UNITS), page((int64_t)UNITS * PAGES), visible(ROWS), first(4), k(KEYS * DIM),
          v(KEYS * DIM, true, 1.0f), q(ROWS * Q * DIM, true, 1.0f),
          strip((int64_t)UNITS * Q * 64 * LD), factor(ROWS * 3), out(MANY), sum(ROWS * Q),
          q_head(Q), o_head(1)
    {
        for (int64_t t = 0; t < KEYS; t++) k[t * DIM] = (float)t / (float)KEYS;
        for (int i = 0; i < UNITS; i++) add_unit(i);
        first[1] = Q, first[3] = 1;
        for (int i = 0; i < Q; i++) q_head[i] = dq_q_head{i, 0};
        o_head[0] = dq_o_head{0, {0, 1}, {0, -1}, 0};
        const dq_page_form form = {16, DIM, 1, 0, DIM, DIM, DIM, 0, 0, 0, NULL};
        u.unit = unit.p, u.n = UNITS;
        u.max_rows = 64, u.max_keys = KEYS, u.max_q = Q, u.max_out = 1;
        u.pages = page.p, u.form[0] = u.form[1] = form, u.visible = visible.p;
        u.q_head = q_head.p, u.o_head = o_head.p, u.q_first = first.p, u.o_first = first.p + 2;
        u.n_groups = 1, u.n_q = Q, u.n_out = 1, u.n_slabs = 1, u.n_maps = 2;
        u.q = q.p, u.scale = 1, u.strip = strip.p, u.sum = sum.p, u.factor = factor.p;
        u.lambda_layer = 0.5f;
        f = dq_attention_finish{out.p, COLS, NULL, 1e-5f, 1.0f, false, false};
    }
    void add_unit(int i)
    {
        dq_attention_unit w = {};
        w.strip = (int64_t)i * Q * 64 * LD;
        w.page = (int64_t)i * PAGES;
        w.record = i * Q * 64;
        w.factor = w.row = i * 64;
        w.visible = w.row;
        w.n = w.split = w.counted = 64;
        w.keys = (int)(KEYS - ROWS) + 64 * (i + 1);
        w.ld = LD;
        w.first = i == UNITS - 1 ? 63 : 64;
        if (i == UNITS - 1) w.counted = 63;
        unit[i] = w;
        for (int r = 0; r < 64; r++) visible[w.row + r] = w.keys - 63 + r;
        for (int p = 0; (i == 0 || i == UNITS / 2 || i == UNITS - 1) && p < PAGES; p++) {
            page[w.page + p].heads = 1;
            page[w.page + p].side[0].plain = &k[p * 64 * DIM];
            page[w.page + p].side[1].plain = &v[p * 64 * DIM];
        }
    }
    float *row(int i, int head, int r)
    {
        return &strip[unit[i].strip + ((int64_t)head * 64 + r) * LD];
    }
};

TEST(test_attend)
{
    scene s;
    far<uint32_t> max(Q);
    far<double> row(ROWS * DQ_MAP_FIELDS), into(DQ_MAP_FIELDS), mass(KEYS), spans(ROWS * 2);
    far<int64_t> at(1);
    far<uint8_t> label(KEYS);
    far<dq_map_run> runs(1);
    const int last = UNITS - 1;
    run(dq_attention_absmax(s.u, max.p, NULL));
    assert_int_equal(max[1], dq_f32_bits(65535.0f / 65536.0f));
    run(dq_attention_scores(s.u, NULL));
    for (int head = 0; head < Q; head++) near(s.row(last, head, 63)[KEYS - 1], 65535.0 / 65536.0);
    for (int head = 0; head < Q; head++) { /* the pages between corners */
        for (int r = 0; r < 64; r += r ? 31 : 32)
            for (int t = 0; t < KEYS; t++) s.row(last, head, r)[t] = (float)t / (float)KEYS;
    }
    run(dq_attention_softmax(s.u, DQ_ROUND_NOT, 0, NULL, NULL));
    double total = 0;
    for (int t = 0; t < KEYS; t++) total += exp((t - 65535.0) / 65536.0);
    near(s.sum[(int64_t)last * Q * 64 + 64 + 63], total);
    near(s.factor[3 * ROWS - 1], 0.5 / total);
    run(dq_attention_values(s.u, s.f, NULL));
    near(s.out[(ROWS - 1) * COLS + DIM - 1], 0.5);
    runs[0] = dq_map_run{0, UNITS, KEYS};
    run(dq_maps_sum(s.u, dq_map_sums{{mass.p, NULL}, NULL, NULL, at.p}, runs.p, 1, KEYS, NULL));
    near(mass[KEYS - 1], 1 / total);
    run(dq_maps_measure(s.u, dq_map_limits{}, into.p, row.p, runs.p, 1, NULL));
    near(row[ROWS * DQ_MAP_FIELDS - 2], KEYS);
    s.unit[last].span = (int32_t)ROWS - 1;
    run(dq_spans_add_sums(s.u, dq_span_sums{spans.p, label.p, at.p, 1}, NULL));
    near(spans[2 * ROWS - 2], 0.5);
}

/* What a launch over a scene's units wants, in far memory; operand pages are as many as `pages`. */
struct far_call {
    far<dq_unfold_list> list;
    far<dq_attend_item> item;
    far<dq_attend_join> join;
    far<int32_t> count;
    far<uint8_t> page;
    far<float> share;
    far<int32_t> beyond;
    dq_attend_plan plan;
    dq_attend_call a;
    far_call(scene *s, int64_t items, int64_t pages, int64_t parts)
        : list(s->u.n), item(items), join(s->u.n), count(PAGES + 1), page(pages * OPERAND_BYTES),
          share(parts * 2 * 64 * 66), beyond(1), plan(), a()
    {
        plan.list = list.p, plan.item = item.p, plan.join = join.p;
        dq_attend_plan_units(&plan, &s->u, s->u.unit, 1, NULL, count.p);
        assert_true(plan.n_items <= items && plan.operand_pages <= pages);
        assert_true(plan.share_rows <= 64 * parts);
        a.u = s->u, a.f = s->f, a.o = dq_attend_operands(s->u.form[0].dim, 1, 1, 1, 1);
        a.o.page = page.p, a.item = item.p, a.n_items = plan.n_items, a.together = 1;
        a.share = share.p;
        assert_int_equal(a.o.page_bytes, OPERAND_BYTES);
    }
    enum : int64_t { OPERAND_BYTES = 2 * 64 * 64 * 2 };
    void run_all()
    {
        run(dq_attend_unfold(dq_attend_unfold_of(&a.u, a.o, false, beyond.p), a.u.pages, list.p,
                             plan.n_lists, plan.unfold_pages, NULL));
        run(dq_attend_run(a, false, NULL));
        run(dq_attend_combine(a, join.p, plan.n_joins, NULL));
    }
};

/* Operands of all rows, each unit a list of three pages. */
TEST(test_operands)
{
    scene s;
    for (int i = 0; i < UNITS; i++) {
        s.unit[i].keys = 192;
        for (int r = 0; r < 64; r++) s.visible[i * 64 + r] = 192;
    }
    far_call c(&s, UNITS, 3 * UNITS, 0);
    float *score = &s.row(UNITS - 1, Q - 1, 63)[191], *out = &s.out[(ROWS - 1) * COLS + DIM - 1];
    c.run_all();
    assert_true(fabsf(*out - 0.5f) <= 2e-3f);
    run(dq_attend_scores(c.a, NULL));
    assert_true(fabsf(*score - 191.0f / 65536.0f) <= 1e-5f);
}

/* 40 000 rows as 5000 sequences of 64K tokens: blocks divide their pages, whose operands take 84 GB. Only the corners of grids
 * run, so a row has some of its parts. */
TEST(test_parts)
{
    enum : int64_t { SEQS = ROWS / 8, EACH = PAGES / 32, PARTS = SEQS * EACH };
    scene s;
    far<dq_attention_unit> unit(SEQS);
    for (int i = 0; i < SEQS; i++) {
        dq_attention_unit w = s.unit[UNITS - 1];
        w.factor = w.row = i * 8;
        w.seq = i;
        w.n = w.split = 8;
        w.few = 1;
        w.visible = -KEYS - 1 + 7; /* the last row sees all */
        unit[i] = w;
    }
    s.u.unit = unit.p, s.u.n = SEQS, s.u.max_rows = 8;
    far_call c(&s, PARTS, SEQS * PAGES, PARTS);
    assert_int_equal(dq_attend_range(PAGES), 32);
    assert_int_equal(c.plan.share_rows, 8 * PARTS);
    c.run_all();
    /* what the last block of the last part found */
    const float *share = c.share.p + ((PARTS - 1) * 2 * 8 + 7) * 66;
    assert_true(share[1] > 0);
    for (int64_t p = 0; p < EACH; p++)
        for (int m = 0; m < 2; m++)
            for (int k = 0; k < 66; k++)
                c.share[((((SEQS - 1) * EACH + p) * 2 + m) * 8 + 7) * 66 + k] = k ? 1.0f : 0.0f;
    run(dq_attend_combine(c.a, c.join.p, c.plan.n_joins, NULL));
    near(s.out[(ROWS - 1) * COLS + DIM - 1], 0.5);
}

/* Per-channel codes of the last of 65 535 jobs, which has as many heads as a page can have, and a token of it moved. */
TEST(test_page_codes)
{
    enum : int64_t { JOBS = 65535, HEADS = INT16_MAX, NUMBERS = 2 * DIM };
    far<float> plain(HEADS * 64 * DIM);
    far<uint8_t> codes(HEADS * 64 * DIM), moved(HEADS * 64 * DIM);
    far<uint16_t> numbers(2 * HEADS * NUMBERS), to_numbers(HEADS * NUMBERS);
    far<dq_kv_fill_job> jobs(JOBS);
    far<int32_t> first(2), head(1), overflow(2 * JOBS), source(1);
    far<dq_page> from(2); /* the first has no codes */
    dq_page_form form[2] = {{8, 0, 0, 0, DIM, DIM, DIM, 64 * DIM, NUMBERS, DQ_PAGE_F32, NULL}};
    const int64_t at = ((HEADS - 1) * 64 + 32) * DIM; /* of the last head's second set */
    form[1] = form[0];
    first[1] = HEADS;
    from[1].side[0] = dq_page_side{plain.p, codes.p, numbers.p, NULL};
    from[1].begins = (uint64_t)1 << 32 | 1;
    from[1].heads = HEADS;
    from[1].dither = -1;
    jobs[JOBS - 1] = dq_kv_fill_job{1, 0, 0, -1, {-1, -1}, 0, 0, 0, 64, 0};
    plain[at] = 255;
    plain[at + 1] = 1e30f; /* no step in f16 */
    dq_kv_fill fill = {};
    fill.u.form[0] = form[0], fill.u.form[1] = form[1];
    fill.heads = dq_kv_group_heads{first.p, head.p, 1, HEADS};
    fill.pages = from.p, fill.overflow = overflow.p;
    run(dq_kv_launch_fill(fill, jobs.p, JOBS, NULL));
    assert_int_equal(numbers[((int64_t)HEADS + HEADS - 1) * NUMBERS], 0x3c00);
    assert_int_equal(codes[(HEADS - 1) * 64 * DIM + 32 * 16], 255);
    assert_int_equal(codes[(HEADS - 1) * 64 * DIM + 33 * 16], 0);
    assert_true(overflow[2 * (JOBS - 1)] == 1 && overflow[0] == 0);
    dq_page to = from[1];
    to.side[0] = dq_page_side{NULL, moved.p, to_numbers.p, NULL};
    to.begins = 1;
    source[0] = DQ_PAGE_SLOTS + 32;
    run(dq_kv_launch_move(to, 1, from.p, source.p, 1, form, HEADS, NULL));
    assert_int_equal(to_numbers[(HEADS - 1) * NUMBERS], 0x3c00);
    assert_int_equal(moved[(HEADS - 1) * 64 * DIM], 255);
}

/* A record, and a row of dither that lies 2^31 numbers behind the first. */
TEST(test_patches)
{
    enum : int64_t { LAST = (int64_t)1 << 25 };
    far<dq_page> page(LAST + 1);
    far<float> dither((LAST + 2) * 64), row(64);
    far<dq_kv_patch> patch(1);
    patch[0].page.n_sinks = 3;
    patch[0].to = (int32_t)LAST;
    row[63] = 5;
    run(dq_kv_launch_patch(dq_kv_patches{patch.p, 1, row.p, page.p, dither.p}, NULL));
    assert_int_equal(page[LAST].n_sinks, 3);
    near(dither[(LAST + 1) * 64 + 63], 5);
}

TEST(test_pages)
{
    enum { JOBS = ROWS / 64 };
    scene s;
    far<float> k(MANY), v(MANY), to(2 * 64 * DIM);
    far<dq_kv_fill_job> jobs(JOBS);
    far<int32_t> first(2), head(1), flags(2 * JOBS);
    far<dq_page> page(1);
    far<double> norm(KEYS);
    const dq_page_form form[2] = {s.u.form[0], s.u.form[1]};
    for (int i = 0; i < JOBS; i++)
        jobs[i] = dq_kv_fill_job{0, 0, 64 * i, -1, {-1, -1}, 0, 64, 0, 0, 0};
    for (int side = 0; side < 2; side++) page[0].side[side].plain = to.p + side * 64 * DIM;
    first[1] = 1;
    head[0] = COLS / DIM - 1;
    k[MANY - 1] = 5, v[MANY - 1] = 6;
    dq_kv_fill fill = {};
    fill.u.form[0] = form[0], fill.u.form[1] = form[1];
    fill.heads = dq_kv_group_heads{first.p, head.p, 1, 1};
    fill.pages = page.p, fill.k = k.p, fill.v = v.p, fill.row_cols = COLS;
    fill.overflow = flags.p;
    run(dq_kv_launch_fill(fill, jobs.p, JOBS, NULL));
    near(to[64 * DIM - 1], 5);
    near(to[2 * 64 * DIM - 1], 6);
    run(dq_kv_launch_norms(norm.p, s.page.p, KEYS, 0, form[0], 1, NULL));
    near(norm[KEYS - 1], pow(65535.0 / 65536.0, 2));
}

TEST(test_keys)
{
    enum { HEADS = COLS / DIM, LISTED = ROWS / 64 };
    const dq_page_form form = {16, DIM, 1, 0, DIM, DIM, DIM, 0, 0, 0, NULL};
    far<float> plain((int64_t)HEADS * 64 * DIM), x(MANY);
    far<double> mean(COLS), gram((int64_t)COLS * COLS), norm(ROWS), sum(DIM), cosine(ROWS);
    far<dq_page> page(LISTED);
    for (int p = 0; p < LISTED; p++) page[p].side[0].plain = plain.p;
    for (int t = 0; t < 64; t++) plain[t * DIM] = 2;
    plain[(int64_t)HEADS * 64 * DIM - 1] = 7;
    run(dq_keys_read(x.p, dq_keys{page.p, ROWS, 0, form, HEADS, 0}, NULL));
    near(x[MANY - 1], 7);
    run(dq_keys_centre(x.p, mean.p, 0.5, ROWS, COLS, NULL));
    near(mean[COLS - 1], 3 * 7.0 / ROWS); /* blocks of three pages have run */
    near(x[MANY - 1], (7 - 3 * 7.0 / ROWS) / 2);
    x.fill(COLS - 1, 1, 3);
    run(dq_keys_gram(gram.p, x.p, 1, COLS, NULL));
    near(gram[(int64_t)COLS * COLS - 1], 9);
    run(dq_keys_cosines(cosine.p, dq_keys{page.p, ROWS, 0, form, 1, 0}, norm.p, sum.p, NULL));
    near(sum[0], 3 * 64);
    near(cosine[ROWS - 1], 1);
}

/* With an argument: tests of that name. */

static int begin(void **)
{
    dq_simt_set_memory((size_t)1 << 42);
    dq_simt_set_corners(1);
    return 0;
}

FIXTURES(begin, NULL)
