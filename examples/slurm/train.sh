#!/bin/bash
# A training that outlives its job's time limit, preemption and dead processes:
#
#     sbatch examples/slurm/train.sh --config-name act_base preset=paper trainer.fsdp=true
#
# Five minutes before the limit Slurm sends USR1 to this script. The training saves a checkpoint and ends, the job is
# queued again, and when it runs again the training goes on by itself: it knows the number of its job.
#SBATCH --job-name=adadepth
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

queue_again() {
    kill -TERM "$training"
    wait "$training"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap queue_again USR1

# Jobs that share a node meet at ports of their own.
srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "$SLURM_GPUS_ON_NODE" --max_restarts 3 \
    --rdzv_backend c10d --rdzv_endpoint "$(hostname):$((20000 + SLURM_JOB_ID % 10000))" --rdzv_id "$SLURM_JOB_ID" \
    adadepth/run.py "$@" &
training=$!
wait "$training"
