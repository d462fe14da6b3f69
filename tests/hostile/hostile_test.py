"""One bad client costs only itself. Each case attacks a real irisd as another user, while two jobs work and a third
user joins and leaves; then irisd lives, its memory is back, the jobs' every byte was right and nobody was told of a
death, and joins did not wait. Each prints its figures.

IRIS_HOSTILE=long attacks for longer and holds joins to three times what they take when nobody attacks, or to what they
take beside as many processes of the attackers that only compute, and never ask irisd for anything: who gets the CPU is
not irisd's to say. Without it, the bounds are those of a machine that is busy with other tests. See house.py for what
an attack meets."""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import stat
import time
import unittest
import unittest.mock

from tests.hostile import attacks
from tests.hostile import doors
from tests.hostile import house
from tests.hostile import silent_fuse
from tests.python import irisd
from tests.python import junit

ALICE, BOB = house.ATTACKER_UIDS
ATTACK_SECONDS = 20.0 if house.LONG else 2.0
ALLOCATIONS = 27_000 if house.LONG else 6_000
JOIN_RATIO = 3
JOIN_SECONDS_MAX = 0.0 if house.LONG else 1.0  # a join that is faster is never wrong
CALL_SECONDS_MAX = 5.0
CORE_GROWTH_BYTES_MAX = 64 << 20  # while it is attacked
LOG_BYTES_MAX = 640 << 10  # the events of an attacker's jobs: 1,000 lines at once
LOG_BYTES_MAX_OF_CONNECTIONS = 16 << 10


def one_call(runtime_dir, _):
    """What an honest client of the attacker's user does, so that all that serves this user is there before."""
    session = doors.Session(runtime_dir)
    doors.Channel(session.rpc).call(doors.HEAP + "Leave", doors.fixed64(1, session.id))
    admin = doors.connect(os.path.join(runtime_dir, "irisd.sock"))
    doors.Channel(admin).call(doors.ADMIN + "GetStatus")
    return {}


def compute(_, end):
    """Leaves irisd alone, and keeps a CPU busy."""
    while time.monotonic() < end:
        pass
    return {}


def operator_looks(runtime_dir, end):
    """Root asks irisd how it is, again and again, each time on a connection of its own."""
    seen = {"answers": 0, "failures": {}, "slowest_seconds": 0.0}

    def failed(text):
        seen["failures"][text] = seen["failures"].get(text, 0) + 1

    while time.monotonic() < end:
        start = time.monotonic()
        try:
            with doors.connect(os.path.join(runtime_dir, "irisd.sock")) as sock:
                code, text, _ = doors.Channel(sock).call(doors.ADMIN + "GetStatus")
            if code == 0:
                seen["answers"] += 1
            else:
                failed(f"{code} {text}")
        except doors.Refused as refusal:
            failed(str(refusal))
        seen["slowest_seconds"] = max(seen["slowest_seconds"], round(time.monotonic() - start, 4))
        time.sleep(0.1)
    return seen


@contextlib.contextmanager
def fuse_for_all():
    """Every user may have a file system of his own, as where udev has made the device."""
    folder = house.make_folder()
    try:
        device = os.path.join(folder, "fuse")
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 229))
        os.chmod(device, 0o666)
        why = silent_fuse.why_not(device, lambda: house.become(ALICE))
        if why:
            raise unittest.SkipTest("no user can have a file system of his own on this machine, so that none can "
                                    f"attack with one: {why}; in a chroot the kernel never allows it")
        with unittest.mock.patch.object(attacks, "FUSE_DEVICE", device):
            yield
    finally:
        shutil.rmtree(folder)


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class Hostile(unittest.TestCase):

    log_bytes_max = LOG_BYTES_MAX

    def attack(self, *functions, users=(ALICE,), seconds=ATTACK_SECONDS, hoard=0, log_bytes_max=None, kept_bytes=0,
               **settings):
        """Every function as every user, at the same time. What each has seen, by its name. `kept_bytes` is what the
        core keeps on purpose afterwards."""
        with house.House(*settings.pop("flags", ()), **settings) as place:
            place.attack(house.irisd.PATIENCE_SECONDS, *[(one_call, user) for user in (*users, 0)])
            if hoard:
                place.hoard(users[0], hoard)
            idle = place.idle_joins()
            allowed = [JOIN_SECONDS_MAX, JOIN_RATIO * idle.p99]
            if house.LONG:
                joining = place.start_joins()
                place.attack(house.IDLE_SECONDS, *[(compute, user) for user in users for _ in functions])
                allowed.append(place.stop_joins(joining).p99)
            before, log_before, counted = place.memory(), place.log_bytes(), place.counted_bytes()
            joining = place.start_joins()
            seen, peak, blown = place.attack(seconds, (operator_looks, 0),
                                             *[(f, user) for user in users for f in functions])
            operator = seen.pop("operator_looks")
            joins = place.stop_joins(joining)
            after, counts, took, down = place.wait_for_memory(before, counted + kept_bytes)
            code = place.daemon.process.poll()
            log_bytes = place.log_bytes() - log_before
            wrong, slowest, rounds = place.end_jobs()
            bound = max(allowed)
            print(f"\n  {self._testMethodName}: {seen}\n"
                  f"  core {house.mib(before[0])}, at most {house.mib(peak[0])}, after {took:.1f} s "
                  f"{house.mib(after[0])}; workers {house.mib(before[1])}, {house.mib(peak[1])}, "
                  f"{house.mib(after[1])}; the core counts {counted} and {counts} bytes; log {log_bytes} bytes\n"
                  f"  join p99 {idle.p99 * 1e3:.1f} ms idle ({len(idle.seconds)}), {joins.p99 * 1e3:.1f} ms attacked "
                  f"({len(joins.seconds)}, allowed {bound * 1e3:.1f}), {len(joins.failures)} failed; "
                  f"jobs: {rounds} rounds, slowest {slowest[0]} {slowest[1] * 1e3:.1f} ms; "
                  f"the operator: {operator}", flush=True)
            if code is not None:
                wrong.append(f"irisd ended with {code}: {place.daemon.log()[-2000:]}")
            if blown:
                wrong.append(f"irisd took over {house.mib(house.FUSE_BYTES)}")
            if not place.sanitized():
                if peak[0] > before[0] + CORE_GROWTH_BYTES_MAX:
                    wrong.append(f"the core grew from {house.mib(before[0])} to {house.mib(peak[0])}")
                if not down:
                    wrong.append(f"memory is not back after {took:.0f} s: (core, workers) had "
                                 f"{[house.mib(b) for b in before]}, have {[house.mib(a) for a in after]}; the core "
                                 f"counts {counted} and {counts} bytes")
            if not operator.get("answers") or operator["failures"]:
                wrong.append(f"the operator was not served: {operator}")
            for name, what in seen.items():
                if "error" in what:
                    wrong.append(f"the attack {name} is broken: {what['error']}")
            if idle.failures:
                wrong.append(f"joins failed before the attack: {idle.failures[:3]}")
            if joins.failures:
                wrong.append(f"{len(joins.failures)} joins failed: {joins.failures[:3]}")
            if not joins.seconds or not joins.p99 <= bound:
                wrong.append(f"joins: p99 {joins.p99:.3f} s of {len(joins.seconds)}, allowed {bound:.3f} s")
            if slowest[1] > CALL_SECONDS_MAX:
                wrong.append(f"a job waited {slowest[1]:.1f} s in {slowest[0]}")
            if log_bytes > (log_bytes_max or self.log_bytes_max):
                wrong.append(f"{log_bytes} bytes of log")
            self.assertEqual(wrong, [], "\n".join(wrong))
            return seen


class Http2(Hostile):
    """On irisd.sock, and on the gRPC socket of a session."""

    def test_partial_messages(self):
        self.attack(attacks.partial_messages, seconds=max(ATTACK_SECONDS, 4))

    def test_rapid_reset(self):
        self.attack(attacks.rapid_reset)

    def test_continuation(self):
        self.attack(attacks.continuation)

    def test_settings_flood(self):
        self.attack(attacks.settings_flood)

    def test_ping_flood(self):
        self.attack(attacks.ping_flood)

    def test_window_of_zero(self):
        self.attack(attacks.window_zero)

    def test_unread_events(self):
        self.attack(attacks.unread_events)

    def test_unread_watch(self):
        self.attack(attacks.unread_watch)

    def test_unread_listings(self):
        self.attack(attacks.unread_listings, hoard=ALLOCATIONS)

    def test_large_messages(self):
        self.attack(attacks.large_messages)

    def test_garbage(self):
        self.attack(attacks.garbage)


class Frames(Hostile):
    """On session.sock."""

    log_bytes_max = LOG_BYTES_MAX_OF_CONNECTIONS

    def test_silent_connections_of_one_user(self):
        self.attack(attacks.silent_connections)

    def test_silent_connections_of_two_users(self):
        self.attack(attacks.silent_connections, users=(ALICE, BOB))

    def test_silent_connections_of_many_namespaces(self):
        self.attack(attacks.silent_connections_of_many_namespaces)

    def test_crowd_of_connects(self):
        self.attack(attacks.crowd_of_connects)

    def test_bad_handshakes_do_not_fill_the_log(self):
        self.attack(attacks.bad_handshakes)

    def test_flood_of_acknowledgements(self):
        self.attack(attacks.ack_flood)

    def test_wrong_frames(self):
        self.attack(attacks.wrong_frames)

    def test_flood_of_requests_for_a_grpc_socket(self):
        self.attack(attacks.rpc_socket_flood)

    def test_descriptors_that_nobody_asked_for(self):
        self.attack(attacks.sent_descriptors)

    def test_unread_descriptors(self):
        self.attack(attacks.unread_descriptors, log_bytes_max=LOG_BYTES_MAX)

    def test_unread_descriptors_where_irisd_is_not_root(self):
        # The kernel then counts irisd's descriptors in flight, of all its users together, against this limit.
        self.attack(attacks.unread_descriptors, uid=house.IRISD_UID, fd_limit=512, log_bytes_max=LOG_BYTES_MAX)


class Calls(Hostile):
    """Calls by frames of session.sock."""

    log_bytes_max = LOG_BYTES_MAX_OF_CONNECTIONS

    def test_unread_calls(self):
        self.attack(attacks.unread_calls)

    def test_wrong_calls(self):
        self.attack(attacks.wrong_calls)

    def test_requests_whose_descriptor_is_not_what_it_says(self):
        self.attack(attacks.wrong_requests)

    def test_descriptors_that_take_a_minute_to_close(self):
        self.attack(attacks.slow_descriptors)

    def test_files_that_never_answer(self):
        with fuse_for_all():
            self.attack(attacks.silent_files)

    def test_registered_memory_that_is_not_what_it_says(self):
        seen = self.attack(attacks.wrong_registrations, log_bytes_max=LOG_BYTES_MAX)["wrong_registrations"]
        for text in ("no memfd that is sealed against resizing", "and the request says",
                     "descriptors came for 1 allocations", "its close may wait for others"):
            self.assertTrue(any(text in refused for refused in seen["refused"]), f"{text}: {seen}")
        for counted in ("registered", "told", "together"):
            self.assertGreater(seen[counted], 0, counted)

    def test_unread_broadcasts(self):
        # 32 MiB of a tenant's answers may wait, and the values that a job keeps for members that come late.
        self.attack(attacks.unread_broadcasts, log_bytes_max=LOG_BYTES_MAX)


class Limits(Hostile):
    """More of what is counted than a user may have."""

    def test_sessions(self):
        self.attack(attacks.many_sessions)

    def test_admin_connections(self):
        self.attack(attacks.many_admin_connections)

    def test_silent_admin_connections_of_many_users(self):
        # More than irisd has places: the operator's own is kept.
        self.attack(attacks.silent_admin_connections, users=tuple(range(ALICE, ALICE + 6)))

    def test_jobs(self):
        # A user may have 256 of the 400 jobs. irisd keeps 144 refusals of 650 bytes, for the ranks that have not asked.
        self.attack(attacks.many_jobs, kept_bytes=96 << 10)

    def test_waiting_calls(self):
        self.attack(attacks.waiting_calls)


class Shares(Hostile):
    """What irisd keeps for a user, and what it does for one, is bounded however many jobs and sessions he has, and
    whoever he is: a user, in one of two containers, or a sub-uid of his."""

    def setUp(self):
        boxes = [self.enterContext(contextlib.closing(house.Container())) for _ in range(2)]
        self.users = [ALICE, *(house.InContainer(box, ALICE) for box in boxes)]
        if house.SubUser(ALICE, 1).possible():
            self.users.append(house.SubUser(ALICE, 1))

    def attack_as_each(self, function, until="", **settings):
        """What all of them have seen: sums, and every refusal. They have three accounts, and lines of log for each. On
        a busy machine they need longer to come to the refusal `until`, and get it."""
        for times in (2, 8, 32):
            seen = self.attack(function, users=self.users, seconds=times * ATTACK_SECONDS,
                               log_bytes_max=3 * LOG_BYTES_MAX, **settings).values()
            refused = " | ".join(why for each in seen for why in each["refused"])
            if until in refused:
                break
        self.assertIn(until, refused)
        numbers = {name: sum(each[name] for each in seen) for name, value in next(iter(seen)).items()
                   if isinstance(value, int)}
        return {**numbers, "refused": refused}

    def test_values_that_nobody_asks_for(self):
        seen = self.attack_as_each(attacks.waiting_broadcasts, "irisd is short of memory",
                                   flags=("--core-memory", "64MiB"))
        self.assertGreater(seen["broadcasts"], 40, seen)

    def test_records_of_allocations(self):
        seen = self.attack_as_each(attacks.many_allocations, flags=("--core-memory", "64MiB"))
        self.assertGreater(seen["allocations"], 1000, seen)

    def test_one_memfd_registered_again_and_again(self):
        seen = self.attack_as_each(attacks.one_memfd_many_times, "are to stay free", uid=house.IRISD_UID, fd_limit=4096)
        self.assertGreater(seen["registered"], 500, seen)

    def test_memory_that_is_registered_and_freed_costs_nobody_a_session(self):
        seen = self.attack_as_each(attacks.registered_and_freed, uid=house.IRISD_UID, fd_limit=4096)
        self.assertGreater(seen["registered"], 500, seen)
        self.assertEqual(seen["refused"], "")

    def test_calls_of_many_sessions(self):
        self.attack_as_each(attacks.busy_sessions)

    def test_sessions_of_many_sub_uids(self):
        users = [house.SubUser(ALICE, uid) for uid in range(1, 6)]
        if not users[0].possible():
            self.skipTest("users may make no user namespaces here (in a chroot the kernel never allows it), so that "
                          "nobody has sub-uids")
        self.users = [ALICE, *users]
        seen = self.attack_as_each(attacks.many_sessions, f"uid {ALICE} has 1024 sessions")
        self.assertLessEqual(seen["sessions"], 1024)

    def test_all_at_once(self):
        self.attack(attacks.waiting_broadcasts, attacks.many_allocations, attacks.one_memfd_many_times,
                    attacks.busy_sessions, attacks.many_sessions, flags=("--core-memory", "64MiB"),
                    seconds=2 * ATTACK_SECONDS, log_bytes_max=LOG_BYTES_MAX)


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class Parties(unittest.TestCase):
    """A job is its own party's alone: the user's, in the container that the job is in."""

    def setUp(self):
        self.boxes = [self.enterContext(contextlib.closing(house.Container())) for _ in range(2)]

    def spy(self, owner, spies):
        """What each of the spies, one after the other, is given of two jobs of the owner, which work meanwhile."""
        with house.House(jobs=2, by_grpc=0, owner=owner) as place, \
                doors.connect(os.path.join(place.runtime_dir, "irisd.sock")) as sock:
            _, _, reply = doors.Channel(sock).call(doors.ADMIN + "ListJobs")
            jobs = {doors.fields(job)[2].decode(): doors.fields(job)[1] for job in doors.all_of(reply, 1)}
            self.assertEqual(sorted(jobs), ["job-0", "job-1"], "the operator sees them")
            given = []
            for spy in spies:
                seen, _, _ = place.attack(1.0, (attacks.spy_on(jobs), spy))
                seen = seen["spy"]
                self.assertNotIn("error", seen, seen)
                self.assertGreater(seen["denied"], 20, seen)
                given.append(seen["got"])
            wrong, _, rounds = place.end_jobs()
            self.assertEqual(wrong, [], "\n".join(wrong))
            self.assertGreater(rounds, 10)
            return given

    def strangers(self, uid):
        """Who might pass for that user: himself in another container or user namespace, and root of a container."""
        found = [house.InContainer(self.boxes[1], uid), house.InContainer(self.boxes[1], 0), house.User(ALICE)]
        if house.SubUser(uid, 1).possible():
            found.append(house.SubUser(uid, 1))
        return found

    def test_a_job_in_a_container(self):
        uid = house.WORKING_UID
        inside = house.InContainer(self.boxes[0], uid)
        strangers = [*self.strangers(uid), house.InContainer(self.boxes[0], 0), house.User(uid)]
        given = self.spy(inside, [*strangers, inside])
        self.assertEqual(given[:-1], [[]] * len(strangers), [(type(s).__name__, s.uid) for s in strangers])
        self.assertIn("Peek", given[-1], "its own user in its own container is no stranger")

    def test_a_job_on_the_machine_itself(self):
        uid = house.WORKING_UID
        strangers = self.strangers(uid)
        given = self.spy(uid, [*strangers, house.User(uid)])
        self.assertEqual(given[:-1], [[]] * len(strangers), [(type(s).__name__, s.uid) for s in strangers])
        self.assertLessEqual({"ListJobs", "ListAllocations", "DescribeJobs", "Events", "Peek", "Borrow",
                              "Borrow to write"}, set(given[-1]))


class Together(Hostile):

    def test_all_at_once(self):
        self.attack(attacks.partial_messages, attacks.rapid_reset, attacks.continuation, attacks.unread_events,
                    attacks.unread_listings, attacks.unread_descriptors, attacks.silent_connections,
                    attacks.bad_handshakes, attacks.unread_calls, attacks.wrong_requests, hoard=ALLOCATIONS,
                    seconds=2 * ATTACK_SECONDS)


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class Troubles(unittest.TestCase):
    """Of the machine or of a user, which two jobs of another user do not notice."""

    @contextlib.contextmanager
    def jobs_at_work(self, **settings):
        with house.House(by_grpc=0, **settings) as place:
            yield place
            self.assertIsNone(place.daemon.process.poll(), place.daemon.log()[-2000:])
            wrong, _, rounds = place.end_jobs()
            self.assertEqual(wrong, [], "\n".join(wrong))
            self.assertGreater(rounds, 0)

    def other_irisd(self, place, *flags, **settings):
        """Another irisd on the machine; it is stopped at the end."""
        other = house.Daemon(place.program("irisd"), *flags, **settings)
        self.addCleanup(other.stop)
        return other

    def test_a_recording_that_is_there_keeps_irisd_from_nothing(self):
        folder = house.make_folder()
        self.addCleanup(shutil.rmtree, folder)
        with self.jobs_at_work() as place:
            for _ in range(6):
                other = self.other_irisd(place, "--record", os.path.join(folder, "record"))
                doors.Session(other.runtime_dir).close()
                other.process.kill()
                other.process.wait()
            self.assertEqual(sorted(os.listdir(folder)), ["record", "record.1", "record.2", "record.3"])

    def test_a_join_that_waits_when_irisd_is_killed_is_made_at_the_next_one(self):
        with house.House(jobs=0) as place:
            def rank(number):
                return house.Bystander(place, house.WORKING_UID, "work", IRIS_JOB="job-late", IRIS_RANK=str(number),
                                       IRIS_N_RANKS="2", IRIS_LOCAL_RANK=str(number))

            ranks = [rank(0)]
            end = time.monotonic() + irisd.PATIENCE_SECONDS
            while "job-late" not in place.daemon.log():
                self.assertLess(time.monotonic(), end, "the rank does not join")
                time.sleep(0.01)
            place.daemon.process.kill()
            place.daemon.process.wait()
            place.daemon.start()
            ranks.append(rank(1))
            for each in ranks:
                each.wait_ready()
            for each in ranks:
                each.ask_to_stop()
            self.assertEqual([each.wait() for each in ranks], [0, 0], [each.output() for each in ranks])

    def test_a_trace_does_not_follow_a_link_that_another_has_planted(self):
        folder = house.make_folder()
        self.addCleanup(shutil.rmtree, folder)
        os.chmod(folder, 0o1777)
        precious = os.path.join(folder, "precious")
        with open(precious, "w", encoding="ascii") as file:
            file.write("unharmed")
        os.chown(precious, house.WORKING_UID, house.WORKING_UID)
        for number in range(2):
            link = os.path.join(folder, f"trace.rank{number}.json")
            os.symlink(precious, link)
            os.lchown(link, ALICE, ALICE)
        with self.jobs_at_work() as place:
            ranks = [house.Bystander(place, house.WORKING_UID, "work", IRIS_JOB="job-traced", IRIS_RANK=str(number),
                                     IRIS_N_RANKS="2", IRIS_TRACE=os.path.join(folder, "trace"))
                     for number in range(2)]
            for rank in ranks:
                rank.wait_ready()
            for rank in ranks:
                rank.ask_to_stop()
            for number, rank in enumerate(ranks):
                self.assertEqual(rank.wait(), 0, rank.output())
                self.assertIn(f"trace.rank{number}.json: it is no file, but a link", rank.output())
        with open(precious, encoding="ascii") as file:
            self.assertEqual(file.read(), "unharmed")

    def test_a_log_that_nobody_reads_holds_up_nobody(self):
        with self.jobs_at_work(unread_log=True) as place:
            joining = place.start_joins()
            seen, _, _ = place.attack(ATTACK_SECONDS, (attacks.bad_handshakes, ALICE), (attacks.wrong_calls, BOB))
            joins = place.stop_joins(joining)
            self.assertGreater(seen["bad_handshakes"]["handshakes"], 100, seen)
            self.assertEqual(joins.failures, [])
            self.assertLess(joins.p99, 1.0)

    def test_pages_that_the_machine_does_not_have_are_refused(self):
        def reserve(runtime_dir, _):
            session = doors.FrameSession(runtime_dir)
            request = doors.join_request(session, attacks.unique("prealloc"), heap_bytes=1 << 40) + doors.field(9, 1)
            code, text, _ = session.call(doors.JOIN, request)
            return {"code": code, "text": text}

        with self.jobs_at_work(emu_memory="2TiB") as place:
            seen = place.attack(irisd.PATIENCE_SECONDS, (reserve, ALICE))[0]["reserve"]
            self.assertEqual(seen.get("code"), 8, seen)
            self.assertIn("memory", seen["text"])

    def test_too_few_descriptors_are_said_at_the_start(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

        with self.jobs_at_work() as place, self.assertRaisesRegex(RuntimeError, "16 descriptors.*irisd needs"):
            self.other_irisd(place, preexec=few)

    def test_a_worker_that_stands_still_is_replaced(self):
        with self.jobs_at_work() as place:
            with doors.connect(os.path.join(place.runtime_dir, "irisd.sock")) as sock:
                doors.Channel(sock).call(doors.ADMIN + "GetStatus")
                stopped = place.worker_pids()
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                end = time.monotonic() + 30
                while set(place.worker_pids()) & set(stopped) and time.monotonic() < end:
                    time.sleep(0.1)
            with doors.connect(os.path.join(place.runtime_dir, "irisd.sock")) as sock:
                self.assertEqual(doors.Channel(sock).call(doors.ADMIN + "GetStatus")[0], 0)

    def test_descriptors_come_although_other_answers_are_unread(self):
        def borrow(runtime_dir, _, calls=40):
            """More descriptors than may be on their way, and an answer behind them, each read when it is wanted."""
            owner, _ = attacks.alone(runtime_dir, "lender")
            session = doors.FrameSession(runtime_dir)
            request = doors.fixed64(1, session.id) + doors.field(2, "lender") + doors.field(5, 4096)
            for _ in range(calls):
                session.begin(doors.BORROW, request)
            time.sleep(0.5)
            session.begin(doors.LEAVE, doors.fixed64(1, session.id) + doors.fixed64(2, 1))
            time.sleep(0.5)
            seen = 0
            while seen < calls:
                _, _, descriptors = session.receive()
                for fd in descriptors:
                    os.close(fd)
                    session.sock.send(doors.frame(doors.ACK_TYPE, doors.ACK.pack(1, 0)))
                seen += len(descriptors)
                if descriptors and seen == 32:
                    time.sleep(0.2)  # irisd has the last acknowledgement, and what is behind is unread
            owner.close()
            return {"descriptors": seen}

        with self.jobs_at_work() as place:
            seen = place.attack(2 * irisd.PATIENCE_SECONDS, (borrow, ALICE))[0]["borrow"]
            self.assertEqual(seen, {"descriptors": 40})

    def test_variables_that_say_nothing_are_named(self):
        with self.jobs_at_work() as place:
            for variable in ("IRIS_CCL_LINES", "IRIS_CCL_CHECK", "IRIS_CHECK_ACCESS", "IRIS_LOG_LEVEL",
                             "IRIS_EMU_WORKERS"):
                rank = house.Bystander(place, ALICE, "hoard", "--allocations", "1", **{variable: "what\x1b[31m"})
                self.assertEqual(rank.wait(), 1, variable)
                self.assertIn(f'{variable}="what\\x1b[31m" is not', rank.output())
                self.assertNotIn("\x1b", rank.output())


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class End(unittest.TestCase):

    def test_irisd_ends_while_a_file_does_not_answer(self):
        told = ("descriptors of clients do not close", "looks at no more descriptors")
        with fuse_for_all(), house.House("--max-closing-per-tenant", "8", jobs=0) as place:
            core = place.daemon.process
            attacker = house.Attacker(attacks.silent_files, ALICE, place.runtime_dir,
                                      time.monotonic() + irisd.PATIENCE_SECONDS)
            try:
                end = time.monotonic() + irisd.PATIENCE_SECONDS
                while any(text not in place.daemon.log() for text in told) and time.monotonic() < end:
                    self.assertFalse(attacker.over(), attacker.seen)
                    time.sleep(0.02)
                core.terminate()
                self.assertEqual(core.wait(irisd.PATIENCE_SECONDS), 0, place.daemon.log())
                self.assertFalse(attacker.over(), "the file system has ended before")
                for text in told:
                    self.assertIn(text, place.daemon.log())
            finally:
                attacker.kill()
                while not attacker.over():
                    time.sleep(0.02)


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class Lock(unittest.TestCase):

    def test_nobody_else_keeps_irisd_from_starting_again(self):
        def hold_locks(runtime_dir, end):
            """Waits for the lock of everything in the runtime directory, by a descriptor opened while irisd runs."""
            seen = {"held": [], "refused": []}
            opened = {}
            for folder, folders, files in os.walk(runtime_dir):
                for path in (os.path.join(folder, name) for name in folders + files):
                    try:
                        opened[path] = os.open(path, os.O_RDONLY)
                    except OSError as error:
                        seen["refused"].append(f"{path}: {error.strerror}")
            while time.monotonic() < end:
                for path in [path for path in opened if path not in seen["held"]]:
                    try:
                        fcntl.flock(opened[path], fcntl.LOCK_SH | fcntl.LOCK_NB)
                        seen["held"].append(path)
                    except OSError:
                        pass
                time.sleep(0.005)
            return seen

        with house.House(jobs=0) as place:
            first = place.daemon
            attacker = house.Attacker(hold_locks, ALICE, first.runtime_dir, time.monotonic() + 3)
            time.sleep(0.5)
            first.process.kill()
            first.process.wait(irisd.PATIENCE_SECONDS)
            time.sleep(0.2)
            first.start()
            end = time.monotonic() + 1.5
            answers = False
            while not answers and time.monotonic() < end and first.process.poll() is None:
                try:
                    doors.Session(first.runtime_dir).close()
                    answers = True
                except doors.Refused:
                    time.sleep(0.02)
            while not attacker.over():
                time.sleep(0.02)
            self.assertTrue(attacker.seen["held"] + attacker.seen["refused"], "the attacker has found nothing to lock")
            self.assertTrue(answers, f"{attacker.seen}\n{first.log()}")


if __name__ == "__main__":
    junit.main(1 if house.LONG else 3)
