#!/usr/bin/env bash
# A training job on hosts without a scheduler, one process per host, over ssh:
#
#     launch/ssh.sh node01,node02 --config configs/llama3_8b.yaml --set run.name=first
#
# What follows the hosts goes to jaxpar.train. Each host has this folder and its environment under the same path, on a
# shared file system or set up one by one (make setup), and ssh needs no password. Process 0 is on the first host, under
# the name that is given here. Lines are printed with their host. Ctrl-C and SIGTERM close the connections, which ends
# the processes without a save; the same command continues from the newest checkpoint. The exit code is 0 where all
# processes ended with 0. Where other users reach the hosts: --set distributed.secret_file=FILE (docs/network.md).
set -euo pipefail

if [ $# -lt 1 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: launch/ssh.sh HOST,HOST,... [arguments of jaxpar.train]" >&2
    exit 2
fi
IFS=, read -r -a hosts <<<"$1"
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-.venv/bin/python}
PORT=${PORT:-61448}
# Variables that the processes need: the shell of ssh has none of ours.
passed=$(compgen -e | grep -E '^(NCCL_|XLA_|JAX_)' || true)

processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for id in "${!hosts[@]}"; do
    command=(env)
    for name in $passed; do command+=("$name=${!name}"); done
    command+=("$PYTHON" -m jaxpar.train "$@" --set "distributed.coordinator=${hosts[0]}:$PORT"
        --set "distributed.processes=${#hosts[@]}" --set "distributed.process_id=$id")
    # -tt: when the connection closes, the process there gets a hang-up.
    ssh -tt -o BatchMode=yes "${hosts[$id]}" "cd $(printf %q "$PWD") && exec $(printf '%q ' "${command[@]}")" \
        </dev/null > >(sed -u "s/^/${hosts[$id]}: /") 2>&1 &
    processes+=($!)
done

status=0
for process in "${processes[@]}"; do
    wait "$process" || status=$((status ? status : $?))
done
exit "$status"
