# plan_weights.sh: dq plan weights, and that quantize makes what it measured; sourced by run.sh.
cp "$repo/calib/pair/text.txt" text.txt
set -- plan weights "diff model" --calib text.txt --calib-ctx 96 --calib-tokens 500 --search-tokens 400 --widths 2,4 --threads 1

# what is missing or cannot be
try 2 "[-]-calib FILE is missing" plan weights "diff model" --budget kld=0.1 -o r.json
try 2 "[-]-budget is missing" "$@" -o r.json
try 2 "RECIPE.json is missing" "$@" --budget kld=0.1
for b in 0.01 kld kld=0 kld=-1 kld=0.1x ppl=1 ppl=0.9 bpw=0 bpw=inf "kld= 1" size=1TB size=nan size=0x1p20 kl=0.1; do
    try 2 "[-]-budget: expected kld=NATS (above 0), ppl=RATIO (above 1), bpw=BITS or size=BYTES" "$@" -o r.json --budget "$b"
done
try 2 "[-]-budget: 2 bits per weight is less than the least that these widths give, 2.139" "$@" -o r.json --budget bpw=2
try 2 "[-]-budget: 1000 bytes are less than the least that these widths give, about [0-9]*[.]" "$@" -o r.json --budget size=1kB
try 2 "[-]-budget: expected one, found kld=0.1 and bpw=3" "$@" -o r.json --budget kld=0.1 --budget bpw=3
try 2 "[-]-widths" "$@" -o r.json --budget kld=0.1 --widths 2,9
try 2 "[-]-include-embeddings: plans the widths" "$@" -o r.json --budget kld=0.1 --include-embeddings --embed-bits 4
try 2 "[-]-method" "$@" -o r.json --budget kld=0.1 --method nearest
try 4 "no tensor is to be packed" "$@" -o r.json --budget kld=0.1 --skip proj
try 4 "is the text that is calibrated with" "$@" -o r.json --budget kld=0.1 --unseen text.txt
try 6 "gone.txt" "$@" -o r.json --budget kld=0.1 --unseen gone.txt
printf 'a cold hare hears above the field slowly .' >little.txt
try 4 "little.txt: too little text: an error needs 2 documents, or sequences of a single text, and 0 of the 1 in the file, with at most 96 tokens each, came to the search part, which asks for 6144 tokens. Give at least 8 of them, or ask for more" \
    plan weights "diff model" --calib little.txt --calib-ctx 96 --budget kld=0.1 -o r.json
try 4 "and 1 of the 200 in the file, with at most 96 tokens each, came to the search part, which asks for 97 tokens" plan weights "diff model" --calib text.txt --calib-ctx 96 --search-tokens 97 --budget kld=0.1 -o r.json
# of a large text regions are read, of which the file has more than the part asks for
for _ in 1 2 3 4 5 6; do
    cat text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt
done >large.txt
try 4 "large.txt: too little text: an error needs 2 sequences, and 1 of at most 96 tokens came to the search part, which asks for 90 tokens. Ask for more[.]$" \
    plan weights "diff model" --calib large.txt --calib-ctx 96 --calib-tokens 500 --search-tokens 90 --budget kld=0.1 -o r.json
rm large.txt
# copies are not unseen, and count once; text that goes round in circles is told of
head -c 600 "$repo/calib/pair/text.txt" >short.txt
awk '{ for (i = 0; i < 40; i++) printf "{\"text\": \"%s\"}\n", $0 }' short.txt >same.jsonl
awk '{ for (i = 0; i < 40; i++) printf "{\"text\": \"%s%s\"}\n", $0, i % 8 < 4 ? "" : " a bear" }' short.txt >two.jsonl
try 4 "two.jsonl: each of the [0-9]* sequences of the unseen part is a copy of one that is calibrated or searched with, so nothing is unseen. Give text that does not repeat itself, or another unseen text" \
    plan weights "diff model" --calib two.jsonl --calib-ctx 96 --budget kld=0.1 -o r.json
try 4 "same.jsonl: too little text: .*, and 1 of the 40 in the file, with at most 96 tokens each and copies counted once, came to the search part" \
    plan weights "diff model" --calib same.jsonl --calib-ctx 96 --budget kld=0.1 -o r.json --unseen text.txt
awk '{ for (i = 0; i < 60; i++) printf "%s ", $0 }' short.txt >round.txt
try 0 "calibration  *[0-9]* tokens" plan weights "diff model" --calib round.txt --calib-ctx 96 --budget bpw=3 -o r.json --dry-run
grep -q "warning: round.txt: repeats itself: of the [0-9]* places of the unseen text at which 16 tokens begin, " "$top/err" ||
    complain "plan: no word about text that repeats itself: $(cat "$top/err")"
: >little.txt
try 3 "little.txt: holds no text" plan weights "diff model" --calib little.txt --budget kld=0.1 -o r.json
try 0 "content SHA-256" quantize "diff model" -o c.h5 --bits 4
try 4 "container" plan weights c.h5 --calib text.txt --budget kld=0.1 -o r.json
absent r.json r.json.journal

# a dry run says what it would take
try 0 "calibration  *500 tokens in 6 sequences of at most 96, of text.txt: the first and third quarter" "$@" --budget bpw=3 --dry-run
grep -q "^budget  *bpw=3" "$top/out" || complain "plan: no budget in a dry run: $(cat "$top/out")"
try 0 "sensitivities  *14 tensors, each measured on 400 tokens, about [0-9.]* GFLOP" "$@" --budget bpw=3 --dry-run
try 0 "whole models  *at most 1, as there are no other choices of widths" "$@" --widths 4 --budget kld=1 --dry-run
grep -q ", 4[.]1[0-9]* bits per weight" "$top/out" || complain "plan: a range of one width: $(cat "$top/out")"
try 0 "memory  *about [0-9.]* MiB beside mapped files" "$@" --budget bpw=3 --dry-run
grep -q "^time  *about [0-9]* s here, with [0-9]* whole models, and [0-9]* s with all of them; at the [0-9.]* GFLOP/s of a layer" "$top/out" ||
    complain "plan: a dry run without a time: $(cat "$top/out")"
grep -q "5 documents (of a single text, sequences) are few for the unseen part: with fewer than 20" "$top/err" ||
    complain "plan: no word about few documents: $(cat "$top/err")"
printf ' \377' | cat text.txt - >bad.txt
try 0 "unseen  *400 tokens" "$@" --budget bpw=3 --dry-run --unseen bad.txt
grep -q "warning: bad.txt: not UTF-8: 1 ill-formed piece became U+FFFD, the first at byte $(($(wc -c <text.txt) + 1))$" "$top/err" ||
    complain "plan: no word about unseen text that is not UTF-8: $(cat "$top/err")"
# shellcheck disable=SC3045 # dash and bash have it
if (ulimit -v 400000 && "$dq" --version; exit $?) >/dev/null 2>&1; then # KiB; a build with sanitizers cannot begin in so few
    (
        # shellcheck disable=SC3045
        ulimit -v 400000
        "$dq" "$@" --threads 1024 --budget bpw=3 -o r.json >/dev/null 2>"$top/err" # what so many threads need is more
        [ $? -eq 5 ]
    ) || complain "plan: memory that is not there: $(cat "$top/err")"
    grep -q "not enough memory to plan (expected about [0-9.]* MiB, this process can have 390.6 MiB)" "$top/err" ||
        complain "plan: memory that is not there: $(cat "$top/err")"
fi
absent r.json r.json.journal

# products of all four kinds, but not of every layer: what is rounded takes most of the time
set -- "$@" --skip 'layers.0.mlp|up'

# a budget of size: within it, and quantize gives the weights that were measured, however many threads there are
try 0 "budget  *met" "$@" --budget bpw=3 -o r.json --progress always
grep -q "^dq plan weights: sensitivities  *[0-9]* %  *~[0-9:]* s* *left  model" "$top/err" || complain "plan: no time left: $(cat "$top/err")"
grep -q "^dq plan weights: trial of 2[.0-9]* bits per weight  *[0-9]* %  *~" "$top/err" || complain "plan: no time left in a trial: $(cat "$top/err")"
# one measure for all stages: the share done does not fall when a stage ends
tr -d ' %' <"$top/err" | sed -n 's/^dqplan:[a-z]*\(of[0-9.]*bitsperweight\)*\([0-9]*\)~.*/\2/p' | sort -nc ||
    complain "plan: progress falls back: $(cat "$top/err")"
grep -q "budget  *met: 2[.][0-9]* bits per weight of 3$" "$top/out" || complain "plan: no figure beside its budget"
grep -q "against uniform 4 .*, beyond the budget; KLD" "$top/out" || complain "plan: a width beyond the budget as a baseline"
grep -q "^ *4[.]1[0-9]*  *4 " "$top/out" || complain "plan: all tensors at a width are called mixed: $(cat "$top/out")"
grep -q "interim looks  *1" "$top/out" || complain "plan: not one look for a budget of size"
grep -q "against uniform 2 .*(nominally 98.75 %: .*: inconclusive which is closer" "$top/out" || complain "plan: not compared with uniform 2"
absent r.json.journal r.json.trial.h5 r.json.trial.h5.partial
try 6 "exists" "$@" --budget bpw=3 -o r.json
try 6 "r.json: is finished already, and no interrupted run is beside it" "$@" --budget bpw=3 -o r.json --resume
try 0 "as planned  *yes" quantize "diff model" -o planned.h5 --recipe r.json --calib text.txt --threads 2
bits=$(sed -n 's/.*; \([0-9.]*\) in packed tensors.*/\1/p' "$top/out")
holds "bits of a plan" "$bits <= 3 && $bits > 2.5"
try 0 '"as_planned": true' quantize "diff model" -o planned.h5 --recipe r.json --calib text.txt --force --json
json dq-quantize/1
try 0 '"budget": "bpw=3"' info planned.h5 --recipe
try 0 "planned  *for bpw=3, the weights that the plan measured" info planned.h5
try 0 "every dataset and attribute as written" verify planned.h5 --source "diff model"
try 0 "as planned  *no" quantize "diff model" -o planned.h5 --recipe r.json --calib text.txt --force --bits-map q_proj=8
grep -q "warning: planned.h5: other weights than those that the recipe's plan measured" "$top/err" ||
    complain "quantize: other weights than planned, and no warning: $(cat "$top/err")"
if grep -q avx2 /proc/cpuinfo && [ "${DQ_CPU:-}" != scalar ]; then # what such weights depend on is named
    was=${DQ_CPU:-}
    export DQ_CPU=scalar
    try 0 "as planned  *no" quantize "diff model" -o planned.h5 --recipe r.json --calib text.txt --force
    DQ_CPU=$was
    grep -q "program and arithmetic (planned with ISA avx2 or avx512, .*; here: ISA scalar, " "$top/err" ||
        complain "quantize: other arithmetic than planned with, and no word of it: $(cat "$top/err")"
fi
try 0 "planned  *for bpw=3, but other weights than the plan measured" info planned.h5
try 0 '"as_planned": false' info planned.h5 --json
head -c 60000 text.txt >other.txt
try 4 "is not the text that the recipe was planned with" quantize "diff model" -o p.h5 --recipe r.json --calib other.txt
sed 's/"quarters": \[/"quarters": [9,/' r.json >wrong.json
try 3 "wrong.json: \"plan\": \"calib\": key \"quarters\": expected a list of numbers from 0 to 3, found 9" quantize "diff model" -o p.h5 --recipe wrong.json --calib text.txt
try 4 "plain model: is not the model that the recipe was planned for" quantize "plain model" -o p.h5 --recipe r.json --calib text.txt
absent p.h5

# what it says of a text is what dq eval says of it
cut -d' ' -f14401-14900 text.txt >unseen.txt
set -- "$@" --method gptq --skip mlp
try 0 "budget  *met" "$@" --budget bpw=3 -o u.json --unseen unseen.txt --search-tokens 480
kld=$(tr -d ' \n' <u.json | grep -o '"unseen":{"kld":{"value":[^,]*' | head -n 1 | sed 's/.*://')
grep -q "^on unseen text *KLD $(printf '%#.3g' "$kld") ± " "$top/out" || complain "plan: $kld is shown otherwise: $(grep "^on unseen" "$top/out")"
try 0 "as planned  *yes" quantize "diff model" -o u.h5 --recipe u.json --calib text.txt
try 0 kld_nats eval "diff model" u.h5 --text unseen.txt --ctx 96 --threads 1 --json
! grep -q "is the text that calibrated" "$top/err" || complain "plan: its unseen text is said to have calibrated"
same=$(tr -d ' \n' <"$top/out" | grep -o '"kld_nats":{"value":[0-9][^,]*' | head -n 1 | sed 's/.*://')
holds "KLD of a plan and of eval" "$kld - $same < 6e-6 && $same - $kld < 6e-6 && $kld > 0"

# bytes of the whole file, embedding included; what the recipe says of the plan counts, with as many widths as there are
try 0 '"met": true' "$@" --budget size=1150kB --include-embeddings -o w.json --widths 2,3,4,5,6,8 --search-tokens 200 --json
cp "$top/out" w.out
try 0 "as planned  *yes" quantize "diff model" -o w.h5 --recipe w.json --calib text.txt
bytes=$(wc -c <w.h5)
[ "$bytes" -le 1150000 ] || complain "plan: a file of $bytes bytes for a budget of 1150000"
told=$(sed -n 's/.*"container_bytes": \([0-9]*\).*/\1/p' w.out)
[ "$told" = "$bytes" ] || complain "plan: a file of $bytes bytes, told were $told"

# a budget of quality, for four tensors
set -- "$@" --trials 3 --skip 'mlp|layers.0' --method align --calib-ctx 48 --calib-tokens 250 --search-tokens 200
try 0 "budget  *met" "$@" --budget kld=0.001 -o whole.json
grep -q "^on unseen text  *KLD" "$top/out" || complain "plan: nothing of the unseen text"
bits=$(sed -n 's/^chosen *\([0-9.]*\) bits.*/\1/p' "$top/out")
holds "bits for a budget of quality" "$bits > 2.14 && $bits < 4.12"

# threads change nothing; the document, and a page of it
try 0 '"uniform_was_better": false' "$@" --budget kld=0.001 -o threads.json --threads 3 --json
json dq-plan/1
told=$(sed -n 's/.*"container_bytes": \([0-9]*\).*/\1/p' "$top/out")
cmp -s whole.json threads.json || complain "plan: threads change the recipe"
try 0 "as planned  *yes" quantize "diff model" -o threads.h5 --recipe threads.json --calib text.txt
bytes=$(wc -c <threads.h5)
[ "$told" = "$bytes" ] || complain "plan: a container of $bytes bytes, told were $told"

# interrupted, killed while it measures and after its first look, it goes on to the same recipe
lines() { wc -l 2>/dev/null <"$1" || echo 0; }
: >k.json.journal
until_line 3 . TERM "$@" --budget kld=0.001 --force
[ "$ended" -eq 143 ] || complain "plan: not interrupted: $(cat "$top/err")"
grep -q "k.json.journal is kept. Run the same command with --resume" "$top/err" || complain "plan: $(cat "$top/err")"
until_line 7 . KILL "$@" --budget kld=0.001 --resume
until_line 1 '"look"' KILL "$@" --budget kld=0.001 --resume
try 6 "k.json.journal: an interrupted run left it. Add --resume" "$@" --budget kld=0.001 -o k.json
try 4 'belongs to a run with other inputs or settings (recipe.group: begun with "128", this run has "64"' "$@" --budget kld=0.001 -o k.json --resume --group 64
try 4 "belongs to a run with other inputs or settings (search: begun with .* (text.txt); unseen: begun with .* (other.txt))[.]" "$@" --budget kld=0.001 -o k.json --resume --unseen other.txt
mkdir moved
sed 's/the/teh/' text.txt >moved/text.txt
try 4 'belongs to a run with other inputs or settings (calib.sha256: begun with [0-9a-f]*[.]*, this run has [0-9a-f]*[.]* (moved/text.txt)' "$@" --budget kld=0.001 \
    -o k.json --resume --calib moved/text.txt
cp k.json.journal kept.journal
cp k.json.journal j.json.journal
line=$(grep -m 1 '"search":{' kept.journal | cut -c66-)
wrong=$(printf '%s' "$line" | sed 's/"search":{"kld":"[^ "]*/"search":{"kld":"x/')
{
    sed '/"search":{/,$d' kept.journal
    printf '%s %s\n' "$(printf '%s' "$wrong" | sha256sum | cut -c-64)" "$wrong"
} >k.json.journal
try 3 'k.json.journal: "kld" holds what is no number' "$@" --budget kld=0.001 -o k.json --resume
present k.json.journal
mv kept.journal k.json.journal
try 0 "taken over  *[1-9][0-9]* results" "$@" --budget kld=0.001 -o k.json --resume
cmp -s whole.json k.json || complain "plan: killed and resumed: another recipe"
absent k.json.journal k.json.trial.h5 k.json.trial.h5.partial k.json.trial.h5.journal

# looks are counted over runs: a plan that goes on with another budget does not begin at the first
try 0 "interim looks  *1; 1 for other budgets" "$@" --budget kld=0.05 -o j.json --resume
grep -q "^on unseen text .*(nominally 97.5 %" "$top/out" || complain "plan: a second look is as narrow as a first"

# a full disk: what is kept is named, and a run that resumes goes on from it to the same recipe
(
    ulimit -f 1000
    "$dq" "$@" --budget kld=0.001 -o full.json >/dev/null 2>"$top/err" </dev/null
    [ $? -eq 6 ]
) || complain "plan: a full disk: $(cat "$top/err")"
grep -q "full.json.trial.h5.partial: cannot write.*[.] full.json.journal is kept; --resume goes on from it[.]$" "$top/err" ||
    complain "plan: a full disk: $(cat "$top/err")"
try 0 "taken over  *4 results" "$@" --budget kld=0.001 -o full.json --resume
cmp -s whole.json full.json || complain "plan: resumed after a full disk: another recipe"
(
    ulimit -f 1
    "$dq" "$@" --budget kld=0.001 -o full2.json >/dev/null 2>&1 </dev/null
    [ $? -eq 6 ]
) || complain "plan: a full disk at once"
absent full2.json full2.json.journal

# where a trial is written, a file of another's is not replaced, an input never
echo mine >k2.json.trial.h5
try 6 "k2.json.trial.h5: exists, and is where a trial would be written" "$@" --budget kld=0.07 -o k2.json
[ "$(cat k2.json.trial.h5)" = mine ] || complain "plan: replaced another's file"
absent k2.json k2.json.journal
mv k2.json.trial.h5 other.txt && cp text.txt k2.json.trial.h5
try 2 "k2.json.trial.h5" "$@" --budget kld=0.07 -o k2.json --calib k2.json.trial.h5 --force
cmp -s text.txt k2.json.trial.h5 || complain "plan: replaced its text"

# what no width can meet: what came nearest is written, status 7
try 7 "budget ppl=1.00000001: the interim look at the unseen text does not show that it is met, at the most bits that these widths give; the recipe in far.json has what came nearest" \
    "$@" --budget ppl=1.00000001 -o far.json --trials 1 --widths 2
grep -q "^budget  *not met: upper end of the perplexity ratio 1[.0-9]*, at most 1$" "$top/out" || complain "plan: no verdict on stdout: $(cat "$top/out")"
try 0 "as planned  *yes" quantize "diff model" -o far.h5 --recipe far.json --calib text.txt
left=$(find . -name '.dq-scratch*')
[ -z "$left" ] || complain "plan: scratch files are left: $left"
