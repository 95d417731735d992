"""Services: their processes, output, stages and restarts. Knows nothing of timers."""
