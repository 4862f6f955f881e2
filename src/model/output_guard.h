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
    DQ_OUTPUT_HTML,
    DQ_OUTPUT_GGUF,
    DQ_OUTPUT_FOLDER, /* which dq_folder_check looks at */
    DQ_OUTPUT_JOURNAL /* of which finished work is read first */
} dq_output_form;

typedef struct dq_output {
    const char *label, *path; /* what messages call it, "--csv"; path NULL: not requested */
    dq_output_form form;
    /* Endings of files that it has beside it, besides PATH.partial, which every output is written into; ended by NULL. NULL:
     * none. */
    const char *const *beside;
} dq_output;

/* All outputs of a command beside all its inputs (folders, containers, plain files, "-" for standard input; NULL: none), as
 * files, under whatever name: DQ_USAGE where two outputs, with what they
 * have beside them, are one file, or standard output is one of them, or where one would replace an input or change a
 * folder that is one: is (through links too) one of the files that a checkpoint consists of (config.json, tokenizer
 * files, *.safetensors, weight files of its index, ...), or would become one. */
dq_status dq_output_guard_names(const dq_output *out, int n, const char *const *input, int n_inputs,
                                dq_err *err);

/* The same, and besides DQ_USAGE for a name that is empty or "-" or that ends as files of another form do; DQ_FILE for one
 * that cannot be written, or that exists, without force. Commands ask before they begin. */
dq_status dq_output_guard_check(const dq_output *out, int n, const char *const *input, int n_inputs,
                                bool force, dq_err *err);

#endif
