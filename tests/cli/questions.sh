# questions.sh: generated text, its completions, verdicts on them, runs that were killed; sourced by run.sh.

own=$repo/tests/golden/questions

# ---- questions with answers
try 0 "exact_match" eval "plain model" "diff model" --task gsm8k,svamp --data "$own/gsm8k.jsonl" --data "$own/svamp.json" \
    --max-new 8 --logit-bits 16,4 --csv answers.csv --dump-completions answers.jsonl
[ "$(grep -c '"gold": ' answers.jsonl)" = 36 ] || complain "questions: not 36 completions of 9 questions in 4 rows"
head -n 1 answers.csv | grep -q ',exact_match,exact_match_stderr,strict_match,' || complain "questions: $(head -n 1 answers.csv)"
try 0 '"new_tokens": 12' eval "diff model" --task svamp --data "$own/svamp.json" --max-new 4 --json
json dq-eval/1
for text in '"passes": "decode"' '"max_new": 3' '"finished": {' '"stop_ids": \['; do
    grep -q "$text" "$top/out" || complain "questions: $text is not in the document"
done
try 0 "." eval "diff model" --task gsm8k --data "$own/gsm8k.jsonl" --num-fewshot 2 --fewshot-data "$own/shots.jsonl" --max-new 2 \
    --dump-completions shots.jsonl
# drawn examples, those of lm-eval's own prompts; the seed counts, and stands in the document
try 0 '"fewshot_sampler": "random"' eval "$repo/calib/longpair/diffllama-0" --task gsm8k --data "$own/gsm8k.jsonl" --num-fewshot 2 \
    --fewshot-data "$own/train.jsonl" --fewshot-sampler random --max-new 1 --limit 2 --dump-completions drawn.jsonl --json
grep -q '"fewshot_seed": 1234' "$top/out" || complain "questions: the seed of drawn examples is not told"
if command -v python3 >/dev/null; then
    python3 - drawn.jsonl "$own/drawn.json" <<'END' || complain "questions: drawn examples are not lm-eval's"
import json, sys
got = [json.loads(line)["prompt"] for line in open(sys.argv[1], encoding="utf-8")]
want = [c for c in json.load(open(sys.argv[2], encoding="utf-8"))["cases"] if (c["shots"], c["seed"]) == (2, 1234)]
assert got == want[0]["prompts"][:2]
END
fi
cp drawn.jsonl first.jsonl
try 0 "." eval "$repo/calib/longpair/diffllama-0" --task gsm8k --data "$own/gsm8k.jsonl" --num-fewshot 2 --fewshot-data "$own/train.jsonl" \
    --fewshot-sampler random --seed 5 --max-new 1 --limit 2 --dump-completions drawn.jsonl --force
cmp -s drawn.jsonl first.jsonl && complain "questions: --seed changes no drawn example"
rm drawn.jsonl first.jsonl
try 2 "fewshot-sampler is about examples before questions" eval "diff model" --task gsm8k --data "$own/gsm8k.jsonl" --fewshot-sampler random
try 2 "seed" eval "diff model" --task gsm8k --data "$own/gsm8k.jsonl" --num-fewshot 2 --fewshot-data "$own/train.jsonl" --seed 5
grep -q '"prompt": "Question: Two hens.*#### 6\\n\\nQuestion: Paul.*Answer: 14\\n\\nQuestion: A baker' shots.jsonl ||
    complain "questions: shots are not in front: $(head -c 300 shots.jsonl)"
absent dq-eval-*.resume

# ---- prompts
set -- eval "diff model" --task generate --data "$own/prompts.jsonl"
try 2 "give --dump-completions FILE" "$@"
try 0 "generate" "$@" --stop " ." --max-new 12 --logit-bits 6 --logit-granularity per-row,per-tile --dump-completions prompts.jsonl
[ "$(wc -l <prompts.jsonl)" = 12 ] || complain "questions: not 12 completions of 6 prompts in 2 rows"
grep -q '"id": "own-0"' prompts.jsonl || complain "questions: ids are lost"
grep -q '"id": 4' prompts.jsonl || complain "questions: an id that is a number is lost"
# shellcheck disable=SC1003 # a backslash
try 0 "generate" "$@" --stop ' ?\n' --stop '\\' --max-new 2 --kv-bits 8:4 --kv-recent 16 --kv-keep 0.5 --dump-completions kv.jsonl
grep -q '"kv": {"k_bits": 8' kv.jsonl || complain "questions: the cache is not in the completions"

# an EOS that the folder's other files name, and a container that only has some of them
cp -r "diff model" "eos model"
dot=$("$dq" tokenize "eos model" --text - <<'END'
 near the street .
END
)
dot=$(echo "$dot" | tr ' ' '\n' | sed -n '4p')
try 0 "packed" quantize "eos model" -o eos.h5 --bits 4
try 0 "." eval "eos model" --task generate --data "$own/prompts.jsonl" --max-new 12 --dump-completions none.jsonl
grep -q '"end": "stop_id"' none.jsonl && complain "questions: an end id without a cause"
printf '{"eos_token_id": [0, %s]}' "$dot" >"eos model/generation_config.json"
try 0 "." eval eos.h5 "eos model" --task generate --data "$own/prompts.jsonl" --max-new 12 --dump-completions eos.jsonl
[ "$(grep -c '"end": "stop_id"' eos.jsonl)" -ge 10 ] || complain "questions: generation_config.json does not end continuations"

# ---- what is refused
printf '{"question": "q"}\n' >unanswered.jsonl
printf '{"prompt": "a"}\n{"prompt": "%01400d"}\n' 7 >long.jsonl
set -- eval "plain model" --task gsm8k --data
try 3 "unanswered.jsonl: line 1: expected an \"answer\"" "$@" unanswered.jsonl
try 3 "empty: holds no items (expected JSON lines or one JSON list of {\"question\", \"answer\"}" "$@" empty
try 4 "gsm8k.jsonl: 513 new tokens are asked for, plain model has 512 positions. Use a smaller --max-new" "$@" \
    "$own/gsm8k.jsonl" --max-new 513
try 4 "long.jsonl: 1 of 2 items are too long .* positions of plain model; the first, item 1, line 2, has" eval "plain model" --task generate \
    --data long.jsonl --dump-completions gone.jsonl
try 2 "needs the file of its examples" "$@" "$own/gsm8k.jsonl" --num-fewshot 2
try 2 "add --num-fewshot N" "$@" "$own/gsm8k.jsonl" --fewshot-data "$own/shots.jsonl"
try 4 "shots.jsonl: has 2 items, 3 are asked for" "$@" "$own/gsm8k.jsonl" --num-fewshot 3 --fewshot-data "$own/shots.jsonl"
try 2 'expected .n, .t or .. in "' "$@" "$own/gsm8k.jsonl" --stop '\q'
try 2 "an empty text" "$@" "$own/gsm8k.jsonl" --stop ''
try 2 "items of --task gsm8k go to --dump-completions" "$@" "$own/gsm8k.jsonl" --dump-items gone.jsonl
try 2 "max-new is for tasks that generate" eval "plain model" --task mc --data choices.jsonl --max-new 3
try 2 "prompts of --task generate are taken as they are" eval "plain model" --task generate --data long.jsonl \
    --dump-completions gone.jsonl --num-fewshot 1 --fewshot-data "$own/shots.jsonl"
try 2 "input and output are the same file" "$@" unanswered.jsonl --dump-completions unanswered.jsonl
try 2 "There are: .*gsm8k, svamp, generate, .*" eval "plain model" --task gsm --data empty
absent gone.jsonl gone.jsonl.partial dq-eval-*.resume

# the seed of the settings is that of what is drawn: examples of choices, not those of questions, the first of a file
set -- eval "plain model" --num-fewshot 1 --fewshot-data "$own/shots.jsonl" --dry-run --json
try 0 '"seed": 1234' "$@" --task gsm8k,mc --data "$own/gsm8k.jsonl" --data choices.jsonl --fewshot-data choices.jsonl
[ "$(grep -c '"seed": 1234' "$top/out")" = 2 ] || complain "questions: the seed is not in settings and in the row of choices"
try 0 '"seed": null' "$@" --task gsm8k --data "$own/gsm8k.jsonl"

# ---- verdicts
sed -e '/"item": 0/s/}$/, "verdict": true}/' -e '/"item": [1-9]/s/}$/, "verdict": "incorrect"}/' answers.jsonl >judged.jsonl
grep -v '"task": "svamp"' judged.jsonl | sed '/"item": 0.*verdict/{/"logit_bits": 4/s/true}$/0.5}/;}' >half.jsonl
try 0 "plain model" judged judged.jsonl
try 0 '"task": "judged"' judged half.jsonl --json --csv verdicts.csv -o verdicts.json
json dq-eval/1
[ "$(cat "$top/out")" = "$(cat verdicts.json)" ] || complain "questions: -o holds another document than --json"
grep -q '"n01": 1' "$top/out" || complain "questions: verdicts are not paired"
grep -q '"cross_paired"' "$top/out" || complain "questions: models are not compared"
[ "$(wc -l <verdicts.csv)" = 5 ] || complain "questions: not 4 rows of verdicts"
tr -d ' \n' <"$top/out" | grep -q '"math":{"linear":"f32","qk":"f32","pv":"f32","kv":"f32"}' ||
    complain "questions: verdicts do not say what arithmetic the texts came from"
# the same items in two arithmetics are two rows, not one item twice
{ cat judged.jsonl && sed 's/"math": "f32"/"math": "bf16"/' judged.jsonl; } >twice.jsonl
try 0 "math" judged twice.jsonl
[ "$(grep -c ' bf16 ' "$top/out")" -gt 0 ] || complain "questions: verdicts in bf16 have no row"
# caches that differ in the budget alone are two rows that say so
echo '{"prompt": "the young sheep and the old fox"}' >prompt.jsonl
try 0 "generate" eval "plain model" --task generate --data prompt.jsonl --max-new 2 --kv-keep 0.5 --kv-sink 1 --kv-recent 1 \
    --kv-budget uniform,adaptive --dump-completions budgets.jsonl
sed 's/}$/, "verdict": true}/' budgets.jsonl >judged-budgets.jsonl
for label in "16:16 bf16 keydiff 0.5" "16:16 bf16 keydiff 0.5 adaptive"; do
    try 0 " $label  *generate " judged judged-budgets.jsonl
done
for option in "--fewshot-data judged.jsonl" "--lengths 9" "--max-new 3"; do
    # shellcheck disable=SC2086 # an option and its value
    try 2 "--\(fewshot-data\|lengths\|max-new\) \(is for\|has nothing\)" eval "plain model" --task mc --data choices.jsonl $option
done
try 2 "expected one FILE.jsonl, found 2" judged "plain model" judged.jsonl
try 2 "expected one MODEL or more" eval --task mc --data choices.jsonl
try 3 "holds no verdicts" judged empty
try 3 "answers.jsonl: line 1: key \"verdict\" is missing" judged answers.jsonl
try 2 "input and output are the same file" judged judged.jsonl --csv judged.jsonl

# ---- killed and resumed: the texts of a run that was never stopped
set -- eval "diff model" --task generate --data "$repo/calib/pair/choices.jsonl" --limit 60 --max-new 64 --logit-bits 16,6 \
    --kv-keep 1,0.5 --kv-recent 16 --progress never
killed 4 "$@" --threads 1 --dump-completions killed.jsonl
absent killed.jsonl
anew "$@" --dump-completions other.jsonl --resume --max-new 63
anew "$@" --dump-completions other.jsonl --force --resume --stop x
try 0 "diff model" "$@" --dump-completions killed.jsonl --resume
try 0 "diff model" "$@" --dump-completions whole.jsonl
cmp -s killed.jsonl whole.jsonl || complain "questions: a resumed run gives other texts"
[ "$(wc -l <whole.jsonl)" = 240 ] || complain "questions: not 240 completions"
absent dq-eval-*.resume

# ---- items with more tokens than positions: refused with their number before anything is scored, left out, or cut
many=$(awk 'BEGIN { for (i = 0; i < 200; i++) printf "the duck meets the hen and the owl . " }')
{
    head -n 2 "$own/gsm8k.jsonl"
    printf '{"question": "%s", "answer": "#### 4"}\n' "$many" "$many"
    sed -n 3,4p "$own/gsm8k.jsonl"
} >long.jsonl
set -- eval "diff model" --task gsm8k --data long.jsonl --max-new 8 --logit-bits 16,6 --progress never
counted="long.jsonl: 2 of 6 items are too long (expected at most the 512 positions of diff model; the first, item 2, line 3, has"
try 4 "$counted" "$@"
try 4 "$counted [0-9]* tokens). Use --long skip or --long cut" "$@" --long error --dump-completions gone.jsonl
printf '{"prompt": "%s"}\n' "$many" >one.jsonl
try 4 "one.jsonl: 1 of 1 items are too long" eval "diff model" --task generate --data one.jsonl --dump-completions gone.jsonl
absent gone.jsonl dq-eval-*.resume
try 0 '"skipped_items": 2' "$@" --long skip --json --dump-completions skipped.jsonl
[ "$(grep -c '"n": 4,' "$top/out")" = 2 ] || complain "questions: --long skip: n is not 4"
grep -q "left out: 2" "$top/err" || complain "questions: --long skip: nothing is said"
sed 's/.*"item": \([0-9]*\),.*/\1/' skipped.jsonl | tr '\n' ' ' | grep -q '^0 1 4 5 0 1 4 5 $' ||
    complain "questions: --long skip: other items: $(sed 's/.*"item": //; s/,.*//' skipped.jsonl)"
try 0 '"truncated_items": 2' "$@" --long cut --json --dump-completions cut.jsonl
grep -q "2 of 6 items are longer than .* with room for --max-new .* item 2, line 3" "$top/err" ||
    complain "questions: --long cut: $(cat "$top/err")"
grep '"item": [0145],' cut.jsonl | cmp -s - skipped.jsonl || complain "questions: --long cut: other texts of short prompts"
[ "$(grep -c '"item": 2,.*"tokens": 8' cut.jsonl)" = 2 ] || complain "questions: --long cut: no room for 8 tokens"
try 4 "nothing is left of a prompt" "$@" --long cut --max-new 512
printf '{"ctx": "%s", "choices": [" the hen", " the owl"], "gold": 0}\n' "the duck meets" "$many" "the hen meets" >long-mc.jsonl
printf '{"ctx": "the duck meets", "choices": [" the hen", "%s"], "gold": 0}\n' "$many" >>long-mc.jsonl
set -- eval "diff model" --task mc --data long-mc.jsonl --progress never
try 4 "item 3, line 4: choice 1 has .* or use --long skip" "$@"
try 4 "2 of 4 items are too long .* item 1, line 2, has" "$@" --long error
try 0 '"skipped_items": 2' "$@" --long skip --json --dump-items cut.jsonl --force --logit-bits 6
sed 's/.*"item": \([0-9]*\),.*/\1/' cut.jsonl | tr '\n' ' ' | grep -q '^0 0 2 2 $' || complain "tasks: --long skip: other items"
try 0 "1 of 3" eval "diff model" --task mc --data long-mc.jsonl --limit 3 --json # cut, as ever: in warnings
sed -n 2p long-mc.jsonl >one.jsonl
try 4 "1 of 1 items are too long .*None is left" eval "diff model" --task mc --data one.jsonl --long skip
try 2 "expected one of error, skip, cut" "$@" --long maybe
try 2 "long is for tasks with choices" eval "diff model" --text "$repo/calib/pair/text.txt" --long skip
rm -f long.jsonl long-mc.jsonl one.jsonl cut.jsonl skipped.jsonl

# ---- the published files of other sets; ASDiv's XML beside Python's reading of it
sets=$own/sets
try 0 "^Mean over 6 tasks, each counting as much (exact_match):$" eval "$repo/calib/longpair/diffllama-0" --task math,asdiv,mawps,carp,tabmwp,college_math \
    --data "$sets/math.jsonl" --data "$sets/asdiv.xml" --data "$sets/mawps.json" --data "$sets/carp.jsonl" --data "$sets/tabmwp.json" \
    --data "$sets/college_math.jsonl" --max-new 2 --dump-completions sets.jsonl --progress never
if command -v python3 >/dev/null; then
    python3 - sets.jsonl "$sets" <<'END' || complain "questions: published files are read otherwise"
import json, re, sys
import xml.etree.ElementTree as ET
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
got = [(x["id"], x["prompt"], x["gold"]) for x in lines if x["task"] == "asdiv"]
want = []
for p in ET.parse(sys.argv[2] + "/asdiv.xml").getroot().iter("Problem"):
    body, question, answer = (p.find(k).text.strip() for k in ("Body", "Question", "Answer"))
    want.append((p.get("ID"), f"Question: {body} {question}\nAnswer:", re.sub(r"\(.*?\)", "", answer).strip().replace(",", "")))
assert got == want, (got, want)
table = json.load(open(sys.argv[2] + "/tabmwp.json", encoding="utf-8"))
assert [x["id"] for x in lines if x["task"] == "tabmwp"] == list(table)
assert [x["gold"] for x in lines if x["task"] == "tabmwp"] == [t["answer"] for t in table.values()]
END
fi
rm sets.jsonl
try 3 "carp.jsonl: line 1: key \"problem\" is missing" eval "diff model" --task math --data "$sets/carp.jsonl"
# each set has examples of its own file and form
try 0 '"fewshot_data": \[' eval "$repo/calib/longpair/diffllama-0" --task math,tabmwp --data "$sets/math.jsonl" --data "$sets/tabmwp.json" --num-fewshot 1 \
    --fewshot-data "$sets/math.jsonl" --fewshot-data "$sets/tabmwp.json" --max-new 1 --dump-completions sets.jsonl --json
grep -q '"prompt": "Question: What is .*boxed{.*}\$.\\n\\nQuestion: Solve' sets.jsonl || complain "questions: math has another set's examples"
grep -q '"prompt": "Question: Jars.*The answer is 1,240.\\n\\nQuestion: Jar ' sets.jsonl || complain "questions: tabmwp has another set's examples"
rm sets.jsonl

# ---- Table 4: six sets in, requests to a judge out, its replies back; the judge here is a rule of Python's
set -- eval "plain model" "diff model" --task xsum,cnn_dailymail,multi_news,qasper,hotpotqa,2wikimqa --data "$sets/xsum.jsonl" --data "$sets/cnn_dailymail.jsonl" \
    --data "$sets/multi_news.jsonl" --data "$sets/qasper.jsonl" --data "$sets/hotpotqa.json" --data "$sets/2wikimqa.jsonl" --max-new 3 --progress never
try 2 "task xsum judges nothing.*--dump-completions" "$@"
try 0 "hotpotqa" "$@" --dump-completions texts.jsonl
try 0 "^requests.jsonl: 14 requests to gpt-4o$" judged texts.jsonl --requests requests.jsonl
[ "$(grep -c '"model": "gpt-4o"' requests.jsonl)" = 14 ] || complain "judged: requests name another judge"
try 0 "requests to other" judged texts.jsonl --requests requests.jsonl --judge other --force
if command -v python3 >/dev/null; then
    python3 - texts.jsonl requests.jsonl <<'END' >right.txt || complain "judged: requests are not what they should be"
import json, sys
texts, asked = ([json.loads(line) for line in open(n, encoding="utf-8")] for n in sys.argv[1:])
right = {}
with open("replies.jsonl", "w", encoding="utf-8") as f:
    for i, (x, q) in enumerate(zip(texts, asked)):
        said = q["body"]["messages"][0]["content"]
        assert x["prompt"] in said and x["completion"] in said and all("- " + r + "\n" in said for r in x["reference"])
        good = i % 3 != 1
        right.setdefault((x["model"], x["task"]), []).append(good)
        body = {"choices": [{"message": {"content": "Correct." if good else "incorrect"}}]}
        f.write(json.dumps({"custom_id": q["custom_id"], "response": {"status_code": 200, "body": body}}) + "\n")
print(json.dumps([[m, t, sum(v) / len(v), len(v)] for (m, t), v in right.items()]))
END
    try 0 "against first model" judged texts.jsonl --verdicts replies.jsonl
    try 0 '"cross_paired"' judged texts.jsonl --verdicts replies.jsonl --json
    sed '1s/Correct\./correct\/incorrect/' replies.jsonl >scale.jsonl
    try 0 "against first model" judged texts.jsonl --verdicts scale.jsonl
    grep -q 'scale.jsonl: 1 of 14 replies say neither .* the first in line 1: "correct/incorrect"' "$top/err" || complain "judged: a scale is a verdict: $(cat "$top/err")"
    try 0 '"cross_paired"' judged texts.jsonl --verdicts replies.jsonl --json
    python3 - "$top/out" right.txt <<'END' || complain "judged: accuracies are not those of the replies"
import json, sys
doc, want = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
assert [[r["model"], r["of_task"], r["metrics"]["acc"]["value"], r["n"]] for r in doc["results"]] == want
assert [i["kind"] for i in doc["inputs"]] == ["judged", "verdicts"]
END
    sed '1s/Correct\./I cannot say/' replies.jsonl | sed 2d >some.jsonl
    try 0 "xsum" judged texts.jsonl --verdicts some.jsonl
    grep -q "some.jsonl: 1 of 13 replies say neither correct nor incorrect alone, the first in line 1: \"I cannot say\"" "$top/err" || complain "judged: an unclear reply is not told"
    grep -q "texts.jsonl: 2 of 14 completions have no verdict" "$top/err" || complain "judged: lacking verdicts are not told"
    sed 's/"item": 0/"item": 7/' texts.jsonl >others.jsonl
    try 4 "replies.jsonl: line [0-9]*: a reply to none of these completions" judged others.jsonl --verdicts replies.jsonl
    head -n 1 some.jsonl >none.jsonl
    try 4 "none.jsonl: has no verdict of a completion in texts.jsonl" judged texts.jsonl --verdicts none.jsonl
    rm -f replies.jsonl some.jsonl others.jsonl right.txt
fi
try 2 "requests comes before any verdict; leave out --json" judged texts.jsonl --requests more.jsonl --json
try 2 "judge is about --requests" judged texts.jsonl --judge x
rm -f texts.jsonl requests.jsonl
