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

static const char *payload_name(const void *container, int64_t i)
{
    return ((const dq_container *)container)->payload[i].path;
}

static const char *tensor_name(const void *checkpoint, int64_t i)
{
    return ((const dq_checkpoint *)checkpoint)->tensor[i].name;
}

static void payload_rows(dq_row_writer *w, const void *container, int64_t i)
{
    const dq_payload *p = DQ_LIVE(w, &((const dq_container *)container)->payload[i]);
    DQ_PUT(w, "path", p->path, "Of the dataset.", .title = "dataset");
    DQ_PUT(w, "encoding", p->encoding, "What its bytes mean: see FORMAT.md.", .title = "encoding");
    DQ_PUT(w, "bits", p->bits, "Bits of an element or code.", .title = "bits");
    DQ_PUT(w, "group_size", p->group_size, "Columns per scale; null: none.", .title = "group",
           .when = DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "rows", p->rows, "Rows.", .title = "rows", .when = DQ_SIGNED);
    DQ_PUT(w, "cols", p->cols, "Columns; of n dimensions more than 2: -n.", .title = "cols",
           .when = DQ_SIGNED);
    DQ_PUT(w, "bytes", p->bytes, "Its size.", .title = "bytes");
    DQ_PUT(w, "bits_per_weight", p->bits_per_weight,
           "Of this tensor, with its scales; null: it is no matrix.", .title = "bpw", .digits = 3,
           .when = DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "sqnr_db", p->row && p->row->is_codes ? p->sqnr_db : (double)NAN,
           "Signal-to-quantization-noise ratio in dB; null: no codes, or no error.",
           .title = "SQNR dB", .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "sha256", p->sha256, "Of its bytes.", .pattern = DQ_SHA256);
}

static void tensor_rows(dq_row_writer *w, const void *checkpoint, int64_t i)
{
    char shape[200] = "scalar";
    const dq_tensor *x = DQ_LIVE(w, &((const dq_checkpoint *)checkpoint)->tensor[i]);
    for (int d = 0, n = 0; w->cell && d < x->n_dims && n < (int)sizeof shape; d++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", d ? "x" : "",
                      (long long)x->shape[d]);
    DQ_PUT(w, "name", x->name, "Its name.", .title = "tensor");
    DQ_PUT(w, "dtype", dq_checkpoint_type(checkpoint, i), "Its type.", .title = "type");
    DQ_CELL(w, shape, "shape");
    if (DQ_LIST(w, "shape", "Its dimensions.")) {
        for (int d = 0; DQ_MORE(w, d, x->n_dims); d++)
            DQ_PUT(w, NULL, x->shape[d], NULL, .when = DQ_SIGNED);
        dq_row_end(w);
    }
    DQ_PUT(w, "bytes", (int64_t)dq_checkpoint_stored_bytes(checkpoint, i), "Its size.",
           .title = "bytes");
}

/* A table of n items in the order of their names. */
static dq_status print_items(dq_row_items *rows, int64_t n,
                             const char *(*name)(const void *arg, int64_t i), const void *arg,
                             dq_err *err)
{
    dq_table *t = NULL;
    int64_t *order = NULL;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_name_order_make(&order, n, name, arg, a, err) == DQ_OK) {
        for (int64_t i = 0; i < n; i++) dq_table_add_rows(&t, rows, arg, order[i], err);
    }
    putchar('\n');
    dq_table_finish(t, err);
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

/* An unreadable tokenizer is no obstacle here, except for memory. */
typedef struct text_ends {
    dq_stop_ids ids;
    dq_tokenizer *t; /* NULL: none */
    dq_err why;      /* they are not known */
} text_ends;

typedef struct request {
    dq_logger logger;
    bool json, tensors, recipe;
    dq_model *m;
    dq_checkpoint *k; /* NULL: a container */
    text_ends ends;
} request;

static void print_model(const request *r)
{
    const dq_model *m = r->m;
    const text_ends *e = &r->ends;
    const int n_files = r->k ? r->k->n_files : 1;
    const dq_head_order *map = &m->map;
    const dq_published *known = dq_published_find(m);
    /* Numbers that programs are compared by come first. */
    const dq_model_size s = dq_model_size_of(m);
    dq_stdout_print_bits(s.bits_per_weight, s.params);
    printf("\nfile size          %s", DQ_SIZE(s.file_bytes));
    if (n_files > 1) printf(" in %d files", n_files);
    printf("; tensors %s\n", DQ_SIZE(s.weight_bytes));
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
    const int windows = m->n_layers - dq_model_full_layers(m);
    if (windows)
        printf("attention windows  %d tokens on %d of %d layers\n", dq_model_window(m), windows,
               m->n_layers);
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
    printf("\nKV cache per token %.0f bytes at 16 bits%s", plain,
           dq_model_window(m) ? " while all windows hold it" : "");
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

static void model_rows(dq_row_writer *w, const dq_model *m, const text_ends *e)
{
    const dq_published *known = DQ_LIVE(w, dq_published_find(m));
    const dq_prequant_info *i = DQ_LIVE(w, m->prequant ? &m->prequant->info : NULL);
    DQ_PUT(w, "path", m->path, "As it was given.");
    dq_size_rows(w, m);
    DQ_PUT(w, "params", m->n_params,
           "Parameters; a matrix that is embedding and head counts once.");
    DQ_PUT(w, "architecture", m->architecture->name, "Its row of docs/math/model.md.");
    DQ_PUT(w, "about", m->architecture->about, "The same in words.");
    DQ_PUT(w, "same_sizes_as", known ? known->names : NULL,
           "Published models of these sizes; null: none is known.", .when = DQ_NULL);
    DQ_PUT(w, "layers", m->n_layers, "Layers.");
    DQ_PUT(w, "n_q", m->map.n_q, "Query heads of a layer.");
    DQ_PUT(w, "n_kv", m->map.n_kv, "KV heads of a layer.");
    DQ_PUT(w, "kv_groups", m->map.n_groups,
           "Groups of KV heads that are kept or evicted together.");
    DQ_PUT(w, "head_dim", m->map.head_dim, "Elements of a head.");
    DQ_PUT(w, "n_out", m->map.n_out, "Output heads of a layer.");
    dq_head_order_row(w, m);
    DQ_PUT(w, "norm_eps", m->norm_eps, "Epsilon of the norms.");
    DQ_PUT(w, "head_norm_eps",
           m->layer[0].attn.head_norm ? (double)m->layer[0].attn.norm_eps : (double)NAN,
           "Epsilon of the norms of heads; null: there are none.", .when = DQ_NULL);
    DQ_PUT(w, "dim", m->dim, "Width of the hidden states.");
    DQ_PUT(w, "ffn", m->ffn, "Width of the feed-forward layer.");
    DQ_PUT(w, "vocab", m->vocab, "Tokens of the vocabulary.");
    if (DQ_BEGIN(w, LIST, "stop_ids", e->why.code == DQ_OK,
                 "Ids that end a text, of all files that name them; null: dq cannot read them.",
                 .when = DQ_NULL)) {
        for (int64_t k = 0; DQ_MORE(w, k, e->ids.n); k++) DQ_PUT(w, NULL, e->ids.id[k], NULL);
        dq_row_end(w);
    }
    DQ_PUT(w, "tied", m->tied, "Whether the head is the embedding.");
    DQ_PUT(w, "max_positions", m->max_positions, "Positions that it was made for.");
    DQ_PUT(
        w, "attention_window", dq_model_window(m),
        "Tokens that a query sees in layers with a window, the most of all; 0: no layer has one.");
    DQ_PUT(w, "layers_with_window", m->n_layers - dq_model_full_layers(m),
           "Layers that keep the tokens of a window alone.");
    DQ_PUT(w, "kv_bytes_per_token", token_bytes(m),
           "Bytes that a token takes in the KV cache that it asks for, while all windows hold it.",
           .when = DQ_POSITIVE);
    DQ_PUT(w, "kv_bytes_per_token_16bit", token_bytes16(m), "The same at 16 bits.",
           .when = DQ_POSITIVE);
    if (DQ_BEGIN(w, OBJECT, "quantized", i, "How another tool has quantized it; null: none has.",
                 .when = DQ_NULL)) {
        DQ_PUT(w, "method", i->method, "quant_method of its configuration.");
        DQ_PUT(w, "about", i->about, "The same in words.");
        DQ_PUT(w, "bits", m->weight_bits, "Bits of its codes, or mixed.", .mixed = "mixed");
        DQ_PUT(w, "group", m->weight_group, "Columns per scale, row, tensor or mixed.");
        DQ_PUT(w, "weights", i->n_weights, "Quantized matrices.");
        DQ_PUT(w, "with_zero_points", i->n_zeros, "Of them with zero points.");
        DQ_PUT(w, "with_index", i->n_indexed, "Of them with a group for each column.");
        DQ_PUT(w, "own_bytes", i->own_bytes, "Bytes that dq lays out anew in memory.");
        dq_row_end(w);
    }
    DQ_PUT(w, "fingerprint", m->fingerprint,
           "Of its configuration and weights, or of its source's.", .pattern = DQ_SHA256);
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
static const char *const role_name[ROLES] = {"q",  "k",    "v",         "o",   "gate",
                                             "up", "down", "embedding", "head"};

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
    for (int r = 0; r < ROLES; r++) sum[r] = (role_sum){.name = role_name[r]};
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

static void print_container(const request *r)
{
    const dq_model *m = r->m;
    const dq_container *c = m->container;
    const dq_container_info *i = &c->info;
    json_t *recipe = recipe_of(c);
    print_model(r);
    printf("container          dq-model %s, written by dq %s\n", i->version, i->dq_version);
    print_packed(i, m, recipe);
    /* The text that codes were chosen by, what their bits depend on, and the values' earlier
     * types. */
    const json_t *calib = json_object_get(recipe, "calib");
    const char *method = json_string_value(json_object_get(recipe, "method"));
    const char *file = json_string_value(json_object_get(calib, "file"));
    const json_int_t ids = json_integer_value(json_object_get(calib, "tokens")),
                     n = json_integer_value(json_object_get(calib, "sequences"));
    if (method && calib)
        printf("method             %s, %lld token%s %s%s in %lld sequence%s of at most %lld\n",
               method, (long long)ids, ids == 1 ? "" : "s", file ? "of " : "that the model wrote",
               file ? file : "", (long long)n, n == 1 ? "" : "s",
               (long long)json_integer_value(json_object_get(calib, "ctx")));
    if (i->arithmetic) printf("made with          %s\n", i->arithmetic);
    if (i->source_types) printf("source types       %s\n", i->source_types);
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
    for (int k = 0; k < c->n_sources; k++) {
        const dq_source_file *s = &c->source[k];
        printf("made from          %s, %s\n", s->name, DQ_SIZE(s->bytes));
    }
    printf("source fingerprint %s\n", i->fingerprint);
    printf("content SHA-256    %s\n", i->content_sha256);
}

/* -1: they differ by layer. */
static int64_t stored_bits(const json_t *kv, const char *key)
{
    const json_t *bits = json_object_get(kv, key);
    return json_is_integer(bits) ? json_integer_value(bits) : -1;
}

static void container_rows(dq_row_writer *w, const dq_container *c, const dq_model *m, bool tensors)
{
    const dq_container_info *i = DQ_LIVE(w, &c->info);
    json_t *recipe = DQ_LIVE(w, recipe_of(c));
    const int planned = w->live ? as_planned(c, recipe) : 0;
    role_sum sum[ROLES] = {{0}};
    if (w->live) sum_roles(sum, m, recipe);
    DQ_PUT(w, "kind", "container", "That it is a container.", DQ_WORD("container"));
    dq_size_rows(w, m);
    DQ_PUT(w, "params", m->n_params, "Parameters.");
    DQ_PUT(w, "format_version", i->version, "Of the container's format.");
    DQ_PUT(w, "written_by", i->dq_version, "The version of dq that wrote it.");
    DQ_PUT(w, "architecture", i->architecture, "Its row of docs/math/model.md.");
    DQ_PUT(w, "weight_bits", i->weight_bits, "Bits of the packed projections, 16: none is packed.",
           .mixed = "mixed", .min = 2, .max = 16);
    DQ_PUT(w, "weight_group", i->weight_group,
           "Columns per scale, row, tensor or mixed; empty: nothing is packed.");
    DQ_PUT(w, "scale_mode", i->scale_mode,
           "How scales were found, mixed; empty: nothing is packed.");
    DQ_LIST(w, "by_role", "Matrices by what they are for.");
    for (int r = 0; DQ_MORE(w, r, ROLES); r++) {
        const role_sum *s = &sum[r];
        if (w->live && s->n == 0) continue;
        DQ_ITEM(w);
        DQ_PUT(w, "role", s->name, "What the matrices are for.", DQ_WORDS(role_name));
        DQ_PUT(w, "matrices", s->n, "How many there are.");
        DQ_PUT(w, "params", s->params, "Their elements.");
        DQ_PUT(w, "bytes", s->bytes, "Their bytes, scales included.");
        DQ_PUT(w, "method", s->method, "What chose their codes; missing: none, or all are dense.",
               .when = DQ_OUT);
        DQ_LIST(w, "widths", "How many have which width.");
        for (int b = 2; w->live ? b <= 16 : b <= 2; b++) {
            if (w->live && !s->of_bits[b]) continue;
            DQ_ITEM(w);
            DQ_PUT(w, "bits", b, "Bits, 16: dense.");
            DQ_PUT(w, "matrices", s->of_bits[b], "Matrices of that width.");
            dq_row_end(w);
        }
        dq_row_end(w);
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_kv_report_logit_rows(w, DQ_LIVE(w, &i->logit), "Bits of attention logits that it asks for.");
    json_t *kv = DQ_LIVE(w, dq_kv_config_json(&i->kv));
    DQ_PUT(w, "k_bits", stored_bits(kv, "k_bits"), "As in kv.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "v_bits", stored_bits(kv, "v_bits"), "As in kv.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "kv", kv, "The KV cache that it asks for.", DQ_KV_CONFIG);
    DQ_PUT(w, "fingerprint", i->fingerprint, "Of the source it was made from.",
           .pattern = DQ_SHA256);
    DQ_PUT(w, "content_sha256", i->content_sha256, "Of its payloads.", .pattern = DQ_SHA256);
    DQ_PUT(w, "arithmetic", i->arithmetic,
           "What the bits of calibrated codes depend on; missing: codes are the nearest.",
           .when = DQ_OUT);
    DQ_PUT(w, "source_types", i->source_types, "Types of a source in GGUF.", .when = DQ_OUT);
    if (DQ_WHEN(w, planned >= 0))
        DQ_PUT(w, "as_planned", (bool)planned,
               "Whether these are the weights that the recipe's plan measured; missing: it has no "
               "such plan.",
               .when = DQ_OUT);
    DQ_PUT(w, "recipe", recipe, "How it was quantized.", .def = "recipe",
           .describe = dq_quantize_recipe_describe);
    DQ_LIST(w, "source_files", "Weight files of the source.");
    for (int k = 0; DQ_MORE(w, k, c->n_sources); k++) {
        const dq_source_file *s = DQ_LIVE(w, &c->source[k]);
        DQ_ITEM(w);
        DQ_PUT(w, "name", s->name, "Base name.");
        DQ_PUT(w, "bytes", s->bytes, "Size.");
        DQ_PUT(w, "sha256", s->sha256, "Of its bytes.", .pattern = DQ_SHA256);
        dq_row_end(w);
    }
    dq_row_end(w);
    if (DQ_BEGIN(w, LIST, "payloads", tensors, "All datasets; with --tensors only.",
                 .when = DQ_OUT)) {
        for (int64_t k = 0; DQ_MORE(w, k, c->n_payloads); k++) dq_row_item(w, payload_rows, c, k);
        dq_row_end(w);
    }
}

enum { TYPES = 32 }; /* more than there are */

typedef struct type_sum {
    const char *name; /* NULL: ends the list */
    const char *way;  /* what products do with it; "": with values as they are */
    int64_t bytes;
} type_sum;

static void count_types(const dq_checkpoint *k, type_sum sum[TYPES])
{
    memset(sum, 0, TYPES * sizeof *sum);
    for (int64_t i = 0; i < k->count; i++) {
        const char *type = dq_checkpoint_type(k, i);
        int at = 0;
        while (sum[at].name && strcmp(sum[at].name, type) != 0) at++;
        dq_weight w;
        if (!sum[at].name) sum[at].way = "";
        if (!sum[at].name && dq_checkpoint_weight(k, k->tensor[i].name, &w) &&
            dq_weight_is_coded(&w))
            sum[at].way =
                dq_weight_is_affine(&w) ? ", multiplied as codes" : ", dequantized in products";
        sum[at].name = type;
        sum[at].bytes += (int64_t)dq_checkpoint_stored_bytes(k, i);
    }
}

static void print_folder(const request *r)
{
    const dq_model *m = r->m;
    const dq_checkpoint *k = r->k;
    type_sum sum[TYPES];
    print_model(r);
    print_kv(m);
    if (m->prequant) {
        /* A folder that another tool has quantized. */
        const dq_prequant_info *i = &m->prequant->info;
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
        printf("\nlaid out anew      %s\n", DQ_SIZE(i->own_bytes));
    }
    count_types(k, sum);
    for (const type_sum *t = sum; t->name; t++)
        printf("%-18s %s%s\n", t->name, DQ_SIZE(t->bytes), t->way);
    for (int i = 0; i < k->n_files; i++) {
        const dq_weight_file *f = &k->file[i];
        printf("file               %s, %s\n", f->name, DQ_SIZE((int64_t)f->map.bytes));
    }
    printf("fingerprint        %s\n", m->fingerprint);
}

static void folder_rows(dq_row_writer *w, const dq_checkpoint *k, const dq_model *m, bool tensors)
{
    type_sum sum[TYPES] = {{0}};
    if (w->live) count_types(k, sum);
    DQ_PUT(w, "kind", "checkpoint", "That it is a folder or a GGUF file.", DQ_WORD("checkpoint"));
    dq_size_rows(w, m);
    DQ_PUT(w, "params", m->n_params, "Parameters.");
    DQ_BEGIN(w, MAP, "bytes_by_dtype", true, "Bytes of all tensors of a type, by its name.");
    for (int i = 0; DQ_MORE(w, i, TYPES) && (!w->live || sum[i].name); i++)
        DQ_PUT(w, sum[i].name, sum[i].bytes, NULL);
    dq_row_end(w);
    DQ_LIST(w, "files", "Weight files.");
    for (int i = 0; DQ_MORE(w, i, k->n_files); i++) {
        const dq_weight_file *f = DQ_LIVE(w, &k->file[i]);
        DQ_ITEM(w);
        DQ_PUT(w, "name", f->name, "Base name.");
        DQ_PUT(w, "bytes", (int64_t)f->map.bytes, "Size.");
        dq_row_end(w);
    }
    dq_row_end(w);
    DQ_PUT(w, "n_tensors", k->count, "Tensors in these files.");
    if (DQ_BEGIN(w, LIST, "tensors", tensors, "All of them; with --tensors only.",
                 .when = DQ_OUT)) {
        for (int64_t i = 0; DQ_MORE(w, i, k->count); i++) dq_row_item(w, tensor_rows, k, i);
        dq_row_end(w);
    }
}

static void document_rows(dq_row_writer *w, const void *arg)
{
    const request *r = arg;
    const dq_model *m = DQ_LIVE(w, r->m);
    const dq_container *c = DQ_LIVE(w, m->container);
    const bool tensors = w->live && r->tensors;
    DQ_LIST(w, "inputs", "The model.");
    DQ_ITEM(w);
    model_rows(w, m, DQ_LIVE(w, &r->ends));
    dq_row_end(w);
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "What was asked.");
    DQ_PUT(w, "tensors", tensors, "Whether every tensor is listed.");
    dq_row_end(w);
    DQ_LIST(w, "results", "What is stored.");
    if (DQ_WHEN(w, c) && DQ_ITEM(w)) {
        container_rows(w, c, m, tensors);
        dq_row_end(w);
    }
    if (DQ_WHEN(w, !c) && DQ_ITEM(w)) {
        folder_rows(w, DQ_LIVE(w, r->k), m, tensors);
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL);
}

const dq_document dq_info_document = {
    "dq-info/1", "What dq info --json prints: a container, a checkpoint folder or a GGUF file.",
    "info", describe};

static dq_status show(request *r, dq_err *err)
{
    const dq_model *m = r->m;
    const dq_container *c = m->container;
    const dq_published *known = dq_published_find(m);
    size_t len;
    if (r->recipe && !c)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a checkpoint folder has no recipe. Name a container (.h5).", m->path);
    if (r->recipe) return dq_stdout_print_recipe(dq_container_recipe(c, &len), err);
    if (known && known->params != m->n_params)
        dq_logger_warn(&r->logger, "%s: %lld parameters, but %s, of the same sizes, has %lld",
                       m->path, (long long)m->n_params, known->names, (long long)known->params);
    if (r->json)
        return dq_stdout_print(dq_document_of(&r->logger, &dq_info_document, document_rows, r),
                               err);
    if (c)
        print_container(r);
    else
        print_folder(r);
    if (!r->tensors) return DQ_OK;
    return c ? print_items(payload_rows, c->n_payloads, payload_name, c, err)
             : print_items(tensor_rows, r->k->count, tensor_name, r->k, err);
}

static dq_status run(request *r, const char *path, dq_err *err)
{
    text_ends *e = &r->ends;
    DQ_TRY(dq_input_model(&r->m, path, NULL, &r->logger, err));
    if (!r->m->is_container) DQ_TRY(dq_checkpoint_open(&r->k, path, err));
    if (dq_input_tokenizer(&e->t, r->m, false, &e->why) == DQ_OK)
        dq_stop_ids_add(&e->ids, r->m, e->t, r->m->vocab, &e->why);
    if (e->why.code == DQ_RESOURCE) return dq_fail_as(err, &e->why);
    dq_advice_apply(&e->why);
    return show(r, err);
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
    if (dq_help_begin(&args, argc, argv, opts, &usage, &r.logger, err)) run(&r, args.item[0], err);
    dq_tokenizer_free(r.ends.t);
    dq_checkpoint_close(r.k);
    dq_model_close(r.m);
    dq_logger_end(&r.logger);
    return err->code;
}
