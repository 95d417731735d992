"""The traces of all members of a cluster, judged together: by terms, and not by the clocks of hosts.

`reading` makes `lives`, tenures and runs of the files, and `whole` puts the tenures of each shard in order;
`checks` looks at what only a cluster can do wrong; `merging` writes for each task the trace that one
scheduler would have left; `judging` has each of those judged as ever, and puts everything together.
"""

from duly.verify.cluster.judging import judged_together
from duly.verify.cluster.reading import recordings

__all__ = ["judged_together", "recordings"]
