"""Crontabs as configurations: read the lines, translate the jobs, write TOML. Says what it could not do.

The input is any text of at most 1 MiB. The output always loads in duly: what would not is left out with a
remark, and jobs that do not fit into one file are refused (`TooManyJobsError`).
"""

from duly.config.crontab.jobs import Remark, TooManyJobsError, Translated, toml_of, translated

__all__ = ["Remark", "TooManyJobsError", "Translated", "toml_of", "translated"]
