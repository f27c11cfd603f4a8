"""Many processes as one run: who they are, the store they meet at, the queue they draw rows from.

Tensor-parallel products live in `santagen.distributed` and `santagen.model`; the command line
decides what each process does.
"""
