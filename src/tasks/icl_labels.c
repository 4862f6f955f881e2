/* icl_labels: labels as ids, and which of them a model picks. See icl_data.h.
 * SPDX-License-Identifier: MIT */
#include "tasks/icl_data.h"

#include "base/os.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dq_status encode(const dq_tokenizer *t, const char *s, int64_t vocab, int32_t **ids,
                        int64_t *n, dq_err *err)
{
    DQ_TRY(dq_tokenizer_encode(t, s, strlen(s), 0, ids, n, NULL, NULL, err));
    return dq_tokenizer_check_ids(*ids, *n, vocab, err);
}

/* Whether the tokenizer puts a space before a text itself. */
static bool spaces_itself(const dq_tokenizer *t, const int32_t *ids, int64_t n)
{
    size_t len = 0;
    const char *piece = n > 0 ? dq_tokenizer_piece(t, ids[0], &len) : NULL;
    return piece && len > 0 && piece[0] == ' ';
}

/* One id more than the label has stays free for a newline. */
static dq_status label_ids(dq_icl_label *l, const char *name, const dq_tokenizer *t, int64_t vocab,
                           dq_arena *a, dq_err *err)
{
    int32_t *ids = NULL, *kept = NULL;
    l->text = dq_textf(a, err, " %s", name);
    if (!l->text) return err->code;
    encode(t, name, vocab, &ids, &l->n, err);
    if (err->code == DQ_OK && !spaces_itself(t, ids, l->n)) {
        dq_block_free(ids);
        ids = NULL;
        encode(t, l->text, vocab, &ids, &l->n, err);
    }
    if (err->code == DQ_OK && l->n == 0)
        dq_fail(err, DQ_MISMATCH, "the label \"%s\" has no tokens in this tokenizer", name);
    if (err->code == DQ_OK) kept = dq_alloc(a, (size_t)l->n + 1, sizeof *kept, err);
    if (kept) memcpy(kept, ids, (size_t)l->n * sizeof *kept);
    l->ids = kept;
    l->n_cont = l->n;
    dq_block_free(ids);
    return err->code;
}

/* Whether b begins with all tokens of a. */
static bool begins(const dq_icl_label *b, const dq_icl_label *a)
{
    return a->n_cont <= b->n_cont &&
           memcmp(a->ids, b->ids, (size_t)a->n_cont * sizeof *a->ids) == 0;
}

static int by_ids(const void *x, const void *y)
{
    const dq_icl_label *a = *(const dq_icl_label *const *)x, *b = *(const dq_icl_label *const *)y;
    for (int64_t i = 0; i < a->n_cont && i < b->n_cont; i++) {
        if (a->ids[i] != b->ids[i]) return a->ids[i] < b->ids[i] ? -1 : 1;
    }
    if (a->n_cont != b->n_cont) return a->n_cont < b->n_cont ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* other[i] becomes a label that goes on from label i or equals it, by index; -1: none. Sorted by their
 * ids, those that begin with a label's ids follow it, and equal ones stand together. */
static void find_longer(int *other, const dq_icl_label *label, const dq_icl_label **sorted, int n)
{
    for (int i = 0; i < n; i++) sorted[i] = &label[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_ids);
    for (int i = 0; i < n; i++) {
        const dq_icl_label *l = sorted[i], *found = NULL;
        if (i + 1 < n && begins(sorted[i + 1], l)) found = sorted[i + 1];
        if (i > 0 && begins(sorted[i - 1], l)) found = sorted[i - 1];
        other[l - label] = found ? (int)(found - label) : -1;
    }
}

/* A newline is one id, the last where a tokenizer puts something in front. */
static dq_status end_label(dq_icl_label *l, const dq_tokenizer *t, int64_t vocab, dq_arena *a,
                           dq_err *err)
{
    int32_t *nl = NULL, *ids = dq_alloc(a, (size_t)l->n + 1, sizeof *ids, err);
    int64_t n = 0;
    if (!ids) return err->code;
    if (encode(t, "\n", vocab, &nl, &n, err) == DQ_OK && n == 0)
        dq_fail(err, DQ_MISMATCH, "the tokenizer has no id for a newline, which ends \"%s\"",
                l->text + 1);
    if (err->code == DQ_OK) {
        memcpy(ids, l->ids, (size_t)l->n * sizeof *ids);
        ids[l->n] = nl[n - 1];
        l->ids = ids;
    }
    dq_block_free(nl);
    return err->code;
}

dq_status dq_icl_labels(dq_icl_label **out, const char *const *name, int n, const dq_tokenizer *t,
                        int64_t vocab, dq_arena *a, dq_err *err)
{
    dq_icl_label *label = dq_alloc(a, (size_t)n, sizeof *label, err);
    const dq_icl_label **sorted = dq_alloc(a, (size_t)n, sizeof *sorted, err);
    int *other = dq_alloc(a, (size_t)n, sizeof *other, err);
    if (!label || !sorted || !other) return err->code;
    for (int i = 0; i < n; i++) {
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(label_ids(&label[i], name[i], t, vocab, a, err));
    }
    find_longer(other, label, sorted, n);
    for (int i = 0; i < n; i++) {
        if (other[i] < 0) continue;
        DQ_TRY(end_label(&label[i], t, vocab, a, err));
        label[i].n_cont++;
    }
    find_longer(other, label, sorted, n);
    for (int i = 0; i < n; i++) {
        if (other[i] >= 0)
            return dq_fail(err, DQ_MISMATCH,
                           "the tokenizer cannot tell the label \"%s\" from \"%s\"", name[i],
                           name[other[i]]);
        if (i > 0) label[i].at = label[i - 1].at + label[i - 1].n_cont;
    }
    *out = label;
    return DQ_OK;
}

int dq_icl_walk(const dq_icl_label *label, int n, const double *logp, int *alive)
{
    int left = n;
    for (int i = 0; i < n; i++) alive[i] = i;
    for (int64_t depth = 0; left > 1; depth++) {
        int32_t id = 0;
        double max = 0;
        for (int i = 0; i < left; i++) {
            const dq_icl_label *l = &label[alive[i]];
            double x = logp[l->at + depth];
            if (i > 0 && (x < max || (x == max && l->ids[depth] >= id))) continue;
            max = x;
            id = l->ids[depth];
        }
        int kept = 0;
        for (int i = 0; i < left; i++) {
            if (label[alive[i]].ids[depth] == id) alive[kept++] = alive[i];
        }
        left = kept;
    }
    return alive[0];
}

int dq_icl_likeliest(const dq_icl_label *label, int n, const double *logp)
{
    int best = 0;
    double max = -INFINITY;
    for (int i = 0; i < n; i++) {
        double ll = 0;
        for (int64_t k = 0; k < label[i].n; k++) ll += logp[label[i].at + k];
        if (ll > max) {
            max = ll;
            best = i;
        }
    }
    return best;
}
