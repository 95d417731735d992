"""The dashboard: pages, a JSON API, live events, probes and metrics of a daemon or of a store."""
