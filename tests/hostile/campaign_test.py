"""A campaign of random clients, for as long as IRIS_CAMPAIGN_SECONDS says: users, sub-uids and containers come, call,
register memory, talk nonsense, stop and are killed, while irisd has 256 MiB for what it keeps and 4,096 descriptors.

After each step all of them are stopped, and what irisd says that each tenant has is compared with what is there: the
sessions and jobs of its processes, and irisd's own descriptors. In the end nothing of them is left, and the jobs of an
honest user, which work all the time, had every byte right.

IRIS_TEST_SEED is a number, or random. The same number has the same choices made; what the scheduler does differs."""

import contextlib
import itertools
import os
import random
import signal
import socket
import time
import unittest

from tests.hostile import attacks
from tests.hostile import doors
from tests.hostile import house
from tests.python import junit

SECONDS = float(os.environ.get("IRIS_CAMPAIGN_SECONDS", "20"))
SEED = os.environ.get("IRIS_TEST_SEED", "1")
if SEED == "random":
    SEED = str(random.SystemRandom().randrange(1 << 32))
CORE_MEMORY_BYTES = 256 << 20
CLIENTS = 8
AGREE_SECONDS = 10
PIECE_BYTES = 2 << 20
OWN_TEAM = 0xFFFF0000  # of rank 0
# What takes as much as it gets.
HOARDERS = (attacks.waiting_broadcasts, attacks.many_allocations, attacks.one_memfd_many_times, attacks.busy_sessions,
            attacks.many_sessions, attacks.unread_descriptors, attacks.silent_connections, attacks.unread_events)
MUST_HAPPEN = ("join", "allocate", "free", "team", "value", "register", "wrong_register", "nonsense", "mutant", "look",
               "steal", "hang_up")


class Client:
    """What one process does. It has sessions, each with a job of one or two ranks, which all of its calls are about."""

    def __init__(self, runtime_dir, rng):
        self._dir, self._rng = runtime_dir, rng
        self._jobs = []  # [sessions, number of the job, the next k of the own team, the next of all, offsets]
        self._piece = doors.sealed(b"\0" * PIECE_BYTES, 2 | 4)  # against shrinking and growing
        self._junk = [os.open("/dev/null", os.O_RDONLY), os.memfd_create("unsealed")]
        self.seen = {"done": {}}

    def run(self, end):
        while time.monotonic() < end:
            name = self._rng.choice(MUST_HAPPEN) if self._jobs else "join"
            try:
                getattr(self, name)()
                self.seen["done"][name] = self.seen["done"].get(name, 0) + 1
            except (OSError, doors.Refused):
                self.seen["done"]["refused"] = self.seen["done"].get("refused", 0) + 1
                if self._rng.random() < 0.2:
                    self.hang_up()
            time.sleep(self._rng.choice((0, 0, 0.001, 0.02)))
        return self.seen

    def _job(self):
        if not self._jobs:
            raise doors.Refused("no job")
        return self._rng.choice(self._jobs)

    def _own(self, job, number, operation, descriptors=()):
        """An operation of rank 0 alone, and its result."""
        code, text, reply = job[0][0].call(doors.OPERATE, doors.field(3, OWN_TEAM) + doors.operate_request(
            job[0][0], job[1], job[2], number, operation), descriptors)
        if code:
            raise doors.Refused(text)
        job[2] += 1  # also if it has failed: that is its outcome
        outcome = doors.fields(doors.fields(reply)[1])
        if outcome.get(2):
            raise doors.Refused(outcome[3].decode(errors="replace"))
        return doors.fields(outcome.get(4, b""))

    def join(self):
        if len(self._jobs) >= 6:
            self.hang_up()
        name = attacks.unique("campaign")
        if self._rng.random() < 0.5:
            session, job = attacks.alone(self._dir, name, max_heap_bytes=self._rng.choice((4, 64, 4096)) << 20)
            sessions = [session]
        else:
            sessions, job = attacks.pair(self._dir, name)
        for session in sessions:
            session.sock.settimeout(2)
        self._jobs.append([sessions, job, 0, 0, []])

    def allocate(self):
        job = self._job()
        name = "n" * self._rng.choice((0, 0, 8, 100)) + str(job[2])
        tensor = doors.field(1, "f32") + doors.field(2, doors.varint(4) * self._rng.randrange(16))
        operation = doors.field(1, self._rng.choice((0, 1, 5000, 1 << 20, 1 << 40))) + doors.field(4, tensor)
        if self._rng.random() < 0.7:
            operation += doors.field(3, name)
        job[4].append(self._own(job, 6, operation).get(1, 0))

    def free(self):
        job = self._job()
        offset = job[4].pop() if job[4] and self._rng.random() < 0.9 else self._rng.randrange(1 << 50)
        self._own(job, 7, doors.field(1, offset))

    def register(self):
        job = self._job()
        pieces = self._rng.choice((1, 4, 32))
        operation = doors.field(1, doors.varint(PIECE_BYTES) * pieces) + doors.field(3, PIECE_BYTES * pieces)
        job[4].append(self._own(job, 14, operation, [self._piece] * pieces).get(1, 0))

    def wrong_register(self):
        pieces = self._rng.choice((1, 3))
        operation = doors.field(1, doors.varint(PIECE_BYTES) * pieces) + doors.field(3, self._rng.choice((1, 1 << 60)))
        with contextlib.suppress(doors.Refused):
            self._own(self._job(), 14, operation, [self._rng.choice(self._junk)] * self._rng.randrange(5))

    def team(self):
        """Begun by every rank, and awaited by none."""
        job = self._job()
        for session in job[0]:
            session.begin(doors.OPERATE, doors.operate_request(session, job[1], job[3], 9,
                                                               doors.field(1, bytes(range(len(job[0]))))))
        job[3] += 1

    def value(self):
        """Of a broadcast that the other rank, if there is one, may never ask for."""
        job = self._job()
        value = doors.field(1, 0) + doors.field(2, b"v" * self._rng.choice((8, 5000, 1 << 20)))
        session = job[0][0]
        team = self._rng.randrange(3)
        session.begin(doors.OPERATE, doors.operate_request(session, job[1], self._rng.randrange(3), 8, value) +
                      doors.field(3, team))

    def nonsense(self):
        """Frames that nobody sends, on a connection of its own or on a session."""
        payload = self._rng.randbytes(self._rng.choice((0, 3, 40, 4000)))
        if self._rng.random() < 0.5:
            with doors.connect(os.path.join(self._dir, "session.sock"), socket.SOCK_SEQPACKET) as sock:
                sock.send(self._rng.choice((payload or b"x", doors.hello()[:-1], doors.frame(99, payload))))
        else:
            self._rng.choice(self._job()[0]).sock.send(doors.frame(self._rng.randrange(12), payload))

    def mutant(self):
        """A request that is right, but for some of its bytes."""
        job = self._job()
        session = self._rng.choice(job[0])
        request = bytearray(doors.operate_request(session, job[1], job[3], self._rng.randrange(6, 16),
                                                  self._rng.randbytes(self._rng.randrange(40))))
        for _ in range(self._rng.randrange(4)):
            request[self._rng.randrange(len(request))] = self._rng.randrange(256)
        session.begin(self._rng.randrange(12), bytes(request))

    def look(self):
        """At what is irisd's to tell, by gRPC."""
        with doors.connect(os.path.join(self._dir, "irisd.sock")) as sock:
            channel = doors.Channel(sock)
            for method in self._rng.sample(("GetStatus", "ListJobs", "ListAllocations", "ListSessions", "ListTenants",
                                            "DescribeJobs", "Events", "Peek"), 3):
                channel.call(doors.ADMIN + method, self._rng.choice((b"", doors.field(1, "job-1"))))

    def steal(self):
        """What is another's."""
        session = self._rng.choice(self._job()[0])
        for method, request in ((doors.RESUME, doors.fixed64(2, self._rng.randrange(1, 40)) + doors.field(3, "job-1")),
                                (doors.LEAVE, doors.fixed64(2, self._rng.randrange(1, 40)))):
            session.call(method, doors.fixed64(1, session.id) + request)

    def hang_up(self):
        if not self._jobs:
            return
        sessions = self._jobs.pop(self._rng.randrange(len(self._jobs)))[0]
        for session in sessions:
            session.close()


def random_client(seed):
    def client(runtime_dir, end):
        return Client(runtime_dir, random.Random(seed)).run(end)

    return client


def tenant_of(who):
    """As irisd names it."""
    if isinstance(who, house.InContainer):
        return f"uid {who.uid} of container {who.container.number()}"
    return f"uid {who.owner if isinstance(who, house.SubUser) else who.uid}"


class Irisd:
    """What the operator is told, and what the kernel says of irisd."""

    def __init__(self, place):
        self._place = place
        self._channel = None

    def _pages(self, method, size_field, token_field, reply_token=2):
        rows, token, reply = [], b"", b""
        while True:
            request = doors.field(size_field, 1000) + (doors.field(token_field, token) if token else b"")
            code, text, reply = self._call(method, request)
            if code:
                raise doors.Refused(f"{method}: {code} {text}")
            rows += doors.all_of(reply, 1)
            token = doors.fields(reply).get(reply_token, b"")
            if not token:
                return [doors.fields(row) for row in rows], rows, doors.fields(reply)

    def close(self):
        if self._channel is not None:
            self._channel.sock.close()

    def _call(self, method, request):
        if self._channel is None:
            self._channel = doors.Channel(doors.connect(os.path.join(self._place.runtime_dir, "irisd.sock")))
        return self._channel.call(doors.ADMIN + method, request)

    def tenants(self):
        """{name: {field of proto's Tenant: value}}, and irisd's core_bytes."""
        rows, _, reply = self._pages("ListTenants", 1, 2)
        return {row[1].decode(): row for row in rows}, reply.get(5, 0)

    def there(self, tenant_by_pid):
        """{tenant: {field: value}} by the listings of sessions, jobs and heaps. Of processes that are not known the
        tenant is None."""
        found = {}

        def add(pid, field, n):
            tenant = found.setdefault(tenant_by_pid.get(pid), {})
            tenant[field] = tenant.get(field, 0) + n

        for session in self._pages("ListSessions", 2, 3)[0]:
            add(session.get(2), SESSIONS, 1)
        pids = {}
        for job, row in zip(*self._pages("ListJobs", 2, 3)[:2]):
            pid = next((rank[3] for rank in map(doors.fields, doors.all_of(row, 14)) if rank.get(3)), None)
            pids[job[1]] = pid
            for field, n in ((JOBS, 1), (TEAMS, job.get(10, 0)), (ALLOCATIONS, job.get(11, 0))):
                add(pid, field, n)
        for heap in self._pages("ListHeaps", 2, 3)[0]:
            add(pids.get(heap[1]), HEAP_BYTES, heap.get(8, 0))
        return found

    def descriptors(self):
        """(of jobs' memory, all)."""
        folder = f"/proc/{self._place.daemon.process.pid}/fd"
        targets = []
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                targets.append(os.readlink(os.path.join(folder, name)))
        memory = sum("memfd:" in target for target in targets)
        return memory - house.EMU_DEVICES, len(targets)  # an emulated device has one that is no job's


SESSIONS, JOBS, TEAMS, ALLOCATIONS, DESCRIPTORS, HEAP_BYTES, CORE_BYTES = 4, 9, 10, 11, 14, 15, 16
COMPARED = {SESSIONS: "sessions", JOBS: "jobs", TEAMS: "teams", ALLOCATIONS: "allocations", HEAP_BYTES: "heap_bytes"}


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class Campaign(unittest.TestCase):

    def setUp(self):
        self.rng = random.Random(SEED)
        boxes = [self.enterContext(contextlib.closing(house.Container())) for _ in range(2)]
        ann, bob = house.ATTACKER_UIDS
        self.people = [house.User(ann), house.User(bob), *(house.InContainer(box, uid) for box in boxes
                                                           for uid in (ann, 0))]
        if house.SubUser(ann, 1).possible():
            self.people += [house.SubUser(ann, 1), house.SubUser(bob, 7)]
        self.clients = []  # [Attacker, User, whether it is stopped]
        self.totals = {"clients": 0, "kills": 0, "stops": 0, "done": {}}

    def reap(self):
        for client in [client for client in self.clients if client[0].over()]:
            self.clients.remove(client)
            seen = client[0].seen
            self.assertNotIn("error", seen, seen)
            done = {client[0].name: 1, **seen.get("done", {})}
            for name, n in done.items():
                self.totals["done"][name] = self.totals["done"].get(name, 0) + n

    def step(self, place, end):
        """Something happens."""
        self.reap()
        while len(self.clients) < CLIENTS and self.rng.random() < 0.8:
            who = self.rng.choice(self.people)
            until = min(end, time.monotonic() + self.rng.choice((0.2, 1, 3, 10)))
            hoarder = self.rng.random() < 0.2
            attack = self.rng.choice(HOARDERS) if hoarder else random_client(self.rng.randrange(1 << 32))
            attacker = house.Attacker(attack, who, place.runtime_dir, until)
            self.clients.append([attacker, who, False])
            self.totals["clients"] += 1
        for client in self.clients:
            fate = self.rng.random()
            if fate < 0.05:
                client[0].kill()
                self.totals["kills"] += 1
            elif fate < 0.15:
                client[2] = not client[2]
                client[0].signal(signal.SIGSTOP if client[2] else signal.SIGCONT)
                self.totals["stops"] += client[2]
        time.sleep(self.rng.choice((0.02, 0.2, 0.5)))

    def differences(self, irisd, honest):
        """What each tenant has by its account, and has in fact; nothing if all is the same."""
        tenant_by_pid = {pid: f"uid {house.WORKING_UID}" for pid in honest}
        for attacker, who, _ in self.clients:
            tenant_by_pid.update((pid, tenant_of(who)) for pid in attacker.pids())
        before, _ = irisd.tenants()
        there = irisd.there(tenant_by_pid)
        memory, _ = irisd.descriptors()
        tenants, core_bytes = irisd.tenants()
        wrong = []
        for name, field in itertools.product(set(there) | set(tenants), COMPARED):
            counted, real = tenants.get(name, {}).get(field, 0), there.get(name, {}).get(field, 0)
            # What a heap is growing by is booked before it is listed, and these clients map no growth.
            if counted != real and (field != HEAP_BYTES or counted < real):
                wrong.append(f"{name}: {COMPARED[field]}: {counted} on its account, {real} are there")
        counted = sum(row.get(DESCRIPTORS, 0) for row in tenants.values())
        if counted != memory:
            wrong.append(f"descriptors of memory: {counted} on all accounts, irisd has {memory}")
        of_tenants = sum(row.get(CORE_BYTES, 0) for row in tenants.values())
        if not of_tenants <= core_bytes <= CORE_MEMORY_BYTES:
            wrong.append(f"of the core's memory tenants have {of_tenants}, all {core_bytes}, of {CORE_MEMORY_BYTES}")
        return wrong if before.keys() == tenants.keys() or wrong else []

    def check(self, place, irisd, honest):
        """Stops all clients, until what is there is what their accounts say."""
        self.assertIsNone(place.daemon.process.poll(), place.daemon.log()[-2000:])
        for client in self.clients:
            client[0].signal(signal.SIGSTOP)
        end = time.monotonic() + AGREE_SECONDS
        while (wrong := self.differences(irisd, honest)) and time.monotonic() < end:
            self.reap()
            time.sleep(0.02)
        self.assertEqual(wrong, [], "\n".join([f"seed {SEED}, {self.totals}", *wrong]))
        for client in self.clients:
            if not client[2]:
                client[0].signal(signal.SIGCONT)

    def wait_until_gone(self, irisd):
        """Until only the honest user and the operator are left; whoever else is after a while, and what he has. A
        tenant whose processes are gone stays as long as its worker."""
        end = time.monotonic() + house.RETURN_SECONDS
        while True:
            left = {name: row for name, row in irisd.tenants()[0].items()
                    if name not in (f"uid {house.WORKING_UID}", "uid 0")}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)

    def test_accounts_are_what_is_there(self):
        print(f"\n  IRIS_TEST_SEED={SEED}", flush=True)
        with house.House("--core-memory", str(CORE_MEMORY_BYTES), fd_limit=house.FD_LIMIT) as place:
            irisd = self.enterContext(contextlib.closing(Irisd(place)))
            honest = place.job_pids()
            # What irisd has for everybody who has ever come is there before.
            place.attack(2.0, *[(random_client(SEED), who) for who in self.people])
            self.wait_until_gone(irisd)
            before, descriptors_before, (_, core_before) = place.memory(), irisd.descriptors(), irisd.tenants()
            peak_bytes = peak_descriptors = steps = 0
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                self.step(place, end)
                self.check(place, irisd, honest)
                steps += 1
                peak_bytes = max(peak_bytes, place.memory()[0])
                peak_descriptors = max(peak_descriptors, irisd.descriptors()[1])
            while self.clients:
                for client in self.clients:
                    client[0].signal(signal.SIGCONT)
                self.reap()
                time.sleep(0.02)
            left = self.wait_until_gone(irisd)
            self.check(place, irisd, honest)
            after, core_after, seconds, down = place.wait_for_memory(before, core_before)
            wrong, slowest, rounds = place.end_jobs()
            print(f"  {steps} steps, {self.totals}\n"
                  f"  core {house.mib(before[0])}, at most {house.mib(peak_bytes)}, after {seconds:.1f} s "
                  f"{house.mib(after[0])}, of which it counts {core_before} and {core_after} bytes; descriptors "
                  f"{descriptors_before[1]}, at most {peak_descriptors}; jobs: {rounds} rounds, slowest "
                  f"{slowest[0]} {slowest[1] * 1e3:.1f} ms", flush=True)
            self.assertEqual(wrong, [], "\n".join(wrong))
            self.assertTrue(down, f"seed {SEED}: memory is not back: {before} before, {after} after")
            self.assertEqual(left, {}, f"seed {SEED}: tenants that are gone have something")
            self.assertEqual(irisd.descriptors()[0], 0, f"seed {SEED}: memory of jobs that are over")
            self.assertLess(peak_bytes, CORE_MEMORY_BYTES + (64 << 20))
            if SECONDS >= 20:
                self.assertEqual(set(MUST_HAPPEN) - set(self.totals["done"]), set(), f"seed {SEED}: never happened")


if __name__ == "__main__":
    junit.main()
