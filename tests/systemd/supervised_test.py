"""irisd under `irisd --supervise`, where there is no systemd: no rank notices that it is killed, hangs or is
upgraded."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

from tests.python import junit
from tests.systemd import machine
from tests.systemd import ranks

VERSION, OTHER_VERSION = b"0.2.0", b"0.2.9"
KILLS = 20


def name_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return None


class Supervised:
    """irisd and its parent process, in a folder of their own."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="iris-supervised-", dir="/tmp")
        self.install(VERSION)
        self._log = os.path.join(self.folder, "log")
        with open(self._log, "wb") as log:
            self.parent = subprocess.Popen(
                [os.path.join(self.folder, "irisd"), "--supervise", "--runtime-dir", os.path.join(self.folder, "run"),
                 "--backend", "emu", "--emu-devices", "4", "--emu-memory", "256MiB", "--self-check", "off"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def install(self, version):
        """Puts the programs into place as those of this version."""
        for name in ("irisd", "irisd-worker"):
            path = os.path.join(self.folder, name)
            with open(os.path.realpath(f"server/{name}"), "rb") as file, open(f"{path}.new", "wb") as new:
                new.write(file.read().replace(VERSION, version))
            os.chmod(f"{path}.new", 0o755)
            os.rename(f"{path}.new", path)

    def log(self):
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def served(self):
        """[(version, pid)] of each irisd that has come to serve."""
        return re.findall(r'msg="irisd serves" version=(\S+) pid=(\d+)', self.log())

    def serving(self, n_before):
        """(version, pid) of the one that serves after `n_before` others."""
        machine.wait_until(lambda: len(self.served()) > n_before, "no irisd serves")
        version, pid = self.served()[-1]
        return version, int(pid)

    def started_anew(self, but):
        """The pid of the irisd that the parent has now; another than `but`."""
        def child():
            with open(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children", encoding="ascii") as file:
                pids = [int(pid) for pid in file.read().split()]
            # Workers and port processes of an irisd that has ended are children, too.
            return next((pid for pid in pids if pid != but and name_of(pid) == "irisd"), None)
        return machine.wait_until(child, "irisd is not started again")

    def end(self):
        self.parent.send_signal(signal.SIGINT)
        code = self.parent.wait(machine.PATIENCE_SECONDS)
        shutil.rmtree(self.folder)
        return code


class Restart(ranks.TestCase):

    def test_no_rank_notices_kills_hangs_and_upgrades(self):
        place = Supervised()
        environment = {**os.environ, "IRIS_RUNTIME_DIR": os.path.join(place.folder, "run")}
        timing = random.Random(0)
        try:
            place.serving(0)
            program = os.path.realpath("tests/integration/restart_test")
            traffic = ranks.Ranks([program], environment, "traffic", 4, "traffic")
            comers = ranks.Ranks([program], environment, "come_and_go", 2, "comers")
            traffic.wait_ready()
            comers.wait_ready()
            pid = 0
            for _ in range(KILLS):
                pid = place.started_anew(pid)
                time.sleep(timing.uniform(0, 0.2))
                os.kill(pid, signal.SIGKILL)
            place.started_anew(pid)
            machine.wait_until(lambda: int(place.served()[-1][1]) == place.started_anew(pid), "no irisd serves")

            n_served = len(place.served())
            os.kill(place.started_anew(pid), signal.SIGSTOP)
            _, pid = place.serving(n_served)
            self.assertEqual(place.log().count("gives no sign of life"), 1)

            place.install(OTHER_VERSION)
            place.parent.send_signal(signal.SIGUSR1)
            version, pid = place.serving(n_served + 1)
            self.assertEqual(version, OTHER_VERSION.decode())
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(place.serving(n_served + 2)[0], OTHER_VERSION.decode())
            time.sleep(0.3)  # of traffic
            self.expect_right(traffic, comers)
            self.assertEqual([told for told in ranks.TOLD if told in place.log()], [])
        finally:
            log = place.log()
            code = place.end()
        self.assertEqual(code, 0, log)


if __name__ == "__main__":
    junit.main()
