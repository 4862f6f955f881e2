# text.sh: dq eval on running text, in every kind of window; sourced by run.sh.

book=$repo/calib/pair/text.txt
lines=$repo/tests/golden/text/docs.jsonl
printf 'a' >one
printf 'a cold\377 hare . a cold hare . the grey frog finds above the street . ' >broken.txt
printf '{"text": "a cold hare"}\n{"txt": 1}\n' >broken.jsonl
: >none.jsonl
text() {
    want=$1 pattern=$2
    shift 2
    try "$want" "$pattern" eval "diff model" --progress never "$@"
}

# what does not go together
text 2 "expected one of chunk, stride, block, rolling" --text "$book" --window wide
text 2 "expected less than the 512 tokens" --text "$book" --window stride --stride 512
text 2 "expected less than the 64 tokens" --text "$book" --window stride --stride 65 --ctx 64
text 2 "stride is about --window stride" --text "$book" --stride 4
ln -s "$book" again.txt
text 2 "again.txt: --text is given twice for this file ($book)" --text "$book" --text again.txt
rm again.txt
text 2 "positions is about --text" --task mc --data choices.jsonl --positions
text 2 "ctx is about --text" --task mc --data choices.jsonl --ctx 64
text 2 "window is about --text" --task mc --data choices.jsonl --window block
text 2 "slice-counts is about --slices" --text "$book" --slice-counts one
text 2 "slice-threshold is about --slices" --text "$book" --slice-threshold 3
text 2 "does not go with --window block" --text "$book" --positions --window block
text 4 "only (found stride)" --text "$book" --window stride --kv-keep 0.5
text 4 "only (found rolling)" --text "$book" --window rolling --kv-tokens 80
text 4 "only (found --positions)" --text "$book" --positions --kv-keep 0.5
text 2 "input and output are the same file" --text "$lines" --text "$book" --csv "$book"
text 2 "input and output are the same file" --text "$lines" --slices --slice-counts "$book" -o "$book"

# texts that are too short, empty or damaged
text 3 "empty: holds no text" --text empty
text 3 "none.jsonl: holds no text" --text none.jsonl
text 3 "empty: holds no text" --text "$book" --slices --slice-counts empty
text 3 "broken.jsonl: line 2: .*text" --text broken.jsonl
text 6 "no-such-file" --text "$book" --text no-such-file
text 4 "has 2 tokens, block windows of 512 need 512" --text one --window block
text 4 "has 2 tokens, positions windows of 512 need 513" --text one --positions
cp one other
text 4 "none of 2 documents is long enough" --text one --text other
text 4 "ctx 100000 is more" --text "$book" --window stride --ctx 100000
for form in stride rolling; do
    text 0 "diff model" --text empty --text one --window $form
    grep -q "1 of 2 documents are too short" "$top/err" || complain "$form: the empty document is not counted"
done
text 0 "diff model" --text broken.txt --window stride
grep -q "broken.txt: 1 ill-formed" "$top/err" || complain "broken.txt: no warning"

# a token before a text is the model's own, in whatever order models come; where none is needed both have the same tokens
for m in bare named; do mkdir $m && cp "plain model"/*.json "plain model"/*.safetensors $m; done
none='{"x_token": "a"}' # a token that all have, and that nothing begins with
printf '{"x_token": "a", "bos_token": "<bos>"}' >named/tokenizer_config.json
printf '{"ctx": "", "choices": ["a", "b"], "gold": 0}\n' >bare.jsonl
for config in "$none" '{"eos_token": "a"}'; do
    printf '%s' "$config" >bare/tokenizer_config.json
    try 0 "^bare .*all equal" eval named bare --ref named --text "$book" --ctx 64 --limit 2 --logit-bits 16
    for models in named:bare bare:named; do
        pattern="bare: its tokenizer or number of positions differs"
        [ "$config" = "$none" ] && pattern="needs a token before"
        try 4 "$pattern" eval "${models%:*}" "${models#*:}" --ref named --text one --window rolling
        [ "$config" = "$none" ] && pattern="the context is empty and tokenizer_config.json names neither"
        try 4 "$pattern" eval "${models%:*}" "${models#*:}" --ref named --task mc --data bare.jsonl
    done
done
rm -r bare named bare.jsonl

# tables and documents
text 0 "PPL per word" --text "$lines" --window rolling --ctx 64 --csv rolling.csv
holds "bits per byte" "$(field rolling.csv "diff model" 16 per-row bits_per_byte) > 0"
text 0 '"text_stderr": "clustered by document"' --text "$lines" --window rolling --ctx 64 --json
json dq-eval/1
text 0 '"bits_per_byte"' --text "$lines" --window rolling --ctx 64 --json
# a limit encodes as much as it needs, and gives what all of the text gives first
for form in chunk stride block rolling; do
    text 0 "diff model" --text "$lines" --window $form --ctx 32 --force --csv all.csv --dump-items all.jsonl
    for limit in 1 3 7; do
        text 0 "diff model" --text "$lines" --window $form --ctx 32 --limit $limit --force --csv first.csv --dump-items first.jsonl
        head -n $limit all.jsonl | cmp -s - first.jsonl || complain "text: --limit $limit of $form windows are others than the first"
    done
done
# a document that the limit leaves over counts among those there are: the first need not have two windows
head -c 3000 "$book" >first.txt
tail -c 6000 "$book" >second.txt
text 4 "two windows of 512 need 1024" --text first.txt --limit 1
text 0 "diff model .* 1 window" --text first.txt --text second.txt --limit 1
text 0 "diff model" --text one --text first.txt --text second.txt --limit 1
grep -q "1 of the first 2 documents are too short" "$top/err" || complain "--limit: which documents are too short? $(cat "$top/err")"
rm first.txt second.txt
# a line a window of each row, with which the means and their errors can be worked out again
text 0 "diff model" --text "$book" --ctx 100 --limit 6 --logit-bits 16,4 --csv windows.csv --dump-items windows.jsonl
for metric in nll_nats kld_nats; do
    sed -n "/\"logit_bits\": 4/ s/.*\"$metric\": \([^,}]*\).*/\1/p" windows.jsonl >windows
    holds "$metric of windows" "$(awk -v m="$(column windows.csv 2 $metric)" -v e="$(column windows.csv 2 ${metric}_stderr)" '
        { n++; s += $1; q += $1 * $1 }
        END { d = s / n - m; f = sqrt((q - s * s / n) / (n - 1) / n) - e; print n, "== 6 &&", d * d, "< 1e-24 &&", f * f, "< 1e-18" }' windows)"
done
[ "$(grep -c '"logit_bits": 16,.*"document": 0, .*"scored": 49, .*"kld_nats": null' windows.jsonl)" -eq 6 ] ||
    complain "--dump-items: windows of the reference: $(head -n 1 windows.jsonl)"
rm windows windows.csv windows.jsonl
text 0 "diff model" --text "$book" --window rolling --ctx 64 --limit 2 --csv rolling.csv --force
grep -q "limit ends inside a document" "$top/err" || complain "rolling --limit: no warning"
[ -z "$(field rolling.csv "diff model" 16 per-row word_ppl)" ] || complain "rolling --limit: a perplexity per word"
text 0 "^alpha t^beta + gamma through the mean NLL of the first t tokens, t from 16 on" --text "$lines" --positions --ctx 100 -o fit.json --force
if command -v python3 >/dev/null; then
    python3 - fit.json <<'END' || complain "text: the fit does not go through the mean NLL"
import json, sys
for row in json.load(open(sys.argv[1]))["results"]:
    p = row["positions"]
    f = p["fit"]
    assert f["from"] == 16 == p["at"][0] and f["to"] == 100 == p["at"][-1] and f["points"] == 23, f
    a, b, c = (f[k]["value"] for k in ("alpha", "beta", "gamma"))
    for t, y in zip(p["at"], p["cumulative_nll_nats"]):
        assert abs(a * t ** b + c - y["value"]) < 4 * f["residual_nats"], (t, y, f)
END
fi
rm fit.json
text 0 "less that of the reference" --text "$lines" --positions --ctx 100 --logit-bits 16,4 --csv positions.csv
holds "the mean of all positions" "($(field positions.csv "diff model" 4 per-tensor cumulative_nll_nats_100) - \
    $(field positions.csv "diff model" 4 per-tensor nll_nats)) ^ 2 < 1e-24"
text 0 "AR-hit share" --text "$lines" --text "$book" --ctx 64 --window stride --slices --kv-bits 16,4 --kv-recent 16 \
    --csv slices.csv
holds "the share of hits" "$(field slices.csv "diff model" 16 per-row ar_hit_share) > 0.01"
text 0 "AR-hit share" --text "$book" --ctx 64 --limit 2 --slices
grep -q "one document alone" "$top/err" || complain "--slices of one document: no warning"
text 0 '"counted_in": "one"' --text "$book" --ctx 64 --limit 2 --slices --slice-counts one --json
for form in stride block rolling; do
    text 0 "diff model" --text "$lines" --ctx 160 --window $form --kv-bits 8 --kv-recent 8 --csv coded.csv --force
    holds "$form with codes" "$(field coded.csv "diff model" 16 per-row kld_nats) < 0.1"
    holds "$form with codes" "$(field coded.csv "diff model" 16 per-row kld_nats) > 100 * \
        $(field coded.csv "diff model" 16 per-row kld_noise_floor)"
done

# finished work belongs to its windows; slices can be asked for later
rm -f dq-eval-*.resume
"$dq" eval "diff model" --text "$lines" --window stride --ctx 64 --stride 16 >/dev/full 2>/dev/null
present dq-eval-*.resume
for other in "--window stride --stride 17" "--window block" "--window rolling" "--positions"; do
    # shellcheck disable=SC2086 # several words
    anew eval "diff model" --progress never --text "$lines" --ctx 64 --resume $other
done
cp "$lines" lines2.jsonl
anew eval "diff model" --progress never --text "$lines" --text lines2.jsonl --window stride --ctx 64 --stride 16 --resume
text 0 "AR-hit share" --text "$lines" --window stride --ctx 64 --stride 16 --resume --slices
absent dq-eval-*.resume

# ---- windows are units: killed, a run has the rows that were scored, each for itself, and goes on to the same numbers
set -- eval "diff model" --progress never --text "$book" --ctx 256 --limit 24 --logit-bits 16,6 --kv-bits 16,4 --kv-recent 16 --kv-keep 1,0.5
killed 3 "$@" --threads 1
! grep -q '"row":.*"row":' dq-eval-*.resume || complain "text: rows are written down together"
sed -n 2p dq-eval-*.resume | grep -q '"from":0,"to":[12],' || complain "text: the first step is not of a window or two"
try 0 "diff model" "$@" --resume --csv killed.csv
grep -q "nothing to resume" "$top/err" && complain "text: what was scored is not taken up"
try 0 "diff model" "$@" --csv whole.csv
for f in killed whole; do # without seconds
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) skip[i] = $i ~ /second/ } { for (i = 1; i <= NF; i++) if (!skip[i]) printf "%s,", $i; print "" }' $f.csv >$f.txt
done
cmp -s killed.txt whole.txt || complain "text: killed and resumed: other numbers"

# ---- what is no text, and what is lines under another name
printf 'PAR1xxxxPAR1' >a.parquet
printf '{"text": "the green mole hears the owl"}\n{"text": "a cold wolf finds the river and the old mill"}\n' >lines.txt
no_text="a.parquet: is a Parquet file"
try 4 "$no_text" eval "plain model" --text a.parquet
try 4 "$no_text" stats "plain model" --text a.parquet
try 4 "$no_text" plan gates "plain model" -o r.json --text a.parquet
try 4 "$no_text" logits "plain model" -o l.h5 --text a.parquet
try 4 "$no_text" tokenize "plain model" --text a.parquet
try 4 "$no_text" quantize "plain model" -o q.h5 --calib a.parquet
absent r.json l.h5 q.h5
try 0 . eval "plain model" --text lines.txt --ctx 4
grep -q "warning: lines.txt: its lines are JSON objects .* ends in .jsonl" "$top/err" || complain "text: no warning of JSON lines"
try 0 . stats "plain model" --text lines.txt
grep -q "warning: lines.txt: its lines are JSON objects" "$top/err" || complain "stats: no warning of JSON lines"
try 0 . quantize "plain model" -o q.h5 --calib lines.txt
grep -q "warning: lines.txt: its lines are JSON objects" "$top/err" || complain "calib: no warning of JSON lines"
rm q.h5
cp lines.txt lines.jsonl
try 0 . eval "plain model" --text lines.jsonl --ctx 4
! grep -q "JSON objects" "$top/err" || complain "text: a warning of a file of documents"

# a text that spells BOS gets no second one, wherever one stands in front: the same numbers as of the text without it
spelled() { # spelled OUT COMMAND...: the numbers of a run
    out=$1
    shift
    "$dq" "$@" -q --json >document 2>"$top/err" || complain "text: dq $*: $(cat "$top/err")"
    grep -E '"(value|low|high|tokens|rms|top1|ids|acc|share|prompt_tokens)":' document | grep -v second >"$out"
    [ -s "$out" ] || complain "text: dq $*: no numbers"
}
head -c 1500 "$book" >said.txt
{ printf '<bos>' && cat said.txt; } >spelled.txt
for how in chunk block stride; do
    spelled want eval "diff model" --text said.txt --ctx 64 --window $how
    spelled got eval "diff model" --text spelled.txt --ctx 64 --window $how
    cmp -s want got || complain "text: --window $how has two BOS"
done
spelled want eval "diff model" --text said.txt --ctx 64 --window rolling --bos off
spelled got eval "diff model" --text spelled.txt --ctx 64 --window rolling
[ "$(grep '"value"' want | head -n 1)" = "$(grep '"value"' got | head -n 1)" ] || complain "text: --window rolling has two BOS: $(diff want got)"
spelled want stats "diff model" --text said.txt --ctx 64
spelled got stats "diff model" --text spelled.txt --ctx 64
cmp -s want got || complain "text: dq stats has two BOS"
spelled want generate "diff model" --prompt-file said.txt --raw -n 4
spelled got generate "diff model" --prompt-file spelled.txt --raw -n 4
cmp -s want got || complain "text: dq generate has two BOS"
spelled want eval "diff model" --task needle --data "$book" --lengths 300 --needles 2:2 --limit 2
{ printf '<bos>' && cat "$book"; } >book.txt
spelled got eval "diff model" --task needle --data book.txt --lengths 300 --needles 2:2 --limit 2
cmp -s want got || complain "text: needles have two BOS"
for text in said spelled; do
    "$dq" quantize "diff model" -o $text.h5 --bits 4 --calib $text.txt --calib-ctx 64 --force -q >/dev/null 2>"$top/err" || complain "text: $(cat "$top/err")"
    "$dq" info $text.h5 --tensors | grep packed >$text.codes
done
cmp -s said.codes spelled.codes || complain "text: a calibration text has two BOS"

# --bos on where the template has none: bos_token of tokenizer_config.json, or nothing names one
cp -r "diff model" "bare model"
sed '/^ "post_processor"/,/^ }/d' "diff model/tokenizer.json" >"bare model/tokenizer.json"
for how in "eval --window chunk" "eval --window block" "stats"; do
    # shellcheck disable=SC2086 # words
    set -- $how
    cmd=$1
    shift
    spelled want "$cmd" "diff model" --text said.txt --ctx 64 "$@"
    spelled got "$cmd" "bare model" --text said.txt --ctx 64 --bos on "$@"
    cmp -s want got || complain "text: dq $how --bos on is not BOS"
    spelled got "$cmd" "bare model" --text spelled.txt --ctx 64 --bos on "$@"
    cmp -s want got || complain "text: dq $how --bos on has two BOS"
    spelled want "$cmd" "diff model" --text said.txt --ctx 64 --bos off "$@"
    spelled got "$cmd" "bare model" --text said.txt --ctx 64 "$@"
    cmp -s want got || complain "text: dq $how --bos off is not without BOS"
done
for task in "needle --data $book --lengths 300 --needles 2:2 --limit 2" "mc --data choices.jsonl"; do
    # shellcheck disable=SC2086 # words
    set -- --task $task
    spelled want eval "diff model" "$@"
    spelled got eval "bare model" "$@" --bos on
    cmp -s want got || complain "text: dq eval $* --bos on is not BOS"
done
printf '{}' >"bare model/tokenizer_config.json"
try 4 "names no bos_token, so there is no BOS to add. Use --bos auto" eval "bare model" --text said.txt --ctx 64 --bos on
try 4 "names no bos_token, so there is no BOS to add. Use --bos auto" stats "bare model" --text said.txt --ctx 64 --bos on

# an NLL whose perplexity no f64 holds: a last norm of 16384 in place of its weights
cp -r "plain model" "loud model"
from=$(LC_ALL=C sed 's/[,{]/\n/g' "plain model/model.safetensors" | LC_ALL=C grep -a -A 3 '"model\.norm\.weight":' | LC_ALL=C sed -n 's/.*"data_offsets":\[\([0-9]*\).*/\1/p')
header=$(od -An -t u8 -N 8 "plain model/model.safetensors" | tr -d ' ')
i=0
while [ $i -lt 128 ]; do printf '\200\106' && i=$((i + 1)); done | dd of="loud model/model.safetensors" bs=1 seek=$((8 + header + ${from:-0})) conv=notrunc 2>/dev/null
set -- eval "loud model" --text said.txt --ctx 64 --window rolling
try 0 "beyond f64" "$@" --csv loud.csv
[ "$(column loud.csv 1 ppl)" = inf ] || complain "text: a perplexity beyond f64 is not inf in the CSV: $(column loud.csv 1 ppl)"
try 0 '"reason": "e^NLL is beyond the range of f64"' "$@" --json
try 7 "ppl has no value, as e^NLL is beyond the range of f64" "$@" --fail-if "ppl > 100"
