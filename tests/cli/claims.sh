# claims.sh: what dq eval says follows from an interval; sourced by run.sh.

book=$repo/calib/pair/text.txt
many=$repo/calib/pair/choices.jsonl

# ---- a verdict needs an interval within the margin: fewer data decide less, never more
set -- eval "diff model" --text "$book" --ctx 192 --logit-bits 16,8,4 --progress never
try 0 "^  diff model, text, granularity per-tensor: 8$" "$@" --limit 40 --csv claims.csv -o claims.json
grep -q "^    8 bits: within the margin; loss +0.00" "$top/out" || complain "claims: no verdict on 8 bits: $(cat "$top/out")"
grep -q "^    4 bits: exceeds the margin; loss +0.1" "$top/out" || complain "claims: no verdict on 4 bits: $(cat "$top/out")"
grep -q "^2 comparisons, each at 95 %: about 0.1 of their intervals" "$top/out" ||
    complain "claims: comparisons are not counted"
grep -q "^In every row: .* clusters 40 windows" "$top/out" || complain "claims: no number of clusters beside the errors"
! grep -q "clusters" "$top/err" || complain "claims: a warning about 40 clusters"
[ "$(column claims.csv 1 verdict),$(column claims.csv 2 verdict),$(column claims.csv 3 verdict)" = ",within the margin,exceeds the margin" ] ||
    complain "claims: verdicts of the CSV: $(cat claims.csv)"
holds "the interval ends within" "$(column claims.csv 2 loss_high) <= $(column claims.csv 2 margin)"
holds "the interval begins beyond" "$(column claims.csv 3 loss_low) > $(column claims.csv 3 margin)"
holds "40 windows" "$(column claims.csv 2 clusters) == 40"
holds "an interval by t" "($(column claims.csv 2 loss_high) - $(column claims.csv 2 loss) - 2.0226909 * \
    $(column claims.csv 2 ln_ppl_ratio_stderr)) ^ 2 < 1e-14"
for word in '"lowest": 8' '"is": "exceeds the margin"' '"margin": 0.01' '"expected_misses": 0.1' '"cluster": "window"' '"n_clusters": 40'; do
    grep -q "$word" claims.json || complain "claims: no $word in the document"
done
try 0 "^  diff model, text, granularity per-tensor: 16$" "$@" --limit 2
grep -q "^    4 bits: inconclusive; .*, roughly [0-9]* windows more would decide$" "$top/out" ||
    complain "claims: two windows decide: $(cat "$top/out")"
grep -q "warning: text: standard errors rest on 2 clusters (each window is one).*Use 10 or more" "$top/err" ||
    complain "claims: no warning about 2 clusters"
try 0 "no interval over one window" "$@" --limit 1 --csv claims.csv --force
grep -q "warning: text: one window, or copies of one, so there are no standard errors" "$top/err" || complain "claims: one window: $(cat "$top/err")"
[ -z "$(column claims.csv 2 nll_nats_stderr)$(column claims.csv 2 loss_high)" ] || complain "claims: an error from one window"
# what the margin is, is said and can be set; it is no part of what --resume goes on from
try 0 "loss at most 1 (nats of NLL)" "$@" --limit 40 --margin 1
grep -q "^  diff model, text, granularity per-tensor: 4$" "$top/out" || complain "claims: a wide margin does not hold"
try 0 "^    8 bits: inconclusive\|^    8 bits: exceeds the margin" "$@" --limit 40 --margin 0
try 2 "margin" "$@" --margin -1
try 2 "margin" "$@" --margin x
"$dq" "$@" --limit 12 >/dev/full 2>/dev/null
try 0 "loss at most 0.5" "$@" --limit 12 --margin 0.5 --resume

# ---- two checkpoints are not compared until --ref says with which, and a KLD has its error
apart="^plain model, diff model: each is its own reference, .* --ref MODEL "
set -- eval "plain model" "diff model" --text "$book" --ctx 192 --limit 12 --progress never
try 0 "$apart" "$@"
try 0 "^diff model .*  [0-9.]*e-01 ± [0-9.]*e-0[1-9]  " "$@" --ref "plain model"
! grep -q "$apart" "$top/out" || complain "claims: --ref is asked for where it is given"
try 0 "." eval "diff model" --text "$book" --ctx 192 --limit 2 --logit-bits 8 --progress never
! grep -q "own reference" "$top/out" || complain "claims: one checkpoint stands apart"
# ten names of 242 characters are all there, whole
zeros=$(printf '%0240d' 0)
for i in 0 2 4 6 8; do
    ln -s "plain model" "m$i$zeros"
    ln -s "diff model" "m$((i + 1))$zeros"
done
try 0 "^m0$zeros, m1$zeros, m2$zeros, .*, m9$zeros: each is its own reference" eval m[0-9]"$zeros" --text "$book" --ctx 64 --limit 2 --progress never
rm m[0-9]"$zeros"
# what a column means stands right below a table in which nothing is compared
printf '{"prompt": "the"}\n' >prompt.jsonl
"$dq" eval "diff model" --task generate --data prompt.jsonl --max-new 2 --kv-bits 32,8 --dump-completions c.jsonl -q >"$top/out" ||
    complain "claims: caches of what is generated"
[ "$(grep -B 1 "^kept: share of a context's tokens that its cache holds[.]$" "$top/out" | head -n 1 | cut -c 1-10)" = "diff model" ] ||
    complain "claims: a line between a table and what its columns mean: $(cat "$top/out")"

# ---- an item that is lost fails nothing, and none that is lost proves little
set -- eval "plain model" --task mc --data "$many" --logit-bits 16,8,4 --progress never
try 0 "^  plain model, mc, granularity per-tensor: 16$" "$@" --limit 60 --csv claims.csv -o claims.json --force
grep -q "1.0000 (≥ 0.9398)" "$top/out" || complain "claims: no bound where all is right: $(cat "$top/out")"
grep -q "  0 (within ± 0.0602)  " "$top/out" || complain "claims: no bound where nothing flips: $(cat "$top/out")"
grep -q "^    8 bits: inconclusive; loss +0.0000, interval -0.0602 to +0.0602, roughly 321 items more would decide$" "$top/out" ||
    complain "claims: 60 items prove a point of accuracy: $(cat "$top/out")"
! grep -q "± 0.0000" "$top/out" || complain "claims: an error of 0"
grep -q '"test": "McNemar, exact"' claims.json || complain "claims: the test is not named"
try 0 "^  plain model, mc, granularity per-tensor: 8$" "$@" --limit 300 --margin 0.02
grep -q "^    4 bits: inconclusive; loss +0.0067, interval -0.00" "$top/out" || complain "claims: two items of 300 decide"

# ---- runs of in-context learning share their queries
at=$repo/tests/golden/icl
set -- eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data "$at/trec_train.label" --num-fewshot 1,3 --logit-bits 16,3 \
    --logit-granularity per-row --progress never
for runs in 2 6; do
    try 0 "p: t test over queries" "$@" --runs $runs --limit 3 --csv claims$runs.csv -o claims.json --force
    grep -q " clusters 3 queries" "$top/out" || complain "claims: queries are not the clusters"
    holds "clusters" "$(column claims$runs.csv 2 clusters) == 3 && $(column claims$runs.csv 2 n) == 6 * $runs"
    [ -z "$(column claims$runs.csv 2 acc_mcnemar_p)" ] || complain "claims: McNemar's test of clustered items"
    [ -n "$(column claims$runs.csv 2 acc_p)" ] || complain "claims: no p"
done
grep -q '"test": "t, clustered"' claims.json || complain "claims: the clustered test is not named"
rm claims.csv claims2.csv claims6.csv claims.json
