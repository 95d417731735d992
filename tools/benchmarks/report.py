"""The table at the end: what, duly, goal, met or not, and every peer with how many times slower it is."""

from collections.abc import Iterable

from tools.benchmarks.case import Row

_HEAD = ("what", "duly", "goal", "met", "peers (times duly)")


def table(rows: Iterable[Row]) -> str:
    """The rows as text in columns."""
    lines = [_HEAD, *((r.what, shown(r.duly, r.unit), r.goal, _met(r.is_met), _peers(r)) for r in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD) - 1)]
    lines.insert(
        1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "-" * widths[3], "-" * len(_HEAD[-1]))
    )
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        ).rstrip()
        for line in lines
    )


def shown(value: float | None, unit: str) -> str:
    """A number with as many digits as mean something."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f} {unit}".rstrip()


def _met(is_met: bool | None) -> str:
    return "" if is_met is None else "yes" if is_met else "NO"


def _peers(row: Row) -> str:
    return "; ".join(_peer(name, value, row) for name, value in row.peers.items())


def _peer(name: str, value: float | None, row: Row) -> str:
    if value is None:
        return f"{name} -"
    ratio = f" ({value / row.duly:,.1f}x)" if row.duly else ""
    return f"{name} {shown(value, row.unit)}{ratio}"
