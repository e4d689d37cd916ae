"""Evidence on a job that stands still: stacks of processes, and what NCCL knows."""
