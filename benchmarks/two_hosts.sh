#!/bin/sh
# a2a between two machines: over TCP, over UCX, beside Gloo where Torch is there, and MPI where it is asked for.
#
#   benchmarks/two_hosts.sh lead ADDRESS            on the first machine, which the second reaches at ADDRESS
#   benchmarks/two_hosts.sh join ADDRESS            on the second; the first one says what to type there
#   benchmarks/two_hosts.sh ssh ADDRESS OTHER       on the first one: both, the second by ssh, in the same directory
#
# Both need a checkout, and an environment with a2a-comm[ucx] and perhaps torch. Variables:
#   PYTHON   the interpreter (python3)
#   EACH     ranks on each machine (1)
#   NAMES    the contenders, of a2a, a2a-ucx and gloo (all that are there)
#   PORT     the first of six free ports of the first machine (29400)
#   MPIEXEC  mpiexec with the options that put EACH ranks on each machine; for lead and ssh. Needs mpi4py
#   OPTIONS  for the driver, such as "--seconds 600 --rounds 9 --output run"
# Writes two_hosts.json and two_hosts.txt.
set -eu

how=${1:-} address=${2:-} other=${3:-}
PYTHON=${PYTHON:-python3} EACH=${EACH:-1} PORT=${PORT:-29400}
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

has() { "$PYTHON" -c "$1" >/dev/null 2>&1; }
contenders() {
  echo a2a
  has 'import a2a._core; a2a._core.library_of("ucx")' && echo a2a-ucx
  has 'import torch' && echo gloo
  true
}

# start NODE NAME...: this machine's ranks of the contenders, in the background.
start() {
  node=$1 meeting=$PORT
  shift
  for name in "$@"; do
    meeting=$((meeting + 2)) local_rank=0
    while [ "$local_rank" -lt "$EACH" ]; do
      network=tcp
      [ "$name" = a2a-ucx ] && network=ucx
      env A2A_NETWORK=$network MASTER_ADDR="$address" MASTER_PORT=$((meeting - 1)) RANK=$((node * EACH + local_rank)) \
        WORLD_SIZE=$((2 * EACH)) LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE="$EACH" \
        "$PYTHON" "$here/host_ranks.py" "$name" "$address:$PORT" &
      local_rank=$((local_rank + 1))
    done
  done
}

case $how in
lead | ssh)
  [ -n "$address" ] || usage
  [ "$how" = lead ] || [ -n "$other" ] || usage
  A2A_SECRET=${A2A_SECRET:-$("$PYTHON" -c 'import secrets; print(secrets.token_hex(16))')}
  export A2A_SECRET
  names=${NAMES:-$(contenders | tr '\n' ' ')}
  join="A2A_SECRET=$A2A_SECRET EACH=$EACH PORT=$PORT NAMES='$names' PYTHON=$PYTHON sh $here/two_hosts.sh join $address"
  # shellcheck disable=SC2086  # names and options are lists
  "$PYTHON" "$here/two_hosts.py" --port "$PORT" --each "$EACH" --contenders $names ${MPIEXEC:+mpi} ${OPTIONS:-} &
  driver=$!
  start 0 $names
  [ -z "${MPIEXEC:-}" ] || $MPIEXEC "$PYTHON" "$here/host_ranks.py" mpi "$address:$PORT" &
  if [ "$how" = ssh ]; then
    ssh -o BatchMode=yes "$other" "$join" &
  else
    echo "# On the other machine: $join"
  fi
  wait $driver
  ;;
join)
  [ -n "$address" ] && [ -n "${A2A_SECRET:-}" ] || usage
  # shellcheck disable=SC2086
  start 1 ${NAMES:-$(contenders)}
  wait
  ;;
*) usage ;;
esac
