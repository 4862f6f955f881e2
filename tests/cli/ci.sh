# ci.sh: the script of docs/ci.md as it stands, and that its output is what the page shows; sourced by run.sh.

page=$repo/docs/ci.md
mkdir job && cd job || exit 1
mkdir bin ci
ln -s "$dq" bin/dq
cp -r "../diff model" model
cp "$repo/calib/pair/text.txt" ci/text.txt
awk '/^```/ { open = !open && $0 == "```sh"; next } open' "$page" >ci/compare.sh
head -n 1 ci/compare.sh | grep -q '^#!/bin/sh$' || complain "ci: no script in docs/ci.md"
grep -q '^ *- run: sh ci/compare.sh$' "$page" || complain "ci: the workflow does not run the script"

job() { # job STATUS ARGUMENTS...: the script; its output in out and err
    want=$1
    shift
    PATH=$PWD/bin:$PATH sh ci/compare.sh "$@" >"$top/out" 2>"$top/err"
    got=$?
    [ $got -eq "$want" ] || complain "ci: compare.sh $*: expected status $want, found $got: $(cat "$top/err")"
}

# shown N: the N-th block of output of the page, and every line of it in what was printed, but for numbers and blanks
plain() { sed 's/[0-9][0-9.e+-]*/N/g; s/[+-]N/N/g; s/--*/-/g; s/  */ /g; s/ $//'; }
shown() {
    awk -v n="$1" '/^```/ { open = !open; bare = open && $0 == "```"; count += bare; next } bare && count == n' "$page" | plain >shown
    [ -s shown ] || complain "ci: docs/ci.md has no block $1 of output"
    cat "$top/out" "$top/err" | plain >printed
    while read -r line; do
        grep -qxF -e "$line" printed || complain "ci: docs/ci.md shows \"$line\", which is not printed"
    done <shown
}

job 0 new
present ci/baseline.json
absent result.json
job 0
shown 1
present result.json
sed 's/--bits 4/--bits 3/' ci/compare.sh >three && mv three ci/compare.sh
job 7
shown 2
shown 3
grep -q '"met": true' result.json || complain "ci: the document does not say what was met"
# another text, a damaged baseline and one without the row are no silent pass
sed 's/--bits 3/--bits 4/' ci/compare.sh >four && mv four ci/compare.sh
job 0
echo more >>ci/text.txt
job 4
cp "$repo/calib/pair/text.txt" ci/text.txt
sed 's/"model.h5"/"other.h5"/' ci/baseline.json >other.json
cp ci/baseline.json kept.json
cp other.json ci/baseline.json
job 7
head -c 3000 kept.json >ci/baseline.json
job 3
# conditions of the page are conditions
cp kept.json ci/baseline.json
sed -n 's/^| `\([a-z][^`]*\)` | .*/\1/p' "$page" >conditions
[ "$(grep -c . conditions)" -ge 7 ] || complain "ci: few conditions in docs/ci.md: $(cat conditions)"
"$dq" eval model model.h5 --task mc --data ../choices.jsonl -o mc.json -q >/dev/null 2>&1
while read -r condition; do
    case $condition in
    acc*) set -- --task mc --data ../choices.jsonl --baseline mc.json ;;
    *baseline*) set -- --text ci/text.txt --ctx 256 --limit 40 --baseline ci/baseline.json ;;
    *) set -- --text ci/text.txt --ctx 256 --limit 1 ;;
    esac
    try 0 "." eval model model.h5 "$@" --fail-if "$condition"
done <conditions
cd .. || exit 1
rm -rf job
