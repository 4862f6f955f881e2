/* head_order_trial: see head_order_trial.h. The ids are scored once per head order, in one pass each, with the model opened anew
 * under that map. Losses are then compared id by id in blocks of 32, which are the clusters of the interval.
 * SPDX-License-Identifier: MIT */
#include "cmds/head_order_trial.h"

#include "base/os.h"
#include "cmds/cli/table.h"
#include "engine/runner.h"
#include "eval/score.h"
#include "record/record.h"
#include "stat/stat.h"
#include "tasks/items.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_IDS = 512, MAX_MAPS = DQ_PAIR_COUNT };
enum { BLOCK = 32 }; /* ids that count as one cluster: neighbours depend on each other */
static const double clear = 0.02; /* nats: less than this is no sign of another order */

typedef struct trial {
    const char *model;
    dq_input_ids in;
    int64_t n; /* ids scored: all but the first of those fed */
    dq_arena *a;
    dq_backend *b;
    dq_logger *logger;
    int n_maps; /* the checkpoint's own comes first */
    dq_pairing map[MAX_MAPS];
    double *nll[MAX_MAPS]; /* [n] nats */
} trial;

/* -ln p of tokens 1..n given those before, in one pass. */
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
    DQ_TRY(dq_score_check_logp(dq_runner_model(r), nll, n, err));
    for (int64_t i = 0; i < n; i++) nll[i] = -nll[i];
    return DQ_OK;
}

static dq_status try_one(trial *t, int i, dq_err *err)
{
    dq_model *m = NULL;
    dq_runner *r = NULL;
    t->nll[i] = dq_alloc(t->a, (size_t)t->n, sizeof *t->nll[i], err);
    if (!t->nll[i]) return err->code;
    dq_logger_note(t->logger, "head order %s", dq_head_order_pairing_name(t->map[i]));
    if (dq_model_open_as(&m, t->model, t->map[i], err) == DQ_OK &&
        dq_runner_new(&r, m, t->b, &dq_kv_plain, err) == DQ_OK)
        score(t, r, t->nll[i], err);
    if (err->code == DQ_OK) dq_os_maps_check(err);
    dq_runner_free(r);
    dq_model_close(m);
    return err->code;
}

/* The ids, and which head orders there are to try. */
static dq_status prepare(trial *t, const char *text_path, dq_err *err)
{
    dq_model *m = NULL;
    dq_tokenizer *tok = NULL;
    dq_input_text text = {0};
    if (dq_input_model(&m, t->model, NULL, t->logger, err) == DQ_OK &&
        dq_input_tokenizer(&tok, m, true, err) == DQ_OK &&
        dq_input_read(&text, text_path, t->a, err) == DQ_OK &&
        dq_input_encode(&t->in, tok, &text,
                        dq_items_bos_flags(tok, DQ_BOS_AUTO, text.text, text.bytes), t->logger,
                        t->a, err) == DQ_OK) {
        const dq_pairing own = m->map.pairing;
        t->n = (t->in.n < MAX_IDS ? t->in.n : MAX_IDS) - 1;
        if (t->n > m->max_positions) t->n = m->max_positions;
        t->map[t->n_maps++] = own;
        for (int p = 0; p < DQ_PAIR_COUNT; p++) {
            if ((dq_pairing)p != own && dq_head_order_pairing_same_shape(own, (dq_pairing)p))
                t->map[t->n_maps++] = (dq_pairing)p;
        }
        if (t->n < 1) dq_fail(err, DQ_DAMAGED, "%s: fewer than 2 tokens", text.path);
    }
    dq_tokenizer_free(tok);
    dq_model_close(m);
    return err->code;
}

/* Mean of x - y (y NULL: of x) over blocks of ids; scratch[n] and cluster[n] are for its own use. */
static dq_mean mean_of(const trial *t, const double *x, const double *y, double *scratch,
                       int32_t *cluster)
{
    for (int64_t i = 0; i < t->n; i++) {
        scratch[i] = x[i] - (y ? y[i] : 0.0);
        cluster[i] = (int32_t)(i / BLOCK);
    }
    return dq_mean_clustered(scratch, cluster, t->n);
}

static json_t *interval_json(dq_interval x)
{
    return isnan(x.low) ? json_null() : json_pack("[f,f]", x.low, x.high);
}

/* What is known of another map than the model's own: it reads better by `clear`, it does not, or neither. */
static const char *judge(dq_interval x)
{
    if (x.high < -clear) return "better";
    return x.low > -clear ? "not better" : "inconclusive";
}

static json_t *map_json(const trial *t, int i, dq_mean nll, dq_mean minus_own)
{
    json_t *x = json_object(),
           *d = i ? dq_document_metric(minus_own.value, minus_own.std_err) : json_null();
    const dq_interval interval = dq_mean_interval(minus_own);
    json_object_set_new(x, "head_order", json_string(dq_head_order_pairing_name(t->map[i])));
    json_object_set_new(x, "nll_nats", dq_document_metric(nll.value, nll.std_err));
    json_object_set_new(x, "minus_own", d);
    json_object_set_new(x, "is", i ? json_string(judge(interval)) : json_null());
    if (i) json_object_set_new(d, "interval", interval_json(interval));
    return x;
}

static void warn_better(const trial *t, int better)
{
    dq_logger_warn(
        t->logger,
        "%s: head order \"%s\" reads this text better than the \"%s\" of its architecture. If more "
        "text agrees, give --head-order %s",
        t->model, dq_head_order_pairing_name(t->map[better]), dq_head_order_pairing_name(t->map[0]),
        dq_head_order_pairing_name(t->map[better]));
}

static dq_status report(json_t **out, const trial *t, dq_err *err)
{
    double *scratch = dq_alloc(t->a, (size_t)t->n, sizeof *scratch, err), best = 0.0;
    int32_t *cluster = dq_alloc(t->a, (size_t)t->n, sizeof *cluster, err);
    int better = 0;
    dq_mean nll = dq_mean_none;
    if (!scratch || !cluster) return err->code;
    json_t *o = json_object(), *maps = json_array();
    for (int i = 0; i < t->n_maps; i++) {
        nll = mean_of(t, t->nll[i], NULL, scratch, cluster);
        const dq_mean d = mean_of(t, t->nll[i], t->nll[0], scratch, cluster);
        json_array_append_new(maps, map_json(t, i, nll, d));
        if (i && d.value < best && dq_mean_interval(d).high < -clear) {
            best = d.value;
            better = i;
        }
    }
    json_object_set_new(o, "model", json_string(t->model));
    json_object_set_new(o, "own", json_string(dq_head_order_pairing_name(t->map[0])));
    json_object_set_new(o, "better",
                        better ? json_string(dq_head_order_pairing_name(t->map[better]))
                               : json_null());
    json_object_set_new(o, "n", json_integer(t->n));
    json_object_set_new(o, "n_clusters", json_integer(nll.clusters));
    json_object_set_new(o, "maps", maps);
    if (better) warn_better(t, better);
    *out = o;
    return DQ_OK;
}

dq_status dq_head_order_trial_try(json_t **out, const char *model, const char *text_path,
                                  dq_logger *logger, dq_err *err)
{
    trial t = {.model = model, .logger = logger, .a = dq_arena_new()};
    *out = NULL;
    if (!t.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (prepare(&t, text_path, err) == DQ_OK) dq_backend_open(&t.b, "cpu", 0, err);
    for (int i = 0; err->code == DQ_OK && i < t.n_maps; i++) try_one(&t, i, err);
    if (err->code == DQ_OK) report(out, &t, err);
    dq_backend_close(t.b);
    dq_arena_free(t.a);
    return err->code;
}

static void metric_cell(dq_table *table, const json_t *x, const char *form)
{
    const json_t *e = json_object_get(x, "stderr");
    char text[64];
    int n;
    if (!json_is_object(x)) {
        dq_table_cell(table, "-");
        return;
    }
    n = snprintf(text, sizeof text, form[0] == '+' ? "%+.4f" : "%.4f",
                 json_number_value(json_object_get(x, "value")));
    if (json_is_number(e))
        snprintf(text + n, sizeof text - (size_t)n, " \u00b1 %.4f", json_number_value(e));
    dq_table_cell(table, "%s", text);
}

/* What the last sentence may say: of the other maps, the one that says least decides. */
static void print_sentence(const json_t *tried)
{
    const json_t *maps = json_object_get(tried, "maps");
    const char *better = json_string_value(json_object_get(tried, "better"));
    bool open = false;
    for (size_t i = 1; i < json_array_size(maps); i++)
        open = open || strcmp(json_string_value(json_object_get(json_array_get(maps, i), "is")),
                              "inconclusive") == 0;
    if (better)
        printf("\nHead order %s reads this text better by more than %g nats, at 95 %%: the "
               "architecture's "
               "order is in doubt.\n",
               better, clear);
    else if (json_array_size(maps) < 2)
        printf("\nNo other head order has these shapes.\n");
    else if (open)
        printf("\nNot decided: these tokens do not tell whether another head order reads them "
               "better by %g nats. Try another text.\n",
               clear);
    else
        printf("\nNo other head order reads this text better by %g nats, at 95 %%.\n", clear);
}

dq_status dq_head_order_trial_print(const json_t *tried, dq_err *err)
{
    static const char *const titles[] = {"head order", "NLL (nats)", "against its own", "better"};
    const json_t *maps = json_object_get(tried, "maps");
    dq_table *table;
    printf("\n%s: %lld tokens read with every head order of its shapes; \u00b1 one standard error "
           "over %lld blocks of %d\n\n",
           json_string_value(json_object_get(tried, "model")),
           (long long)json_integer_value(json_object_get(tried, "n")),
           (long long)json_integer_value(json_object_get(tried, "n_clusters")), BLOCK);
    DQ_TRY(dq_table_new(&table, titles, 4, err));
    for (size_t i = 0; i < json_array_size(maps); i++) {
        const json_t *x = json_array_get(maps, i);
        const char *is = json_string_value(json_object_get(x, "is"));
        dq_table_cell(table, "%s%s", json_string_value(json_object_get(x, "head_order")),
                      i == 0 ? " (its own)" : "");
        metric_cell(table, json_object_get(x, "nll_nats"), "");
        metric_cell(table, json_object_get(x, "minus_own"), "+");
        dq_table_cell(table, "%s", is ? is : "-");
    }
    dq_table_print(table, err);
    dq_table_free(table);
    print_sentence(tried);
    return err->code;
}
