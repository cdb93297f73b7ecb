"""The command line: answers on standard output, messages on standard error, exit codes 0 (done), 1 (the work failed) and
2 (the command line is wrong). No input ends the program by a signal."""

import json
import os
import pathlib
import pty
import select
import struct
import tempfile
import time
import unittest

import harness

TINY = harness.DATA / "e2e/tiny/llama"


def gguf(version=3, tensors=0, metadata=0, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, metadata) + rest


class NamedFiles(unittest.TestCase):
    """A directory reads as an empty file, and a pipe without another end waits for ever."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.pipe = pathlib.Path(self.folder.name) / "pipe"
        os.mkfifo(self.pipe)
        self.requests = pathlib.Path(self.folder.name) / "requests.jsonl"
        self.requests.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions",
                                             "body": {"prompt": [1], "max_tokens": 1}}) + "\n")

    def refused(self, *arguments, says):
        with self.subTest(arguments=arguments):
            done = harness.run(*arguments, timeout=60)
            self.assertIn(done.returncode, (1, 2), done.stderr)
            self.assertIn(says, done.stderr.splitlines()[-1])

    def test_a_directory_is_no_file(self):
        folder = self.folder.name
        for arguments in (["run-batch", "-i", folder, "-o", "answers.jsonl", TINY],
                          ["run-batch", "-i", self.requests, "-o", folder, TINY],
                          ["serve", "--config", folder, TINY], ["serve", "--api-key-file", folder, TINY],
                          ["embed", "-i", folder, TINY], ["render", "--template", folder], ["replay", folder]):
            self.refused(*arguments, says=f'"{folder}" is a directory, expected a file')

    def test_what_is_not_there_is_named(self):
        none = str(pathlib.Path(self.folder.name) / "none")
        for arguments in (["run-batch", "-i", none, "-o", "answers.jsonl", TINY], ["serve", "--config", none, TINY],
                          ["serve", "--api-key-file", none, TINY], ["embed", "-i", none, TINY],
                          ["render", "--template", none], ["replay", none]):
            self.refused(*arguments, says=f'there is no file "{none}"')
        self.refused("run-batch", "-i", self.requests, "-o", none + "/answers.jsonl", TINY, says="there is no directory")

    def test_a_pipe_is_for_what_is_read_once(self):
        for arguments in (["run-batch", "-i", self.pipe, "-o", "answers.jsonl", TINY],
                          ["run-batch", "-i", self.requests, "-o", self.pipe, TINY],
                          ["serve", "--api-key-file", self.pipe, TINY]):
            self.refused(*arguments, says="is no ordinary file (a pipe or a device)")

    def test_an_empty_file_is_no_trace(self):
        empty = pathlib.Path(self.folder.name) / "empty"
        empty.touch()
        self.refused("replay", empty, says="nothing is in the trace")


class Usage(unittest.TestCase):
    def test_version_and_help(self):
        version = harness.run("--version")
        self.assertEqual(version.returncode, 0)
        self.assertRegex(version.stdout, r"^quire \d+\.\d+\.\d+")
        for arguments in (["--help"], *([command, "--help"] for command in
                                        ("complete", "chat", "serve", "tokenize", "render", "inspect", "plan",
                                         "replay", "quantize", "bench"))):
            with self.subTest(arguments=arguments):
                shown = harness.run(*arguments)
                self.assertEqual(shown.returncode, 0)
                self.assertIn("--", shown.stdout)
                self.assertEqual(shown.stderr, "")

    def test_a_wrong_command_line_is_2_and_says_what_is_wrong(self):
        cases = [((), "subcommand"), (("no-such-command",), "no-such-command"), (("complete",), "prompt"),
                 (("complete", "--no-such-flag"), "no-such-flag"),
                 (("complete", "-p", "x", "--max-tokens", "many"), "max-tokens"),
                 (("serve", "--port", "70000000"), "port"), (("plan", "--max-model-len", "-5"), "max-model-len"),
                 (("plan", "--kv-cache-memory-bytes", "lots"), "kv-cache-memory-bytes")]
        for arguments, says in cases:
            with self.subTest(arguments=arguments):
                result = harness.run(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(says, (result.stderr + result.stdout).lower())

    def test_an_unknown_command_says_which_there_are_and_which_was_meant(self):
        for word, meant in (("run", "quire chat"), ("generate", "quire complete"), ("server", "quire serve"),
                            ("tokenise", "quire tokenize"), ("x/model.gguf", "quire chat x/model.gguf")):
            with self.subTest(word=word):
                result = harness.run(word, "--flag", "more")
                self.assertEqual(result.returncode, 2)
                self.assertIn(f'there is no command "{word}"', result.stderr)
                self.assertIn(meant, result.stderr)
                self.assertIn("complete, chat, serve", result.stderr)
        self.assertIn("latency, throughput", harness.run("bench", "x").stderr)
        self.assertIn("latency, throughput", harness.run("bench").stderr)
        self.assertIn("behind a command", harness.run("-m", "model.gguf").stderr)

    def test_words_for_help_and_version(self):
        for words, flags in ((("help",), ("--help",)), (("help", "plan"), ("plan", "--help")),
                             (("version",), ("--version",)), (("-V",), ("--version",))):
            with self.subTest(words=words):
                self.assertEqual(harness.run(*words).stdout, harness.run(*flags).stdout)
                self.assertEqual(harness.run(*words).returncode, 0)

    def test_a_misspelt_flag_says_which_was_meant(self):
        for command, flag, meant in (("serve", "--max_modle_len=3", "--max-model-len"),
                                     ("plan", "--max_model_len", "--max-model-len"), ("chat", "--sytem", "--system")):
            with self.subTest(flag=flag):
                result = harness.run(command, flag)
                self.assertEqual(result.returncode, 2)
                self.assertIn(f"did you mean {meant}?", result.stderr)
                self.assertIn(f"quire {command} --help", result.stderr)

    def test_a_prompt_needs_no_flag(self):
        for arguments, says in (((TINY,), "no prompt"), (("org/name",), '"org/name" is taken for the model'), ((), "-p"),
                                (("none.gguf", "text", "-p", "x"), "two prompts"),
                                (("one", "two", "three"), "in quotes")):
            with self.subTest(arguments=arguments):
                result = harness.run("complete", *arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn(says, result.stderr.lower() if says.islower() else result.stderr)

    @harness.needs_default_model
    def test_a_prompt_gives_the_same_answer_wherever_it_stands(self):
        flags = ("--max-tokens", 8, "--temperature", 0, "-q")
        answers = {harness.run("complete", *arguments, *flags, stdin="Once upon a time").stdout
                   for arguments in (("-p", "Once upon a time"), ("Once upon a time",), ("-",), ("-p", "-"),
                                     (harness.DEFAULT_MODEL, "Once upon a time"),
                                     ("--model", harness.DEFAULT_MODEL, "Once upon a time"),
                                     (harness.DEFAULT_MODEL, "--prompt=Once upon a time"))}
        self.assertEqual(len(answers), 1, answers)
        self.assertGreater(len(answers.pop()), 3)

    def test_a_model_is_named_by_its_place_or_by_a_flag(self):
        by_place = harness.run("plan", TINY)
        self.assertEqual(by_place.returncode, 0, by_place.stderr)
        shown = by_place.stdout.splitlines()[0]  # below stands what memory is free at the moment
        for arguments in (("--model", TINY), (TINY, "--model", TINY), ("--model", f"{TINY}/../llama", TINY)):
            with self.subTest(arguments=arguments):
                self.assertEqual(harness.run("plan", *arguments).stdout.splitlines()[0], shown)
        for command in ("plan", "serve", "complete", "chat", "tokenize", "render", "inspect"):
            with self.subTest(command=command):
                result = harness.run(command, TINY, "--model", "another.gguf")
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("two models are named", result.stderr)

    def test_a_missing_default_model_says_how_to_get_it(self):
        with tempfile.TemporaryDirectory() as empty:
            environment = {**os.environ, "XDG_CACHE_HOME": empty}
            for arguments in (("complete", "-p", "x"), ("plan",), ("tokenize", "-t", "x"), ("serve",)):
                with self.subTest(arguments=arguments):
                    result = harness.run(*arguments, environment=environment)
                    self.assertEqual(result.returncode, 1)
                    self.assertIn("quickstart.sh", result.stderr)
                    self.assertEqual(result.stdout, "")


class BadModels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, path, *says):
        for arguments in (("plan", path), ("complete", path, "-p", "x"), ("tokenize", path, "-t", "x")):
            with self.subTest(path=path.name, command=arguments[0]):
                result = harness.run(*arguments)
                self.assertEqual(result.returncode, 1, f"{result.returncode}: {result.stderr}")
                self.assertTrue(result.stderr.strip())
                for text in says:
                    self.assertIn(text, result.stderr)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def test_what_is_not_there(self):
        self.refused(self.folder / "none.gguf", "none.gguf")

    def test_files_that_are_no_model(self):
        self.refused(self.file("empty.gguf", b""))
        self.refused(self.file("text.gguf", b"hello, this is no model at all" * 10))
        self.refused(self.file("version.gguf", gguf(version=99)), "99")
        self.refused(self.file("many.gguf", gguf(tensors=2**63)))
        self.refused(self.file("long-key.gguf", gguf(metadata=1, rest=struct.pack("<Q", 2**62))))

    def test_pickled_weights_are_refused(self):
        self.refused(self.file("pytorch_model.bin", b"\x80\x02}q\x00."))

    def test_a_directory_without_a_config(self):
        self.refused(self.folder, self.folder.name, "config.json")

    def test_a_config_without_weights(self):
        folder = self.folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text((TINY / "config.json").read_text())
        for command in (("plan", folder), ("complete", folder, "-p", "x")):
            result = harness.run(*command)
            self.assertEqual(result.returncode, 1)
            self.assertIn("safetensors", result.stderr)

    def test_a_truncated_file(self):
        folder = self.folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text((TINY / "config.json").read_text())
        whole = (TINY / "model.safetensors").read_bytes()
        for size in (4, 8, 100, len(whole) // 2, len(whole) - 1):
            (folder / "model.safetensors").write_bytes(whole[:size])
            with self.subTest(size=size):
                result = harness.run("plan", folder)
                self.assertEqual(result.returncode, 1)
                self.assertIn("model.safetensors", result.stderr)

    def test_an_architecture_that_is_not_known_is_named(self):
        folder = self.folder / "model"
        folder.mkdir()
        config = json.loads((TINY / "config.json").read_text())
        config["architectures"] = ["NoSuchForCausalLM"]
        config["model_type"] = "no_such"
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes())
        result = harness.run("plan", folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("NoSuchForCausalLM", result.stderr)


class Plan(unittest.TestCase):
    def plan(self, *arguments):
        result = harness.run("plan", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check_arithmetic(self, plan):
        self.assertEqual(plan["block_bytes"], plan["kv_bytes_per_token"] * plan["block_size"])
        self.assertEqual(plan["kv_bytes"], plan["num_blocks"] * plan["block_bytes"])
        self.assertEqual(plan["kv_tokens"], plan["num_blocks"] * plan["block_size"])
        blocks = -(-plan["sequence_tokens"] // plan["block_size"])
        self.assertEqual(plan["sequences"], plan["num_blocks"] // blocks)

    def test_of_a_small_model(self):
        plan = self.plan(TINY, "--kv-cache-memory-bytes", 1024 * 1024)
        self.check_arithmetic(plan)
        self.assertEqual(plan["kv_bytes_per_token"], 2 * 2 * 2 * 16 * 4)  # K and V, layers, kv heads, head size, bytes
        self.assertEqual(plan["num_blocks"], 1024 * 1024 // (512 * 16))
        self.assertEqual(plan["max_model_len"], 512)
        weights = (TINY / "model.safetensors").stat().st_size
        self.assertGreater(plan["weight_bytes"], 0.5 * weights)
        self.assertLess(plan["weight_bytes"], 2 * weights)

    def test_of_another_block_size_and_length(self):
        plan = self.plan(TINY, "--kv-cache-memory-bytes", "1M", "--block-size", 32, "--sequence-tokens", 33)
        self.check_arithmetic(plan)
        self.assertEqual((plan["block_size"], plan["num_blocks"], plan["sequences"]), (32, 64, 32))

    def test_out_of_free_memory(self):
        plan = self.plan(TINY, "--memory-utilization", 0.01)
        self.check_arithmetic(plan)
        self.assertGreater(plan["num_blocks"], 0)
        self.assertLessEqual(plan["kv_bytes"], plan["free_bytes"])

    @harness.needs_default_model
    def test_of_the_default_model(self):
        plan = self.plan("--kv-cache-memory-bytes", "1G")
        self.check_arithmetic(plan)
        self.assertEqual(plan["kv_bytes_per_token"], 2 * 30 * 3 * 64 * 2)
        self.assertEqual(plan["num_blocks"], 2**30 // (23040 * 16))
        # Where nothing else is rounded the cache is not either.
        exact = self.plan("--kv-cache-memory-bytes", "1G", "--activation-dtype", "float32")
        self.assertEqual(exact["kv_bytes_per_token"], 2 * 30 * 3 * 64 * 4)
        size = harness.DEFAULT_MODEL.stat().st_size
        self.assertGreater(plan["weight_bytes"], 0.5 * size)
        self.assertLess(plan["weight_bytes"], 2 * size)

    @harness.needs_default_model
    def test_a_server_prints_at_start_what_was_planned(self):
        flags = ("--kv-cache-memory-bytes", "64M", "--swap-space", "0.1")
        planned = harness.run("plan", *flags).stdout.splitlines()
        with harness.Server(*flags) as server:
            started = [line.partition(" memory: ")[2] for line in server.log_text().splitlines()]
        for name in ("weights", "workspace", "KV pool", "KV tokens", "swap space"):
            with self.subTest(line=name):
                self.assertEqual([line.split(", ")[0] for line in started if line.startswith(name)],
                                 [line.split(", ")[0] for line in planned if line.startswith(name)])

    @harness.needs_default_model
    def test_swap_space_in_memory_is_not_given_to_the_pool_as_well(self):
        flags = ("--memory-utilization", 0.5, "--swap-space", 2)
        in_memory, in_a_file = self.plan(*flags), self.plan(*flags, "--swap-file", self.id())
        for plan, swap_bytes in ((in_memory, 2 << 30), (in_a_file, 0)):
            left = plan["free_bytes"] - plan["weight_bytes"] - plan["workspace_bytes"] - swap_bytes
            self.assertLess(abs(left * 0.5 - plan["kv_bytes"]), 2 * plan["block_bytes"])

    @harness.needs_default_model
    def test_in_words_names_every_number(self):
        shown = harness.run("plan", "--kv-cache-memory-bytes", "1G").stdout
        for text in ("weights", "workspace", "KV pool", "KV tokens", "23040", str(2**30 // (23040 * 16)), "sequences"):
            self.assertIn(text, shown)


@harness.needs_default_model
class Render(unittest.TestCase):
    TEMPLATES = harness.DATA / "templates"

    def render(self, template, *lines):
        done = harness.run("render", "--template", template, stdin="".join(line + "\n" for line in lines))
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_of_a_real_template_is_what_jinja_made_of_it(self):
        name = "Qwen3-Coder"
        goldens = json.loads((self.TEMPLATES / f"{name}.golden.json").read_text()).values()
        answers = self.render(self.TEMPLATES / f"{name}.jinja", *(json.dumps(golden["input"]) for golden in goldens))
        self.assertEqual(answers, [{"text": golden["output"]} for golden in goldens])

    def test_answers_every_line_in_its_place(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / "t.jinja"
            template.write_text("{% if not name %}{{ raise_exception('who?') }}{% endif %}Hello {{ name }}")
            answers = self.render(template, '{"name": "Ann"}', '{"name": ""}', "", "[1]", "{", '{"name": "Bo"}')
            self.assertEqual([list(answer) for answer in answers], [["text"], ["error"], ["error"], ["error"], ["text"]])
            self.assertEqual([answers[0]["text"], answers[4]["text"]], ["Hello Ann", "Hello Bo"])
            self.assertIn("who?", answers[1]["error"])

    def test_a_template_that_is_none_says_where(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / "t.jinja"
            template.write_text("one\n{% if %}")
            self.assertIn("line 2", self.render(template, "{}")[0]["error"])
            alone = harness.run("render", "--template", template)
            self.assertEqual((alone.returncode, alone.stdout), (1, ""))
            self.assertIn("line 2", alone.stderr)
            absent = harness.run("render", "--template", template.with_suffix(".none"))
            self.assertEqual(absent.returncode, 1)
            self.assertIn("t.none", absent.stderr)
            self.assertEqual(harness.run("render", "--template", folder, stdin="{}").returncode, 1)

    def test_of_the_default_model(self):
        done = harness.run("render", stdin='{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}')
        self.assertIn("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", json.loads(done.stdout)["text"])


class Inspect(unittest.TestCase):
    def test_of_the_default_model(self):
        found = json.loads(harness.run("inspect", "--json").stdout)
        self.assertEqual((found["format"], found["architectures"], found["weights"]), ("GGUF", ["LlamaForCausalLM"], "Q4_1"))
        self.assertEqual({key: found["model"][key] for key in ("layers", "heads", "kv_heads", "context")},
                         {"layers": 30, "heads": 9, "kv_heads": 3, "context": 8192})
        self.assertEqual(sum(one["tensors"] for one in found["tensors"]["types"].values()), found["tensors"]["count"])
        self.assertIn("49152", found["tokenizer"])
        self.assertEqual(found["unsupported"], [])
        text = harness.run("inspect").stdout
        for word in ("LlamaForCausalLM", "30 layers", "8192 tokens", "Q8_0", "unsupported    nothing"):
            self.assertIn(word, text)

    def test_judges_the_template_that_is_given_in_place_of_the_model_s(self):
        done = harness.run("inspect", "--json", "--chat-template", "{% if %}")
        self.assertEqual([one["part"] for one in json.loads(done.stdout)["unsupported"]], ["chat template"])

    def test_lists_the_tensors_on_demand(self):
        found = json.loads(harness.run("inspect", TINY, "--json", "--tensors").stdout)
        self.assertEqual(len(found["tensors"]["list"]), found["tensors"]["count"])
        self.assertIn("model.embed_tokens.weight", [tensor["name"] for tensor in found["tensors"]["list"]])

    def test_says_what_would_be_refused_and_why(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors"):
                (pathlib.Path(folder) / name).write_bytes((TINY / name).read_bytes())
            config = json.loads((TINY / "config.json").read_text())
            (pathlib.Path(folder) / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
            done = harness.run("inspect", folder, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            refused = {one["part"]: one["reason"] for one in json.loads(done.stdout)["unsupported"]}
            self.assertIn("NoSuchModel", refused["model"])
            self.assertIn("tokenizer", refused)


class Complete(unittest.TestCase):
    def test_answers_on_standard_output_alone(self):
        result = harness.run("complete", "--chat", "-p", "What is the capital of France?", "--temperature", 0,
                             "--max-tokens", 16, "--activation-dtype", "float32")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Paris", result.stdout)
        self.assertIn("tok/s", result.stderr)

    def test_reads_the_prompt_from_standard_input(self):
        arguments = ("--temperature", 0, "--max-tokens", 8, "--quiet")
        given = harness.run("complete", "-p", "The capital of France is", *arguments)
        read = harness.run("complete", "-p", "-", *arguments, stdin="The capital of France is")
        self.assertEqual(given.returncode, 0)
        self.assertEqual(given.stdout, read.stdout)

    def test_a_seed_reproduces_an_answer(self):
        arguments = ("complete", "-p", "Once upon a time", "--max-tokens", 16, "--temperature", 1, "--seed", 11, "--quiet")
        self.assertEqual(harness.run(*arguments).stdout, harness.run(*arguments).stdout)

    def test_wrong_parameters_are_1_and_named(self):
        for flag, value in (("--activation-dtype", "int9"), ("--cpu-affinity", "0-"),
                            ("--temperature", -1), ("--top-p", 2), ("--min-p", "nan"), ("--repetition-penalty", 0)):
            with self.subTest(flag=flag):
                result = harness.run("complete", "-p", "x", flag, value)
                self.assertIn(result.returncode, (1, 2))
                self.assertIn(flag.strip("-").replace("-", "_"), result.stderr.replace("-", "_"))

    def test_chat_in_a_terminal_takes_every_character_and_both_ways_out(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(harness.QUIRE, ["quire", "chat", "--max-tokens", "1"])
        seen = b""

        def see(expected):
            nonlocal seen
            deadline = time.monotonic() + 60
            while expected not in seen:
                self.assertLess(time.monotonic(), deadline, seen)
                if select.select([terminal], [], [], 0.1)[0]:
                    seen += os.read(terminal, 4096)
            seen = seen[seen.index(expected) + len(expected):]

        try:
            see(b"\r\n> ")
            os.write(terminal, b"\x03")  # Ctrl-C
            see(b"\r\n> ")
            os.write(terminal, "né漢".encode())
            see("né漢".encode())
            os.write(terminal, b"\x03")
            see(b"\r\n> ")
            time.sleep(1)  # behind its prompt the terminal is still to be made the editor's, which drops what comes meanwhile
            os.write(terminal, b"\x04")  # Ctrl-D
            harness.wait_until(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0), lambda: f"it goes on: {seen}")
        finally:
            os.close(terminal)

    def test_chat_of_lines_on_standard_input_ends_with_it(self):
        result = harness.run("chat", "--max-tokens", 12, "--temperature", 0, "--activation-dtype", "float32",
                             stdin="What is the capital of France?\n/reset\nWhat is two plus two?\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Paris", result.stdout)


if __name__ == "__main__":
    harness.main()
