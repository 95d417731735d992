"""Timers over oneshot services, behind their gate (TIMERS.md 3 to 7); their face is `face.Timers`."""
