#!/bin/sh
# layers.sh: who may include whom, and who may print.
#   sh tests/layers.sh [REPOSITORY]
# A file includes headers of its own floor and of lower floors, never of a higher one; the headers
# among themselves form no circle. Prints one line per violation and exits 1; also checks itself on a
# planted tree that breaks every rule.
set -eu
LC_ALL=C
export LC_ALL

# Module (or the beginning of its name, with *) and floor. The longest match counts.
floors='
base 0
tensor 1
json 1
stats 1
attention 1
os 1
os_map 1
outputs 2
inplace 1
steps 3
hash 1
ids 1
strmap 1
strbuf 1
utf8 1
csv 1
batch 1
kv 1
kv_settings 1
policy 1
measure 1
recall 1
needles 3
needle_cities 3
spans 1
mt19937 1
weight 2
quant 2
loops 1
quant_search 2
safetensors 2
tokenizer* 2
added 2
bpe 2
unigram 2
pretokenize* 2
match 2
normalize 2
charsmap 2
decode 2
pattern 2
h5 2
h5out 2
layouts 2
sample 2
model 3
model_* 3
rope 3
fit 3
container* 3
quantize* 3
backend 4
kv_page* 4
span_* 4
cpu* 4
simd* 4
cuda* 4
ptx 4
runtime 4
rows 4
linear* 4
logprob 4
simt* 4
page 4
pages 4
attend 4
fused* 4
maps 4
tally 4
trace 4
forward 5
routes 5
evict 6
outliers 6
items 7
documents 7
windows 7
slices 7
tasks 7
task_* 7
hellaswag 7
fewshot 7
score 7
score_* 7
interval 1
paired 7
text_numbers 7
generate 7
answers 7
questions 7
verdicts 7
needle_run 7
evaluate* 7
icl 7
icl_* 7
'

# Lines "file line kind header" of every #include below $1; kind is " or <.
includes() {
    # shellcheck disable=SC2046 # names of sources hold no spaces
    (cd "$1" && grep -n '^[[:space:]]*#[[:space:]]*include' $(files) /dev/null) |
        sed -n 's/^\([^:]*\):\([0-9]*\):[^"<]*\(["<]\)\([^">]*\)[">].*/\1 \2 \3 \4/p'
}

files() {
    find src kernels calib cmds -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort
}

check_floors() {
    includes "$1" | FLOORS="$floors" awk '
    function module(path) {
        sub(/.*\//, "", path)
        sub(/\.[a-z]+$/, "", path)
        return path
    }
    function floor_of(name,   i, best, length_of_best, key) {
        best = -1; length_of_best = -1
        for (i = 1; i <= n; i++) {
            key = pattern[i]
            if (key == name) return level[i]
            if (key ~ /\*$/ && index(name, substr(key, 1, length(key) - 1)) == 1 &&
                length(key) > length_of_best) {
                best = level[i]; length_of_best = length(key)
            }
        }
        return best
    }
    function say(text) { print $1 ":" $2 ": " text }
    BEGIN {
        n = split(ENVIRON["FLOORS"], rows, "\n")
        for (i = 1; i <= n; i++) {
            split(rows[i], part, " ")
            pattern[i] = part[1]; level[i] = part[2]
        }
    }
    { me = module($1); dir = $1; sub(/\/.*/, "", dir) }
    $3 == "\"" && dir != "cmds" {
        mine = floor_of(me); other = floor_of(module($4))
        if (mine < 0) say("module " me " has no floor; add it to tests/layers.sh")
        else if (other < 0) say("includes " $4 ", which has no floor or belongs to cmds")
        else if (other > mine) say("includes " $4 " of floor " other " from floor " mine)
    }
    $3 == "\"" && $4 == "h5.h" && $1 !~ /^src\/(h5\.c|h5out\.c|container[a-z0-9_]*\.[ch])$/ {
        say("includes h5.h; only h5.c, h5out.c and container*.c do")
    }
    $3 == "\"" && $4 ~ /(^|\/)(cpu|simd)[a-z0-9_]*\.h$/ && $1 !~ /^kernels\// && $1 != "src/backend.c" {
        say("includes " $4 "; kernels are reached through backend.h")
    }
    $3 == "<" && $4 ~ /hdf5|^H5/ && $1 !~ /^src\/(h5\.h|h5out\.c|container[a-z0-9_]*\.c)$/ {
        say("includes " $4 "; only src/container*.c, src/h5.h and src/h5out.c know HDF5")
    }
    $4 ~ /cuda|cublas/ && $1 !~ /^kernels\/cuda\// && ($1 != "src/backend.c" || $4 != "cuda_open.h") {
        say("includes " $4 "; only kernels/cuda knows CUDA")
    }
    $3 == "<" && $4 ~ /^(unistd|fcntl|signal|sched|dirent|dlfcn|pthread|getopt)\.h$|^sys\// &&
        dir != "cmds" && $1 !~ /^src\/(os|os_map|inplace|steps)\.c$/ {
        say("includes " $4 "; only src/os*.c, src/inplace.c and src/steps.c need POSIX")
    }'
}

# A circle among headers: tsort names its members.
check_circles() {
    includes "$1" | awk '$1 ~ /\.h$/ && $3 == "\"" {
        me = $1; sub(/.*\//, "", me); other = $4; sub(/.*\//, "", other)
        print me, other
    }' | tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^ ]*\.h\)$/\1: is part of a circle of headers/p'
}

# Printing and leaving belong to cmds. Files of data may be written with fprintf, so the streams count
# there, not the function.
check_output() {
    (cd "$1" && for f in $(files | grep -v '^cmds/'); do
        sed -e 's://.*$::' -e 's:/\*.*\*/::g' -e 's:^[[:space:]]*\*.*$::' -e 's:^[[:space:]]*/\*.*$::' \
            -e 's:"[^"]*"::g' "$f" |
            grep -nE '(^|[^a-zA-Z0-9_])((printf|vprintf|puts|putchar|perror|exit|_exit|_Exit|quick_exit|abort)[[:space:]]*\(|stdout|stderr)' |
            sed "s|^\([0-9]*\):.*|$f:\1: prints or ends the process; only cmds may|" || true
    done)
}

check() {
    check_floors "$1"
    check_circles "$1"
    check_output "$1"
}

plant() { # FILE TEXT...: a file that must be reported
    mkdir -p "$tree/$(dirname "$1")"
    file=$1
    shift
    printf '%s\n' "$@" >"$tree/$file"
}

expect() { # PATTERN: a line of the report
    grep -q "$1" "$tree/report" || {
        echo "tests/layers.sh: does not find its planted violation: $1"
        exit 1
    }
}

self_test() {
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree/src" "$tree/kernels" "$tree/calib" "$tree/cmds"
    plant src/base.h '#include <stddef.h>'
    plant src/os.c '#include "base.h"' '#include <unistd.h>' '/* printf( is only named here */'
    plant cmds/main.c '#include "forward.h"' '#include <stdio.h>' 'int main(void) { puts("x"); }'
    plant src/h5out.c '#include <hdf5.h>' 'static int n; void f(char *s) { snprintf(s, 1, "exit(1)"); }'
    check "$tree" >"$tree/report"
    [ ! -s "$tree/report" ] || {
        echo "tests/layers.sh: reports a clean tree:"
        cat "$tree/report"
        exit 1
    }
    plant src/tensor.c '#include "forward.h"'
    plant src/nobody.c '#include "base.h"'
    plant calib/outliers.c '#include "options.h"'
    plant src/model.c '#include <hdf5.h>'
    plant src/quant.c '#include "h5.h"'
    plant src/score.c '#include "simd.h"'
    plant src/kv.c '#include <cuda_runtime.h>'
    plant src/stats.c '#include <sys/stat.h>' 'void g(void) { printf ("x"); }'
    plant src/hash.c 'void h(void)' '{' '    abort();' '}'
    plant kernels/cpu/cpu_x.c 'void h(FILE *f) { fprintf(stderr, "x"); }'
    plant src/json.h '#include "attention.h"'
    plant src/attention.h '#include "json.h"'
    check "$tree" >"$tree/report"
    expect '^src/tensor.c:1: includes forward.h of floor 5 from floor 1$'
    expect '^src/nobody.c:1: module nobody has no floor'
    expect '^calib/outliers.c:1: includes options.h'
    expect '^src/model.c:1: includes hdf5.h'
    expect '^src/quant.c:1: includes h5.h'
    expect '^src/score.c:1: includes simd.h'
    expect '^src/kv.c:1: includes cuda_runtime.h'
    expect '^src/stats.c:1: includes sys/stat.h'
    expect '^src/stats.c:2: prints'
    expect '^src/hash.c:3: prints'
    expect '^kernels/cpu/cpu_x.c:1: prints'
    expect '^json.h: is part of a circle'
}

self_test
root=${1:-$(dirname "$0")/..}
report=$(check "$root")
[ -z "$report" ] && exit 0
printf '%s\n' "$report"
exit 1
