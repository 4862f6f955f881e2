/* gptq_stripes: see gptq_stripes.h. Codes and grids are spread as they are, and every rank packs them for itself.
 * SPDX-License-Identifier: MIT */
#include "calibrate/gptq_stripes.h"

#include "base/ranks.h"

/* Codes of a rank's stripe become those of all. */
static dq_status pass_codes(dq_codes **c, const dq_gptq_stripes *s, int rank, int64_t rows,
                            dq_err *err)
{
    const dq_code_shape *shape;
    if (rank != dq_ranks_number()) dq_codes_new(c, rows, s->cols, s->spec, err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    shape = &(*c)->shape;
    dq_ranks_spread(rank, (*c)->code, (size_t)(dq_codes_rows(rows, s->spec) * shape->cols));
    dq_ranks_spread(rank, (*c)->grid, (size_t)(rows * shape->groups) * sizeof *(*c)->grid);
    return DQ_OK;
}

static dq_status round_stripes(const dq_gptq_stripes *s, dq_coded *out, dq_gptq_loss *loss,
                               int64_t first, int64_t rows, dq_err *err)
{
    enum { UNIT = DQ_STRIP_ROWS };
    const dq_ranks_rows mine = dq_ranks_stripe(dq_ranks_number(), rows, UNIT);
    dq_codes *own = NULL;
    if (mine.end > mine.first)
        s->round(s->arg, &own, loss + mine.first, first + mine.first, mine.end - mine.first, err);
    for (int rank = 0; err->code == DQ_OK && rank < dq_ranks_count(); rank++) {
        const dq_ranks_rows its = dq_ranks_stripe(rank, rows, UNIT);
        dq_codes *codes = rank == dq_ranks_number() ? own : NULL;
        if (its.end == its.first) continue;
        if (pass_codes(&codes, s, rank, its.end - its.first, err) == DQ_OK)
            dq_coded_put(out, codes, first + its.first);
        if (codes != own) dq_codes_free(codes);
    }
    dq_codes_free(own);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_join(loss, rows, UNIT, sizeof *loss);
    return DQ_OK;
}

static dq_status round_whole(const dq_gptq_stripes *s, dq_coded *out, dq_gptq_loss *loss,
                             int64_t first, int64_t rows, dq_err *err)
{
    dq_codes *codes = NULL;
    if (s->round(s->arg, &codes, loss, first, rows, err) == DQ_OK) dq_coded_put(out, codes, first);
    dq_codes_free(codes);
    return err->code;
}

dq_status dq_gptq_stripes_round(const dq_gptq_stripes *s, dq_coded *out, dq_gptq_loss *loss,
                                int64_t first, int64_t rows, dq_err *err)
{
    return s->whole ? round_whole(s, out, loss, first, rows, err)
                    : round_stripes(s, out, loss, first, rows, err);
}
