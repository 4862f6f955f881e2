#!/bin/sh
# hopper.sh: what nvcc makes of hopper.cuh: every wrapper compiles for sm_90a, without a warning, without a spill and without a note of
# ptxas that products are serialized or registers not handed over; for other devices it is refused by name. The build holds the
# kernels that use it to the same (kernels/cuda/noted.sh).
#   sh hopper.sh NVCC REPOSITORY
set -eu
LC_ALL=C
export LC_ALL
nvcc=$1 root=$2
command -v "$nvcc" >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the sample and the products leave out, and a kernel that must be complained about.
cat >"$work/rest.cu" <<'END'
#include "kernels/cuda/device/hopper.cuh"
DQ_KERNEL(128) rest(float *out, const float *x)
{
    DQ_SHARED_DYNAMIC(smem);
    DQ_SHARED(dq_mbarrier, m, [1]);
    if (dq_thread() == 0) {
        DQ_MBARRIER_INIT(m, 2);
        dq_fence_mbarrier_init();
        dq_mbarrier_arrive_expect(m, 512);
        dq_bulk_copy(smem, x, 512, m);
        dq_mbarrier_arrive(m);
    }
    dq_sync();
    dq_mbarrier_wait(m, 0);
    out[dq_thread()] = ((const float *)smem)[dq_thread()];
}
void run_rest(float *out, const float *x)
{
    DQ_LAUNCH(rest, 1, 128, 512, NULL, out, x);
}
END
cat >"$work/bad.cu" <<'END'
#include "kernels/cuda/device/hopper.cuh"
DQ_KERNEL(384) bad(int *out)
{
    dq_setmaxnreg_dec<24>();
    out[dq_thread()] = 1;
}
void run_bad(int *out)
{
    DQ_LAUNCH(bad, 1, 384, 0, NULL, out);
}
END

compile() { # ARCHITECTURE FILE
    sh "$root/kernels/cuda/noted.sh" "$nvcc" -std=c++17 -O3 -fmad=false -Werror=all-warnings -Xcompiler=-Wall,-Wextra -Xptxas=-v,-warn-spills \
        -I "$root/src" -I "$root" -arch="$1" -cubin -x cu "$2" -o "$work/out" >"$work/log" 2>&1
}

kernels=0
for file in "$root/tests/simt/simt_attend.cu" "$root/tests/simt/test_simt_products.cpp" "$work/rest.cu"; do
    compile sm_90a "$file" || { cat "$work/log" && exit 1; }
    kernels=$((kernels + $(grep -c 'Compiling entry function' "$work/log")))
done
if compile sm_90a "$work/bad.cu" || ! grep -q 'what ptxas notes here is an error' "$work/log"; then
    cat "$work/log"
    echo "hopper.sh: finds no note about its own bad kernel" && exit 1
fi
for other in sm_80 sm_90 sm_100a; do
    if compile $other "$work/rest.cu" || ! grep -q 'hopper.cuh needs compute capability 9.0a' "$work/log"; then
        echo "hopper.sh: $other is not refused by name" && exit 1
    fi
done
[ "$kernels" -ge 33 ] || { echo "hopper.sh: only $kernels kernels" && exit 1; }
echo "hopper.sh: $kernels kernels for sm_90a without a note"
