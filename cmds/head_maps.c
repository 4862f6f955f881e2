/* head_maps: see head_maps.h.
 * SPDX-License-Identifier: MIT */
#include "head_maps.h"

#include "forward.h"

#include <math.h>
#include <stdio.h>

enum { MOST_IDS = 512, MOST_MAPS = DQ_PAIR_COUNT };

typedef struct trial {
    const char *model;
    dq_input_ids in;
    int64_t n; /* ids scored: all but the first of those fed */
    dq_arena *a;
    dq_backend *b;
    dq_talk *talk;
    int n_maps; /* the checkpoint's own comes first */
    dq_pairing map[MOST_MAPS];
    double *nll[MOST_MAPS]; /* [n] nats */
} trial;

/* -ln p of ids 1..n given those before, in one pass. */
static dq_status score(trial *t, dq_runner *r, double *nll, dq_err *err)
{
    const dq_ops *op = t->b->ops;
    int64_t n = t->n, cu[2] = {0, n};
    int32_t *pos = dq_alloc(t->a, (size_t)n, sizeof *pos, err);
    if (!pos) return err->code;
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)i;
    int32_t seq = op->kv_seq_new(t->b, dq_runner_kv(r));
    if (seq < 0) {
        dq_backend_sync(t->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = t->in.ids, .pos = pos};
    dq_pass pass = {.logit = {.bits = 16}};
    dq_mat hidden;
    DQ_TRY(dq_runner_pass(r, &batch, &pass, &hidden, err));
    op->logprob(t->b, nll, NULL, hidden, &dq_runner_model(r)->head, t->in.ids + 1, DQ_NUM_F32);
    DQ_TRY(dq_backend_sync(t->b, err));
    for (int64_t i = 0; i < n; i++) nll[i] = -nll[i];
    return DQ_OK;
}

static dq_status try_one(trial *t, int i, dq_err *err)
{
    const dq_override override = {.pairing = t->map[i]};
    dq_model *m = NULL;
    dq_runner *r = NULL;
    t->nll[i] = dq_alloc(t->a, (size_t)t->n, sizeof *t->nll[i], err);
    if (!t->nll[i]) return err->code;
    dq_say(t->talk, "head map %s", dq_pairing_name(t->map[i]));
    if (dq_model_open_as(&m, t->model, &override, err) == DQ_OK &&
        dq_runner_new(&r, m, t->b, &dq_kv_plain, err) == DQ_OK)
        score(t, r, t->nll[i], err);
    dq_runner_free(r);
    dq_model_close(m);
    return err->code;
}

/* The ids, and which head maps there are to try. */
static dq_status prepare(trial *t, const char *text_path, dq_err *err)
{
    dq_model *m = NULL;
    dq_tokenizer *tok = NULL;
    dq_input_text text = {0};
    if (dq_input_model(&m, t->model, NULL, t->talk, err) == DQ_OK &&
        dq_input_tokenizer(&tok, m, true, err) == DQ_OK &&
        dq_input_read(&text, text_path, t->a, err) == DQ_OK &&
        dq_input_encode(&t->in, tok, &text, DQ_TOK_SPECIAL, t->talk, t->a, err) == DQ_OK) {
        const dq_pairing own = m->map.pairing;
        t->n = (t->in.n < MOST_IDS ? t->in.n : MOST_IDS) - 1;
        if (t->n > m->max_positions) t->n = m->max_positions;
        t->map[t->n_maps++] = own;
        for (int p = 0; p < DQ_PAIR_COUNT; p++) {
            if ((dq_pairing)p != own && dq_pairing_same_shape(own, (dq_pairing)p))
                t->map[t->n_maps++] = (dq_pairing)p;
        }
        if (t->n < 1) dq_fail(err, DQ_DAMAGED, "%s: fewer than 2 tokens", text.path);
    }
    dq_tokenizer_free(tok);
    dq_model_close(m);
    return err->code;
}

/* Mean of x - y (y NULL: of x) and its standard error. */
static void mean_of(const double *x, const double *y, int64_t n, double *mean, double *se)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] - (y ? y[i] : 0.0);
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] - (y ? y[i] : 0.0) - *mean;
        squares += d * d;
    }
    *se = n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : (double)NAN;
}

static json_t *report(const trial *t)
{
    static const double clear = 0.02;
    json_t *o = json_object(), *maps = json_array();
    int better = 0;
    double best = 0.0, mean, se;
    for (int i = 0; i < t->n_maps; i++) {
        json_t *x = json_object();
        json_object_set_new(x, "head_map", json_string(dq_pairing_name(t->map[i])));
        mean_of(t->nll[i], NULL, t->n, &mean, &se);
        json_object_set_new(x, "nll_nats", dq_metric(mean, se));
        mean_of(t->nll[i], t->nll[0], t->n, &mean, &se);
        json_object_set_new(x, "minus_own", i ? dq_metric(mean, se) : json_null());
        json_array_append_new(maps, x);
        if (i && mean < best && mean < -clear && mean < -3.0 * se) {
            best = mean;
            better = i;
        }
    }
    json_object_set_new(o, "model", json_string(t->model));
    json_object_set_new(o, "own", json_string(dq_pairing_name(t->map[0])));
    json_object_set_new(o, "better",
                        better ? json_string(dq_pairing_name(t->map[better])) : json_null());
    json_object_set_new(o, "n", json_integer(t->n));
    json_object_set_new(o, "maps", maps);
    if (better)
        dq_warn(t->talk,
                "%s: head map \"%s\" reads this text better than the \"%s\" of its family. If more "
                "text agrees, give --head-map %s",
                t->model, dq_pairing_name(t->map[better]), dq_pairing_name(t->map[0]),
                dq_pairing_name(t->map[better]));
    return o;
}

dq_status dq_head_maps_try(json_t **out, const char *model, const char *text_path, dq_talk *talk,
                           dq_err *err)
{
    trial t = {.model = model, .talk = talk, .a = dq_arena_new()};
    *out = NULL;
    if (!t.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (prepare(&t, text_path, err) == DQ_OK) dq_backend_open(&t.b, "cpu", 0, err);
    for (int i = 0; err->code == DQ_OK && i < t.n_maps; i++) try_one(&t, i, err);
    if (err->code == DQ_OK) *out = report(&t);
    dq_backend_close(t.b);
    dq_arena_free(t.a);
    return err->code;
}

static void metric_cell(dq_table *table, const json_t *x, const char *form)
{
    if (!json_is_object(x)) {
        dq_table_cell(table, "-");
        return;
    }
    char text[64];
    snprintf(text, sizeof text, form[0] == '+' ? "%+.4f ± %.4f" : "%.4f ± %.4f",
             json_number_value(json_object_get(x, "value")),
             json_number_value(json_object_get(x, "stderr")));
    dq_table_cell(table, "%s", text);
}

dq_status dq_head_maps_print(const json_t *tried, dq_err *err)
{
    static const char *const titles[] = {"head map", "NLL (nats)", "against its own"};
    const json_t *maps = json_object_get(tried, "maps");
    const char *better = json_string_value(json_object_get(tried, "better"));
    dq_table *table;
    printf("\n%s: %lld tokens read with every head map of its shapes\n\n",
           json_string_value(json_object_get(tried, "model")),
           (long long)json_integer_value(json_object_get(tried, "n")));
    DQ_TRY(dq_table_new(&table, titles, 3, err));
    for (size_t i = 0; i < json_array_size(maps); i++) {
        const json_t *x = json_array_get(maps, i);
        dq_table_cell(table, "%s%s", json_string_value(json_object_get(x, "head_map")),
                      i == 0 ? " (its own)" : "");
        metric_cell(table, json_object_get(x, "nll_nats"), "");
        metric_cell(table, json_object_get(x, "minus_own"), "+");
    }
    dq_table_print(table, err);
    dq_table_free(table);
    if (better)
        printf("\nHead map %s reads this text clearly better: the family's order is in doubt.\n",
               better);
    else if (json_array_size(maps) > 1)
        printf("\nNo other head map reads this text clearly better.\n");
    else
        printf("\nNo other head map has these shapes.\n");
    return err->code;
}
