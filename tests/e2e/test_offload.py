"""The prefix cache beyond the pool, seen by a client of the real binary: host memory behind a pool that is too small,
files that outlive the process, damaged and full disks, kill -9. Every answer must be the one of a server without any of
it, to the bit (receipts). On a tiny Llama checkpoint by token ids.

    python test_offload.py --quire BINARY --data TESTS_DATA

KILLS in the environment sets how often the server is killed while it writes (5); scripts/figures.sh takes more.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness

LLAMA = harness.DATA / "e2e/tiny/llama"
COMPLETIONS = "/v1/completions"
ARGUMENTS = ("--skip-tokenizer-init", "--max-num-batched-tokens", 256)
KILLS = int(os.environ.get("KILLS", "5"))


def prompt(seed, length=300):
    draw = random.Random(seed)
    return [draw.randrange(3, 512) for _ in range(length)]


def ask(server, tokens, max_tokens=8, **more):
    body = {"prompt": tokens, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "deterministic": True,
            "return_token_ids": True, "logprobs": 3, "return_tokens_as_token_ids": True, **more}
    answer = server.answer(COMPLETIONS, body)
    choice = answer["choices"][0]
    details = answer["usage"].get("prompt_tokens_details") or {}
    return {"receipt": choice["receipt"], "tokens": choice["token_ids"],
            "logprobs": choice["logprobs"]["token_logprobs"], "cached": details.get("cached_tokens") or 0}


def kinds(server):
    """The blocks that were copied, by kind."""
    counts = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith("quire:kv_offload_blocks_total"):
            counts[line.split('kind="')[1].split('"')[0]] = float(line.split()[-1])
    return counts


class Offload(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = {}
        with harness.Server(*ARGUMENTS, "--no-enable-prefix-caching", model=LLAMA) as server:
            for seed in range(12):
                cls.expected[seed] = ask(server, prompt(seed))

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-offload-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def serve(self, *more):
        return harness.Server(*ARGUMENTS, *more, model=LLAMA)

    def on_disk(self, *more, bandwidth=0):
        return self.serve("--kv-offload-dir", self.folder, "--kv-offloading-size", 0.05,
                          "--kv-offload-disk-bandwidth", bandwidth, *more)

    def check(self, answer, seed):
        for what in ("tokens", "logprobs", "receipt"):
            self.assertEqual(answer[what], self.expected[seed][what], f"prompt {seed}")

    def ask_all(self, server, seeds=range(12)):
        cached = 0
        for seed in seeds:
            answer = ask(server, prompt(seed))
            self.check(answer, seed)
            cached += answer["cached"]
        return cached

    def wait_for_disk(self, server, blocks):
        harness.wait_until(lambda: server.metrics()["quire:kv_offload_disk_blocks"] >= blocks,
                           lambda: f"{kinds(server)}, {server.log_text()}")

    def segments(self):
        return sorted(self.folder.rglob("*.kv"))

    def test_a_pool_that_is_too_small_finds_its_blocks_in_host_memory(self):
        with self.serve("--num-gpu-blocks-override", 40) as server:
            self.ask_all(server)
            self.assertEqual(self.ask_all(server), 0, "the pool holds them all")
        with self.serve("--num-gpu-blocks-override", 40, "--kv-offloading-size", 0.05) as server:
            self.ask_all(server)
            self.assertEqual(self.ask_all(server), 12 * 288)
            self.assertGreater(kinds(server)["in"], 100)

    def test_prefixes_outlive_the_process(self):
        with self.on_disk() as server:
            self.assertEqual(self.ask_all(server), 0)
            self.wait_for_disk(server, 12 * 18)
        for file in self.folder.rglob("*"):
            self.assertEqual(file.stat().st_mode & 0o077, 0, file)
        with self.on_disk() as server:
            self.assertEqual(self.ask_all(server), 12 * 288)
            self.assertGreaterEqual(kinds(server)["read"], 12 * 18)

    def test_what_is_asked_at_once_is_read_once(self):
        with self.on_disk() as server:
            self.ask_all(server)
            self.wait_for_disk(server, 12 * 18)
        # As many at once as are read for (kFetchedAhead): what comes beside them is computed meanwhile.
        with self.on_disk() as server, concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda i: ask(server, prompt(i // 2)), range(24)))
            for i, answer in enumerate(answers):
                self.check(answer, i // 2)
            self.assertEqual(kinds(server)["read"], 12 * 18)

    def test_sleep_and_wake_up(self):
        with self.on_disk("--enable-admin-endpoints") as server:
            def sleeping():
                return server.get("/is_sleeping").json["is_sleeping"]

            self.assertFalse(sleeping())
            self.assertEqual(self.ask_all(server, range(3)), 0)
            self.assertEqual(server.post("/sleep?level=3", {}).status, 400)
            self.assertEqual(server.post("/sleep?level=1", {}).status, 200)
            harness.wait_until(sleeping, server.log_text)
            self.assertEqual(server.post("/wake_up", {}).status, 200)
            self.assertEqual(self.ask_all(server, range(3)), 3 * 288, "what was written is not found after waking")
            self.assertFalse(sleeping())
            self.assertEqual(server.post("/reset_prefix_cache", {}).status, 200)
            self.assertEqual(self.ask_all(server, range(3)), 0)

    def test_a_reset_deletes_what_is_on_disk(self):
        with self.on_disk("--enable-admin-endpoints") as server:
            self.ask_all(server, range(6))
            self.wait_for_disk(server, 6 * 18)
            self.assertEqual(server.post("/reset_prefix_cache", {}).status, 200)
            harness.wait_until(lambda: not self.segments(), lambda: f"{self.segments()}")
        with self.on_disk() as server:
            self.assertEqual(self.ask_all(server, range(6)), 0)

    def test_salts_stay_apart_on_disk(self):
        with self.on_disk() as server:
            self.check(ask(server, prompt(0), cache_salt="one"), 0)
            self.wait_for_disk(server, 18)
        with self.on_disk() as server:
            for salt in ({}, {"cache_salt": "two"}):
                answer = ask(server, prompt(0), **salt)
                self.check(answer, 0)
                self.assertEqual(answer["cached"], 0)
            answer = ask(server, prompt(0), cache_salt="one")
            self.check(answer, 0)
            self.assertEqual(answer["cached"], 288)

    def test_keys_stay_apart_on_disk_also_where_others_come_and_go(self):
        def cached(server, key):
            answer = server.request("POST", "/v1/completions", json.dumps({
                "prompt": prompt(0), "max_tokens": 1, "temperature": 0}), {
                    "Content-Type": "application/json", "Authorization": f"Bearer {key}"})
            self.assertEqual(answer.status, 200, answer.body)
            return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]

        with self.on_disk("--api-key", "alice", "--api-key", "bob", "--api-key", "carol") as server:
            self.assertEqual([cached(server, key) for key in ("alice", "bob")], [0, 0])
            # Numbers are told to whoever has a key.
            harness.wait_until(lambda: b'disk_blocks{model_name="llama"} 36' in server.get("/metrics", {"Authorization": "Bearer bob"}).body,
                               server.log_text)
        with self.on_disk("--api-key", "carol", "--api-key", "dora", "--api-key", "bob") as server:
            self.assertEqual([cached(server, key) for key in ("carol", "dora", "bob")], [0, 0, 288])

    def test_another_model_has_a_folder_of_its_own(self):
        with self.on_disk() as server:
            self.ask_all(server, range(3))
            self.wait_for_disk(server, 3 * 18)
        with self.on_disk("--block-size", 32) as server:
            self.assertEqual(self.ask_all(server, range(3)), 0)
        other = self.folder / "model"
        shutil.copytree(LLAMA, other)
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-3] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        with harness.Server(*ARGUMENTS, "--kv-offload-dir", self.folder, model=other) as server:
            self.assertEqual(ask(server, prompt(0))["cached"], 0)

    def test_one_writes_and_another_reads(self):
        with self.on_disk() as writer:
            self.ask_all(writer, range(3))
            self.wait_for_disk(writer, 3 * 18)
            with self.on_disk() as reader:
                self.assertIn("this one reads", reader.log_text())
                self.assertEqual(self.ask_all(reader, range(6)), 3 * 288)
                self.assertEqual(kinds(reader)["write"], 0)
            self.assertEqual(self.ask_all(writer, range(3)), 3 * 288)

    def test_flipped_bits_and_cut_files_cost_time_alone(self):
        draw = random.Random(7)
        with self.on_disk() as server:
            self.ask_all(server)
            self.wait_for_disk(server, 12 * 18)
        whole = self.folder / "whole"
        shutil.copytree(self.segments()[0].parent, whole)
        hits = []
        for damage in range(6):
            for file in self.segments():
                if file.parent == whole:
                    continue
                data = bytearray((whole / file.name).read_bytes())
                for _ in range(40):
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                if damage % 3 == 2:
                    del data[draw.randrange(len(data)):]
                file.write_bytes(data)
            with self.on_disk() as server:
                hits.append(self.ask_all(server))
        self.assertLess(min(hits), 12 * 288, "nothing was damaged")
        self.assertGreater(max(hits), 0, "damage to some blocks cost them all")

    def test_a_full_disk_costs_time_alone(self):
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", self.folder],
                                               capture_output=True).returncode != 0:
            self.skipTest("no right to mount a small file system")
        try:
            with self.on_disk() as server:
                self.ask_all(server)
                self.ask_all(server)
                try:
                    (self.folder / "hog").write_bytes(b"x" * 1_000_000)  # all that is left
                except OSError:
                    pass
                self.assertEqual(server.get("/health").status, 200)
                self.ask_all(server)
            with self.on_disk() as server:
                self.ask_all(server)
        finally:
            subprocess.run(["umount", self.folder], check=True)

    def test_the_folder_that_cannot_be_is_told(self):
        done = harness.run("serve", LLAMA, *ARGUMENTS, "--kv-offload-dir", "/proc/nothing", timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("kv_offload_dir", done.stderr + done.stdout)

    def test_kill_9_while_it_writes(self):
        draw = random.Random(11)
        found = 0
        for _ in range(KILLS):
            server = self.on_disk(bandwidth=4)
            try:
                server.wait_until_healthy()
                stop = time.monotonic() + draw.uniform(0.05, 0.6)
                while time.monotonic() < stop:
                    seed = draw.randrange(12)
                    answer = ask(server, prompt(seed))
                    self.check(answer, seed)
                    found += answer["cached"] > 0
            finally:
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
        with self.on_disk() as server:
            self.ask_all(server)
        print(f"{KILLS} kills, {found} answers from a prefix that was found, all equal")


if __name__ == "__main__":
    harness.main()
