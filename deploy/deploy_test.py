"""What is in this folder works as it says: the scripts' usage, the unit, the settings, the completion."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.python import irisd
from tests.python import junit

IRIS_CTL = "client/ctl/iris-ctl"
IRIS_RUN = "client/ctl/iris-run"
EXPOSURE_MAX = 2.5  # of 10, by systemd-analyze security
COMPLETION = "deploy/completions/iris-ctl.bash"


def run(*arguments, **kwargs):
    return subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                          **kwargs)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Setup(unittest.TestCase):

    def test_is_done_at_once_where_nothing_is_missing(self):
        result = run("deploy/setup.sh", "--check")
        # Where the Python Package Index cannot be reached.
        missing = [f"the packages of deploy/{name}.txt in /usr/local/lib/iris/{name}"
                   for name in ("wheels", "triton", "ucx")
                   if not os.path.exists(f"/usr/local/lib/iris/{name}/{name}.txt")]
        if missing:
            self.assertEqual((result.returncode, result.stdout), (1, f"missing: {' '.join(missing)}\n"))
            return
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_explains_itself(self):
        self.assertIn("--build", run("deploy/setup.sh", "--help").stdout)

    def test_refuses_what_it_does_not_know(self):
        result = run("deploy/setup.sh", "--wrong")
        self.assertEqual(result.returncode, 1)
        self.assertIn("unknown argument '--wrong'", result.stderr)


class SetupThatFails(unittest.TestCase):
    """With programs in place of apt-get and pip that say what these say. Nothing is installed."""

    def setup(self, said, lacks):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        programs = {
            # What is installed; one package is not, if `lacks` says so. Sources are those of the headers.
            "dpkg-query": 'case "$*" in *source:Version*) cat /usr/local/src/iris/abseil/VERSION 2>/dev/null ;;\n'
                          f'*" {lacks}") exit 1 ;; *) printf "ii " ;; esac; true\n',
            "apt-get": f'echo "{said}"; exit 100\n',
            "timeout": f'echo "{said}"; exit 1\n',  # which runs pip
            "sudo": '"$@"\n',
        }
        os.mkdir(f"{folder}/bin")
        for name, text in programs.items():
            with open(f"{folder}/bin/{name}", "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + text)
            os.chmod(f"{folder}/bin/{name}", 0o755)
        shutil.copy("deploy/setup.sh", folder)
        for name in ("wheels", "triton", "ucx"):
            with open(f"{folder}/{name}.txt", "w", encoding="utf-8") as file:
                file.write("# another list\n")
        return run(f"{folder}/setup.sh", env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"})

    def test_a_full_disk_is_told_where_packages_are_installed(self):
        said = "E: You don't have enough free space in /var/cache/apt/archives/."
        result = self.setup(said, "patchelf")
        self.assertEqual(result.returncode, 1)
        self.assertIn(said, result.stderr)
        self.assertIn("could not install what is missing: a disk is full: make room", result.stderr)
        other = self.setup("E: Unable to fetch some archives", "patchelf")
        self.assertEqual(other.returncode, 1)
        self.assertNotIn("disk", other.stderr)

    def test_a_full_disk_is_told_where_wheels_are_fetched(self):
        result = self.setup("ERROR: Could not install packages: [Errno 28] No space left on device", "none")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the packages of deploy/wheels.txt are not there: a disk is full: make room", result.stderr)
        self.assertNotIn("its index", result.stderr)
        other = self.setup("ERROR: No matching distribution found", "none")
        self.assertEqual(other.returncode, 3)
        self.assertIn("when pip can reach its index", other.stderr)


class Unit(unittest.TestCase):

    def setUp(self):
        self.text = read("deploy/irisd.service")

    def test_has_what_irisd_relies_on(self):
        for line in ("Type=notify", "NotifyAccess=main", "StartLimitIntervalSec=0", "RestartSec=0",
                     "Restart=always", "RuntimeDirectory=iris", "RuntimeDirectoryPreserve=restart",
                     "SuccessExitStatus=75", "KillSignal=SIGINT", "RestartKillSignal=SIGTERM"):
            self.assertRegex(self.text, rf"(?m)^{line}$")
        self.assertRegex(self.text, r"(?m)^LimitNOFILE=\d{5,}$")
        kept = re.search(r"(?m)^FileDescriptorStoreMax=(\d+)$", self.text).group(1)
        self.assertRegex(self.text, rf"(?m)^Environment=FDSTORE={kept}$")
        # The names of so many, each of at most 10 bytes, are one string of the environment, of at most 128 KiB.
        self.assertLess(int(kept) * 11 + 100, 128 << 10)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd on this machine")
    def test_systemd_accepts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "irisd.service")
            with open(path, "w", encoding="utf-8") as file:  # the program is not installed here
                file.write(self.text.replace("/usr/bin/irisd ", "/bin/true "))
            result = run("systemd-analyze", "verify", "--man=no", path)
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd on this machine")
    def test_exposes_little(self):
        result = run("systemd-analyze", "security", "--offline=true", "--no-pager",
                     os.path.realpath("deploy/irisd.service"))
        found = re.search(r"Overall exposure level for irisd.service: ([0-9.]+)", result.stdout)
        self.assertIsNotNone(found, result.stdout + result.stderr)
        self.assertLessEqual(float(found.group(1)), EXPOSURE_MAX, result.stdout)

    def test_lets_irisd_use_gpus(self):
        for line in ("DevicePolicy=closed", r"DeviceAllow=char-nvidia\* rw", "DeviceAllow=char-kfd rw",
                     "DeviceAllow=char-drm rw"):
            self.assertRegex(self.text, rf"(?m)^{line}$")
        # Vendors' libraries make code, open device nodes and read /proc/driver.
        for line in ("PrivateDevices=yes", "MemoryDenyWriteExecute=yes", "ProcSubset=pid"):
            self.assertNotRegex(self.text, rf"(?m)^{line}$")

    def test_a_tenant_out_of_memory_does_not_end_irisd(self):
        self.assertRegex(self.text, r"(?m)^OOMPolicy=continue$")

    def test_the_command_line_is_one_that_irisd_takes(self):
        command = re.search(r"(?m)^ExecStart=/usr/bin/irisd (.*)$", self.text).group(1)
        arguments = command.replace("/etc/iris/irisd.toml", "deploy/irisd.toml").split()
        result = run(irisd.IRISD, *arguments, "--check-config")
        self.assertEqual(result.returncode, 0, result.stderr)


class Settings(unittest.TestCase):

    def test_are_valid(self):
        result = run(irisd.IRISD, "--config", "deploy/irisd.toml", "--check-config")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_show_every_setting(self):
        flags = [f for f in re.findall(r"(?m)^  --([a-z-]+)", run(irisd.IRISD, "--help").stdout)
                 if f not in ("config", "check-config", "check-state", "version", "help", "supervise")]
        keys = re.findall(r"(?m)^(?:# )?([a-z_]+) = ", read("deploy/irisd.toml"))
        # --no-X is short for --X off.
        flags = [flag for flag in flags if not (flag.startswith("no-") and flag[3:] in flags)]
        self.assertEqual(len(flags), len(keys), f"{flags}\n{keys}")

    def test_show_the_defaults(self):
        """A file with all commented values switched on changes nothing that --help calls the default."""
        text = run(irisd.IRISD, "--help").stdout
        for value in ("0660", "4GiB", "4096", "1024", "256", "64", "1m", "1h", "30s", "5s"):
            self.assertIn(f"({value}", text)
            self.assertIn(value, read("deploy/irisd.toml"))


class Completion(unittest.TestCase):

    def complete(self, line, function="_iris_ctl", program=IRIS_CTL, env=None):
        words = [program] + line.split(" ")
        script = (f"source {COMPLETION}; COMP_WORDS=({' '.join(repr(w) for w in words)}); "
                  f"COMP_CWORD={len(words) - 1}; {function}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        result = run("bash", "-uc", script, env=env)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_commands(self):
        self.assertEqual(self.complete("he"), ["heaps"])
        self.assertEqual(set(self.complete("")), set(
            "status devices jobs nodes describe heaps allocations sessions tenants waits events peek trace "
            "doctor completion --runtime-dir --format --watch --help --version".split()))

    def test_knows_every_command(self):
        listed = re.findall(r"(?m)^  ([a-z]+)  +\S", run(IRIS_CTL, "--help").stdout.split("Subcommands:")[1])
        self.assertGreater(len(listed), 9)
        for command in listed:
            self.assertIn(command, self.complete(command[:2]))

    def test_options_of_a_command(self):
        self.assertEqual(self.complete("events --f"), ["--follow", "--format"])
        self.assertEqual(self.complete("peek --by"), ["--bytes"])
        self.assertEqual(self.complete("status --j"), [])
        self.assertEqual(self.complete("doctor --w"), [])
        self.assertEqual(self.complete("peek j 0 w --d"), ["--dtype"])

    def test_every_option_of_every_command(self):
        listed = re.findall(r"(?m)^  ([a-z]+)  +\S", run(IRIS_CTL, "--help").stdout.split("Subcommands:")[1])
        for command in listed:
            options = re.findall(r"(?m)^  (?:-[a-z],)?(--[a-z-]+)", run(IRIS_CTL, command, "--help").stdout)
            self.assertEqual(set(self.complete(f"{command} --")), set(options), command)
        options = re.findall(r"(?:^  |,)(--[a-z-]+)", run(IRIS_RUN, "--help").stdout, re.M)
        self.assertEqual(set(self.complete("--", function="_iris_run")) - {"--"}, set(options) - {"--np", "--ranks"})

    def test_values(self):
        self.assertEqual(self.complete("--format j"), ["json"])
        self.assertEqual(self.complete("peek j 0 w --dtype bf"), ["bf16"])
        self.assertEqual(self.complete("completion "), ["bash"])

    def test_without_irisd_there_are_no_jobs(self):
        self.assertEqual(self.complete("--runtime-dir /nowhere heaps --job "), [])

    def test_iris_run(self):
        self.assertEqual(self.complete("--t", function="_iris_run"), ["--timeout"])
        self.assertIn("echo", self.complete("-n 2 -- ech", function="_iris_run"))
        self.assertEqual(self.complete("-n 2 -- echo --t", function="_iris_run"), [])

    def test_is_what_iris_ctl_prints(self):
        self.assertEqual(run(IRIS_CTL, "completion", "bash").stdout, read(COMPLETION))

    def test_bash_registers_it(self):
        result = run("bash", "-c", f"source <({IRIS_CTL} completion bash); complete -p iris-ctl iris-run")
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    junit.main()
