/* runtime: the CUDA runtime API for the host code of the backend: NVIDIA's own header, or, with DQ_SIMT,
 * the stand-in of the tests under the same names.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RUNTIME_H
#define DQ_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef DQ_SIMT
#include "tests/simt/simt_runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif
