"""When an outage begins and ends, and what is told of it."""

from typing import Any

import pytest

from duly.config.loading import config_of
from duly.config.schema import Notify
from duly.daemon.notifications import JobNews, Notice, Outage, outage_after
from duly.instant import SECOND_US
from tests.unit.test_config_dashboard import PATH

FAILED, HUNG, MISSED, SILENT, WELL = (
    JobNews(event, f"it is {event}", 7) for event in ("failure", "hung", "missed", "silence", "recovery")
)
ON = ["failure", "hung", "recovery"]
LENGTH = "a length of time such as '5m' or '1h 30m'"
DEFAULTS = {"id": "ops", "webhook": "https://example.org"}


def notify(**options: Any) -> Notify:
    config = config_of(PATH, notify=[{**DEFAULTS, **options}])
    assert config.invalid == ()
    [found] = config.notify
    return found


def told(found: list[JobNews], **options: Any) -> list[str]:
    """What is told of this news, one a second, if each notice is delivered at once."""
    outage, events = None, []
    for second, news in enumerate(found):
        outage = outage_after(outage, news, notify(**options), second * SECOND_US)
        if outage is not None:
            events += [notice.event for notice in outage.notices]
            outage = None if outage.is_over else Outage(outage.since_us)
    return events


@pytest.mark.parametrize(
    ("found", "options", "events"),
    [
        ([WELL], {}, []),
        ([FAILED], {}, ["failure"]),
        ([FAILED, FAILED, FAILED], {}, ["failure"]),
        ([FAILED, FAILED, WELL, WELL], {}, ["failure", "recovery"]),
        ([FAILED, WELL, FAILED], {}, ["failure", "recovery", "failure"]),
        (
            [FAILED, HUNG, MISSED, SILENT, WELL],
            {"on": ["failure", "hung", "missed", "recovery"]},
            ["failure", "recovery"],
        ),
        ([HUNG, FAILED, WELL], {}, ["hung", "recovery"]),
        ([MISSED], {}, []),
        ([MISSED, WELL], {"on": "missed"}, ["missed"]),
        ([FAILED, WELL], {"on": ["failure"]}, ["failure"]),
        ([FAILED, WELL], {"on": ["recovery"]}, []),
        ([SILENT, WELL], {"on": ["recovery"]}, ["silence", "recovery"]),
        ([FAILED._replace(failed=number) for number in (1, 2)], {"failures": 3}, []),
        ([FAILED._replace(failed=number) for number in (1, 2, 3, 4)], {"failures": 3}, ["failure"]),
        ([FAILED, WELL], {"failures": 2}, []),
    ],
)
def test_one_message_for_each_outage(
    found: list[JobNews], options: dict[str, Any], events: list[str]
) -> None:
    """An outage begins with the first trouble that is asked for, and ends when the job is well again."""
    assert told(found, **options) == events


def test_nothing_is_lost_while_nobody_takes_it() -> None:
    """What is not delivered yet stays, also when the outage is over; the newest is kept of very many."""
    outage = outage_after(None, FAILED, notify(), 0)
    outage = outage_after(outage, WELL, notify(), 90 * SECOND_US)
    failure = Notice("failure", 0, "it is failure", 7)
    recovery = Notice("recovery", 90 * SECOND_US, "it is recovery, after 1m 30s", 7)
    assert outage == Outage(0, True, (failure, recovery))
    for second in range(1_000):
        outage = outage_after(outage, WELL if second % 2 else FAILED, notify(), second * SECOND_US)
    assert outage is not None
    assert len(outage.notices) == 10
    assert outage.notices[0] == failure
    assert outage.notices[-1].at_us == 999 * SECOND_US


def test_an_outage_that_nobody_was_told_of_ends_without_a_word() -> None:
    """An outage whose end is not to be told leaves nothing behind."""
    quiet = notify(on=["failure"])
    open_outage = Outage(0)
    assert outage_after(open_outage, WELL, quiet, 1) is None


# --- the configuration ---


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"id": "x"}, "needs one of webhook, email, command"),
        ({"id": "x", "webhook": "https://a.example", "command": "c"}, "needs one of webhook, email, command"),
        ({"webhook": "https://a.example"}, "has no id"),
        ({**DEFAULTS, "webhook": "ftp://a"}, "webhook must begin with https:// or http://"),
        ({**DEFAULTS, "format": "xml"}, 'format must be "json", "slack" or "ntfy", not "xml"'),
        ({"id": "x", "command": "c", "format": "json"}, "format is for webhook"),
        ({"id": "x", "email": "ops"}, 'email must be an address such as ops@example.org, not "ops"'),
        (
            {"id": "x", "email": "a@b\r\nBcc: c@d"},
            r'email must be an address such as ops@example.org, not "a@b\r\nBcc: c@d"',
        ),
        ({"id": "x", "email": []}, "email is empty"),
        ({"id": "x", "email": "a@b", "smtp": "http://a"}, "smtp must begin with smtps:// or smtp://"),
        ({**DEFAULTS, "smtp": "smtp://a"}, "smtp is for email"),
        ({**DEFAULTS, "on": "death"}, 'on must be "failure", "hung", "missed" or "recovery", not "death"'),
        ({**DEFAULTS, "failures": 0}, "failures must be 1 to 1000, not 0"),
        (
            {**DEFAULTS, "silence": "soon"},
            "silence needs a length of time such as '5m' or '1h 30m', not 'soon'",
        ),
        ({**DEFAULTS, "silence": 0}, "silence must be a positive number of seconds, not 0"),
        ({**DEFAULTS, "url": "x"}, 'unknown key "url"; did you mean webhook?'),
    ],
)
def test_what_is_refused(entry: dict[str, Any], reason: str) -> None:
    """An entry that cannot be used is invalid, for one clear reason."""
    [bad] = config_of(PATH, notify=[entry]).invalid
    assert (bad.kind, bad.reason) == ("notify", reason)


def test_secrets_are_not_shown() -> None:
    """Of a webhook and a mail server only the host is in what writes out a configuration."""
    hook = notify(webhook="https://chat.example/s3cret")
    mail = config_of(PATH, notify=[{"id": "m", "email": "a@b", "smtp": "smtps://u:s3cret@mx.example:4650"}])
    assert mail.invalid == ()
    assert "s3cret" not in f"{hook}{mail}"
    assert "mx.example:4650" in f"{mail}"
    assert notify(silence="26h").silence == notify(silence=26 * 3600).silence == 93_600
