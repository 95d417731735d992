"""What people and machines get to see of a verification: text, JSON, and a page with time lines.

    outcome -> report -> text, JSON
    trace, read again -> history, or cluster -> timeline (what is drawn) -> drawing (where) -> page (how)

A `Report` is a pure function of the outcome. Only the page needs the trace once more; what it draws is
bounded, however long that is. The page is one file that runs nothing and loads nothing.

The dashboard has a time line of its own (`web/timeline.py`, `timeline.js`). That one counts what a history
says of each part of a span, asks again when somebody zooms, and needs a script. This one shows single events,
with the lines of the trace that show them. They share the axis and the colours.
"""
