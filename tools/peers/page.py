"""docs/peers.md: every peer measured in a process of its own, and the answers as one page of tables."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.markdown import wrapped
from tools.peers.adapters import PEERS
from tools.peers.environment import ROOT, prepared
from tools.peers.questions import QUESTIONS, Question

PAGE = ROOT / "docs" / "peers.md"
_PATIENCE_S = 45
_TOPICS = {"clocks": "When the clocks change", "days": "Days", "syntax": "What is accepted"}

_HEAD = """# What cron libraries make of the same text

Written by `python tools/peers/run.py`. It installs the libraries below into an environment of their own,
asks each the same questions, and writes down the answers. No answer on this page is typed by hand.
"""

_LEGEND = """## How to read it

- Times are those on the clocks of the zone, with the offset from UTC. "called 02:30": the library names a
  time that is skipped on that day; what it calls so is really the moment named before it. "which no clock
  shows": the same, from a library that answers without a zone, so that there is no moment to tell.
- refused: the library raised that error when it was given the text. raises: it took the text, and raised that
  error when it was asked for the firings. never: it took the text, and does not fire in the stretch of time
  that was looked at (four months for days, an hour for what is accepted).
- StuckError: it answered with a firing that is not later than the one before. no answer: it was still
  searching when it was cut off.
- A dash: schedule has words of its own in place of cron text, and cannot say this.
- `:05 :10` are the minutes of an hour at which it fires.
- A text in quotes is shown as Python writes it, so that spaces, tabs and the like can be seen.

How each is asked: duly, croniter, croniter-rs, cronsim, crontab and cron-converter for the next firing, again
and again. aiocron for its own timers, with its clock set. APScheduler as its scheduler asks
`CronTrigger.from_crontab`. celery's `crontab` in a loop like that of celery beat. pycron, which only says
whether a minute matches, once in every minute that really passes. schedule with its clock set, looking once a
minute. cron_descriptor only describes, and is not here.
"""


def main() -> None:
    """Measure, and write the page."""
    python = prepared(_say)
    begin_s = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(PEERS, pool.map(lambda name: answers_of(python, name), PEERS), strict=True))
    PAGE.write_text(wrapped("".join(page(answers))))
    took_s = time.perf_counter() - begin_s
    _say(f"measured {len(PEERS)} libraries in {took_s:.0f} s; see {PAGE.relative_to(ROOT)}")


def answers_of(python: Path, name: str) -> list[str]:
    """The version of a peer and its answers; what a peer that hangs did not say is reported as such."""
    command = [str(python), "-m", "tools.peers.measure", name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "TZ": "UTC"}
    try:
        done = subprocess.run(
            command, env=environment, check=False, capture_output=True, timeout=_PATIENCE_S, cwd=ROOT
        )
        output = done.stdout
        sys.stderr.write(done.stderr.decode(errors="replace"))
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    seen = [str(json.loads(line)) for line in output.splitlines() if line.endswith(b'"')]
    return [*seen, *["no answer"] * (1 + len(QUESTIONS) - len(seen))]


def page(answers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The page, piece by piece."""
    yield _HEAD
    yield f"\nMeasured with Python {platform.python_version()}: "
    yield ", ".join(f"{name} {seen[0]}".strip() for name, seen in answers.items() if name != "duly") + ".\n"
    for topic, title in _TOPICS.items():
        rows = [
            (index, question) for index, question in enumerate(QUESTIONS, start=1) if question.topic == topic
        ]
        yield f"\n## {title}\n\n"
        yield "| asked | text | " + " | ".join(answers) + " |\n"
        yield "|---" * (2 + len(answers)) + "|\n"
        for index, question in rows:
            yield row(question, [seen[index] for seen in answers.values()])
    yield "\n" + _LEGEND


def row(question: Question, cells: Sequence[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join([question.says, f"`{shown(question.text)}`", *cells]) + " |\n"


def shown(text: str) -> str:
    """A cron text as Python writes it, without the quotes unless spaces would be lost."""
    return repr(text) if text != text.strip() or not text.isprintable() or "  " in text else text


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    main()
