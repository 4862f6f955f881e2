# html.sh: the page of dq eval --html; sourced by run.sh.
set -- eval "plain model" --task mc --data choices.jsonl --limit 3 --logit-bits 16,4
try 2 "write this file" "$@" -o twice --html twice
try 2 "input and output are the same file" "$@" --html choices.jsonl

try 0 "plain model" "$@" --html page.html -o data.json --csv data.csv
absent dq-eval-*.resume
present page.html data.json data.csv
grep -q '^<script type="application/json" id="documents">\[{"name":"","document":{"schema":"dq-eval/1"' page.html ||
    complain "dq eval --html: no document in the page"
grep -q '</html>' page.html || complain "dq eval --html: the page has no end"
cp page.html first.html
try 0 "dq-eval/1" "$@" --html page.html --json --force
json dq-eval/1
# equal but for the speed of the two runs
for f in first page; do sed 's/"throughput":{[^}]*}//g' $f.html >$f.cut; done
cmp -s first.cut page.cut || complain "dq eval --html: two runs make two pages"
# no room
(
    trap '' XFSZ
    ulimit -f 4
    exec "$dq" "$@" --html gone.html
) >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 6 ] || complain "dq eval --html on a full disk: expected status 6, found $got: $(cat "$top/err")"
absent gone.html gone.html.partial
# names that are not UTF-8, or steer a terminal
odd=$(printf 'od\377d \033[31mmodel')
cp -r "plain model" "$odd"
cp choices.jsonl "$(printf 'choices\376.jsonl')"
"$dq" eval "$odd" --task mc --data "$(printf 'choices\376.jsonl')" --limit 3 --logit-bits 16,4 -v --html odd.html \
    --progress always -o odd.json >"$top/out" 2>"$top/err" || complain "a name that is not UTF-8: $(cat "$top/err")"
for f in odd.html odd.json "$top/out" "$top/err"; do
    grep -q "$(printf '\033')" "$f" && complain "a name with control characters: raw in $f"
done
for f in odd.html odd.json "$top/out" "$top/err"; do
    grep -q "$(printf 'od\357\277\275d ')" "$f" || complain "a name that is not UTF-8: nothing of it in $f"
done
grep -q "\"path\": \"$(printf 'choices\357\277\275.jsonl')\"" odd.json ||
    complain "a file's name that is not UTF-8: $(grep path odd.json)"
rm -rf "$odd" odd.html odd.json "$(printf 'choices\376.jsonl')" first.* page.* data.json data.csv dq-eval-*.resume
