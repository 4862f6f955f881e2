/* gnuplot: runs the program gnuplot, which draws the pictures of reports.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GNUPLOT_H
#define DQ_GNUPLOT_H

#include "base/base.h"

/* DQ_RESOURCE with the package to install when no gnuplot of version 5 or later can be started.
 * Commands ask before long work. */
dq_status dq_gnuplot_check(dq_err *err);
/* Runs a script and gives what it prints, with a NUL after it; *out is ended by free(). Script
 * and output pass through files in $TMPDIR (else /tmp) that lose their names at once, so nothing
 * stays after whatever happens. DQ_RESOURCE with gnuplot's first complaint when it fails, DQ_FILE when
 * those files have no room, DQ_STOPPED when a signal came meanwhile. */
dq_status dq_gnuplot_run(char **out, size_t *len, const char *script, size_t script_len,
                         dq_err *err);

#endif
