#!/bin/sh
# gates.sh: what the compiler makes of kernels: registers, spills, shared memory, matrix products.
#   sh gates.sh NVCC REPOSITORY ARCHITECTURE[,ARCHITECTURE]... [FILE.cu...]
# Without files: all of kernels/cuda with matrix products in them. Fails if a kernel spills, or if one whose name says
# attend has no matrix product. ("shared" is what a kernel declares; most is asked for in the launch.)
set -eu
LC_ALL=C
export LC_ALL
nvcc=$1 root=$2 architectures=$(echo "$3" | tr , ' ')
shift 3
[ $# -gt 0 ] || set -- attend.cu
command -v "$nvcc" >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile FILE ARCHITECTURE: a table row per kernel to $work/table. Code is made from what nvcc leaves in between.
compile() {
    case $2 in
    compute_*) code=-ptx real=sm_${2#compute_} ;;
    *) code=-cubin real=$2 ;;
    esac
    rm -rf "$work/keep"
    mkdir "$work/keep"
    "$nvcc" -std=c++17 -O3 -fmad=false -Werror=all-warnings -Xptxas=-v -I "$root/src" -I "$root" -arch="$2" $code \
        -keep -keep-dir "$work/keep" "$root/kernels/cuda/device/$1" -o "$work/out.ptx" 2>"$work/log" || {
        cat "$work/log"
        exit 1
    }
    if [ $code = -ptx ]; then
        ptx=$work/out.ptx
        "$(dirname "$(command -v "$nvcc")")/ptxas" -v -arch="$real" "$ptx" -o "$work/cubin" 2>"$work/log"
    else
        ptx=$work/keep/${1%.cu}.ptx
    fi
    awk -v arch="$2" '
    FILENAME ~ /ptx$/ && /\.entry/ { name = $0; sub(/.*\.entry /, "", name); sub(/\(.*/, "", name); next }
    FILENAME ~ /ptx$/ && /mma\.sync.*s32/ { imma[name]++; next }
    FILENAME ~ /ptx$/ && /mma\.sync.*\.f16/ { hmma[name]++; next }
    FILENAME ~ /ptx$/ && /dp4a/ { dp4a[name]++; next }
    FILENAME ~ /ptx$/ { next }
    /Compiling entry function/ { split($0, part, "\047"); name = part[2]; next }
    /spill stores/ { spill = $5 + $9; next }
    /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
        shared = 0
        if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH - 11)
        print arch, name, registers, spill, shared, imma[name] + 0, hmma[name] + 0, dp4a[name] + 0
    }' "$ptx" "$work/log" >>"$work/table"
}

for file in "$@"; do
    for architecture in $architectures; do
        compile "$file" "$architecture"
    done
done
filter=$(command -v c++filt || echo cat)
printf '%-11s %9s %6s %7s %5s %5s %5s  %s\n' target registers spills shared imma hmma dp4a kernel
"$filter" <"$work/table" | awk '
{
    line = $0
    n = split(line, f, " ")
    name = f[2]
    for (i = 3; i <= n - 6; i++) name = name " " f[i]
    sub(/^void /, "", name)
    sub(/\(.*/, "", name)
    printf "%-11s %9d %6d %7d %5d %5d %5d  %s\n", f[1], f[n - 5], f[n - 4], f[n - 3], f[n - 2], f[n - 1], f[n], name
    if (f[n - 4] > 0) bad = bad "gates.sh: " name " spills\n"
    if (f[n - 5] > 255) bad = bad "gates.sh: " name " has too many registers\n"
    if (name ~ /attend/ && f[n - 2] + f[n - 1] == 0) bad = bad "gates.sh: " name " has no matrix product\n"
}
END { printf "%s", bad; exit bad != "" }'
