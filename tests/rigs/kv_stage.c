/* kv_stage: data that depend on a sequence's tag and a position only, so that two caches can be fed alike; every batch
 * goes to the device and to the f64 oracle.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/kv_stage.h"
#include "tests/rigs/pairings.h"

float uniform(uint32_t seed)
{
    return (float)(mix(seed) >> 8) / 8388608.0f - 1.0f;
}

dq_mat mat(float *p, int64_t rows, int64_t cols)
{
    return (dq_mat){.p = p, .rows = rows, .cols = cols};
}

int64_t out_cols(const stage *s)
{
    return (int64_t)s->map.n_out * s->map.n_slabs * s->map.head_dim;
}

dq_kv_spec with_widths(dq_kv_spec spec, const char *widths, int n_layers)
{
    dq_kv_widths w;
    dq_err err = {0};
    assert_int_equal(dq_kv_widths_parse(&w, widths, &err), DQ_OK);
    assert_int_equal(dq_kv_widths_fit(&w, n_layers, &err), DQ_OK);
    assert_int_equal(dq_kv_widths_text(spec.widths, &w, &err), DQ_OK);
    spec.k_bits = dq_kv_widths_largest(&w, 0);
    spec.v_bits = dq_kv_widths_largest(&w, 1);
    return spec;
}

void open_stage(stage *s, dq_pairing pairing, int head_dim, dq_kv_spec spec, int threads)
{
    dq_err err = {0};
    memset(s, 0, sizeof *s);
    s->arena = given_arena();
    s->spec = spec;
    s->map = pairings_map(pairing, N_Q, N_KV, head_dim);
    assert_int_equal(dq_kv_check(&spec, head_dim, &err), DQ_OK);
    s->b = given_backend(threads);
    s->kv = s->b->ops->kv_new(s->b, &s->map, 1, &spec);
    assert_non_null(s->kv);
    s->oracle = dq_oracle_new(&s->map);
    s->oracle->spec = spec;
    s->attn = (dq_attn){.map = &s->map, .out_scale = 0.5f, .head_norm = true, .norm_eps = 1e-5f};
    if (s->map.n_maps == 2) {
        s->attn.lambda_kind = DQ_LAMBDA_LAYER;
        s->attn.lambda = 0.4f;
    }
    float **all[] = {&s->q, &s->k, &s->v, &s->out};
    for (int i = 0; i < 4; i++) {
        s->both[i] = test_array_new(s->b, (size_t)MAX_ROWS * MAX_WIDTH);
        *all[i] = s->both[i].host;
    }
}

dq_status end_stage(stage *s)
{
    dq_err err = {0};
    dq_backend_sync(s->b, &err);
    s->b->ops->kv_free(s->b, s->kv);
    dq_oracle_free(s->oracle);
    for (int i = 0; i < 4; i++) test_array_free(s->b, &s->both[i]);
    dq_backend_close(s->b);
    return err.code;
}

void close_stage(stage *s)
{
    assert_int_equal(end_stage(s), DQ_OK);
}

int32_t new_seq(stage *s, int tag, int32_t start)
{
    int32_t seq = s->b->ops->kv_seq_new(s->b, s->kv);
    assert_in_range(seq, 0, DQ_ORACLE_SEQ - 1);
    s->tag[seq] = tag;
    s->length[seq] = start;
    return seq;
}

int32_t fork_seq(stage *s, int32_t from, int tag)
{
    int32_t seq = s->b->ops->kv_fork(s->b, s->kv, from);
    assert_in_range(seq, 0, DQ_ORACLE_SEQ - 1);
    dq_oracle_fork(s->oracle, seq, from);
    s->tag[seq] = tag;
    s->length[seq] = s->length[from];
    return seq;
}

void begin_batch(stage *s)
{
    memset(&s->batch, 0, sizeof s->batch);
    s->batch.cu_rows = s->cu_rows;
    s->batch.seq = s->seq;
    s->batch.pos = s->pos;
    s->batch.ids = s->ids;
}

void add_rows(stage *s, int32_t seq, int n)
{
    const int d = s->map.head_dim;
    dq_batch *b = &s->batch;
    s->seq[b->n_seq++] = seq;
    for (int i = 0; i < n; i++) {
        const int64_t row = b->n_rows++;
        const uint32_t seed = (uint32_t)(s->tag[seq] * 1000003 + s->length[seq]) * 4096u;
        s->pos[row] = s->length[seq]++;
        for (int c = 0; c < N_Q * d; c++) s->q[row * N_Q * d + c] = 2 * uniform(seed + (uint32_t)c);
        for (int c = 0; c < N_KV * d; c++) {
            const uint32_t at = seed * 3u + 17u + 2u * (uint32_t)c;
            s->k[row * N_KV * d + c] = uniform(at) * (c % d == 5 ? 9.0f : 1.0f);
            s->v[row * N_KV * d + c] = uniform(at + 1);
        }
    }
    s->cu_rows[b->n_seq] = b->n_rows;
}

void append(stage *s)
{
    const int64_t n = s->batch.n_rows, cols = (int64_t)N_KV * s->map.head_dim;
    test_put(s->b, &s->both[K], n * cols);
    test_put(s->b, &s->both[V], n * cols);
    s->b->ops->kv_append(s->b, s->kv, 0, &s->batch, mat(s->both[K].device, n, cols),
                         mat(s->both[V].device, n, cols), DQ_NUM_F32);
    dq_oracle_append(s->oracle, &s->batch, s->k, s->v);
}

dq_attend_args arguments(stage *s, int bits, dq_granularity granularity)
{
    dq_attend_args a = {.attn = &s->attn, .batch = &s->batch, .kv = s->kv};
    a.q = mat(s->both[Q].device, s->batch.n_rows, (int64_t)N_Q * s->map.head_dim);
    test_put(s->b, &s->both[Q], a.q.rows * a.q.cols);
    a.logit = (dq_logit_spec){.bits = bits, .granularity = granularity};
    a.math = s->math;
    return a;
}

void attend(stage *s, int bits)
{
    dq_attend_args a = arguments(s, bits, DQ_GRANULARITY_ROW);
    s->b->ops->attend(s->b, mat(s->both[OUT].device, s->batch.n_rows, out_cols(s)), &a);
    test_get(s->b, &s->both[OUT], s->batch.n_rows * out_cols(s));
}

void compact_stage(stage *s)
{
    s->b->ops->kv_compact(s->b, s->kv, 0, &s->batch, s->attn.window);
}

void expect_no_error(stage *s)
{
    dq_err err = {0};
    if (dq_backend_sync(s->b, &err) != DQ_OK) print_error("%s\n", err.text);
    assert_int_equal(err.code, DQ_OK);
}

void check_attend(stage *s)
{
    const int64_t n = s->batch.n_rows * out_cols(s);
    double *want = calloc((size_t)n, sizeof *want), max = 0, worst = 0;
    dq_oracle_args a = {.attn = &s->attn,
                        .batch = &s->batch,
                        .q = s->q,
                        .logit = {.bits = 16, .granularity = DQ_GRANULARITY_ROW}};
    dq_oracle_attend(want, s->oracle, &a);
    attend(s, 16);
    expect_no_error(s);
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(want[i] - (double)s->out[i]);
        max = fmax(max, fabs(want[i]));
        worst = off > worst || off != off ? off : worst;
    }
    if (!(worst <= 1e-5 * max))
        print_error("%s, head_dim %d, %d:%d: off by %g of %g\n",
                    dq_head_order_pairing_name(s->map.pairing), s->map.head_dim, s->spec.k_bits,
                    s->spec.v_bits, worst, max);
    assert_true(worst <= 1e-5 * max);
    free(want);
}

void stream(stage *s, int32_t seq, int n)
{
    begin_batch(s);
    add_rows(s, seq, n);
    append(s);
    attend(s, 16);
    compact_stage(s);
}

void stream_checked(stage *s, int32_t seq, int n)
{
    begin_batch(s);
    add_rows(s, seq, n);
    append(s);
    check_attend(s);
    compact_stage(s);
}

void keep(stage *s, int32_t seq, int group, const int32_t *kept, int64_t n)
{
    s->b->ops->kv_keep(s->b, s->kv, seq, 0, group, kept, n);
    dq_oracle_keep(s->oracle, seq, group, kept, n);
}
