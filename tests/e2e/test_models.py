"""Several models in one server: each answers as it does alone, loaded when it is asked for, unloaded when another one needs
its place."""

import concurrent.futures
import json
import unittest

import harness

MARGIN = 0.01
FAMILIES = ["llama", "qwen3", "gemma3", "opt"]


def folder(family):
    return harness.DATA / "e2e/tiny" / family


@unittest.skipUnless(all(folder(family).exists() for family in FAMILIES), "the small checkpoints are not here")
class SeveralModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.records = {family: json.loads((folder(family) / "golden.json").read_text())["cases"] for family in FAMILIES}

    def serve(self, *more):
        models = [argument for family in FAMILIES for argument in ("--model", f"{family}={folder(family)}")]
        return harness.Server("--skip-tokenizer-init", *models, *more, model="")

    def answer(self, server, family, case):
        greedy = case["greedy"]
        choice = server.answer("/v1/completions", {
            "model": family, "prompt": case["prompt"], "max_tokens": len(greedy), "temperature": 0, "ignore_eos": True,
            "return_token_ids": True})["choices"][0]
        steps = harness.steps_to_compare(case["greedy_margin"], MARGIN)
        return choice["token_ids"][:steps], greedy[:steps]

    def statuses(self, server):
        return {model["id"]: model["status"]["value"] for model in server.get("/v1/models").json["data"]}

    def test_each_answers_as_alone_whatever_must_be_loaded_for_it(self):
        with self.serve("--models-max", "2") as server:
            self.assertEqual(list(self.statuses(server).values()), ["loaded", "unloaded", "unloaded", "unloaded"])
            asked = [(family, case) for case in range(2) for family in FAMILIES]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda one: self.answer(server, one[0], self.records[one[0]][one[1]]), asked * 3))
            for found, expected in answers:
                self.assertEqual(found, expected)
            self.assertLessEqual(sum(status == "loaded" for status in self.statuses(server).values()), 2)

    def test_a_model_of_an_unknown_name_is_refused(self):
        with self.serve() as server:
            reply = server.post("/v1/completions", {"model": "mamba", "prompt": [1], "max_tokens": 1})
            self.assertEqual((reply.status, reply.json["error"]["code"]), (404, "model_not_found"))

    def test_one_that_is_larger_than_all_may_be_is_refused_at_start(self):
        result = harness.run("serve", "--skip-tokenizer-init", "--port", harness.free_port(), "--models-memory", "8M",
                             "--model", f"a={folder('llama')}", "--model", f"b={folder('opt')}")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "model a")

    def test_what_is_of_one_model_is_refused_for_several(self):
        for flags, said in ((["--served-model-name", "x"], "served-model-name"), (["--tokenizer", "x"], "--tokenizer")):
            result = harness.run("serve", "--model", f"a={folder('llama')}", "--model", f"b={folder('opt')}", *flags)
            self.assertEqual(result.returncode, 1)
            self.assertIn(said, result.stderr)


if __name__ == "__main__":
    harness.main()
