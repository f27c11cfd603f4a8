"""Device kernels, one file each, beside plain torch twins that tests compare them with.

Triton is imported only where a kernel is launched: this package loads without it.
"""
