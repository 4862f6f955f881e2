#!/bin/sh
# run.sh: the command line as users and scripts meet it: exit status, messages, files left behind.
#   sh tests/cli/run.sh DQ REPOSITORY PART...     PART: a file beside this one, without .sh
# Each part stands on its own. Prints one line per failed check; exits 1 if there was one.
set -u
LC_ALL=C
export LC_ALL
unset DQ_CPU DQ_CUBLAS OMP_WAIT_POLICY
GOMP_SPINCOUNT=0 # tests share the cores; and dq, which would set it, need not begin twice. general.sh runs it without
export GOMP_SPINCOUNT
[ $# -ge 3 ] || {
    echo "usage: run.sh DQ REPOSITORY PART..." >&2
    exit 2
}
dq=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
repo=$(cd "$2" && pwd)
here=$repo/tests/cli
shift 2
parts=$*
top=$(mktemp -d) || exit 1
trap 'rm -rf "$top"' EXIT
bad=0

complain() {
    echo "cli: $*"
    bad=1
}

# try STATUS PATTERN COMMAND...: runs dq. A failure must say one line with the pattern on stderr and
# nothing on stdout; a success must have the pattern on stdout. Output stays in files out and err.
try() {
    want=$1 pattern=$2
    shift 2
    "$dq" "$@" >"$top/out" 2>"$top/err" </dev/null
    got=$?
    [ "$got" -eq "$want" ] || {
        complain "dq $*: expected status $want, found $got: $(head -c 300 "$top/err")"
        return
    }
    if [ "$want" -eq 0 ]; then
        grep -q -e "$pattern" "$top/out" || complain "dq $*: \"$pattern\" is not on stdout"
        ! grep -Eq '^-[- ]{120}' "$top/out" || complain "dq $*: a table is wider than 120 columns"
    else
        [ "$want" -eq 7 ] || [ ! -s "$top/out" ] || complain "dq $*: failed, but printed on stdout"
        [ "$(grep -c 'error: ' "$top/err")" = 1 ] || complain "dq $*: not one line of error: $(cat "$top/err")"
        grep -q -e "$pattern" "$top/err" || complain "dq $*: \"$pattern\" is not in: $(cat "$top/err")"
    fi
}

# Of a journal whose copy is kept.journal and whose first result is $line.
changed() { # changed SED: k.json.journal is that one with its result so, and whole lines
    # shellcheck disable=SC2154 # set by the part
    wrong=$(printf '%s' "$line" | sed "$1")
    {
        sed -n 1p kept.journal
        printf '%s %s\n' "$(printf '%s' "$wrong" | sha256sum | cut -c-64)" "$wrong"
    } >k.json.journal
}

resumed() { # resumed WHAT ARGUMENTS...: goes on from kept.journal to the recipe whole.json and the lines of `table`
    what=$1
    shift
    rm -f k.json
    cp kept.journal k.json.journal
    try 0 "^taken over  *[1-9][0-9]* windows $what" "$@" -o k.json --resume
    cmp -s whole.json k.json || complain "dq $*: killed and resumed: another recipe"
    grep -v "^taken over\|^recipe" "$top/out" >"$top/a"
    grep -v "^recipe" table | cmp -s - "$top/a" || complain "dq $*: killed and resumed: another table"
    absent k.json.journal
}

stays_when_full() { # stays_when_full ARGUMENTS...: the recipe r.json is written where what is said of it does not come out
    echo '{"schema": "dq-recipe/1"}' >full.json
    "$dq" "$@" -o full.json --force >/dev/full 2>"$top/err" </dev/null
    got=$?
    [ "$got" -eq 6 ] || complain "dq $* >/dev/full: expected status 6, found $got: $(cat "$top/err")"
    cmp -s r.json full.json || complain "dq $* >/dev/full: another recipe"
    absent full.json.journal
}

# until_line COUNT PATTERN SIGNAL COMMAND...: ends a plan, whose output is k.json, once that many lines of its journal have the
# pattern; its status is in $ended.
until_line() {
    count=$1 pattern=$2 signal=$3
    shift 3
    "$dq" "$@" -o k.json --progress never >/dev/null 2>"$top/err" </dev/null &
    child=$!
    while [ "$(grep -c "$pattern" k.json.journal 2>/dev/null || :)" -lt "$count" ] 2>/dev/null && kill -0 "$child" 2>/dev/null; do
        sleep 0.01
    done
    kill "-$signal" "$child" 2>/dev/null
    wait "$child" 2>/dev/null
    # shellcheck disable=SC2034 # for the parts
    ended=$?
    [ -e k.json.journal ] || complain "dq $*: over before it was ended at $count of $pattern"
}

# killed LINES COMMAND...: starts an eval and kills it once its file of finished work has that many lines, one for its head.
steps() { cat dq-eval-*.resume 2>/dev/null | wc -l; }
killed() {
    count=$1
    shift
    "$dq" "$@" >/dev/null 2>"$top/err" </dev/null &
    child=$!
    while [ "$(steps)" -lt "$count" ] && kill -0 "$child" 2>/dev/null; do sleep 0.01; done
    kill -"${signal:-KILL}" "$child" 2>/dev/null
    wait "$child" 2>/dev/null
    [ "$(steps)" -ge "$count" ] || complain "dq $*: over before it was killed after $count lines: $(cat "$top/err")"
}

# anew COMMAND... with --resume and other inputs or settings: another run, which finds nothing to go on from.
anew() {
    try 0 "." "$@"
    grep -q "warning: dq-eval-.*resume: is not in this folder, so there is nothing to resume" "$top/err" ||
        complain "dq $*: resumes, or does not say that it begins anew: $(cat "$top/err")"
}

# column FILE ROW NAME: one number of a CSV; rows count from 1.
column() {
    awk -F, -v row="$2" -v name="$3" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        NR == row + 1 { print at[name] ? $at[name] : "no column " name }' "$1"
}

# field FILE MODEL BITS GRANULARITY COLUMN: one number of a CSV of dq eval.
field() {
    awk -F, -v model="$2" -v bits="$3" -v granularity="$4" -v column="$5" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["model"] == model && $at["logit_bits"] == bits &&
            ($at["logit_granularity"] == granularity || bits == 16) { print $at[column]; exit }' "$1"
}

# holds WHAT EXPRESSION: an awk expression that must be true.
holds() {
    awk "BEGIN { exit !($2) }" || complain "$1: $2 is not true"
}

# again ITEMS CSV MODEL BITS GRANULARITY METRIC: an accuracy of dq eval, worked out again from --dump-items.
again() {
    told=$(field "$2" "$3" "$4" "$5" "$6")
    sed -n 's/^{"model": "\([^"]*\)", "task": "[^"]*", "logit_bits": \([0-9]*\), "logit_granularity": "\([a-z-]*\)".*"item": [0-9]*, "choice": 0, .*"gold": \([0-9]*\), "pick": {\(.*\)}}$/\1|\2|\3|\4|\5/p' "$1" |
        awk -F'|' -v model="$3" -v bits="$4" -v granularity="$5" -v metric="$6" -v told="$told" '
            $1 == model && $2 == bits && $3 == granularity {
                n++
                right += index(", " $5 ",", ", \"" metric "\": " $4 ",") > 0
            }
            END { exit !(n > 0 && right / n - told < 1e-12 && told - right / n < 1e-12) }' ||
        complain "--dump-items: $6 of $3 at $4 bits, $5, is not $told"
}

absent() {
    for f; do
        [ ! -e "$f" ] || complain "$f was left after"
    done
}

present() {
    for f; do
        [ -s "$f" ] || complain "$f is missing"
    done
}

# json SCHEMA: the last output is one document of that schema.
json() {
    grep -q "\"schema\": \"$1\"" "$top/out" || complain "no $1 on stdout"
    if command -v python3 >/dev/null; then
        python3 -m json.tool "$top/out" >/dev/null 2>&1 || complain "$1: not one JSON document"
    fi
}

# A folder for each part, with what most of them use.
begin() {
    work="$top/$1 folder" # every path below holds a space
    mkdir "$work"
    cd "$work" || exit 1
    cp -r "$repo/calib/pair/llama" "plain model"
    cp -r "$repo/calib/pair/diffllama" "diff model"
    head -c 600 "$repo/calib/pair/text.txt" >"short text"
    head -n 6 "$repo/calib/pair/choices.jsonl" >choices.jsonl
    : >empty
}

# A part that calls what nobody defines checks nothing: the shell's own complaints fail it.
for part in $parts; do
    begin "$part"
    # shellcheck source=/dev/null
    . "$here/$part.sh" 2>"$top/stray"
    [ ! -s "$top/stray" ] || complain "$part.sh: $(head -n 3 "$top/stray")"
done
exit $bad
