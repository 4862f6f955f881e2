#!/usr/bin/env python3
"""How dq eval, dq stats and plans of a cache grow with ranks, from times of pieces that were measured.

    dq eval MODEL --text FILE ... --threads 1 --shard 1/1 -o one.shard
    python results/cluster/simulate.py one.shard [--pieces N] [--take SECONDS_A_MB] [--network BYTES_A_SECOND] [--start SECONDS]
    python results/cluster/simulate.py --equal PIECES,SECONDS,MB [--rounds N]

Each rank asks for its next piece before it begins one. Rank 0 computes too; what others tell it takes its time: reading, checking
and writing it down. Pieces of one size are drawn with replacement from those that were measured, N in all; --equal has pieces
that take as long and tell as much as each other. With --rounds they are done again and again, and all wait for the end of a round.
Prints one row for each number of ranks: seconds, efficiency beside one rank, the share of time in which ranks are idle, the share
of rank 0's time that others take, and bytes that it is told.

SPDX-License-Identifier: MIT
"""
import argparse
import heapq
import json
import random


def pieces_of(path):
    """(seconds, bytes that are told) of each piece."""
    out, told = [], 0
    with open(path) as f:
        for line in f:
            step = json.loads(line[65:])  # after its hash
            if "piece" in step:
                out.append((step["seconds"], told))
                told = 0
            elif "row" in step:
                told += len(line)
    return out


def run(pieces, ranks, take, network, start):
    """Seconds until all is done, seconds that ranks compute, seconds that rank 0 takes, bytes."""
    free = [(start, rank) for rank in range(ranks)]
    compute = taken = bytes_told = 0
    end = [start] * ranks
    zero_busy = 0.0  # what rank 0 has to take before it goes on
    for seconds, told in sorted(pieces, reverse=True):
        at, rank = heapq.heappop(free)
        if rank == 0:
            at += zero_busy
            zero_busy = 0.0
        else:
            cost = told / 1e6 * take
            zero_busy += cost
            taken += cost
            bytes_told += told
            at += told / network
        compute += seconds
        end[rank] = at + seconds
        heapq.heappush(free, (end[rank], rank))
    end[0] += zero_busy
    return max(max(end), start + taken), compute, taken, bytes_told


def main():
    p = argparse.ArgumentParser()
    p.add_argument("part", nargs="?")
    p.add_argument("--equal", help="PIECES,SECONDS,MB")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--pieces", type=int, default=0, help="0: those of the file")
    p.add_argument("--take", type=float, default=0.02, help="seconds that rank 0 takes for 1 MB")
    p.add_argument("--network", type=float, default=1.25e9, help="bytes a second (10 Gbit/s)")
    p.add_argument("--start", type=float, default=0.5, help="seconds until MPI runs and inputs are open")
    p.add_argument("--start-rank", type=float, default=0.002, help="seconds more for each rank")
    a = p.parse_args()
    if bool(a.part) == bool(a.equal):
        p.error("a part, or --equal")
    if a.equal:
        n, seconds, mb = (float(x) for x in a.equal.split(","))
        measured = [(seconds, mb * 1e6)] * int(n)
    else:
        measured = pieces_of(a.part)
    random.seed(1)
    pieces = random.choices(measured, k=a.pieces) if a.pieces else measured
    alone = sum(s for s, _ in pieces) * a.rounds
    print(f"{len(measured)} pieces measured, {len(pieces)} in {a.rounds} round(s), {alone:.0f} s on one rank, "
          f"the longest {max(pieces)[0]:.2f} s\n")
    print("| ranks | seconds | efficiency | idle | rank 0 takes | MB told |\n|---|---|---|---|---|---|")
    ranks = 1
    while ranks <= 1024:
        start = a.start + a.start_rank * ranks if ranks > 1 else 0
        one, compute, taken, told = (x * a.rounds for x in run(pieces, ranks, a.take, a.network, 0))
        seconds = one + start
        idle = 1 - (compute + taken) / (ranks * seconds)
        print(f"| {ranks} | {seconds:.1f} | {alone / ranks / seconds:.1%} | {max(idle, 0):.1%} | {taken / seconds:.1%} "
              f"| {told / 1e6:.1f} |")
        ranks *= 2


main()
