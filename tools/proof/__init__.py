"""Keeps the numbers of the proof: how much was simulated, what was found, what is left open."""
