/* race_kernels: every kernel of the backend on small shapes under ThreadSanitizer, which knows every CUDA
 * thread. What they compute is checked elsewhere.
 *   race_kernels [FAMILY]...   none: all of them
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"
#include "tests/kernels/cuda/attend_rig.h"

#include <math.h>
#include <stdio.h>

static void must(cudaError_t e)
{
    assert_int_equal(e, cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/* Device memory with small numbers in it. */
template <class T> struct values : check_array<T> {
    explicit values(size_t count, uint64_t seed = 1) : check_array<T>(count)
    {
        check_random x = {seed};
        for (size_t i = 0; i < count; i++) this->host[i] = (T)x.value();
        this->put();
    }
};

/* ---------------------------------------------------------------------------------- rows, products */

static void rows(void)
{
    enum { ROWS = 5, COLS = 300 };
    dq_cuda_weight w = {};
    values<float> x(ROWS * COLS), y(ROWS * COLS), gain(COLS), table(ROWS * 32), wide(2 * 1024);
    check_array<int32_t> ids(ROWS);
    check_array<int64_t> index(ROWS);
    check_array<uint32_t> found(1);
    const float param[4] = {1, 1, 1, 1};
    w.kind = DQ_STORED_F32;
    w.rows = ROWS;
    w.cols = COLS;
    w.data = x.device;
    ids.put();
    index.put();
    found.put();
    must(dq_rows_embed(y.device, &w, ids.device, 1.0f, ROWS, NULL));
    must(dq_rows_gather(y.device, x.device, index.device, ROWS, COLS, NULL));
    must(dq_rows_rms_norm(x.device, x.device, gain.device, 1e-5f, ROWS, COLS, NULL));
    must(dq_rows_polynorm(x.device, y.device, param, ROWS, COLS, NULL));
    must(dq_rows_rope_table(table.device, ids.device, gain.device, 1.0f, ROWS, 16, NULL));
    must(dq_rows_rope(x.device, table.device, true, ROWS, 64, 32, NULL));
    must(dq_rows_rope(x.device, table.device, false, ROWS, 64, 32, NULL));
    must(dq_rows_hadamard(x.device, 45, 32, 0.1f, NULL)); /* the last block is not full */
    must(dq_rows_hadamard(wide.device, 2, 1024, 0.1f, NULL));
    must(dq_rows_silu(x.device, y.device, ROWS * COLS, NULL));
    must(dq_rows_gelu(x.device, y.device, ROWS * COLS, NULL));
    must(dq_rows_sigmoid(x.device, ROWS * COLS, NULL));
    must(dq_rows_add(x.device, y.device, ROWS * COLS, NULL));
    must(dq_rows_first_bad(found.device, x.device, ROWS, COLS, NULL));
}

/* Both tiles, several stages, groups that end inside a stage, and one whose maximum a block finds. */
static void packed(int64_t rows, int64_t out, int64_t cols, int64_t group, bool zeros)
{
    dq_cuda_weight w = {};
    w.kind = DQ_STORED_PACKED;
    w.bits = 4;
    w.rows = out;
    w.cols = cols;
    w.group = w.group_codes = group;
    w.groups = cols / group;
    w.pitch = cols / 2;
    w.scale_pitch = (out + 7) / 8 * 8;
    w.zero_pitch = (out + 15) / 16 * 16;
    values<uint8_t> data((size_t)(out * w.pitch)), zero((size_t)(w.groups * w.zero_pitch));
    check_array<int32_t> sums((size_t)(w.groups * dq_linear_scale_pitch(rows)));
    values<float> scale((size_t)(w.groups * w.scale_pitch)), x((size_t)(rows * cols)),
        y((size_t)(rows * out)), of_x((size_t)(w.groups * dq_linear_scale_pitch(rows))),
        wide((size_t)(out * cols)), bias((size_t)out);
    w.data = data.device;
    w.scale = scale.device;
    if (zeros) w.zero = zero.device;
    int32_t *sum = zeros ? sums.device : NULL;
    check_array<int8_t> code((size_t)(rows * dq_linear_code_pitch(&w)));
    check_array<uint16_t> half((size_t)(out * cols));
    must(dq_linear_round(code.device, of_x.device, sum, x.device, rows, &w, NULL));
    must(dq_linear_packed(y.device, code.device, of_x.device, sum, rows, &w, bias.device, NULL));
    must(dq_linear_bias(y.device, bias.device, rows, out, NULL));
    if (group == 64) must(dq_linear_widen(wide.device, false, &w, 0, 3, NULL));
    if (group == 64) must(dq_linear_widen(half.device, true, &w, 0, 3, NULL));
    must(dq_linear_bf16(half.device, x.device, rows, NULL));
    check_array<int32_t> differs(1);
    must(dq_linear_differ(differs.device, x.device, 0, x.device, 2, cols, NULL));
}

static void linear(void)
{
    packed(5, 40, 768, 64, false);
    packed(5, 40, 768, 64, true);
    packed(17, 64, 384, 96, false);
    packed(17, 64, 384, 96, true);
    packed(2, 32, 640, 640, false);
    packed(2, 32, 640, 640, true);
}

static void logprob(void)
{
    enum { ROWS = 3, COLS = 400 };
    values<float> p(ROWS * COLS, 1), q(ROWS * COLS, 2);
    values<double> logp(ROWS);
    check_array<dq_logprob_row> state(ROWS);
    check_array<dq_logprob_kld_row> kld(ROWS);
    check_array<int32_t> target(ROWS), top(ROWS);
    target.put();
    for (int piece = 0; piece < 2; piece++) {
        must(dq_logprob_piece(state.device, p.device, COLS, piece * COLS, COLS, target.device, ROWS,
                              NULL));
        must(dq_logprob_kld_piece(kld.device, p.device, q.device, COLS, piece * COLS, COLS, ROWS,
                                  NULL));
    }
    must(dq_logprob_end(logp.device, top.device, state.device, target.device, ROWS, NULL));
    must(dq_logprob_kld_end(logp.device, kld.device, ROWS, NULL));
}

/* ------------------------------------------------------------------------------------------- pages */

/* Two pages of two heads of one group. */
struct page_rig {
    enum { HEADS = 2, DIM = 24, COLS = 32, PAGES = 2 };
    dq_page_form form[2] = {};
    dq_page page[PAGES] = {};
    values<float> plain, sinks;
    check_array<uint8_t> codes;
    check_array<uint16_t> scale;
    values<float> dither;
    /* other: bits of the second head where heads have widths of their own, then in f32 numbers; or 0 */
    page_rig(int k_bits, int v_bits, bool sets, int other = 0)
        : plain(PAGES * 2 * HEADS * 64 * COLS), sinks(PAGES * 2 * HEADS * 4 * DIM),
          codes(PAGES * 2 * HEADS * 64 * COLS), scale(PAGES * 2 * HEADS * 4 * 64), dither(2 * 64)
    {
        codes.put();
        for (int side = 0; side < 2; side++) {
            const int bits = side ? v_bits : k_bits;
            form[side] = dq_page_form{bits,
                                      16,
                                      sets ? 0 : 2,
                                      0,
                                      DIM,
                                      COLS,
                                      side ? COLS : DIM,
                                      64 * COLS * bits / 8,
                                      sets ? 2 * DIM : 0,
                                      DQ_PAGE_F32,
                                      dither.device};
            for (int p = 0; p < PAGES; p++) {
                const int at = 2 * p + side;
                page[p].side[side] = dq_page_side{
                    plain.device + at * HEADS * 64 * COLS, codes.device + at * HEADS * 64 * COLS,
                    scale.device + at * HEADS * 4 * 64, sinks.device + at * HEADS * 4 * DIM};
                page[p].n_sinks = 4;
                page[p].heads = HEADS;
                page[p].dither = p;
                page[p].widths[side] = other ? (uint64_t)(bits | other << 4) : 0;
                page[p].wide[side] = other != 0;
                page[p].begins = p ? 0x80000010u : 0x10u; /* of two sets, of one */
            }
        }
    }
};

static void pages_of(int k_bits, int v_bits, bool sets, int other = 0)
{
    page_rig r(k_bits, v_bits, sets, other);
    values<float> k(70 * 48), v(70 * 48);
    values<double> sum(128);
    check_array<int32_t> first(2), head(2), source(50), odd(4);
    check_array<dq_kv_fill_job> jobs(2);
    check_array<dq_page> from(2), table(4);
    check_array<dq_kv_patch> patch(4);
    check_array<float> row(2 * 64), dither(5 * 64);
    first.host[1] = 2;
    head.host[1] = 1;
    for (int i = 0; i < 50; i++) source.host[i] = 7 + i;
    for (int p = 0; p < 2; p++) {
        jobs.host[p] =
            dq_kv_fill_job{p, 0, 35 * p, -1, {p, 2 + p}, 11, 46, (int16_t)(4 + 3 * p), 61, 40};
        from.host[p] = r.page[p];
    }
    for (int i = 0; i < 4; i++) patch.host[i] = dq_kv_patch{r.page[i % 2], 3 - i, i % 2};
    patch.put(), row.put();
    const dq_kv_patches patches = {patch.device, 4, row.device, table.device, dither.device};
    first.put(), head.put(), source.put(), odd.put(), jobs.put(), from.put();
    const dq_kv_group_heads heads = {first.device, head.device, 1, 2};
    must(dq_kv_launch_patch(patches, NULL));
    dq_kv_fill fill = {};
    fill.u.form[0] = r.form[0], fill.u.form[1] = r.form[1];
    fill.heads = heads, fill.pages = from.device, fill.overflow = odd.device;
    fill.k = k.device, fill.v = v.device, fill.row_cols = 48;
    must(dq_kv_launch_fill(fill, jobs.device, 2, NULL));
    must(dq_kv_launch_move(r.page[1], 45, from.device, source.device, 50, r.form, 2, NULL));
    must(dq_kv_launch_reopen(r.page[0], 1, 4, r.form[1], 2, NULL));
    must(dq_kv_launch_widen(k.device, r.scale.device, 512, NULL));
    must(dq_kv_launch_norms(sum.device, from.device, 100, 70, r.form[0], 2, NULL));
}

static void pages(void)
{
    pages_of(6, 3, false);
    pages_of(4, 8, false);
    pages_of(5, 3, true);
    pages_of(2, 8, true);
    pages_of(8, 6, true, 3);
}

static void keys(void)
{
    enum { N = 100, COLS = 80 };
    page_rig r(6, 3, false);
    check_array<dq_page> pages(2);
    values<float> x(N * COLS), right(COLS * COLS);
    check_array<double> norm(2 * N), sum(2 * 24), number(N), mean(COLS), gram(COLS * COLS);
    for (int p = 0; p < 2; p++) pages.host[p] = r.page[p];
    pages.put();
    const dq_keys k = {pages.device, N, 70, r.form[0], 2, 0};
    must(dq_keys_cosines(number.device, k, norm.device, sum.device, NULL));
    must(dq_keys_read(x.device, k, NULL));
    must(dq_keys_centre(x.device, mean.device, 0.5, N, COLS, NULL));
    must(dq_keys_gram(gram.device, x.device, N, COLS, NULL));
    must(dq_keys_leverages(number.device, x.device, right.device, N, COLS, NULL));
}

/* --------------------------------------------------------------------------------------- attention */

static rig_spec spec_of(int k_bits, int v_bits, int round)
{
    rig_spec s = {};
    s.dim = 64;
    s.bits[0] = k_bits;
    s.bits[1] = v_bits;
    s.group = 32;
    s.maps = 2;
    s.slabs = s.outs = 1;
    s.lambda = 0.8f;
    s.rotated = s.norm = true;
    s.round = round;
    s.max_rows = 20;
    s.max_keys = 120;
    return s;
}

/* Two units of two heads and their strips, with all that a unit may be asked. */
struct scene {
    rig r;
    check_array<dq_attention_unit> unit;
    check_array<int32_t> edge;
    check_array<float> strip;
    scene(rig_spec s, uint64_t seed) : unit(2), edge(2 * MAX_PAGES), strip(4 << 16)
    {
        s.outs = 2;
        do {
            rig_open(&r, &s, seed++);
            if (r.n_units == 2 && r.list[0].unit.keys > 70 && r.list[0].unit.n > 16) break;
            rig_close(&r);
        } while (true);
        int span = 0;
        for (int i = 0; i < 2; i++) {
            dq_attention_unit *w = &unit.host[i];
            *w = r.list[i].unit;
            w->strip = i * 2 << 16;
            w->edge = i * MAX_PAGES;
            for (; 64 * w->n_edges < w->keys; w->n_edges++)
                edge.host[w->edge + w->n_edges] = 64 * w->n_edges + 64;
            edge.host[w->edge + w->n_edges - 1] = w->keys;
            w->first = w->counted = w->n / 2;
            w->span = span;
            span += w->n - w->counted;
            r.units.max_edges = w->n_edges > r.units.max_edges ? w->n_edges : r.units.max_edges;
        }
        unit.put();
        edge.put();
        r.units.unit = unit.device;
        r.units.edge = edge.device;
        r.units.strip = strip.device;
    }
    ~scene()
    {
        rig_close(&r);
    }
};

static void scores_of(scene *s, int round)
{
    dq_attention_units u = s->r.units;
    u.max_keys = 1100; /* the launch of long rows */
    must(dq_attention_scores(s->r.units, NULL));
    must(dq_attention_softmax(u, round, 31.0f, s->r.absmax->device, NULL));
}

static void attend(void)
{
    scene s(spec_of(6, 3, DQ_ROUND_NOT), 1);
    check_array<uint32_t> max((size_t)(2 * s.r.units.n_q));
    max.put();
    must(dq_attention_absmax(s.r.units, max.device, NULL));
    must(dq_attention_join(s.r.absmax->device, 2, s.r.units.n_q, NULL));
    scores_of(&s, DQ_ROUND_TILE);
    scores_of(&s, DQ_ROUND_ROW);
    must(dq_attention_values(s.r.units, s.r.finish, NULL));
}

static void maps(void)
{
    scene s(spec_of(8, 4, DQ_ROUND_NOT), 2);
    const dq_attention_unit *w = s.unit.host;
    const size_t keys = (size_t)(w[0].keys + w[1].keys), factors = s.r.factor->n / 3;
    values<double> mass(keys), second(keys), lambda(keys), diff(keys), into(2 * 3 * DQ_MAP_FIELDS),
        row(factors * DQ_MAP_FIELDS);
    check_array<int64_t> at(4);
    check_array<dq_map_run> runs(2);
    for (int i = 0; i < 2; i++) runs.host[i] = dq_map_run{i, 1, w[i].keys};
    at.host[3] = w[0].keys;
    at.put();
    runs.put();
    const dq_map_sums c = {{mass.device, second.device}, lambda.device, diff.device, at.device};
    const dq_map_limits limits = {{1e-4, 1e-3, 1e-2, 0.1}};
    scores_of(&s, DQ_ROUND_NOT);
    must(dq_maps_sum(s.r.units, c, runs.device, 2, s.r.units.max_keys, NULL));
    must(dq_maps_measure(s.r.units, limits, into.device, row.device, runs.device, 2, NULL));
}

static void spans(void)
{
    scene s(spec_of(8, 4, DQ_ROUND_NOT), 3);
    const int classes = 3;
    values<double> mass((size_t)(128 * s.r.units.n_out * classes * 2));
    check_array<uint8_t> label(64 * MAX_PAGES);
    check_array<int64_t> key(4);
    label.put();
    key.put();
    scores_of(&s, DQ_ROUND_NOT);
    must(dq_spans_add_sums(s.r.units, dq_span_sums{mass.device, label.device, key.device, classes},
                           NULL));
}

static void tally(void)
{
    enum { ROWS = 3, COLS = 200 };
    values<float> x(2 * ROWS * COLS);
    check_array<dq_observe_piece> piece(2);
    check_array<int32_t> pos(ROWS);
    check_array<dq_observe_call> call(1);
    check_array<dq_observe_top> top(1);
    check_array<dq_observe_bins> bins(1);
    check_array<double> sums(4 * 2 * ROWS);
    check_array<uint32_t> tied(2 * ROWS);
    for (int i = 0; i < 100; i++) x.host[5 * i] = 3.5f; /* ties */
    x.put();
    for (int i = 0; i < 2; i++)
        piece.host[i] = dq_observe_piece{x.device + i * ROWS * COLS,
                                         COLS,
                                         NULL,
                                         NULL,
                                         NULL,
                                         pos.device,
                                         COLS,
                                         ROWS,
                                         ROWS * i,
                                         i,
                                         0};
    piece.put(), pos.put(), call.put(), bins.put();
    must(dq_observe_launch(dq_observe_rows{piece.device, 2, ROWS, 2 * ROWS}, call.device,
                           top.device, bins.device, sums.device, tied.device, NULL));
    must(dq_observe_refined(dq_observe_rows{piece.device, 2, ROWS, 2 * ROWS}, bins.device->fine,
                            0x4060, NULL));
}

/* All kernels over operands, with pages that blocks divide and without. */
static void operands_of(rig_spec s, uint64_t seed)
{
    for (int divided = 0; divided < 2; divided++) {
        rig r;
        rig_call k;
        s.max_rows = divided ? 2 : 20;
        s.max_keys = divided ? 700 : 120;
        rig_open(&r, &s, seed);
        rig_call_open(&k, &r, 2);
        rig_call_unfold(&k);
        check_array<uint32_t> max((size_t)(r.n_units * r.units.n_q));
        max.put();
        for (int hopper = s.int8; hopper < 2; hopper++) {
            if (hopper && !check_hopper()) break;
            if (hopper == s.int8) must(dq_attend_scores(k.call, NULL));
            must(dq_attend_absmax(k.call, max.device, false, hopper, NULL));
            rig_call_run(&k, hopper);
        }
        dq_simt_set_capability(80);
        rig_call_close(&k);
        rig_close(&r);
    }
}

static void operands(void)
{
    rig_spec window = spec_of(8, 8, DQ_ROUND_ROW);
    window.window = 50;
    operands_of(window, 1);
    operands_of(spec_of(16, 3, DQ_ROUND_NOT), 2);
    rig_spec one = spec_of(6, 4, DQ_ROUND_GIVEN);
    one.maps = 1;
    one.slabs = 2;
    operands_of(one, 3);
    rig_spec int8 = spec_of(8, 4, DQ_ROUND_ROW);
    int8.int8 = true;
    operands_of(int8, 4);
    rig_spec s = spec_of(5, 4, DQ_ROUND_NOT);
    s.sets = s.dither = true;
    operands_of(s, 5);
    s.mixed = true;
    s.dither = false;
    operands_of(s, 6);
}

static const struct {
    const char *name;
    void (*run)(void);
} families[] = {{"rows", rows},   {"linear", linear},    {"logprob", logprob}, {"pages", pages},
                {"keys", keys},   {"attend", attend},    {"maps", maps},       {"spans", spans},
                {"tally", tally}, {"operands", operands}};

int main(int argc, char **argv)
{
    int n = 0;
    for (const auto &f : families) {
        bool requested = argc < 2;
        for (int i = 1; i < argc; i++) requested = requested || !strcmp(argv[i], f.name);
        if (!requested) continue;
        f.run();
        printf("%s: done\n", f.name);
        n++;
    }
    return n > 0 && n >= argc - 1 ? 0 : 2;
}
