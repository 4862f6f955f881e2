#!/bin/sh
# names.sh: does a name stand for one thing, and does what comments name exist?
#   sh tests/names.sh [REPOSITORY]
# Prints one line per violation and exits 1; also checks itself on a planted tree that breaks every rule. The rules:
#   twice   No type, macro of a header, header or source has a name that another one has.
#   guard   The guard of ROOM/NAME.h ends with NAME_H.
#   word    Identifiers of headers use the field's words, not those of WORDS below.
#   file    Files that comments name exist.
set -eu
LC_ALL=C
export LC_ALL
# shellcheck source=tests/planted.sh
. "$(dirname "$0")/planted.sh"

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

check_twice() {
    awk '
    ($2 == "type" && $3 ~ /^(dq|cmd)_/) || $2 == "macro" {
        if (($2, $3) in first) { if (first[$2, $3] != $1) print $1 ": " $2 " " $3 " is in " first[$2, $3] " too" }
        else first[$2, $3] = $1
    }
    $2 == "guard" {
        stem = toupper($1); sub(/.*\//, "", stem); sub(/\./, "_", stem)
        if ($3 !~ "^DQ_([A-Z0-9]+_)*" stem "$") print $1 ": its guard is " $3 ", not DQ_..." stem
    }'
    (
        files c h cu cuh cpp
        find tests \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' \) ! -path '*/golden/*' 2>/dev/null
    ) | awk '{
        name = $0; sub(/.*\//, "", name)
        if (name == "main.c" || name == "inside.h") next
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

check_files() {
    find . -name .git -prune -o -type f -print | sed 's:.*/::' | sort -u >"$work/present"
    # shellcheck disable=SC2046
    awk -v present="$work/present" '
    BEGIN { while ((getline name < present) > 0) there[name] = 1 }
    FNR == 1 { comment = 0 }
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
        check_twice <"$work/names"
        check_words <"$work/names"
        check_files
    )
}

self_test() {
    plant src/kv/kv.h '/* Settings; see kv.c. */' '#ifndef DQ_KV_H' '#define DQ_KV_H' \
        'typedef struct dq_kv_spec {' '    int max; /* most of room */' '} dq_kv_spec;' \
        'typedef enum dq_granularity { DQ_TILE } dq_granularity;' 'extern const char *const dq_granularity_name[]; /* printed */' \
        'bool dq_kv_spec_same(const dq_kv_spec *a,' '                     const dq_kv_spec *b);' \
        'static inline int dq_kv_spec_add(int a)' '{' '    return dq_other(a);' '}' '#endif'
    plant src/kv/inside.h '/* kv.c and kv_policy.c. */' '#ifndef DQ_KV_INSIDE_H' '#define DQ_KV_INSIDE_H' '#endif'
    plant src/eval/inside.h '#ifndef DQ_EVAL_INSIDE_H' '#define DQ_EVAL_INSIDE_H' '#endif'
    plant src/kv/kv.c '/* No such file would be *_x.c. */' '#include "kv/kv.h"'
    plant src/kv/kv_policy.c '#include "kv/kv.h"'
    plant cmds/main.c '/* main: the table. */' 'int main(void) { return 0; }'
    plant tests/gpu/main.c 'int main(void) { return 0; }'
    expect_clean
    plant src/stat/stat.h '/* Counts. See stats.h. */' '#ifndef DQ_STATS_H' '#define DQ_STATS_H' '#define DQ_TOP 2' \
        'typedef dq_status dq_stats_fn(void *arg);' 'typedef struct dq_kv_spec {' '    int most_rows;' '} dq_kv_spec;' '#endif'
    plant src/eval/windows.h '/* windows: cuts. */' '#ifndef DQ_WINDOWS_H' '#define DQ_WINDOWS_H' '#define DQ_TOP 1' \
        'int dq_talk_begin(void);' '#endif'
    plant src/eval/score.c '/* score: see points.h. */'
    plant tests/rigs/score.c '/* score */'
    check "$tree" >"$work/report"
    expect 'type dq_kv_spec is in src/kv/kv.h too'
    expect 'macro DQ_TOP is in'
    expect '^src/stat/stat.h: its guard is DQ_STATS_H, not DQ_...STAT_H$'
    expect '^src/stat/stat.h: most_rows: the word is max, not most$'
    expect '^src/eval/windows.h: dq_talk_begin: the word is logger, not talk$'
    expect '^tests/rigs/score.c: src/eval/score.c has the same name$'
    expect '^src/stat/stat.h:1: names stats.h, which does not exist$'
    expect '^src/eval/score.c:1: names points.h, which does not exist$'
    expect_no 'main.c\|inside.h\|dq_stats_fn'
}

self_test
check_and_exit "${1:-$(dirname "$0")/..}"
