#!/bin/sh
# defects.sh: every row of a table of defects must make its test fail.
#   sh defects.sh REPOSITORY C++ TABLE DIRECTORY-OF-TEST-PROGRAMS
# A kernel's file (or HEADER:FILE, a header that it includes) is copied, the text replaced, the copy built for the CPU
# and loaded before the library of the right kernel. A spoilt header stands in a tree of its own, which is searched
# before the right one. Barriers have a table of their own (barriers.sh). First the copy without a defect must pass, or a failure would mean nothing. Also
# checks itself on rows that must be complained about.
set -eu
LC_ALL=C
export LC_ALL
root=$1 cxx=$2 table=$3 programs=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tab=$(printf '\t')

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

# build FILE SOURCE PROGRAM: $work/kernel.so of SOURCE, which stands for FILE.
build() {
    tool=
    case $3 in race_*) tool="-g -fsanitize=thread" ;; esac
    # shellcheck disable=SC2086
    "$cxx" $tool -std=c++17 -O1 -ffp-contract=off -fno-exceptions -fno-rtti -DDQ_SIMT -fPIC -shared \
        -I "$work/tree" -I "$root/src" -I "$root" \
        -x c++ "$2" -o "$work/kernel.so" >"$work/log" 2>&1
}

run() { # PROGRAM and its arguments
    case $1 in race_*) fixed="setarch $(uname -m) -R" ;; *) fixed= ;; esac
    # shellcheck disable=SC2086
    (cd "$programs" && timeout 60 $fixed env LD_PRELOAD="$work/kernel.so" DQ_SIMT_QUIET=1 \
        DQ_CUDA_POOL=exact DQ_SIMT_GUARD=1 \
        TSAN_OPTIONS="exitcode=66 history_size=2 halt_on_error=1" ./$1 || exit 1) >"$work/out" 2>&1
}

# spoil FILE OLD NEW: $work/tree/FILE, spoilt.
spoil() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/${1%/*}"
    replace "$root/$1" "$2" "$3" >"$work/tree/$1"
}

# spoilt FILE: its copy, or itself where a header is what was spoilt.
spoilt() {
    if [ -e "$work/tree/$1" ]; then echo "$work/tree/$1"; else echo "$root/$1"; fi
}

check_row() { # FILE PROGRAM OLD NEW CAUGHT: a line if something is wrong
    rm -rf "$work/tree"
    name="$1, \"$3\" -> \"$4\""
    source=${1%%:*} part=${1#*:}
    case $part in */*) ;; *) part=${source%/*}/$part ;; esac
    set -- "$part" "$2" "$3" "$4" "$5"
    right=$work/right.$(echo "$1 $2" | tr '/ *' '___')
    if [ ! -e "$right" ]; then
        : >"$right"
        if ! build "$1" "$root/$1" "$2" || ! run "$2"; then
            echo "$2 fails on $1 without a defect:"
            cat "$work/log" "$work/out"
        fi
    fi
    if ! spoil "$source" "$3" "$4"; then
        echo "$name: the text does not stand there exactly once"
    elif ! build "$1" "$(spoilt "$1")" "$2"; then
        echo "$name: does not compile: $(head -5 "$work/log")"
    elif run "$2"; then
        echo "$name: $2 passes"
    elif [ "$5" != - ] && ! grep -Eq "$5" "$work/out"; then
        echo "$name: $2 fails, but says nothing of \"$5\""
    fi
}

check_table() {
    while IFS="$tab" read -r file program old new caught; do
        case $file in '' | '#'*) continue ;; esac
        [ -n "$caught" ] || echo "$file, \"$old\": a column is missing"
        check_row "$file" "$program" "$old" "$new" "$caught"
    done
}

sample=tests/simt/simt_sample.cu
printf '%s\t%s\t%s\t%s\t%s\n' \
    $sample test_simt_sample 'no such text' x - \
    $sample test_simt_sample 'DQ_UNROLL' x - \
    $sample test_simt_sample 'PITCH = STEP + 16' 'PITCH = STEP + 32' - \
    $sample test_simt_sample 'v += dq_shfl_xor(v, o)' 'v += dq_shfl_xor(v, 1)' 'no such message' |
    check_table >"$work/self"
for expected in '"no such text".*exactly once' '"DQ_UNROLL".*exactly once' 'STEP + 32": test_.* passes' \
    'says nothing of "no such message"'; do
    grep -q "$expected" "$work/self" || {
        echo "defects.sh: does not complain about its own bad row: $expected"
        cat "$work/self"
        exit 1
    }
done
[ "$(wc -l <"$work/self")" = 4 ] || { cat "$work/self" && exit 1; }

check_table <"$table" >"$work/complaints"
rows=$(grep -c "^[^#]" "$table")
[ "$rows" -gt 0 ] || echo "$table holds no row" >>"$work/complaints"
cat "$work/complaints"
[ ! -s "$work/complaints" ] && echo "defects.sh: $rows of $rows caught"
