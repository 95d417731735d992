"""OnCalendar expressions beside `systemd-analyze calendar`: both refuse the same, and fire alike."""

import random
import re
import shutil
import subprocess
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from duly.config import Timer
from duly.config.systemd import NotTranslatableError, calendar_of
from duly.instant import NEVER_US, datetime_at, instant_of
from duly.timers.calendar import CalendarCache, slot_after

ANALYZE = shutil.which("systemd-analyze")
NOW = datetime(2026, 1, 15, 10, 20, 30, tzinfo=UTC)
TIMES = 3
DAYS = ("Mon", "Tue", "wed", "THU", "Friday", "Sat", "Sunday", "Monday")
WORDS = (
    "minutely",
    "hourly",
    "daily",
    "Weekly",
    "monthly",
    "quarterly",
    "yearly",
    "annually",
    "semiannually",
)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Asia/Nowhere")


def part(draw: random.Random, lowest: int, highest: int) -> str:
    """A number, a range, or one of these with a step; now and then one that is out of bounds."""
    first = (
        draw.choice([max(lowest - 1, 0), highest + 1])
        if draw.random() < 0.02
        else draw.randint(lowest, highest)
    )
    text = f"{first:02}" if draw.random() < 0.3 else str(first)
    if draw.random() < 0.25:
        text += f"..{draw.randint(min(first + 1, highest) if draw.random() < 0.95 else lowest, highest)}"
    if draw.random() < 0.25:
        text += f"/{draw.randint(1, 3) if draw.random() < 0.8 else draw.randint(0, highest)}"
    return text


def chain(draw: random.Random, lowest: int, highest: int, star: float = 0.35) -> str:
    if draw.random() < star:
        return "*"
    return ",".join(part(draw, lowest, highest) for _ in range(draw.choice([1, 1, 1, 2, 3])))


def expression(draw: random.Random) -> str:
    """One of the forms of systemd.time(7), or one that is nearly so."""
    if draw.random() < 0.02:
        return draw.choice(WORDS) + draw.choice(["", " UTC", " Europe/Berlin"])
    text = ""
    if draw.random() < 0.4:
        joint = draw.choice([",", ",", "..", "-"])
        text += f"{joint.join(sorted(draw.sample(DAYS, draw.choice([1, 2])), key=DAYS.index))} "
    if draw.random() < 0.5:
        text += f"{chain(draw, 2025, 2030, 0.95)}-" if draw.random() < 0.8 else ""
        # systemd 252 refuses some lists of days from the end that its manual allows: one day only.
        days = f"~{draw.randint(1, 30)}" if draw.random() < 0.1 else f"-{chain(draw, 1, 31, 0.5)}"
        text += f"{chain(draw, 1, 12, 0.6)}{days} "
    if draw.random() < 0.9 or not text:
        text += f"{chain(draw, 0, 23)}:{chain(draw, 0, 59, 0.3)}"
        text += f":{draw.choice(['00', '0', '0', '30', '0/20', '*', '1.5'])}" if draw.random() < 0.2 else ""
    text = text.rstrip() + (f" {draw.choice(ZONES)}" if draw.random() < 0.15 else "")
    if draw.random() < 0.04:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice("*,./-:x") + text[at + 1 :]
    return text


def systemd_times(texts: list[str]) -> dict[str, list[str] | None]:
    """What systemd makes of each: its next times, or None where it refuses; nothing where it gives up."""
    assert ANALYZE is not None
    # Several processes: an argument list has a limit.
    found: dict[str, list[str] | None] = {}
    rest = iter(texts)
    while some := list(islice(rest, 2000)):
        said = subprocess.run(
            [
                ANALYZE,
                "calendar",
                f"--base-time={NOW:%Y-%m-%d %H:%M:%S} UTC",
                f"--iterations={TIMES}",
                "--",
                *some,
            ],
            check=False,
            capture_output=True,
            text=True,
            env={"TZ": "UTC", "LC_ALL": "C"},
        )
        refused = set(re.findall(r"Failed to parse calendar specification '(.*)': ", said.stderr))
        # systemd 252 stops its search in some zones: "Resource deadlock avoided".
        given_up = set(re.findall(r"Failed to determine next elapse for '(.*)': ", said.stderr))
        blocks: list[list[str]] = []
        is_begun = False
        for line in said.stdout.splitlines():
            name, _, value = line.strip().partition(": ")
            if name in {"Original form", "Normalized form"}:
                blocks += [] if is_begun and name == "Normalized form" else [[]]
            elif name == "Next elapse" or name.startswith("Iter. #"):
                blocks[-1].append(value)
            is_begun = name == "Original form"
        good = [text for text in some if text not in refused | given_up]
        found |= dict.fromkeys(refused) | dict(zip(good, blocks, strict=True))
    return found


def own_times(text: str) -> list[str]:
    """When a timer with this calendar fires next, as systemd writes it. Raises NotTranslatableError."""
    calendar, zone = calendar_of(text)
    times = CalendarCache(ZoneInfo(zone or "UTC")).of(Timer("t", "job", on_calendar=(calendar,)))
    at_us = instant_of(NOW)
    found: list[str] = []
    while len(found) < TIMES and (at_us := slot_after(times, at_us)) < NEVER_US:
        found.append(f"{datetime_at(at_us, UTC):%a %Y-%m-%d %H:%M:%S UTC}")
    return found or ["never"]


def judged(seed: int, count: int) -> None:
    draw = random.Random(seed)
    texts = list(dict.fromkeys(expression(draw) for _ in range(count * 5 // 4)))[:count]
    assert len(texts) == count
    compared = 0
    for text, theirs in systemd_times(texts).items():
        try:
            ours: list[str] | None = own_times(text)
        except NotTranslatableError as error:
            # What has no equal here is at least understood: systemd takes it.
            assert (theirs is None) == error.is_invalid, f"seed {seed}: {text!r}: {error}; systemd: {theirs}"
        else:
            assert ours == theirs, f"seed {seed}: {text!r}"
            compared += 1
    assert compared > count / 3


needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")


@needs_systemd
@pytest.mark.heavy
def test_what_systemd_gives_up() -> None:
    """An expression of which systemd finds no next time spoils no other."""
    texts = ["hourly", "Mon *-1/5-5 00/2:2/1 America/New_York", "Mon 12:00"]
    found = systemd_times(texts)
    assert (found["hourly"], found["Mon 12:00"]) == (own_times("hourly"), own_times("Mon 12:00"))


@needs_systemd
@pytest.mark.heavy
def test_ten_thousand_expressions() -> None:
    """Of ten thousand expressions each means the same to systemd."""
    judged(17, 10_000)


@needs_systemd
@pytest.mark.slow
@pytest.mark.heavy
def test_another_ten_thousand_expressions() -> None:
    """So do ten thousand others in each run."""
    judged(random.randrange(1 << 32), 10_000)
