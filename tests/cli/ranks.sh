# ranks.sh: mpirun -n R dq eval, stats, quantize; sourced by run.sh. Documents do not depend on R. Skipped without MPI.
# shellcheck source=tests/cli/ranks.lib
. "$here/ranks.lib" || return 0
set -- eval "diff model" "plain model" --text "$book" --ctx 64 --limit 40 --task mc,generate --data mc=choices.jsonl \
    --data generate=prompts.jsonl --max-new 8 --dump-completions texts.jsonl --force --logit-bits 16,4 --kv-bits 16,4 --threads 1
printf '{"prompt": "the green mole"}\n{"prompt": "a cold wolf hears"}\n' >prompts.jsonl
"$dq" "$@" -o alone.json -q >alone.txt || complain "ranks: one process fails"
mv texts.jsonl alone.jsonl
for r in 1 2 3 8; do
    ranks $r "$@" -o ranks$r.json -q || complain "ranks: $r fail: $(cat "$top/err")"
    [ "$(timeless alone.json)" = "$(timeless ranks$r.json)" ] || complain "ranks: another document of $r: $(diff alone.json ranks$r.json | head -5)"
    cmp -s texts.jsonl alone.jsonl || complain "ranks: other texts of $r"
    [ "$(wc -l <"$top/out")" = "$(wc -l <alone.txt)" ] || complain "ranks: $r print $(wc -l <"$top/out") lines, one $(wc -l <alone.txt)"
done
[ -z "$(ls dq-eval-* 2>/dev/null)" ] || complain "ranks: left $(ls dq-eval-*)"

# a rank that is killed ends the job; what was finished is absent on from, by another number of ranks
set -- eval "diff model" --text "$book" --ctx 128 --logit-bits 16,8,6,4,3 --logit-granularity per-tensor,per-head,per-row --threads 1
"$dq" "$@" -o alone.json --force -q >/dev/null || complain "ranks: one process fails"
ranks 3 "$@" -o killed.json &
job=$!
for _ in $(seq 200); do
    [ "$(cat dq-eval-*.resume 2>/dev/null | wc -l)" -lt 4 ] || break
    sleep 0.05
done
kill_rank 1 "logit-granularity per-tensor,per-head,per-row --threads 1 -o killed.json"
! wait $job || complain "ranks: a job with a killed rank succeeds"
absent killed.json
[ -f "$(echo dq-eval-*.resume)" ] || complain "ranks: no journal of a killed job"
ranks 2 "$@" --resume -o resumed.json -q || complain "ranks: cannot go on: $(cat "$top/err")"
[ "$(timeless alone.json)" = "$(timeless resumed.json)" ] || complain "ranks: another document after a kill"

# failures are told once, whoever has them
ranks 3 "$@" --kv-bits 17
[ "$(grep -c 'error:' "$top/err")" = 1 ] || complain "ranks: $(grep -c 'error:' "$top/err") messages"
ranks 2 info "diff model"
grep -q "is one process, and mpirun has started 2. Leave out mpirun" "$top/err" || complain "ranks: dq info: $(cat "$top/err")"
ranks 2 "$@" --shard 1/2 -o x.shard
grep -q "shard is for runs without MPI" "$top/err" || complain "ranks: --shard: $(cat "$top/err")"
absent x.shard

# dq stats: the same bytes, of numbers, histograms and tables
set -- stats "plain model" "diff model" --text "$book" --ctx 128 --threads 1 --force
"$dq" "$@" -o alone.h5 --csv alone.csv --json -q >alone.txt || complain "ranks: dq stats fails alone"
for r in 2 3; do
    ranks $r "$@" -o ranks.h5 --csv ranks.csv --json -q || complain "ranks: dq stats fails: $(cat "$top/err")"
    for f in h5 csv; do
        cmp -s alone.$f ranks.$f || complain "ranks: dq stats: another .$f of $r"
    done
    cmp -s alone.txt "$top/out" || complain "ranks: dq stats: another document of $r"
done

# dq quantize: every rank writes into one container, whose bytes are those of one process
by_ranks() { # by_ranks R... -- ARGUMENTS...: of dq quantize "diff model" -o
    rs=
    while [ "$1" != -- ]; do
        rs="$rs $1"
        shift
    done
    shift
    "$dq" quantize "diff model" "$@" --threads 1 -o alone.h5 --force -q >/dev/null || complain "ranks: dq quantize $*: fails alone"
    for r in $rs; do
        ranks "$r" quantize "diff model" "$@" --threads 1 -o ranks.h5 --force -q || complain "ranks: $r: dq quantize $*: $(cat "$top/err")"
        cmp -s alone.h5 ranks.h5 || complain "ranks: $r: dq quantize $*: other bytes"
        [ -z "$(ls ranks.h5.* 2>/dev/null)" ] || complain "ranks: $r: dq quantize $*: left $(ls ranks.h5.*)"
    done
}
by_ranks 8 -- --bits 4 --group tensor --dense-type bf16
by_ranks 3 8 -- --preset small --calib "$book" --calib-tokens 6000 --calib-ctx 96
by_ranks 3 -- --calib self --calib-tokens 3000 --calib-ctx 96
by_ranks 3 -- --bits 3 --embed-bits 16 --method gptq --calib "$book" --calib-tokens 3000 --calib-ctx 100
mpirun --oversubscribe --bind-to none -n 1 "$dq" quantize "diff model" --bits 4 -o one.h5 : \
    -n 1 "$dq" quantize "diff model" --bits 4 -o other.h5 >"$top/out" 2>"$top/err" </dev/null
grep -q "other.h5.partial: is not the file that rank 0 writes" "$top/err" || complain "ranks: two outputs: $(cat "$top/err")"
absent one.h5 one.h5.partial one.h5.journal other.h5
set -- quantize "diff model" --preset small --calib "$book" --calib-tokens 20000 --calib-ctx 96 --threads 1
"$dq" "$@" -o alone.h5 --force -q >/dev/null || complain "ranks: dq quantize fails alone"
ranks 3 "$@" -o killed.h5 &
job=$!
for _ in $(seq 200); do
    n=$(grep -c . killed.h5.journal 2>/dev/null)
    [ "${n:-0}" -lt 20 ] || break
    sleep 0.05
done
kill_rank 2 "calib-ctx 96 --threads 1 -o killed.h5"
! wait $job || complain "ranks: dq quantize succeeds with a killed rank"
absent killed.h5
ranks 2 "$@" -o killed.h5 --resume || complain "ranks: dq quantize cannot go on: $(cat "$top/err")"
grep -q "taken over  *[1-9]" "$top/out" || complain "ranks: dq quantize takes over nothing: $(cat "$top/out")"
cmp -s alone.h5 killed.h5 || complain "ranks: dq quantize: other bytes after a kill"
