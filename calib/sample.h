/* sample: the text that commands run over when none is given (sample.txt, built into the program by
 * embed.cmake).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SAMPLE_H
#define DQ_SAMPLE_H

#include <stddef.h>

extern const char dq_sample_text[]; /* a NUL follows */
extern const size_t dq_sample_text_len;

#endif
