/* advice: failures of the library in the words of this program: which option or command would help.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ADVICE_H
#define DQ_ADVICE_H

#include "base/base.h"

/* Rewords the text by its remedies, which are then used up. */
void dq_advice_apply(dq_err *err);

#endif
