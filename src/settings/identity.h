/* identity: the program and what it runs on, in words that tell apart what may compute other bits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_IDENTITY_H
#define DQ_IDENTITY_H

#include "engine/backend.h"

enum { DQ_IDENTITY = 240 };
/* "dq 0.1.0 (COMMIT), compiler 12.2.0, cpu avx2 avx512": version, compiler, device and instruction sets. Threads change no bit. */
void dq_identity_text(char out[DQ_IDENTITY], const dq_backend *b);

#endif
