"""Families of faults: knobs that are on or off, by name. A dataclass of booleans can be one."""

from dataclasses import fields
from typing import Self

import click


class Families:
    """Which families of troubles there are: the fields of the dataclass that inherits this."""

    __slots__ = ()

    @classmethod
    def only(cls, *families: str) -> Self:
        """These families and no others."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type] # cls is a dataclass
        if unknown := set(families) - set(known):
            raise ValueError(
                f"no such family of faults: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        return cls(**{name: name in families for name in known})

    @classmethod
    def parsed(cls, value: str | None) -> Self:
        """The families that a command is given; all, if it is given none."""
        try:
            return cls() if value is None else cls.only(*(name for name in value.split(",") if name))
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    @property
    def families(self) -> list[str]:
        """The names of the families that are on."""
        return [field.name for field in fields(self) if getattr(self, field.name)]  # type: ignore[arg-type]
