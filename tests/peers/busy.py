"""What other work on the machine costs dq: a command with one thread and with dq's own choice, in turns, beside N
processes that never rest, each round started anew. Prints wall seconds and the ratio of the rounds as JSON.

    python3 tests/peers/busy.py DQ [--busy 0,3,11] [--rounds 5] -- eval MODEL --text FILE ...
"""
import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds(command):
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def beside(n, ways, rounds):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        took = [{name: seconds(command) for name, command in ways.items()} for _ in range(rounds)]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    ratio = [t["own threads"] / t["one thread"] for t in took]
    return {"busy": n, "seconds": took, "ratio": statistics.median(ratio), "least": min(ratio), "most": max(ratio)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dq")
    parser.add_argument("--busy", default="0,3,11", help="processes that run beside it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("arguments", nargs="+", help="the command, after --")
    a = parser.parse_args()
    command = [a.dq, *a.arguments]
    ways = {"one thread": [*command, "--threads", "1"], "own threads": command}
    results = [beside(int(n), ways, a.rounds) for n in a.busy.split(",")]
    print(json.dumps({"arguments": a.arguments, "results": results}, indent=1))


if __name__ == "__main__":
    main()
