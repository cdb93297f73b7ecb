"""Files and batches with the real `openai` package, deaths in the middle of a batch, and `quire run-batch`."""

import io
import json
import os
import pathlib
import random
import tempfile
import time
import unittest

import openai

import harness

KILLS = int(os.environ.get("QUIRE_KILLS", "8"))  # scripts/figures.sh has more
OVER = ("completed", "failed", "cancelled", "expired")


def request(number, tokens=8, url="/v1/chat/completions"):
    body = {"temperature": 0, "messages": [{"role": "user", "content": f"Say the number {number}."}],
            "max_tokens": tokens}
    return json.dumps({"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body})


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)


def ended(client, identifier, seconds=300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(identifier)
        if batch.status in OVER:
            return batch
        time.sleep(0.05)
    raise AssertionError(f"batch {identifier} does not end")


def answers_of(client, file_id):
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    answers = {line["custom_id"]: line for line in lines}
    if len(answers) != len(lines):
        raise AssertionError("a line is answered twice")
    return answers


def submit(client, lines, endpoint="/v1/chat/completions"):
    file = client.files.create(file=("requests.jsonl", io.BytesIO("\n".join(lines).encode())), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"who": "test"})


@harness.needs_default_model
class Batches(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-batches-")
        self.addCleanup(self.folder.cleanup)

    def server(self):
        return harness.Server("--batch-folder", self.folder.name, "--max-num-seqs", "8")

    def test_a_batch_is_answered(self):
        with self.server() as server, client_of(server) as client:
            bad = json.dumps({"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions",
                              "body": {"messages": []}})
            batch = ended(client, submit(client, [*map(request, range(12)), bad]).id)
            self.assertEqual(batch.status, "completed")
            self.assertEqual(batch.metadata, {"who": "test"})
            self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed),
                             (13, 12, 1))
            answers = answers_of(client, batch.output_file_id)
            self.assertEqual(set(answers), {f"request-{number}" for number in range(12)})
            alone = client.chat.completions.create(model="", temperature=0, max_tokens=8,
                                                   messages=[{"role": "user", "content": "Say the number 3."}])
            self.assertEqual(answers["request-3"]["response"]["body"]["choices"][0]["message"]["content"],
                             alone.choices[0].message.content)
            self.assertEqual(answers_of(client, batch.error_file_id)["bad"]["response"]["status_code"], 400)
            self.assertEqual([listed.id for listed in client.batches.list()], [batch.id])
            self.assertEqual({file.purpose for file in client.files.list()}, {"batch", "batch_output"})
            client.files.delete(batch.input_file_id)
            with self.assertRaises(openai.NotFoundError):
                client.files.retrieve(batch.input_file_id)

    def test_no_line_is_lost_or_repeated_when_the_server_is_killed(self):
        count = 40
        with self.server() as server, client_of(server) as client:
            identifier = submit(client, [request(number, 24) for number in range(count)]).id
        for kill_after in (3, 12):
            server = self.server()
            server.wait_until_healthy()
            with client_of(server) as client:
                deadline = time.monotonic() + 120
                while client.batches.retrieve(identifier).request_counts.completed < kill_after:
                    self.assertLess(time.monotonic(), deadline, "the batch does not go on")
                    time.sleep(0.01)
            server.process.kill()
            server.process.wait()
        with self.server() as server, client_of(server) as client:
            batch = ended(client, identifier)
            self.assertEqual(batch.status, "completed")
            answers = answers_of(client, batch.output_file_id)
            self.assertEqual(set(answers), {f"request-{number}" for number in range(count)})
            for answer in answers.values():
                self.assertEqual(answer["response"]["status_code"], 200)

    def test_a_cancelled_batch_stops(self):
        with self.server() as server, client_of(server) as client:
            batch = submit(client, [request(number, 200) for number in range(100)])
            client.batches.cancel(batch.id)
            batch = ended(client, batch.id)
            self.assertEqual(batch.status, "cancelled")
            server.wait_until_idle()

    def test_interactive_requests_go_before_a_batch(self):
        with self.server() as server, client_of(server) as client:
            batch = submit(client, [request(number, 100) for number in range(60)])
            client.chat.completions.create(model="", max_tokens=4, messages=[{"role": "user", "content": "Hello"}])
            counts = client.batches.retrieve(batch.id).request_counts
            self.assertLess(counts.completed, 60)
            client.batches.cancel(batch.id)
            ended(client, batch.id)

    def test_wrong_lines_fail_the_batch_by_their_number(self):
        with self.server() as server, client_of(server) as client:
            batch = ended(client, submit(client, [request(1), "{", request(1)]).id)
            self.assertEqual(batch.status, "failed")
            self.assertEqual([error.line for error in batch.errors.data], [2, 3])


class KilledAtAnyMoment(unittest.TestCase):
    ROUTE = "/v1/completions"
    KINDS, LINES = 12, 60

    def bodies(self):
        return [{"prompt": [5 + kind, 9, 11], "max_tokens": 20 + 25 * kind, "ignore_eos": True, "return_token_ids": True, "seed": kind,
                 "temperature": 0.8 if kind % 2 else 0} for kind in range(self.KINDS)]

    def server(self, folder):
        return harness.Server("--batch-folder", folder, "--skip-tokenizer-init", "--max-num-seqs", "8", "--max-model-len", "512",
                              model=harness.DATA / "e2e/tiny/llama")

    def test_every_line_of_what_was_accepted_is_answered_once_and_as_it_is_alone(self):
        draw, batches = random.Random(30), []
        lines = [json.dumps({"custom_id": f"{number}", "method": "POST", "url": self.ROUTE, "body": self.bodies()[number % self.KINDS]})
                 for number in range(self.LINES)]
        with tempfile.TemporaryDirectory(prefix="quire-batches-") as folder:
            for _ in range(KILLS):
                server = self.server(folder)
                try:
                    server.wait_until_healthy()
                    with client_of(server) as client:
                        end = time.monotonic() + draw.uniform(0, 0.3)
                        if draw.random() < 0.5:
                            batches.append(submit(client, lines, self.ROUTE).id)
                        time.sleep(max(0, end - time.monotonic()))
                finally:
                    server.process.kill()
                    server.process.wait()
            with self.server(folder) as server, client_of(server) as client:
                batches.append(submit(client, lines, self.ROUTE).id)
                alone = [server.answer(self.ROUTE, body)["choices"][0]["token_ids"] for body in self.bodies()]
                for identifier in batches:
                    batch = ended(client, identifier)
                    self.assertEqual(batch.status, "completed")
                    answers = answers_of(client, batch.output_file_id)
                    self.assertEqual(set(answers), {f"{number}" for number in range(self.LINES)})
                    for name, answer in answers.items():
                        self.assertEqual(answer["response"]["body"]["choices"][0]["token_ids"], alone[int(name) % self.KINDS])
                self.assertEqual({listed.id for listed in client.batches.list()}, set(batches))
                server.wait_until_idle()
        print(f"{KILLS} kills, {len(batches)} batches of {self.LINES} lines, all answered once and as alone")


@harness.needs_default_model
class RunBatch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire-run-batch-")
        self.addCleanup(folder.cleanup)
        self.input = pathlib.Path(folder.name) / "in.jsonl"
        self.output = pathlib.Path(folder.name) / "out.jsonl"

    def run_batch(self, *arguments):
        return harness.run("run-batch", "-i", self.input, "-o", self.output, "--max-num-seqs", "8", *arguments,
                           timeout=300)

    def test_a_file_is_answered_and_gone_on_with(self):
        self.input.write_text("\n".join(map(request, range(8))))
        done = self.run_batch()
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = self.output.read_text().splitlines()
        self.assertEqual(len(lines), 8)
        for line in map(json.loads, lines):
            self.assertEqual(line["response"]["status_code"], 200)
            self.assertIsNone(line["error"])
            self.assertTrue(line["response"]["body"]["choices"][0]["message"]["content"])
        self.output.write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])  # as a death would leave it
        again = self.run_batch()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("3 answered before", again.stderr)
        identifiers = [json.loads(line)["custom_id"] for line in self.output.read_text().splitlines()]
        self.assertEqual(sorted(identifiers), sorted(f"request-{number}" for number in range(8)))

    def test_what_is_no_file_of_answers_is_left_alone(self):
        asked = "\n".join(map(request, range(2)))
        self.input.write_text(asked)
        self.output.symlink_to(self.input)
        done = self.run_batch()
        self.assertEqual(done.returncode, 1)
        self.assertIn("is the file of requests", done.stderr)
        self.assertEqual(self.input.read_text(), asked)
        self.output.unlink()
        for text in ("A letter.\nOf two lines.\n", "Notes", asked + "\n"):
            self.output.write_text(text)
            done = self.run_batch()
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("does not begin with an answer", done.stderr)
            self.assertEqual(self.output.read_text(), text)

    def test_a_wrong_file_is_told_before_the_model_is_loaded(self):
        self.input.write_text(request(1, url="/v1/images"))
        done = self.run_batch()
        self.assertEqual(done.returncode, 1)
        self.assertIn("in.jsonl:1: url must be", done.stderr)
        self.assertFalse(self.output.exists())


if __name__ == "__main__":
    harness.main()
