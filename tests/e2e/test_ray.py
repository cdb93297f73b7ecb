"""Processes on the nodes of a Ray cluster: two nodes, both on this host, that the test starts and ends."""

import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import harness
from harness import processes
from test_mpi import PLAIN, TINY, ask_all, streamed_tokens

RAY = pathlib.Path(sys.prefix) / "bin/ray"
API = next(pathlib.Path(sys.prefix).glob("lib/python3*/site-packages/ray/cpp/lib/libray_api.so"), None)
BUILD = harness.QUIRE.parent.parent.parent if harness.QUIRE else pathlib.Path()
LIBRARY, RANKS = BUILD / "src/libquire_ray.so", BUILD / "tests/e2e/ray_ranks"
CORES = 2  # of each node, as they are told: neither has them
needs_ray = unittest.skipUnless(API and RAY.exists() and LIBRARY.exists() and RANKS.exists(),
                                "no Ray, or a quire that was built without it (scripts/ray_test.sh)")


class Cluster:
    """`ray start --block`, once as the head and once more: each ends what it started when it is asked to end."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="qray-", dir="/tmp")  # short: sockets' names have 107 bytes
        self.environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
                            "PATH": f"{RAY.parent}:{os.environ['PATH']}"}
        self.nodes, self.address = [], None
        port = harness.free_port()
        common = ["--num-cpus", CORES, "--object-store-memory", 80_000_000, "--block", "--disable-usage-stats"]
        self.start("--head", "--include-dashboard=false", "--port", port, "--temp-dir", self.folder, *common)
        file = pathlib.Path(self.folder) / "ray_current_cluster"
        harness.wait_until(file.exists, self.log_text)
        self.address = file.read_text()
        self.start(f"--address={self.address}", *common)

    def start(self, *arguments):
        log = open(pathlib.Path(self.folder) / f"node{len(self.nodes)}.log", "w+")
        self.nodes.append((subprocess.Popen([str(RAY), "start", *map(str, arguments)], env=self.environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT, start_new_session=True), log))
        harness.wait_until(lambda: "runtime started" in self.log_text(), self.log_text, 60)

    def log_text(self):
        self.nodes[-1][1].seek(0)
        return self.nodes[-1][1].read()

    def stop(self):
        for process, log in reversed(self.nodes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


cluster = None


def setUpModule():
    global cluster
    if API and RAY.exists() and LIBRARY.exists() and RANKS.exists():
        cluster = Cluster()


def tearDownModule():
    if cluster is not None:
        cluster.stop()


class Ranks:
    """tests/e2e/ray_ranks.cpp, with a script of sh as the program; a context manager that ends it by the end of its stdin."""

    def __init__(self, script, ranks=2, cpus=1, strategy="spread", end_seconds=0, address=None, library=LIBRARY, api=API, program="/bin/sh"):
        arguments = ["-c", script, "rank"] if program == "/bin/sh" else []
        self.process = subprocess.Popen(
            list(map(str, (RANKS, library, api, address or cluster.address, strategy, ranks, cpus, end_seconds, program, *arguments))),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def read_nodes(self, ranks=2):
        for _ in range(ranks):
            self.lines.append(self.process.stdout.readline())
        return self.lines

    def finish(self):
        """What it says, and its exit code."""
        with self:
            return self.process.stdout.read(), self.process.wait(60)


def waits(mark):
    """A script that has no end, and whose processes but one are gone at once when that is killed."""
    return f": {mark}; while sleep 0.2; do :; done"


def with_mark(mark):
    """The processes of scripts that have it, by their command lines."""
    return [process for process, (_, state, command) in processes().items() if mark.encode() in command and state != "Z"
            and b"ray_ranks" not in command]


@needs_ray
class Places(unittest.TestCase):
    def test_each_rank_is_a_process_on_a_node_that_has_its_variables_and_the_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            script = f'echo "$QUIRE_TEST_RANK $(pwd)" > {folder}/$QUIRE_TEST_RANK; exec sleep 100'
            with Ranks(script) as ranks:
                for rank, line in enumerate(ranks.read_nodes(), 1):
                    self.assertRegex(line, rf"^rank {rank}: \S+ \([0-9.]+\)\n$")
                for rank in (1, 2):
                    file = pathlib.Path(folder) / str(rank)
                    harness.wait_until(lambda: file.exists() and file.read_text(), lambda: f"no {file}")
                    self.assertEqual(file.read_text(), f"{rank} {os.getcwd()}\n")

    def test_ranks_that_take_all_cores_of_a_node_lie_on_one_each(self):
        mark = "mark-4221"
        with Ranks(waits(mark), cpus=CORES) as ranks:
            ranks.read_nodes()
            harness.wait_until(lambda: len(with_mark(mark)) == 2, lambda: "not both started")
            found = processes()
            # sh, the actor's process, its raylet.
            raylets = {found[found[process][0]][0] for process in with_mark(mark)}
            self.assertEqual(len(raylets), 2)

    def test_more_cores_than_there_are_is_an_error_that_names_both(self):
        for ranks, cpus in ((5, 1), (2, CORES + 1)):
            said, code = Ranks("true", ranks=ranks, cpus=cpus).finish()
            self.assertEqual(code, 2)
            self.assertRegex(said, rf"{ranks} more ranks with {cpus} each were asked for, and of its nodes \S+ \(\S+\) has 2, \S+ \(\S+\) has 2")

    def test_cores_that_others_have_are_waited_for_and_then_an_error(self):
        with Ranks("exec sleep 100", ranks=4) as first:
            first.read_nodes(4)
            said, code = Ranks("true", ranks=1).finish()
        self.assertEqual(code, 2)
        self.assertIn("no 1 times 1 free cores within 5 s", said)
        with Ranks("exec sleep 100", ranks=4) as again:  # they have been given back
            again.read_nodes(4)
            self.assertIn("rank 4: ", again.lines[3])


@needs_ray
class Ends(unittest.TestCase):
    def test_a_rank_that_ends_is_named_with_its_node_its_code_and_what_it_said_last(self):
        script = 'if [ $QUIRE_TEST_RANK = 2 ]; then echo out of tune >&2; exit 7; fi; exec sleep 100'
        said, code = Ranks(script).finish()
        self.assertEqual(code, 3)
        self.assertRegex(said, r"rank 2 on node \S+ \([0-9.]+\) has ended, with exit code 7:\nout of tune\n")

    def test_a_rank_that_is_killed_is_named_with_the_signal(self):
        mark = "mark-4222"
        ranks = Ranks(waits(mark), ranks=1)
        ranks.read_nodes(1)
        harness.wait_until(lambda: with_mark(mark), lambda: "not started")
        os.kill(with_mark(mark)[0], signal.SIGKILL)
        said, code = ranks.finish()
        self.assertEqual(code, 3)
        self.assertRegex(said, r"rank 1 on node \S+ \([0-9.]+\) has ended, by signal 9\n")

    def test_a_rank_whose_actor_is_killed_dies_with_it_and_is_lost(self):
        mark = "mark-4223"
        ranks = Ranks(waits(mark), ranks=1)
        ranks.read_nodes(1)
        harness.wait_until(lambda: with_mark(mark), lambda: "not started")
        os.kill(processes()[with_mark(mark)[0]][0], signal.SIGKILL)
        harness.wait_until(lambda: not with_mark(mark), lambda: "it has outlived its actor")
        said, code = ranks.finish()
        self.assertEqual(code, 3)
        self.assertRegex(said, r"rank 1 on node \S+ \([0-9.]+\) is lost: The actor is dead because its worker process has died")

    def test_ranks_may_end_by_themselves_when_the_first_does_and_are_killed_when_they_do_not(self):
        mark = "mark-4224"
        for end_seconds in (0, 20):
            with self.subTest(end_seconds), tempfile.TemporaryDirectory() as folder:
                # They end when a file is there, which is made as the first one is ending.
                script = f": {mark}; until [ -e {folder}/end ]; do sleep 0.05; done; sleep 0.3; touch {folder}/ended$QUIRE_TEST_RANK"
                with Ranks(script, end_seconds=end_seconds) as ranks:
                    ranks.read_nodes()
                    if end_seconds:
                        (pathlib.Path(folder) / "end").touch()
                    begun = time.monotonic()
                self.assertLess(time.monotonic() - begun, 15)
                harness.wait_until(lambda: not with_mark(mark), lambda: "they are still there")
                self.assertEqual(len(list(pathlib.Path(folder).glob("ended*"))), 2 if end_seconds else 0)

    def test_a_killed_driver_leaves_no_process_behind_and_gives_its_cores_back(self):
        mark = "mark-4225"
        ranks = Ranks(waits(mark), ranks=4)
        ranks.read_nodes(4)
        harness.wait_until(lambda: len(with_mark(mark)) == 4, lambda: "not all started")
        ranks.process.kill()
        ranks.finish()
        harness.wait_until(lambda: not with_mark(mark), lambda: "they are still there")
        with Ranks("exec sleep 100", ranks=4) as again:
            self.assertIn("rank 4: ", again.read_nodes(4)[3])


RAY_BACKEND = ("--distributed-executor-backend", "ray")


def served(*arguments, environment=(), **given):
    return harness.Server(*RAY_BACKEND, *PLAIN, *arguments, model=TINY / "llama", environment={
        **os.environ, "VIRTUAL_ENV": sys.prefix, "RAY_ADDRESS": cluster.address, **dict(environment)}, **given)


def ranks_of(one):
    """The other ranks of a server: processes with its port on their command lines."""
    return [process for process, (_, state, command) in processes().items()
            if f"--port {one.port} ".encode() in command and state != "Z" and process != one.process.pid]


@needs_ray
class Served(unittest.TestCase):
    BODY = {"prompt": [5, 6, 7], "max_tokens": 240, "temperature": 0}

    def test_answers_are_those_of_workers_and_the_end_leaves_nothing(self):
        for layout, others in ((("-tp", 2), 1), (("-tp", 3), 2), (("-tp", 2, "-pp", 2), 3)):
            with self.subTest(layout):
                with harness.Server(*PLAIN, *layout, model=TINY / "llama") as one:
                    expected = ask_all(one)
                with served(*layout) as one:
                    own = ranks_of(one)
                    self.assertEqual(len(own), others)
                    self.assertEqual(ask_all(one), expected)
                    one.wait_until_idle()
                self.assertEqual([process for process in own if harness.is_alive(process)], [])

    @harness.needs_default_model
    def test_they_serve_the_tests_of_the_openai_client(self):
        python = BUILD.parent / "venv/bin/python"  # where the client is
        if not python.exists():
            self.skipTest("no Python with the client (scripts/ray_test.sh)")
        harness.run_openai_client_tests(self, *RAY_BACKEND, "-tp", 2, "-pp", 2, python=python, environment={
            "VIRTUAL_ENV": sys.prefix, "RAY_ADDRESS": cluster.address})

    def test_two_ranks_that_take_a_node_each(self):
        with served("-tp", 3, "--threads", CORES) as one:
            found = processes()
            self.assertEqual(len({found[found[process][0]][0] for process in ranks_of(one)}), 2)  # raylets
            self.assertEqual(len(streamed_tokens(one, self.BODY)), 240)

    def test_a_killed_rank_ends_the_server_with_its_node(self):
        one = served("-tp", 3)
        one.wait_until_healthy()
        own = ranks_of(one)
        os.kill(own[0], signal.SIGKILL)
        self.assertNotEqual(one.process.wait(30), 0)
        self.assertRegex(one.log_text(), r"rank [12] on node \S+ \([0-9.]+\) has ended, by signal 9")
        harness.wait_until(lambda: not any(harness.is_alive(process) for process in own), one.log_text)

    def test_a_killed_server_leaves_no_rank(self):
        one = served("-tp", 3)
        one.wait_until_healthy()
        own = ranks_of(one)
        one.process.kill()
        one.process.wait()
        harness.wait_until(lambda: not any(harness.is_alive(process) for process in own), one.log_text)

    def test_what_cannot_be_is_refused(self):
        for arguments, environment, says in (
                (("-tp", 1), {}, "there is nothing to start on other nodes"),
                (("-tp", 6), {}, "5 more ranks with 1 each were asked for"),
                (("-tp", 2, "-dp", 2), {}, "start a server for each engine"),
                (("-tp", 2, "--nnodes", 2), {}, "for nodes choose mp"),
                (("-tp", 2), {"RAY_ADDRESS": "ray://127.0.0.1:1"}, "ray://")):
            with self.subTest(says):
                one = served(*arguments, environment=environment)
                self.assertEqual(one.process.wait(30), 1)
                self.assertIn(says, one.log_text())


@needs_ray
class Refusals(unittest.TestCase):
    def refused(self, **given):
        said, code = Ranks("true", ranks=1, **given).finish()
        self.assertEqual(code, 2)
        return said

    def test_where_no_cluster_answers(self):
        said = self.refused(address=f"127.0.0.1:{harness.free_port()}")
        self.assertIn("no Ray cluster answers at", said)
        self.assertIn("`ray start --head`", said)

    def test_where_somebody_else_answers(self):
        with http.server.HTTPServer((harness.HOST, 0), http.server.BaseHTTPRequestHandler) as other:
            threading.Thread(target=other.handle_request).start()
            self.assertIn("who listens there does not speak gRPC", self.refused(address=f"{harness.HOST}:{other.server_port}"))

    def test_without_the_libraries(self):
        self.assertIn("cmake -DQUIRE_RAY=ON", self.refused(library="/nowhere/libquire_ray.so"))
        self.assertIn('pip install "ray[cpp]==', self.refused(api="/nowhere/libray_api.so"))

    def test_of_a_program_that_a_node_does_not_have(self):
        self.assertIn("rank 1 cannot be started: ", said := self.refused(program="/nowhere/quire"))
        self.assertIn("/nowhere/quire: No such file or directory", said)


if __name__ == "__main__":
    harness.main()
