#!/usr/bin/env python3
"""What dq stats costs over a plain pass of the model:  stats_overhead.py DQ MODEL TEXT [--tokens N] [--rounds N]

In turns: a prefill of N tokens (dq bench prefill), and dq stats over windows of N tokens with each --detail, in one pass.
One thread, processor time of the program itself: that of the system is for memory touched first, 0.3 to 2.5 s a run on a virtual
machine. A run's own costs, such as reading the model, go out as the difference of two runs, of FEW tokens and of MORE. Prints the
median over rounds of each, and of its ratio to the prefill of the same round.
"""
import argparse
import os
import resource
import statistics
import subprocess

FEW, MORE = 6144, 10240


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


def seconds_of_one(command, few, more):
    """Of what `command` does as often as the number after it says."""
    return (cpu_seconds([*command, str(more)]) - cpu_seconds([*command, str(few)])) / (more - few)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("dq")
    ap.add_argument("model")
    ap.add_argument("text")
    ap.add_argument("--tokens", type=int, default=2048)
    ap.add_argument("--rounds", type=int, default=3)
    a = ap.parse_args()
    n = str(a.tokens)
    stats = [a.dq, "stats", a.model, "--text", a.text, "--ctx", n, "--one-pass", "--threads", "1", "-q"]
    prefill = [a.dq, "bench", "prefill", a.model, "--tokens", n, "--threads", "1", "-q", "--runs"]
    few, more = max(FEW // a.tokens, 1), max(MORE // a.tokens, 2)
    kinds = {"table5": ["--detail", "table5"], "maps": ["--detail", "maps"], "all": []}
    seconds = {"prefill": [], **{k: [] for k in kinds}}
    for _ in range(a.rounds):
        seconds["prefill"].append(seconds_of_one(prefill, few, more))
        for kind, options in kinds.items():
            seconds[kind].append(seconds_of_one([*stats, *options, "--limit"], few, more))
    print(f"{os.path.basename(a.model)}: {n} tokens, {a.rounds} rounds")
    for kind, s in seconds.items():
        ratio = statistics.median(x / y for x, y in zip(s, seconds["prefill"]))
        print(f"{kind:8} {statistics.median(s):7.2f} s  {ratio:5.2f} x")


if __name__ == "__main__":
    main()
