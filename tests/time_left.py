#!/usr/bin/env python3
"""How well a command of dq says how long it takes: for a maintainer, on a quiet machine; no test runs it.

    tests/time_left.py build/dq quantize model -o /tmp/o.h5 --force --threads 1
    tests/time_left.py --threads 1,2 build/dq eval model --text text.txt

Runs it with --progress always and compares what it announces with the time that it took. Prints seconds: as announced
before the work, the sum of what had passed and was announced after a tenth of the time, the time itself; and the worst
error from a tenth on, as a share of the time. Exit status 1: above 25 %."""
import re
import subprocess
import sys
import time

UNITS = {"s": 1, "min": 60, "h": 3600}
LIMIT = 0.25


def seconds_left(line):
    found = re.search(r" %  ~?([\d:]+)( s)? left", line)
    if not found:
        return None
    total = 0
    for part in found[1].split(":"):
        total = 60 * total + int(part)
    return total


def seconds_announced(line):
    found = re.search(r"takes about ([\d.]+) (s|min|h)\b", line)
    return float(found[1]) * UNITS[found[2]] if found else None


def run(command):
    begin, told, announced = time.time(), [], None
    with subprocess.Popen(command + ["--progress", "always"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, errors="replace") as p:
        for line in p.stderr:
            left, start = seconds_left(line), seconds_announced(line)
            if left is not None:
                told.append((time.time() - begin, left, line.rstrip()))
            elif start is not None:
                announced = start
            else:
                sys.stderr.write(line)
    return p.returncode, time.time() - begin, announced, told


def main(argv):
    threads = [None]
    if argv[:1] == ["--threads"]:
        threads, argv = argv[1].split(","), argv[2:]
    if not argv:
        sys.exit(__doc__)
    print("%-60s %9s %9s %9s %6s" % ("command", "announced", "a tenth", "truth", "worst"))
    bad = False
    for n in threads:
        command = argv + (["--threads", n] if n else [])
        status, truth, announced, told = run(command)
        if status:
            sys.exit("exit status %d: %s" % (status, " ".join(command)))
        late = [(abs(at + left - truth) / truth, at, left, line) for at, left, line in told if at >= truth / 10]
        worst = max(late, default=(0, 0, 0, ""))
        tenth = "%9.0f" % (late[0][1] + late[0][2]) if late else "        -"
        print("%-60s %9s %s %9.1f %5.0f%%" % (" ".join(command[1:])[:60],
                                              "-" if announced is None else "%.0f" % announced,
                                              tenth, truth, 100 * worst[0]))
        if worst[0] > LIMIT:
            print("    at %.1f s: %s" % (worst[1], worst[3]))
            bad = True
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
