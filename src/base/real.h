/* real: a number as people write it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REAL_H
#define DQ_REAL_H

/* strtod of decimal notation alone: *end is text where it begins with anything else (a blank, 0x, inf, nan). */
double dq_real_parse(const char *text, char **end);

#endif
