/* settings: "kv_bits=4:4" as an option of the command line.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SETTINGS_H
#define DQ_SETTINGS_H

#include "settings/options.h"

/* The texts of settings; values that were read point into them. */
typedef struct dq_settings {
    char *text; /* a block; NULL: none */
} dq_settings;

/* Reads settings, a list that ends with NULL or NULL itself, into what rows point to. "NAME=VALUE" is "--NAME VALUE" with dashes
 * for underscores; a flag has the value true or false. DQ_USAGE. */
dq_status dq_settings_read(dq_settings *s, const char *const *settings, const dq_opt *rows,
                           dq_err *err);
void dq_settings_free(dq_settings *s);

#endif
