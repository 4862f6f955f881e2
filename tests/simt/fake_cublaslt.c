/* fake_cublaslt: what fake_cublas.c needs, with a function that is to be found through it.
 * SPDX-License-Identifier: MIT */
extern const int fake_cublaslt_version;
const int fake_cublaslt_version = 13;
int cublasLtMatmul(void);

int cublasLtMatmul(void)
{
    return 15; /* not supported */
}
