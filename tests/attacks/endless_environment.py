"""python endless_environment.py LENGTH: a process of nobody whose environment seems to be LENGTH bytes long.

It needs no privileges: PR_SET_MM_MAP lets a process move the bounds of its own environment. It says "ready",
or why the kernel does not let it, and waits for the end of its input.
"""

import ctypes
import mmap
import os
import pwd
import struct
import sys
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14


def main(length: int) -> None:
    """Drop all privileges, move the environment, and wait."""
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    # Never written, so it takes no memory here; not shared, because the kernel shows no environment in files.
    region = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(region))
    fields = [
        0,
        0,
        0,
        *Path("/proc/self/stat").read_text().rpartition(")")[2].split(),
    ]  # numbered as in proc(5)
    code, data, stack = fields[26:28], fields[45:47], fields[28]
    bounds = (*code, *data, fields[47], libc.sbrk(0), stack, *fields[48:50], begin, begin + length - 1)
    no_auxv, no_exe = (0, 0), -1
    layout = struct.pack("11Q QIi", *map(int, bounds), *no_auxv, no_exe)
    refused = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), 0)
    print(os.strerror(ctypes.get_errno()) if refused else "ready", flush=True)  # noqa: T201 (that is its purpose)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
