"""Runs programs of Python in forks of one process that has imported their packages. The import of torch or Triton takes
each rank of each job longer than most cases take.

`command` of a Prepared stands for `python3`: followed by a program and its arguments, it runs this program with its own
environment, folder and files, and ends with its exit code. A program whose command dies is killed.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys

ENVIRONMENT_BYTES_MAX = 128 << 10
SECONDS_MAX = 60  # for a command to say what it runs, and for all to end


class Prepared:
    """Owns the process, which starts with this environment and imports the modules."""

    def __init__(self, address, modules, environment):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(64)  # commands wait here until the modules are there
            self._process = subprocess.Popen([sys.executable, __file__, "serve", str(listener.fileno()), *modules],
                                             stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=environment)
        self.command = (sys.executable, "-SE", os.path.abspath(__file__), "run", address)

    def close(self):
        """Ends it, and the programs that still run."""
        self._process.stdin.close()
        assert self._process.wait(SECONDS_MAX) == 0, "the process that forks programs has failed"


def run(address, *program):
    """Returns the exit code of the program, which runs in a fork."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        message = json.dumps([program, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(connection, [message], [0, 1, 2])
        code = connection.recv(16)
    return int(code) if code else f"{address}: the process that forks programs has ended"


def serve(listener, *modules):
    """Starts programs until the standard input ends. Returns in each fork, with sys.argv of its program."""
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # so that forks end without a look at all that was imported
    programs = []  # the connection, the pid, and the pidfd of each
    listener = socket.socket(fileno=int(listener))
    while True:
        ready = select.select([0, listener, *(file for each in programs for file in each[::2])], [], [])[0]
        for each in programs[:]:
            connection, pid, ended = each
            if 0 in ready or connection in ready:
                os.kill(pid, signal.SIGKILL)
            elif ended not in ready:
                continue
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                connection.send(str(code if code >= 0 else 128 - code).encode())
            connection.close()
            os.close(ended)
            programs.remove(each)
        if 0 in ready:
            sys.exit(0)
        if listener in ready:
            connection = listener.accept()[0]
            connection.settimeout(SECONDS_MAX)
            message, files, _, _ = socket.recv_fds(connection, ENVIRONMENT_BYTES_MAX, 3)
            pid = os.fork()
            if pid == 0:
                break
            for file in files:
                os.close(file)
            programs.append((connection, pid, os.pidfd_open(pid)))
    for other, _, ended in programs:
        other.close()
        os.close(ended)
    connection.close()
    listener.close()
    program, environment, folder = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv[:] = program
    sys.path[0] = os.path.dirname(program[0])


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(*sys.argv[2:]))
    serve(*sys.argv[2:])
    runpy.run_path(sys.argv[0], run_name="__main__")
