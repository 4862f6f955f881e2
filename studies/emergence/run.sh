#!/bin/sh
# run.sh: one seed of both kinds, trained, measured and compared. The same command goes on where it was stopped.
#   sh studies/emergence/run.sh WORK SEED [RESULTS]        from the top folder; WORK keeps text and checkpoints (200 MB a seed)
# PYTHON (default python3) has requirements.txt, DQ (default build/dq) is the program.
set -eu
here=studies/emergence
work=$1 seed=$2 results=${3:-results/emergence}
python=${PYTHON:-python3} dq=${DQ:-build/dq}
text=$work/text runs=$work/runs
mkdir -p "$results" "$runs"
[ -e "$text/sources.csv" ] || "$python" $here/corpus.py "$text"
[ -e "$text/order.jsonl" ] || "$python" $here/tokens.py "$text"
cp "$text/sources.csv" "$results/"

"$python" $here/train.py --kind llama --seed "$seed" --out "$runs" --text "$text" >>"$runs/llama-$seed.log" 2>&1 &
plain=$!
"$python" $here/train.py --kind diffllama --seed "$seed" --out "$runs" --text "$text" >>"$runs/diffllama-$seed.log" 2>&1
wait $plain

"$python" $here/measure.py --seed "$seed" --out "$runs" --text "$text" --csv "$results/seed-$seed.csv" --dq "$dq"
"$python" $here/check.py --seed "$seed" --out "$runs" --text "$text" --csv "$results/seed-$seed.csv" --steps 0 800 8000
"$python" $here/bits.py --seed "$seed" --out "$runs" --text "$text" --csv "$results/bits-$seed.csv" --dq "$dq"
"$python" $here/compare.py "$results"
gnuplot -e "folder='$results'" $here/growth.gp
