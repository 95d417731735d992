"""Crontabs as configurations: read the lines, translate the jobs, write TOML. Says what it could not do."""

from duly.config.crontab.jobs import Remark, Translated, translated
from duly.config.crontab.writing import toml_of

__all__ = ["Remark", "Translated", "toml_of", "translated"]
