# plan_kv.sh: dq plan kv, and that its figures are those of dq eval; sourced by run.sh.
cp "$repo/calib/pair/text.txt" text.txt
set -- plan kv "diff model" --kv-bits 4 --text text.txt --ctx 128 --limit 5 --kv-recent 16 --widths 2,4,8 --threads 1

# what is missing or cannot be
try 2 "[-]-text FILE is missing" plan kv "diff model" --kv-bits 4 -o r.json
try 2 "RECIPE.json is missing" "$@"
try 2 "[-]-kv-bits" plan kv "diff model" --kv-bits 9 --text text.txt -o r.json
try 2 "[-]-kv-bits 3: is out of reach of the widths (expected a mean of 4 to 8)" "$@" -o r.json --kv-bits 3 --widths 4,8
try 2 "[-]-kv-bits 8: is out of reach of the widths (expected a mean of 2 to 4)" "$@" -o r.json --kv-bits 8 --widths 4,2
try 2 "[-]-widths 4,7: 7 bits are not offered for a cache" "$@" -o r.json --widths 4,7
try 2 "[-]-widths" "$@" -o r.json --widths 2,9
try 2 "[-]-kv-quant per-token: its widths are the same for all layers and maps, so there is nothing to plan[.] Use mixed, per-channel or dither" \
    "$@" -o r.json --kv-quant per-token
for o in pages auto; do
    try 2 "[-]-kv-quant: expected one of dither, per-channel, mixed; found \"$o\"" "$@" -o r.json --kv-quant $o
done
try 2 "[-]-limit 4: expected at least 5 windows" "$@" -o r.json --limit 4
try 2 "[-]-trials 2: expected at least 3 of a cache" "$@" -o r.json --trials 2
for o in "--budget kld=1" "--calib text.txt" "--unseen text.txt" "--calib-tokens 500" "--calib-ctx 64" "--search-tokens 99" --include-embeddings \
    "--method gptq" "--group 64" "--scale search" "--scale-dtype f16" "--embed-bits 8" "--head-bits 8" "--dense-type bf16" "--skip up"; do
    # shellcheck disable=SC2086 # an option and its value
    try 2 "unknown option ${o%% *}.*See dq plan kv --help" "$@" -o r.json $o
done
for o in "--text text.txt" "--ctx 64" "--limit 9" "--kv-recent 0" "--onto w.json" "--device cpu" "--kv-quant per-channel" "--search-windows 1"; do
    # shellcheck disable=SC2086
    try 2 "unknown option ${o%% *}.*See dq plan weights --help" plan weights "diff model" --calib text.txt --budget kld=1 -o r.json $o
done
try 2 "kv-bits BITS is missing" plan kv "diff model" --text text.txt -o r.json
try 2 "[-]-trials: expected a whole number from 1 to 40" plan weights "diff model" --calib text.txt --budget kld=1 -o r.json --trials 41
try 4 "has 512 positions, windows of 513 tokens are more[.] Use --ctx 512" "$@" -o r.json --ctx 513
try 4 "windows of 64 tokens with the last 16 and the first 4 unquantized hold no page of codes" "$@" -o r.json --ctx 64
head -c 1500 text.txt >little.txt
try 4 "little.txt: too little text: [0-4] windows of 128 tokens (expected at least 5, of which two fifths search" "$@" -o r.json --text little.txt
printf 'a cold hare hears' >little.txt
try 4 "little.txt: too little text: 0 windows" "$@" -o r.json --text little.txt
cp -r "diff model" "odd model"
sed 's/: 502$/: 5020/' "diff model/tokenizer.json" >"odd model/tokenizer.json"
try 4 "text.txt: .*5020" plan kv "odd model" --kv-bits 4 --text text.txt --ctx 128 --kv-recent 16 -o r.json
! grep -q "too little" "$top/err" || complain "kv plan: a tokenizer that does not fit: $(cat "$top/err")"
try 3 "empty: the text is empty" "$@" -o r.json --text empty
try 6 "gone.txt" "$@" -o r.json --text gone.txt
try 2 "input and output are the same file" "$@" -o text.txt --force
echo '{"schema": "dq-recipe/1", "bit": 4}' >w.json
try 3 'w.json: .*"bit"' "$@" -o r.json --onto w.json
# nor is what the journal would replace an input, of weights either
cp text.txt r.json.journal
try 2 "r.json.journal: input and output are the same file" "$@" -o r.json --text r.json.journal --force
try 2 "r.json.journal: input and output are the same file" "$@" -o r.json --text r.json.journal --resume
try 2 "r.json.journal: input and output are the same file" plan weights "diff model" --calib r.json.journal --budget bpw=3 -o r.json --force
try 2 "r.json.journal: input and output are the same file" plan weights "diff model" --calib text.txt --unseen r.json.journal --budget bpw=3 -o r.json --force
cmp -s text.txt r.json.journal || complain "plan: a journal in the place of a text"
cp w.json r.json.journal
try 2 "r.json.journal: input and output are the same file" "$@" -o r.json --onto r.json.journal --force
cmp -s w.json r.json.journal || complain "plan: a journal in the place of a recipe"
rm r.json.journal
ln -s "diff model/config.json" r.json.journal
try 2 "would overwrite a file of the input diff model" "$@" -o r.json --force
rm r.json.journal
echo '{"schema": "dq-recipe/1", "kv": {"k_bits": 8, "v_bits": 8, "recent": 8, "policy": "keydiff", "tokens": 40}}' >w.json
try 3 'w.json: with the cache that is planned: "kv": KV settings: tokens 40 is less than sink 4 and recent 64 together' "$@" -o r.json --ctx 512 \
    --onto w.json --kv-recent 64
absent r.json r.json.journal

# where the journal belongs can be what holds none, in every plan and whatever is asked for
for kind in mkdir mkfifo; do
    $kind r.json.journal
    for o in "" --resume --force "--dry-run"; do
        # shellcheck disable=SC2086 # an option, or none
        try 6 "r.json.journal: is not a regular file, .*[.] Move it away, or choose another name for the output[.]\$" "$@" -o r.json $o
    done
    try 6 "r.json.journal: is not a regular file" plan weights "diff model" --calib text.txt --budget bpw=3 -o r.json --resume
    try 6 "r.json.journal: is not a regular file" plan heads "diff model" --kv-keep 0.5 --text text.txt -o r.json --resume
    [ ! -f r.json.journal ] && [ -e r.json.journal ] || complain "kv plan: a $kind in the journal's place went away"
    rm -r r.json.journal
done
absent r.json

# a dry run says what it would take: 6 units, 2 of 5 windows search
try 0 "^alone  *13 caches, a unit at a width and the others at 8 bits: 3328 tokens" "$@" --dry-run
grep -q "^whole  *at most 200 caches in the search: 51200 tokens" "$top/out" || complain "kv plan: work: $(cat "$top/out")"
grep -q "^search  *windows 2 to 3; the other 3 decide" "$top/out" || complain "kv plan: windows: $(cat "$top/out")"
grep -q "warning: text.txt: 3 unseen windows are few: with fewer than 20" "$top/err" || complain "kv plan: no word about few windows"
try 0 "^time  *about [0-9.]* [smh].* to [0-9.]* [smh].* here, at the [0-9.e+]* tokens a second" "$@" --dry-run
try 0 '"caches_alone": 13' "$@" --dry-run --json
for type in f32 f16 bf16; do # what f16 does not hold can be planned in another type
    try 0 '"dense_type": "'$type'"' "$@" --dry-run --json --kv-dense-type $type
done
json dq-plan/1
cp "$top/out" dry.json
try 4 "dry.json: results.0.: a plan of --dry-run, which measures nothing" report dry.json -o gone.html
absent gone.html
try 0 "^units  *3: keys by map and values of 2 layers, 2 together" "$@" --dry-run --kv-layers 2
try 0 "^units  *4: keys and values of 2 layers, each with 2,4,8 bits" plan kv "plain model" --kv-bits 4 --text text.txt --ctx 128 --kv-recent 16 --widths 8,2,4 --dry-run

# the plan: threads change nothing
try 0 '"baselines": ' "$@" -o r.json --json --progress always
cp "$top/out" doc.json
json dq-plan/1
for key in side layers map alone kld_nats ln_ppl_ratio clusters kld_interval outside mean_bits search_windows reads_coded taken; do
    grep -q "\"$key\": " doc.json || complain "kv plan: no \"$key\" in the document"
done
grep -q "^dq plan kv: units alone  *[0-9]* %  *~[0-9:]* s* *left  alone" "$top/err" || complain "kv plan: no time left: $(cat "$top/err")"
widths=$(sed -n 's/.*"widths": "\([^"]*\)".*/\1/p' r.json)
try 0 "^plan  *--kv-quant dither --kv-recent 16 --kv-sink 4 --kv-bits '$widths'" "$@" -o t.json --threads 2
cmp -s r.json t.json || complain "kv plan: threads change the recipe"
cp "$top/out" table
try 0 "." "$@" -o t.json --force
cmp -s table "$top/out" || complain "kv plan: threads change the table"
grep -q "^against 4:4  *4 bits; KLD .*" table || complain "kv plan: not compared with 4:4: $(cat table)"
decided() { # decided MEMBER LESS MORE OPEN: the words by where this interval of the plan less the uniform width lies in doc.json
    tr -d ' \n' <doc.json | sed -n "s/.*\"plan_less_it\":{.*\"$1\":\[\([^]]*\)\].*/\1/p" |
        awk -F , -v less="$2" -v more="$3" -v open="$4" 'NF == 2 { print ($2 < 0 ? less : ($1 > 0 ? more : open)) }'
}
words=$(decided kld_interval "the plan is closer" "the uniform width is closer" "inconclusive which is closer")
grep -q "^  *KLD of the plan less its own .* (nominally 97.5 %: .*): ${words:-none}\$" table ||
    complain "kv plan: the interval beside 4:4 says \"$words\": $(cat table)"
words=$(decided ln_ppl_interval "the plan loses less" "the uniform width loses less" "inconclusive which loses less")
grep -q "^  *perplexity .* (nominally 97.5 %: .*): ${words:-none}\$" table ||
    complain "kv plan: the perplexity beside 4:4 says \"$words\": $(cat table)"
tr -d ' \n' <doc.json | grep -q '"search_windows":\[2,3\]' || complain "kv plan: other search windows in the document than in the table"
tr -d ' \n' <doc.json | grep -q '"outside":0.025' || complain "kv plan: another level in the document"
# the page of it says what the table says
sed 's/"plan_less_it"/"plan_less"/' doc.json >bad.json
try 3 'bad.json: results.0..baselines.0.: "plan_less_it" is missing' report bad.json -o gone.html
sed '/"alone": /,$d' doc.json >bad.json
try 3 "bad.json: not valid JSON" report bad.json -o gone.html
absent gone.html
# windows of one document have no error between documents
{
    head -c 700 text.txt
    echo
    head -c 4000 text.txt | tail -c 3000
    echo
} | sed 's/.*/{"text": "&"}/' >two.jsonl
try 0 "^keys of layer 0, map 1 .* ± - " "$@" -o two.json --text two.jsonl
! grep "^keys\|^values" "$top/out" | grep -q nan || complain "kv plan: an error that is no number: $(cat "$top/out")"

# its figures are those of dq eval on the same windows: 2 and 3 search, 1, 4 and 5 decide
try 0 "." eval "diff model" --text text.txt --ctx 128 --limit 5 --kv-recent 16 --kv-quant dither --kv-bits "2+8|8:8,$widths,4:4" \
    --dump-items items.jsonl --threads 1
mean_of() { # mean_of FIELD PATTERN WINDOW...: of one cache over windows, from 1
    field=$1 pattern=$2
    shift 2
    grep -e "$pattern" items.jsonl | sed -n "s/.*\"$field\": \([-0-9.e]*\).*/\1/p" |
        awk -v windows="$*" 'BEGIN { n = split(windows, w, " ") } { x[NR] = $1 } END { for (i = 1; i <= n; i++) s += x[w[i]]; printf "%.9e", s / n }'
}
same() { # same WHAT NUMBER NUMBER
    holds "$1" "$2 - $3 < 1e-9 + 1e-6 * $3 && $3 - $2 < 1e-9 + 1e-6 * $3 && $3 != 0"
}
number() { # number PATTERN: after the first match in the document without white space
    tr -d ' \n' <doc.json | grep -o -e "$1[-0-9.e]*" | head -n 1 | sed 's/.*://'
}
same "KLD of a unit" "$(number '"alone":\[{"kld_nats":{"value":')" "$(mean_of kld_nats '"widths": "2+8|8:8"' 2 3)"
same "KLD of the plan in the search" "$(number '"search_kld_nats":')" "$(mean_of kld_nats "\"widths\": \"$widths\"" 2 3)"
same "KLD of the plan" "$(number '"unseen":{"kld_nats":{"value":')" "$(mean_of kld_nats "\"widths\": \"$widths\"" 1 4 5)"
same "KLD of 4:4" "$(number '"widths":"4:4","mean_bits":4.0,"unseen":{"kld_nats":{"value":')" \
    "$(mean_of kld_nats '"k_bits": 4, "v_bits": 4, .*"widths": null' 1 4 5)"
same "loss against 4:4" "$(number '"plan_less_it":{[^}]*},"ln_ppl_ratio":{"value":')" \
    "$(awk "BEGIN { print $(mean_of nll_nats "\"widths\": \"$widths\"" 1 4 5) - $(mean_of nll_nats '"k_bits": 4, "v_bits": 4, .*"widths": null' 1 4 5) }")"

# the recipe is one: a container has the cache, and keeps what a recipe of weights says
try 0 "content SHA-256" quantize "diff model" -o cache.h5 --recipe r.json
try 0 "\"widths\": \"$widths\"" info cache.h5 --recipe
echo '{"schema": "dq-recipe/1", "bits": 5, "kv": {"k_bits": 8, "v_bits": 8, "group": 16}, "comment": "mine"}' >w.json
try 0 "^recipe  *both.json" "$@" -o both.json --onto w.json
for part in '"bits": 5' '"group": 16' "\"widths\": \"$widths\"" '"comment": "mine"'; do
    grep -q -e "$part" both.json || complain "kv plan: no $part in $(cat both.json)"
done
! grep -q k_bits both.json || complain "kv plan: widths twice in $(cat both.json)"
# what of its cache the plan does not measure is said
echo '{"schema": "dq-recipe/1", "kv": {"widths": "8", "policy": "keydiff", "tokens": 99, "rotate": "off", "dense_type": "f16"}}' >w.json
try 0 "^alone " "$@" --dry-run --onto w.json
for part in "its cache evicts tokens (policy keydiff): the plan is measured without" "has rotate off: the plan is measured with auto" \
    "has dense_type f16: the plan is measured with bf16"; do
    grep -q "warning: w.json: $part" "$top/err" || complain "kv plan: no warning of $part: $(cat "$top/err")"
done
# a container is planned for too, against its own weights; runs of layers have one width
try 0 "^plan " plan kv cache.h5 --kv-bits 4.5 --text text.txt --ctx 128 --limit 5 --kv-recent 16 --widths 2,4,8 --kv-layers 2 -o h5.json
grep -q "^against 4:5 " "$top/out" && grep -q "^against 5:4 .*" "$top/out" || complain "kv plan: not compared with 4:5 and 5:4: $(cat "$top/out")"
[ "$(grep -c "(nominally 98.75 %" "$top/out")" = 4 ] || complain "kv plan: two comparisons with intervals of one"
# a recipe that is finished stays, and no older one in its place, where what is said of it does not come out
stays_when_full "$@"
stays_when_full "$@" --json
# a plain model has no maps; where every width is one, the plan is uniform
try 0 "^keys of layer 1  *[248] " plan kv "plain model" --kv-bits 4 --text text.txt --ctx 128 --limit 5 --kv-recent 16 --widths 2,4,8 -o p.json
try 0 "^uniform  *no other mix within the mean was measured" "$@" --widths 4 -o u.json
grep -q "^measured  *1 mix whole" "$top/out" || complain "kv plan: mixes: $(cat "$top/out")"
try 0 "^uniform  *the plan is this one: nothing else that was measured on the search windows is closer there (no interval)" "$@" --kv-layers 2 -o u2.json
try 0 "^  *the plan has [.0-9]* bits more: no uniform widths come nearer" "$@" --kv-bits 7.5 --widths 4,6,8 -o more.json
grep -q '"widths": "4:4"' u.json || complain "kv plan: one width, and another plan: $(cat u.json)"
try 0 "^plan  *--kv-quant per-channel " "$@" --kv-quant per-channel -o page.json

# interrupted, a run that resumes takes over what is there, to the same recipe, or for another mean
try 6 "exists" "$@" -o r.json
try 6 "r.json: is finished already, and no interrupted run is beside it" "$@" -o r.json --resume
printf 'no journal\n\377\001\n' >odd.json.journal
cp odd.json.journal kept.journal
try 4 "odd.json.journal: is not a journal of this version of dq[.] Start over with --force[.]\$" "$@" -o odd.json --resume
cmp -s odd.json.journal kept.journal || complain "kv plan: a file that is no journal was changed"
try 0 "^recipe  *odd.json" "$@" -o odd.json --force
cmp -s odd.json r.json || complain "kv plan: another recipe in the place of what is no journal"
absent odd.json.journal
: >k.json.journal
set -- "$@" --ctx 512 --limit 15
try 0 "." "$@" -o whole.json
cp "$top/out" table
until_line 3 . TERM "$@" --force
[ "$ended" -eq 143 ] || complain "kv plan: not interrupted: $(cat "$top/err")"
grep -q "k.json.journal is kept. Run the same command with --resume" "$top/err" || complain "kv plan: $(cat "$top/err")"
until_line 20 . KILL "$@" --resume
try 6 "k.json.journal: an interrupted run left it. Add --resume" "$@" -o k.json
try 4 "belongs to a run with other inputs or settings (recent: begun with 16, this run has 17" "$@" -o k.json --resume --kv-recent 17
try 4 'belongs to a run with other inputs or settings (quant: begun with "dither", this run has "per-channel"' "$@" -o k.json --resume --kv-quant per-channel
cp k.json.journal kept.journal
line=$(sed -n 2p kept.journal | cut -c66-)
changed 's/"kld":"[^ "]*/"kld":"x/'
try 3 'k.json.journal: "kld" holds what is no number' "$@" -o k.json --resume
present k.json.journal
for n in 1e308 -1e9 1e999; do
    changed "s/\"loss\":\"[^ \"]*/\"loss\":\"$n/"
    try 3 "k.json.journal: " "$@" -o k.json --resume
done
for w in 2+8*1:8*2 4:4:4 "4|4|4:4" 9:9 04:4; do
    changed "s/\"widths\":\"[^\"]*/\"widths\":\"$w/"
    try 3 'k.json.journal: "widths" .* are not as a plan writes them' "$@" -o k.json --resume
done
# a window that stands there twice is one
{
    sed -n 1,2p kept.journal
    sed -n 2p kept.journal
} >k.json.journal
try 0 "^taken over  *$(printf '%s' "$line" | sed 's/.*"loss":"//; s/".*//' | tr ' ' '\n' | grep -c .) windows of mixes" "$@" -o k.json --resume
cmp -s whole.json k.json || complain "kv plan: a line twice: another recipe"
rm k.json
resumed "of mixes" "$@"
cp kept.journal k5.json.journal
try 0 "^taken over  *[1-9][0-9]* windows of mixes" "$@" --kv-bits 5 -o k5.json --resume
# the same bytes become other tokens as lines of JSON
fold -w 8000 text.txt | sed 's/.*/{"text": "&"}/' >lines.txt
cp lines.txt lines.jsonl
rm k.json
: >k.json.journal
until_line 3 . TERM "$@" --text lines.txt --force
try 4 "belongs to a run with other inputs or settings (ids: begun with [0-9a-f]*[.]*, this run has [0-9a-f]*[.]* (lines.jsonl))" "$@" -o k.json --text lines.jsonl --resume
absent k.json

# ---- the text that chose widths is no test of the container that has them
head -c 30000 "$repo/calib/pair/text.txt" >seen.txt
tail -c 30000 "$repo/calib/pair/text.txt" >unseen.txt
try 0 . plan kv "plain model" --kv-bits 5 --text seen.txt --ctx 256 --limit 6 -o seen.json --force
try 0 . quantize "plain model" -o seen.h5 --bits 4 --recipe seen.json
try 0 . eval seen.h5 --text seen.txt --ctx 256 --limit 4
grep -q "warning: seen.txt: is the text that calibrated the KV cache of seen.h5" "$top/err" || complain "plan kv: no warning of the text that searched"
try 0 . eval seen.h5 --text unseen.txt --ctx 256 --limit 4
! grep -q "that calibrated" "$top/err" || complain "plan kv: warns of another text"
rm seen.json seen.h5
