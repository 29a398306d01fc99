"""Kills the programs of a GPU check that ends without ending them: by a SIGKILL, say.

Reads the numbers of process groups from standard input, one a line: `+N` for one that begins, `-N` for one that has
ended. When the input ends, so has the GPU check, and the groups that are left are killed.
"""

import os
import signal
import sys


def main():
    groups = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the end of the input is what counts
        signal.signal(ending, signal.SIG_IGN)
    main()
