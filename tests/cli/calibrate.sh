# calibrate.sh: dq quantize --calib; sourced by run.sh. Texts are as short as what is checked allows: 2100 tokens are two passes
# (2048 rows at most).
pair=$repo/calib/pair
cp "$pair/text.txt" text.txt
printf '{"text": "a cold hare hears above the field slowly ."}\n{"text": ""}\n{"text": "the tall bear sees [ Tokyo 23 ] ."}\n' \
    >few.jsonl
set -- quantize "diff model" -o made.h5 --bits 4 --method gptq --calib text.txt --calib-tokens 2100 --calib-ctx 100

# what does not fit together
try 2 "needs a text: --calib FILE, or --calib self. Without one, leave out --method.\$" quantize "diff model" -o made.h5 --bits 4 \
    --method gptq --calib none
try 2 "method" quantize "diff model" -o made.h5 --bits 4 --method awq --calib text.txt
try 2 "[-]-calib: --method nearest reads no text. Use --method align" quantize "diff model" -o made.h5 --bits 4 --calib text.txt \
    --method nearest
for option in --calib-tokens --calib-ctx; do
    try 2 "$option: there is no text to calibrate with. Add --calib FILE, or --calib self.$" quantize "diff model" -o made.h5 \
        --bits 4 $option 5
    try 2 "or --calib self, and leave out --method nearest" quantize "diff model" -o made.h5 --bits 4 $option 5 --method nearest
done
try 2 "[-]-calib-ctx: expected at most the 512 positions" "$@" --calib-ctx 513
try 6 "gone.txt" quantize "diff model" -o made.h5 --bits 4 --method gptq --calib gone.txt
: >empty.txt
try 3 "empty.txt: holds no text" quantize "diff model" -o made.h5 --bits 4 --method gptq --calib empty.txt
printf '{"text": "a"}\n\n{]\n' >wrong.jsonl
try 3 "wrong.jsonl: line 3: document: not valid JSON at column 2: " quantize "diff model" -o made.h5 --bits 4 --calib wrong.jsonl
printf '{"words": 3}\n' >wrong.jsonl
try 3 "wrong.jsonl: line 1" quantize "diff model" -o made.h5 --bits 4 --method gptq --calib wrong.jsonl
absent made.h5 made.h5.partial made.h5.journal

# a dry run says what it would take and runs nothing
try 0 "calibration  *gptq, 2100 tokens in 21 sequences of at most 100" "$@" --dry-run
try 0 "scratch  *3.78 MiB beside the output" "$@" --dry-run
try 0 "memory  *about [0-9.]* MiB beside mapped files" "$@" --dry-run
try 0 "time  *about [0-9]* s on 3 threads" "$@" --dry-run --threads 3
try 0 '"memory_bytes": [1-9]' "$@" --dry-run --json
grep -q '^ *"seconds": [0-9.]*,$' "$top/out" || complain "calibrate: --dry-run --json does not say how long it takes"
# shellcheck disable=SC3045 # dash and bash have it
if (ulimit -v 400000 && "$dq" --version; exit $?) >/dev/null 2>&1; then # KiB; a build with sanitizers cannot begin in so few
    (
        # shellcheck disable=SC3045
        ulimit -v 400000
        "$dq" "$@" --threads 1024 >/dev/null 2>"$top/err" # what so many threads need is more
        [ $? -eq 5 ]
    ) || complain "calibrate: memory that is not there: $(cat "$top/err")"
    grep -q "error: diff model: not enough memory to calibrate (expected about [0-9.]* MiB, this process can have 390.6 MiB)" \
        "$top/err" || complain "calibrate: memory that is not there: $(cat "$top/err")"
fi
absent made.h5 made.h5.partial made.h5.journal

# the same bytes for any number of threads, and beside nothing else
for n in 1 2 3; do
    try 0 '"loss"' "$@" --threads $n --force --json
    mv made.h5 "made $n.h5"
done
json dq-quantize/1
if grep -q avx512 /proc/cpuinfo; then # ISAs whose sums are fused give the same, too
    DQ_CPU=avx2 "$dq" "$@" --force -q >"$top/out" 2>"$top/err" || complain "calibrate: AVX2: $(cat "$top/err")"
    cmp -s made.h5 "made 1.h5" || complain "calibrate: AVX2 and AVX-512 give different files"
    rm made.h5
fi
cmp -s "made 1.h5" "made 2.h5" && cmp -s "made 1.h5" "made 3.h5" || complain "calibrate: threads change the file"
left=$(find . -name '.dq-scratch*')
[ -z "$left" ] || complain "calibrate: scratch files are left: $left"

# what a container remembers; its codes are compared with the source by their SQNR
try 0 '"method": "gptq"' info "made 1.h5" --json
try 0 '"file": "text.txt"' info "made 1.h5" --json
try 0 '"arithmetic": "ISA [a-z].*, .*"' info "made 1.h5" --json
try 0 "^made with  *ISA" info "made 1.h5"
try 0 "^  arithmetic  *$(sed -n 's/^made with  *//p' "$top/out")" doctor
try 0 "^method  *gptq, 2100 tokens of text.txt in 21 sequences of at most 100" info "made 1.h5"
try 0 "every dataset and attribute as written, and as the source gives them, except 15 tensors of gptq, compared by SQNR alone" \
    verify "made 1.h5" --source "diff model"
try 4 "made from another checkpoint" verify "made 1.h5" --source "plain model"

# one token for ever teaches nothing, and says so; copies of a window are no spread
awk 'BEGIN { for (i = 0; i < 3000; i++) printf " a" }' >one.txt
try 0 "content SHA-256" "$@" --force --calib one.txt
grep -q "warning: one.txt: repeats itself: of the [0-9]* places of the calibration text at which 16 tokens begin, [1-4] begin some" "$top/err" ||
    complain "quantize: no word about one token for ever: $(cat "$top/err")"
try 0 "KLD (nats)" eval "diff model" made.h5 --text one.txt --ctx 100 --limit 12 --csv one.csv
grep -q "warning: 11 of 12 windows are copies of earlier ones; errors count each once" "$top/err" ||
    complain "eval: no word about copies of a window: $(cat "$top/err")"
[ "$(column one.csv 2 clusters)" = 1 ] && [ -z "$(column one.csv 2 kld_nats_stderr)" ] ||
    complain "eval: copies of a window as $(column one.csv 2 clusters) clusters"
rm made.h5

# better than rounding to nearest on text that it has not seen, the loss of each tensor beside its SQNR
tail -c 20000 text.txt >unseen.txt
try 0 "." quantize "diff model" -o near.h5 --scale search
try 0 "." eval "diff model" near.h5 "made 1.h5" --text unseen.txt --ctx 100 --limit 12 --csv kld.csv
holds "KLD of gptq and of search" "$(column kld.csv 3 kld_nats) < $(column kld.csv 2 kld_nats) / 2"
for form in "--bits 2 --group 50 --scale asym" "--bits 3 --group row" "--bits 8 --group tensor --scale absmax" \
    "--bits 5 --group 7 --scale absmax --scale-dtype f32" "--skip down_proj"; do
    # shellcheck disable=SC2086
    try 0 "content SHA-256" "$@" --force --calib-tokens 300 $form
    try 0 "as the source gives them" verify made.h5 --source "diff model"
done
rm -f made.h5 "made 1.h5" "made 2.h5" "made 3.h5" near.h5 kld.csv

# a text that the model writes, which a size without a text calibrates on: the same for any number of threads, an interrupted run's too
set -- quantize "diff model" --calib-tokens 2100 --calib-ctx 100
try 0 "calibration  *align, 2100 tokens that the model writes in 21 sequences of at most 100" "$@" -o "own 1.h5" --threads 1
try 0 "calibration  *gptq, 2100 tokens that the model writes" "$@" -o own.h5 --bits 3 --method gptq --dry-run
try 0 "no text  *codes are the nearest ones" quantize "diff model" -o own.h5 --bits 4 --dry-run
try 0 "no text  *codes are the nearest ones" quantize "diff model" -o own.h5 --calib none --dry-run
"$dq" "$@" -o own.h5 --threads 3 --calib self --size 4.5 -q >/dev/null 2>&1 &
while kill -0 $! 2>/dev/null && ! grep -qs '"slot"' own.h5.journal; do sleep 0.05; done
kill -INT $! 2>/dev/null || :
wait $! || :
"$dq" "$@" -o own.h5 --threads 3 --calib self --size 4.5 --resume -q >/dev/null 2>"$top/err" || [ -f own.h5 ]
cmp -s own.h5 "own 1.h5" || complain "calibrate: threads, or an interruption, change what a model's own text makes: $(cat "$top/err")"
try 0 "^method  *align, 2100 tokens that the model wrote in 21 sequences" info own.h5
try 0 '"seed": 1' info own.h5 --json
json dq-info/1
try 0 "every dataset and attribute as written" verify own.h5 --source "diff model"
try 0 "." quantize "diff model" -o none.h5 --calib none
try 0 "." eval "diff model" none.h5 own.h5 --text unseen.txt --ctx 100 --limit 12 --csv kld.csv
holds "KLD of a model's own text and of none" "$(column kld.csv 3 kld_nats) < 0.8 * $(column kld.csv 2 kld_nats)"
rm -f own.h5 "own 1.h5" none.h5 kld.csv

# align, which is what a text without a method asks for: the same bytes for any number of threads, nearer than gptq
set -- quantize "diff model" --calib text.txt --calib-tokens 2100 --calib-ctx 100 --bits 3
# the loss is of the source's weights, which align leaves: its down_proj takes back what the stream has lost
loss_of() { sed 's/ *$//' "$top/out" | awk -v name="$1" '$1 == name { print $NF }'; }
try 0 "content SHA-256" "$@" -o gptq.h5 --method gptq --tensors --embed-bits 16
lost=$(loss_of model.layers.0.mlp.down_proj.weight)
try 0 "calibration  *align, 2100 tokens" "$@" -o made.h5 --threads 1 --tensors --embed-bits 16
holds "loss of align against the source's weights" "$(loss_of model.layers.0.mlp.down_proj.weight) > 2 * $lost"
try 0 "^method  *align, 2100 tokens of text.txt" info made.h5
try 0 '"values": "maps"' info made.h5 --json
try 0 '"method": "gptq"' info gptq.h5 --json
! grep -q '"values"' "$top/out" || complain "calibrate: gptq says that values were rounded by maps"
try 0 "." eval "diff model" gptq.h5 made.h5 --text unseen.txt --ctx 100 --limit 12 --csv kld.csv
holds "KLD of align and of gptq" "$(column kld.csv 3 kld_nats) < 0.97 * $(column kld.csv 2 kld_nats)"
try 0 '"method": "align"' info made.h5 --recipe
"$dq" info made.h5 --recipe >recipe.json
try 2 "recipe.json: its method align needs a text" quantize "diff model" -o again.h5 --recipe recipe.json
try 0 "content SHA-256" quantize "diff model" -o again.h5 --recipe recipe.json --calib text.txt --calib-tokens 2100 \
    --calib-ctx 100 --method align --threads 3
cmp -s made.h5 again.h5 || complain "calibrate: threads, or the recipe of a container, change what align makes"
for form in "--bits 2 --group 50 --scale asym" "--bits 8 --group tensor --scale absmax" "--skip v_proj" "--embed-bits 4"; do
    # shellcheck disable=SC2086
    try 0 "content SHA-256" "$@" -o made.h5 --force --calib-tokens 300 $form
    try 0 "as the source gives them" verify made.h5 --source "diff model"
done
rm -f again.h5 kld.csv
# where a norm follows o and down, what they lack is found before it: found after it, align is no better than gptq here
cp -r "$repo/tests/golden/models/gemma3-f32" normed
awk 'BEGIN {
    printf "{\"version\": \"1.0\", \"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
    printf "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"\304\240\": 0, \"\304\212\": 1"
    for (i = 33; i < 127; i++) printf ", \"%s%c\": %d", i == 34 || i == 92 ? "\\" : "", i, i
    print "}}}"
}' >normed/tokenizer.json
for method in gptq align; do
    try 0 "content SHA-256" quantize normed -o "$method of normed.h5" --calib text.txt --calib-tokens 4000 --calib-ctx 100 \
        --bits 3 --group 24 --embed-bits 16 --method "$method"
done
try 0 "." eval normed "gptq of normed.h5" "align of normed.h5" --text unseen.txt --ctx 100 --limit 24 --csv kld.csv
holds "KLD of align and of gptq before a norm" "$(column kld.csv 3 kld_nats) < 0.8 * $(column kld.csv 2 kld_nats)"
rm -rf normed "gptq of normed.h5" "align of normed.h5" kld.csv
# rows that a correction does not fit are said and counted
set -- "$@" --calib-tokens 2100
try 0 '"rows_not_corrected": [1-9]' "$@" -o made.h5 --force --group 7 --scale asym --json
grep -q "warning: [1-9][0-9]* rows* [ai][rs]e* those of the source, .* the first is of model.layers" "$top/err" ||
    complain "calibrate: rows that are not corrected are not mentioned: $(cat "$top/err")"
try 0 '"rows_not_corrected": 0' "$@" -o made.h5 --force --group 7 --scale asym --scale-dtype f32 --json
# too little text: one token for two of 344 inputs
few() { # METHOD
    for n in 172 171; do
        try 0 "." quantize "diff model" --calib text.txt --calib-ctx 100 -o made.h5 --bits 4 --force --dry-run --calib-tokens "$n" --method "$1"
        [ "$(grep -c "warning: text.txt: $n tokens are few for --method $1: with fewer than 0.5 for each of the 344 inputs of the widest product, 172, it may do worse than rounding to nearest without a text. Give more text$" "$top/err")" = $((172 - n)) ] ||
            complain "calibrate: $n tokens for $1: $(cat "$top/err")"
    done
}
few align
few gptq

# matrices that are stored in another type: what comes after them sees that type
try 0 "." export gptq.h5 -o wide --format safetensors --dtype f32
for type in keep bf16; do
    try 0 "." quantize wide -o made.h5 --force --bits 2 --bits-map self_attn=16 --dense-type $type --method gptq \
        --calib text.txt --calib-tokens 300 --calib-ctx 100 --json
    tr -d ' \n' <"$top/out" | tr '{' '\n' | sed -n 's/.*layers.1.mlp.down_proj.*"loss"://p' >"loss of $type"
    [ -s "loss of $type" ] || complain "calibrate: no loss with --dense-type $type"
done
! cmp -s "loss of keep" "loss of bf16" || complain "calibrate: the stream does not see --dense-type"
rm -rf wide made.h5 gptq.h5 "loss of"*
set -- quantize "diff model" -o made.h5 --bits 4 --method gptq --calib text.txt --calib-tokens 300 --calib-ctx 100

# an embedding that is the head too is chosen by the text, for both
try 0 "content SHA-256" "$@" --force --bits 4 --embed-bits 6
try 0 "as the source gives them, except 15 tensors of gptq, compared by SQNR alone" verify made.h5 --source "diff model"
try 0 "^  embedding  *6.125 bits per weight: 6 bits; gptq" info made.h5
rm -f made.h5

# a head of its own: by the method, from inputs after the last layer
untie() { # FROM TO: a copy whose head is a tensor of its own, with the values of the embedding
    cp -r "$1" "$2"
    sed 's/"tie_word_embeddings": *true/"tie_word_embeddings": false/' "$1/config.json" >"$2/config.json"
    from=$1/model.safetensors bytes=$(wc -c <"$1/model.safetensors") n=$(od -An -t u8 -N 8 "$1/model.safetensors")
    embed=$(head -c $((8 + n)) "$from" | tail -c "$((n))" | grep -a -o '"model.embed_tokens.weight": *{[^}]*}')
    at=${embed##*[}
    begin=${at%%,*} end=${at##*,}
    end=${end%%]*} all=$((bytes - 8 - n))
    head=$(printf '%s' "$embed" | sed "s/model.embed_tokens/lm_head/; s/\[$begin, *$((end))\]/[$all,$((all + end - begin))]/")
    rest=$(head -c $((8 + n)) "$from" | tail -c "$((n))")
    text="{$head,${rest#?}" len=0
    len=${#text}
    {
        for i in 0 8 16 24 32 40 48 56; do
            # shellcheck disable=SC2059
            printf "\\$(printf %o $((len >> i & 255)))"
        done
        printf '%s' "$text"
        tail -c $all "$from"
        tail -c +$((8 + n + begin + 1)) "$from" | head -c $((end - begin))
    } >"$2/model.safetensors"
}
untie "diff model" "own head"
set -- quantize "own head" --calib text.txt --calib-tokens 2100 --calib-ctx 100
try 0 "." quantize "own head" -o near.h5 --bits 16 --head-bits 3
try 0 "." "$@" -o made.h5 --bits 16 --head-bits 3
try 0 "." "$@" -o gptq.h5 --bits 16 --head-bits 3 --method gptq
try 0 "." eval "own head" near.h5 gptq.h5 made.h5 --text unseen.txt --ctx 100 --limit 12 --csv kld.csv
for row in 3 4; do
    holds "KLD of a head by the method and by search" "$(column kld.csv $row kld_nats) < $(column kld.csv 2 kld_nats) / 2"
done
# a plan of the head alone: what it measures of a width is what a model with it loses, bit for bit
try 0 '"predicted_kld"' plan weights "own head" --calib text.txt --calib-ctx 100 --calib-tokens 600 --search-tokens 400 --widths 3 \
    --include-embeddings --skip 'proj|embed' --method gptq --budget bpw=4 -o head.json --json
[ "$(tr -d ' \n' <"$top/out" | grep -Eo '("predicted_kld"|"kld":{"value"):[0-9.e-]+' | sed 's/.*://' | head -2 | uniq -c | tr -s ' ' |
    cut -d' ' -f2)" = 2 ] || complain "calibrate: a head's sensitivity is not what its rounding loses"
rm head.json
for n in 1 3; do
    try 0 '"loss"' "$@" -o "made $n.h5" --threads $n --bits 3 --embed-bits 6 --head-bits 5 --json
done
tr -d ' \n' <"$top/out" | grep -q '"name":"lm_head.weight"[^}]*"loss":[0-9]' || complain "calibrate: a head without its loss"
cmp -s "made 1.h5" "made 3.h5" || complain "calibrate: threads change a head"
try 0 "^  head  *5.125 bits per weight: 5 bits; align" info "made 1.h5"
try 0 '"role": "head"' info "made 1.h5" --json
tr -d ' \n' <"$top/out" | grep -q '"role":"head"[^}]*"method":"align"' || complain "calibrate: info of a head: $(cat "$top/out")"
try 0 "as the source gives them, except 15 tensors of align, compared by SQNR alone" verify "made 1.h5" --source "own head"
for form in "--group tensor --scale absmax" "--scale asym --group 7"; do
    # shellcheck disable=SC2086
    try 0 "content SHA-256" "$@" -o made.h5 --force --bits 16 --head-bits 4 --calib-tokens 300 $form
    try 0 ", except 1 tensor of align, compared" verify made.h5 --source "own head"
done
rm -f made.h5 "made 1.h5" "made 3.h5" near.h5 gptq.h5 kld.csv
set -- quantize "diff model" -o made.h5 --bits 4 --method gptq --calib text.txt --calib-tokens 300 --calib-ctx 100

# little text: said, and enough to run
try 0 "content SHA-256" quantize "diff model" -o made.h5 --bits 4 --method gptq --calib few.jsonl
grep -q "warning: few.jsonl: gives [0-9]* tokens in 2 sequences, 16384 were asked for" "$top/err" ||
    complain "calibrate: a short text is not mentioned: $(cat "$top/err")"
try 0 ", 1 token in 1 sequence of at most 2" "$@" --calib-tokens 1 --calib-ctx 2 --force
try 0 ", 1 token of text.txt in 1 sequence of at most 2" info made.h5
rm -f made.h5

# ---- kill -9 at any moment (align: two streams, and a head after them): the rest of the run gives the same bytes
done_lines() { grep -c '"slot"' made.h5.journal 2>/dev/null || true; }
# killed N COMMAND...: starts the run and kills it once N payloads are finished
killed() {
    want=$1
    shift
    "$dq" "$@" --progress never >/dev/null 2>&1 </dev/null &
    child=$!
    while [ "$(done_lines)0" -lt "${want}0" ] && kill -0 $child 2>/dev/null; do sleep 0.01; done
    kill -KILL $child 2>/dev/null
    wait $child 2>/dev/null
    [ -e made.h5.partial ] || complain "calibrate: the run was over before it was killed after payload $want"
}
# as much text as it takes for a run to be killed in time, which is less where everything is slower
tokens=19000
"$dq" doctor | grep -q "sanitizers  *yes" && tokens=1500
set -- quantize "own head" -o made.h5 --calib text.txt --calib-ctx 100 --head-bits 4 --threads 1
try 0 "content SHA-256" "$@" --calib-tokens $tokens
mv made.h5 whole.h5
set -- "$@" --calib-tokens $tokens
killed 1 "$@"
killed 4 "$@" --resume
killed 9 "$@" --resume
killed 18 "$@" --resume
killed 28 "$@" --resume # what is left is the head
try 3 "made.h5.partial: unfinished: .* Finish it with the same dq quantize and --resume" verify made.h5.partial
try 3 "made.h5.partial: unfinished" info made.h5.partial
try 4 "belongs to a run with other inputs or settings (calib.sequences: begun with [0-9]*, this run has 14; calib.tokens: .*has 1400)" \
    "$@" --resume --calib-tokens 1400
try 4 "belongs to a run with other inputs or settings (calib.ctx: begun with 100, this run has 90" "$@" --resume --calib-ctx 90
try 4 'method: begun with "align", this run has "gptq")' "$@" --resume --method gptq
if grep -q avx2 /proc/cpuinfo; then
    export DQ_CPU=scalar
    try 4 'arithmetic: begun with "ISA avx2 or avx512, .*, this run has "ISA scalar, ' "$@" --resume
    unset DQ_CPU
fi
printf ' ' >>text.txt
try 4 "belongs to a run with other inputs or settings" "$@" --resume
cp "$pair/text.txt" text.txt
try 0 "taken over  *[1-9]" "$@" --resume
cmp -s made.h5 whole.h5 || complain "calibrate: killed four times and resumed: other bytes"
absent made.h5.partial made.h5.journal

# Ctrl-C
"$dq" "$@" --force --progress never >/dev/null 2>"$top/err" </dev/null &
child=$!
while [ "$(done_lines)0" -lt 40 ] && kill -0 $child 2>/dev/null; do sleep 0.01; done
kill -TERM $child
wait $child
[ $? -eq 143 ] || complain "calibrate: not interrupted: $(cat "$top/err")"
grep -q "is kept. Run the same command with --resume" "$top/err" || complain "calibrate: $(cat "$top/err")"
try 0 "taken over  *[1-9]" "$@" --resume --force
cmp -s made.h5 whole.h5 || complain "calibrate: interrupted and resumed: other bytes"
left=$(find . -name '.dq-scratch*')
[ -z "$left" ] || complain "calibrate: scratch files are left: $left"

# inputs that are not finite: the product is named. A norm of 3.4e38 makes squares that no f32 holds.
cp -r "plain model" "loud model"
f="loud model/model.safetensors"
head=$(od -An -t u8 -N 8 "$f")
at=$(grep -a -o '"model.layers.1.input_layernorm.weight": *{[^}]*' "$f" | sed 's/.*"data_offsets": *\[\([0-9]*\).*/\1/')
printf '\177\177' | dd of="$f" bs=1 seek=$((head + 8 + at)) conv=notrunc 2>/dev/null
# Going on would end there again: nothing is left. Where the model before rounding runs too, it says whose numbers they are.
for how in "gptq.in the model as rounded so far" "align.with or without rounding"; do
    try 3 "model.layers.1.self_attn.q_proj.weight: its input at position [0-9]* of sequence 0 .* is not finite,* ${how#*.}" \
        quantize "loud model" -o loud.h5 --embed-bits 16 --method "${how%%.*}" --calib text.txt --calib-tokens 500
    grep -q "dq eval MODEL --text FILE says whether" "$top/err" || complain "calibrate: no remedy: $(cat "$top/err")"
    ! grep -q "is kept" "$top/err" || complain "calibrate: cannot go on, but says so: $(cat "$top/err")"
    absent loud.h5 loud.h5.partial loud.h5.journal
done
# an embedding that is the head is rounded before them, by the model before rounding
try 3 "embed_tokens.weight: what the head reads at position [0-9]* of sequence 0 of the calibration text is not finite, before rounding" \
    quantize "loud model" -o loud.h5 --bits 4 --calib text.txt --calib-tokens 500
# v alone: maps multiply a row that is not finite by 0 too, and rows before it are not blamed for that.
set -- quantize "loud model" -o loud.h5 --bits 16 --embed-bits 16 --bits-map v_proj=4 --calib text.txt --calib-tokens 500
try 3 "layers.1.self_attn.q_proj.weight: its input at position [1-9][0-9]* of sequence 0" "$@" --method gptq
absent loud.h5.journal
place=$(grep -o "its input at position [0-9]* of sequence 0" "$top/err")
try 3 "layers.1.self_attn.v_proj.weight: $place .* not finite, with or without rounding" "$@" --method align
absent loud.h5.journal
rm -rf "loud model" "own head"
try 2 "input and output are the same file" quantize "plain model" -o text.txt --method gptq --calib text.txt

# ---- a text that calibrated is no test, nor is a part of it
head -c 30000 "$repo/calib/pair/text.txt" >seen.txt
tail -c 30000 "$repo/calib/pair/text.txt" >unseen.txt
try 0 . quantize "plain model" -o seen.h5 --bits 4 --calib seen.txt
try 0 . eval seen.h5 --text unseen.txt --text seen.txt --ctx 128 --limit 1
grep -q "warning: seen.txt: is the text that calibrated the weights of seen.h5" "$top/err" ||
    complain "calib: no warning of the whole text that calibrated"
head -c 9000 seen.txt >part.txt
try 0 . eval seen.h5 --text part.txt --ctx 128
grep -q "warning: part.txt: has about [0-9.]* % of the text that calibrated the weights of seen.h5" "$top/err" ||
    complain "calib: no warning of 9000 bytes that calibrated"
part="$(head -c 1500 seen.txt | tr '\n"' '  ')" # a choice that begins in the middle of a run of tokens
printf '{"ctx": "%s", "choices": ["%s", "x"], "gold": 0}\n' "${part% ????????????????????*}" "${part##* }" >seen.jsonl
try 0 . eval seen.h5 --task mc --data seen.jsonl
grep -q "warning: seen.jsonl: has about [0-9.]* % of the text that calibrated the weights of seen.h5" "$top/err" ||
    complain "calib: no warning of items of the text that calibrated"
try 0 . eval seen.h5 "plain model" --text unseen.txt --ctx 128
! grep -q "that calibrated" "$top/err" || complain "calib: warns of another text"
rm seen.h5
