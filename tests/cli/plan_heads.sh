# plan_heads.sh: dq plan heads, and that its figures are those of dq eval; sourced by run.sh.
cp "$repo/calib/pair/text.txt" text.txt
# questions whose last words, "? NAME", stand in their choices: an answer is predicted after what is evicted
asked() { # asked FILE: on stdout
    sed -e ':a' -e 's/\(? [A-Za-z]*\)\(", "choices": \[.*"\)\([0-9][0-9]*"\)/\1\2\1 \3/;ta' -e 's/ ? [A-Za-z]*", "choices"/", "choices"/' "$1"
}
cp choices.jsonl single.jsonl
asked single.jsonl >choices.jsonl
set -- plan heads "diff model" --kv-keep 0.25 --text text.txt --ctx 128 --limit 6 --search-windows 2 --kv-recent 4 --threads 1

# what is missing or cannot be
try 2 "[-]-text FILE is missing" plan heads "diff model" --kv-keep 0.25 -o r.json
try 2 "RECIPE.json is missing" "$@"
for keep in 0 1 -0.5 2 x; do
    try 2 "[-]-kv-keep" plan heads "diff model" --text text.txt -o r.json --kv-keep $keep
done
try 4 "leaves 20 tokens of contexts of 20 tokens .*there is nothing to share" plan heads "diff model" --kv-keep 0.5 --text text.txt --ctx 40 --kv-recent 16 \
    --kv-sink 4 -o r.json
try 2 "kv-keep SHARE is missing" plan heads "diff model" --text text.txt -o r.json
try 2 "[-]-kv-policy: unknown policy h3o (expected one of streaming" "$@" -o r.json --kv-policy h3o
try 2 "[-]-search-windows 0: heads are found on nothing[.] Give --questions" "$@" -o r.json --search-windows 0
try 2 "[-]-search-items is about --questions, which are not given" "$@" -o r.json --search-items 3
try 2 "[-]-search-items" "$@" -o r.json --questions choices.jsonl --search-items 0
try 6 "gone.jsonl" "$@" -o r.json --questions gone.jsonl
try 3 "short text: .*line 1" "$@" -o r.json --questions "short text"
try 4 "choices.jsonl: has 6 items, and the last 32 are asked[.] Use --search-items 6" "$@" -o r.json --questions choices.jsonl
try 4 "choices.jsonl: the shortest context of these questions has [0-9]* tokens, of which the first 4 and the last 240 always stay: too few" "$@" -o r.json \
    --questions choices.jsonl --search-items 6 --ctx 512 --limit 3 --search-windows 1 --kv-keep 0.99 --kv-recent 240
# with nothing that always stays, and a context of one id, a group's 0 tokens would be no number of tokens
echo '{"ctx": "", "choices": ["cold hare", "red hare"], "gold": 0}' >one.jsonl
try 4 "one.jsonl: the shortest context of these questions has 1 tokens, .* too few are left to cut one group of 4" "$@" -o r.json \
    --questions one.jsonl --search-items 1 --kv-sink 0 --kv-recent 0
# what is predicted before anything is evicted does not depend on the cache
try 4 "single.jsonl: all choices of these questions are a single token, which is predicted before anything is evicted" "$@" -o r.json \
    --questions single.jsonl --search-items 6
{
    sed 3q choices.jsonl
    sed 1q single.jsonl
} >some.jsonl
try 0 "^ask  *the last 4 questions" "$@" --dry-run --questions some.jsonl --search-items 4
try 0 '"dense_type": "f32"' "$@" --dry-run --questions some.jsonl --search-items 4 --json --kv-dense-type f32
grep -q "warning: some.jsonl: 4 of 16 choices are a single token, which is predicted before anything is evicted" "$top/err" ||
    complain "heads plan: no word about choices of one token: $(cat "$top/err")"
grep -q "warning: some.jsonl: contexts have [0-9]* to [0-9]* tokens, .* no group is cut alone" "$top/err" ||
    complain "heads plan: no word about contexts of several lengths: $(cat "$top/err")"
# contexts of one length that fit have no warning; one that is too long has
sed 1q choices.jsonl >one.jsonl
try 0 "^ask  *the last 1 question" "$@" --dry-run --questions one.jsonl --search-items 1
! grep "one.jsonl" "$top/err" || complain "heads plan: a warning of a question that has nothing"
{
    printf '{"ctx": "%s", ' "$(head -c 4000 text.txt | tr -d '"\\\n')"
    sed 's/.*\("choices"\)/\1/' one.jsonl
} >long.jsonl
try 0 "^ask  *the last 1 question" "$@" --dry-run --questions long.jsonl --search-items 1
grep -q "warning: long.jsonl: 1 of 1 questions are longer than the 512 positions of diff model and lost the beginning" "$top/err" ||
    complain "heads plan: no word about a context that is cut: $(cat "$top/err")"
# what the run refuses the dry run refuses
try 4 'plain model: the policy "a2" goes by the second map, and the model has one' plan heads "plain model" --kv-keep 0.25 --text text.txt --ctx 128 --limit 6 \
    --search-windows 2 --kv-recent 4 --kv-policy a2 --dry-run
# what the policy cannot do in such contexts, and heads that unseen windows speak against
try 0 "^plan  *--kv-policy leverage" plan heads "plain model" --kv-policy leverage --kv-keep 0.5 --text text.txt --ctx 48 --limit 5 --search-windows 2 --kv-recent 2 --kv-sink 2 -o flat.json
grep -q "warning: text.txt, KV 16:16 bf16 leverage 0.5: leverage tells tokens apart only where" "$top/err" ||
    complain "heads plan: no word about contexts of few tokens: $(cat "$top/err")"
try 0 "the uniform share is closer" plan heads "diff model" --kv-keep 0.25 --text text.txt --ctx 128 --limit 24 --search-windows 1 --kv-recent 4 -o worse.json
grep -q "warning: worse.json: on windows that no choice has seen the same share in every group loses less than these heads" "$top/err" ||
    complain "heads plan: no word about heads that lose more: $(cat "$top/err")"
rm flat.json worse.json
try 2 "input and output are the same file" "$@" -o choices.jsonl --questions choices.jsonl --force
try 2 "[-]-trials 1025: expected 2 to 1024 of heads" "$@" -o r.json --trials 1025
try 2 "[-]-trials 1: expected 2 to 1024 of heads" "$@" -o r.json --trials 1
for o in "--kv-quant per-channel" "--kv-layers 2" "--widths 4,8" "--budget kld=1"; do
    # shellcheck disable=SC2086 # an option and its value
    try 2 "unknown option ${o%% *}.*See dq plan heads --help" "$@" -o r.json $o
done
for o in "--kv-policy h2o" "--search-windows 3" "--questions choices.jsonl"; do
    # shellcheck disable=SC2086
    try 2 "unknown option ${o%% *}.*See dq plan kv --help" plan kv "diff model" --kv-bits 4 --text text.txt -o r.json $o
done
try 4 "has 512 positions, windows of 513 tokens are more[.] Use --ctx 512" "$@" -o r.json --ctx 513
try 4 "a share of 0.1 leaves 8 tokens of contexts of 64 tokens .*the first 4 and the last 4 always stay: there is nothing to share" "$@" \
    -o r.json --kv-keep 0.1
try 4 "a share of 0.25 leaves 64 tokens of contexts of 64 tokens .*the first 4 and the last 90 always stay" "$@" -o r.json --kv-recent 90
head -c 1500 text.txt >little.txt
try 2 "[-]-limit 3: expected at least 8 windows with --search-windows 6, of which the first 6 find heads and the others decide" "$@" -o r.json \
    --limit 3 --search-windows 6
try 2 "[-]-limit 6: expected at least 7 windows with --search-windows 5" "$@" --dry-run --search-windows 5
try 2 "[-]-limit 30: expected at least 31 windows with --search-windows 29" plan heads "diff model" --kv-keep 0.25 --text text.txt --ctx 128 --search-windows 29 --dry-run
# windows that decide lie in one document of two
{
    head -c 700 text.txt
    echo
    head -c 4000 text.txt | tail -c 3000
    echo
} | sed 's/.*/{"text": "&"}/' >two.jsonl
try 4 "two.jsonl: too little text: an interval needs 2 documents, and the [0-9]* windows of 128 tokens that decide lie in one of 2" "$@" \
    --dry-run --text two.jsonl --limit 6 --search-windows 3
try 4 "little.txt: too little text: 2 windows of 128 tokens (expected at least 5, of which the first 3 find heads" "$@" -o r.json \
    --text little.txt --search-windows 3
printf 'a cold hare hears' >little.txt
try 4 "little.txt: too little text: 0 windows" "$@" -o r.json --text little.txt
try 3 "empty: the text is empty" "$@" -o r.json --text empty
try 6 "gone.txt" "$@" -o r.json --text gone.txt
try 2 "input and output are the same file" "$@" -o text.txt --force
echo '{"schema": "dq-recipe/1", "bit": 4}' >w.json
try 3 'w.json: .*"bit"' "$@" -o r.json --onto w.json
cp w.json r.json.journal
try 2 "r.json.journal: input and output are the same file" "$@" -o r.json --onto r.json.journal --force
rm r.json.journal
absent r.json r.json.journal

# a dry run says what it would take: 4 groups, 2 of 6 windows find
try 0 "^alone  *4 caches, a group without its context and the others with all: 1024 tokens" "$@" --dry-run
grep -q "^share  *at most 4 caches, so many groups sharing: 1024 tokens" "$top/out" || complain "heads plan: work: $(cat "$top/out")"
grep -q "^find  *windows 1 to 2; the other 4 decide" "$top/out" || complain "heads plan: windows: $(cat "$top/out")"
grep -q "^groups  *4 of KV heads: 2 layers of 2" "$top/out" || complain "heads plan: groups: $(cat "$top/out")"
grep -q "warning: text.txt: 4 unseen windows are few: with fewer than 20" "$top/err" || complain "heads plan: no word about few windows"
try 0 '"caches_alone": 4' "$@" --dry-run --json
json dq-plan/1
cp "$top/out" dry.json
try 4 "dry.json: results.0.: a plan of --dry-run, which measures nothing" report dry.json -o gone.html
absent gone.html
grep -q '"caches_sharing_at_most": 3' "$top/out" && complain "heads plan: another number of caches"
try 0 '"caches_sharing_at_most": 3' "$@" --dry-run --json --trials 3
absent r.json r.json.journal

# the plan: threads change nothing
try 0 '"baselines": ' "$@" -o r.json --json --progress always
cp "$top/out" doc.json
json dq-plan/1
for key in layer group alone shares sharing taken kld_nats ln_ppl_ratio clusters kld_interval outside search_windows context results_taken_over; do
    grep -q "\"$key\": " doc.json || complain "heads plan: no \"$key\" in the document"
done
grep -q "^dq plan heads: groups alone  *[0-9]* %  *~[0-9:]* s* *left  alone" "$top/err" || complain "heads plan: no time left: $(cat "$top/err")"
heads=$(sed -n 's/.*"heads": "\([^"]*\)".*/\1/p' r.json)
try 0 "^plan  *--kv-policy keydiff --kv-keep 0.25 --kv-sink 4 --kv-recent 4 --kv-budget heads --kv-heads $heads$" "$@" -o t.json --threads 2
cmp -s r.json t.json || complain "heads plan: threads change the recipe"
cp "$top/out" table
try 0 "." "$@" -o t.json --force
cmp -s table "$top/out" || complain "heads plan: threads change the table"

# edited documents
sed 's/"shares"/"share"/' doc.json >bad.json
try 3 'bad.json: results.0..units.0.: "shares" is missing' report bad.json -o gone.html
sed 's,dq-plan/1,dq-plan/2,' doc.json >bad.json
try 4 "bad.json: a document of another version (expected dq-plan/1" report bad.json -o gone.html
sed '/"units": /,$d' doc.json >bad.json
try 3 "bad.json: not valid JSON" report bad.json -o gone.html
absent gone.html

# its figures are those of dq eval on the same windows: 1 and 2 find, 3 to 6 decide
order=$(printf %s "$heads" | tr / , | sed 's/,$//')
tr -d ' \n' <doc.json | grep -o '"layer":[0-9]*,"group":[0-9]*' | tr -dc '0-9,\n' | tr ',\n' '.,' | sed 's/,$//' >"$top/a"
[ "$(cat "$top/a")" = "$order" ] || complain "heads plan: groups of the document in the order $(cat "$top/a"), of the recipe in $order"
mean_of() { # mean_of FIELD WINDOW... OPTION...: of one cache over windows, from 1
    field=$1 windows=$2
    shift 2
    "$dq" eval "diff model" --text text.txt --ctx 128 --limit 6 --kv-policy keydiff --kv-recent 4 "$@" --dump-items items.jsonl --threads 1 -q \
        >/dev/null 2>"$top/err" || complain "heads plan: dq eval $*: $(cat "$top/err")"
    grep '"policy": "keydiff"' items.jsonl | sed -n "s/.*\"$field\": \([-0-9.e]*\).*/\1/p" |
        awk -v windows="$windows" 'BEGIN { n = split(windows, w, " ") } { x[NR] = $1 } END { for (i = 1; i <= n; i++) s += x[w[i]]; printf "%.9e", s / n }'
    rm items.jsonl
}
same() { # same WHAT NUMBER NUMBER
    holds "$1" "$2 - $3 < 1e-9 + 1e-6 * $3 && $3 - $2 < 1e-9 + 1e-6 * $3 && $3 != 0"
}
numbers() { # numbers PATTERN: after each match in the document without white space
    tr -d ' \n' <doc.json | grep -o -e "$1[-0-9.e]*" | sed 's/.*://'
}
# a group alone: 8 tokens always stay, so 8 + 3 * 56 / 4 a group are whole contexts of the other three
for place in 1 4; do
    cut=$(printf %s "$order" | tr , '\n' | sed -n ${place}p)
    others=$(printf %s "$order" | tr , '\n' | grep -v "^$cut$" | sort | tr '\n' , | sed 's/,$//')
    same "KLD without $cut" "$(numbers '"alone":{"kld_nats":{"value":' | sed -n ${place}p)" \
        "$(mean_of kld_nats "1 2" --kv-tokens 50 --kv-budget heads --kv-heads "$others/$cut")"
done
least=
for n in 1 2 3 4; do
    text=$(printf %s "$order" | sed "s/,/\//$n")
    [ $n -lt 4 ] || text=$order/
    lost=$(mean_of kld_nats "1 2" --kv-keep 0.25 --kv-budget heads --kv-heads "$text")
    same "KLD where $n share" "$(numbers "\"sharing\":$n,\"kld_nats\":")" "$lost"
    if [ -z "$least" ] || awk "BEGIN { exit !($lost < $least) }"; then least=$lost best=$text; fi
done
[ "$best" = "$heads" ] || complain "heads plan: $best loses least, $heads is taken"
same "KLD of the plan in the search" "$(numbers '"search":{"kld_nats":')" "$least"
mine=$(mean_of kld_nats "3 4 5 6" --kv-keep 0.25 --kv-budget heads --kv-heads "$heads")
usual=$(mean_of kld_nats "3 4 5 6" --kv-keep 0.25)
same "KLD of the plan" "$(numbers '"unseen":{"kld_nats":{"value":' | sed -n 1p)" "$mine"
same "KLD of uniform" "$(numbers '"baselines":[[]{"unseen":{"kld_nats":{"value":')" "$usual"
holds "heads less uniform" "($(numbers '"plan_less_it":{"kld_nats":{"value":') - ($mine - $usual)) ^ 2 < 1e-16"
grep -q "^against uniform  *KLD " table || complain "heads plan: not compared with uniform: $(cat table)"
grep -q "^  *KLD of the plan less its own .* (nominally 97.5 %: .*): \(the plan is closer\|inconclusive\|the uniform\)" table ||
    complain "heads plan: no interval beside uniform: $(cat table)"
tr -d ' \n' <doc.json | grep -q '"outside":0.025' || complain "heads plan: another level in the document"

# questions count beside windows, or alone: threads change nothing
set -- "$@" --questions choices.jsonl --search-items 5
try 0 "^ask  *the last 5 questions of choices.jsonl, .* counts beside the KLD" "$@" --dry-run
ids=$(sed -n 's/^share .* sharing: \([0-9]*\) tokens.*/\1/p' "$top/out")
holds "ids of questions count in a dry run" "$ids > 1024 + 4 * 5 * 20"
try 0 "^KLD + answers  *1: " "$@" -o asked.json
cp "$top/out" table
try 0 "." "$@" -o asked.json --force --threads 2
cmp -s table "$top/out" || complain "heads plan: threads change the table of questions"
try 0 '"lack_nats": [0-9]' "$@" -o asked.json --force --json
cp "$top/out" asked.doc
json dq-plan/1
grep -q "choices.jsonl" "$top/out" || complain "heads plan: no questions among the inputs"
cp asked.doc doc.json
# as dq eval has the answers: mean of ln of all choices' probability less the right one's, of the last 5 of 6 questions
lack_of() { # lack_of OPTION...: of one cache
    "$dq" eval "diff model" --task mc --data last.jsonl --kv-policy keydiff --kv-recent 4 "$@" --dump-items items.jsonl --threads 1 -q >/dev/null \
        2>"$top/err" || complain "heads plan: dq eval of questions: $*: $(cat "$top/err")"
    grep '"policy": "keydiff"' items.jsonl | sed -n 's/.*"item": \([0-9]*\), "choice": \([0-9]*\),.*"ll": \([-0-9.e]*\),.*"gold": \([0-9]*\).*/\1 \2 \3 \4/p' |
        awk '{ sum[$1] += exp($3) } $2 == $4 { right[$1] = $3 } END { for (i in sum) { n++; s += log(sum[i]) - right[i] } printf "%.9e", s / n }'
    rm items.jsonl
}
tail -n 5 choices.jsonl >last.jsonl
order=$(tr -d ' \n' <doc.json | grep -o '"layer":[0-9]*,"group":[0-9]*' | tr -dc '0-9,\n' | tr ',\n' '.,' | sed 's/,$//')
last=
for n in 1 2 3 4; do
    text=$(printf %s "$order" | sed "s/,/\//$n")
    [ $n -lt 4 ] || text=$order/
    lack=$(lack_of --kv-keep 0.25 --kv-budget heads --kv-heads "$text")
    same "what answers lack where $n share" "$(numbers "\"sharing\":$n,\"kld_nats\":[-0-9.e]*,\"lack_nats\":")" "$lack"
    [ "$lack" != "$last" ] || complain "heads plan: answers lack $lack in two caches"
    last=$lack
done
try 0 "^answers lack  *1: " "$@" -o alone.json --search-windows 0 --limit 4
grep -q "counts; all windows decide" "$top/out" || complain "heads plan: questions alone: $(cat "$top/out")"
try 0 '"search_windows": null' "$@" -o alone.json --search-windows 0 --limit 4 --json --force
errors_of() { # of what answers lack, with ten digits
    tr -d ' \n' <"$top/out" | grep -o '"lack_nats":{[^}]*}' | sed 's/.*"value":\([^,]*\),"stderr":\([^}]*\)}/\1 \2/' |
        awk '{ printf "%.10g %.10g\n", $1, $2 }'
}
sed 's/"ctx": *"[^"]*/& /' choices.jsonl >spaces.jsonl
try 0 . "$@" --questions spaces.jsonl --search-items 5 --dry-run
grep -q "spaces.jsonl: .* white space meets white space in 5 items" "$top/err" || complain "heads plan: no warning of two spaces"
cat choices.jsonl choices.jsonl >copies.jsonl
set -- plan heads "diff model" --kv-keep 0.25 --text text.txt --ctx 128 --limit 6 --search-windows 2 --kv-recent 4 --threads 1
try 0 lack_nats "$@" --questions copies.jsonl --search-items 12 -o once.json --json
errors_of >copies
try 0 lack_nats "$@" --questions choices.jsonl --search-items 6 -o once.json --force --json
errors_of >once
{ [ -s once ] && cmp -s once copies; } || complain "heads plan: copies of questions count: $(cat once copies)"

# where all groups share the budget is the uniform one, and nothing is compared
try 0 "^against uniform  *the plan is this one: all groups share" "$@" --kv-keep 0.9 --kv-recent 0 --kv-sink 0 -o all.json
grep -q '"heads": "[0-9.,]*/"' all.json || complain "heads plan: not all share: $(cat all.json)"
cp "$top/out" table
try 0 '"baselines": [[]]' "$@" --kv-keep 0.9 --kv-recent 0 --kv-sink 0 -o all.json --force --json
cp "$top/out" all.doc
# some numbers of many groups, another policy, a plain model
try 0 "^KLD by number  *1: [-.0-9e]*, 3: [-.0-9e]*, 8: [-.0-9e]*$" plan heads "plain model" --kv-keep 0.25 --text text.txt --ctx 128 --limit 4 --search-windows 1 \
    --kv-recent 4 --kv-policy h2o --trials 3 -o p.json
grep -q '"policy": "h2o"' p.json || complain "heads plan: another policy in $(cat p.json)"

# the recipe is one: a container has the heads, beside what a recipe of weights, or of the cache's widths, says
try 0 "content SHA-256" quantize "diff model" -o heads.h5 --recipe r.json
try 0 "\"heads\": \"$heads\"" info heads.h5 --recipe
echo '{"schema": "dq-recipe/1", "bits": 5, "kv": {"widths": "3|5+3:3|6", "quant": "dither", "recent": 64, "policy": "h2o", "tokens": 99, "every": 7,
    "rotate": "off", "window": 5}, "comment": "mine"}' >w.json
try 0 "^recipe  *both.json" "$@" -o both.json --onto w.json
for part in '"bits": 5' '"widths": "3|5+3:3|6"' '"quant": "dither"' "\"heads\": \"$heads\"" '"recent": 4' '"policy": "keydiff"' '"comment": "mine"'; do
    grep -q -e "$part" both.json || complain "heads plan: no $part in $(cat both.json)"
done
for part in tokens every window; do
    ! grep -q "\"$part\"" both.json || complain "heads plan: $part of another plan in $(cat both.json)"
done
for part in "has rotate off: the plan is measured with auto" \
    'has policy "h2o", tokens 99, every 7, window 5 of its own, which the recipe does not keep: the plan has policy keydiff, keep 0.25 and' \
    "its cache holds codes: the plan is measured with 16 bits" "has recent 64, which becomes 4, as the plan is measured[.] Or give --kv-recent"; do
    grep -q "warning: w.json: $part" "$top/err" || complain "heads plan: no warning of $part: $(cat "$top/err")"
done
try 0 "content SHA-256" quantize "diff model" -o both.h5 --recipe both.json
# and the plan of widths keeps the heads
try 0 "^recipe  *widths.json" plan kv "diff model" --kv-bits 4 --text text.txt --ctx 128 --limit 5 --kv-recent 16 --widths 2,4,8 -o widths.json --onto r.json
grep -q "\"heads\": \"$heads\"" widths.json || complain "kv plan: heads are gone: $(cat widths.json)"
# a container is planned for too
try 0 "^plan " plan heads heads.h5 --kv-keep 0.25 --text text.txt --ctx 128 --limit 4 --search-windows 1 --kv-recent 4 -o h5.json
# a recipe that is finished stays where what is said of it does not come out
stays_when_full "$@"
stays_when_full "$@" --json

# interrupted, a run that resumes takes over what is there, to the same recipe, or for another share
try 6 "exists" "$@" -o r.json
try 6 "r.json: is finished already, and no interrupted run is beside it" "$@" -o r.json --resume
: >k.json.journal
set -- "$@" --ctx 512 --limit 24 --search-windows 20
try 0 "." "$@" -o whole.json
cp "$top/out" table
until_line 3 . TERM "$@" --force
[ "$ended" -eq 143 ] || complain "heads plan: not interrupted: $(cat "$top/err")"
grep -q "k.json.journal is kept. Run the same command with --resume" "$top/err" || complain "heads plan: $(cat "$top/err")"
until_line 12 . KILL "$@" --resume
try 6 "k.json.journal: an interrupted run left it. Add --resume" "$@" -o k.json
try 4 "belongs to a run with other inputs or settings (recent: begun with 4, this run has 5" "$@" -o k.json --resume --kv-recent 5
try 4 'belongs to a run with other inputs or settings (policy: begun with "keydiff", this run has "knorm"' "$@" -o k.json --resume --kv-policy knorm
cp k.json.journal kept.journal
line=$(sed -n 2p kept.journal | cut -c66-)
changed 's/"kld":"[^ "]*/"kld":"x/'
try 3 'k.json.journal: "kld" holds what is no number' "$@" -o k.json --resume
present k.json.journal
for w in "keep 0.25 heads 1.0" "keep 0.250" "keep 1" "keep 0" "tokens 0" "tokens 3.5" "tokens 50 heads " "tokens 50 heads 0.0,0.1,1.0,1.1/0.0" \
    "keep 0.25 role 0.0,0.1,1.0,1.1" "8:4"; do
    changed "s/\"cache\":\"[^\"]*/\"cache\":\"$(printf %s "$w" | sed 's/[/]/\\&/g')/"
    try 3 'k.json.journal: "cache" .* are not as a plan writes them' "$@" -o k.json --resume
done
resumed "and answers of caches" "$@"
cp kept.journal k5.json.journal
try 0 "^taken over  *[1-9][0-9]* windows and answers of caches" "$@" --kv-keep 0.5 -o k5.json --resume
grep -q '"keep": 0.5' k5.json || complain "heads plan: resumed for another share: $(cat k5.json)"

# the same with questions
asked "$repo/calib/pair/choices.jsonl" >questions.jsonl
set -- "$@" --questions questions.jsonl --search-items 24
rm k.json
try 0 "." "$@" -o whole.json --force
cp "$top/out" table
: >k.json.journal
until_line 2 '"lack"' KILL "$@" --force
sed 6q questions.jsonl >fewer.jsonl
try 4 "belongs to a run with other inputs or settings (questions: begun with .* (fewer.jsonl)" "$@" -o k.json --resume --search-items 6 --questions fewer.jsonl
cp k.json.journal kept.journal
# shellcheck disable=SC2034 # for changed
line=$(grep '"lack"' kept.journal | sed -n 1p | cut -c66-)
changed 's/"lack":"[^ "]*/"lack":"x/'
try 3 'k.json.journal: "lack" holds what is no number' "$@" -o k.json --resume
changed 's/"question":0/"question":24/'
try 3 'k.json.journal: .*"question"' "$@" -o k.json --resume
resumed "and answers of caches" "$@"
