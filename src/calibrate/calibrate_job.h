/* calibrate_job: one calibrated run, as calibrate.c sets it up and calibrate_layer.c takes it through the layers.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_JOB_H
#define DQ_CALIBRATE_JOB_H

#include "calibrate/activations.h"
#include "calibrate/calib_pass.h"
#include "calibrate/calibrate.h"
#include "calibrate/reference.h"
#include "calibrate/value_maps.h"
#include "quantize/quantize.h"

struct dq_calibrate {
    dq_calibrate_settings set;
    dq_arena *arena;
    const dq_model *m; /* once one is open */
    dq_calib_text text;
    dq_calibrate_info info;
    dq_calibrate_rates rates;
    dq_quantize_method method;
    double lap; /* time at which the current part began */
};

/* Rows of a matrix that are corrected and rounded at a time: rows do not see each other. A matrix of one scale is rounded
 * whole. */
enum { DQ_CALIBRATE_BAND_ROWS = 4096 };

/* One run. */
typedef struct dq_calibrate_job {
    dq_calibrate *c;
    const dq_quantizer *q;
    dq_quantize_feed *feed; /* NULL: nothing is run */
    const dq_model *m;
    dq_backend *b;
    dq_activations act;
    dq_hessian *h;
    dq_reference ref;    /* of a rule that aligns */
    dq_value_maps *maps; /* likewise */
    dq_calib_pass pass;
    dq_layer layer; /* the current one, with rounded weights */
    dq_coded coded[7];
    float *dense[8]; /* values of the layer's matrices that are stored in another type */
    int n_coded, n_dense, number; /* of the layer */
    double at_once;               /* rows of the round at hand, in units of this rank's own */
    int n_layers; /* after them nothing is left to round but the head; 0: no layer is */
    bool embed;   /* a tied embedding is left to round */
    bool head;    /* a head of its own is left to round */
} dq_calibrate_job;

/* The clock of the parts: what runs from here, and that it ended, with the arithmetic that it did. */
void dq_calibrate_job_begin_part(dq_calibrate *c);
void dq_calibrate_job_end_part(dq_calibrate *c, dq_calibrate_part part, double flop);
/* j->pass.x of a chunk to the scratch file. */
dq_status dq_calibrate_job_put_stream(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err);

/* The chunk of this rank in a round, NULL: it has none. */
const dq_calib_chunk *dq_calibrate_job_chunk(dq_calibrate_job *j, int64_t round);

/* Likewise, and progress is told of it: of all ranks, which do the same of their chunks, or share factors. */
void dq_calibrate_job_advance(dq_calibrate_job *j, dq_calibrate_part part, double flop,
                              const char *what);

/* What is left to round: n_layers, embed, head. */
void dq_calibrate_job_find_left(dq_calibrate_job *j);
/* Whether any of these has to be rounded. */
bool dq_calibrate_job_is_left(const dq_calibrate_job *j, const dq_weight *const *w, int n);
/* Factors j->h, with what is unusual about it noted. */
dq_status dq_calibrate_job_factor(dq_calibrate_job *j, double damping, const char *name,
                                  dq_err *err);
/* Codes of one tensor by factored sums, into the container and *out, which the caller ends. aligns: it is corrected before. */
dq_status dq_calibrate_job_round_tensor(dq_calibrate_job *j, const dq_quantize_tensor *t,
                                        const dq_weight *w, bool aligns, dq_coded *out,
                                        dq_err *err);
/* Gives the layer the rounded form of weights with the same inputs: from an earlier run, or made now by their sums. */
dq_status dq_calibrate_job_round(dq_calibrate_job *j, dq_weight *const *w, int n, bool sums,
                                 dq_err *err);
/* Gives the layer a matrix that is not coded as it will be read back: in another type, where it is to have one. */
dq_status dq_calibrate_job_take_stored(dq_calibrate_job *j, dq_weight *w, dq_err *err);
/* What w reads in row `at` of a chunk is not finite. DQ_DAMAGED. */
dq_status dq_calibrate_job_refuse_row(const dq_calibrate_job *j, const dq_calib_chunk *k,
                                      int64_t at, const dq_weight *w, const char *what,
                                      const char *where, dq_err *err);

/* Both streams of the text begin: with the embedding, and as it is rounded. One that is the head too is rounded here, by what
 * the final norm of the model before rounding gives. */
dq_status dq_calibrate_job_run_embedding(dq_calibrate_job *j, dq_err *err);
/* Takes j->pass.x, a chunk's embeddings, through all layers before rounding. */
dq_status dq_calibrate_job_run_source(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err);
/* Rounds the projections of a layer, and takes the stream, and the reference's, through it. */
dq_status dq_calibrate_job_run_layer(dq_calibrate_job *j, int number, dq_err *err);
/* Rounds a head of its own by the outputs of the final norm, of both streams, after the last layer. */
dq_status dq_calibrate_job_run_head(dq_calibrate_job *j, dq_err *err);

#endif
