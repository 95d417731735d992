"""Files that commands write for people: never over one that is there, unless told so, and never half."""

import os
import secrets
from pathlib import Path

from duly.cli.refusals import Refusal


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, or with *force* in place of the one that is. Raises Refusal."""
    try:
        if force:
            _replace(path, text)
        else:
            _create(path, text)
    except FileExistsError as error:
        raise _refused(path, "exists already; --force overwrites it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise _refused(path, f"cannot be written: {said}") from error


def _create(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            path.unlink()  # what is ours and half: a disk was full, or somebody pressed Ctrl-C
            raise


def _replace(path: Path, text: str) -> None:
    if path.is_dir():
        raise IsADirectoryError(0, "it is a directory")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)  # noqa: PTH105 - the same
    finally:
        beside.unlink(missing_ok=True)


def _refused(path: Path, reason: str) -> Refusal:
    return Refusal(
        "not_written",
        f"{path} {reason}",
        facts={"path": str(path), "reason": reason},
        lines=[],
        as_json=False,
    )
