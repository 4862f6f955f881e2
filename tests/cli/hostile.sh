# hostile.sh: files as other programs write them, and as nobody should; sourced by run.sh.

# What save_pretrained of transformers leaves, unmodified: a length that no 64-bit integer holds.
saved=$repo/tests/golden/saved
grep -q '"model_max_length": 1000000000000000019884624838656' "$saved/tokenizer_config.json" ||
    complain "tests/golden/saved has no large number"
try 0 "hidden states" stats "$saved" --text "short text"
try 0 "62  " eval "$saved" --text "short text" --ctx 64
try 0 "head order" doctor --model "$saved" --text "short text"
try 0 "SHA-256" quantize "$saved" -o saved.h5 --bits 4
try 0 "62  " eval saved.h5 --text "short text" --ctx 64
try 0 '"recipe": {' info saved.h5 --json
json dq-info/1

# numbers in any spelling; one that is no size is named
cp -r "$saved" spelt
sed -e 's/"hidden_size": 16/"hidden_size": 1.6e1/' -e 's/"vocab_size": 503/"vocab_size": 503.0/' \
    -e 's/"initializer_range": 0.02/"initializer_range": 1e400/' "$saved/config.json" >spelt/config.json
try 0 "62  " eval spelt --text "short text" --ctx 64
for size in 16.5 1e400 99999999999999999999 -16; do
    sed "s/\"hidden_size\": 16/\"hidden_size\": $size/" "$saved/config.json" >spelt/config.json
    try 3 'key "hidden_size": expected' info spelt
done
sed 's/"rope_theta": 10000.0/"rope_theta": 1e400/' "$saved/config.json" >spelt/config.json
try 3 'key "rope_theta": the number is too large' info spelt
printf '{"id": 18446744073709551615, "question": "x", "answer": "1"}\n' >large.jsonl
try 3 '"id" is a number of too many digits' eval "plain model" --task gsm8k --data large.jsonl
printf '{"question": "x", "answer": 18446744073709551615}\n' >large.jsonl
try 3 '"answer" is a number of too many digits' eval "plain model" --task gsm8k --data large.jsonl

# A name that is not UTF-8 is a key of every document all the same.
odd=$(printf 'odd \377')
cp -r "$saved" "$odd"
try 0 '"path": "odd .*"' info "$odd" --json
json dq-info/1
try 0 '"path": "odd .*"' quantize "$odd" -o "$odd.h5" --bits 4 --json
json dq-quantize/1
try 0 '"path": "odd .*"' verify "$odd.h5" --json
json dq-verify/1

# Nothing endless is read, and nothing is waited for, where a file of a model should be.
cp -r "$saved" endless
for file in config.json tokenizer.json tokenizer_config.json model.safetensors; do
    rm -f endless/$file
    ln -s /dev/zero endless/$file
    try 6 "$file: not a regular file" eval endless --text "short text" --ctx 64
    rm endless/$file
    mkfifo endless/$file
    try 6 "$file: not a regular file" eval endless --text "short text" --ctx 64
    rm endless/$file
    cp "$saved/$file" endless/$file
done
if truncate -s 1T huge 2>/dev/null; then
    for file in config.json tokenizer.json tokenizer_config.json; do
        mv huge endless/$file
        try 3 "$file: more than the [0-9]* bytes that such a file may have" eval endless --text "short text" --ctx 64
        mv endless/$file huge
        cp "$saved/$file" endless/$file
    done
    mv huge endless/model.safetensors.index.json
    rm endless/model.safetensors
    try 3 "index.json: more than the" info endless
    mv endless/model.safetensors.index.json huge
    try 5 "huge: more than the [0-9]* bytes that a third of this machine's memory has" eval "$saved" --text huge --ctx 64
    rm huge
fi
mkfifo line
try 6 "line: not a regular file" info line
try 6 "line: not a regular file" tokenize line --text "short text"
try 6 "not a regular file or a pipe" tokenize "$saved" --text /dev/zero
try 6 "is a folder, a file is needed" tokenize "$saved" --text endless
# texts may come through pipes, with a name or without
"$dq" tokenize "$saved" --text "short text" >"$top/want"
cat "short text" >line &
try 0 "^[0-9]" tokenize "$saved" --text line
cmp -s "$top/out" "$top/want" || complain "a text from a pipe has other tokens"
# shellcheck disable=SC2002 # a pipe is meant
cat "short text" | "$dq" tokenize "$saved" --text /dev/stdin >"$top/out" 2>&1
cmp -s "$top/out" "$top/want" || complain "a text from /dev/stdin has other tokens: $(head -c 200 "$top/out")"
"$dq" tokenize "$saved" --text - <"short text" >"$top/out" 2>&1
cmp -s "$top/out" "$top/want" || complain "a text from standard input has other tokens"
# a pipe that nobody writes to is waited for until Ctrl-C
"$dq" tokenize "$saved" --text line >"$top/out" 2>"$top/err" &
waiting=$!
sleep 0.3
kill -TERM $waiting
wait $waiting
got=$?
[ $got -eq 143 ] || complain "waiting for a pipe: expected status 143, found $got: $(cat "$top/err")"

# Tokenizers that multiply text, or that would take until the end of time.
cp -r "$saved" slow
changed() { # SED-SCRIPT: slow/tokenizer.json becomes the saved one, changed
    sed "$1" "$saved/tokenizer.json" >slow/tokenizer.json
    ! cmp -s "$saved/tokenizer.json" slow/tokenizer.json || complain "hostile: $1 changes nothing"
}
repeat() { # TEXT TIMES
    awk -v t="$1" -v n="$2" 'BEGIN { for (i = 0; i < n; i++) printf "%s", t }'
}
sixty=$(repeat a 60)
step="{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"$sixty\"}"
repeat a 56 >fiftysix
changed "s/\"normalizer\": null/\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [$step, $step, $step, $step, $step]}/"
try 4 "normalizer Replace makes [0-9]* bytes of a text of 56" tokenize slow --text fiftysix
changed "s/\"normalizer\": null/\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"$(repeat x 9000)\"}/"
try 4 "normalizer Prepend makes 9056 bytes of a text of 56" tokenize slow --text fiftysix
# backtracking that stays below the limit of a single match, at every one of 100 000 places
repeat "$(repeat a 200) " 500 >runs
for pattern in '(?:a+)+[bc]' 'a*a*a*a*[bc]'; do
    changed "s/\"normalizer\": null/\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"$pattern\"}, \"content\": \"x\"}/"
    try 5 "matching the tokenizer's pattern .* match limit exceeded" tokenize slow --text runs
done
"$dq" tokenize slow --text runs >"$top/out" 2>"$top/err" &
waiting=$!
sleep 0.5
kill -TERM $waiting
wait $waiting
got=$?
[ $got -eq 143 ] || complain "a pattern that backtracks: expected status 143 after SIGTERM, found $got"
# each of 300 000 tabs begins a token that swallows all white space around it
token() { # CONTENT FLAGS: the line of an added token with the next free id
    printf '{"id": 503, "content": "%s", "single_word": false, %s, "normalized": false, "special": false},' "$1" "$2"
}
repeat '\t' 300000 >blank
changed "s|\"added_tokens\": \[|&$(token '\\t' '"lstrip": true, "rstrip": true')|"
try 0 "^503$" tokenize slow --text blank
[ "$(wc -w <"$top/out")" = 1 ] || complain "tabs: expected one id, found $(wc -w <"$top/out")"
changed "s|\"added_tokens\": \[|&$(token '\\t' '"lstrip": false, "rstrip": true')|"
try 0 "^503 503 503" tokenize slow --text blank
# a long token that nearly stands at every place
repeat a 200000 >letters
changed "s|\"added_tokens\": \[|&$(token "$(repeat a 30000)b" '"lstrip": false, "rstrip": false')|"
try 0 "^[0-9]" tokenize slow --text letters
changed "s|\"added_tokens\": \[|&$(token "$(repeat a 70000)" '"lstrip": false, "rstrip": false')|"
try 4 "added token 503 of 70000 bytes is not supported" tokenize slow --text letters

# Many of everything: 60 000 tasks with verdicts on two models, 200 000 right answers, 100 000 labels, 100 000 choices.
awk 'BEGIN { for (i = 0; i < 60000; i++) {
    printf "{\"item\": %d, \"verdict\": %s, \"model\": \"A\", \"task\": \"t%d\"}\n", i % 7, i % 2 ? "true" : "false", i
    printf "{\"item\": %d, \"verdict\": true, \"model\": \"B\", \"task\": \"t%d\"}\n", i % 7, i } }' >many.jsonl
try 0 '"of_task": "t59999"' judged many.jsonl --json
[ "$(grep -c '"cross_paired": {' "$top/out")" = 60000 ] || complain "verdicts: not 60000 groups are compared"
[ "$(grep -c '"n10": 1' "$top/out")" = 30000 ] || complain "verdicts: not 30000 flips"
awk 'BEGIN { printf "{\"prompt\": \"p\", \"completion\": \"c\", \"query\": \"q\", \"reference\": [\"a\""; for (i = 1; i < 200000; i++) printf ", \"a\""
    printf "]}\n" }' >references.jsonl
try 0 "1 requests" judged references.jsonl --requests asked.jsonl
printf 'text,category\nw,l7\n' >query.csv
awk 'BEGIN { print "text,category"; for (i = 0; i < 100000; i++) printf "w%d,l%d\n", i % 100, i }' >labels.csv
try 0 " 1000000 " eval "$saved" --task banking77 --data query.csv --fewshot-data labels.csv --num-fewshot 1 --limit 1 --dry-run
awk 'BEGIN { printf "{\"ctx\": \"q\", \"choices\": [\"c\""; for (i = 1; i < 100000; i++) printf ", \"c%d\"", i
    printf "], \"gold\": 5}\n" }' >choices.many
try 0 " 100000 " eval "$saved" --task mc --data choices.many --dry-run
rm -f dq-eval-*.resume*

# No name, token or text of a file moves a terminal's cursor or turns its line round, whichever command shows it.
plain() { # plain WHAT: of the last command
    for f in out err; do
        ! grep -aqP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]|(?<![\x80-\xff])[\x80-\x9f]' "$top/$f" ||
            complain "$1: control characters on std$f: $(grep -aP '[\x00-\x08\x0b-\x1f\x7f-\xff]' "$top/$f" | head -n 3 | od -An -c | head -n 9)"
    done
}
seen() { # seen ARGUMENTS...: whatever comes of it
    "$dq" "$@" >"$top/out" 2>"$top/err" </dev/null
    plain "dq $*"
}
evil=$(printf 'm\033[2J\r\007\177\233\302\233\302\205\342\200\256\342\201\246\342\200\250')
json_evil='m\\u001b[2J\\r\\u0007\\u007f\\u009b\\u0085\\u202e\\u2066\\u2028'
cp -r "$saved" "$evil"
sed "s/\"the\"/\"$json_evil\"/; s/\"Ġthe\"/\"$json_evil 2\"/" "$saved/tokenizer.json" >"$evil/tokenizer.json"
cp "short text" "$evil.txt"
sed "s/\"choices\": \[\"[^\"]*/&$json_evil/" choices.jsonl >"$evil.jsonl"
"$dq" quantize "$evil" -o "$evil.h5" --bits 4 -q >/dev/null || complain "hostile: no container of an evil name"
"$dq" export "$evil.h5" -o "$evil.gguf" --dtype f16 -q >/dev/null 2>&1
echo "{\"model\": \"$json_evil\", \"task\": \"$json_evil\", \"id\": 1, \"prompt\": \"x\", \"completion\": \"$json_evil\", \"verdict\": true}" |
    sed 's/\\\\u/\\u/g; s/\\\\r/\\r/g' >judged.jsonl
"$dq" eval "$evil" --text "$evil.txt" --ctx 64 -o "$evil.json" -q >/dev/null || complain "hostile: no document of an evil name"
for command in $("$dq" help --commands | tr ' ' _); do
    case $command in
    plan | bench) continue ;;
    stats) set -- "$evil" --text "$evil.txt" --layers -v ;;
    quantize) set -- "$evil" --dry-run --tensors --bits 4 -v ;;
    plan_weights) set -- "$evil" --calib "$evil.txt" --budget bpw=4 --dry-run ;;
    plan_kv) set -- "$evil" --text "$evil.txt" --kv-bits 4 --dry-run --ctx 32 ;;
    plan_heads) set -- "$evil" --text "$evil.txt" --kv-keep 0.5 --dry-run --ctx 32 ;;
    plan_gates) set -- "$evil" --text "$evil.txt" --dry-run --ctx 32 ;;
    eval) set -- "$evil" "$evil.h5" --text "$evil.txt" --task mc --data "$evil.jsonl" --ctx 64 -v --progress always ;;
    generate) set -- "$evil" "$evil" --raw --max-new 4 --compare "$evil.h5" ;;
    judged) set -- judged.jsonl ;;
    report) set -- "$evil.json" -o - ;;
    info) set -- "$evil.h5" ;;
    verify) set -- "$evil.h5" --source "$evil" ;;
    export) set -- "$evil.h5" -o e --format safetensors --dry-run --tensors ;;
    logits) set -- "$evil" --ids "1 2" -o "$evil.logits.h5" ;;
    tokenize) set -- "$evil" --text "$evil.txt" ;;
    doctor) set -- --model "$evil" --text "$evil.txt" ;;
    bench_prefill | bench_generate | bench_items | bench_decode | bench_attention | bench_evict) set -- "$evil" --context 1 ;;
    bench_compare) set -- "$evil.json" ;;
    merge) set -- "$evil.json" ;;
    *) complain "hostile: dq $command is tried with no evil name" ;;
    esac
    word=$(echo "$command" | tr _ ' ')
    # shellcheck disable=SC2086 # one or two words
    seen $word "$@"
    # shellcheck disable=SC2086
    seen $word "$@" --json
    # shellcheck disable=SC2086
    seen $word "$evil.missing" "$evil" "$evil"
    # shellcheck disable=SC2086
    seen $word "--$evil"
done
seen "$evil"
seen info "$evil"
seen info "$evil" --tensors
seen info "$evil.h5" --recipe
seen info "$evil.gguf"
grep -aq "$(printf '"path": "m\\\\u001B[[]2J.*\177\357\277\275\302\233\302\205\342\200\256')" "$evil.json" ||
    complain "hostile: a document in a file has another path"
"$dq" info "$evil" --json | grep -q '"path": "m\\u001B[[]2J\\r\\u0007\\u007f.*\\u009b\\u0085\\u202e\\u2066\\u2028' ||
    complain "hostile: a printed document has another path"
# a message that quotes a file
sed "s/\"model_type\": \"[^\"]*/&$json_evil/" "$saved/config.json" >"$evil/config.json"
seen info "$evil"
# what is asked for as it is, comes as it is where no terminal is
printf 'a\033b\302\233' >exact.txt
"$dq" tokenize "$saved" --text exact.txt 2>/dev/null >exact.ids
echo >>exact.txt
"$dq" tokenize "$saved" --decode --text exact.ids 2>/dev/null | cmp -s - exact.txt || complain "tokenize --decode to a pipe is not exact"

# A file that is named has a limit, which is looked at before its bytes are in memory; a pipe without end has it too.
large="more than the [0-9]* bytes that such a file may have"
if truncate -s 2G huge 2>/dev/null; then
    try 4 "huge: $large" report huge
    try 4 "huge: $large" bench compare huge
    try 4 "huge: $large" quantize "$saved" -o x.h5 --recipe huge
    try 4 "huge: $large" plan kv "plain model" --text "short text" --kv-bits 4 --ctx 32 -o x.json --onto huge
    try 4 "huge: $large" eval "plain model" --text "short text" --ctx 64 --kv-policy kvzap --kv-keep 0.5 --kv-gates huge
    try 3 "huge: $large" eval "plain model" --text "short text" --ctx 64 --baseline huge --fail-if 'nll_nats > baseline'
    try 3 "huge: $large" merge huge
    try 3 "huge: $large" eval "plain model" --text "short text" --ctx 64 --shard 1/1 -o huge --resume
fi
rm -f huge
endless() { # endless STATUS PATTERN ARGUMENTS...: with no end on standard input
    want=$1 pattern=$2
    shift 2
    (
        # shellcheck disable=SC3045 # dash and bash have it
        ulimit -v 4000000
        yes | tr -d '\n' | "$dq" "$@" >"$top/out" 2>"$top/err"
        echo $? >"$top/status"
    ) 2>/dev/null
    [ "$(cat "$top/status")" = "$want" ] || complain "dq $*: expected status $want, found $(cat "$top/status"): $(cat "$top/err")"
    grep -q "$pattern" "$top/err" || complain "dq $*: \"$pattern\" is not in: $(cat "$top/err")"
    [ ! -s "$top/out" ] || complain "dq $*: failed, but printed on stdout"
}
# shellcheck disable=SC3045 # dash and bash have it
if (ulimit -v 4000000 && "$dq" --version; exit $?) >/dev/null 2>&1; then # a build with sanitizers cannot begin in so few
    endless 5 "standard input: a line of more than the 16777216 bytes that a prompt may have" generate "plain model" -i --raw
    endless 4 "$large" generate "plain model" --prompt-file - --raw
    endless 4 "$large" report - -o x.html
    endless 4 "$large" quantize "plain model" -o x.h5 --recipe /dev/stdin
    endless 5 "bytes that a third of this machine's memory has\|out of memory" tokenize "plain model" --text -
fi
absent x.html x.h5 x.json
# what nests without end
awk 'BEGIN { for (i = 0; i < 1000000; i++) printf "[" }' >deep.json
for c in "report deep.json" "bench compare deep.json" "judged deep.json" "merge deep.json" "quantize $saved -o x.h5 --recipe deep.json" \
    "eval $saved --task mc --data deep.json" "eval $saved --task math --data deep.json"; do
    # shellcheck disable=SC2086
    "$dq" $c >"$top/out" 2>"$top/err"
    got=$?
    case $got in 2 | 3 | 4) ;; *) complain "dq $c: status $got: $(head -c 300 "$top/err")" ;; esac
done
