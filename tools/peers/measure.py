"""One peer, in a process of its own: `python -m tools.peers.measure NAME` prints a line of JSON an answer."""

import json
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version

from tools.peers.adapters import PEERS
from tools.peers.questions import QUESTIONS

NOT_INSTALLED = "not installed"


def main(name: str) -> None:
    """Print the version and then the answers, each at once, so that a peer that hangs still leaves some."""
    warnings.simplefilter("ignore")
    peer = PEERS[name]
    found = _version(peer.package)
    print(json.dumps(found), flush=True)
    for question in QUESTIONS:
        print(json.dumps(found if found == NOT_INSTALLED else question.answer(peer)), flush=True)


def _version(package: str) -> str:
    """The version; duly is not installed here, and is the one next to this file."""
    try:
        return "as it is here" if package == "duly" else version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


if __name__ == "__main__":
    main(sys.argv[1])
