#!/bin/sh
# ranks.sh: a program as three ranks. 77 where mpirun starts nothing.
#   sh tests/ranks.sh MPIRUN PROGRAM ARGUMENT...
set -eu
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
mpirun=$1
shift
"$mpirun" --oversubscribe --bind-to none -n 3 true || exit 77
exec "$mpirun" --oversubscribe --bind-to none -n 3 "$@"
