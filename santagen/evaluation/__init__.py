"""Evaluation: tasks, the sandbox that runs programs, pass@k, and the files of results."""
