"""Tasks, causes and decisions: pure functions over small frozen values. Nothing here does anything."""
