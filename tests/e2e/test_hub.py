"""A model by its name: from a hub on loopback into the cache and from there into the server."""

import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import fake_hub
import harness

NAME = "tiny/llama"
# Tokens of /v1/completions need no tokenizer.
ARGUMENTS = ("--skip-tokenizer-init",)


def llama_files():
    folder = harness.DATA / "e2e/tiny/llama"
    files = {path.name: path for path in folder.iterdir() if path.name != "golden.json"}
    return {**files, "README.md": b"# a model", "pytorch_model.bin": b"\x80\x02 a pickle"}


def gguf_files():
    folder = harness.DATA / "e2e/tiny_gguf"
    return {"model-Q8_0.gguf": folder / "mixtral.gguf", "model-Q4_K_M.gguf": folder / "qwen2_moe.gguf"}


class HubTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-hub-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hub = fake_hub.FakeHub({NAME: fake_hub.Repository(llama_files()),
                                     "tiny/gguf": fake_hub.Repository(gguf_files()),
                                     "tiny/pickle": fake_hub.Repository({"config.json": b"{}", "pytorch_model.bin": b"x"})})
        self.enterContext(self.hub)
        for variable in list(os.environ):
            if variable.startswith("HF_"):
                del os.environ[variable]
        self.environment = {**os.environ, "HF_HOME": str(self.folder), "HF_ENDPOINT": self.hub.url}

    def cache(self):
        return self.folder / "hub"

    def quire(self, *arguments, **environment):
        return harness.run(*arguments, environment={**self.environment, **environment})

    def succeeds(self, *arguments, **environment):
        result = self.quire(*arguments, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def refused(self, *arguments, **environment):
        result = self.quire(*arguments, **environment)
        self.assertEqual(result.returncode, 1, result.stdout)
        return result.stderr

    def serve(self, *arguments, model=NAME):
        with unittest.mock.patch.dict(os.environ, self.environment):
            return harness.Server(*arguments, model=model)


class Serving(HubTest):
    def test_a_model_is_served_by_its_name_and_the_second_time_without_a_request(self):
        record = json.loads((harness.DATA / "e2e/tiny/llama/golden.json").read_text())["cases"][0]
        for start in range(2):
            self.hub.forget()
            with self.serve(*ARGUMENTS) as server:
                listed = server.get("/v1/models").json["data"]
                self.assertEqual([model["id"] for model in listed], [NAME])
                answer = server.answer("/v1/completions", {
                    "model": NAME, "prompt": record["prompt"], "max_tokens": 1, "temperature": 0, "ignore_eos": True,
                    "return_token_ids": True})
                self.assertEqual(answer["choices"][0]["token_ids"], record["greedy"][:1])
            if start == 0:
                self.assertEqual(self.hub.asked("pytorch_model.bin"), [])
                self.assertEqual(self.hub.asked("README.md"), [])
            else:
                self.assertEqual(self.hub.asked(), [])

    def test_served_model_name_is_what_clients_see(self):
        with self.serve(*ARGUMENTS, "--served-model-name", "small") as server:
            self.assertEqual([model["id"] for model in server.get("/v1/models").json["data"]], ["small"])

    def test_a_gguf_type_is_served_by_its_name(self):
        with self.serve(*ARGUMENTS, model="tiny/gguf:q8_0") as server:
            self.assertEqual([model["id"] for model in server.get("/v1/models").json["data"]], ["tiny/gguf:q8_0"])
        self.assertEqual(len(self.hub.asked("model-Q4_K_M.gguf")), 0)

    def test_several_models_by_their_names(self):
        with self.serve(*ARGUMENTS, "--model", f"a={NAME}", "--model", "b=tiny/gguf:Q8_0", model=None) as server:
            self.assertEqual(sorted(model["id"] for model in server.get("/v1/models").json["data"]), ["a", "b"])

    def test_flags_that_are_wrong_are_told_before_anything_is_downloaded(self):
        self.assertIn("--api-key-file", self.refused("serve", NAME, "--api-key-file", "/nowhere"))
        self.assertEqual(self.hub.asked(), [])

    def test_ctrl_c_ends_a_download(self):
        self.hub.bytes_per_second = 50_000
        self.hub.repositories[NAME].files["model.safetensors"] += b"x" * 1_000_000
        process = subprocess.Popen([harness.QUIRE, "serve", NAME], env=self.environment, stderr=subprocess.PIPE)
        harness.wait_until(lambda: self.hub.sent_bytes > 30_000, lambda: "no bytes were sent")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, -signal.SIGINT)


class Commands(HubTest):
    def test_plan_inspect_and_bench_take_a_name(self):
        plan = json.loads(self.succeeds("plan", NAME, "--json"))
        self.assertGreater(plan["weight_bytes"], 0)
        self.assertEqual(json.loads(self.succeeds("inspect", NAME, "--json"))["name"], NAME)
        self.assertIn(NAME, self.succeeds("bench", "latency", NAME, "--input-len", "4", "--output-len", "2",
                                          "--num-iters", "1", "--num-iters-warmup", "0", "--skip-tokenizer-init"))

    def test_a_revision_is_a_branch_or_a_commit(self):
        self.succeeds("plan", NAME, "--revision", fake_hub.COMMIT)
        self.assertIn('no revision "v9"', self.refused("plan", NAME, "--revision", "v9"))

    def test_download_dir_is_another_cache(self):
        other = self.folder / "elsewhere"
        path = pathlib.Path(self.succeeds("pull", NAME, "--download-dir", other).strip())
        self.assertTrue(path.is_relative_to(other))
        self.assertFalse(self.cache().exists())
        self.assertIn(NAME, self.succeeds("models", HF_HUB_CACHE=str(other)))

    def test_a_path_that_is_there_is_no_name(self):
        folder = self.folder / "tiny/llama"
        shutil.copytree(harness.DATA / "e2e/tiny/llama", folder)
        result = subprocess.run([harness.QUIRE.resolve(), "inspect", NAME, "--json"], cwd=self.folder, env=self.environment,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.hub.asked(), [])

    def test_a_file_that_is_missing_is_not_looked_for_on_the_hub(self):
        for path in ("./tiny/llama", "/tiny/llama", "tiny/llama.gguf", "llama", "a/b/c"):
            self.assertIn("there is no file or directory", self.refused("plan", path))
        self.assertEqual(self.hub.asked(), [])

    def test_pull_lists_and_remove(self):
        path = pathlib.Path(self.succeeds("pull", NAME).strip())
        self.assertTrue((path / "config.json").is_symlink())
        self.succeeds("pull", "tiny/gguf:Q8_0")
        self.succeeds("pull", "tiny/gguf:Q4_K_M")
        table = self.succeeds("models")
        for text in (NAME, "tiny/gguf:Q8_0", "tiny/gguf:Q4_K_M", "F32", "main c0ffee01"):
            self.assertIn(text, table)
        listed = {model["name"]: model for model in json.loads(self.succeeds("models", "--json"))["models"]}
        self.assertEqual(listed[NAME]["path"], str(path))
        self.assertEqual(listed["tiny/gguf:Q8_0"]["bytes"], (harness.DATA / "e2e/tiny_gguf/mixtral.gguf").stat().st_size)

        self.assertIn("--yes", self.refused("remove", NAME))
        self.assertTrue(path.exists())
        self.assertIn("freed", self.succeeds("remove", NAME, "--yes"))
        self.assertFalse(path.exists())
        self.assertIn("other files of the model stay", self.succeeds("remove", "tiny/gguf:Q8_0", "-y"))
        names = [model["name"] for model in json.loads(self.succeeds("models", "--json"))["models"]]
        self.assertEqual(names, ["tiny/gguf:Q4_K_M"])
        self.assertIn("is not in", self.refused("remove", NAME, "--yes"))

    def test_remove_asks_on_a_terminal(self):
        path = pathlib.Path(self.succeeds("pull", NAME).strip())
        for answer, stays in (("n\n", True), ("y\n", False)):
            master, slave = pty.openpty()
            process = subprocess.Popen([harness.QUIRE, "remove", NAME], env=self.environment, stdin=slave,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            os.write(master, answer.encode())
            self.assertIn("[y/N]", process.communicate(timeout=20)[1])
            self.assertEqual(path.exists(), stays)
            os.close(master)
            os.close(slave)

    def test_a_bar_is_drawn_on_a_terminal(self):
        self.hub.repositories[NAME].files["model.safetensors"] = b"x" * 400_000
        self.hub.bytes_per_second = 400_000
        master, slave = pty.openpty()
        process = subprocess.Popen([harness.QUIRE, "pull", NAME], env=self.environment, stdout=subprocess.DEVNULL,
                                   stderr=slave)
        os.close(slave)
        seen = b""
        try:
            while part := os.read(master, 4096):
                seen += part
        except OSError:
            pass  # the terminal's other end is closed
        self.assertEqual(process.wait(20), 0, seen)
        self.assertRegex(seen.decode(), r"\d+ % \[#* *\] .* of .*, .*/s, .* left")


class Faults(HubTest):
    def test_a_model_that_is_not_there_says_what_to_do(self):
        self.assertIn("HF_TOKEN", self.refused("plan", "tiny/none"))
        self.assertIn("there are: Q4_K_M, Q8_0", self.refused("plan", "tiny/gguf:Q2_K"))
        self.assertIn("pickles", self.refused("plan", "tiny/pickle"))

    def test_a_token_opens_a_gated_model_and_goes_nowhere_else(self):
        self.hub.repositories[NAME].token = "hf_secret"
        self.hub.repositories[NAME].gated = True
        self.assertIn("is gated", self.refused("pull", NAME))
        self.succeeds("pull", NAME, HF_TOKEN="hf_secret")
        seen = self.hub.asked(host="127.0.0.2")
        self.assertTrue(seen)
        for _, _, _, fields in seen:
            self.assertNotIn("Authorization", fields)
            self.assertNotIn("hf_secret", str(fields))

    def test_the_token_comes_from_a_flag_or_the_file_too(self):
        self.hub.repositories[NAME].token = "hf_secret"
        self.assertIn("or it is private", self.refused("pull", NAME))
        self.assertIn("or it is private", self.refused("pull", NAME, HF_TOKEN="hf_other"))
        (self.folder / "token").write_text("hf_secret\n")
        self.succeeds("plan", NAME)
        (self.folder / "token").unlink()
        self.succeeds("pull", NAME, "--hf-token", "hf_secret")

    def test_offline_is_said_and_nothing_is_asked(self):
        self.assertIn("HF_HUB_OFFLINE", self.refused("plan", NAME, HF_HUB_OFFLINE="1"))
        self.assertEqual(self.hub.asked(), [])

    def test_a_byte_that_was_changed_is_noticed(self):
        self.hub.tampered = True
        self.assertIn("what came has the hash", self.refused("pull", NAME))
        self.assertIn("incomplete", self.succeeds("models"))
        self.hub.tampered = False
        self.succeeds("pull", NAME)

    def test_cut_connections_go_on(self):
        # Six answers of seven parts; what the last cut leaves is less than a client might still read to keep a connection.
        self.hub.repositories[NAME].files["model.safetensors"] += b"x" * 26_000
        self.hub.cut_after = 100_000
        self.succeeds("pull", NAME)
        self.assertGreater(len(self.hub.asked(host="127.0.0.2")), 4)

    def test_after_a_kill_another_process_goes_on_with_what_is_there(self):
        content = os.urandom(1_500_000)
        self.hub.repositories[NAME].files["model.safetensors"] = content
        self.hub.bytes_per_second = 400_000
        process = subprocess.Popen([harness.QUIRE, "pull", NAME], env=self.environment, stderr=subprocess.DEVNULL)
        harness.wait_until(lambda: self.hub.sent_bytes > 800_000, lambda: f"{self.hub.sent_bytes} bytes were sent")
        process.kill()
        process.wait()
        self.assertIn("incomplete", self.succeeds("models"))
        time.sleep(0.2)  # what the server was still writing
        self.hub.forget()
        self.hub.bytes_per_second = None
        path = pathlib.Path(self.succeeds("pull", NAME).strip())
        self.assertEqual((path / "model.safetensors").read_bytes(), content)
        self.assertLess(self.hub.sent_bytes, 1_200_000)
        self.assertGreater(self.hub.sent_bytes, 0)

    def test_two_processes_at_once_do_not_harm_each_other(self):
        content = os.urandom(600_000)
        self.hub.repositories[NAME].files["model.safetensors"] = content
        self.hub.bytes_per_second = 1_000_000
        processes = [subprocess.Popen([harness.QUIRE, "pull", NAME], env=self.environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for _ in range(3)]
        for process in processes:
            out, log = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, log)
            self.assertEqual((pathlib.Path(out.strip()) / "model.safetensors").read_bytes(), content)
        self.assertEqual(len(self.hub.asked(host="127.0.0.2")), 1)

    def test_a_listing_in_pages_is_read_whole(self):
        self.hub.page_size = 1
        self.succeeds("plan", NAME)

    def test_names_that_lead_elsewhere_are_refused(self):
        self.hub.repositories[NAME].files["../../evil.json"] = b"x"
        self.assertIn("leads out of its folder", self.refused("pull", NAME))
        self.assertFalse((self.folder / "evil.json").exists())


class Sharing(HubTest):
    """With huggingface_hub itself, where it is installed: one cache for both."""

    def python(self, script, **environment):
        python = pathlib.Path(harness.sys.executable)
        return subprocess.run([python, "-c", script], env={**self.environment, "HF_HUB_DISABLE_XET": "1", **environment},
                              capture_output=True, text=True, timeout=120)

    def setUp(self):
        super().setUp()
        if self.python("import huggingface_hub").returncode != 0:
            self.skipTest("huggingface_hub is not installed")

    def test_it_finds_what_quire_pulled(self):
        path = self.succeeds("pull", NAME).strip()
        found = self.python(f"""
import huggingface_hub as hub
print(hub.snapshot_download("{NAME}", local_files_only=True))
print(hub.try_to_load_from_cache("{NAME}", "model.safetensors"))
print(hub.hf_hub_download("{NAME}", "config.json", local_files_only=True))
print([repo.repo_id for repo in hub.scan_cache_dir().repos])
""", HF_HUB_OFFLINE="1")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(found.stdout.split("\n")[:4],
                         [path, f"{path}/model.safetensors", f"{path}/config.json", f"['{NAME}']"])

    def test_quire_uses_what_it_downloaded(self):
        loaded = self.python(f"""
import huggingface_hub as hub
print(hub.snapshot_download("{NAME}", allow_patterns=["*.json", "*.safetensors"]))
""")
        self.assertEqual(loaded.returncode, 0, loaded.stderr)
        self.hub.forget()
        self.assertGreater(json.loads(self.succeeds("plan", NAME, "--json"))["weight_bytes"], 0)
        self.assertEqual(self.hub.asked(), [])
        self.assertIn(NAME, self.succeeds("models"))


if __name__ == "__main__":
    harness.main()
