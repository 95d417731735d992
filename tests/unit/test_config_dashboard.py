"""The table of the dashboard and the URLs to ping: what is refused, and what never shows."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.config import Config, Dashboard, Service, config_of
from duly.config.loading import load, load_to_run
from duly.config.plan import changes
from duly.config.schema import ConfigError, PingUrl
from duly.config.values import ListenAddress, address
from duly.daemon.views import definition, definition_text

PATH = Path("/etc/duly/duly.toml")
URL = "https://hc.example.org/s3cret?token=s3cret"


def config(dashboard: Any) -> Config:
    return config_of(PATH, [{"id": "a", "command": ["true"]}], dashboard=dashboard)


def service(url: Any) -> Service:
    found = config_of(PATH, [{"id": "a", "command": ["true"], "ping_url": url}])
    assert not found.invalid
    return found.services[0]


def test_defaults() -> None:
    """Without the table the dashboard is on the loopback, and nobody asked for that port."""
    found = config({})
    assert found.dashboard == Dashboard(True, "127.0.0.1:8787", None, None, ())
    assert not found.is_listen_given


def test_paths_are_seen_from_the_file() -> None:
    """Files of tokens and a socket lie beside the configuration unless they say otherwise."""
    found = config({"listen": "unix:web.sock", "token_file": "op", "viewer_token_file": "/run/v"})
    assert found.invalid == ()
    assert found.dashboard == Dashboard(True, "unix:/etc/duly/web.sock", "/etc/duly/op", "/run/v", ())
    assert found.is_listen_given


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8787", ListenAddress("127.0.0.1", 8787)),
        ("localhost:0", ListenAddress("localhost", 0)),
        ("[::1]:80", ListenAddress("::1", 80)),
        ("unix:/run/duly.sock", ListenAddress(path="/run/duly.sock")),
    ],
)
def test_addresses(text: str, expected: ListenAddress) -> None:
    """An address is a host and a port, or a path, and is written as it was read."""
    assert address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (3, "must be a table (a mapping of keys to values), not 3"),
        ({"lisen": 1}, 'unknown key "lisen"; did you mean listen?'),
        ({"port": 1}, 'unknown key "port"; did you mean listen?'),
        ({"enabled": 1}, "enabled must be true or false, not 1"),
        ({"listen": 8787}, "listen must be text, not 8787"),
        ({"listen": None}, "listen must be text, not null (None)"),
        ({"listen": "8787"}, "listen must be a host and a port"),
        ({"listen": ":8787"}, "listen must be a host and a port"),
        ({"listen": "::1:8787"}, "listen must be a host and a port"),
        ({"listen": "http://x:1"}, "listen must be a host and a port"),
        ({"listen": "a:65536"}, 'listen must end in a port from 0 to 65535, not "65536"'),
        ({"listen": "a:"}, 'listen must end in a port from 0 to 65535, not ""'),
        ({"listen": "a:\u0661"}, "listen must end in a port"),
        ({"listen": "unix:"}, "listen names no path; write unix:/path/of/socket"),
        ({"listen": "unix:" + "x" * 108}, "listen has a path of 108 bytes; a unix socket may have 107"),
        ({"token_file": ""}, "token_file is empty"),
        ({"viewer_token_file": 3}, "viewer_token_file must be text, not 3"),
        ({"allowed_hosts": "a"}, 'allowed_hosts must be a list of host names; write ["a"]'),
        ({"allowed_hosts": 3}, "allowed_hosts must be a list of host names, not 3"),
        ({"allowed_hosts": ["a:80"]}, 'and "a:80" is none; write names such as'),
        ({"allowed_hosts": ["*"]}, 'and "*" is none'),
        ({"trusted_proxies": "10.0.0.1"}, 'trusted_proxies must be a list of addresses; write ["10.0.0.1"]'),
        ({"trusted_proxies": ["proxy"]}, 'and "proxy" is none; write addresses or networks such as'),
        ({"trusted_proxies": ["10.0.0.1/8"]}, 'and "10.0.0.1/8" is none'),
        ({"trusted_proxies": [10]}, "and 10 is none"),
        ({"allowed_hosts": ["a"] * 101}, "allowed_hosts has 101 elements; at most 100 are allowed"),
    ],
)
def test_bad_tables(table: Any, reason: str) -> None:
    """What is wrong is said as a fault of the supervisor's settings, and the default holds."""
    [bad] = (found := config(table)).invalid
    assert (bad.kind, bad.id) == ("supervisor", None)
    assert bad.reason.startswith("dashboard: ")
    assert reason in bad.reason
    assert found.dashboard == Dashboard()


def test_hosts_are_names_in_small_letters() -> None:
    """Names are compared without regard to case, and kept once."""
    found = config({"allowed_hosts": ["Duly.Example.org", "duly.example.org", "[::1]"]})
    assert found.dashboard.allowed_hosts == ("duly.example.org", "[::1]")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("duly.toml", '[[service]]\nid = "a"\ncommand = "true"\n\n[dashboard]\nlisten = 3\n', 6),
        ("duly.py", 'SERVICES = [{"id": "a", "command": "x"}]\nDASHBOARD = {\n    "listen": 3,\n}\n', 3),
    ],
)
def test_nobody_runs_by_a_bad_table(tmp_path: Path, name: str, text: str, line: int) -> None:
    """A dashboard that cannot be as it was meant is no start: it might be open to all."""
    path = tmp_path / name
    path.write_text(text)
    assert [(bad.kind, bad.line) for bad in load(path).invalid] == [("supervisor", line)]
    with pytest.raises(ConfigError, match=rf":{line}: dashboard: listen must be text"):
        load_to_run(path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("duly.toml", "dashboard = 3\n", "dashboard must be a table, not 3"),
        ("duly.toml", "[web]\n", 'unknown table "web"; did you mean dashboard?'),
        ("duly.py", "SERVICES = []\nDASHBOARD = 3\n", "DASHBOARD must be a dict, not 3"),
        ("duly.py", "SERVICES = []\ndashboard = {}\n", "defines dashboard, which is not read"),
    ],
)
def test_bad_shapes(tmp_path: Path, name: str, text: str, reason: str) -> None:
    """A table that cannot be told apart from a mistake refuses the file."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (URL, "hc.example.org"),
        ("http://127.0.0.1:8000/x", "127.0.0.1:8000"),
        ("https://[::1]/x", "[::1]"),
        ("HTTPS://Example.org", "example.org"),
    ],
)
def test_ping_urls(url: str, host: str) -> None:
    """A URL is kept whole, and shows its host."""
    found = service(url).ping_url
    assert found is not None
    assert (found.host, found.secret) == (host, url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (3, "must be text, not 3"),
        (None, "must be text, not null (None)"),
        ("ftp://x/s3cret", "must begin with https:// or http://"),
        ("s3cret", "must begin with https:// or http://"),
        ("file:///etc/s3cret", "must begin with https:// or http://"),
        ("https:///s3cret", "names no host"),
        ("https://me:s3cret@x/", "must not hold a user name or password"),
        ("https://x:99999/s3cret", "is not a URL"),
        ("https://[x/s3cret", "is not a URL"),
        ("https://x/s3cret\r\nHost: y", "must be plain ASCII without spaces"),
        ("https://x/s3cret d", "must be plain ASCII without spaces"),
        ("https://x/s3crét", "must be plain ASCII without spaces"),
        ("https://x/#s3cret", "must not hold a # part"),
        ("https://x/s3cret" + "x" * 2000, "characters long; at most 2000 are allowed"),
    ],
)
def test_bad_ping_urls(url: Any, reason: str) -> None:
    """A URL that cannot be used is refused without being repeated."""
    [bad] = config_of(PATH, [{"id": "a", "command": ["true"], "ping_url": url}]).invalid
    assert reason in bad.reason
    assert "s3c" not in bad.reason


def test_the_url_is_not_written_out() -> None:
    """Whatever shows or stores a service has the host, and nothing else of the URL."""
    one = service(URL)
    ways: list[Any] = [repr(one), definition(one), definition_text(one), dataclasses.asdict(one)]
    ways += [msgspec.json.encode(one).decode(), msgspec.to_builtins(one), pickle.dumps(one)]
    assert "hc.example.org" in repr(one)
    assert not [way for way in ways if "s3cret" in str(way)]


def test_what_was_stored_is_no_change() -> None:
    """A service read back from a store, with the host alone, is the same service."""
    stored = msgspec.convert(msgspec.to_builtins(service(URL)), Service)
    assert stored.ping_url == PingUrl("hc.example.org")
    assert stored.ping_url.secret == ""
    before, after = config_of(PATH, [stored]), config_of(PATH, [service(URL)])
    assert changes(after, after).is_empty
    assert before.invalid, "a host alone is not a URL to run by"


def test_classes_take_a_text() -> None:
    """In Python the URL is written as it is."""
    [one] = config_of(PATH, [Service("a", ["true"], ping_url=URL)]).services
    assert one.ping_url is not None
    assert one.ping_url.secret == URL
