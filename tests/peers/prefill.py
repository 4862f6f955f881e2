"""Prefill of one prompt: dq against transformers (eager and sdpa), f32, same threads, one run.

    python prefill.py DQ_PROGRAM MODEL_DIR [--tokens 512,2048] [--threads 2] [--runs 3] [-o OUT.json]

Rounds alternate between dq, eager and sdpa so that a machine whose speed drifts is fair to all. Each
round is one whole-process `dq bench` (its own warm-up, then one timed run) and one timed forward pass
of a resident transformers model; the ratio uses medians over rounds. One thread is timed by processor
time, as dq bench does, several by the clock on the wall. `dq bench compare OUT.json` prints the lines.
"""
import argparse
import json
import os
import statistics
import subprocess
import time


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dq")
    p.add_argument("model")
    p.add_argument("--tokens", default="512,2048")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("-o", "--output")
    a = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    import torch
    import transformers
    torch.set_num_threads(a.threads)
    load = lambda kind: transformers.AutoModelForCausalLM.from_pretrained(
        a.model, dtype=torch.float32, attn_implementation=kind).eval()
    model = load("eager")
    now = time.process_time if a.threads == 1 else time.perf_counter
    out = []
    for n in [int(x) for x in a.tokens.split(",")]:
        ids = torch.randint(0, model.config.vocab_size, (1, n))
        times = {"dq": [], "eager": [], "sdpa": []}

        def torch_run(kind):
            model.set_attn_implementation(kind)
            with torch.inference_mode():
                start = now()
                model(ids, logits_to_keep=1, use_cache=True)
                return now() - start

        torch_run("eager"), torch_run("sdpa")
        shares = []
        for _ in range(a.runs):
            text = subprocess.run([a.dq, "bench", "prefill", a.model, "--tokens", str(n), "--runs", "1",
                                   "--threads", str(a.threads), "--json"],
                                  check=True, capture_output=True).stdout
            r = json.loads(text)["results"][0]
            times["dq"].append(r["seconds_median"])
            shares.append((r["share_of_matmul"], r["share_of_peak"]))
            times["eager"].append(torch_run("eager"))
            times["sdpa"].append(torch_run("sdpa"))
        med = {k: statistics.median(v) for k, v in times.items()}
        of_matmul, of_peak = (statistics.median(x) for x in zip(*shares))
        for kind in ("eager", "sdpa"):
            out.append({"model": r["model"], "what": "prefill", "tokens": n, "weights": r["weights"], "math": "f32",
                        "threads": a.threads, "peer": f"transformers {kind}", "peer_weights": "F32",
                        "peer_tokens_per_second": n / med[kind], "dq_tokens_per_second": n / med["dq"],
                        "ratio": med[kind] / med["dq"], "share_of_matmul": of_matmul, "share_of_peak": of_peak,
                        "dq_peak_bytes": r["peak_bytes"], "peer_seconds": times[kind], "dq_seconds": times["dq"]})
            print(json.dumps(out[-1]), flush=True)
    doc = {"schema": "dq-peers/1", "command": "tests/peers/prefill.py", "torch": torch.__version__,
           "transformers": transformers.__version__,
           "settings": {"threads": a.threads, "rounds": a.runs,
                        "clock": "processor" if a.threads == 1 else "wall"}, "results": out}
    if a.output:
        with open(a.output, "w") as f:
            json.dump(doc, f, indent=2)


if __name__ == "__main__":
    main()
