/* output_guard: the files that a command writes, looked at before it begins.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OUTPUT_GUARD_H
#define DQ_OUTPUT_GUARD_H

#include "base/base.h"

typedef enum dq_output_form {
    DQ_OUTPUT_HDF5,
    DQ_OUTPUT_JSON,
    DQ_OUTPUT_LINES,
    DQ_OUTPUT_CSV,
    DQ_OUTPUT_HTML
} dq_output_form;

typedef struct dq_output {
    const char *label, *path; /* what messages call it, "--csv"; path NULL: not requested */
    dq_output_form form;
} dq_output;

/* All outputs of a command beside all its inputs (folders, containers and plain files): DQ_USAGE for a name
 * that is empty or "-", that would replace an input (see dq_output_guard_protects), that ends as files of another
 * form do, or that two outputs have; DQ_FILE for one that cannot be written, or that exists, without force. */
dq_status dq_output_guard_check(const dq_output *out, int n, const char *const *input, int n_inputs,
                                bool force, dq_err *err);

/* DQ_USAGE when writing `out` would replace `input`, a file, or change `input`, a folder: out is
 * (through links too) one of the files that a checkpoint consists of (config.json, tokenizer files,
 * *.safetensors, ...), or would become one. An input that does not exist has nothing to lose. */
dq_status dq_output_guard_protects(const char *out, const char *input, dq_err *err);

#endif
