#!/bin/sh
# names.sh: does a name lead to its file, and does it stand for one thing?
#   sh tests/names.sh [REPOSITORY]
# Prints one line per violation and exits 1; also checks itself on a planted tree that breaks every rule. The rules:
#   noun    What a header declares, functions and data, begins with the header's noun: dq_NOUN_... in NOUN.h. A plural
#           file may use its singular, kind_NOUN.h the noun alone, and data of a type of that header the type's name:
#           dq_granularity_name. FAMILIES below are the other prefixes, each with its reason.
#   twice   No type, macro of a header, header or source has a name that another one has.
#   guard   The guard of NAME.h is DQ_NAME_H.
#   word    Identifiers of headers use the field's words, not those of WORDS below.
#   head    A source and a header begin with their own name, and files that comments name exist. The head of a source
#           says more than which header to see.
set -eu
LC_ALL=C
export LC_ALL
# shellcheck source=tests/planted.sh
. "$(dirname "$0")/planted.sh"

# Files that share a prefix, or have none: "FOLDER-OR-FILE PREFIX reason".
FAMILIES='
calib/sample.h                          *            generated text, no functions of its own
cmds/bench/                             dq_bench_    one command
src/settings/options.h                  dq_opt_       makers of a row, dq_opt
cmds/command.h                          cmd_         the table of commands
cmds/eval/                              cmd_eval_    one command; src/eval has dq_eval_
cmds/page/html_page.h                   dq_html_     pages and their parts
cmds/report/                            dq_html_     sections of one page
cmds/stats/                             cmd_stats_   one command; src/stat has dq_stat_
lib/                                    dq_lm_       one interface; dq.h declares all of it
kernels/backends.h                      dq_backend_  opens what engine/backend.h uses
kernels/cpu/                            dq_cpu_      one backend
kernels/cpu/isa/                        dq_simd_     the loops of simd.h, by instruction set
kernels/cuda/device/fused_launch.h      dq_fused_    the launches of fused*.cu
kernels/cuda/device/kv_launch.h                dq_kv_       launches on pages
kernels/cuda/device/ptx.cuh             dq_          instructions, named as the hardware names them
kernels/cuda/host/                      dq_cuda_     one backend
kernels/paged/                          dq_kv_       the paged cache behind engine/backend.h
src/base/base.h                         dq_          status, arena: the words of every file
src/checkpoint/container_               dq_container_ one format
src/checkpoint/prequant_                dq_prequant_ one source and the formats it reads
src/engine/runner.h                      dq_evictor_  evict is what it does
src/eval/                               dq_eval_     the sweep and its kinds
src/eval/kind_icl                       dq_icl_      one kind
src/eval/kind_needle                    dq_needle_   one kind
src/eval/kind_ruler                     dq_ruler_    one kind
src/export/                             dq_export_   one way out of a container
src/kv/                                 dq_kv_       settings of one cache
src/kv/kv.h                        dq_evict_    the part of a spec that evicts
src/kv/kv.h                        dq_math_     the arithmetic that a spec goes with
src/kv/kv.h                     dq_logit_    one setting
src/model/model_                        dq_model_    one model
src/plan/                               dq_plan_     one way from a text to a recipe
src/quantize/                           dq_quantize_ one way from tensors to a container
src/stat/stat.h                         dq_stat_     what is said of paired values, percentiles
src/tasks/tasks.h                    dq_icl_      what kinds.h puts to a model
src/template/jinja_                     dq_jinja_    one interpreter
src/tensor/quant_                       dq_quant_    one quantizer
src/tensor/tensor.h                     dq_          dq_f16_from_f32 and its kin: conversions of one number
src/tensor/tensor.h              dq_format_   what format_*.c are: the formats
src/tensor/weight_                      dq_weight_   one weight and its parts
src/tokenizer/tokenizer_                dq_tokenizer_ one tokenizer
'

# Words that this project does not use in names, with those it does.
WORDS='most:max grain:granularity rival:baseline yardstick:baseline trunk:shared_prefix stem:prefix talk:logger wish:request settle:compact settled:compacted relax:release
spares:protects room:capacity held:cached asked:requested looks:observers odd:overflow'

files() { # EXTENSION...: sources, without goldens
    for extension; do
        find src kernels calib cmds -name "*.$extension" 2>/dev/null || true
    done | sort
}

# The code of headers as lines "FILE function|data|type|macro|guard|word NAME"; comments, strings and bodies do not
# count.
names() {
    # shellcheck disable=SC2046 # names of sources hold no spaces
    awk '
    function flush(   i, n, declared) {
        if (statement ~ /^[ \t]*typedef/) {
            if (match(statement, /[A-Za-z_][A-Za-z_0-9]*[ \t]*\([^*]*\)[ \t]*$/)) {
                name = substr(statement, RSTART)
                sub(/[ \t]*\(.*/, "", name)
            } else if (match(statement, /\(\*[A-Za-z_0-9]+\)/)) {
                name = substr(statement, RSTART + 2, RLENGTH - 3)
            } else {
                name = statement
                sub(/(\[[^\]]*\]|[ \t])*$/, "", name)
                sub(/^.*[^A-Za-z_0-9]/, "", name)
            }
            print file, "type", name
        } else if (statement !~ /=/ && match(statement, /(dq|cmd)_[A-Za-z_0-9]*[ \t]*\(/)) {
            name = substr(statement, RSTART, RLENGTH)
            sub(/[ \t]*\($/, "", name)
            print file, "function", name
        } else if (statement ~ /^[ \t]*extern[ \t]/) {
            n = split(statement, declared, ",")
            for (i = 1; i <= n; i++) {
                sub(/(\[[^\]]*\]|[ \t])*$/, "", declared[i])
                sub(/^.*[^A-Za-z_0-9]/, "", declared[i])
                print file, "data", declared[i]
            }
        }
        statement = ""
    }
    function word(text,   n, i, part) {
        n = split(text, part, /[^A-Za-z_0-9]+/)
        for (i = 1; i <= n; i++)
            if (part[i] ~ /^[A-Za-z_]/ && !((file, part[i]) in seen)) {
                seen[file, part[i]] = 1
                print file, "word", part[i]
            }
    }
    FNR == 1 { file = FILENAME; depth = 0; statement = ""; comment = 0; extern = 0; guarded = 0; more = 0 }
    {
        line = $0
        gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
        gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, " ", line)
        if (comment) {
            if (!match(line, /\*\//)) next
            line = substr(line, RSTART + 2)
            comment = 0
        }
        if (match(line, /\/\*/)) { line = substr(line, 1, RSTART - 1); comment = 1 }
        sub(/\/\/.*/, "", line)
        word(line)
        if (more || line ~ /^[ \t]*#/) { # the preprocessor
            if (!more && line ~ /^#ifndef/ && !guarded++) { split(line, part, " "); print file, "guard", part[2] }
            if (!more && match(line, /^[ \t]*#[ \t]*define[ \t]+[A-Za-z_0-9]+/)) {
                name = substr(line, RSTART, RLENGTH)
                sub(/.*[ \t]/, "", name)
                if (name !~ /_(H|CUH)$/) print file, "macro", name
            }
            more = line ~ /\\$/
            next
        }
        if (line ~ /^extern "" \{/) next
        for (i = 1; i <= length(line); i++) {
            c = substr(line, i, 1)
            if (c == "{") { if (depth++ == 0 && statement ~ /\)[ \t]*$/) { flush(); body = 1 } }
            else if (c == "}") { if (depth > 0 && --depth == 0 && body) { statement = ""; body = 0 } }
            else if (depth == 0 && c == ";") flush()
            else if (depth == 0) statement = statement c
        }
        if (depth == 0) statement = statement " "
    }' $(files h cuh) /dev/null
}

check_nouns() { # from lines of names
    FAMILIES=$FAMILIES awk '
    BEGIN {
        n = split(ENVIRON["FAMILIES"], row, "\n")
        for (i = 1; i <= n; i++)
            if (split(row[i], part, " ") >= 2) { path[++rows] = part[1]; prefix[rows] = part[2] }
    }
    function begins(name, noun) { return name == noun || index(name, noun "_") == 1 }
    $2 == "type" { types[$1] = types[$1] " " $3 } # which stands before data of that type
    ($2 == "function" || $2 == "data") && $1 ~ /\.h$/ {
        stem = $1; sub(/.*\//, "", stem); sub(/\.h$/, "", stem)
        bare = stem; sub(/^kind_/, "", bare)
        one = stem; sub(/ies$/, "y", one); sub(/s$/, "", one)
        if (begins($3, "dq_" stem) || begins($3, "dq_" bare) || begins($3, "dq_" one)) next
        n = $2 == "data" ? split(types[$1], type, " ") : 0
        for (i = 1; i <= n; i++) if (begins($3, type[i])) next
        for (i = 1; i <= rows; i++)
            if (index($1, path[i]) == 1 && (prefix[i] == "*" || index($3, prefix[i]) == 1)) next
        print $1 ": " $3 " does not begin with dq_" stem "_ (see FAMILIES in tests/names.sh)"
    }'
}

check_twice() {
    awk '
    ($2 == "type" && $3 ~ /^(dq|cmd)_/) || $2 == "macro" {
        if (($2, $3) in first) { if (first[$2, $3] != $1) print $1 ": " $2 " " $3 " is in " first[$2, $3] " too" }
        else first[$2, $3] = $1
    }
    $2 == "guard" {
        stem = toupper($1); sub(/.*\//, "", stem); sub(/\./, "_", stem)
        if ($3 != "DQ_" stem) print $1 ": its guard is " $3 ", not DQ_" stem
    }'
    (
        files c h cu cuh cpp
        find tests \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' \) ! -path '*/golden/*' 2>/dev/null
    ) | awk '{
        name = $0; sub(/.*\//, "", name)
        if (name == "main.c") next # programs
        if (name in first) print $0 ": " first[name] " has the same name"
        else first[name] = $0
    }'
}

check_words() {
    WORDS=$WORDS awk '
    BEGIN {
        n = split(ENVIRON["WORDS"], pair, /[ \n]+/)
        for (i = 1; i <= n; i++) { split(pair[i], part, ":"); better[part[1]] = part[2] }
    }
    $2 == "word" {
        n = split(tolower($3), part, "_")
        for (i = 1; i <= n; i++)
            if (part[i] in better) { print $1 ": " $3 ": the word is " better[part[i]] ", not " part[i]; break }
    }'
}

check_heads() {
    find . -name .git -prune -o -type f -print | sed 's:.*/::' | sort -u >"$work/present"
    # shellcheck disable=SC2046
    awk -v present="$work/present" '
    BEGIN { while ((getline name < present) > 0) there[name] = 1 }
    FNR == 1 {
        stem = FILENAME; sub(/.*\//, "", stem); sub(/\.[a-z]+$/, "", stem)
        if (index($0, "/* " stem ":") != 1) print FILENAME ":1: does not begin with its name, /* " stem ": ..."
        comment = 0
        head = FILENAME ~ /\.cu?$/
        said = substr($0, length(stem) + 5)
    }
    head && FNR > 1 && !/SPDX/ { said = said $0 }
    head && /SPDX|\*\// { # its last line
        gsub(/[Ss]ee|[a-z0-9_\/]+\.(h|cuh)|and|[^A-Za-z]/, "", said)
        if (said == "") print FILENAME ":1: says nothing but which header to see"
        head = 0
    }
    {
        if (match($0, /\/\*|\/\//)) { comment = 1; $0 = substr($0, RSTART) }
        if (!comment) next
        text = $0
        sub(/Source:.*/, "", text)
        while (match(text, /[A-Za-z_0-9.\/*-]*[a-z0-9_]\.(h|c|cu|cuh)([^A-Za-z_0-9.]|\.[^a-z]|\.$|$)/)) {
            name = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            sub(/[^a-z]*$/, "", name)
            if (name ~ /[*A-Z]/ || name ~ /^\./) continue
            sub(/.*\//, "", name)
            if (name ~ /^x\.|_x\./) continue
            if (!(name in there)) print FILENAME ":" FNR ": names " name ", which does not exist"
        }
        if ($0 ~ /\*\// || $0 ~ /^\/\//) comment = 0
    }' $(files c h cu cuh)
}

check() { # REPOSITORY
    (
        cd "$1"
        names >"$work/names"
        check_nouns <"$work/names"
        check_twice <"$work/names"
        check_words <"$work/names"
        check_heads
    )
}

self_test() {
    plant src/kv/kv.h '/* kv_spec: see kv.c. */' '#ifndef DQ_KV_SPEC_H' '#define DQ_KV_SPEC_H' \
        'typedef struct dq_kv_spec {' '    int max; /* most of room */' '} dq_kv_spec;' \
        'typedef enum dq_granularity { DQ_TILE } dq_granularity;' 'extern const char *const dq_granularity_name[]; /* printed */' \
        'enum { DQ_PAGE_TOKENS = 64 };' \
        'bool dq_kv_spec_same(const dq_kv_spec *a,' '                     const dq_kv_spec *b);' \
        'static inline int dq_kv_spec_add(int a)' '{' '    return dq_other(a);' '}' '#endif'
    plant src/kv/kv.c '/* kv_spec: see kv.h.' ' * No such file would be *_x.c. */' '#include "kv/kv.h"'
    plant cmds/main.c '/* main: the table. */' 'int main(void) { return 0; }'
    plant tests/gpu/main.c 'int main(void) { return 0; }'
    expect_clean
    plant src/stat/stat.h '/* tally: counts. See stats.h. */' '#ifndef DQ_STATS_H' '#define DQ_STATS_H' '#define DQ_TOP 2' \
        'typedef dq_status dq_stats_fn(void *arg);' 'typedef struct dq_kv_spec {' '    int most_rows;' '} dq_kv_spec;' \
        'int dq_stats_open(const char *path, int n);' 'extern const char *const dq_top_name[2], dq_tally_name[];' \
        'static inline int dq_add(void)' '{' '    return 0;' '}' '#endif'
    plant src/eval/windows.h '/* windows: cuts. */' '#ifndef DQ_WINDOWS_H' '#define DQ_WINDOWS_H' '#define DQ_TOP 1' \
        'int dq_window_new(int n);' 'int dq_talk_begin(void);' '#endif'
    plant src/eval/score.c '/* goal: scores. */'
    plant tests/rigs/score.c '/* score */'
    plant src/stat/tally.c '/* tally: see stat.h.' ' * SPDX-License-Identifier: MIT */' 'int a; /* sums */'
    plant src/eval/windows.c '/* windows: see documents.h and kv.h. */' '/* Cuts. */'
    check "$tree" >"$work/report"
    expect '^src/stat/stat.h: dq_stats_open does not begin with dq_tally_'
    expect '^src/stat/stat.h: dq_add does not begin'
    expect '^src/stat/stat.h: dq_top_name does not begin with dq_tally_'
    expect '^src/eval/windows.h: dq_talk_begin does not begin'
    expect 'type dq_kv_spec is in src/kv/kv.h too'
    expect 'macro DQ_TOP is in'
    expect '^src/stat/stat.h: its guard is DQ_STATS_H, not DQ_TALLY_H$'
    expect '^src/stat/stat.h: most_rows: the word is max, not most$'
    expect '^src/eval/windows.h: dq_talk_begin: the word is logger, not talk$'
    expect '^tests/rigs/score.c: src/eval/score.c has the same name$'
    expect '^src/eval/score.c:1: does not begin with its name'
    expect '^src/stat/stat.h:1: names stats.h, which does not exist$'
    expect '^src/stat/tally.c:1: says nothing but which header to see$'
    expect '^src/eval/windows.c:1: says nothing but which header to see$'
    expect_no 'dq_window_new\|main.c\|dq_stats_fn\|dq_other\|dq_tally_name'
}

self_test
check_and_exit "${1:-$(dirname "$0")/..}"
