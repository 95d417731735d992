"""Templates and static files: how a page becomes bytes.

A page has two parts. Its content is the same for everybody with the same role. It is made in a thread, at
most once a second, however many look at it. The frame around it holds what is of one visitor alone, and is
small. A script that has the frame asks for the content only, and can wait: its content is made when nothing
is due and nothing happens. Static files carry their digest in their name, so browsers keep them.
"""

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import tzinfo
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from duly.daemon.views import schedule_text
from duly.errors import StoreError
from duly.instant import MINUTE_US, SECOND_US, Instant
from duly.web import formatting
from duly.web.models import TableQuery
from duly.web.runs import run_mark
from duly.web.security import Visitor, visitor
from duly.web.site import Site

PART_HEADER = "x-duly-part"
"""A script sends it to get the content only; its value is the id of the last event that it received."""

ZONE_COOKIE = "duly_zone"
"""Set by the script of a page."""

_FRESH_S = 1.0
_SHARE = 100
_LONGEST_PAUSE_S = 15.0
_PAUSE_PER_CLIENT_S = 0.05
_LONGEST_TURN_S = 5.0
_BEFORE_MINUTE_US = 100_000
_AFTER_MINUTE_US = 200_000
_MOST_KEPT = 64
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_BORDER = "\0"
"""Between the parts of a page; titles and links, which come first, never hold it."""


class NavigationLink(NamedTuple):
    href: str
    label: str
    is_here: bool
    number: int = 0
    tone: str = "calm"
    noun: str = ""


class Content(NamedTuple):
    """The part of a page that does not depend on who looks."""

    title: str
    nav: str
    body: str
    etag: str
    now_us: Instant
    status: int
    took_s: float = 0.0
    """How long it took to make."""
    tone: str = "good"
    """Of its icon: how bad things are."""


def _pause_s(content: Content) -> float:
    """How long a page is shown before it is made again: making it takes a hundredth of all time, at most."""
    return min(_SHARE * content.took_s, _LONGEST_PAUSE_S)


def until_minute_begun_s(now_us: Instant) -> float:
    """How long to wait so that no page is made while timers fire: their slots are whole minutes."""
    since_us = (now_us + _BEFORE_MINUTE_US) % MINUTE_US
    return max(_BEFORE_MINUTE_US + _AFTER_MINUTE_US - since_us, 0) / SECOND_US


class _Kept:
    """A page that is made, or being made. One *is_patient* that waits for a moment of calm first."""

    def __init__(self, made_s: float, *, is_patient: bool) -> None:
        self.task: asyncio.Task[Content] | None = None
        self.made_s = made_s
        self.is_patient = is_patient
        self.number: int | None = None
        """Of the last event when it was begun; None while it is not: whatever happens will be in it."""

    def has(self, seen: int) -> bool:
        return self.number is None or self.number >= seen


def query(
    asked: TableQuery, *, sort: str | None = None, down: bool | None = None, page: int | None = None
) -> str:
    fields = {
        "q": asked.text,
        "only": asked.only,
        "sort": asked.sort if sort is None else sort,
        "dir": "down" if (asked.is_down if down is None else down) else "",
        "page": str(asked.page if page is None else page),
    }
    if fields["page"] == "1":
        fields["page"] = ""
    return urlencode({key: value for key, value in fields.items() if value})


@cache
def statics() -> Mapping[str, tuple[str, bytes]]:
    """The static files by name: the name with its digest, and the bytes."""
    found = {}
    for file in files("duly.web").joinpath("static").iterdir():
        body = file.read_bytes()
        stem, _, kind = file.name.rpartition(".")
        if kind in _TYPES:
            found[file.name] = (f"{stem}.{hashlib.blake2s(body, digest_size=6).hexdigest()}.{kind}", body)
    return found


def static_file(name: str) -> Response | None:
    """A static file, by the name that has its digest; None if there is none."""
    for known, body in statics().values():
        if known == name:
            headers = {"cache-control": "public, max-age=31536000, immutable"}
            return Response(body, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
    return None


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("duly.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = formatting.visible
    environment.filters["capitalized"] = formatting.capitalized
    environment.globals.update(
        address=formatting.address,
        run_address=formatting.run_address,
        on_machine=formatting.on_machine,
        static=lambda name: f"/static/{statics()[name][0]}",
        query=query,
        run_mark=run_mark,
        result_mark=formatting.result_mark,
        length=formatting.length,
        schedule_text=schedule_text,
    )
    return environment


def made_of_template(name: str, values: Mapping[str, Any]) -> str:
    return _templates().get_template(name).render(values)


def _prepare() -> None:
    """Compile the templates before somebody waits for one."""
    with suppress(OSError):  # no descriptor is left, say: the page that needs the template reads it again
        for name in _templates().list_templates():
            _templates().get_template(name)


Gathered = tuple[str, Mapping[str, Any], int]
"""What a page shows: the name of its template, what that needs, and the status."""
Gathering = Callable[[], Awaitable[Gathered]]


def zone_asked(request: Request) -> tzinfo | None:
    """The zone that this browser wants to see times in; None for those of the schedules."""
    name = request.cookies.get(ZONE_COOKIE, "")
    return _zone_called(name) if name else None


@lru_cache(maxsize=64)
def _zone_called(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def message_page(heading: str, message: str, back: str, label: str, status: int) -> Gathered:
    values = {"heading": heading, "message": message, "back": back, "back_label": label}
    return "message.html", values, status


class Renderer:
    """Makes the pages of one site. *now_s* is a clock that nobody sets."""

    def __init__(
        self, site: Site, links: Callable[[str, int], list[NavigationLink]], now_s: Callable[[], float]
    ) -> None:
        self._site = site
        self._links = links
        self._now_s = now_s
        self._kept: dict[tuple[str, bytes, bool, str], _Kept] = {}
        # Held while a patient page is made: one at a time, so that they take turns with the scheduler's loop.
        self._turn = asyncio.Lock()
        threading.Thread(target=_prepare, name="duly templates", daemon=True).start()

    def may_act(self, who: Visitor) -> bool:
        return who.may_act and not self._site.is_read_only

    def forget(self) -> None:
        """Something was just changed: make every page again."""
        self._kept.clear()

    async def page(self, request: Request, gather: Gathering) -> Response:
        """The page of an address, shared with all who ask for it at about the same time."""
        path, is_patient = request.scope["path"], PART_HEADER in request.headers
        zone = str(zone_asked(request) or "")
        key = (path, request.scope["query_string"], self.may_act(visitor(request)), zone)
        # An id that is ahead of ours cannot be right: such a client gets what there is.
        number = formatting.whole_number(request.headers.get(PART_HEADER, "").rpartition("-")[2])
        seen = -1 if number is None else min(number, self._site.live.last)
        kept = self._kept.get(key)
        if kept is None or not self._is_fresh(kept, seen, is_patient=is_patient):
            kept = _Kept(self._now_s(), is_patient=is_patient)
            kept.task = asyncio.get_running_loop().create_task(self._content_in_turn(kept, path, gather))
            # Last in the order of the dict again: the page that goes first is the oldest.
            self._kept.pop(key, None)
            self._kept[key] = kept
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        # Shielded: a client that disconnects must not cancel the page for the others who wait for it.
        assert kept.task is not None
        content = await asyncio.shield(kept.task)
        response = self._response(request, content)
        pace_s = max(_pause_s(content), self._site.live.clients * _PAUSE_PER_CLIENT_S)
        response.headers["x-duly-pace"] = f"{pace_s:.2f}"
        if not kept.has(seen):
            response.headers["x-duly-again"] = "1"  # there is news that is not in it yet
        return response

    async def once(self, request: Request, gathered: Gathered) -> Response:
        return self._response(request, await self._content(request.url.path, gathered))

    def _is_fresh(self, kept: _Kept, seen: int, *, is_patient: bool) -> bool:
        task = kept.task
        if task is None or not task.done():
            return kept.has(seen) and (is_patient or not kept.is_patient)
        if task.cancelled() or task.exception() is not None:
            return False
        age_s = self._now_s() - kept.made_s
        return age_s < (_FRESH_S if kept.has(seen) else _pause_s(task.result()))

    async def _content_in_turn(self, kept: _Kept, path: str, gather: Gathering) -> Content:
        """The content; patient ones in turn, between the bursts: they must not hold up what is to start."""
        has_turn = kept.is_patient and await self._has_turn()
        try:
            if kept.is_patient:
                wait_s = until_minute_begun_s(self._site.backend.daemon_status().now_us)
                await asyncio.sleep(wait_s)  # noqa: TID251 (what it waits for is the clock of the host)
                await self._site.live.calm(self._now_s() - kept.made_s)
            # Before anything is gathered: what happens from here on is news that may not be in it.
            kept.number = self._site.live.last
            begun_s = self._now_s()
            try:
                gathered = await gather()
            except StoreError as error:
                gathered = message_page("The store cannot be read", error.message, "/", "Overview", 503)
            content = await self._content(path, gathered)
            return content._replace(took_s=self._now_s() - begun_s)
        finally:
            if has_turn:
                self._turn.release()

    async def _has_turn(self) -> bool:
        """Wait for the pages before it, but not for one that does not get ready: its disk may hang."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_TURN_S):
                return await self._turn.acquire()
        return False

    async def _content(self, path: str, gathered: Gathered) -> Content:
        template, values, status = gathered
        daemon_status = self._site.backend.daemon_status()
        moment = formatting.Moment(daemon_status.now_us, daemon_status.zone)
        shown = {"t": moment, "ill": 0, "tone": "good", **values}
        links = self._links(path, shown["ill"])
        shown |= {"links": links, "site_name": self._site.name, "border": _BORDER}
        rendered = await asyncio.to_thread(_templates().get_template(template).render, shown)
        title, nav, body = rendered.split(_BORDER, 2)
        etag = f'"{hashlib.blake2s((nav + body).encode(), digest_size=12).hexdigest()}"'
        return Content(title.strip(), nav, body, etag, moment.now_us, status, tone=shown["tone"])

    def _response(self, request: Request, content: Content) -> Response:
        seen = request.headers.get(PART_HEADER)
        if seen is not None:
            if request.headers.get("if-none-match") == content.etag:
                return Response(status_code=304, headers={"etag": content.etag})
            part = (
                f"<title>{content.title}</title><nav id=nav>{content.nav}</nav>"
                f'<div id=content data-now="{content.now_us}" data-tone="{content.tone}">{content.body}</div>'
            )
            return Response(part, content.status, {"etag": content.etag}, media_type="text/html")
        return Response(self._frame(request, content), content.status, media_type="text/html")

    def _frame(self, request: Request, content: Content) -> str:
        who = visitor(request)
        daemon_status = self._site.backend.daemon_status()
        links = self._links(request.url.path, 0) if who.role is not None else []
        zone = zone_asked(request)
        return (
            _templates()
            .get_template("layout.html")
            .render(
                version=daemon_status.version,
                zone_name=str(zone or daemon_status.zone),
                own_zone=str(daemon_status.zone),
                is_zone_chosen=zone is not None,
                tone=content.tone,
                title=Markup(content.title),  # noqa: S704 (rendered by a template, escaped there)
                nav=Markup(content.nav) if who.role is not None else "",  # noqa: S704 (as above)
                content=Markup(content.body),  # noqa: S704 (as above)
                now_us=content.now_us,
                csrf=who.csrf,
                role=who.role,
                has_tokens=who.has_tokens,
                is_read_only=self._site.is_read_only,
                is_live=who.role is not None,
                site_name=self._site.name,
                shortcuts=[
                    (link.label[0].lower(), link.href, link.label) for link in links if link.href != "/"
                ],
            )
        )
