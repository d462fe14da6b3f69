"""What a process writes, with a deadline: a test that waits for a line must not wait for ever."""

import threading

PATIENCE_SECONDS = 60


def line(process, seconds=PATIENCE_SECONDS, stream=None):
    """The next line of the process's standard output, or of another stream of it, which is a pipe of text.
    AssertionError: it has ended, or writes nothing for so long; whoever has the process ends it."""
    seen = []
    stream = stream or process.stdout

    def read():
        try:
            seen.append(stream.readline())
        except ValueError:  # closed meanwhile
            pass

    # Nothing else ends a read that waits, whoever has the other end of the pipe.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    if not seen:
        raise AssertionError(f"{process.args} has written no line for {seconds} s")
    if not seen[0]:
        raise AssertionError(f"{process.args} has ended, or has closed its output")
    return seen[0]
