/* tally_text: see tally_text.h. A histogram has 32768 bins and values lie in some hundreds of them, next to one another: what is
 * empty is left out.
 * SPDX-License-Identifier: MIT */
#include "stat/tally_text.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const int64_t max_values = (int64_t)1 << 46; /* 131072 such counts add up within 63 bits */

/* ---- Writing ---- */

static void put_top(FILE *f, const dq_tally *t)
{
    fputs(", \"top\": \"", f);
    for (int i = 0; i < t->n_top; i++) {
        const dq_place *p = &t->place[i];
        fprintf(f, "%s%a %" PRId32 " %" PRId32 " %" PRId32 " %" PRId32 " %" PRId32, i ? " " : "",
                (double)t->top[i], p->seq, p->layer, p->head, p->row, p->col);
    }
    fputc('"', f);
}

static void put_histogram(FILE *f, const int64_t *hist)
{
    bool in_run = false, first = true;
    fputs(", \"histogram\": \"", f);
    for (int i = 0; i < DQ_HIST_BINS; i++) {
        if (hist[i] && in_run)
            fprintf(f, " %" PRId64, hist[i]);
        else if (hist[i])
            fprintf(f, "%s%d:%" PRId64, first ? "" : ";", i, hist[i]);
        in_run = hist[i] != 0;
        first = first && !in_run;
    }
    fputc('"', f);
}

void dq_tally_text_put(FILE *f, const dq_tally *t)
{
    const double sums[3] = {t->sum, t->sum2, t->sum4};
    fprintf(f, "{\"n\": %" PRId64 ", \"n_bad\": %" PRId64, t->n, t->n_bad);
    dq_part_put_reals(f, "sums", sums, 3);
    put_top(f, t);
    put_histogram(f, t->hist);
    fputc('}', f);
}

/* ---- Reading ---- */

/* The next of several numbers, and what may stand behind it; false: another thing stands there. */
static bool next_int(int64_t *x, const char **at, int64_t min, int64_t max, const char *after)
{
    char *end;
    const bool digit = **at == '-' || (**at >= '0' && **at <= '9');
    *x = strtoll(*at, &end, 10);
    if (!digit || *x < min || *x > max || (*end && !strchr(after, *end))) return false;
    *at = end;
    return true;
}

static bool next_place(dq_place *p, const char **at)
{
    int32_t *const field[5] = {&p->seq, &p->layer, &p->head, &p->row, &p->col};
    for (int i = 0; i < 5; i++) {
        int64_t x;
        if (*(*at)++ != ' ' || !next_int(&x, at, -1, INT32_MAX, " ")) return false;
        *field[i] = (int32_t)x;
    }
    return true;
}

static bool get_top(dq_tally *t, const char *at)
{
    for (; *at && t->n_top < DQ_TOP; t->n_top++) {
        char *end;
        const int i = t->n_top;
        const double x = strtod(at, &end);
        if (end == at || !(x >= 0 && x <= (double)(i ? t->top[i - 1] : FLT_MAX))) return false;
        t->top[i] = (float)x;
        at = end;
        if (!next_place(&t->place[i], &at)) return false;
        at += *at == ' ';
    }
    t->threshold = t->n_top == DQ_TOP ? t->top[DQ_TOP - 1] : 0;
    return !*at && t->n_top == (t->n < DQ_TOP ? t->n : DQ_TOP);
}

static bool get_histogram(dq_tally *t, const char *at)
{
    int64_t all = 0;
    for (int64_t bin = 0; *at;) {
        if (!next_int(&bin, &at, bin, DQ_HIST_BINS - 1, ":") || *at++ != ':') return false;
        for (bool more = true; more; bin++) {
            if (bin >= DQ_HIST_BINS || !next_int(&t->hist[bin], &at, 1, max_values, " ;"))
                return false;
            all += t->hist[bin];
            more = *at == ' ';
            if (*at && !*++at) return false;
        }
    }
    return all == t->n;
}

dq_status dq_tally_text_get(dq_tally *out, const json_t *o, dq_err *err)
{
    const char *top, *histogram;
    double sums[3];
    DQ_TRY(dq_json_int(&out->n, o, "n", 0, max_values, NULL, err));
    DQ_TRY(dq_json_int(&out->n_bad, o, "n_bad", 0, max_values, NULL, err));
    DQ_TRY(dq_part_get_reals(sums, 3, o, "sums", err));
    DQ_TRY(dq_json_text(&top, o, "top", NULL, err));
    DQ_TRY(dq_json_text(&histogram, o, "histogram", NULL, err));
    out->sum = sums[0];
    out->sum2 = sums[1];
    out->sum4 = sums[2];
    if (!get_top(out, top)) return dq_fail(err, DQ_DAMAGED, "\"top\"");
    if (!get_histogram(out, histogram)) return dq_fail(err, DQ_DAMAGED, "\"histogram\"");
    return DQ_OK;
}
