# faults.sh: memory that ends anywhere; sourced by run.sh, with DQ_FAULTS naming the built faults.c.
[ -r "${DQ_FAULTS:-}" ] || complain "DQ_FAULTS does not name the library that faults.c becomes"
head -c 250 "short text" >"$top/fault text"

# What may differ between two runs, and the words of a run that could keep no state.
whole() {
    grep -v -e '"seconds":' -e '"peak_bytes":' -e '"tokens_per_second":' -e '"warnings": \[' -e '"finished work ' \
        -e '"an earlier run of this command' -e '"two earlier runs of this command' -e '^  \]$' "$1"
}

# faults STRIDE ARGUMENTS...: dq, once for every STRIDE-th allocation, which fails, and then with all
# that follow it failing as well; DQ_FAULTS_SKIPPED of these allocations are skipped between two that fail. Either
# the same results, or status 5, one line and no results. The file $side belongs to the results; where it is written
# before they are printed, `stays` is not empty.
side='' stays=''
faults() {
    stride=$(($1 * (${DQ_FAULTS_SKIPPED:-2} + 1)))
    shift
    DQ_FAULT_COUNT="$top/count" LD_PRELOAD=$DQ_FAULTS "$dq" "$@" >"$top/good" 2>"$top/err" </dev/null ||
        complain "dq $*: $(cat "$top/err")"
    whole "$top/good" >"$top/want"
    [ -z "$side" ] || mv "$side" "$top/side"
    allocations=$(cat "$top/count")
    [ "$allocations" -gt 100 ] || complain "dq $*: only $allocations allocations were seen"
    n=1 seen5=0
    while [ "$n" -le "$allocations" ]; do
        on=
        [ $((n / stride % 3)) -ne 2 ] || on=yes
        DQ_FAULT_AT=$n DQ_FAULT_ON=$on LD_PRELOAD=$DQ_FAULTS "$dq" "$@" >"$top/out" 2>"$top/err" </dev/null
        got=$?
        case $got in
        0)
            whole "$top/out" | cmp -s - "$top/want" || complain "dq $*: allocation $n failed: other results, status 0"
            [ -z "$side" ] || cmp -s "$side" "$top/side" || complain "dq $*: allocation $n failed: another $side"
            ;;
        5)
            seen5=$((seen5 + 1))
            [ ! -s "$top/out" ] || complain "dq $*: allocation $n failed: results with status 5"
            if [ -n "$stays" ] && [ -e "$side" ]; then
                cmp -s "$side" "$top/side" || complain "dq $*: allocation $n failed: another $side is left"
            elif [ -n "$side" ]; then
                absent "$side"
            fi
            [ "$(grep -c 'error: ' "$top/err")" = 1 ] ||
                complain "dq $*: allocation $n failed: not one line of error: $(cat "$top/err")"
            ;;
        *) complain "dq $*: allocation $n of $allocations failed: status $got: $(head -c 300 "$top/err")" ;;
        esac
        [ -z "$side" ] || rm -f "$side"
        n=$((n + stride))
    done
    [ "$seen5" -gt 0 ] || complain "dq $*: no failed allocation was noticed"
}

saved=$repo/tests/golden/saved
cp -r "$saved" "fault model"
"$dq" quantize "fault model" -o fault.h5 --bits 4 >/dev/null 2>&1 || complain "quantize: no container"
faults 13 eval "fault model" --text "$top/fault text" --ctx 16 --json
faults 41 eval fault.h5 --text "$top/fault text" --ctx 16 --kv-bits 16,4 --kv-recent 2 --kv-sink 2 --json
"$dq" eval "fault model" fault.h5 --text "$top/fault text" --ctx 16 --logit-bits 16,4 -q -o fault.json >/dev/null 2>&1 || complain "eval: no baseline"
faults 41 eval "fault model" fault.h5 --text "$top/fault text" --ctx 16 --logit-bits 16,4 --baseline fault.json --fail-if 'kld_nats > 2 * (baseline + 1)' --json
side=fault.items
faults 37 eval "plain model" --task mc --data choices.jsonl --limit 2 --logit-bits 16,4 --dump-items fault.items --json
side=
faults 31 stats "fault model" --text "$top/fault text" --json
side=fault.stats
faults 97 stats "fault model" --text "$top/fault text" --ctx 32 --detail table5 --one-pass --sensitivity layers,maps -o fault.stats --force --json
side=
rm -f fault.stats.journal
faults 31 quantize "fault model" -o "$top/fault.h5" --bits 4 --force --json
echo '{"schema": "dq-recipe/1", "rules": [{"match": "q_proj", "bits": 8}], "comment": "x"}' >fault.recipe
faults 29 quantize "fault model" --recipe fault.recipe --embed-bits 6 --bits-map 'v_proj=3/8' --print-recipe
faults 31 quantize "fault model" -o "$top/fault.h5" --bits 4 --method gptq --calib "$top/fault text" --calib-ctx 16 \
    --calib-tokens 32 --threads 1 --force --json
side=fault.plan stays=yes
head -c 6000 "$repo/calib/pair/text.txt" >"$top/fault windows"
faults 31 plan kv "fault model" --kv-bits 4 --text "$top/fault windows" --ctx 80 --limit 5 --kv-recent 2 --kv-sink 2 --widths 4,8 -o fault.plan \
    --threads 1 --force --json
echo '{"ctx": "the old fox and the young sheep went over the hill to the other fox", "choices": ["and the sheep", "and the fox"], "gold": 0}' >"$top/fault question"
cat "$top/fault question" "$top/fault question" >"$top/fault questions"
faults 31 plan heads "fault model" --kv-keep 0.5 --text "$top/fault windows" --ctx 80 --limit 4 --search-windows 1 --kv-recent 2 --kv-sink 2 -o fault.plan \
    --questions "$top/fault questions" --search-items 2 --threads 1 --force --json
side='' stays=''
faults 31 info "fault model" --json
"$dq" quantize "fault model" --bits 4 --dry-run --json -q >fault.json || complain "quantize: no plan"
faults 7 report fault.json
faults 7 info fault.h5 --json
faults 5 verify fault.h5 --json
faults 13 export fault.h5 -o "$top/fault folder" --format compressed-tensors --dtype bf16 --force --json
absent "$top/fault folder.partial" "$top/fault folder.old"
faults 31 logits "fault model" --ids "1 2 3" -o "$top/fault.h5" --force
faults 31 tokenize "fault model" --text "$top/fault text"
rm -f dq-eval-*.resume*
