"""A real irisd for Python tests: in a directory of its own under /tmp, because paths of Unix sockets are short."""

import glob
import os
import resource
import shutil
import subprocess
import tempfile
import time

IRISD = "server/irisd"
PATIENCE_SECONDS = 60


class Irisd:
    """Starts irisd and waits until it has its sockets. Use as a context, or call stop(). `user`: an irisd without
    privileges, if this process is root. `open_files`: its RLIMIT_NOFILE. `within`: a command that executes it."""

    def __init__(self, *flags, devices=4, memory="256MiB", backend="emu", user=None, open_files=None,
                 self_check=False, within=()):
        self.folder = tempfile.mkdtemp(prefix="iris-py-", dir="/tmp")
        os.chmod(self.folder, 0o755)
        program = IRISD
        if user is not None:
            # Where it was built, another user perhaps may not look.
            for path in glob.glob(IRISD + "*"):
                if os.path.isfile(path):
                    shutil.copy(os.path.realpath(path), os.path.join(self.folder, os.path.basename(path)))
            program = os.path.join(self.folder, os.path.basename(IRISD))
            os.chown(self.folder, user, -1)

        def limit():
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        self.runtime_dir = os.path.join(self.folder, "run")
        self.log_path = os.path.join(self.folder, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*within, program, "--runtime-dir", self.runtime_dir, "--backend", backend,
                 "--emu-devices", str(devices), "--emu-memory", memory,
                 "--self-check", "on" if self_check else "off", *flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=user, preexec_fn=limit)
        end = time.monotonic() + PATIENCE_SECONDS
        while not all(os.path.exists(os.path.join(self.runtime_dir, name)) for name in ("irisd.sock", "session.sock")):
            if self.process.poll() is not None or time.monotonic() > end:
                log = self.log()
                self.stop()
                raise RuntimeError(f"irisd does not start:\n{log}")
            time.sleep(0.01)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def environment(self, **more):
        return {**os.environ, "IRIS_RUNTIME_DIR": self.runtime_dir, **more}

    def stop(self):
        """Ends it; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        else:
            print(f"irisd had ended before, with {self.process.returncode}:\n{self.log()[-4000:]}")
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()
