/* quantize_plan: what the files of quantize share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_PLAN_H
#define DQ_QUANTIZE_PLAN_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/container_write.h"
#include "model/model.h"
#include "quantize/quantize.h"
#include "quantize/quantize_pace.h"
#include "quantize/quantize_tensor.h"

#include <stdatomic.h>

/* A payload that is not a tensor. */
typedef struct dq_blob {
    const char *path;
    const void *data;
    size_t bytes;
    dq_encoding encoding;
} dq_blob;

enum { DQ_MAX_BLOBS = 10 };

struct dq_quantizer {
    dq_arena *arena; /* owns this struct too */
    dq_quantize_settings set;
    const char *dir;
    dq_model *model;
    const dq_checkpoint *checkpoint; /* of the model: what lies anew in memory does so once */
    dq_quantize_tensor *tensor;      /* as names sort byte by byte */
    int64_t *order;                  /* dq_quantize_row_at: dq_name_order */
    bool *skipped;
    dq_blob blob[DQ_MAX_BLOBS];
    int n_blobs, table, objects; /* the blobs of source files and of the list of objects */
    const char **file;           /* weight files: base names, sizes, hashes (after the scan) */
    int64_t *file_bytes;
    char (*file_sha)[65];
    int n_files;
    dq_err *file_err;            /* of the tasks that hash: they must not share one */
    atomic_int hashing, give_up; /* files not hashed yet; no hash is wanted any more */
    bool hashed;                 /* the main thread knows all hashes */
    const char *recipe;
    dq_quantize_needs needs; /* of the method */
    double *loss;            /* [n_tensors] of dq_quantize_row */
    dq_quantize_tensor_buffers buffers;
    dq_container_skeleton skeleton;
    dq_quantize_info info;
    /* progress */
    const dq_quantize_progress *progress;
    dq_pace pace;
    dq_quantize_rates rates;
    dq_quantize_kind
        kind; /* of the work at hand, and the seconds that are expected of a byte of it */
    double rate;
    int64_t unreleased;         /* bytes walked since all pages were given back */
    _Atomic(const char *) what; /* is being done; tasks that hash beside it read it */
};

/* Opens everything and fills tensors, blobs, slots and info. */
dq_status dq_quantize_plan_make(dq_quantizer *q, const char *model, dq_err *err);
/* Sizes that depend on the type of scales: once before the scan, once after it. */
dq_status dq_quantize_plan_slots(dq_quantizer *q, dq_err *err);
/* Runs `job` on one thread of a parallel region, which the passes need, while tasks of a process that is alone hash the weight
 * files. Hashing one file cannot be divided, so it goes on beside whatever the job does. */
dq_status dq_quantize_plan_run(dq_quantizer *q, dq_status (*job)(void *arg, dq_err *err), void *arg,
                               dq_err *err);
/* Inside a job. Scans all tensors; DQ_STOPPED only before anything is written. By all ranks, which hash the weight files too:
 * each some of them, and then all know what all have found. */
dq_status dq_quantize_plan_scan(dq_quantizer *q, dq_err *err);
/* Inside a job: whether all hashes are there, and waiting until they are. The table of source files
 * is filled by the wait. */
bool dq_quantize_plan_hashes_ready(const dq_quantizer *q);
dq_status dq_quantize_plan_hashes(dq_quantizer *q, dq_err *err);
void dq_quantize_plan_progress(dq_quantizer *q, const dq_quantize_progress *p); /* from zero */
/* The work at hand, of which ticks tell: of a kind, or writing a tensor. */
void dq_quantize_plan_begin(dq_quantizer *q, dq_quantize_kind kind, double rate);
void dq_quantize_plan_begin_tensor(dq_quantizer *q, int64_t tensor);
void dq_quantize_plan_advance(void *quantizer, int64_t bytes);      /* a dq_quantize_tick */
void dq_quantize_plan_advance_hash(void *quantizer, int64_t bytes); /* of the thread that hashes */
/* A tensor was written before; or now, by another rank. */
void dq_quantize_plan_skip(dq_quantizer *q, int64_t tensor);
void dq_quantize_plan_told(dq_quantizer *q, int64_t tensor);
/* The same on the thread of the job, which hears other ranks meanwhile. */
void dq_quantize_plan_advance_job(void *quantizer, int64_t bytes);

#endif
