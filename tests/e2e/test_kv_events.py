"""Events of the prefix cache as routers hear them: with ZeroMQ's own library and msgspec, into structs of vLLM's shape. On
a tiny Llama checkpoint by token ids."""

import pathlib
import random
import re
import socket
import unittest
from typing import Any, Optional, Union

import harness

try:
    import msgspec
    import zmq
except ImportError:
    zmq = None

LLAMA = harness.DATA / "e2e/tiny/llama"
COMPLETIONS = "/v1/completions"

if zmq is not None:
    class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: Optional[int]
        token_ids: list[int]
        block_size: int
        lora_id: Optional[int]
        medium: Optional[str]
        lora_name: Optional[str]
        extra_keys: Optional[list[Optional[tuple[Any, ...]]]] = None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: Optional[str]

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
        data_parallel_rank: Optional[int] = None


@unittest.skipIf(zmq is None, "pyzmq and msgspec are not here (scripts/python_env.sh)")
class KvEvents(unittest.TestCase):
    def setUp(self):
        self.port, self.replay_port = harness.free_port(), harness.free_port()
        config = (f'{{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:{self.port}", '
                  f'"replay_endpoint": "tcp://127.0.0.1:{self.replay_port}", "topic": "kv@quire"}}')
        self.server = harness.Server("--skip-tokenizer-init", "--enable-admin-endpoints", "--num-gpu-blocks-override", 40,
                                     "--kv-events-config", config, model=LLAMA)
        self.server.__enter__()
        self.addCleanup(lambda: self.server.__exit__(None, None, None))
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        self.decode = msgspec.msgpack.Decoder(Batch).decode

    def ask(self, seed, length=100, **more):
        draw = random.Random(seed)
        tokens = [draw.randrange(3, 512) for _ in range(length)]
        self.server.answer(COMPLETIONS, {"prompt": tokens, "max_tokens": 2, "ignore_eos": True, **more})
        return tokens

    def replayed(self, first=0):
        """All kept batches from a number on, by a ROUTER's client."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{self.replay_port}")
        dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            self.assertTrue(dealer.poll(10_000), "no answer")
            empty, sequence, payload = dealer.recv_multipart()
            self.assertEqual(empty, b"")
            if not payload:
                self.assertEqual(sequence, (-1).to_bytes(8, "big", signed=True))
                dealer.close(0)
                return batches
            self.assertEqual(int.from_bytes(sequence, "big"), first + len(batches))
            batches.append(self.decode(payload))

    def events(self):
        return [event for batch in self.replayed() for event in batch.events]

    def test_a_subscriber_follows_the_cache(self):
        subscriber = self.context.socket(zmq.SUB)
        subscriber.connect(f"tcp://127.0.0.1:{self.port}")
        subscriber.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        seed = 0
        while not subscriber.poll(200):  # until the subscription has arrived
            self.ask(seed := seed + 1)
        last = None
        while subscriber.poll(200):
            topic, sequence, payload = subscriber.recv_multipart()
            self.assertEqual(topic, b"kv@quire")
            number = int.from_bytes(sequence, "big")
            self.assertTrue(last is None or number == last + 1)
            last = number
            batch = self.decode(payload)
            self.assertEqual(batch.data_parallel_rank, 0)
        self.assertIsNotNone(last)

    def test_blocks_are_told_with_their_tokens_once_and_gone_when_they_go(self):
        tokens = self.ask(1)
        stored = [event for event in self.events() if isinstance(event, BlockStored)]
        told = [token for event in stored for token in event.token_ids]
        self.assertEqual(told[:96], tokens[:96])
        self.assertEqual([event.block_size for event in stored], [16] * len(stored))
        self.assertIsNone(stored[0].parent_block_hash)
        self.assertEqual({event.medium for event in stored}, {"GPU"})
        hashes = [one for event in stored for one in event.block_hashes]
        self.assertEqual(len(hashes), len(set(hashes)))
        self.assertEqual(len(told), 16 * len(hashes))
        before = len(self.events())
        self.ask(1)
        self.assertEqual(len(self.events()), before, "what is there is not told again")
        for seed in range(2, 12):  # the pool has 40 blocks
            self.ask(seed)
        here = set()
        for event in self.events():
            if isinstance(event, BlockStored):
                self.assertTrue(here.isdisjoint(event.block_hashes))
                here.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.assertTrue(here.issuperset(event.block_hashes))
                here.difference_update(event.block_hashes)
        self.assertLessEqual(len(here), 40)
        self.assertGreater(len(here), 20)

    def test_what_goes_on_names_what_it_goes_on_from(self):
        self.ask(1, 48)
        first = next(event for event in self.events() if isinstance(event, BlockStored))
        self.ask(1, 100)
        later = [event for event in self.events() if isinstance(event, BlockStored)][-1]
        self.assertIn(later.parent_block_hash, first.block_hashes)

    def test_salts_are_told_apart(self):
        self.ask(1)
        self.ask(1, cache_salt="pepper")
        stored = [event for event in self.events() if isinstance(event, BlockStored) and event.parent_block_hash is None]
        self.assertEqual(len(stored), 2)
        self.assertEqual(stored[1].extra_keys[0], ("pepper",))
        self.assertTrue(set(stored[0].block_hashes).isdisjoint(stored[1].block_hashes))

    def test_a_reset_clears_all(self):
        self.ask(1)
        self.assertEqual(self.server.post("/reset_prefix_cache", {}).status, 200)
        harness.wait_until(lambda: isinstance(self.events()[-1], AllBlocksCleared), lambda: f"{self.events()}")

    def raw(self, port, *frames):
        """A connection that speaks ZMTP and reads nothing."""
        connection = socket.create_connection((harness.HOST, port))
        self.addCleanup(connection.close)
        ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48) + bytes([4, len(ready)]) + ready +
                           b"".join(bytes([flags, len(body)]) + body for flags, body in frames))
        return connection

    @unittest.skipIf(harness.SLOWDOWN > 1, "a sanitizer keeps what is freed")
    def test_who_asks_for_everything_and_reads_nothing_takes_no_memory(self):
        for seed in range(500):
            self.ask(seed, length=500)

        def resident():
            status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024

        tokens = sum(len(event.token_ids) for event in self.events() if isinstance(event, BlockStored))
        self.assertGreater(tokens * 3, 500_000)  # bytes of a replay, of tokens alone
        before = resident()
        for _ in range(100):
            self.raw(self.replay_port, *((1, b""), (0, bytes(8))) * 2)
        self.events()  # after all of theirs
        self.assertLess(resident() - before, 30, f"MiB, of {before} before")  # a whole one for each would be over 50

    def test_who_says_nothing_keeps_nobody_out(self):
        for _ in range(256):
            self.addCleanup(socket.create_connection((harness.HOST, self.port)).close)
        subscriber = self.context.socket(zmq.SUB)
        subscriber.connect(f"tcp://127.0.0.1:{self.port}")
        subscriber.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        seeds = iter(range(10000))

        def hears():
            self.ask(next(seeds))
            return subscriber.poll(200)

        harness.wait_until(hears, self.server.log_text, seconds=60)

    def test_a_model_that_sleeps_has_no_blocks(self):
        self.ask(1)
        self.assertIsInstance(self.events()[-1], BlockStored)
        self.assertEqual(self.server.post("/sleep", {}).status, 200)
        harness.wait_until(lambda: isinstance(self.events()[-1], AllBlocksCleared), lambda: f"{self.events()}")
        self.assertEqual(self.server.post("/wake_up", {}).status, 200)
        self.ask(1)
        self.assertIsInstance(self.events()[-1], BlockStored)


if __name__ == "__main__":
    harness.main()
