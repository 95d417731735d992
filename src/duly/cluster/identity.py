"""Who a member is: its number for one life, and what it says of itself."""

import uuid
from typing import NamedTuple


def drawn() -> int:
    """A number for a new member: 62 random bits."""
    return uuid.uuid4().int >> 66  # noqa: TID251 (who this is)


class Membership(NamedTuple):
    """Who a member is, and what can be expected of its cluster."""

    name: str
    shards: int
    failover_us: int
    """How long a shard may be without a living holder."""
