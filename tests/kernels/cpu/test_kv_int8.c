/* test_kv_int8: attention on packed pages in integers: bit for bit against plain loops of its definition
 * (backend.h), with every table of inner loops, and near the f32 reading.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/kv_stage.h"
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "kernels/cpu/attention/cpu_attention.h"
#include "kernels/cpu/simd.h"
#include "tests/kernels/cpu/kv_defined.h"

static const dq_pairing pairings[] = {DQ_PAIR_NONE,   DQ_PAIR_ADJACENT, DQ_PAIR_ADJACENT_NAIVE,
                                      DQ_PAIR_HALVES, DQ_PAIR_GROUPED,  DQ_PAIR_SHARED_KV};
static const int dims[] = {32, 64, 24, 80, 128, 16};
static const int k_widths[] = {8, 6, 4}, v_widths[] = {8, 6, 4, 3, 2};
enum { N_PAIRINGS = 6, N_WIDTHS = 15, SCORES = 512 };

static const dq_math int8 = {DQ_NUM_INT8, DQ_NUM_INT8, DQ_NUM_INT8, DQ_NUM_INT8};

static bool pages,
    mixed; /* the tests run with per-token codes, with per-channel codes, then with mixed ones */

/* Widths, groups and windows of the i-th case. */
static dq_kv_spec spec_of(int i)
{
    static const int groups[] = {32, 7, 16, 1000, 24, 1, 48}, sinks[] = {4, 0, 70, 1},
                     recents[] = {64, 0, 30, 100};
    dq_kv_spec spec = dq_kv_plain;
    spec.num = DQ_NUM_INT8;
    spec.k_bits = k_widths[i % 3];
    spec.v_bits = v_widths[i / 3 % 5];
    spec.group = groups[i % 7];
    spec.sink = sinks[i / 2 % 4];
    spec.recent = recents[i / 3 % 4];
    if (pages) {
        static const int widths[] = {4, 5, 3, 8, 2, 6};
        spec.quant = mixed ? DQ_KV_MIXED : i % 3 ? DQ_KV_DITHER : DQ_KV_PER_CHANNEL;
        spec.k_bits = widths[i % 6];
        spec.v_bits = widths[(i + i / 6) % 6];
    }
    return spec;
}

/* The tables this machine has. */
static int tables(const dq_simd_pages *out[3])
{
    static const unsigned isas[] = {DQ_CPU_AVX2, DQ_CPU_AVX2 | DQ_CPU_AVX512 | DQ_CPU_VNNI};
    const unsigned have = dq_os_cpu_features(NULL);
    int n = 0;
    out[n++] = dq_cpu_isa_of(0)->pages;
    for (int i = 0; i < 2; i++) {
        const dq_simd_pages *t = dq_cpu_isa_of(have & isas[i])->pages;
        if (t != out[n - 1]) out[n++] = t;
    }
    return n;
}

/* Two sequences with coded, mixed and plain pages, and a batch of rows that read a page in two forms. */
static void prepare(stage *s, int i, int threads)
{
    static const char *const widths[] = {"5+3:6", "2+8:3", "4+6:2", "8+2:5"};
    const dq_pairing pairing = pairings[i % N_PAIRINGS];
    const bool own_keys =
        pairing == DQ_PAIR_ADJACENT || pairing == DQ_PAIR_HALVES || pairing == DQ_PAIR_GROUPED;
    dq_kv_spec spec = spec_of(i);
    if (pages && own_keys && i / N_PAIRINGS % 2) spec = with_widths(spec, widths[i % 4], 1);
    open_stage(s, pairing, dims[i % 6], spec, threads);
    s->math = int8;
    int32_t a = new_seq(s, 1, 0), b = new_seq(s, 2, 60000);
    stream(s, a, 210);
    stream(s, b, 75);
    begin_batch(s);
    add_rows(s, b, 70);
    add_rows(s, a, 40);
    append(s);
}

/* Rows [first, first + n) of the batch of one sequence, as attention takes them. */
static dq_kv_rows tile_of(const stage *s, int seq)
{
    dq_kv_rows rows;
    dq_cpu_rows_last_tile(&rows, &s->batch, seq, s->cu_rows[seq], s->cu_rows[seq + 1]);
    return rows;
}

/* S of all query heads of a tile, [N_Q][DQ_PAGE_TOKENS][SCORES]. */
static void scores(stage *s, const dq_simd_pages *table, const dq_kv_rows *rows, int head,
                   float *out)
{
    dq_attend_args args = arguments(s, 16, DQ_GRANULARITY_ROW);
    dq_err err = {0};
    const dq_kv_list *list =
        dq_kv_list_of(s->kv, s->seq[rows->seq], 0, s->map.group[s->map.key[head]]);
    dq_cpu cpu = *dq_cpu_of(s->b);
    cpu.pages = table;
    float *scratch = dq_block_new((size_t)dq_cpu_score_floats(&args, rows->n, 1), 4, &err);
    dq_cpu_scores(&cpu, &out, SCORES, &args, rows, list, &head, 1,
                  dq_kv_visible(list, rows->pos[rows->n - 1]), NULL, scratch);
    dq_block_free(scratch);
}

TEST(scores_are_exact)
{
    static float got[DQ_PAGE_TOKENS * SCORES], plain[DQ_PAGE_TOKENS * SCORES];
    const dq_simd_pages *table[3];
    const int n_tables = tables(table);
    int64_t coded = 0;
    for (int i = 0; i < (pages ? 3 : 6) * N_WIDTHS; i++) {
        stage s;
        prepare(&s, i, 1);
        for (int e = 0; e < n_tables; e++) {
            const dq_kv_rows rows = tile_of(&s, (i + e) % 2);
            const int h = (i + 3 * e) % N_Q, key = s.map.key[h];
            const dq_kv_list *list = dq_kv_list_of(s.kv, s.seq[rows.seq], 0, s.map.group[key]);
            scores(&s, table[e], &rows, h, got);
            s.math = (dq_math){0};
            scores(&s, table[0], &rows, h, plain);
            s.math = int8;
            for (int64_t r = 0; r < rows.n; r++) {
                const int64_t end = dq_kv_coded_index(s.kv, list, rows.pos[r]);
                const float *q = s.q + (rows.first + r) * N_Q * s.map.head_dim + h * s.map.head_dim;
                for (int64_t t = 0; t < dq_kv_visible(list, rows.pos[r]); t++) {
                    const bool integer = t < end && dq_kv_pos(list, t) >= s.spec.sink;
                    const float want =
                        integer ? score_of(&s, list, t, key, q) : plain[r * SCORES + t];
                    coded += integer;
                    if (memcmp(&want, &got[r * SCORES + t], sizeof want) != 0)
                        fail_msg("case %d, table %d, row %d, token %d: %.9g, expected %.9g", i, e,
                                 (int)r, (int)t, (double)got[r * SCORES + t], (double)want);
                }
            }
        }
        close_stage(&s);
    }
    assert_true(coded > 100000);
}

/* Some D that is not smooth. */
static void fill_d(float *d, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = uniform(seed + (uint32_t)i);
        d[i] = x * x * x * (i % 17 == 3 ? 1.0f : 0.01f);
    }
}

/* One page: what its codes add to the f32 part, bit for bit. */
static void check_page(stage *s, const dq_simd_pages *table, const dq_kv_list *list, int64_t page,
                       int head, int64_t coded_end, int64_t n)
{
    enum { ROWS = 11 };
    static float d[ROWS * DQ_PAGE_TOKENS], y[ROWS * 128], want[ROWS * 128];
    dq_attend_args args = arguments(s, 16, DQ_GRANULARITY_ROW);
    const int64_t dim = s->map.head_dim;
    dq_err err = {0};
    dq_cpu cpu = *dq_cpu_of(s->b);
    cpu.pages = table;
    float *scratch = dq_block_new((size_t)dq_cpu_score_floats(&args, ROWS, 1), 4, &err);
    fill_d(d, ROWS * DQ_PAGE_TOKENS, (uint32_t)(page * 977 + head));
    memset(d, 0, DQ_PAGE_TOKENS * sizeof *d); /* a row without weight */
    for (int64_t t = 0; t < DQ_PAGE_TOKENS; t++)
        d[DQ_PAGE_TOKENS + t] *= 1e-33f; /* one of no weight */
    dq_cpu_page p =
        dq_cpu_open_page(&cpu, &args, list, page, DQ_V, head, coded_end, n, ROWS, scratch);
    dq_cpu_page without = p;
    const bool sets = s->kv->form[DQ_V].set_scales != 0;
    without.kind = DQ_CPU_PLAIN;
    dq_cpu_times_values(&cpu, want, dim, &args, d, DQ_PAGE_TOKENS, ROWS, &without, false, scratch);
    dq_cpu_times_values(&cpu, y, dim, &args, d, DQ_PAGE_TOKENS, ROWS, &p, false, scratch);
    for (int64_t r = 0; r < ROWS; r++) {
        values_of(s, list, page, head, d + r * DQ_PAGE_TOKENS, sets ? p.sets.first : p.coded.first,
                  sets ? p.sets.end : p.coded.end, want + r * dim);
        for (int64_t c = 0; c < dim; c++) {
            if (memcmp(&want[r * dim + c], &y[r * dim + c], sizeof *y) != 0)
                fail_msg("%d bits, group %d, head_dim %d, page %d, row %d, channel %d: %.9g, "
                         "expected %.9g",
                         s->spec.v_bits, s->spec.group, (int)dim, (int)page, (int)r, (int)c,
                         (double)y[r * dim + c], (double)want[r * dim + c]);
        }
    }
    dq_block_free(scratch);
}

TEST(values_are_exact)
{
    const dq_simd_pages *table[3];
    const int n_tables = tables(table);
    for (int i = 0; i < (pages ? 3 : 6) * N_WIDTHS; i++) {
        stage s;
        prepare(&s, i, 1);
        for (int e = 0; e < n_tables; e++) {
            const int seq = (i + e) % 2, head = (i + e) % N_KV;
            const dq_kv_list *list = dq_kv_list_of(s.kv, s.seq[seq], 0, s.map.group[head]);
            const int64_t end = dq_kv_coded_index(s.kv, list, s.length[s.seq[seq]] - 1);
            for (int64_t p = 0; p * DQ_PAGE_TOKENS < list->count; p++)
                check_page(&s, table[e], list, p, head, end, dq_kv_slots(list->count, p));
        }
        close_stage(&s);
    }
}

/* ------------------------------------------------------------------------------------ whole calls */

/* Normalized Hadamard transform of x[n], from its definition. */
static void turn_back(double *x, int n)
{
    double y[128] = {0};
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) {
            int ones = 0;
            for (int both = i & k; both; both &= both - 1) ones++;
            y[i] += ones % 2 ? -x[k] : x[k];
        }
    }
    for (int i = 0; i < n; i++) x[i] = y[i] / sqrt(n);
}

/* p[n] += by * softmax of one map of one row, S of coded tokens by the definition. */
static void add_map(const stage *s, const dq_kv_list *list, int64_t row, int head, double by,
                    double *p, int64_t n, float *scratch)
{
    const int64_t d = s->map.head_dim, end = dq_kv_coded_index(s->kv, list, s->pos[row]);
    const float *q = s->q + (row * N_Q + head) * d, *k = NULL;
    const int key = s->map.key[head];
    double x[SCORES], max = -INFINITY, sum = 0;
    for (int64_t t = 0; t < n; t++) {
        if (t % DQ_PAGE_TOKENS == 0)
            k = dq_cpu_kv_read(dq_cpu_of(s->b)->simd, s->kv, list, t / DQ_PAGE_TOKENS, DQ_K, key,
                               end, scratch);
        x[t] = 0;
        for (int64_t c = 0; c < d; c++)
            x[t] += (double)q[c] * (double)k[c * DQ_PAGE_TOKENS + t % DQ_PAGE_TOKENS];
        if (t < end && dq_kv_pos(list, t) >= s->spec.sink)
            x[t] = (double)score_of(s, list, t, key, q);
        x[t] *= (double)s->map.scale;
        max = fmax(max, x[t]);
    }
    for (int64_t t = 0; t < n; t++) sum += exp(x[t] - max);
    for (int64_t t = 0; t < n; t++) p[t] += by * exp(x[t] - max) / sum;
}

/* y[head_dim] = D V of one row: codes page by page in 16-bit weights, the others exactly. */
static void add_values(const stage *s, const dq_kv_list *list, int64_t row, int head,
                       const double *p, int64_t n, double *y, float *scratch)
{
    const int64_t end = dq_kv_coded_index(s->kv, list, s->pos[row]), d = s->map.head_dim;
    for (int64_t page = 0; page * DQ_PAGE_TOKENS < n; page++) {
        const int64_t at = page * DQ_PAGE_TOKENS, slots = dq_kv_slots(n, page);
        const float *v =
            dq_cpu_kv_read(dq_cpu_of(s->b)->simd, s->kv, list, page, DQ_V, head, end, scratch);
        float weight[DQ_PAGE_TOKENS], coded[128] = {0};
        int64_t first = 0, coded_slots = dq_kv_slots(end, page);
        while (first < coded_slots && dq_kv_pos(list, at + first) < s->spec.sink) first++;
        for (int64_t t = 0; t < slots; t++) {
            weight[t] = (float)p[at + t];
            if (t >= first && t < coded_slots) continue;
            for (int64_t c = 0; c < d; c++) y[c] += p[at + t] * (double)v[t * s->kv->v_cols + c];
        }
        if (first < coded_slots) values_of(s, list, page, head, weight, first, coded_slots, coded);
        for (int64_t c = 0; c < d; c++) y[c] += (double)coded[c];
    }
}

/* One output head of one row, y[n_slabs * head_dim]. */
static void output_of(const stage *s, int seq, int64_t row, int out, double *y, float *scratch)
{
    const dq_head_order *map = &s->map;
    const int width = map->n_slabs * map->head_dim;
    const dq_kv_list *list = dq_kv_list_of(s->kv, s->seq[seq], 0, map->group[map->head[out].v[0]]);
    const int64_t n = dq_kv_visible(list, s->pos[row]);
    double p[SCORES] = {0}, squares = 0;
    memset(y, 0, (size_t)width * sizeof *y);
    add_map(s, list, row, map->head[out].q[0], 1, p, n, scratch);
    if (map->n_maps == 2)
        add_map(s, list, row, map->head[out].q[1], -(double)s->attn.lambda, p, n, scratch);
    for (int e = 0; e < map->n_slabs; e++) {
        add_values(s, list, row, map->head[out].v[e], p, n, y + e * map->head_dim, scratch);
        if (s->spec.rotate_v) turn_back(y + e * map->head_dim, map->head_dim);
    }
    for (int c = 0; c < width; c++) squares += y[c] * y[c];
    for (int c = 0; c < width; c++)
        y[c] *= (double)s->attn.out_scale / sqrt(squares / width + (double)s->attn.norm_eps);
}

/* Forgets every third token of sequence `seq`, whatever its form. */
static void evict_some(stage *s, int32_t seq)
{
    for (int g = 0; g < s->map.n_groups; g++) {
        int32_t kept[SCORES];
        const int64_t count = dq_kv_list_of(s->kv, seq, 0, g)->count;
        int n = 0;
        for (int32_t i = 0; i < count; i++) {
            if (i < 70 || i % 3 > 0) kept[n++] = i;
        }
        keep(s, seq, g, kept, n);
    }
}

/* Everything between queries and outputs, beside the definition in double precision: what is left over is
 * the rounding of f32. */
TEST(outputs_are_as_defined)
{
    double worst = 0;
    for (int i = 0; i < (pages ? 3 : 6) * N_WIDTHS; i++) {
        stage s;
        dq_err err = {0};
        dq_kv_spec spec = spec_of(i);
        const int d = dims[i % 6];
        spec.rotate_k = spec.rotate_v = i / 6 % 2 && (d & (d - 1)) == 0;
        open_stage(&s, pairings[i / 2 % N_PAIRINGS], d, spec, 2);
        s.math = int8;
        int32_t a = new_seq(&s, 1, 0), b = new_seq(&s, 2, 60000);
        stream(&s, a, 210);
        stream(&s, b, 75);
        if (i % 4 == 3) evict_some(&s, a);
        begin_batch(&s);
        add_rows(&s, b, 70);
        add_rows(&s, a, 40);
        append(&s);
        attend(&s, 16);
        float *scratch =
            dq_block_new((size_t)dq_cpu_kv_scratch_floats(s.kv), sizeof *scratch, &err);
        const int width = s.map.n_slabs * d;
        for (int64_t row = i % 19; row < s.batch.n_rows; row += 19) {
            for (int out = 0; out < s.map.n_out; out++) {
                double want[256], max = 0, off = 0;
                const float *got = s.out + (row * s.map.n_out + out) * width;
                output_of(&s, row >= s.cu_rows[1], row, out, want, scratch);
                for (int c = 0; c < width; c++) {
                    max = fmax(max, fabs(want[c]));
                    off = fmax(off, fabs(want[c] - (double)got[c]));
                }
                worst = fmax(worst, off / max);
                if (!(off <= 1e-4 * max))
                    fail_msg("case %d, row %d, head %d: off by %g of %g", i, (int)row, out, off,
                             max);
            }
        }
        dq_block_free(scratch);
        close_stage(&s);
    }
    print_message("off by %.1e of the largest at most\n", worst);
}

/* Products of m rows with one page of keys and of values, opened for `rows`: s[m][DQ_PAGE_TOKENS], y[m][head_dim]. */
static void page_products(stage *s, const dq_simd_pages *table, const dq_kv_list *list,
                          int64_t page, int64_t m, int64_t rows, float *out, float *scratch)
{
    dq_attend_args args = arguments(s, 16, DQ_GRANULARITY_ROW);
    const int64_t d = s->map.head_dim, n = dq_kv_slots(list->count, page);
    const int64_t end = dq_kv_coded_index(s->kv, list, s->pos[s->cu_rows[1] - 1]);
    dq_cpu cpu = *dq_cpu_of(s->b);
    cpu.pages = table;
    float *y = out + m * DQ_PAGE_TOKENS;
    memset(out, 0, (size_t)(m * (DQ_PAGE_TOKENS + d)) * sizeof *out);
    const dq_simd_int8_rows q =
        dq_cpu_round_rows(&cpu, &args, args.q.p, d, m, dq_cpu_rounded_at(&args, scratch));
    dq_cpu_page p = dq_cpu_open_page(&cpu, &args, list, page, DQ_K, 0, end, n, rows, scratch);
    dq_cpu_rows_times_keys(&cpu, out, DQ_PAGE_TOKENS, &args, args.q.p, d, m, &q, 0, &p, scratch);
    p = dq_cpu_open_page(&cpu, &args, list, page, DQ_V, 0, end, n, rows, scratch);
    dq_cpu_times_values(&cpu, y, d, &args, out, DQ_PAGE_TOKENS, m, &p, false, scratch);
}

/* Few rows read codes as they lie, many a block of them. */
TEST(few_rows_are_rows_of_many)
{
    static float few[4 * (DQ_PAGE_TOKENS + 128)], many[4 * (DQ_PAGE_TOKENS + 128)];
    const dq_simd_pages *table[3];
    const int n_tables = tables(table);
    for (int i = 0; i < 6 * N_WIDTHS; i++) {
        stage s;
        dq_err err = {0};
        open_stage(&s, DQ_PAIR_NONE, dims[(i + i / 6) % 6], spec_of(i), 1);
        s.math = int8;
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 300);
        begin_batch(&s);
        add_rows(&s, a, 5);
        append(&s);
        attend(&s, 16); /* makes codes */
        dq_attend_args args = arguments(&s, 16, DQ_GRANULARITY_ROW);
        float *scratch = dq_block_new((size_t)dq_cpu_score_floats(&args, 4, 1), 4, &err);
        const dq_kv_list *list = dq_kv_list_of(s.kv, a, 0, 0);
        for (int64_t m = 1; m <= DQ_PAGES_FEW; m++) {
            const size_t bytes = (size_t)(m * (DQ_PAGE_TOKENS + s.map.head_dim)) * sizeof *few;
            for (int64_t page = 0; page < list->n_pages; page++) {
                page_products(&s, table[0], list, page, m, DQ_PAGE_TOKENS, many, scratch);
                for (int e = 0; e < n_tables; e++) {
                    page_products(&s, table[e], list, page, m, m, few, scratch);
                    if (memcmp(few, many, bytes) != 0)
                        fail_msg("case %d, table %d, page %d, %d rows", i, e, (int)page, (int)m);
                }
            }
        }
        dq_block_free(scratch);
        close_stage(&s);
    }
}

/* What attention hands to the products of per-channel codes: how many pages of whole sets, and how many of them have a way of their own. */
static const dq_simd_pages *real;
static int64_t whole, own_way;

static void note(const dq_simd_set_page *page, int64_t m)
{
    if (page->first != 0 || page->end != DQ_PAGE_TOKENS) return;
    whole++;
    own_way += real->few_of_set(page, m);
}

static void noted_scores(float *s, int64_t lds, const float *q, int64_t ldq, int64_t m,
                         const dq_simd_set_page *page, void *work)
{
    note(page, m);
    real->set_scores(s, lds, q, ldq, m, page, work);
}

static void noted_sums(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                       const dq_simd_set_page *page, void *work)
{
    note(page, m);
    real->set_sums(y, ldy, d, ldd, m, page, work);
}

/* One row of a sequence reads its whole pages of 8 and 4 bits by the way that few rows have with AVX-512 VNNI. */
TEST(decoding_takes_the_way_of_few_rows)
{
    const unsigned vnni = DQ_CPU_AVX2 | DQ_CPU_AVX512 | DQ_CPU_VNNI;
    const bool has = (dq_os_cpu_features(NULL) & vnni) == vnni;
    if (!pages || mixed) skip();
    for (int i = 0; i < 3 * N_PAIRINGS; i++) {
        static const int widths[][2] = {{8, 8}, {4, 4}, {6, 3}};
        dq_kv_spec spec = spec_of(1);
        stage s;
        spec.k_bits = widths[i % 3][0];
        spec.v_bits = widths[i % 3][1];
        spec.sink = spec.recent = 0;
        open_stage(&s, pairings[i / 3], 64, spec, 1);
        s.math = int8;
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 300);
        begin_batch(&s);
        add_rows(&s, a, 1);
        append(&s);
        real = dq_cpu_of(s.b)->pages;
        dq_simd_pages noted = *real;
        noted.set_scores = noted_scores;
        noted.set_sums = noted_sums;
        dq_cpu_of(s.b)->pages = &noted;
        whole = own_way = 0;
        attend(&s, 16);
        assert_true(whole >= 2 * 4); /* four pages of keys and of values */
        assert_int_equal(own_way, has && i % 3 < 2 ? whole : 0);
        dq_cpu_of(s.b)->pages = real;
        close_stage(&s);
    }
}

/* One map, no norm: the same bits as scores, one softmax, and pages of values one after the other. */
TEST(pages_are_added_in_order)
{
    static float x[DQ_PAGE_TOKENS * SCORES];
    for (int i = 0; i < N_WIDTHS; i++) {
        stage s;
        dq_err err = {0};
        dq_kv_spec spec = spec_of(i);
        float y[128];
        open_stage(&s, DQ_PAIR_NONE, dims[i % 6], spec, 2);
        s.math = int8;
        s.attn.head_norm = false;
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 300);
        begin_batch(&s);
        add_rows(&s, a, 5);
        append(&s);
        attend(&s, 16);
        const int64_t d = s.map.head_dim, last = 4;
        const dq_cpu *cpu = dq_cpu_of(s.b);
        const dq_kv_rows rows = {.n = 1, .first = last, .pos = s.pos + last};
        dq_attend_args args = arguments(&s, 16, DQ_GRANULARITY_ROW);
        float *scratch = dq_block_new((size_t)dq_cpu_score_floats(&args, 1, 1), 4, &err);
        for (int h = 0; h < N_Q; h++) {
            const int v = s.map.head[h].v[0];
            const dq_kv_list *list = dq_kv_list_of(s.kv, a, 0, s.map.group[v]);
            const int64_t n = list->count, end = dq_kv_coded_index(s.kv, list, s.pos[last]);
            scores(&s, cpu->pages, &rows, h, x);
            const float top = cpu->simd->scale_max(x, n, s.map.scale);
            const double sum = cpu->simd->exp_sum(x, x, n, top);
            for (int64_t p = 0; p * DQ_PAGE_TOKENS < n; p++) {
                const dq_cpu_page page = dq_cpu_open_page(cpu, &args, list, p, DQ_V, v, end,
                                                          dq_kv_slots(n, p), 1, scratch);
                dq_cpu_times_values(cpu, y, d, &args, x + p * DQ_PAGE_TOKENS, SCORES, 1, &page,
                                    p > 0, scratch);
            }
            cpu->simd->scale(y, d, (float)(1.0 / sum));
            cpu->simd->scale(y, d, s.attn.out_scale);
            assert_memory_equal(y, s.out + (last * N_Q + h) * d, (size_t)d * sizeof *y);
        }
        dq_block_free(scratch);
        close_stage(&s);
    }
}

enum { TOKENS = 330 };

typedef struct way {
    int chunk, threads, bits;
    bool settles, company, plain_table;
} way;

static float *in_chunks(int i, way w)
{
    stage s;
    open_stage(&s, pairings[i % N_PAIRINGS], dims[i % 6], spec_of(i), w.threads);
    s.math = int8;
    if (w.plain_table) dq_cpu_of(s.b)->pages = &dq_simd_pages_scalar;
    int32_t a = new_seq(&s, 1, 0), other = new_seq(&s, 9, 0);
    const size_t row = (size_t)out_cols(&s);
    float *out = calloc(TOKENS * MAX_WIDTH, sizeof *out);
    for (int at = 0; at < TOKENS; at += w.chunk) {
        const int n = TOKENS - at < w.chunk ? TOKENS - at : w.chunk, before = w.company ? 1 : 0;
        begin_batch(&s);
        if (before) add_rows(&s, other, before);
        add_rows(&s, a, n);
        append(&s);
        attend(&s, w.bits);
        if (w.settles) compact_stage(&s);
        memcpy(out + (size_t)at * row, s.out + (size_t)before * row, (size_t)n * row * sizeof *out);
    }
    close_stage(&s);
    return out;
}

TEST(nothing_shows_in_the_bits)
{
    static const way ways[] = {{1, 1, 0, true, false, false},
                               {7, 2, 0, true, true, false},
                               {64, 2, 0, false, false, true},
                               {100, 1, 0, true, true, false}};
    for (int i = 0; i < N_WIDTHS; i++) {
        const int bits = i % 2 ? 16 : 4;
        float *want = in_chunks(i, (way){TOKENS, 1, bits, false, false, false});
        for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
            way w = ways[k];
            w.bits = bits;
            float *got = in_chunks(i, w);
            assert_memory_equal(got, want, TOKENS * MAX_WIDTH * sizeof *want);
            free(got);
        }
        free(want);
    }
}

/* Granularitys that span rows are rounded by the logits that attend uses, and observed are the same. */
TEST(absmax_is_of_these_logits)
{
    static float got[DQ_PAGE_TOKENS * SCORES];
    for (int i = 0; i < N_WIDTHS; i++) {
        stage s;
        float max[2 * N_Q], all = 0;
        prepare(&s, i, 2);
        dq_attend_args args = arguments(&s, 4, DQ_GRANULARITY_HEAD);
        s.b->ops->attn_absmax(s.b, max, &args);
        for (int e = 0; e < 2 * N_Q; e++) {
            const int seq = e / N_Q, h = e % N_Q;
            const dq_kv_list *list = dq_kv_list_of(s.kv, s.seq[seq], 0, s.map.group[s.map.key[h]]);
            float want = 0;
            for (int64_t end = s.cu_rows[seq + 1]; end > s.cu_rows[seq];) {
                dq_kv_rows rows;
                dq_cpu_rows_last_tile(&rows, &s.batch, seq, s.cu_rows[seq], end);
                end = rows.first;
                scores(&s, dq_cpu_of(s.b)->pages, &rows, h, got);
                for (int64_t r = 0; r < rows.n; r++) {
                    for (int64_t t = 0; t < dq_kv_visible(list, rows.pos[r]); t++)
                        want = fmaxf(want, fabsf(got[r * SCORES + t] * s.map.scale));
                }
            }
            assert_memory_equal(&max[e], &want, sizeof want);
            all = fmaxf(all, want);
        }
        dq_tally tally;
        dq_err err = {0};
        assert_int_equal(dq_tally_init(&tally, &err), DQ_OK);
        s.b->ops->attn_observe(s.b, &tally, &args, 0);
        expect_no_error(&s);
        assert_true(tally.n > 0 && tally.top[0] == all);
        dq_tally_free(&tally);
        close_stage(&s);
    }
}

/* Length of the difference of int8 and f32 attention over that of the latter, per pair of widths. */
TEST(outputs_are_near)
{
    for (int i = 0; i < N_WIDTHS; i++) {
        stage s;
        static float exact[40 * MAX_WIDTH];
        dq_kv_spec spec = dq_kv_plain;
        double off = 0, size = 0;
        spec.num = DQ_NUM_INT8;
        spec.k_bits = k_widths[i % 3];
        spec.v_bits = v_widths[i / 3];
        spec.quant = mixed ? DQ_KV_MIXED : pages ? DQ_KV_DITHER : DQ_KV_PER_TOKEN;
        open_stage(&s, DQ_PAIR_HALVES, 64, spec, 2);
        s.attn.head_norm = false;
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 450);
        begin_batch(&s);
        add_rows(&s, a, 40);
        append(&s);
        attend(&s, 16);
        const int64_t n = s.batch.n_rows * out_cols(&s);
        memcpy(exact, s.out, (size_t)n * sizeof *exact);
        s.math = int8;
        attend(&s, 16);
        for (int64_t k = 0; k < n; k++) {
            off += pow((double)(s.out[k] - exact[k]), 2);
            size += pow((double)exact[k], 2);
        }
        print_message("K %d, V %d bits: int8 is %.2e from f32\n", spec.k_bits, spec.v_bits,
                      sqrt(off / size));
        assert_true(sqrt(off / size) > 1e-6 && sqrt(off / size) < 0.02);
        close_stage(&s);
    }
}

/* A value that is not finite reaches the rows that read it, and none before its page. */
TEST(odd_values_show)
{
    stage s;
    dq_kv_spec spec = spec_of(0);
    spec.recent = 0;
    open_stage(&s, DQ_PAIR_ADJACENT, 32, spec, 2);
    s.math = int8;
    int32_t a = new_seq(&s, 1, 0);
    begin_batch(&s);
    add_rows(&s, a, 160);
    s.v[70 * N_KV * 32 + 3] = NAN;
    append(&s);
    attend(&s, 16);
    for (int64_t r = 0; r < 160; r++) { /* 0 * NaN: rows whose page has one may see it early */
        if (r < 64 || r >= 70) assert_int_equal(isnan(s.out[r * out_cols(&s)]) != 0, r >= 70);
    }
    close_stage(&s);
}

static const char *codes(int run)
{
    static const char *const name[] = {"per-token codes", "per-channel codes", "mixed codes", NULL};
    pages = run > 0;
    mixed = run == 2;
    return name[run];
}

RUNS(codes)
