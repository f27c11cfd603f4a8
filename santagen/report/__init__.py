"""The page of `santagen report`: one HTML file with pictures, and nothing it would have to fetch.

    model (what is shown) -> sections (grid, charts, tables) -> page (style, script, the whole)

Everything that is shown passes `markup`, which escapes it: completions are hostile. Reads no files
and computes no scores.
"""
