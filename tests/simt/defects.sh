#!/bin/sh
# defects.sh: every row of a table of defects must make its test fail.
#   sh defects.sh REPOSITORY C++ TABLE DIRECTORY-OF-TEST-PROGRAMS
# A kernel's file is copied, the text replaced, the copy built for the CPU and loaded before the library
# of the right kernel. First the copy without a defect must pass, or a failure would mean nothing.
set -eu
LC_ALL=C
export LC_ALL
root=$1 cxx=$2 table=$3 programs=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0 rows=0
tab=$(printf '\t')

complain() {
    echo "defects.sh: $1" >&2
    failures=$((failures + 1))
}

# replace FILE OLD NEW >COPY: fails unless OLD stands there exactly once.
replace() {
    OLD=$2 NEW=$3 awk '
    { text = text $0 "\n" }
    END {
        old = ENVIRON["OLD"]
        at = index(text, old)
        if (!at || index(substr(text, at + 1), old)) exit 1
        printf "%s%s%s", substr(text, 1, at - 1), ENVIRON["NEW"], substr(text, at + length(old))
    }' "$1"
}

# build FILE SOURCE: $work/kernel.so of SOURCE, which stands for FILE.
build() {
    "$cxx" -std=c++17 -O1 -ffp-contract=off -fno-exceptions -fno-rtti -DDQ_SIMT -fPIC -shared \
        -I "$root/$(dirname "$1")" -I "$root/kernels/cuda" -I "$root/tests/simt" -I "$root/src" \
        -x c++ "$2" -o "$work/kernel.so" >"$work/log" 2>&1
}

run() { # PROGRAM
    timeout 60 env LD_PRELOAD="$work/kernel.so" DQ_SIMT_QUIET=1 "$programs/$1" >"$work/out" 2>&1
}

while IFS="$tab" read -r file program old new caught; do
    case $file in '' | '#'*) continue ;; esac
    rows=$((rows + 1))
    name="$file, \"$old\" -> \"$new\""
    if [ ! -e "$work/$(basename "$file").$program.right" ]; then
        build "$file" "$root/$file" && run "$program" ||
            complain "$program fails on $file without a defect: $(cat "$work/log" "$work/out")"
        : >"$work/$(basename "$file").$program.right"
    fi
    if ! replace "$root/$file" "$old" "$new" >"$work/spoilt.cu"; then
        complain "$name: the text does not stand there exactly once"
    elif ! build "$file" "$work/spoilt.cu"; then
        complain "$name: does not compile: $(head -5 "$work/log")"
    elif run "$program"; then
        complain "$name: $program passes"
    elif [ "$caught" != - ] && ! grep -Eq "$caught" "$work/out"; then
        complain "$name: $program fails, but says nothing of \"$caught\""
    fi
done <"$table"

[ "$rows" -gt 0 ] || complain "$table holds no row"
[ "$failures" = 0 ] && echo "defects.sh: $rows of $rows caught"
exit $((failures > 0))
