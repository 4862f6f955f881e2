# report.sh: dq report: which documents become a page, and what of them is in it; what a browser makes of it is page.py. Sourced by
# run.sh.
pair=$repo/results/pair
set -- eval "plain model" --task mc --data choices.jsonl --limit 3 --logit-bits 16,4
"$dq" "$@" -o eval.json -q >/dev/null 2>"$top/err" || complain "report: dq eval fails: $(cat "$top/err")"
"$dq" stats "plain model" "diff model" --ids "0 17 44 8" --json >stats.json 2>"$top/err" ||
    complain "report: dq stats fails: $(cat "$top/err")"
"$dq" quantize "plain model" -o four.h5 --bits 4 --json -q >quantize.json || complain "report: dq quantize fails"
"$dq" quantize "diff model" --bits 8 --dry-run --json -q >plan.json || complain "report: dq quantize --dry-run fails"

# one line of error, nothing on stdout, no page, for everything that is no such document
damaged() { # damaged STATUS PATTERN TEXT
    printf '%s' "$3" >bad.json
    try "$1" "bad.json: $2" report bad.json -o gone.html
    try "$1" "bad.json: $2" report eval.json bad.json -o gone.html
    absent gone.html gone.html.partial
}
damaged 3 "not valid JSON" ''
damaged 3 "not valid JSON" '{"schema": "dq-eval/1", "results": ['
damaged 3 "not valid JSON" '{"schema": "dq-eval/1", "schema": "dq-eval/1", "results": []}'
damaged 3 "not a document of dq" '[1, 2]'
damaged 3 "not a document of dq" '{"results": []}'
damaged 3 '.*"results" is missing' '{"schema": "dq-stats/1"}'
damaged 3 'results\[0\]: "model" is missing' '{"schema": "dq-stats/1", "results": [{}]}'
damaged 3 'results\[0\]: "tensors" is missing' '{"schema": "dq-quantize/1", "results": [{}]}'
damaged 3 'results\[0\]: "task" is missing' '{"schema": "dq-eval/1", "results": [{"model": "m"}]}'
damaged 4 '.*another version (expected dq-eval/1, found "dq-eval/2").*that made it, 9.1' \
    '{"schema": "dq-eval/2", "dq_version": "9.1", "results": []}'
damaged 4 'a document of another version.*that made it$' '{"schema": "dq-stats/12", "results": []}'
damaged 4 'no page.*found "dq-doctor/1"' '{"schema": "dq-doctor/1", "results": []}'
head -c 2000 eval.json >cut.json
try 3 "cut.json: not valid JSON" report cut.json -o gone.html
try 4 "four.h5: is an HDF5 file" report four.h5 -o gone.html
try 4 "kv.json: no page.*dq-kv-study/1" report "$repo/results/kv/kv.json" -o gone.html
{
    printf '{"schema": "dq-eval/1", "results": ['
    awk 'BEGIN { for (i = 0; i < 5001; i++) printf "%s{\"model\": \"m\", \"task\": \"t\", \"metrics\": {}}", i ? "," : "" }'
    printf ']}'
} >huge.json
try 4 "huge.json: too many results for a page (expected at most 5000 in all documents, found 5001)" report huge.json -o gone.html
awk 'BEGIN {
    printf "{\"schema\": \"dq-plan/1\", \"settings\": {\"kind\": \"kv\"}, \"results\": [{\"units\": [0], \"trials\": [0"
    for (i = 1; i < 50000; i++) printf ",0"
    print "]}]}"
}' >huge.json
try 4 "huge.json: too many tensors, units, groups and trials for a page (expected at most 50000 in all documents, found 50001)" report huge.json -o gone.html
sed 's/"kv"/"heads"/' huge.json >huge2.json
try 4 "huge2.json: too many tensors, units, groups and trials" report huge2.json -o gone.html
for schema in 'dq-eval/ 1' dq-eval/+1 dq-eval/1.x dq-eval/1.; do
    echo "{\"schema\": \"$schema\", \"results\": []}" >version.json
    try 4 "version.json: a document of another version" report version.json -o gone.html
done
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >deep.json
try 3 "deep.json: not valid JSON" report deep.json -o gone.html
absent gone.html

# files and flags
try 6 "nowhere.json" report nowhere.json -o gone.html
try 6 "plain model: is a folder" report "plain model" -o gone.html
try 6 "folder nowhere does not exist" report eval.json -o nowhere/gone.html
try 2 "eval.json: is given twice" report eval.json stats.json ./eval.json -o gone.html
try 2 "given twice" report - - -o gone.html
try 2 "same file" report eval.json -o eval.json --force
try 2 "gone.json: -o writes no such file (expected HTML" report eval.json -o gone.json
try 2 "unknown option --html" report eval.json --html gone.html
grep -q dq-eval/1 eval.json || complain "report: replaced its input"
echo older >kept.html
try 6 "kept.html: exists. Add --force" report eval.json -o kept.html
[ "$(cat kept.html)" = older ] || complain "report: replaced a page without --force"
if command -v script >/dev/null; then
    script -qec "'$dq' report eval.json" /dev/null </dev/null >"$top/out" 2>&1
    [ $? -eq 2 ] || complain "report to a terminal: not status 2"
    grep -q "standard output is a terminal" "$top/out" || complain "report to a terminal: $(cat "$top/out")"
fi
printf '{"schema": "dq-eval/1", "results": []}' >nothing.json
"$dq" report nothing.json >"$top/out" 2>"$top/err" || complain "report of nothing: $(cat "$top/err")"
grep -q "</html>" "$top/out" || complain "report of nothing: no page"

# what --html writes, byte for byte
same_page() { # same_page ARGUMENTS...: of dq eval
    "$dq" eval "$@" --html page.html -o same.json --force -q >/dev/null 2>"$top/err" ||
        complain "dq eval $*: $(cat "$top/err")"
    "$dq" report same.json >made.html 2>"$top/err" || complain "dq report: $(cat "$top/err")"
    cmp -s made.html page.html || complain "dq report: another page than that of dq eval $* --html"
}
same_page "plain model" "diff model" --text "short text" --ctx 32 --logit-bits 16,4 --positions --slices
same_page "plain model" --text "short text" --ctx 64 --kv-recent 8 --kv-sink 2 --kv-bits 16,4
"$dq" report same.json -o made.html --force >"$top/out" 2>"$top/err" || complain "dq report -o: $(cat "$top/err")"
[ ! -s "$top/out" ] || complain "dq report -o: prints on stdout"
"$dq" report - -o - <same.json | cmp -s - made.html || complain "dq report -: another page than from the file"
# one page of all kinds, and of the documents of this repository
"$dq" report plan.json eval.json quantize.json stats.json same.json -o all.html 2>"$top/err" ||
    complain "dq report of all kinds: $(cat "$top/err")"
for name in plan eval quantize stats same; do
    grep -q "{\"name\":\"$name.json\",\"document\":{\"schema\":\"dq-" all.html || complain "dq report: no document $name.json"
done
for d in stats logits weights-accuracy weights-text; do
    "$dq" report "$pair/$d.json" >old.html 2>"$top/err" || complain "dq report $d.json: $(cat "$top/err")"
    grep -q "</html>" old.html || complain "dq report $d.json: no page"
done
if command -v python3 >/dev/null; then
    # the documents come back as they were
    python3 - all.html plan eval quantize stats same <<'EOF' || complain "dq report: a document is not what was given"
import json
import re
import sys
page = open(sys.argv[1], encoding="utf-8").read()
held = json.loads(re.search(r'id="documents">(.*?)</script>', page, re.S).group(1))
assert [x["name"] for x in held] == [name + ".json" for name in sys.argv[2:]]
assert [x["document"] for x in held] == [json.load(open(name + ".json", encoding="utf-8")) for name in sys.argv[2:]]
EOF
fi
# no room
"$dq" report same.json >/dev/full 2>"$top/err"
got=$?
[ $got -eq 6 ] || complain "dq report >/dev/full: expected status 6, found $got"
grep -q "standard output: cannot write" "$top/err" || complain "dq report >/dev/full: $(cat "$top/err")"
try 6 "/dev/full: not a regular file" report same.json -o /dev/full --force
(
    trap '' XFSZ
    ulimit -f 4
    exec "$dq" report same.json -o gone.html
) >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 6 ] || complain "dq report on a full disk: expected status 6, found $got: $(cat "$top/err")"
absent gone.html gone.html.partial
"$dq" report all.html >"$top/out" 2>/dev/null && complain "dq report: takes its own page for a document"
