# published.sh: the plans of results/plan are those of this program, and its README.md and docs/plan.md have their figures; sourced by
# run.sh. Where arithmetic is another than the plans were made with, codes may differ, and only the figures are compared.
command -v python3 >/dev/null || return 0
cat >recipe.py <<'PY'
import json
import sys

document = json.load(open(sys.argv[1]))
settings, plan = document["settings"], document["results"][0]
recipe = {k: settings[k] for k in ("method", "group", "scale", "scale_dtype")}
recipe.update(schema="dq-recipe/1", bits=settings["widths"][0], embed_bits=16)
recipe["rules"] = [{"name": t["name"], "bits": t["bits"]} for t in plan["units"]]
recipe["plan"] = {k: plan[k] for k in ("weights_sha256", "model_fingerprint", "calib", "arithmetic")}
json.dump(recipe, open(sys.argv[2], "w"))
unseen = plan["chosen"]["unseen"]
print("%.3f" % plan["packed_bits_per_weight"], "%.4f" % unseen["kld"]["value"], "%.4f to %.4f" % tuple(unseen["kld_interval"]))
PY
"$dq" doctor >doctor.txt
for model in llama diffllama; do
    python3 recipe.py "$repo/results/plan/$model.json" r.json >figures || complain "results/plan/$model.json: not read"
    read -r bits kld interval <figures
    grep -q -F -x "| $model | $bits | $kld ($interval) |" "$repo/results/plan/README.md" ||
        complain "results/plan/README.md: other figures than $model.json: $bits, $kld, $interval"
    grep -q -x -F "| \`calib/pair/$model\` | $bits | $kld | $interval |" "$repo/docs/plan.md" ||
        complain "docs/plan.md: other figures than results/plan/$model.json: $bits, $kld, $interval"
    made=$(sed -n 's/.*"arithmetic": "\(.*\)".*/\1/p' "$repo/results/plan/$model.json")
    grep -q -F "  $made" doctor.txt || continue
    try 0 "as planned  *yes" quantize "$repo/calib/pair/$model" -o $model.h5 --recipe r.json --calib "$repo/calib/pair/text.txt"
done
