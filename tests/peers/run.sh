#!/bin/sh
# run.sh: a check in Python that needs packages which are not of this project. Exits 77, which CTest takes for skipped,
# where they or Python are missing.
#   sh tests/peers/run.sh PYTHON "MODULE..." SCRIPT ARGUMENT...
set -u
python=$1 modules=$2
shift 2
for module in $modules; do
    "$python" -c "import $module" 2>/dev/null || {
        echo "skipped: $python has no $module"
        exit 77
    }
done
exec "$python" "$@"
