"""Seeded mutants of the scheduler, and the hunt that must kill every one of them."""
