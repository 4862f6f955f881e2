# plan_gates.sh: dq plan gates, and the policy kvzap that goes by its file or by what a container holds; sourced by run.sh.
cp "$repo/calib/pair/text.txt" text.txt
set -- plan gates "plain model" --text text.txt --ctx 128 --limit 10

# what is missing or cannot be
try 2 "[-]-text FILE is missing" plan gates "plain model" -o g.json
try 2 "[-]o GATES.json is missing" "$@"
try 2 "[-]-limit" "$@" --limit 7 -o g.json
try 4 "short text: too little text: 0 windows of 256 tokens (expected at least 8, of which the last quarter is not fitted)" plan gates "plain model" \
    --text "short text" --ctx 256 -o g.json
try 4 "plain model: has 512 positions, windows of 1024 tokens are more" "$@" --ctx 1024 -o g.json
try 6 "gone" plan gates "plain model" --text gone -o g.json
absent g.json

# a dry run, then the file; threads change no byte of it
try 0 "^text  *10 windows of 128 tokens of text.txt, each read twice: 2560 tokens" "$@" --dry-run
try 0 "^time  *about [0-9]* s" "$@" --dry-run
try 0 "^on unseen windows  0[.][0-9]* of the variance" "$@" -o g.json --threads 1
try 0 "^gates in  *h.json" "$@" -o h.json --threads 3
cmp -s g.json h.json || complain "gates: threads change the file"
try 6 "g.json: exists" "$@" -o g.json
try 0 '"explained_variance"' "$@" -o g.json --force --json
grep -q '"schema":"dq-gates/1"' g.json || complain "gates: no schema in the file"
try 0 "second reading\|^gates in" plan gates "plain model" --text text.txt --ctx 400 --limit 8 -o far.json
grep -q "warning: the second reading of windows of 400 tokens stands after the 512 positions of plain model; use --ctx 256 or less" "$top/err" ||
    complain "gates: no word about positions: $(cat "$top/err")"

# the policy, which needs them
set -- eval "plain model" --text text.txt --ctx 128 --limit 4 --kv-keep 0.5 --kv-recent 8
try 4 'plain model: the policy "kvzap" needs gates, and the model has none[.] Give --kv-gates, a file that dq plan gates makes' "$@" --kv-policy kvzap
try 2 "[-]-kv-gates has nothing to act on: no cache evicts by kvzap[.] Add --kv-policy kvzap and --kv-keep" "$@" --kv-policy h2o --kv-gates g.json
try 4 "g.json: gates of another model" eval "diff model" --text text.txt --ctx 128 --limit 4 --kv-keep 0.5 --kv-recent 8 --kv-policy kvzap --kv-gates g.json
head -c 3000 g.json >cut.json
try 3 "cut.json" "$@" --kv-policy kvzap --kv-gates cut.json
sed 's/"head_dim":[0-9]*/"head_dim":0/' g.json >wrong.json
try 3 'wrong.json: .*head_dim' "$@" --kv-policy kvzap --kv-gates wrong.json
try 6 "gone.json" "$@" --kv-policy kvzap --kv-gates gone.json
sed 's/"model_fingerprint":"./"model_fingerprint":"x/' g.json >strange.json
try 4 'strange.json: gates of another model (its fingerprint is x' "$@" --kv-policy kvzap --kv-gates strange.json
printf '{"schema": "dq-gates/1", "layers": 65536, "groups": 1, "head_dim": 1024, "heads": [256], "weights": []}' >huge.json
try 3 'huge.json: "weights": .* of them are more than a file of [0-9]* bytes has' "$@" --kv-policy kvzap --kv-gates huge.json
mkfifo pipe
cat g.json >pipe &
try 0 "^container" quantize "plain model" -o pipe.h5 --bits 16 --kv-keep 0.5 --kv-recent 8 --kv-gates pipe
try 0 "^KV gates  *for kvzap, SHA-256 $(sha256sum g.json | cut -c-12)" info pipe.h5
# its usual budget is global, as kvzip's is
try 0 "^plain model .* 16:16 bf16  global  text" "$@" --kv-policy kvzap --kv-gates g.json
try 0 "^plain model .* 16:16 bf16  global  text" "$@" --kv-policy kvzip
# gates are to be gone by: no other word is needed
try 0 '"policy": "kvzap"' "$@" --kv-gates g.json --json
try 0 "^plain model .* 16:16 bf16  text" "$@" --kv-policy kvzap --kv-gates g.json --kv-budget uniform
# a document says which gates
"$dq" "$@" --kv-gates g.json --json 2>/dev/null | grep -q "\"gates_sha256\": \"$(sha256sum g.json | cut -c-64)\"" ||
    complain "gates: the document does not say which"
# all policies leave it out where there are no gates
try 0 "h2o" "$@" --kv-policy all --kv-bits 16
grep -q "the policy kvzap: the model has no gates" "$top/err" || complain "gates: no word of a policy that is left out: $(cat "$top/err")"
! grep -q kvzap "$top/out" || complain "gates: a row of a policy without gates"

# over what a container evicts by
try 0 "^container" quantize "plain model" -o k.h5 --bits 16 --kv-policy keydiff --kv-keep 0.5 --kv-recent 8
try 2 "no cache evicts by kvzap" eval k.h5 --text text.txt --ctx 128 --limit 4 --kv-gates g.json
try 0 '"policy": "kvzap"' eval k.h5 --text text.txt --ctx 128 --limit 4 --kv-gates g.json --kv-policy kvzap --json

# a container holds them, as they are, and runs with them
try 4 'the policy "kvzap" needs gates' quantize "plain model" -o z.h5 --bits 4 --kv-policy kvzap --kv-keep 0.5
try 0 "^container" quantize "plain model" -o z.h5 --bits 16 --kv-policy kvzap --kv-keep 0.5 --kv-recent 8 --kv-gates g.json
try 0 "^z.h5 .* global  text" eval z.h5 --text text.txt --ctx 128 --limit 4
try 0 "." verify z.h5
try 0 "kvzap, 0.5 of the context stay, budget global" info z.h5
try 0 "^KV gates  *for kvzap, SHA-256 $(sha256sum g.json | cut -c-12)" info z.h5
"$dq" eval "plain model" --text text.txt --ctx 128 --limit 4 --kv-keep 0.5 --kv-recent 8 --kv-policy kvzap --kv-gates g.json --csv a.csv >/dev/null 2>&1
"$dq" eval z.h5 "plain model" --text text.txt --ctx 128 --limit 4 --kv-recent 8 --csv b.csv >/dev/null 2>&1
kld() { # kld CSV MODEL: the KLD of its row that evicts
    awk -F, -v m="$2" 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next } $c["model"] == m && $c["kv_policy"] == "kvzap" { print $c["kld_nats"] }' "$1"
}
[ -n "$(kld a.csv "plain model")" ] && [ "$(kld a.csv "plain model")" = "$(kld b.csv z.h5)" ] ||
    complain "gates: a container has KLD $(kld b.csv z.h5), its file $(kld a.csv "plain model")"
