"""The rendezvous of a job's processes: process 0 receives the others, with a secret if there is one."""
