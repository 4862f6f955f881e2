/* fake_cublas: a libcublas.so.13 for tests of where it is looked for; needs its libcublasLt.so.13, as the real one
 * does, and says that its version is what that holds.
 * SPDX-License-Identifier: MIT */
extern const int fake_cublaslt_version;
int cublasGetProperty(int which, int *value);

int cublasGetProperty(int which, int *value)
{
    *value = fake_cublaslt_version + which;
    return 0;
}
