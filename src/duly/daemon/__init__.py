"""The daemon: `duly run`, and how the rest of the world talks to it."""
