/* plan_files: see plan_files.h. A recipe without a journal beside it is a finished one.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/plan_files.h"

#include "base/file.h"
#include "model/model.h"
#include "plan/plan_weights.h"

static dq_status check_journal(const dq_plan_files *f, const char *journal, dq_err *err)
{
    DQ_TRY(dq_plan_journal_check(journal, err));
    if (!f->resume || f->force || !dq_file_exists(f->out) || dq_file_exists(journal)) return DQ_OK;
    return dq_fail(err, DQ_FILE,
                   "%s: is finished already, and no interrupted run is beside it, so there is "
                   "nothing to resume. Add --force to plan anew.",
                   f->out);
}

dq_status dq_plan_files_check(const dq_plan_files *f, dq_err *err)
{
    static const char *const journal_only[] = {".journal", NULL};
    static const char *const trials[] = {".journal", ".trial.h5", ".trial.h5.partial",
                                         ".trial.h5.journal", NULL};
    const dq_output out = {"-o", f->out, DQ_OUTPUT_JSON, f->trials ? trials : journal_only};
    if (!f->out) return DQ_OK;
    DQ_TRY(dq_output_guard_names(&out, 1, f->inputs, f->n_inputs, err));
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const char *journal = dq_textf(a, err, "%s.journal", f->out);
    if (journal) check_journal(f, journal, err);
    dq_arena_free(a);
    DQ_TRY(err->code);
    return dq_output_guard_check(&out, 1, f->inputs, f->n_inputs, f->force, err);
}
