# logits.sh: dq logits; sourced by run.sh.
try 0 "3 rows of" logits "diff model" --ids "1 2 3" -o "the logits.h5"
present "the logits.h5"
absent "the logits.h5.partial"
if command -v h5dump >/dev/null; then
    h5dump -H "the logits.h5" >"$top/dump" 2>&1
    for word in 'DATASET "ids"' 'DATASET "logits"' 'ATTRIBUTE "kv"' 'H5T_IEEE_F32LE' 'H5T_STD_I32LE'; do
        grep -q "$word" "$top/dump" || complain "logits: the file has no $word"
    done
    # ids are taken as they are: three of them, no token in front
    h5dump -d /ids "the logits.h5" | grep -q '(0): 1, 2, 3$' || complain "logits: /ids are not 1, 2, 3"
fi
try 0 "rows" logits "diff model" --ids "1 2 3" -o again.h5 --threads 1
cmp -s again.h5 "the logits.h5" || complain "logits: not the same bytes again"
try 0 "logits_sha256" logits "diff model" --ids "1 2 3" -o again.h5 --force --json
json dq-logits/1
try 0 "rows" logits "diff model" --ids "1 2 3 4 5 6" -o "four bits.h5" --logit-bits 4 --logit-granularity per-row
try 0 "rows" logits "plain model" --text "short text" -o text.h5
for granularity in per-tensor per-head per-tile; do
    try 0 "rows" logits "plain model" --ids "7 8 9" -o "$granularity.h5" --logit-bits 2 --logit-granularity $granularity
done

try 2 "Add -o" logits "plain model" --ids 1
try 2 "give either" logits "plain model" -o gone.h5
try 2 "give either" logits "plain model" -o gone.h5 --ids 1 --text "short text"
try 2 "one sequence only" logits "plain model" -o gone.h5 --ids 1 --ids 2
try 2 "logit-bits" logits "plain model" -o gone.h5 --ids 1 --logit-bits 12
try 2 "logit-bits" logits "plain model" -o gone.h5 --ids 1 --logit-bits 1
try 2 "logit-granularity: expected one of" logits "plain model" -o gone.h5 --ids 1 --logit-granularity map
try 2 "math: expected one of" logits "plain model" -o gone.h5 --ids 1 --math fp8
try 4 "bf16 is not available" logits "plain model" -o gone.h5 --ids 1 --math bf16
try 4 "not packed.*dq quantize" logits "plain model" -o gone.h5 --ids 1 --math int8 --kv-bits 8
try 2 "expected decimal ids" logits "plain model" -o gone.h5 --ids x
try 3 "empty" logits "plain model" -o gone.h5 --text empty
try 4 "outside the vocabulary" logits "plain model" -o gone.h5 --ids "1 70000"
try 4 "positions" logits "plain model" -o gone.h5 --text "$repo/calib/pair/text.txt"
rm -rf "no tokenizer"
cp -r "plain model" "no tokenizer"
rm "no tokenizer/tokenizer.json"
try 4 "tokenizer.json" logits "no tokenizer" -o gone.h5 --text "short text"
try 6 "exists. Add --force" logits "plain model" -o again.h5 --ids 1
try 6 "is a folder" logits "plain model" -o "plain model" --ids 1
absent gone.h5 gone.h5.partial

# ids back to text
"$dq" tokenize "plain model" --text "short text" >ids
"$dq" tokenize "plain model" --text ids --decode >back
printf '\n' | cat "short text" - >want
cmp -s back want || complain "tokenize --decode: not the text that was encoded"
printf 'two words' >words
printf '1\n2 x\n' >words2
try 3 "line 2: expected whole numbers" tokenize "plain model" --text words2 --decode --lines
try 3 "line 1: expected whole numbers from 0 to" tokenize "plain model" --text words --decode
# how far it is, from between layers and after the head
try 0 "rows" logits "plain model" --text "short text" -o told.h5 --progress always
grep -q "^dq logits: plain model  *[0-9]* %  [0-9]* s left" "$top/err" && grep -q "^dq logits: plain model 100 %" "$top/err" ||
    complain "logits: no progress: $(cat "$top/err")"
rm told.h5
