#!/bin/sh
# run_all.sh STAGE [OUT]: the checks and benchmarks that need a GPU. stages.py --help says what a stage holds.
exec python3 "$(dirname "$0")/stages.py" "$@"
