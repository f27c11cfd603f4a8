"""Everything between files and the engine: prompts in, token ids, stop strings, samples out.

Imports root types only and no torch; the modules are imported one by one where they are needed.
"""
