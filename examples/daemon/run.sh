#!/bin/sh
# Starts the demonstration, as `make run` does. DULY is the command to use.
set -eu
duly=${DULY:-duly}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/state"
cat <<WELCOME

  This is the duly daemon, with a configuration that shows what it can do: $here/duly.toml
  Services start in stages, one of them crashes and comes back; timers fire, fail, retry, overlap and hit a limit.
  Within two minutes you will have seen it all. Ctrl-C ends everything in order.

  Look around, in a browser:  http://127.0.0.1:8787/

  Or in a second terminal:

    cd '$PWD'
    export DULY_CONFIG='$here/duly.toml'
    $duly timers                      what ran, what comes next, what was missed and why
    $duly services                    who is up, and how often it was restarted
    $duly status
    $duly history -n 30
    $duly logs web -f                 its output, live
    $duly why overlapping             why it ran, or did not, at its last minute
    $duly trigger retried --wait
    $duly enable switched-off
    $duly timers --off                the timer switch: timers are experimental (then --on)
    $duly check                       one timer is wrong on purpose

  Then be unkind, and run it again:

    Ctrl-C                            catching-up is cut off, and made up for at the next start
    kill -9 $$
                                      what it leaves behind is found and ended before anything starts

WELCOME
exec $duly run "$here/duly.toml"
