/* A CPU's own line names its threads, so that its instruction sets stand for it; that of a GPU
 * begins with its number.
 * SPDX-License-Identifier: MIT */
#include "settings/inputs.h"

#include "base/file.h"
#include "calib/sample.h"
#include "tasks/documents.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dq_identity_text(char out[DQ_IDENTITY], const dq_backend *b)
{
    static const struct {
        unsigned bit;
        const char *name;
    } sets[] = {{DQ_CPU_AVX2, " avx2"},
                {DQ_CPU_AVX512, " avx512"},
                {DQ_CPU_VNNI, " vnni"},
                {DQ_CPU_VBMI, " vbmi"}};
    const bool cpu = strcmp(b->ops->name, "cpu") == 0;
    const unsigned have = dq_os_cpu_features(NULL);
    const char *comma = strchr(b->device, ','), *kind = comma ? comma + 2 : b->device;
    char words[40] = "";
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const size_t n = strlen(words);
        if (have & sets[i].bit) snprintf(words + n, sizeof words - n, "%s", sets[i].name);
    }
    snprintf(out, DQ_IDENTITY, "dq %.40s, compiler %.40s, %.80s%.40s", dq_commit_version(),
             __VERSION__, cpu ? "cpu" : kind, words);
}

/* The only place that names the numbers of dq_model_size in JSON. */

const char *dq_size_report_text(char buf[DQ_SIZE_REPORT_TEXT], const dq_model *m)
{
    const dq_model_size s = dq_model_size_of(m);
    char bytes[32];
    snprintf(buf, DQ_SIZE_REPORT_TEXT, "%.2f bpw, %s", s.bits_per_weight,
             dq_document_size_text(bytes, sizeof bytes, s.file_bytes));
    return buf;
}

void dq_size_rows_of(dq_row_writer *w, const dq_model_size *s)
{
    DQ_PUT(w, "bits_per_weight", s->bits_per_weight,
           "Bits per weight over all parameters: 8 * weight_bytes over their number, scales and "
           "zero points included.",
           .when = DQ_POSITIVE);
    DQ_PUT(w, "file_bytes", s->file_bytes, "Bytes of the model's weight files.");
    DQ_PUT(w, "weight_bytes", s->weight_bytes,
           "Bytes of all tensors as these files store them; a matrix that is embedding and head "
           "counts once.");
}

void dq_size_rows(dq_row_writer *w, const dq_model *m)
{
    const dq_model_size s = w->live ? dq_model_size_of(m) : (dq_model_size){0};
    dq_size_rows_of(w, &s);
}

void dq_head_order_row(dq_row_writer *w, const dq_model *m)
{
    DQ_PUT(w, "head_order", dq_head_order_pairing_name(m->map.pairing),
           "How heads are paired: plain, adjacent, adjacent-naive, halves or another word of "
           "docs/math/model.md.");
}

/* The backend is asked which kernel it would take for every product; layers with equal descriptions
 * form a run. Nothing is computed. */

enum { ROLES = 8, PART = 128 };

typedef struct route_text {
    char *at;
    size_t capacity;
} route_text;

static DQ_PRINTF(2, 3) void add(route_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(t->at, t->capacity, fmt, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : (size_t)n < t->capacity ? (size_t)n : t->capacity - 1;
    t->at += used;
    t->capacity -= used;
}

static void one_weight(char to[PART], const dq_backend *b, const dq_weight *w, dq_num num)
{
    route_text t = {to, PART};
    const char *kernel = b->ops->matmul_kernel(b, w, num);
    add(&t, "%s %s (", kernel ? kernel : "no kernel for", dq_num_name[num]);
    const char *note = dq_weight_format_of(w)->note;
    if (!dq_weight_is_coded(w))
        add(&t, "%s", dq_dtypes[w->dtype].name);
    else if (w->scale_rows == 1 && w->rows > 1)
        add(&t, "%d bits, tensor", w->bits);
    else if (w->group_size >= w->cols)
        add(&t, "%d bits, row", w->bits);
    else
        add(&t, "%d bits, group %lld", w->bits, (long long)w->group_size);
    if (note) add(&t, ", %s", note);
    add(&t, ")");
}

static void describe(char buf[DQ_ROUTE_TEXT], const dq_backend *b, const dq_layer *l, dq_math math,
                     const dq_kv_spec *kv)
{
    route_text t = {buf, DQ_ROUTE_TEXT};
    /* Projections that run alike are listed together, in the order of the first. */
    static const char *const name[ROLES] = {"q", "k", "v", "o", "gate", "up", "down", "lambda"};
    const dq_weight *const all[ROLES] = {&l->q,    &l->k,  &l->v,    &l->o,
                                         &l->gate, &l->up, &l->down, &l->lambda_proj};
    char part[ROLES][PART] = {""};
    bool mixed = false;
    for (int i = 0; i < ROLES; i++) {
        if (all[i]->rows == 0) continue;
        one_weight(part[i], b, all[i], all[i] == &l->lambda_proj ? DQ_NUM_F32 : math.linear);
        mixed = mixed || strcmp(part[i], part[0]) != 0;
    }
    add(&t, "linear");
    for (int i = 0; i < ROLES; i++) {
        if (!part[i][0]) continue;
        add(&t, i ? ", %s" : " %s", part[i]);
        for (int k = i, n = 0; k < ROLES; k++) {
            if (k > i && strcmp(part[k], part[i]) != 0) continue;
            if (mixed) add(&t, n++ ? " %s" : " of %s", name[k]);
            if (k > i) part[k][0] = 0;
        }
    }
    const char *attend = b->ops->attend_kernel(b, kv, l->attn.map->head_dim, math);
    add(&t, "; attention %s", attend ? attend : "no kernel for");
    char widths[DQ_KV_TEXT];
    add(&t, "; kv %s %s", dq_kv_codes_text(widths, kv), dq_num_name[math.kv]);
}

const char *dq_kernel_routes_text(char buf[DQ_ROUTE_TEXT], int *next, const dq_backend *b,
                                  const dq_model *m, int first, dq_math math, const dq_kv_spec *kv)
{
    char own[DQ_ROUTE_TEXT], other[DQ_ROUTE_TEXT];
    route_text t = {buf, DQ_ROUTE_TEXT};
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

/* A text is read whole, hashed as it is and encoded as one sequence. Opening a model passes its
 * warnings to the command, so that each appears once. */

static const dq_pairing offered[DQ_INPUT_HEAD_ORDERS] = {DQ_PAIR_ADJACENT, DQ_PAIR_ADJACENT_NAIVE,
                                                         DQ_PAIR_HALVES};

const char *const *dq_input_head_order_offer(dq_input_head_order *h)
{
    for (int i = 0; i < DQ_INPUT_HEAD_ORDERS; i++)
        h->offered[i] = dq_head_order_pairing_name(offered[i]);
    return h->offered;
}

dq_status dq_input_head_order_check(const dq_input_head_order *h, dq_err *err)
{
    if (!h->word.text || h->used) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "--head-order %s: no model here has two maps per head",
                   h->word.text);
}

dq_status dq_input_model(dq_model **out, const char *path, dq_input_head_order *h,
                         dq_logger *logger, dq_err *err)
{
    const bool given = h && h->word.text;
    DQ_TRY(dq_model_open_as(out, path, given ? offered[h->word.at] : DQ_PAIR_COUNT, err));
    const dq_model *m = *out;
    if (given && m->map.n_maps == 2) h->used = true;
    for (int i = 0; i < m->n_warnings; i++)
        dq_logger_warn(logger, "%s: %s", m->path, m->warnings[i]);
    return DQ_OK;
}

void dq_input_warn_bad(dq_logger *logger, const char *path, int64_t n_bad, int64_t first)
{
    if (n_bad > 0)
        dq_logger_warn(logger,
                       "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte "
                       "%lld",
                       path, (long long)n_bad, (long long)first);
}

void dq_input_warn_lines(const char *path, dq_logger *logger)
{
    dq_logger_warn(logger,
                   "%s: its lines are JSON objects and are taken as running text, keys and quotes "
                   "too. For a document a line of {\"text\"}, give it a name that ends in .jsonl",
                   path);
}

void dq_input_warn_spaces(const dq_items *items, const char *path, dq_logger *logger)
{
    int64_t n = 0, first = 0;
    for (int64_t i = 0; i < items->n; i++) {
        if (dq_item_has_two_spaces(&items->item[i]) && n++ == 0) first = items->item[i].line;
    }
    if (n)
        dq_logger_warn(logger,
                       "%s: where a choice begins, white space meets white space in %lld item%s, "
                       "the first in line %lld. Take it from the text, or give such items a "
                       "\"delimiter\" of \"\"",
                       path, (long long)n, n == 1 ? "" : "s", (long long)first);
}

dq_status dq_input_read(dq_input_text *t, const char *path, dq_arena *a, dq_err *err)
{
    char *text;
    if (path) {
        DQ_TRY(dq_file_read_text(&text, &t->bytes, path, 0, a, err));
        t->path = path;
        t->text = text;
    } else {
        t->path = "calib/sample.txt";
        t->built_in = true;
        t->text = dq_sample_text;
        t->bytes = dq_sample_text_len;
    }
    if (t->bytes == 0) return dq_fail(err, DQ_DAMAGED, "%s: the text is empty", t->path);
    return dq_sha256_of(t->sha256, t->text, t->bytes, err);
}

static const char spaces[] = " \t\r\n";

dq_status dq_input_parse_ids(dq_input_ids *out, const char *const *item, int n, dq_arena *a,
                             dq_err *err)
{
    size_t capacity = 0;
    for (int i = 0; i < n; i++) capacity += strlen(item[i]) / 2 + 1;
    out->n = out->n_seq = 0;
    out->ids = dq_alloc(a, capacity, sizeof *out->ids, err);
    out->cu = dq_alloc(a, (size_t)n + 1, sizeof *out->cu, err);
    if (!out->ids || !out->cu) return err->code;
    for (int i = 0; i < n; i++) {
        const char *text = item[i];
        int64_t before = out->n;
        const char *p = text + strspn(text, spaces);
        while (*p) {
            char *end;
            errno = 0;
            long v = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
            if (v < 0 || errno || v > INT32_MAX || (*end && !strchr(spaces, *end)))
                return dq_fail(err, DQ_USAGE,
                               "--ids: expected decimal ids with spaces between, found \"%.40s\".",
                               p);
            out->ids[out->n++] = (int32_t)v;
            p = end + strspn(end, spaces);
        }
        if (out->n == before)
            return dq_fail(err, DQ_USAGE, "--ids: expected at least one id, found \"%.40s\".",
                           text);
        out->cu[++out->n_seq] = out->n;
    }
    return DQ_OK;
}

dq_status dq_input_tokenizer(dq_tokenizer **out, const dq_model *m, bool required, dq_err *err)
{
    dq_tokenizer_text text[DQ_TOKENIZER_FILES] = {{NULL, 0}};
    *out = NULL;
    for (int i = 0; i < DQ_TOKENIZER_FILES; i++)
        DQ_TRY(dq_model_file(m, dq_tokenizer_file[i], &text[i].s, &text[i].len, err));
    if (!text[0].s) {
        if (!required) return DQ_OK;
        return dq_fail(err, DQ_MISMATCH, "%s: has no tokenizer.json, so text cannot become ids",
                       m->path);
    }
    if (dq_tokenizer_load_files(out, text, err) != DQ_OK) dq_in(err, "%s: ", m->path);
    return err->code;
}

void dq_input_warn_stops(const dq_stop_ids *s, const char *name, dq_logger *logger)
{
    if (s->unknown[0])
        dq_logger_warn(logger, "%s: %s is no token of the model, so no text ends at it", name,
                       s->unknown);
    if (s->n == 0)
        dq_logger_warn(logger,
                       "%s: nothing names a token that ends a text; texts go on to the most tokens "
                       "that are asked for",
                       name);
}

dq_status dq_input_encode(dq_input_ids *out, const dq_tokenizer *t, const dq_input_text *text,
                          unsigned flags, dq_logger *logger, dq_arena *a, dq_err *err)
{
    int32_t *ids = NULL;
    int64_t first_bad = -1, n_bad = 0;
    DQ_TRY(dq_tokenizer_encode(t, text->text, text->bytes, flags, &ids, &out->n, &first_bad, &n_bad,
                               err));
    if (dq_documents_are_json_lines(text->text, text->bytes))
        dq_logger_warn(logger,
                       "%s: its lines are JSON objects and are taken as running text, keys and "
                       "quotes too. Give their texts alone",
                       text->path);
    if (n_bad)
        dq_logger_warn(
            logger,
            "%s: not UTF-8: %lld ill-formed pieces were read as U+FFFD, the first at byte "
            "%lld",
            text->path, (long long)n_bad, (long long)first_bad);
    out->n_seq = 1;
    out->ids = dq_alloc(a, (size_t)out->n, sizeof *ids, err);
    out->cu = dq_alloc(a, 2, sizeof *out->cu, err);
    if (out->ids && out->cu) {
        if (out->n) memcpy(out->ids, ids, (size_t)out->n * sizeof *ids);
        out->cu[1] = out->n;
    }
    dq_block_free(ids);
    if (err->code == DQ_OK && out->n == 0)
        return dq_fail(err, DQ_DAMAGED, "%s: the text has no token", text->path);
    return err->code;
}

void dq_input_model_rows(dq_row_writer *w, const dq_model *m)
{
    DQ_PUT(w, "kind", "model", "That it is a model.", DQ_WORD("model"));
    DQ_PUT(w, "path", m->path, "As it was given.");
    dq_size_rows(w, m);
    DQ_PUT(w, "architecture", m->architecture->name, "Its row of docs/math/model.md.");
    dq_head_order_row(w, m);
    DQ_PUT(w, "fingerprint", m->fingerprint,
           "Of its configuration and weights, or of its source's.", .pattern = DQ_SHA256);
    DQ_PUT(w, "gates_sha256", m->gates ? m->gates->sha256 : NULL,
           "Of the gates that the policy kvzap uses.", .pattern = DQ_SHA256, .when = DQ_OUT);
}

void dq_input_put_model(dq_row_writer *w, const dq_model *m)
{
    if (!DQ_OBJECT(w, NULL, "A model that was read.", .def = "input_model")) return;
    dq_input_model_rows(w, m);
    dq_row_end(w);
}

void dq_input_put_text(dq_row_writer *w, const dq_input_text *t)
{
    if (!DQ_OBJECT(w, NULL, "A text that was read.", .def = "input_text")) return;
    DQ_PUT(w, "kind", t->built_in ? "sample" : "text", "The built-in text, or another.",
           DQ_WORD("sample", "text"));
    DQ_PUT(w, "path", t->path, "As it was given; of the built-in sample its source.");
    DQ_PUT(w, "bytes", (int64_t)t->bytes, "Its size.");
    DQ_PUT(w, "sha256", t->sha256, "Of its bytes.", .pattern = DQ_SHA256);
    dq_row_end(w);
}
