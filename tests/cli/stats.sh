# stats.sh: dq stats; sourced by run.sh.
try 0 "attention logits" stats "plain model" "diff model" --ids "0 17 44 8" --ids "5 6"
grep -q "hidden states" "$top/out" || complain "stats: no hidden states"
try 0 '"median"' stats "diff model" --ids "0 17 44 8" --json
json dq-stats/1
for key in table5 layers attention_logits hidden_states top100 '"top"' inputs settings warnings; do
    grep -q "$key" "$top/out" || complain "stats --json: no $key"
done
# 4 query heads x 2 layers x 4 * 5 / 2 visible entries
grep -q '"n": 80,' "$top/out" || complain "stats: 80 logits expected"
try 0 '"top100": null' stats "diff model" --ids 3 --json
try 0 "\"kind\": \"sample\"" stats "plain model" --one-pass --limit 1 --ctx 32 --json
try 0 "windows of 64 tokens" stats "plain model" --text "short text" --ctx 64
"$dq" stats "plain model" --text - --ctx 64 --json <"short text" >"$top/out" 2>"$top/err" ||
    complain "stats: --text - fails: $(cat "$top/err")"
json dq-stats/1

# nothing depends on the number of threads
for n in 1 2 3; do
    "$dq" stats "diff model" --text "short text" --threads $n -o "stats $n.h5" >/dev/null 2>&1 ||
        complain "stats --threads $n fails"
done
for n in 2 3; do
    cmp -s "stats 1.h5" "stats $n.h5" || complain "stats: the file depends on --threads"
done
absent "stats 1.h5.partial"
try 6 "exists. Add --force" stats "diff model" --ids 1 -o "stats 1.h5"
try 0 "hidden states" stats "diff model" --ids 1 -o "stats 1.h5" --force
try 0 "hidden states" stats "diff model" "plain model" --ids "1 2" --csv numbers.csv
[ "$(head -n 1 numbers.csv | cut -c1-18)" = "model,values,layer" ] || complain "stats: CSV without titles"
# 2 models, 9 kinds, all and ordinary tokens, 2 layers and all
[ "$(wc -l <numbers.csv)" -eq 109 ] || complain "stats: CSV has $(wc -l <numbers.csv) lines, not 109"
for key in queries down_input '"outliers"' '"ordinary"' '"heads"' p99_9 sink_share; do
    "$dq" stats "diff model" --ids "0 17 44 8" --json -q | grep -q "$key" || complain "stats --json: no $key"
done
# Table 5 alone has the same numbers, and no others
try 0 "hidden states" stats "diff model" "plain model" --ids "1 2" --detail table5 --csv table5.csv
grep ',attention_logits,.*,all$\|,hidden_states,.*,all$' numbers.csv >both.csv
sed 1d table5.csv | cmp -s - both.csv || complain "stats --detail table5: other numbers: $(sed 1d table5.csv | diff - both.csv | head -5)"
! grep -q "Attention maps\|ordinary" "$top/out" || complain "stats --detail table5: a profile"
try 0 '"detail": "table5"' stats "diff model" --ids "1 2" --detail table5 --json
json dq-stats/1
try 0 '"skippable_pages"' stats "diff model" --ids "1 2" --detail maps --json
json dq-stats/1
! grep -q '"ordinary"' "$top/out" || complain "stats --detail maps: a profile"
try 0 "^hidden states  *1  *[0-9]" stats "diff model" --ids "1 2" --layers

try 2 "exclude each other" stats "plain model" --ids 1 --text "short text"
try 2 "bos: expected one of" stats "plain model" --bos maybe
try 2 "expected decimal ids" stats "plain model" --ids "1 two"
try 2 "expected decimal ids" stats "plain model" --ids "1,2"
try 2 "expected decimal ids" stats "plain model" --ids "-1"
try 2 "at least one id" stats "plain model" --ids ""
try 2 "ctx: expected a whole number" stats "plain model" --ctx 0
try 3 "empty" stats "plain model" --text empty
try 3 "empty" stats "plain model" --text -
try 4 "outside the vocabulary" stats "plain model" --ids "1 999999" -o gone.h5
try 4 "positions" stats "plain model" --ctx 100000
try 6 "no-such-file" stats "plain model" --text no-such-file -o gone.h5
try 6 "folder" stats "plain model" --ids 1 -o no-such-folder/gone.h5
try 2 "-o" stats "plain model" --ids 1 -o -
try 6 "not a regular file" stats "plain model" --ids 1 -o /dev/full --force
try 6 "gone.csv" stats "plain model" --ids 1 -o gone.h5 --csv no-such-folder/gone.csv
absent gone.h5 gone.h5.partial
rm -rf "no tokenizer"
cp -r "plain model" "no tokenizer"
rm "no tokenizer/tokenizer.json"
try 4 "tokenizer.json" stats "no tokenizer" --text "short text"
try 0 "#17" stats "no tokenizer" --ids "0 17"
printf 'caf\303 is not UTF-8' >latin
try 0 "sequence" stats "plain model" --text latin
grep -q "warning: .*not UTF-8: 1 ill-formed" "$top/err" || complain "stats: no warning about UTF-8"
try 0 "ill-formed" stats "plain model" --text latin --json -q
[ ! -s "$top/err" ] || complain "stats -q: not quiet"
json dq-stats/1
# a pass of both layers is a third of three walks: what is told between them is told first
try 0 "sequence" stats "plain model" --text "short text" --progress always
grep "^dq stats: plain model  " "$top/err" | head -1 | grep -q " 17 %  " || complain "stats: nothing between layers: $(cat "$top/err")"

# a row of a layer with a window of 40 has the logits of that alone, whatever leaves the cache: 4 heads of 300 rows
long=$(seq -s ' ' 1 200)
try 0 "sequence" stats "$repo/tests/golden/models/gemma3-f32" --ids "$long $(seq -s ' ' 1 100)" --csv window.csv -q
[ "$(grep ',attention_logits,' window.csv | cut -d, -f3,4 | sed -n '2,5p' | tr '\n' ' ')" = "0,44880 1,44880 2,180600 3,44880 " ] ||
    complain "stats: logits of windows: $(cut -d, -f2-4 window.csv | grep logits)"

# no policy acts where all layers have windows of their own
try 4 "all layers have windows of their own" logits "$repo/tests/golden/models/mistral-window" --ids "$long" --prefix 150 \
    --kv-keep 0.5 -o gone.h5
