/* fake_cublaslt: what fake_cublas.c needs.
 * SPDX-License-Identifier: MIT */
extern const int fake_cublaslt_version;
const int fake_cublaslt_version = 13;
