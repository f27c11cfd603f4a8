"""Scheduler, paged cache, device rows, sampling and the loop that joins them."""
