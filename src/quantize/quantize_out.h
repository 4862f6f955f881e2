/* quantize_out: a container while it is written: what the files that write one share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_OUT_H
#define DQ_QUANTIZE_OUT_H

#include "base/file.h"
#include "base/text.h"
#include "base/work.h"
#include "quantize/quantize_plan.h"

struct dq_quantize_feed {
    dq_quantizer *q;
    const char *out, *partial, *journal_path;
    dq_inplace_file file;
    dq_journal *journal;    /* NULL: not open, or another process has it */
    dq_journal_lines found; /* what an earlier run wrote into it */
    bool *done;             /* [n_slots] */
    int64_t n_done, unsynced;
    double synced; /* time */
    bool force, resume;
    char **pending; /* lines that wait for the payloads to reach the disk */
    int64_t n_pending;
    int n_sources; /* hashes of weight files in the journal */
    /* the parts being written */
    dq_sha256 hash[DQ_MAX_PARTS];
    int64_t at[DQ_MAX_PARTS];
    bool finished; /* by an earlier run */
    bool broken;   /* the method found damage, which every run finds again */
};

static inline int dq_quantize_out_parts(const dq_slot *s)
{
    return s->encoding == DQ_ENC_PART ? s->weight.format->n_parts : 1;
}

/* Slot i is the first part. */
static inline bool dq_quantize_out_done(const dq_quantize_feed *w, int64_t i)
{
    bool done = true;
    for (int k = 0; k < dq_quantize_out_parts(&w->q->skeleton.slot[i]); k++)
        done = done && w->done[i + k];
    return done;
}

/* On rank 0: takes up an earlier run's files, or begins. *finished: nothing is left to do. */
dq_status dq_quantize_journal_take_up(dq_quantize_feed *w, bool *finished, dq_err *err);
/* A line. Not flushed. */
dq_status dq_quantize_journal_line(dq_quantize_feed *w, const char *line, dq_err *err);
/* Slot i is written; and the same with the line about it (NULL: see err), which lives as long as q's arena. Both flush now and then. */
dq_status dq_quantize_journal_finish(dq_quantize_feed *w, int64_t i, dq_err *err);
dq_status dq_quantize_journal_add(dq_quantize_feed *w, int64_t i, char *line, dq_err *err);
/* What is pending: payloads are on the disk after it, and then the lines about them in the journal; ranks other than 0 tell these,
 * within dq_ranks_run. */
dq_status dq_quantize_journal_flush(dq_quantize_feed *w, dq_err *err);
/* On ranks other than 0: the same, added to a text. */
dq_status dq_quantize_journal_join(dq_quantize_feed *w, dq_strbuf *b, dq_err *err);
/* "done INDEX SHA256 SQNR", and the loss of a method: the results of a payload that is in the file already. Its index; -1: it is no
 * such line. */
int64_t dq_quantize_journal_replay(dq_quantize_feed *w, const char *line);

#endif
