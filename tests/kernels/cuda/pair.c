/* pair: every call goes to the CPU and to the CUDA device, with the same numbers from one generator.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/pair_rig.h"

#include "base/os.h"

dq_kv_spec spec_of(int i)
{
    static const int k[] = {8, 6, 4, 16}, v[] = {3, 8, 6, 4, 2, 16}, groups[] = {32, 7, 24, 1000},
                     sinks[] = {4, 0, 70}, recents[] = {10, 64, 0};
    dq_kv_spec spec = dq_kv_plain;
    spec.k_bits = k[i % 4];
    spec.v_bits = v[i % 6];
    spec.group = groups[i / 2 % 4];
    spec.sink = sinks[i / 3 % 3];
    spec.recent = recents[i % 3];
    return spec;
}

dq_kv_dense dense_of(int i)
{
    return (dq_kv_dense)((i + i / DQ_KV_DENSE_TYPES) % DQ_KV_DENSE_TYPES);
}

dq_kv_spec page_spec_of(int i)
{
    static const int width[] = {4, 5, 3, 8, 2, 6};
    static const struct {
        const char *text;
        int k, v;
    } maps[] = {{"5+3:6", 5, 6}, {"2+8:3", 8, 3}};
    dq_kv_spec spec = spec_of(i);
    spec.quant = i % 3 ? DQ_KV_DITHER : DQ_KV_PER_CHANNEL;
    spec.k_bits = i % 7 == 5 ? 16 : width[i % 6];
    spec.v_bits = i % 7 == 6 ? 16 : width[(i + 1 + i / 6) % 6];
    if (i % 4 != 3) return spec;
    strcpy(spec.widths, maps[i / 4 % 2].text);
    spec.k_bits = maps[i / 4 % 2].k;
    spec.v_bits = maps[i / 4 % 2].v;
    return spec;
}

dq_kv_spec mixed_spec_of(int i)
{
    dq_kv_spec spec = page_spec_of(i);
    spec.quant = DQ_KV_MIXED;
    spec.group = i % 2 ? 8 : 32;
    return spec;
}

dq_kv_spec damaged_spec_of(int i, bool mixed)
{
    dq_kv_spec spec = mixed ? mixed_spec_of(i) : page_spec_of(i);
    if (spec.k_bits == 16) spec.k_bits = 8;
    if (spec.v_bits == 16) spec.v_bits = 3;
    if (i % 4 != 1) return spec;
    strcpy(spec.widths,
           i / 4 % 2 ? "4|3+8:6|5" : "8|2+5:3|4"); /* the last layer is the one tested */
    spec.k_bits = 8;
    spec.v_bits = i / 4 % 2 ? 6 : 4;
    return spec;
}

float pair_value(pair *p)
{
    p->seed = p->seed * 1664525u + 1013904223u;
    return (float)(int32_t)(p->seed ^ p->seed >> 15) / 2147483648.0f;
}

static void open_map(pair *p, dq_pairing pairing, int head_dim, dq_kv_spec spec, bool uneven)
{
    static const int16_t three_and_one[PAIR_KV] = {0, 0, 0, 1};
    const char *const name[] = {"cpu", rig_name()};
    dq_err err = {0};
    memset(p, 0, sizeof *p);
    p->arena = dq_arena_new();
    p->seed = 1;
    p->spec = spec;
    assert_int_equal(dq_head_order_build(&p->map, pairing, PAIR_Q, PAIR_KV, head_dim,
                                         pairing == DQ_PAIR_GROUPED ? 2 : 0, p->arena, &err),
                     DQ_OK);
    if (uneven) {
        p->map.group = three_and_one;
        p->map.n_groups = 2;
    }
    assert_int_equal(dq_kv_check(&spec, head_dim, &err), DQ_OK);
    for (const char *c = spec.widths; (c = strchr(c, '|')) && c < strchr(spec.widths, ':'); c++)
        p->layer++;
    p->attn = (dq_attn){.map = &p->map, .out_scale = 1.0f, .norm_eps = 1e-5f};
    if (p->map.n_maps == 2) {
        p->attn.lambda_kind = DQ_LAMBDA_LAYER;
        p->attn.lambda = 0.4f;
    }
    for (int i = 0; i < 256; i++) p->gain[i] = 1.0f + 0.25f * pair_value(p);
    for (int i = 0; i < N_ARRAYS; i++)
        p->host[i] = calloc((size_t)PAIR_ROWS * PAIR_WIDTH, sizeof(float));
    for (int k = CPU; k <= CUDA; k++) {
        assert_int_equal(dq_backend_open(&p->b[k], name[k], 2, &err), DQ_OK);
        p->kv[k] = p->b[k]->ops->kv_new(p->b[k], &p->map, p->layer + 1, &p->spec);
        assert_non_null(p->kv[k]);
        for (int i = 0; i < N_ARRAYS; i++)
            p->at[k][i] = p->b[k]->ops->alloc(p->b[k], PAIR_ROWS * PAIR_WIDTH * sizeof(float));
    }
}

void pair_open(pair *p, dq_pairing pairing, int head_dim, dq_kv_spec spec)
{
    open_map(p, pairing, head_dim, spec, false);
}

void pair_open_uneven(pair *p, int head_dim, dq_kv_spec spec)
{
    open_map(p, DQ_PAIR_NONE, head_dim, spec, true);
}

void pair_sync(pair *p)
{
    for (int k = CPU; k <= CUDA; k++) {
        dq_err err = {0};
        if (dq_backend_sync(p->b[k], &err) != DQ_OK)
            print_error("%s: %s\n%s\n", p->b[k]->ops->name, err.text, dq_simt_report());
        assert_int_equal(err.code, DQ_OK);
    }
}

void pair_close(pair *p)
{
    pair_sync(p);
    for (int k = CPU; k <= CUDA; k++) {
        for (int i = 0; i < N_ARRAYS; i++) p->b[k]->ops->free(p->b[k], p->at[k][i]);
        p->b[k]->ops->kv_free(p->b[k], p->kv[k]);
        dq_backend_close(p->b[k]);
    }
    for (int i = 0; i < N_ARRAYS; i++) free(p->host[i]);
    dq_arena_free(p->arena);
}

int32_t pair_seq(pair *p, int32_t start)
{
    const int32_t seq = p->b[CPU]->ops->kv_seq_new(p->b[CPU], p->kv[CPU]);
    assert_int_equal(p->b[CUDA]->ops->kv_seq_new(p->b[CUDA], p->kv[CUDA]), seq);
    p->length[seq] = start;
    return seq;
}

int32_t pair_fork(pair *p, int32_t from)
{
    const int32_t seq = p->b[CPU]->ops->kv_fork(p->b[CPU], p->kv[CPU], from);
    assert_int_equal(p->b[CUDA]->ops->kv_fork(p->b[CUDA], p->kv[CUDA], from), seq);
    p->length[seq] = p->length[from];
    return seq;
}

void pair_begin(pair *p)
{
    p->batch = (dq_batch){.cu_rows = p->cu_rows, .seq = p->seq, .ids = p->ids, .pos = p->pos};
}

void pair_rows(pair *p, int32_t seq, int n)
{
    const int d = p->map.head_dim;
    p->seq[p->batch.n_seq++] = seq;
    for (int i = 0; i < n; i++) {
        const int64_t row = p->batch.n_rows++;
        p->pos[row] = p->length[seq]++;
        for (int c = 0; c < PAIR_Q * d; c++) p->host[A_Q][row * PAIR_Q * d + c] = 2 * pair_value(p);
        for (int c = 0; c < PAIR_KV * d; c++) {
            const float loud = c % d == 5 ? 9.0f : 1.0f;
            p->host[A_K][row * PAIR_KV * d + c] = loud * pair_value(p);
            p->host[A_V][row * PAIR_KV * d + c] = pair_value(p);
        }
        for (int c = 0; c < p->map.n_out; c++)
            p->host[A_LAMBDA][row * p->map.n_out + c] = pair_value(p);
    }
    p->cu_rows[p->batch.n_seq] = p->batch.n_rows;
}

dq_mat pair_mat(const pair *p, int k, int array)
{
    const int d = p->map.head_dim;
    const int cols[N_ARRAYS] = {PAIR_Q * d, PAIR_KV * d, PAIR_KV * d, p->map.n_out,
                                p->map.n_out * p->map.n_slabs * d};
    return (dq_mat){.p = p->at[k][array], .rows = p->batch.n_rows, .cols = cols[array]};
}

void pair_append(pair *p)
{
    for (int k = CPU; k <= CUDA; k++) {
        for (int i = A_Q; i < A_OUT; i++) {
            const dq_mat m = pair_mat(p, k, i);
            p->b[k]->ops->put(p->b[k], m.p, p->host[i], (size_t)(m.rows * m.cols) * sizeof(float));
        }
        p->b[k]->ops->kv_append(p->b[k], p->kv[k], p->layer, &p->batch, pair_mat(p, k, A_K),
                                pair_mat(p, k, A_V), k == CUDA ? p->math.qk : DQ_NUM_F32);
    }
}

void pair_compact(pair *p)
{
    for (int k = CPU; k <= CUDA; k++)
        p->b[k]->ops->kv_compact(p->b[k], p->kv[k], p->layer, &p->batch, p->attn.window);
}

void pair_keep(pair *p, int32_t seq, int group, const int32_t *kept, int64_t n)
{
    for (int k = CPU; k <= CUDA; k++)
        p->b[k]->ops->kv_keep(p->b[k], p->kv[k], seq, p->layer, group, kept, n);
}

dq_attend_args pair_args(const pair *p, int k, dq_logit_spec logit)
{
    dq_attend_args a = {.attn = &p->attn,
                        .batch = &p->batch,
                        .kv = p->kv[k],
                        .layer = p->layer,
                        .q = pair_mat(p, k, A_Q),
                        .logit = logit};
    a.math = k == CUDA ? p->math : p->cpu_math;
    if (p->attn.lambda_kind == DQ_LAMBDA_TOKEN) a.lambda = pair_mat(p, k, A_LAMBDA);
    return a;
}

void pair_scene(pair *p, bool evicts)
{
    const int32_t a = pair_seq(p, 0), b = pair_seq(p, 60000);
    pair_begin(p);
    pair_rows(p, a, PAIR_FIRST);
    pair_rows(p, b, 70);
    pair_append(p);
    pair_compact(p);
    for (int g = 0; evicts && g < p->map.n_groups; g++) {
        int32_t kept[PAIR_FIRST], n = 0;
        for (int32_t i = 0; i < PAIR_FIRST; i++) {
            if (i < 4 || i >= 60 - 3 * g || (i * 7 + g) % 3 == 0) kept[n++] = i;
        }
        pair_keep(p, a, g, kept, n);
    }
    const int32_t c = pair_fork(p, a);
    pair_begin(p);
    pair_rows(p, b, 1);
    pair_rows(p, a, 50);
    pair_rows(p, c, 21);
    pair_append(p);
    pair_sync(p);
}

bool pair_window_step(pair *p, int step)
{
    static const int rows[][3] = {{110, 70}, {150, 1}, {64, 0, 21}, {1, 1, 1}, {70, 130, 1}, {1}};
    if (step == sizeof rows / sizeof *rows) return false;
    if (step) {
        pair_compact(p);
    } else {
        pair_seq(p, 0);
        pair_seq(p, 60000);
    }
    if (step == 2) pair_fork(p, 0);
    pair_begin(p);
    for (int k = 0; k < 3; k++) {
        if (rows[step][k]) pair_rows(p, k, rows[step][k]);
    }
    pair_append(p);
    pair_sync(p);
    return true;
}

enum { DAMAGED_FIRST = 200, DAMAGED_TOKEN = 100, DAMAGED_ALIKE = 2 };

static void damage(pair *p, int i)
{
    static const struct {
        int array;
        float x, y; /* y: of the token after it, of mixed values of the next channel; if not 0 */
    } of[N_DAMAGES] = {{A_K, NAN, 0}, {A_V, INFINITY, 0},   {A_K, -INFINITY, 0},
                       {A_V, NAN, 0}, {A_V, 3e38f, -3e38f}, {A_K, -3e38f, 3e38f}};
    const int64_t width = (int64_t)PAIR_KV * p->map.head_dim;
    const int array = of[i % N_DAMAGES].array;
    const bool mixed = p->spec.quant == DQ_KV_MIXED;
    float *x = p->host[array] + DAMAGED_TOKEN * width + i % PAIR_KV * p->map.head_dim + 3;
    *x = of[i % N_DAMAGES].x;
    if (of[i % N_DAMAGES].y != 0) x[mixed && array == A_V ? 1 : width] = of[i % N_DAMAGES].y;
    for (int64_t c = 0; mixed && c < width; c++)
        p->host[A_V][(DAMAGED_TOKEN - 1) * width + c] = 0.3f;
    for (int64_t t = DAMAGED_TOKEN / 64 * 64; t < DAMAGED_TOKEN / 64 * 64 + 64; t++) {
        for (int h = 0; h < PAIR_KV; h++)
            p->host[A_K][t * width + h * p->map.head_dim + DAMAGED_ALIKE] =
                p->host[A_V][t * width + h * p->map.head_dim + DAMAGED_ALIKE] = 0.3f;
    }
}

void pair_damaged_scene(pair *p, int i, int rows)
{
    const int32_t a = pair_seq(p, 0);
    const dq_math math = p->math;
    pair_begin(p);
    pair_rows(p, a, DAMAGED_FIRST);
    damage(p, i);
    p->math.qk = DQ_NUM_F32; /* none of these rows attends */
    pair_append(p);
    p->math = math;
    pair_compact(p);
    for (int g = 0; i % 2 && g < p->map.n_groups; g++) {
        int32_t kept[DAMAGED_FIRST], n = 0;
        for (int32_t t = 0; t < DAMAGED_FIRST; t++) {
            /* damage of mixed values goes with its token */
            const bool lost = t == DAMAGED_TOKEN && p->spec.quant == DQ_KV_MIXED;
            if (t < 4 || t >= 120 || (t * 7 + g + i) % 3 == 0 || lost) kept[n++] = t;
        }
        pair_keep(p, a, g, kept, n);
    }
    pair_begin(p);
    pair_rows(p, a, rows);
    if (i / 2 % 2) p->host[A_Q][(rows - 1) * PAIR_Q * p->map.head_dim + 1] = INFINITY;
    pair_append(p);
    pair_sync(p);
}

void compare_damaged(pair *p, double tolerance, bool equal)
{
    const dq_mat m = pair_mat(p, CPU, A_OUT);
    const size_t n = (size_t)(m.rows * m.cols);
    float *got[2];
    size_t lost = 0;
    double max = 0;
    for (int k = CPU; k <= CUDA; k++) {
        got[k] = calloc(n, sizeof(float));
        p->b[k]->ops->get(p->b[k], got[k], p->at[k][A_OUT], n * sizeof(float));
    }
    pair_sync(p);
    for (size_t i = 0; i < n; i++)
        if (isfinite(got[CPU][i])) max = fmax(max, fabs((double)got[CPU][i]));
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[CPU][i] - (double)got[CUDA][i]);
        const bool same = equal ? memcmp(&got[CPU][i], &got[CUDA][i], sizeof(float)) == 0
                                : got[CPU][i] == got[CUDA][i] || off <= tolerance * max;
        lost += isnan(got[CPU][i]) != 0;
        if (same || (isnan(got[CPU][i]) && isnan(got[CUDA][i]))) continue;
        fail_msg("row %zu column %zu: %g, not %g", i / (size_t)m.cols, i % (size_t)m.cols,
                 (double)got[CUDA][i], (double)got[CPU][i]);
    }
    assert_true(lost > 0 && lost < n);
    free(got[CPU]);
    free(got[CUDA]);
}

void compare_within(pair *p, double tolerance, bool equal)
{
    const dq_mat m = pair_mat(p, CPU, A_OUT);
    const size_t n = (size_t)(m.rows * m.cols);
    float *got[2];
    double max = 0, worst = 0;
    for (int k = CPU; k <= CUDA; k++) {
        got[k] = calloc(n, sizeof(float));
        p->b[k]->ops->get(p->b[k], got[k], p->at[k][A_OUT], n * sizeof(float));
    }
    pair_sync(p);
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[CPU][i] - (double)got[CUDA][i]);
        max = fmax(max, fabs((double)got[CPU][i]));
        worst = off > worst || off != off ? off : worst;
    }
    if (!(worst <= tolerance * max)) print_error("off by %g of %g\n", worst, max);
    assert_true(worst <= tolerance * max);
    if (equal) assert_memory_equal(got[CPU], got[CUDA], n * sizeof(float));
    free(got[CPU]);
    free(got[CUDA]);
}

void compare_outputs(pair *p)
{
    compare_within(p, 2e-6, dq_os_cpu_features(NULL) & (DQ_CPU_AVX2 | DQ_CPU_AVX512));
}

void attend_both(pair *p, dq_logit_spec logit, const dq_columns columns[2],
                 dq_head_measure *const measure[2])
{
    float *absmax[2];
    for (int k = CPU; k <= CUDA; k++) {
        const dq_ops *op = p->b[k]->ops;
        dq_attend_args a = pair_args(p, k, logit);
        absmax[k] = op->alloc(p->b[k], PAIR_SEQ * PAIR_Q * sizeof(float));
        if (dq_logit_needs_absmax(logit)) {
            op->attn_absmax(p->b[k], absmax[k], &a);
            if (logit.granularity == DQ_GRANULARITY_TENSOR)
                op->absmax_join(p->b[k], absmax[k], p->batch.n_seq, PAIR_Q);
            a.absmax = absmax[k];
        }
        if (columns) a.columns = &columns[k];
        if (measure) a.measure = measure[k];
        if (p->spans[k].sums) a.spans = &p->spans[k];
        op->attend(p->b[k], pair_mat(p, k, A_OUT), &a);
        op->free(p->b[k], absmax[k]);
    }
}

void pair_count_spans(pair *p, const int64_t last[PAIR_SEQ])
{
    for (uint32_t i = 0; i < PAIR_LABELS; i++)
        p->label[i] = (uint8_t)((i * 2654435761u >> 20) % PAIR_CLASSES);
    for (int i = 0; i < PAIR_SEQ; i++) {
        p->label_at[i] = p->seq[i] == 1 ? 0 : 100 * i; /* sequence 1 stands at 60000 */
        p->counted[i] = last[i];
    }
    memset(p->shares, 0, sizeof p->shares);
    for (int k = CPU; k <= CUDA; k++)
        p->spans[k] =
            (dq_attention_spans){PAIR_CLASSES, p->label, p->label_at, p->counted, p->shares[k]};
}

void compare_spans(const pair *p, double tolerance)
{
    int64_t rows = 0;
    for (int i = 0; i < p->batch.n_seq * p->map.n_out; i++) {
        const dq_span_share *a = &p->shares[CPU][i], *b = &p->shares[CUDA][i];
        assert_int_equal(a->rows, b->rows);
        rows += a->rows;
        for (int n = 0; n < DQ_N_SPAN_NORMS; n++) {
            assert_int_equal(a->skipped[n], b->skipped[n]);
            for (int c = 0; c < DQ_SPAN_CLASSES; c++) {
                const double off = fabs(a->share[n][c] - b->share[n][c]);
                if (!(off <= tolerance * (double)(1 + a->rows)))
                    print_error("spans: %.17g, %.17g\n", a->share[n][c], b->share[n][c]);
                assert_true(off <= tolerance * (double)(1 + a->rows));
            }
        }
    }
    assert_true(rows > 0);
}

void set_options(pair *p, int i)
{
    static const float lambdas[] = {0.4f, -0.3f, 0.0f, 1.4f};
    p->attn.head_norm = i % 2 == 0;
    p->attn.gain = i % 3 == 0 ? p->gain : NULL;
    p->attn.out_scale = i % 3 == 1 ? 0.2f : 1.0f;
    if (p->map.n_maps < 2) return;
    p->attn.lambda_kind = i % 2 ? DQ_LAMBDA_TOKEN : DQ_LAMBDA_LAYER;
    p->attn.lambda = lambdas[i % 4];
}
