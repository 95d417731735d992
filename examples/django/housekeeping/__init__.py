"""An application with tasks."""
