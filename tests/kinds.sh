#!/bin/sh
# kinds.sh: a kind of evaluation is known by its own two files and by one table, and nowhere else; both rows have few slots.
#   sh tests/kinds.sh [REPOSITORY]
# Kinds are the rows cmd_eval_NAME of cmds/eval/cmd_NAME.c; eval_inputs.c lists them. Prints one line per violation
# and exits 1; also checks itself on a planted tree that breaks every rule.
set -eu
LC_ALL=C
export LC_ALL
# shellcheck source=tests/planted.sh
. "$(dirname "$0")/planted.sh"

# Names of kinds, one a line.
kinds() {
    sed -n 's/^const cmd_eval_kind cmd_eval_\([a-z0-9_]*\) = {$/\1/p' "$1"/cmds/eval/cmd_*.c
}

# FILE... without comments: a line each, "file:line:text".
code() {
    grep -n '' /dev/null "$@" | sed -e 's:/\*.*\*/::g' -e 's:[[:space:]]//.*$::'
}

# NAME FILE: members of a struct.
members() {
    sed -n "/^typedef struct $1 {/,/^} $1;/p" "$2" 2>/dev/null | tr '\n' ' ' | sed -E 's:/\*([^*]|\*[^/])*\*/::g' |
        sed 's/} [a-z_]*;//' | tr -cd ';' | wc -c
}

check() (
    cd "$1"
    all=$(find src cmds -name '*.[ch]' | sort)
    mine=$(find src/eval cmds -name '*.[ch]' | sort)
    # shellcheck disable=SC2086 # names of sources hold no spaces
    code $all | sed -n 's/^\([^:]*:[0-9]*\):.*[a-z>.]kind [!=]= &.*/\1: asks which kind it is; that is what its row is for/p'
    # shellcheck disable=SC2086
    code $mine | sed -nE 's/^([^:]*:[0-9]*):.*str(n|case)?cmp\([^;&|]*"('"$(kinds . | paste -sd '|' -)"')".*/\1: compares the name of a kind; that is what its row is for/p'
    sed -n 's/^const dq_eval_kind dq_eval_\([a-z0-9_]*\) = .*/\1/p' src/eval/kind_*.c | while read -r kind; do
        grep -q "^ *\.kind = {.*&dq_eval_${kind}[,}]" cmds/eval/cmd_*.c || echo "src/eval: dq_eval_$kind has no row in cmds/eval"
    done
    slots=$(($(members dq_eval_kind src/eval/eval.h) + $(members cmd_eval_kind cmds/eval/inside.h)))
    [ "$slots" -le 24 ] || echo "src/eval/eval.h, cmds/eval/inside.h: a kind has $slots slots; 24 are enough"
    for kind in $(kinds .); do
        grep -q "&cmd_eval_${kind}[,}]" cmds/eval/eval_inputs.c ||
            echo "cmds/eval/cmd_$kind.c: has no row in the table of cmds/eval/eval_inputs.c"
        # shellcheck disable=SC2086
        code $all | grep "cmd_eval_$kind\\>" |
            grep -v "^cmds/eval/\\(eval_inputs\\.c\\|inside\\.h\\|cmd_eval\\.h\\|cmd_${kind}[a-z_]*\\.[ch]\\):" |
            sed "s|^\([^:]*:[0-9]*\):.*|\1: names the kind $kind|" || true
    done
)

self_test() {
    plant cmds/eval/eval_inputs.c 'const cmd_eval_kind *const cmd_eval_kinds[] = {&cmd_eval_one};'
    plant cmds/eval/cmd_one.c 'const cmd_eval_kind cmd_eval_one = {' '};' \
        '    .kind = {&dq_eval_one},' '#include "eval/kind_one.h"' 'bool shows(int row) { return cmd_eval_kind_shows(&cmd_eval_one, row); }'
    plant src/eval/kind_one.c '/* whether s->kind == &dq_eval_one */' \
        'const dq_eval_kind dq_eval_one = {.load = load};' 'int f(const char *s) { return strcmp(s, "a"); }'
    plant src/eval/eval.h 'typedef struct dq_eval_kind {' '    bool windows; /* else;' '  * requests; */' '} dq_eval_kind;'
    expect_clean
    # shellcheck disable=SC2046 # words
    plant cmds/eval/inside.h 'typedef struct cmd_eval_kind {' $(printf 'int_%d;\n' $(seq 24)) '} cmd_eval_kind;'
    plant src/eval/long.c 'int f(const dq_eval_source *s) { return s->kind == &dq_eval_one; }'
    plant src/base/x.c 'if (kind != &dq_eval_one)' 'x = row->kind != &dq_eval_one;'
    plant cmds/eval/tasks.c 'if (strcmp(name, "one") == 0)' 'if (strncmp(name, "one", 3) == 0)'
    plant cmds/eval/table.c 'if (cmd_eval_kind_of(s) == &cmd_eval_one)'
    plant src/eval/kind_three.c 'const dq_eval_kind dq_eval_three = {'
    plant cmds/eval/cmd_two.c 'const cmd_eval_kind cmd_eval_two = {' '};'
    check "$tree" >"$work/report"
    expect '^src/eval/long.c:1: asks which kind'
    expect '^src/base/x.c:2: asks which kind'
    expect '^cmds/eval/tasks.c:1: compares the name'
    expect '^cmds/eval/tasks.c:2: compares the name'
    expect '^cmds/eval/table.c:1: names the kind one$'
    expect '^src/eval: dq_eval_three has no row in cmds/eval'
    expect '^cmds/eval/cmd_two.c: has no row'
    expect '^src/eval/eval.h, cmds/eval/inside.h: a kind has 25 slots'
}

self_test
root=${1:-$(dirname "$0")/..}
[ -n "$(kinds "$root")" ] || wrong "there is no cmds/eval/cmd_*.c"
check_and_exit "$root"
