/* Files sort names byte by byte; here numbers count as numbers.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "model/model.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "settings/quantize_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Indices in dq_name_order; the caller ends *a. */
static const int64_t *order_of(dq_arena **a, int64_t n,
                               const char *(*name)(const void *arg, int64_t i), const void *arg,
                               dq_err *err)
{
    int64_t *order = NULL;
    *a = dq_arena_new();
    if (!*a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (*a) dq_name_order_make(&order, n, name, arg, *a, err);
    return err->code == DQ_OK ? order : NULL;
}

static const char *payload_name(const void *container, int64_t i)
{
    return dq_container_payload(container, i)->path;
}

static const char *tensor_name(const void *checkpoint, int64_t i)
{
    return dq_checkpoint_at(checkpoint, i)->name;
}

static dq_status info_lists_payloads(const dq_container *c, dq_err *err)
{
    static const char *const titles[] = {"dataset", "encoding", "bits", "group",  "rows",
                                         "cols",    "bytes",    "bpw",  "SQNR dB"};
    dq_table *t;
    dq_arena *a;
    const int64_t n = dq_container_n_payloads(c);
    const int64_t *order = order_of(&a, n, payload_name, c, err);
    if (!order || dq_table_new(&t, titles, 9, err) != DQ_OK) {
        dq_arena_free(a);
        return err->code;
    }
    for (int64_t i = 0; i < n; i++) {
        const dq_payload *p = dq_container_payload(c, order[i]);
        dq_table_cell(t, "%s", p->path);
        dq_table_cell(t, "%s", p->encoding);
        dq_table_cell(t, "%d", p->bits);
        dq_table_known(t, p->group_size, "%lld", (long long)p->group_size);
        dq_table_cell(t, "%lld", (long long)p->rows);
        dq_table_cell(t, "%lld", (long long)p->cols);
        dq_table_cell(t, "%lld", (long long)p->bytes);
        dq_table_known(t, p->bits_per_weight > 0, "%.3f", p->bits_per_weight);
        dq_table_known(t, isfinite(p->sqnr_db) && p->row && p->row->is_codes, "%.2f", p->sqnr_db);
    }
    putchar('\n');
    dq_table_print(t, err);
    dq_table_free(t);
    dq_arena_free(a);
    return err->code;
}

static const dq_usage usage = {
    .name = "info",
    .synopsis = "FILE|DIR [options]",
    .about = "Says what a container or a checkpoint folder holds: architecture, sizes, settings, "
             "and with "
             "--tensors every tensor. Structure is checked, hashes are not: see dq verify.",
    .examples = "  dq info model-4bit.h5\n"
                "  dq info model --tensors\n"
                "  dq info model-4bit.h5 --recipe > recipe.json\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one FILE or DIR"};

typedef struct request {
    dq_logger logger;
    bool json, tensors, recipe;
} request;

/* An unreadable tokenizer is no obstacle here, except for memory. */
typedef struct text_ends {
    dq_stop_ids ids;
    dq_tokenizer *t; /* NULL: none */
    dq_err why;      /* they are not known */
} text_ends;

static dq_status read_ends(text_ends *e, const dq_model *m, dq_err *err)
{
    *e = (text_ends){.t = NULL};
    if (dq_input_tokenizer(&e->t, m, false, &e->why) == DQ_OK)
        dq_stop_ids_add(&e->ids, m, e->t, m->vocab, &e->why);
    return e->why.code == DQ_RESOURCE ? dq_fail_as(err, &e->why) : DQ_OK;
}

static void print_model(const dq_model *m, int n_files, text_ends *e)
{
    const dq_head_order *map = &m->map;
    const dq_published *known = dq_published_find(m);
    /* Numbers that programs are compared by come first. */
    const dq_model_size s = dq_model_size_of(m);
    char text[32];
    dq_stdout_print_bits(s.bits_per_weight, s.params);
    printf("\nfile size          %s", dq_document_size_text(text, sizeof text, s.file_bytes));
    if (n_files > 1) printf(" in %d files", n_files);
    printf("; tensors %s\n", dq_document_size_text(text, sizeof text, s.weight_bytes));
    printf("model              %s, %.2f %s parameters\n", m->architecture->about,
           (double)m->n_params / (m->n_params < 1000000000 ? 1e6 : 1e9),
           m->n_params < 1000000000 ? "million" : "billion");
    printf("architecture       %s\n", m->architecture->name);
    if (known) printf("same sizes as      %s\n", known->names);
    printf("layers             %d\n", m->n_layers);
    printf("heads              %d query, %d KV of %d elements; %d outputs of %d map%s\n", map->n_q,
           map->n_kv, map->head_dim, map->n_out, map->n_maps, map->n_maps > 1 ? "s" : "");
    printf("head order           %s\n", dq_head_order_pairing_name(map->pairing));
    printf("width              %d, feed-forward %d\n", m->dim, m->ffn);
    printf("vocabulary         %d%s\n", m->vocab, m->tied ? ", output tied to the input" : "");
    const dq_stop_ids *ids = &e->ids;
    const bool readable = e->why.code == DQ_OK;
    printf("a text ends at     ");
    dq_advice_apply(&e->why);
    for (int64_t i = 0; readable && i < ids->n; i++) {
        size_t len = 0;
        const char *piece = e->t ? dq_tokenizer_piece(e->t, ids->id[i], &len) : NULL;
        json_t *entry = piece ? json_stringn(piece, len) : NULL;
        char *shown = entry ? json_dumps(entry, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
        printf("%s%d%s%s", i ? ", " : "", (int)ids->id[i], shown ? " " : "", shown ? shown : "");
        free(shown);
        json_decref(entry);
    }
    printf("%s%s", !readable ? "not known: " : ids->n ? "" : "no token", e->why.text);
    if (ids->unknown[0]) printf("; %s is no token", ids->unknown);
    printf("\n");
    printf("positions          %d\n", m->max_positions);
    printf("norm epsilon       %g", (double)m->norm_eps);
    if (m->layer[0].attn.head_norm) printf(", heads %g", (double)m->layer[0].attn.norm_eps);
    printf("\n");
}

static dq_kv_spec spec_of(const dq_model *m)
{
    dq_kv_spec spec;
    dq_err ignored = {0};
    dq_model_kv_spec(&spec, &m->kv, m, DQ_NUM_F32, &ignored);
    return spec;
}

/* A cached token's bytes over all layers and heads; once coded, if it is. */
static double token_bytes(const dq_model *m)
{
    const dq_kv_spec spec = spec_of(m);
    return dq_kv_token_bytes(&spec, m->map.head_dim) * m->map.n_kv * m->n_layers;
}

/* The same with two bytes per element. */
static double token_bytes16(const dq_model *m)
{
    return 4.0 * m->map.head_dim * m->map.n_kv * m->n_layers;
}

static void print_kv(const dq_model *m)
{
    const dq_kv_config *s = &m->kv;
    const dq_kv_spec spec = spec_of(m);
    const double plain = token_bytes16(m), cached = token_bytes(m);
    if (s->widths[0])
        printf("KV cache           K:V %s bits", s->widths);
    else
        printf("KV cache           K %g bits, V %g bits", dq_kv_shown_bits(&spec, false),
               dq_kv_shown_bits(&spec, true));
    const bool coded = dq_kv_config_uses(s, m->map.n_maps) & DQ_KV_CODES;
    const dq_kv_quant code = dq_kv_config_quant(s, m->map.n_maps);
    if (coded && code != DQ_KV_PER_TOKEN)
        printf(", code %s%s", dq_kv_quant_name[code],
               s->quant == DQ_KV_QUANT_AUTO ? " (auto)" : "");
    if (coded && (code == DQ_KV_PER_TOKEN || code == DQ_KV_MIXED)) printf(", group %d", s->group);
    if (coded || s->rotate == DQ_ROTATE_ON) printf(", rotation %s", dq_rotate_name[s->rotate]);
    if (coded || s->evict.policy) printf(", sink %d, recent %d", s->sink, s->recent);
    if (coded || s->dense == DQ_KV_BF16)
        printf(", uncoded tokens in %s", dq_kv_dense_name[s->dense]);
    printf("\nKV cache per token %.0f bytes at 16 bits", plain);
    if (cached < plain) printf("; %.1f as codes, %.2f times fewer", cached, plain / cached);
    printf("\n");
    if (m->gates) printf("KV gates           for kvzap, SHA-256 %.12s...\n", m->gates->sha256);
    if (!s->evict.policy) return;
    printf("KV eviction        %s, ", s->evict.policy->name);
    if (s->evict.tokens)
        printf("%lld tokens", (long long)s->evict.tokens);
    else
        printf("%g of the context", s->evict.keep);
    printf(" stay, budget %s", dq_kv_budget_name[s->evict.budget]);
    if (s->evict.heads[0]) printf(" %s", s->evict.heads);
    if (s->evict.every) printf(", again every %lld tokens", (long long)s->evict.every);
    if (s->evict.window >= 0) printf(", window %lld", (long long)s->evict.window);
    if (s->evict.policy->draws) printf(", seed %llu", (unsigned long long)s->evict.seed);
    printf("\n");
}

static json_t *prequant_json(const dq_model *m)
{
    const dq_prequant_info *i = m->prequant;
    if (!i) return json_null();
    json_t *o = json_object();
    json_object_set_new(o, "method", json_string(i->method));
    json_object_set_new(o, "about", json_string(i->about));
    json_object_set_new(o, "bits",
                        m->weight_bits ? json_integer(m->weight_bits) : json_string("mixed"));
    json_object_set_new(o, "group", json_string(m->weight_group));
    json_object_set_new(o, "weights", json_integer(i->n_weights));
    json_object_set_new(o, "with_zero_points", json_integer(i->n_zeros));
    json_object_set_new(o, "with_index", json_integer(i->n_indexed));
    json_object_set_new(o, "own_bytes", json_integer(i->own_bytes));
    return o;
}

static json_t *model_json(const dq_model *m, const text_ends *e)
{
    const dq_published *known = dq_published_find(m);
    json_t *o = json_object();
    json_object_set_new(o, "path", dq_document_name(m->path));
    dq_size_report_json(o, m);
    json_object_set_new(o, "params", json_integer(m->n_params));
    json_object_set_new(o, "architecture", json_string(m->architecture->name));
    json_object_set_new(o, "about", json_string(m->architecture->about));
    json_object_set_new(o, "same_sizes_as", known ? json_string(known->names) : json_null());
    json_object_set_new(o, "layers", json_integer(m->n_layers));
    json_object_set_new(o, "n_q", json_integer(m->map.n_q));
    json_object_set_new(o, "n_kv", json_integer(m->map.n_kv));
    json_object_set_new(o, "kv_groups", json_integer(m->map.n_groups));
    json_object_set_new(o, "head_dim", json_integer(m->map.head_dim));
    json_object_set_new(o, "n_out", json_integer(m->map.n_out));
    json_object_set_new(o, "head_order", json_string(dq_head_order_pairing_name(m->map.pairing)));
    json_object_set_new(o, "norm_eps", dq_document_real((double)m->norm_eps));
    json_object_set_new(o, "head_norm_eps",
                        m->layer[0].attn.head_norm
                            ? dq_document_real((double)m->layer[0].attn.norm_eps)
                            : json_null());
    json_object_set_new(o, "dim", json_integer(m->dim));
    json_object_set_new(o, "ffn", json_integer(m->ffn));
    json_object_set_new(o, "vocab", json_integer(m->vocab));
    json_t *list = e->why.code == DQ_OK ? json_array() : json_null();
    for (int64_t i = 0; json_is_array(list) && i < e->ids.n; i++)
        json_array_append_new(list, json_integer(e->ids.id[i]));
    json_object_set_new(o, "stop_ids", list);
    json_object_set_new(o, "tied", json_boolean(m->tied));
    json_object_set_new(o, "max_positions", json_integer(m->max_positions));
    json_object_set_new(o, "kv_bytes_per_token", dq_document_real(token_bytes(m)));
    json_object_set_new(o, "kv_bytes_per_token_16bit", dq_document_real(token_bytes16(m)));
    json_object_set_new(o, "quantized", prequant_json(m));
    json_object_set_new(o, "fingerprint", json_string(m->fingerprint));
    return o;
}

static json_t *recipe_of(const dq_container *c)
{
    dq_err ignored = {0}; /* opening has read it */
    json_t *recipe = NULL;
    size_t len;
    const char *text = dq_container_recipe(c, &len);
    dq_json_parse(&recipe, text, len, "/config/recipe_json", &ignored);
    return recipe;
}

/* Whether the weights are those that the recipe's plan measured; -1: no plan names its weights. */
static int as_planned(const dq_container *c, const json_t *recipe)
{
    char sha[65];
    dq_err ignored = {0};
    const json_t *plan = json_object_get(recipe, "plan");
    const char *planned = json_string_value(json_object_get(plan, "weights_sha256"));
    if (!planned || dq_container_weights_sha256(sha, c, &ignored) != DQ_OK) return -1;
    return strcmp(sha, planned) == 0;
}

typedef struct role_sum {
    const char *name, *method; /* method NULL: no codes, or there is but one */
    int64_t n, of_bits[17], params, bytes;
} role_sum;

enum { ROLES = 9 };

static void add_matrix(role_sum *s, const dq_weight *w)
{
    s->n++;
    s->of_bits[dq_weight_is_coded(w) ? w->bits : 16]++;
    s->params += w->rows * w->cols;
    s->bytes += (int64_t)dq_weight_bytes(w);
}

/* A calibrated method leaves to nearest codes: an embedding that is no head and, in containers with
 * numeric damping, any. */
static void sum_roles(role_sum sum[ROLES], const dq_model *m, const json_t *recipe)
{
    const char *method = json_string_value(json_object_get(recipe, "method"));
    static const char *const names[ROLES] = {"q",  "k",    "v",         "o",   "gate",
                                             "up", "down", "embedding", "head"};
    for (int r = 0; r < ROLES; r++) sum[r] = (role_sum){.name = names[r]};
    for (int l = 0; l < m->n_layers; l++) {
        const dq_layer *x = &m->layer[l];
        const dq_weight *all[] = {&x->q, &x->k, &x->v, &x->o, &x->gate, &x->up, &x->down};
        for (int r = 0; r < 7; r++) {
            if (all[r]->rows) add_matrix(&sum[r], all[r]);
        }
    }
    add_matrix(&sum[7], &m->embed);
    if (!m->tied) add_matrix(&sum[8], &m->head);
    for (int r = 0; r < ROLES && method; r++) {
        const json_t *damping = json_object_get(json_object_get(recipe, "calib"), "damping");
        const bool nearest = r == 7 && (!m->tied || json_is_number(damping));
        if (sum[r].of_bits[16] < sum[r].n) sum[r].method = nearest ? "nearest" : method;
    }
}

static void print_packed(const dq_container_info *i, const dq_model *m, const json_t *recipe)
{
    role_sum sum[ROLES];
    const bool ends = m->embed_bits != 16 || m->head_bits != 16;
    if (i->weight_bits == 16) {
        printf("packed             nothing\n");
        return;
    }
    if (i->weight_bits && !ends)
        printf("packed             %d bits, group %s, %s scales\n", i->weight_bits, i->weight_group,
               i->scale_mode);
    else
        printf("packed             %.3f bits per weight, group %s, %s scales\n", m->packed_bits,
               i->weight_group, i->scale_mode);
    sum_roles(sum, m, recipe);
    for (int r = 0; r < ROLES && (ends || !i->weight_bits); r++) {
        if (sum[r].n == 0) continue;
        printf("  %-16s %.3f bits per weight: ", sum[r].name,
               dq_weight_bits_over(sum[r].bytes, sum[r].params));
        /* "3 bits in 2, 4 bits in 10" */
        const role_sum *s = &sum[r];
        const char *between = "";
        for (int b = 2; b <= 16; b++) {
            if (!s->of_bits[b]) continue;
            printf("%s%d bits", between, b);
            if (s->of_bits[b] < s->n) printf(" in %lld", (long long)s->of_bits[b]);
            between = ", ";
        }
        printf("%s%s\n", sum[r].method ? "; " : "", sum[r].method ? sum[r].method : "");
    }
}

static void print_container(const dq_container *c, const dq_model *m, text_ends *e)
{
    const dq_container_info *i = dq_container_header(c);
    char a[32];
    json_t *recipe = recipe_of(c);
    print_model(m, 1, e);
    printf("container          dq-model %s, written by dq %s\n", i->version, i->dq_version);
    print_packed(i, m, recipe);
    /* The text that codes were chosen by, what their bits depend on, and the values' earlier
     * types. */
    const char *arithmetic = dq_container_header(c)->arithmetic;
    const char *types = dq_container_header(c)->source_types;
    const json_t *calib = json_object_get(recipe, "calib");
    const char *method = json_string_value(json_object_get(recipe, "method"));
    const char *file = json_string_value(json_object_get(calib, "file"));
    const json_int_t ids = json_integer_value(json_object_get(calib, "tokens")),
                     n = json_integer_value(json_object_get(calib, "sequences"));
    if (method && file)
        printf("method             %s, %lld token%s of %s in %lld sequence%s of at most %lld\n",
               method, (long long)ids, ids == 1 ? "" : "s", file, (long long)n, n == 1 ? "" : "s",
               (long long)json_integer_value(json_object_get(calib, "ctx")));
    if (arithmetic) printf("made with          %s\n", arithmetic);
    if (types) printf("source types       %s\n", types);
    const char *budget =
        json_string_value(json_object_get(json_object_get(recipe, "plan"), "budget"));
    const int same = as_planned(c, recipe);
    if (same >= 0)
        printf("planned            for %s, %s\n", budget ? budget : "a budget",
               same ? "the weights that the plan measured"
                    : "but other weights than the plan measured: its figures are not theirs");
    json_decref(recipe);
    printf("attention logits   %d bits, granularity %s\n", i->logit.bits,
           dq_granularity_name[i->logit.granularity]);
    print_kv(m);
    for (int k = 0; k < dq_container_n_sources(c); k++) {
        const dq_source_file *s = dq_container_source_file(c, k);
        printf("made from          %s, %s\n", s->name,
               dq_document_size_text(a, sizeof a, s->bytes));
    }
    printf("source fingerprint %s\n", i->fingerprint);
    printf("content SHA-256    %s\n", i->content_sha256);
}

static json_t *payload_json(const dq_payload *p)
{
    json_t *o = json_object();
    const bool codes = p->row && p->row->is_codes;
    json_object_set_new(o, "path", dq_document_name(p->path));
    json_object_set_new(o, "encoding", json_string(p->encoding));
    json_object_set_new(o, "bits", json_integer(p->bits));
    json_object_set_new(o, "group_size", p->group_size ? json_integer(p->group_size) : json_null());
    json_object_set_new(o, "rows", json_integer(p->rows));
    json_object_set_new(o, "cols", json_integer(p->cols));
    json_object_set_new(o, "bytes", json_integer(p->bytes));
    json_object_set_new(o, "bits_per_weight",
                        p->bits_per_weight > 0 ? dq_document_real(p->bits_per_weight)
                                               : json_null());
    json_object_set_new(o, "sqnr_db", codes ? dq_document_real(p->sqnr_db) : json_null());
    json_object_set_new(o, "sha256", json_string(p->sha256));
    return o;
}

static json_t *container_json(const dq_container *c, const dq_model *m, bool tensors)
{
    const dq_container_info *i = dq_container_header(c);
    json_t *o = json_object(), *files = json_array(), *rows = json_array(), *recipe = recipe_of(c);
    json_object_set_new(o, "kind", json_string("container"));
    dq_size_report_json(o, m);
    json_object_set_new(o, "params", json_integer(m->n_params));
    json_object_set_new(o, "format_version", json_string(i->version));
    json_object_set_new(o, "written_by", json_string(i->dq_version));
    json_object_set_new(o, "architecture", json_string(i->architecture));
    json_object_set_new(o, "weight_bits",
                        i->weight_bits ? json_integer(i->weight_bits) : json_string("mixed"));
    json_object_set_new(o, "weight_group", json_string(i->weight_group));
    json_object_set_new(o, "scale_mode", json_string(i->scale_mode));
    role_sum sum[ROLES];
    json_t *list = json_array();
    sum_roles(sum, m, recipe);
    for (int r = 0; r < ROLES; r++) {
        json_t *entry, *widths;
        if (sum[r].n == 0) continue;
        json_array_append_new(list, entry = json_object());
        json_object_set_new(entry, "role", json_string(sum[r].name));
        json_object_set_new(entry, "matrices", json_integer(sum[r].n));
        json_object_set_new(entry, "params", json_integer(sum[r].params));
        json_object_set_new(entry, "bytes", json_integer(sum[r].bytes));
        if (sum[r].method) json_object_set_new(entry, "method", json_string(sum[r].method));
        json_object_set_new(entry, "widths", widths = json_array());
        for (int b = 2; b <= 16; b++) {
            if (!sum[r].of_bits[b]) continue;
            json_array_append_new(widths, json_pack("{s:i,s:I}", "bits", b, "matrices",
                                                    (json_int_t)sum[r].of_bits[b]));
        }
    }
    json_object_set_new(o, "by_role", list);
    dq_kv_report_logit(o, i->logit);
    json_t *kv = dq_kv_config_json(&i->kv);
    json_object_set(o, "k_bits", json_object_get(kv, "k_bits"));
    json_object_set(o, "v_bits", json_object_get(kv, "v_bits"));
    json_object_set_new(o, "kv", kv);
    json_object_set_new(o, "fingerprint", json_string(i->fingerprint));
    json_object_set_new(o, "content_sha256", json_string(i->content_sha256));
    if (i->arithmetic) json_object_set_new(o, "arithmetic", json_string(i->arithmetic));
    if (i->source_types) json_object_set_new(o, "source_types", json_string(i->source_types));
    if (as_planned(c, recipe) >= 0)
        json_object_set_new(o, "as_planned", json_boolean(as_planned(c, recipe)));
    json_object_set_new(o, "recipe", recipe);
    for (int k = 0; k < dq_container_n_sources(c); k++) {
        const dq_source_file *s = dq_container_source_file(c, k);
        json_t *f = json_object();
        json_object_set_new(f, "name", dq_document_name(s->name));
        json_object_set_new(f, "bytes", json_integer(s->bytes));
        json_object_set_new(f, "sha256", json_string(s->sha256));
        json_array_append_new(files, f);
    }
    json_object_set_new(o, "source_files", files);
    for (int64_t k = 0; tensors && k < dq_container_n_payloads(c); k++)
        json_array_append_new(rows, payload_json(dq_container_payload(c, k)));
    if (tensors)
        json_object_set_new(o, "payloads", rows);
    else
        json_decref(rows);
    return o;
}

enum { TYPES = 32 }; /* more than there are */

typedef struct type_sum {
    const char *name; /* NULL: ends the list */
    const char *way;  /* what products do with it; "": with values as they are */
    int64_t bytes;
} type_sum;

static const char *way_of(const dq_checkpoint *k, const char *name)
{
    dq_weight w;
    if (!dq_checkpoint_weight(k, name, &w) || !dq_weight_is_coded(&w)) return "";
    return dq_weight_is_affine(&w) ? ", multiplied as codes" : ", dequantized in products";
}

static void count_types(const dq_checkpoint *k, type_sum sum[TYPES])
{
    memset(sum, 0, TYPES * sizeof *sum);
    for (int64_t i = 0; i < dq_checkpoint_count(k); i++) {
        const char *type = dq_checkpoint_type(k, i);
        int at = 0;
        while (sum[at].name && strcmp(sum[at].name, type) != 0) at++;
        if (!sum[at].name) sum[at].way = way_of(k, dq_checkpoint_at(k, i)->name);
        sum[at].name = type;
        sum[at].bytes += (int64_t)dq_checkpoint_stored_bytes(k, i);
    }
}

static void print_folder(const dq_checkpoint *k, const dq_model *m, text_ends *e)
{
    type_sum sum[TYPES];
    char a[32];
    print_model(m, dq_checkpoint_n_files(k), e);
    print_kv(m);
    if (m->prequant) {
        /* A folder that another tool has quantized. */
        const dq_prequant_info *i = m->prequant;
        char size[32];
        printf("quantized by       %s\n", i->about);
        printf("packed             ");
        if (m->weight_bits == 16)
            printf("no projection");
        else if (m->weight_bits)
            printf("%d bits, group %s", m->weight_bits, m->weight_group);
        else
            printf("mixed bits, group %s", m->weight_group);
        printf("; %lld weights", (long long)i->n_weights);
        if (i->n_zeros) printf(", %lld with zero points", (long long)i->n_zeros);
        if (i->n_indexed) printf(", %lld with a group for each column", (long long)i->n_indexed);
        printf("\nlaid out anew      %s\n", dq_document_size_text(size, sizeof size, i->own_bytes));
    }
    count_types(k, sum);
    for (const type_sum *t = sum; t->name; t++)
        printf("%-18s %s%s\n", t->name, dq_document_size_text(a, sizeof a, t->bytes), t->way);
    for (int i = 0; i < dq_checkpoint_n_files(k); i++) {
        size_t n;
        const uint8_t *data;
        const char *name = dq_checkpoint_file(k, i, &n, &data);
        printf("file               %s, %s\n", name, dq_document_size_text(a, sizeof a, (int64_t)n));
    }
    printf("fingerprint        %s\n", m->fingerprint);
}

static json_t *folder_json(const dq_checkpoint *k, const dq_model *m, bool tensors)
{
    type_sum sum[TYPES];
    json_t *o = json_object(), *types = json_object(), *files = json_array(), *rows = json_array();
    json_object_set_new(o, "kind", json_string("checkpoint"));
    dq_size_report_json(o, m);
    json_object_set_new(o, "params", json_integer(m->n_params));
    count_types(k, sum);
    for (const type_sum *t = sum; t->name; t++)
        json_object_set_new(types, t->name, json_integer(t->bytes));
    json_object_set_new(o, "bytes_by_dtype", types);
    for (int i = 0; i < dq_checkpoint_n_files(k); i++) {
        size_t n;
        const uint8_t *data;
        json_t *f = json_object();
        json_object_set_new(f, "name", dq_document_name(dq_checkpoint_file(k, i, &n, &data)));
        json_object_set_new(f, "bytes", json_integer((json_int_t)n));
        json_array_append_new(files, f);
    }
    json_object_set_new(o, "files", files);
    json_object_set_new(o, "n_tensors", json_integer(dq_checkpoint_count(k)));
    for (int64_t i = 0; tensors && i < dq_checkpoint_count(k); i++) {
        const dq_tensor *x = dq_checkpoint_at(k, i);
        json_t *t = json_object(), *shape = json_array();
        for (int d = 0; d < x->n_dims; d++) json_array_append_new(shape, json_integer(x->shape[d]));
        json_object_set_new(t, "name", dq_document_name(x->name));
        json_object_set_new(t, "dtype", json_string(dq_checkpoint_type(k, i)));
        json_object_set_new(t, "shape", shape);
        json_object_set_new(t, "bytes", json_integer((json_int_t)dq_checkpoint_stored_bytes(k, i)));
        json_array_append_new(rows, t);
    }
    if (tensors)
        json_object_set_new(o, "tensors", rows);
    else
        json_decref(rows);
    return o;
}

static dq_status show(request *r, const dq_model *m, const dq_container *c, const dq_checkpoint *k,
                      text_ends *e, dq_err *err)
{
    const dq_published *known = dq_published_find(m);
    size_t len;
    if (r->recipe && !c)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a checkpoint folder has no recipe. Name a container (.h5).", m->path);
    if (r->recipe) return dq_stdout_print_recipe(dq_container_recipe(c, &len), err);
    if (known && known->params != m->n_params)
        dq_logger_warn(&r->logger, "%s: %lld parameters, but %s, of the same sizes, has %lld",
                       m->path, (long long)m->n_params, known->names, (long long)known->params);
    if (r->json) {
        json_t *doc = dq_document_new(&r->logger, "dq-info/1");
        json_array_append_new(json_object_get(doc, "inputs"), model_json(m, e));
        json_object_set_new(json_object_get(doc, "settings"), "tensors", json_boolean(r->tensors));
        json_array_append_new(json_object_get(doc, "results"),
                              c ? container_json(c, m, r->tensors) : folder_json(k, m, r->tensors));
        if (err->code == DQ_OK) return dq_stdout_print(doc, err);
        json_decref(doc);
        return err->code;
    }
    if (c) {
        print_container(c, m, e);
        return r->tensors ? info_lists_payloads(c, err) : DQ_OK;
    }
    print_folder(k, m, e);
    if (!r->tensors) return DQ_OK;
    static const char *const titles[] = {"tensor", "type", "shape", "bytes"};
    dq_table *t;
    char shape[200];
    dq_arena *a;
    const int64_t *order = order_of(&a, dq_checkpoint_count(k), tensor_name, k, err);
    if (!order || dq_table_new(&t, titles, 4, err) != DQ_OK) {
        dq_arena_free(a);
        return err->code;
    }
    for (int64_t i = 0; i < dq_checkpoint_count(k); i++) {
        const dq_tensor *x = dq_checkpoint_at(k, order[i]);
        const size_t cap = sizeof shape;
        size_t n = 0;
        shape[0] = 0;
        for (int d = 0; d < x->n_dims && n < cap; d++)
            n += (size_t)snprintf(shape + n, cap - n, "%s%lld", d ? "x" : "",
                                  (long long)x->shape[d]);
        if (x->n_dims == 0) snprintf(shape, cap, "scalar");
        dq_table_cell(t, "%s", x->name);
        dq_table_cell(t, "%s", dq_checkpoint_type(k, i));
        dq_table_cell(t, "%s", shape);
        dq_table_cell(t, "%zu", dq_checkpoint_stored_bytes(k, i));
    }
    putchar('\n');
    dq_table_print(t, err);
    dq_table_free(t);
    dq_arena_free(a);
    return err->code;
}

static dq_status run(request *r, const char *path, dq_err *err)
{
    dq_model *m;
    dq_checkpoint *k = NULL;
    DQ_TRY(dq_input_model(&m, path, NULL, &r->logger, err));
    if (!m->is_container) dq_checkpoint_open(&k, path, err);
    text_ends e = {.t = NULL};
    if (err->code == DQ_OK && read_ends(&e, m, err) == DQ_OK) show(r, m, m->container, k, &e, err);
    dq_tokenizer_free(e.t);
    dq_checkpoint_close(k);
    dq_model_close(m);
    return err->code;
}

dq_status dq_cmd_info(int argc, char **argv, dq_err *err)
{
    request r = {.json = false};
    const dq_opt opts[] = {dq_opt_flag("tensors", &r.tensors, "list every tensor"),
                           dq_opt_flag("recipe", &r.recipe,
                                       "print how a container was quantized, as a file for dq "
                                       "quantize --recipe"),
                           dq_opt_flag("json", &r.json, "one JSON document (dq-info/1) on stdout"),
                           DQ_LOGGER_OPTIONS(r.logger),
                           {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_progress_listen(&r.logger, "info", err));
    run(&r, args.item[0], err);
    dq_logger_end(&r.logger);
    return err->code;
}
