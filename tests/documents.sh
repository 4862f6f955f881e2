#!/bin/sh
# documents.sh: what the documents mention is there.
#   sh tests/documents.sh [REPOSITORY]
# Of the words between backquotes in ARCHITECTURE.md and CONTRIBUTING.md, paths below a folder of the top level (or files
# at it) must exist, and names that begin with dq_ or DQ_ must occur in the sources. Other documents name outputs of runs
# and of users too: of theirs, paths below the folders of sources count, where capitals stand for anything; of README.md and
# docs, those of documents and results as well. There, links to files and their headings lead somewhere, and options are in
# docs/commands.md: all that follow `dq COMMAND` in that command's section, others that begin a word of code in one of them. Prints
# one line per violation and exits 1; also checks itself on a planted tree.
set -eu
LC_ALL=C
export LC_ALL
# shellcheck source=tests/planted.sh
. "$(dirname "$0")/planted.sh"

# Lines "document:line<TAB>text" of what stands between backquotes, and of lines of code, whole where they go on.
code_of() { # FILE
    awk -v name="$1" '
    function tell(    part, n, i, line, words) { # the paragraph in `text`
        n = split(text, part, "`")
        line = first
        for (i = 1; i <= n; i++) {
            words = part[i]
            if (i % 2 == 0) {
                gsub(/\n/, " ", words)
                print name ":" line "\t" words
            }
            line += gsub(/\n/, "", part[i])
        }
        text = ""
    }
    /^ *```/ { tell(); code = !code; held = ""; next }
    code {
        if (held == "") first = NR
        held = held $0
        if (sub(/\\$/, "", held)) next
        print name ":" first "\t" held
        held = ""
        next
    }
    /^[ \t]*$/ || /^[|#]/ || /^ *([*+-]|[0-9]+\.) / { tell() }
    { if (text == "") first = NR; text = text $0 "\n" }
    END { tell() }' "$1"
}

# Lines "document:line word" of these.
words() { # FILE
    code_of "$1" | awk -F '\t' '{
        m = split($2, word, "[ ,;:()=\"]+")
        for (k = 1; k <= m; k++) if (word[k] != "") print $1, word[k]
    }'
}

# Lines "document:line path anchor" of links to files, the path from the root; "-": none.
links_of() { # FILE
    awk -v name="$1" '
    function from_root(path,    folder, part, n, i, m) {
        if (path == "") return name
        folder = name
        sub(/[^\/]*$/, "", folder)
        n = split(folder path, part, "/")
        m = 0
        for (i = 1; i <= n; i++) {
            if (part[i] == ".." && m > 0) m--
            else if (part[i] != ".") part[++m] = part[i]
        }
        path = part[1]
        for (i = 2; i <= m; i++) path = path "/" part[i]
        return path
    }
    /^ *```/ { code = !code }
    code { next }
    {
        gsub(/`[^`]*`/, "")
        while (match($0, /\]\([^) ]*/)) {
            target = substr($0, RSTART + 2, RLENGTH - 2)
            $0 = substr($0, RSTART + RLENGTH)
            if (target ~ /^[a-z]+:/) continue
            anchor = target
            if (!sub(/^[^#]*#/, "", anchor)) anchor = "-"
            sub(/#.*/, "", target)
            print name ":" NR, from_root(target), anchor
        }
    }' "$1"
}

# Anchors of the headings of a document, as GitHub makes them.
anchors() { # FILE
    awk '
    /^ *```/ { code = !code }
    code || !/^#+ / { next }
    {
        sub(/^#+ +/, "")
        gsub(/\]\([^)]*\)/, "")
        $0 = tolower($0)
        gsub(/[!-,.\/:-@[-^`{-~]/, "")
        gsub(/ /, "-")
        n = seen[$0]++
        print $0 (n ? "-" n : "")
    }' "$1"
}

# Of lines of code_of: options that docs/commands.md has not, and commands.
options() {
    awk -F '\t' '
    # an option of the command, "" for any; commands of several kinds (dq plan) stand for all of them, --kv- for what begins so
    function known(command, option) {
        return option ~ /^--(help|version|markdown)$/ || (command, option) in has
    }
    FNR == NR {
        if (/^## dq /) {
            command = substr($0, 4)
            commands[command]
            split(command, part, " ")
            group = part[1] " " part[2]
            commands[group]
        }
        if (!/^\| `-/ && !/ explains: `--/) next
        sub(/^\*\*[^:]*:/, "")
        split($0, part, / \| /) # of a row the first cell
        cell = part[1]
        while (match(cell, /--[a-z][a-z0-9-]*/)) {
            option = substr(cell, RSTART, RLENGTH)
            cell = substr(cell, RSTART + RLENGTH)
            has[command, option]
            has[group, option]
            has["", option]
            while (sub(/[^-]*-?$/, "", option) && option != "--") has["", option]
        }
        next
    }
    {
        n = split($2, word, " ")
        checked = word[1] ~ /^--[a-z]/
        command = ""
        for (i = 1; i <= n; i++) {
            if (word[i] ~ /^(\||;|&&|\|\||#)$/) checked = 0
            if (word[i] ~ /^([^ ]*\/)?dq$/ && word[i + 1] ~ /^[a-z]+[:,.]?$/) {
                next_word = word[i + 1]
                sub(/[:,.]$/, "", next_word)
                command = "dq " next_word
                if ((command " " word[i + 2]) in commands) command = command " " word[i + 2]
                checked = command in commands
                if (command == "dq help") { checked = 1; command = "" }
                if (!checked && i == 1) print $1 ": docs/commands.md has no " command
            }
            option = word[i]
            if (!checked || option !~ /^[[(]?--[a-z]/) continue
            sub(/^[[(]/, "", option)
            sub(/[^a-z0-9-].*/, "", option)
            if (!known(command, option)) print $1 ": docs/commands.md has no " option (command == "" ? "" : " of " command)
        }
    }' docs/commands.md -
}

check() ( # REPOSITORY
    cd "$1"
    for document in ARCHITECTURE.md CONTRIBUTING.md; do
        words "$document"
    done | while read -r place word; do
        word=${word#./}
        case $word in
        src/* | kernels/* | cmds/* | calib/* | studies/* | page/* | packaging/* | python/* | tests/* | results/* | docs/* | setup | .ci/run | *.md | CMakeLists.txt)
            # shellcheck disable=SC2086 # a pattern stands for what it matches
            ls -d $word >/dev/null 2>&1 || echo "$place: $word does not exist"
            ;;
        dq_*[!a-z0-9_]* | DQ_*[!A-Z0-9_]*) ;; # a form of names: dq_kv_*
        dq_* | DQ_*)
            grep -rqw -e "$word" src kernels cmds calib studies tests CMakeLists.txt ||
                echo "$place: no source has the name $word"
            ;;
        esac
    done
    for document in README.md docs/*.md docs/math/*.md FORMAT.md results/README.md results/*/README.md results/*/*/README.md \
        tests/simt/README.md calib/*.md calib/*/*.md studies/*.md studies/*/*.md; do
        [ ! -e "$document" ] || words "$document"
    done | awk '
        { sub(/^\.\//, "", $2) }
        /^(README|docs\/[^:]*)\.md:/ && $2 ~ /^(results|docs)\// && $2 !~ /^results\/demo\// { print; next }
        { gsub(/[A-Z]+/, "*", $2) }
        $2 ~ /^(src|kernels|cmds|calib|studies|python|tests)\//' |
        while read -r place word; do
            # shellcheck disable=SC2086
            ls -d $word >/dev/null 2>&1 || echo "$place: $word does not exist"
        done
    for document in README.md FORMAT.md docs/*.md docs/math/*.md; do
        [ ! -e "$document" ] || links_of "$document"
    done | while read -r place path anchor; do
        [ -e "$path" ] || { echo "$place: a link leads to $path, which does not exist" && continue; }
        [ "$anchor" = - ] || anchors "$path" | grep -qxF -e "$anchor" || echo "$place: $path has no heading #$anchor"
    done
    [ ! -e docs/commands.md ] || for document in README.md docs/*.md docs/math/*.md; do
        [ ! -e "$document" ] || code_of "$document"
    done | options
)

self_test() {
    mkdir -p "$tree/src/kv" "$tree/kernels" "$tree/cmds" "$tree/calib/pair" "$tree/studies" "$tree/tests" "$tree/docs"
    echo 'int dq_kv_check(void);' >"$tree/src/kv/kv.h"
    touch "$tree/CMakeLists.txt"
    plant docs/commands.md '# Commands' '## dq plan kv' '| `--kv-bits BITS` | see `--trials` |' '## dq plan heads' \
        '| `--trials N` | |' '## dq eval' '| `--output FILE`, `-o` | |' '**KV cache**, as `dq help eval kv` explains: `--kv-keep`, `--seed`'
    plant docs/page.md '# A `page`, or two' 'See [it](#a-page-or-two-1) and [that](../README.md#up).' '## A page, or [two](commands.md#dq-eval)' \
        '`dq plan --kv-bits 3`, `--seed`, `--kv-*`, `cmake --preset`, `dq eval M' '--output F`, `dq help eval --kv-keep`' \
        '```' "build/dq eval M --kv-keep 1 \\" '  --output F | grep --gone' '```' '`results/demo/mine.csv`'
    printf '%s\n' 'See `src/kv/kv.h`, `src/kv/*.h`, `dq_kv_check`, `dq_kv_*`.' '```' 'ls src/kv' '```' >"$tree/ARCHITECTURE.md"
    printf '%s\n' 'src/gone is plain text' >"$tree/CONTRIBUTING.md"
    printf '%s\n' '# Up' '`dq_other`, `src/FOLDER/kv.h`, [page](docs/page.md), [far](https://x.y/gone.md)' >"$tree/README.md"
    expect_clean
    printf '%s\n' '`src/kv/gone.h`' '`dq_gone`' '```' './tests/gone.sh -x' '```' '`src/*.c`' >"$tree/CONTRIBUTING.md"
    printf '%s\n' '```' 'sh calib/pair/gone.sh OUT' '```' >"$tree/calib/pair/README.md"
    printf '%s\n' 'One: `src/gone/NAME.c`' '![x](docs/gone.svg)' >"$tree/README.md"
    plant docs/page.md '[it](#gone) [that](../README.md#down)' '' '`dq eval M' '--trials 3`, `--gone-1`, `dq gone`' '```' \
        "build/dq plan kv M \\" '  --kv-keep 1' '```' '`results/gone.csv`'
    check "$tree" >"$work/report"
    for line in 'README.md:1: src/gone/\*.c does' 'calib/pair/README.md:2: calib/pair/gone.sh does' 'README.md:2: a link leads to docs/gone.svg' \
        'docs/page.md:1: docs/page.md has no heading #gone' 'docs/page.md:1: README.md has no heading #down' \
        'docs/page.md:3: docs/commands.md has no --trials of dq eval' 'docs/page.md:4: docs/commands.md has no --gone-1$' \
        'docs/page.md:4: docs/commands.md has no dq gone' 'docs/page.md:6: docs/commands.md has no --kv-keep of dq plan kv' \
        'docs/page.md:9: results/gone.csv does'; do
        expect "^$line"
    done
    for line in '1: src/kv/gone.h does' '2: no source has the name dq_gone' '4: tests/gone.sh does' '6: src/\*.c does'; do
        expect "^CONTRIBUTING.md:$line"
    done
    [ "$(wc -l <"$work/report")" = 14 ] || wrong "reports more than was planted: $(cat "$work/report")"
}

self_test
root=${1:-$(dirname "$0")/..}
check_and_exit "$root"
