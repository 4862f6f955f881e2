/* calibrate: rounds the projections of a model, and its head, layer by layer, each by what its inputs look like on a calibration
 * text when everything before it is rounded already. Costs about one forward pass over the text and the Hessians, and another pass
 * where the head is the embedding;
 * memory is that of one Hessian and one layer, activations lie in a scratch file beside the output.
 *
 * Where weights are aligned, the stream of the model before rounding runs beside the rounded one, which costs another forward
 * pass and the sums of what differs.
 *
 * In a layer: inputs of q, k and v; where weights are aligned, what the maps of the rounded q and k make of them for v; the
 * attention of the rounded q, k and v, which o reads; inputs of gate and up; their product after rounding, which down reads.
 * After the last layer: the final norm, whose output the head reads. A head that is the embedding is rounded before the first one,
 * by what it reads in the model before rounding.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_H
#define DQ_CALIBRATE_H

#include "calibrate/calib_text.h"
#include "engine/backend.h"
#include "quantize/quantize.h"

/* How weights become codes; `about` is for who is to choose. */
typedef struct dq_calibrate_rule {
    const char *name, *about;
    /* Weights first make up for what was lost before them: correction.h; v_proj is rounded by what attention makes of its
     * inputs: value_maps.h. */
    bool aligns;
    int refits; /* of scales, gptq.h */
} dq_calibrate_rule;
/* With fewer tokens than this for each input of the widest product, of which a Hessian has as many columns, a method has been
 * measured to do worse than rounding to nearest without a text about as often as better: docs/quantize.md, "How much text". */
#define DQ_CALIBRATE_TOKENS_EACH 0.5
enum { DQ_CALIBRATE_RULES = 2 };
extern const dq_calibrate_rule dq_calibrate_rules[DQ_CALIBRATE_RULES];

typedef struct dq_calibrate_settings {
    const dq_calibrate_rule *rule;
    const char *path;    /* of the calibration text */
    int64_t tokens, ctx; /* 0: the defaults of calib_text.h */
    unsigned part;       /* of the text, calib_text.h; 0: all */
    const char *sha256;  /* that the text must have; NULL: any */
    dq_backend *backend; /* one that computes in host memory; must outlive the run */
    const char *out;     /* beside which the scratch file is; NULL: nothing is run */
} dq_calibrate_settings;
/* What is added to the diagonal of a Hessian of so many inputs, in units of its mean. From few tokens its small directions are
 * chance: of 4096 tokens of SmolLM2-135M 10 % lost less than GPTQ's 1 % (results/real), of many as calib/longpair has it more. */
#define DQ_CALIBRATE_DAMPING "half an input a token, at least 0.01"
double dq_calibrate_damping(int64_t inputs, int64_t tokens);
#define DQ_CALIBRATE_EMBED_DAMPING 0.03 /* at least, of an embedding that is the head */

/* Where the time of a run went, and the arithmetic that it did there. */
typedef enum dq_calibrate_part {
    DQ_CALIBRATE_FORWARD,  /* f32 */
    DQ_CALIBRATE_MAPS,     /* f32: what values are read by */
    DQ_CALIBRATE_HESSIANS, /* f32 */
    DQ_CALIBRATE_FACTORS,  /* f64 */
    DQ_CALIBRATE_ROUNDING, /* f64, and the search for scales */
    DQ_CALIBRATE_FILES,    /* activations, codes */
    DQ_CALIBRATE_PARTS
} dq_calibrate_part;
extern const char *const dq_calibrate_part_name[DQ_CALIBRATE_PARTS];

typedef struct dq_calibrate_info {
    const dq_calib_text *text; /* once a model is open */
    int64_t scratch_bytes;
    int64_t inputs; /* of the widest product */
    double seconds[DQ_CALIBRATE_PARTS], flop[DQ_CALIBRATE_PARTS];
    int64_t n_damped;    /* Hessians that took more damping than asked for */
    double damped_share; /* the most that any took */
    char damped[200];    /* the first of their tensors */
    int64_t n_dead;      /* inputs of products that are 0 for every token */
    int64_t n_corrected; /* products whose weights were corrected, and the sum of the shares that */
    double trust;        /* outputs kept of the corrections: shrinkage.h */
    int64_t n_kept;      /* rows that could not be corrected: reference.h */
    char kept[200];      /* the first of their tensors */
} dq_calibrate_info;

/* Seconds that all threads together take: of a multiplication or addition, by part; and of a value in all roundings of a rule,
 * beside those, by mode and width. */
typedef struct dq_calibrate_rates {
    double flop[DQ_CALIBRATE_PARTS], value[DQ_QUANT_MODES][9];
} dq_calibrate_rates;

typedef struct dq_calibrate dq_calibrate;
dq_status dq_calibrate_new(dq_calibrate **out, const dq_calibrate_settings *s, dq_err *err);
void dq_calibrate_free(dq_calibrate *c); /* NULL allowed */
/* Times pieces of the work that q, opened with the method, is to do, for what is expected of it (dq_quantize_expected): about a
 * second. Without it, and for several ranks, this goes by no machine in particular. DQ_RESOURCE. */
dq_status dq_calibrate_measure(dq_calibrate *c, const dq_quantizer *q, dq_err *err);
const dq_calibrate_info *dq_calibrate_result(const dq_calibrate *c);
/* For dq_quantize_settings; belongs to c. */
const dq_quantize_method *dq_calibrate_method(const dq_calibrate *c);

#endif
