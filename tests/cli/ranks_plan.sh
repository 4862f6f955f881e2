# ranks_plan.sh: mpirun -n R dq plan; sourced by run.sh. Plans do not depend on R. Skipped without MPI.
# shellcheck source=tests/cli/ranks.lib
. "$here/ranks.lib" || return 0
# dq plan: the same recipes, gates, documents and tables
for who in bear mole hare wolf; do
    echo "{\"ctx\": \"the old $who sees a red fox in the cold field and the green mole hears the wolf that hides by the river, and then the\","\
        "\"choices\": [\" red fox eats\", \" old $who hides\"], \"gold\": 1}"
done >ask.jsonl
planned() { # planned WHAT RANKS ARGUMENTS...: beside one process
    what=$1 n=$2
    shift 2
    set -- plan "$what" "$@" --text "$book" --ctx 128 --threads 1 -o plan.json --force
    "$dq" "$@" -q >alone.txt 2>"$top/err" || complain "ranks: dq plan $what fails alone: $(cat "$top/err")"
    mv plan.json alone.json
    ranks "$n" "$@" -q || complain "ranks: dq plan $what fails: $(cat "$top/err")"
    cmp -s alone.txt "$top/out" || complain "ranks: dq plan $what: another table of $n: $(diff alone.txt "$top/out" | head -5)"
    cmp -s alone.json plan.json || complain "ranks: dq plan $what: another file of $n"
    absent plan.json.journal
}
planned gates 3 "plain model" --limit 8
planned heads 2 "diff model" --kv-keep 0.25 --limit 6 --search-windows 2 --kv-recent 4 --questions ask.jsonl --search-items 4
set -- "diff model" --kv-bits 3 --limit 10 --kv-recent 8
planned kv 3 "$@" --json

# and with one rank killed, then with another number of ranks
set -- plan kv "$@" --text "$book" --ctx 128 --threads 1
ranks 3 "$@" -o killed.json &
job=$!
for _ in $(seq 400); do
    n=$(grep -c kld killed.json.journal 2>/dev/null)
    [ "${n:-0}" -lt 4 ] || break
    sleep 0.02
done
kill_rank 2 "threads 1 -o killed.json"
! wait $job || complain "ranks: a plan with a killed rank succeeds"
absent killed.json
"$dq" "$@" -o killed.json >"$top/out" 2>"$top/err" </dev/null
grep -q "killed.json.journal: an interrupted run left it" "$top/err" || complain "ranks: no journal of a killed plan: $(cat "$top/err")"
ranks 2 "$@" -o killed.json --resume --json -q || complain "ranks: cannot go on with a plan: $(cat "$top/err")"
cmp -s alone.json killed.json || complain "ranks: another recipe after a kill"
same_plan() { grep -v '"results_taken_over"\|"path"' "$1"; }
[ "$(same_plan alone.txt)" = "$(same_plan "$top/out")" ] || complain "ranks: another plan after a kill: $(diff alone.txt "$top/out" | head -5)"
! grep -q '"results_taken_over": 0' "$top/out" || complain "ranks: nothing is taken over from a killed plan"
absent killed.json.journal

# ranks have one command
mpirun --oversubscribe --bind-to none -n 1 "$dq" "$@" -o other.json : -n 1 "$dq" "$@" --trials 5 -o other.json >"$top/out" 2>"$top/err" </dev/null
grep -q "rank 1 has another set of inputs, settings, program or processor than rank 0" "$top/err" || complain "ranks: two commands: $(cat "$top/err")"
absent other.json
absent other.json.journal

# dq plan weights: the same recipe and table; after a kill too, which leaves the journal to any number of ranks
set -- plan weights "diff model" --calib "$book" --calib-ctx 96 --calib-tokens 2200 --search-tokens 2100 --widths 2,4 --method gptq --skip 'layers.0.mlp' \
    --budget bpw=3 --threads 1 -o weights.json
"$dq" "$@" -q >alone.txt 2>"$top/err" || complain "ranks: dq plan weights fails alone: $(cat "$top/err")"
mv weights.json alone.json
ranks 2 "$@" -q || complain "ranks: dq plan weights fails: $(cat "$top/err")"
cmp -s alone.txt "$top/out" || complain "ranks: dq plan weights: another table: $(diff alone.txt "$top/out" | head -5)"
cmp -s alone.json weights.json || complain "ranks: dq plan weights: another recipe"
rm -f weights.json
ranks 3 "$@" &
job=$!
for _ in $(seq 400); do
    ! grep -q begun weights.json.journal 2>/dev/null || break
    sleep 0.02
done
kill_rank 1 "threads 1 -o weights.json"
! wait $job || complain "ranks: dq plan weights succeeds with a killed rank"
absent weights.json
ranks 2 "$@" --resume -q || complain "ranks: dq plan weights cannot go on: $(cat "$top/err")"
grep -q "taken over  *[1-9]" "$top/out" || complain "ranks: dq plan weights takes over nothing: $(cat "$top/out")"
[ "$(cat alone.txt)" = "$(grep -v '^taken over' "$top/out")" ] || complain "ranks: dq plan weights: another table after a kill: $(diff alone.txt "$top/out" | head -5)"
cmp -s alone.json weights.json || complain "ranks: dq plan weights: another recipe after a kill"
for f in .journal .trial.h5 .trial.h5.partial .trial.h5.journal; do
    absent weights.json$f
done
