"""A model computed by several nodes that TCP joins: the answers of workers of one host, on one host and on two."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest

import harness
from harness import processes
from test_mpi import (OTHER_HOST, PLAIN, TINY, ask_all, bytes_sent_by_wire, run_in_two_namespaces, streamed_tokens,
                      wire_to_the_other_host)

SECRET = {"QUIRE_NODES_SECRET": "the secret of this test"}


@contextlib.contextmanager
def other_nodes(count, port, *arguments, model, launcher=(), address="127.0.0.1", environment=SECRET):
    """The nodes behind the first one, as whoever starts them does."""
    nodes = [subprocess.Popen([*map(str, launcher), str(harness.QUIRE), "serve", str(model), "--nnodes", str(count), "--node-rank",
                               str(rank), "--master-addr", address, "--master-port", str(port), *map(str, arguments)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **environment}) for rank in range(1, count)]
    try:
        yield nodes
    finally:
        for node in nodes:
            if node.poll() is None:
                node.kill()
            node.communicate()


@contextlib.contextmanager
def server(count, *arguments, model=TINY / "llama", launcher=(), address="127.0.0.1", ends_well=True):
    """The first node and the others. ENDS_WELL: with SIGTERM and code 0; else the test ends it."""
    port = harness.free_port()
    with other_nodes(count, port, *arguments, model=model, launcher=launcher, address=address) as nodes:
        one = harness.Server("--nnodes", count, "--master-addr", address, "--master-port", port, *arguments, model=model,
                             environment={**os.environ, **SECRET})
        if ends_well:
            with one:
                yield one, nodes
            return
        try:
            one.wait_until_healthy()
            yield one, nodes
        finally:
            one.process.kill()
            one.process.wait()


def ranks_below(process):
    return [child for child, (parent, state, _) in processes().items() if state != "Z" and parent == process]


class Answers(unittest.TestCase):
    def expect_those_of_mp(self, name, nodes, *arguments):
        with harness.Server(*PLAIN, *arguments, "--distributed-executor-backend", "mp", model=TINY / name) as one:
            expected = ask_all(one)
        with server(nodes, *PLAIN, *arguments, model=TINY / name) as (one, others):
            self.assertEqual(ask_all(one), expected)
            one.wait_until_idle()
            one.terminate()
            self.assertEqual(one.process.wait(30), 0, one.log_text())
            for node in others:
                self.assertEqual(node.wait(10), 0)

    def test_two_nodes_give_the_bits_of_two_workers(self):
        for name in ("llama", "deepseek_v3"):
            with self.subTest(name):
                self.expect_those_of_mp(name, 2, "-tp", 2)

    def test_two_nodes_of_two_ranks_each(self):
        self.expect_those_of_mp("llama", 2, "-tp", 2, "-pp", 2)

    def test_four_nodes_with_chunks_and_too_few_blocks_for_all(self):
        self.expect_those_of_mp("llama", 4, "-tp", 4, "--max-num-batched-tokens", 16, "--num-gpu-blocks-override", 24)


class Ends(unittest.TestCase):
    def test_whoever_is_not_of_the_group_is_sent_away_and_disturbs_nobody(self):
        with server(2, *PLAIN, "-tp", 2) as (one, _):
            body = {"prompt": [5, 6, 7], "max_tokens": 60, "temperature": 0}
            expected = streamed_tokens(one, body)
            self.assertEqual(streamed_tokens(one, body), expected)
        port = harness.free_port()
        one = harness.Server("--nnodes", 2, "--master-port", port, *PLAIN, "-tp", 2, model=TINY / "llama",
                             environment={**os.environ, **SECRET})
        with contextlib.closing(one.log), contextlib.ExitStack() as stack:
            stack.callback(one.stop)
            harness.wait_until(lambda: "waits for 1 other nodes" in one.log_text(), one.log_text)
            with socket.create_connection(("127.0.0.1", port)) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nUser-Agent: a browser with a name that is long enough\r\n\r\n")
                browser.recv(100)
                stranger = {"QUIRE_NODES_SECRET": "another secret than that"}
                with other_nodes(2, port, *PLAIN, "-tp", 2, model=TINY / "llama", environment=stranger) as nodes:
                    self.assertEqual(nodes[0].wait(20), 1)
                    self.assertIn("it does not know this group's secret: set the same QUIRE_NODES_SECRET", nodes[0].stderr.read())
                with other_nodes(2, port, *PLAIN, "-tp", 2, model=TINY / "llama"):
                    one.wait_until_healthy()
                    self.assertEqual(streamed_tokens(one, body), expected)
                    self.assertIn("is sent away: it does not know this group's secret", one.log_text())

    def test_a_lost_rank_ends_all_with_a_message(self):
        for which in ("node", "rank of a node", "first"):
            with self.subTest(which), server(2, *PLAIN, "-tp", 2, "-pp", 2, ends_well=False) as (one, nodes):
                own = ranks_below(one.process.pid) + ranks_below(nodes[0].pid)
                self.assertEqual(len(own), 2)
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    asking = pool.submit(lambda: [streamed_tokens(one, {"prompt": [5], "max_tokens": 240}) for _ in range(100)])
                    time.sleep(0.2)
                    killed = {"node": nodes[0].pid, "rank of a node": own[1], "first": one.process.pid}[which]
                    os.kill(killed, signal.SIGKILL)
                    self.assertNotEqual(one.process.wait(20), 0)
                    self.assertIsNotNone(asking.exception())
                    self.assertNotEqual(nodes[0].wait(20), 0)
                if which == "rank of a node":
                    self.assertIn("rank 3, a process of this node, was killed by signal 9", one.log_text() + nodes[0].stderr.read())
                elif which == "node":
                    self.assertRegex(one.log_text(), r"rank [23] \(127\.0\.0\.1\)")
                harness.wait_until(lambda: not any(harness.is_alive(process) for process in own), one.log_text)

    def test_what_cannot_be_is_refused_with_what_to_do(self):
        for arguments, says in (
                (("-tp", 3, "--nnodes", 2), "3 ranks, which cannot be divided evenly between the nodes"),
                (("-tp", 2, "--nnodes", 2, "--node-rank", 2), "--node-rank 2 of --nnodes 2: expected 0 to 1"),
                (("-tp", 2, "--nnodes", 2, "--master-addr", "0.0.0.0"), "Set QUIRE_NODES_SECRET in the environment of every node"),
                (("-tp", 2, "--nnodes", 2, "--headless"), "the first of --nnodes answers requests"),
                (("-tp", 2, "-dp", 2, "--nnodes", 2), "start a server for each engine"),
                (("-tp", 2, "--nnodes", 2, "--distributed-executor-backend", "mpi"), "for nodes choose mp"),
                (("-tp", 2, "--nnodes", 2, "--master-addr", "no such host"), "no address by this name")):
            with self.subTest(says):
                done = harness.run("serve", TINY / "llama", *PLAIN, *arguments)
                self.assertEqual(done.returncode, 1)
                self.assertIn(says, done.stderr)


class TwoHosts(unittest.TestCase):
    @unittest.skipIf(OTHER_HOST in os.environ, "these are the two hosts")
    def test_a_model_over_two_network_namespaces(self):
        run_in_two_namespaces(self, __file__)


@unittest.skipUnless(OTHER_HOST in os.environ, "run by TwoHosts")
class InTwoNamespaces(unittest.TestCase):
    def test_answers_are_those_of_one_host(self):
        there = wire_to_the_other_host("10.9.7")
        layout = ("-tp", 2, "-pp", 2)
        with harness.Server(*PLAIN, *layout, model=TINY / "llama") as one:
            expected = ask_all(one)
        with server(2, *PLAIN, *layout, launcher=there, address="10.9.7.1") as (one, _):
            self.assertEqual(ask_all(one), expected)
            self.assertGreater(bytes_sent_by_wire(), 100_000)


if __name__ == "__main__":
    harness.main()
