#!/bin/bash
# One run or sweep on a SLURM cluster: Ray on all machines of the allocation, kinoray on the first.
#
#   sbatch slurm.sh
#
# Change what is marked. The folder of the results and the virtual environment lie on storage that all machines share.
# Once, where you type this: `ray get-auth-token --generate`, without which nobody runs code there (~ must be shared).
#
# Two minutes before the time is up the job goes back into the queue; the same command then goes on from the last
# committed state. Machines are taken whole: at its end Ray is stopped for all of your processes on them.

#SBATCH --job-name=kinoray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

set -euo pipefail

source /shared/venv/bin/activate                         # change
command=(kinoray run bmu_moco --runs /shared/runs)       # change

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.ray/auth_token"
export RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_ENABLE_STATE_TRACKING=1
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
ulimit -n 65536 || true

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{print $1}'):6379

trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

# In the background, so that bash hears the signal. The path is short: those of Ray's sockets have at most 107 bytes.
# RAY_ADDRESS for the command alone: kinoray then uses this Ray in place of one of its own.
srun ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --temp-dir="/tmp/ray-$SLURM_JOB_ID" \
    -- env RAY_ADDRESS="$address" "${command[@]}" &
wait $!
