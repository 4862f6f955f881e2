/* kernel_routes: see kernel_routes.h. Each layer is described by asking the backend which kernel it would take for
 * every product, and layers whose descriptions are equal are joined into a run. Nothing is computed, so the words
 * cost nothing.
 * SPDX-License-Identifier: MIT */
#include "settings/kernel_routes.h"

#include "tensor/tensor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ROLES = 8, PART = 128 };

/* Text that ends where the buffer does. */
typedef struct text {
    char *at;
    size_t capacity;
} text;

static DQ_PRINTF(2, 3) void add(text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(t->at, t->capacity, fmt, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : (size_t)n < t->capacity ? (size_t)n : t->capacity - 1;
    t->at += used;
    t->capacity -= used;
}

static void add_storage(text *t, const dq_weight *w)
{
    const char *note = dq_weight_format_of(w)->note;
    if (!dq_weight_is_coded(w))
        add(t, "%s", dq_dtypes[w->dtype].name);
    else if (w->scale_rows == 1 && w->rows > 1)
        add(t, "%d bits, tensor", w->bits);
    else if (w->group_size >= w->cols)
        add(t, "%d bits, row", w->bits);
    else
        add(t, "%d bits, group %lld", w->bits, (long long)w->group_size);
    if (note) add(t, ", %s", note);
}

static void one_weight(char to[PART], const dq_backend *b, const dq_weight *w, dq_num num)
{
    text t = {to, PART};
    const char *kernel = b->ops->matmul_kernel(b, w, num);
    add(&t, "%s %s (", kernel ? kernel : "no kernel for", dq_num_name[num]);
    add_storage(&t, w);
    add(&t, ")");
}

/* Projections that run alike stand together, in the order of the first of them. */
static void add_linear(text *t, const dq_backend *b, const dq_layer *l, dq_num num)
{
    static const char *const name[ROLES] = {"q", "k", "v", "o", "gate", "up", "down", "lambda"};
    const dq_weight *const all[ROLES] = {&l->q,    &l->k,  &l->v,    &l->o,
                                         &l->gate, &l->up, &l->down, &l->lambda_proj};
    char part[ROLES][PART] = {""};
    bool mixed = false;
    for (int i = 0; i < ROLES; i++) {
        if (all[i]->rows == 0) continue;
        one_weight(part[i], b, all[i], all[i] == &l->lambda_proj ? DQ_NUM_F32 : num);
        mixed = mixed || strcmp(part[i], part[0]) != 0;
    }
    add(t, "linear");
    for (int i = 0; i < ROLES; i++) {
        if (!part[i][0]) continue;
        add(t, i ? ", %s" : " %s", part[i]);
        for (int k = i, n = 0; k < ROLES; k++) {
            if (k > i && strcmp(part[k], part[i]) != 0) continue;
            if (mixed) add(t, n++ ? " %s" : " of %s", name[k]);
            if (k > i) part[k][0] = 0;
        }
    }
}

static void add_attention(text *t, const dq_backend *b, dq_math math, const dq_kv_spec *kv)
{
    const char *many = b->ops->attend_kernel(b, kv, math, DQ_PAGE_TOKENS);
    const char *one = b->ops->attend_kernel(b, kv, math, 1);
    add(t, "; attention %s", many ? many : "no kernel for");
    if (one && many && strcmp(one, many) != 0) add(t, " (%s for single rows)", one);
    char widths[DQ_KV_TEXT];
    add(t, ": qk %s, pv %s; kv %s %s", dq_num_name[math.qk], dq_num_name[math.pv],
        dq_kv_codes_text(widths, kv), dq_num_name[math.kv]);
}

static void describe(char buf[DQ_ROUTE_TEXT], const dq_backend *b, const dq_layer *l, dq_math math,
                     const dq_kv_spec *kv)
{
    text t = {buf, DQ_ROUTE_TEXT};
    add_linear(&t, b, l, math.linear);
    add_attention(&t, b, math, kv);
}

const char *dq_kernel_routes_text(char buf[DQ_ROUTE_TEXT], int *next, const dq_backend *b,
                                  const dq_model *m, int first, dq_math math, const dq_kv_spec *kv)
{
    char own[DQ_ROUTE_TEXT], other[DQ_ROUTE_TEXT];
    text t = {buf, DQ_ROUTE_TEXT};
    describe(own, b, &m->layer[first], math, kv);
    for (*next = first + 1; *next < m->n_layers; ++*next) {
        describe(other, b, &m->layer[*next], math, kv);
        if (strcmp(own, other) != 0) break;
    }
    if (*next == first + 1)
        add(&t, "layer %d: %s", first, own);
    else
        add(&t, "layers %d-%d: %s", first, *next - 1, own);
    if (*next == m->n_layers && dq_weight_is_coded(&m->head)) {
        char head[PART];
        one_weight(head, b, &m->head, math.linear == DQ_NUM_INT8 ? DQ_NUM_F32 : math.linear);
        add(&t, "; head %s", head);
    }
    return buf;
}
