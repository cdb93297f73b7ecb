"""Adapters over HTTP: chosen by `model`, loaded and unloaded by operators, and what of a request leads nowhere else."""

import json
import pathlib
import shutil
import tempfile
import threading
import unittest

import harness

LORA = harness.DATA / "e2e/lora/llama"
TOLERANCE = 1e-4
SERVED = ["qv", "all_linear", "rslora", "patterns", "embed_head", "some_layers"]


class Adapters(unittest.TestCase):
    LAYOUT = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="quire-adapters-")
        root = pathlib.Path(cls.folder.name)
        cls.lora_dir = root / "dir"
        cls.lora_dir.mkdir()
        shutil.copytree(LORA / "qv", cls.lora_dir / "mine")
        shutil.copytree(LORA / "rslora", root / "outside")
        (cls.lora_dir / "link").symlink_to(root / "outside")
        (cls.lora_dir / "broken").mkdir()
        modules = [f"{name}={LORA / name}" for name in SERVED[:-1]]
        modules.append(json.dumps({"name": SERVED[-1], "path": str(LORA / SERVED[-1]), "base_model_name": "base"}))
        cls.server = harness.Server(
            "--skip-tokenizer-init", "--served-model-name", "base", "--enable-lora", "--max-loras", 3,
            "--max-cpu-loras", 4, "--lora-dir", cls.lora_dir, "--enable-admin-endpoints", "--kv-cache-dtype", "float32",
            "--lora-modules", *modules, *cls.LAYOUT, model=harness.DATA / "e2e/tiny/llama")
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)
        cls.folder.cleanup()

    def complete(self, model, prompt, **parameters):
        return self.server.answer("/v1/completions", {
            "model": model, "prompt": prompt, "temperature": 0, "return_token_ids": True,
            "return_tokens_as_token_ids": True, "ignore_eos": True, **parameters})

    def test_each_name_answers_as_recorded_also_all_at_once(self):
        failures = []

        def ask(name):
            record = json.loads((LORA / name / "golden.json").read_text())
            for case in record["cases"]:
                steps = harness.steps_to_compare(case["greedy_margin"], 1e-3)
                answer = self.complete(name, case["prompt"], max_tokens=max(steps, 1), prompt_logprobs=0)
                choice = answer["choices"][0]
                if answer["model"] != name or choice["token_ids"][:steps] != case["greedy"][:steps]:
                    failures.append((name, choice["token_ids"], case["greedy"]))
                scored = zip(choice["prompt_logprobs"][1:], case["prompt"][1:], case["logprob_of_prompt"], strict=True)
                if any(abs(entry[str(token)]["logprob"] - expected) > TOLERANCE for entry, token, expected in scored):
                    failures.append((name, "log-probabilities"))

        threads = [threading.Thread(target=ask, args=(name,)) for name in SERVED * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.server.wait_until_idle()

    def test_models_lists_them_with_parent_and_root(self):
        models = {model["id"]: model for model in self.server.get("/v1/models").json["data"]}
        self.assertIsNone(models["base"]["parent"])
        for name in SERVED:
            self.assertEqual((models[name]["parent"], models[name]["root"]), ("base", name))
        self.assertEqual(self.server.get("/v1/models/qv").json["id"], "qv")

    def test_an_operator_loads_replaces_and_unloads(self):
        prompt = list(range(10, 40))
        qv = self.complete("qv", prompt, max_tokens=8)["choices"][0]["token_ids"]
        reply = self.server.post("/v1/load_lora_adapter", {"lora_name": "fresh", "lora_path": "mine"})
        self.assertEqual((reply.status, reply.body), (200, b"Success: LoRA adapter 'fresh' added successfully."))
        self.assertEqual(self.complete("fresh", prompt, max_tokens=8)["choices"][0]["token_ids"], qv)
        again = self.server.post("/v1/load_lora_adapter", {"lora_name": "fresh", "lora_path": "mine"})
        self.assertEqual(again.status, 400)
        inplace = {"lora_name": "fresh", "lora_path": "mine", "load_inplace": True}
        self.assertEqual(self.server.post("/v1/load_lora_adapter", inplace).status, 200)
        self.assertEqual(self.server.post("/v1/unload_lora_adapter", {"lora_name": "fresh"}).status, 200)
        self.assertEqual(self.server.post("/v1/unload_lora_adapter", {"lora_name": "fresh"}).status, 404)
        gone = self.server.post("/v1/completions", {"model": "fresh", "prompt": prompt, "max_tokens": 1})
        self.assertEqual((gone.status, gone.json["error"]["param"]), (404, "model"))
        self.assertEqual(self.server.post("/v1/load_lora_adapter", {"lora_name": "x"}).status, 400)
        self.assertEqual(self.server.post("/v1/load_lora_adapter", {"lora_name": "base", "lora_path": "mine"}).status, 400)

    def test_a_name_in_the_folder_is_loaded_when_it_is_asked_for(self):
        prompt = list(range(10, 40))
        qv = self.complete("qv", prompt, max_tokens=8)["choices"][0]["token_ids"]
        self.assertEqual(self.complete("mine", prompt, max_tokens=8)["choices"][0]["token_ids"], qv)

    def test_no_name_and_no_path_leads_out_of_the_folder(self):
        outside = str(pathlib.Path(self.folder.name) / "outside")
        for path in ("..", "../outside", "mine/../../outside", outside, "link", "/", "", "mine\u0000", "."):
            with self.subTest(path=path):
                asked = self.server.post("/v1/completions", {"model": path or "/", "prompt": [1], "max_tokens": 1})
                self.assertEqual(asked.status, 404)
                loaded = self.server.post("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": path})
                self.assertIn(loaded.status, (400, 404))
                if path != outside:  # what the client has said itself is no secret
                    for reply in (asked, loaded):
                        self.assertNotIn(self.folder.name.encode(), reply.body)

    def test_what_cannot_be_read_is_told_without_paths(self):
        reply = self.server.post("/v1/completions", {"model": "broken", "prompt": [1], "max_tokens": 1})
        self.assertEqual(reply.status, 503)  # as a model that cannot be loaded: the next request tries again
        self.assertEqual(reply.json["error"]["message"], "Adapter `broken` cannot be loaded; the log says why.")
        self.assertNotIn(self.folder.name.encode(), reply.body)
        self.assertIn("adapter_config.json", self.server.log_with("adapter broken"))

    def test_the_flight_recorder_and_the_metric_name_it(self):
        answer = self.complete("rslora", [5, 6, 7], max_tokens=2)
        life = self.server.get(f"/admin/requests/{answer['id']}").json["answers"][0]
        self.assertEqual(life["adapter"]["name"], "rslora")
        self.assertRegex(life["adapter"]["revision"], "^[0-9a-f]{16}$")
        self.assertIn("adapter_loaded", [event["event"] for event in life["events"]])
        self.server.wait_until_idle()
        lines = [line for line in self.server.get("/metrics").body.decode().splitlines()
                 if line.startswith("vllm:lora_requests_info{")]
        self.assertEqual(len(lines), 1)
        self.assertIn('running_lora_adapters=""', lines[0])
        for part in ('max_lora="3"', "running_lora_adapters=", "waiting_lora_adapters="):
            self.assertIn(part, lines[0])


class SleepingModels(unittest.TestCase):
    """What adapters are called and which they are does not depend on whether the model is loaded."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="quire-adapters-")))
        for name, source in (("mine", "qv"), ("other", "rslora")):
            shutil.copytree(LORA / source, self.folder / name)

    def start(self, *arguments, model=harness.DATA / "e2e/tiny/llama"):
        return self.enterContext(harness.Server(
            "--skip-tokenizer-init", "--enable-lora", "--lora-dir", self.folder, "--enable-admin-endpoints",
            "--kv-cache-memory-bytes", "4M", *arguments, model=model))

    @staticmethod
    def tokens(server, model):
        reply = server.post("/v1/completions", {"model": model, "prompt": list(range(10, 40)), "temperature": 0, "max_tokens": 8,
                                                "return_token_ids": True, "ignore_eos": True})
        return reply.json["choices"][0]["token_ids"] if reply.status == 200 else reply.status

    def test_a_model_that_slept_has_the_adapters_that_it_had(self):
        server = self.start("--served-model-name", "base", "--lora-modules", f"one={LORA / 'qv'}", f"two={LORA / 'rslora'}")
        first, second = self.tokens(server, "one"), self.tokens(server, "two")
        self.assertNotEqual(first, second)
        for body in ({"lora_name": "fresh", "lora_path": "other"},
                     {"lora_name": "one", "lora_path": "other", "load_inplace": True}):
            self.assertEqual(server.post("/v1/load_lora_adapter", body).status, 200)
        self.assertEqual(server.post("/v1/unload_lora_adapter", {"lora_name": "two"}).status, 200)
        for _ in range(2):
            self.assertEqual(server.post("/sleep", {}).status, 200)
            listed = {model["id"] for model in server.get("/v1/models").json["data"]}
            self.assertLessEqual({"base", "one", "fresh"}, listed)
            self.assertNotIn("two", listed)
            self.assertEqual(self.tokens(server, "fresh"), second)  # wakes it
            self.assertEqual(self.tokens(server, "one"), second)
            self.assertEqual(self.tokens(server, "two"), 404)
        self.assertEqual(server.post("/sleep", {}).status, 200)
        self.assertEqual(server.post("/v1/unload_lora_adapter", {"lora_name": "fresh"}).status, 200)
        self.assertEqual(self.tokens(server, "mine"), first)  # of the folder: asked for by nobody before
        self.assertEqual(self.tokens(server, "fresh"), 404)

    def test_a_name_in_the_folder_is_of_one_model_whichever_is_loaded(self):
        other = self.folder / "base"
        shutil.copytree(harness.DATA / "e2e/tiny/llama3_rope", other)
        server = self.start("--model", f"a={harness.DATA / 'e2e/tiny/llama'}", "--model", f"b={other}", "--models-max", 1, model=None)
        first = self.tokens(server, "mine")
        self.assertIsInstance(first, list)
        self.assertIsInstance(self.tokens(server, "b"), list)
        self.assertEqual(self.tokens(server, "mine"), first)

    def test_a_model_that_embeds_stands_beside_one_that_has_adapters(self):
        models = {"embedder": harness.DATA / "embeddings/bert_mean", "base": harness.DATA / "e2e/tiny/llama"}
        server = self.start(*(flag for name, path in models.items() for flag in ("--model", f"{name}={path}")), "--speculative-config",
                            '{"method": "ngram"}', model=None)
        vector = server.post("/v1/embeddings", {"model": "embedder", "input": [5, 6, 7]})
        self.assertEqual(vector.status, 200, vector.body)
        self.assertIsInstance(self.tokens(server, "mine"), list)
        self.assertEqual({model["parent"] for model in server.get("/v1/models").json["data"] if model["id"] == "mine"}, {"base"})

    def test_an_idle_model_is_unloaded_and_wakes(self):
        server = self.start("--served-model-name", "base", "--sleep-idle-seconds", 0.3)
        harness.wait_until(lambda: server.get("/is_sleeping").json["is_sleeping"], server.log_text)
        self.assertIsInstance(self.tokens(server, "mine"), list)

    def test_blocks_on_disk_are_not_forgotten_by_a_model_that_sleeps(self):
        server = self.start("--served-model-name", "base", "--kv-offload-dir", self.folder / "blocks")
        self.assertEqual(server.post("/reset_prefix_cache", {}).status, 200)
        self.assertEqual(server.post("/sleep", {}).status, 200)
        harness.wait_until(lambda: server.get("/is_sleeping").json["is_sleeping"], server.log_text)  # it leaves when it is done
        self.assertEqual(server.post("/reset_prefix_cache", {}).status, 503)


class AdaptersOfRanks(Adapters):
    LAYOUT = ("--tensor-parallel-size", 2)


class AdaptersOfStages(Adapters):
    LAYOUT = ("--pipeline-parallel-size", 2)


class Refusals(unittest.TestCase):
    def test_a_start_that_cannot_be_is_told_in_a_sentence(self):
        model = harness.DATA / "e2e/tiny/llama"

        def told(*arguments):
            done = harness.run("serve", model, "--skip-tokenizer-init", "--port", harness.free_port(), *arguments)
            self.assertNotEqual(done.returncode, 0)
            return done.stdout + done.stderr

        self.assertIn("--enable-lora", told("--lora-modules", f"qv={LORA / 'qv'}"))
        self.assertIn("another model", told("--enable-lora", "--lora-modules", f"g={LORA.parent / 'gpt2/qv'}"))
        self.assertIn("rank", told("--enable-lora", "--max-lora-rank", 8, "--lora-modules", f"r={LORA / 'rslora'}"))
        self.assertIn("NAME=PATH", told("--enable-lora", "--lora-modules", "nonsense"))
        self.assertIn("max_loras", told("--max-loras", 2))

    def test_a_file_of_requests_ends_although_an_adapter_cannot_be_loaded(self):
        with tempfile.TemporaryDirectory(prefix="quire-adapters-") as name:
            folder = pathlib.Path(name)
            (folder / "dir/broken").mkdir(parents=True)
            shutil.copytree(LORA / "qv", folder / "dir/qv")
            asked = [(model, "/v1/completions", {"prompt": [5, 6, 7]}) for model in ("broken", "qv", "base")]
            (folder / "in.jsonl").write_text("".join(json.dumps({
                "custom_id": model, "method": "POST", "url": url, "body": {"model": model, "max_tokens": 2, **body}}) + "\n"
                for model, url, body in asked))
            done = harness.run("run-batch", "-i", folder / "in.jsonl", "-o", folder / "out.jsonl", "--model",
                               harness.DATA / "e2e/tiny/llama", "--served-model-name", "base", "--skip-tokenizer-init",
                               "--enable-lora", "--lora-dir", folder / "dir", timeout=60)
            answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        found = {answer["custom_id"]: answer["response"] for answer in answers}
        self.assertEqual({name: response["status_code"] for name, response in found.items()},
                         {"broken": 503, "qv": 200, "base": 200}, done.stderr)
        self.assertIn("cannot be loaded", found["broken"]["body"]["error"]["message"])

    def test_commands_without_a_server_answer_with_one(self):
        model = (harness.DATA / "e2e/tiny/llama", "--tokenizer", harness.DATA / "tokenizers/small_bpe.json")
        prompt, names = "the sea", ("all_linear", "prompt_tuning_20")
        with tempfile.TemporaryDirectory(prefix="quire-adapters-") as name:
            folder = pathlib.Path(name)
            (folder / "in.jsonl").write_text("".join(json.dumps({
                "custom_id": adapter, "method": "POST", "url": "/v1/completions",
                "body": {"model": adapter, "prompt": prompt, "max_tokens": 8, "temperature": 0}}) + "\n"
                for adapter in ("base", *names)))
            done = harness.run("run-batch", "-i", folder / "in.jsonl", "-o", folder / "out.jsonl", *model, "--served-model-name",
                               "base", "--enable-lora", "--enable-prompt-adapter", "--lora-modules",
                               *(f"{adapter}={LORA / adapter}" for adapter in names), timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        texts = {answer["custom_id"]: answer["response"]["body"]["choices"][0]["text"] for answer in answers}
        self.assertEqual(len(set(texts.values())), 3, texts)
        # Its rank and its kind are the adapter's own: nothing else is to be said.
        for adapter in names:
            said = harness.run("complete", *model, "-p", prompt, "--max-tokens", 8, "--temperature", 0, "-q", "--lora",
                               LORA / adapter)
            self.assertEqual((said.stdout, said.returncode), (texts[adapter] + "\n", 0), said.stderr)
        missing = harness.run("complete", *model, "-p", prompt, "--lora", "/nowhere")
        self.assertEqual((missing.returncode, missing.stderr), (1, "quire: --lora: /nowhere: there is no such file\n"))

    def test_the_plan_shows_what_adapters_take(self):
        model = harness.DATA / "e2e/tiny/llama"
        without = harness.run("plan", model).stdout
        self.assertNotIn("adapters", without)
        self.assertRegex(harness.run("plan", model, "--enable-lora", "--max-cpu-loras", 20).stdout, r"adapters .* 20 of")


if __name__ == "__main__":
    harness.main()
