"""Running programs nobody trusts: what crosses to them, what holds them, who watches them.

    worker (trusted, with a checker) -- zygote (in the sandbox) -- one fork per program

Nothing here imports torch, and nothing here knows about tasks or scores.
"""
