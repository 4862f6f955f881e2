# ruler.sh: prompts made up for long contexts: options, scores, the cut of a cache; sourced by run.sh.
book=$repo/calib/sample.txt
long=2400 # the pair spells text in bytes, so that it takes positions that it was not trained on
for kind in plain diff; do
    sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4096/' "$kind model/config.json" >config
    mv config "$kind model/config.json"
done
set -- eval "diff model" --progress never --task vt --lengths $long --limit 2

# ---- refused, with a remedy
try 2 "cwe needs its file: give --data FILE (expected a UTF-8 text)" eval "diff model" --task cwe
try 2 "data vt=$book: --task vt takes no file" "$@" --data vt="$book"
try 2 "data $book: no task takes it" "$@" --data "$book"
try 2 "data $book: no task takes it" "$@" --task cwe --data cwe="$book" --data "$book"
try 2 "unknown task \"ruler\". There are: .*niah_multikey.*vt, cwe, fwe" eval "diff model" --task ruler
try 2 "question: expected one of query-agnostic, query-aware" "$@" --question never
try 2 "question has nothing to act on" eval "diff model" --text "$book" --limit 1 --question query-agnostic
try 2 "num-fewshot is for items with answers" "$@" --num-fewshot 1
try 2 "has nothing to act on: there is no task that makes its own prompts" eval "diff model" --text "$book" --limit 1 --lengths 420
try 4 "vt: --lengths 100: the shortest prompt of vt and room for its answer need [0-9]* tokens. Use longer ones" "$@" --lengths 100
try 4 "lengths 5000: .* has 4096 positions. Use lengths up to 4096" "$@" --lengths 2400,5000
try 4 "short text: has [0-9]* different words of 3 to 12 small letters, lists of .* Give a longer text" eval "plain model" \
    --task cwe --data "short text" --lengths 4000
try 3 "empty: has no end of a sentence" eval "diff model" --task niah_single --data empty
try 4 "vt: evicting every 4 tokens is not defined .* use --question query-aware" "$@" --kv-keep 0.5 --kv-every 4

# ---- tables, documents, items
try 0 "^diff model *vt *16 *32:32" "$@" --lengths 2000,$long --csv ruler.csv --dump-items ruler.jsonl
grep -q "^Accuracy by length:" "$top/out" || complain "ruler: no table by length"
[ "$(column ruler.csv 1 n)" = 4 ] || complain "ruler: not 2 x 2 samples"
[ -n "$(column ruler.csv 1 all_correct)" ] || complain "ruler: no column all_correct"
[ "$(wc -l <ruler.jsonl)" -eq 4 ] || complain "ruler: not one line for each prompt"
grep -q '"input": ".*Assignments of variables.*"outputs": \["[A-Z]*", .*"prediction": ".*"end": "max_new", "found": 0.0}' ruler.jsonl ||
    complain "ruler: items do not say what was asked and answered: $(head -c 300 ruler.jsonl)"
try 0 '"kind": "niah_multikey"' "$@" --task fwe,niah_multikey,cwe --data niah_multikey="$book" --data cwe="$book" --limit 1 --json
json dq-eval/1
for task in vt fwe niah_multikey cwe; do
    grep -q "\"task\": \"$task\"" "$top/out" || complain "ruler: no result of $task"
done
grep -q '"question": "query-agnostic"' "$top/out" || complain "ruler: the document does not say where the question stands"
[ "$(grep -c '"kind": "vt"' "$top/out")" = 0 ] || complain "ruler: an input that is none"

# ---- the cache: all kept is nothing changed, and the question is after what is evicted unless the cache is query-aware
answers() { # OPTION...: what is generated, and how many tokens the caches held
    "$dq" "$@" --limit 1 -q --json --dump-items answers.jsonl --force >answers.json
    sed 's/.*"prediction"/"prediction"/' answers.jsonl
}
whole=$(answers "$@")
[ "$whole" = "$(answers "$@" --kv-keep 1 --kv-bits 32)" ] || complain "ruler: --kv-keep 1 changes what is generated"
answers "$@" --kv-keep 0.5 >/dev/null
agnostic=$(grep '"baseline_bytes"' answers.json)
grep -q '"passes": "context+question+decode"' answers.json || complain "ruler: the passes are not named"
answers "$@" --kv-keep 0.5 --question query-aware >/dev/null
aware=$(grep '"baseline_bytes"' answers.json)
grep -q '"passes": "prompt+decode"' answers.json || complain "ruler: the passes are not named where it is query-aware"
[ "${agnostic#*: }" != "${aware#*: }" ] || complain "ruler: the cut is in the same place where it is query-aware"
try 0 "vt" "$@" --limit 1 --kv-keep 0.5 --kv-every 4 --question query-aware

# ---- resumed runs: scores are kept when stdout is full, for the same settings only
rm -f dq-eval-*.resume
"$dq" "$@" >/dev/full 2>/dev/null
ls dq-eval-*.resume >/dev/null 2>&1 || complain "ruler: scores are not kept"
for option in "--seed 2" "--limit 1" "--lengths 2300" "--question query-aware"; do
    # shellcheck disable=SC2086
    anew "$@" $option --resume
done
try 0 "vt" "$@" --resume
absent dq-eval-*.resume
