"""Measures a model's speed beside the hardware's limit: probes, cases, and what is said of them."""
