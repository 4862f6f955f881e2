#!/bin/sh
# documents.sh: what the documents mention is there.
#   sh tests/documents.sh [REPOSITORY]
# Of the words between backquotes in ARCHITECTURE.md and CONTRIBUTING.md, paths below a folder of the top level (or files
# at it) must exist, and names that begin with dq_ or DQ_ must occur in the sources. Other documents name outputs of runs
# and of users too: of theirs, paths below the folders of sources count, where capitals stand for anything. Prints one
# line per violation and exits 1; also checks itself on a planted tree.
set -eu
LC_ALL=C
export LC_ALL
# shellcheck source=tests/planted.sh
. "$(dirname "$0")/planted.sh"

# Lines "document:line word" of the words between backquotes.
words() { # FILE
    awk -v name="$1" '
    /^```/ { code = !code; next }
    {
        n = split($0, part, "`")
        for (i = 1; i <= n; i++) {
            if (!code && i % 2) continue # outside of backquotes
            m = split(part[i], word, "[ ,;:()=\"]+")
            for (k = 1; k <= m; k++) if (word[k] != "") print name ":" NR, word[k]
        }
    }' "$1"
}

check() ( # REPOSITORY
    cd "$1"
    for document in ARCHITECTURE.md CONTRIBUTING.md; do
        words "$document"
    done | while read -r place word; do
        word=${word#./}
        case $word in
        src/* | kernels/* | cmds/* | calib/* | python/* | tests/* | results/* | setup | .ci/run | *.md | CMakeLists.txt)
            # shellcheck disable=SC2086 # a pattern stands for what it matches
            ls -d $word >/dev/null 2>&1 || echo "$place: $word does not exist"
            ;;
        dq_*[!a-z0-9_]* | DQ_*[!A-Z0-9_]*) ;; # a form of names: dq_kv_*
        dq_* | DQ_*)
            grep -rqw -e "$word" src kernels cmds calib tests CMakeLists.txt ||
                echo "$place: no source has the name $word"
            ;;
        esac
    done
    for document in README.md MODEL.md FORMAT.md results/README.md results/*/README.md results/*/*/README.md tests/simt/README.md calib/*.md calib/*/*.md; do
        [ ! -e "$document" ] || words "$document"
    done | awk '{ gsub(/[A-Z]+/, "*", $2); sub(/^\.\//, "", $2) } $2 ~ /^(src|kernels|cmds|calib|python|tests)\//' |
        while read -r place word; do
            # shellcheck disable=SC2086
            ls -d $word >/dev/null 2>&1 || echo "$place: $word does not exist"
        done
)

self_test() {
    mkdir -p "$tree/src/kv" "$tree/kernels" "$tree/cmds" "$tree/calib" "$tree/tests"
    echo 'int dq_kv_check(void);' >"$tree/src/kv/kv.h"
    touch "$tree/CMakeLists.txt"
    printf '%s\n' 'See `src/kv/kv.h`, `src/kv/*.h`, `dq_kv_check`, `dq_kv_*`.' '```' 'ls src/kv' '```' >"$tree/ARCHITECTURE.md"
    printf '%s\n' 'src/gone is plain text' >"$tree/CONTRIBUTING.md"
    mkdir -p "$tree/calib/pair"
    printf '%s\n' '`results/mine.csv`, `dq_other`, `src/FOLDER/kv.h`' >"$tree/README.md"
    expect_clean
    printf '%s\n' '`src/kv/gone.h`' '`dq_gone`' '```' './tests/gone.sh -x' '```' '`src/*.c`' >"$tree/CONTRIBUTING.md"
    printf '%s\n' '```' 'sh calib/pair/gone.sh OUT' '```' >"$tree/calib/pair/README.md"
    printf '%s\n' 'One: `src/gone/NAME.c`' >"$tree/README.md"
    check "$tree" >"$work/report"
    for line in 'README.md:1: src/gone/\*.c does' 'calib/pair/README.md:2: calib/pair/gone.sh does'; do
        expect "^$line"
    done
    for line in '1: src/kv/gone.h does' '2: no source has the name dq_gone' '4: tests/gone.sh does' '6: src/\*.c does'; do
        expect "^CONTRIBUTING.md:$line"
    done
}

self_test
root=${1:-$(dirname "$0")/..}
check_and_exit "$root"
