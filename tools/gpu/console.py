"""Standard output and error, whose reader may leave: a closed terminal or pipe ends nothing."""

import os
import sys

# What programs under test print may hold characters that a terminal takes for commands.
_ESCAPES = {code: "\\x%02x" % code for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def printable(text):
    """Returns the text with control characters as `\\x1b`."""
    return text.translate(_ESCAPES)


class _Console:

    def __init__(self, stream):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
        self._stream = stream

    def write(self, text):
        self._try(lambda: self._stream.write(printable(text)))
        return len(text)

    def flush(self):
        self._try(self._stream.flush)

    def fileno(self):
        return self._stream.fileno()

    def _try(self, action):
        try:
            action()
        except OSError:  # what is still to be said goes nowhere
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def use():
    """From now on `print` raises no OSError."""
    # Either is None where its descriptor was closed from the beginning.
    sys.stdout, sys.stderr = (stream and _Console(stream) for stream in (sys.stdout, sys.stderr))
