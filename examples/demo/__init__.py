"""A scheduler at work, to watch, to stop, to kill, and to start again: `make demo`.

The tasks, the memory, the view, the table and the show are one module each; all but the last two are pure.
"""
