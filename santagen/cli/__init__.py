"""The command line: one file per command, its options beside it; the only place that prints."""
