"""How the processes of a job meet: process 0 receives the others, with a secret if there is one."""
