"""The moving parts behind a scheduler, one noun each: the book, the runs, the poller, the turns."""
