"""Vectors, scores and ranks of the real binary: the `openai` package, batches' lines, `quire embed`, storms and bad input,
on tiny models of the reference's. Compared in float32: by default the products of encoders are of bfloat16 where the
processor has them."""

import array
import ast
import concurrent.futures
import json
import math
import pathlib
import shutil
import tempfile
import unittest

import openai

import harness

MODELS = harness.DATA / "embeddings"
EXACT = ("--dtype", "float32")


def golden(name):
    return json.loads((MODELS / name / "golden.json").read_text())


def normalised(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def largest_difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


class Embeddings(harness.ServerTest):
    model = MODELS / "bert_mean"
    arguments = ("--served-model-name", "tiny", "--max-num-seqs", "8", *EXACT)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=120)
        cls.addClassCleanup(cls.client.close)
        cls.golden = golden("bert_mean")["texts"]

    def test_the_openai_client_gets_the_references_vectors(self):
        # The client asks for base64 by itself.
        answer = self.client.embeddings.create(model="tiny", input=[one["text"] for one in self.golden])
        self.assertEqual([one.index for one in answer.data], list(range(len(self.golden))))
        for found, one in zip(answer.data, self.golden, strict=True):
            self.assertLess(largest_difference(found.embedding, normalised(one["vector"])), 2e-5)
        self.assertEqual(answer.usage.prompt_tokens, sum(len(one["ids"]) for one in self.golden))
        floats = self.client.embeddings.create(model="tiny", input=self.golden[0]["text"], encoding_format="float")
        self.assertLess(largest_difference(floats.data[0].embedding, answer.data[0].embedding), 1e-7)

    def test_token_ids_are_embedded_as_they_are(self):
        answer = self.client.embeddings.create(model="tiny", input=[one["ids"] for one in self.golden])
        for found, one in zip(answer.data, self.golden, strict=True):
            self.assertLess(largest_difference(found.embedding, normalised(one["vector"])), 2e-5)

    def test_what_is_wrong_arrives_as_the_clients_own_exception(self):
        for bad in ([], [[1, 99999]], [[]], "cat " * 200):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.embeddings.create(model="tiny", input=bad)
            self.assertEqual(caught.exception.body["param"], "input")
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model="tiny", input="a", dimensions=8)

    def test_a_storm_gives_everybody_the_same_bits(self):
        texts = [one["text"] for one in self.golden] * 40

        def ask(shift):
            turned = texts[shift:] + texts[:shift]
            answer = self.server.answer("/v1/embeddings", {"input": turned})
            vectors = [one["embedding"] for one in answer["data"]]
            return vectors[len(texts) - shift:] + vectors[:len(texts) - shift]

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, range(24)))
        for answer in answers[1:]:
            self.assertEqual(answer, answers[0])
        self.server.wait_until_idle()

    def test_a_hundred_thousand_texts_pass_while_others_are_answered(self):
        many = [[2, 5 + i % 100, 3] for i in range(100_000)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            large = pool.submit(self.server.post, "/v1/embeddings", {"input": many, "encoding_format": "base64"})
            answered = 0
            while not large.done():
                self.assertEqual(self.server.post("/v1/embeddings", {"input": "the cat"}).status, 200)
                answered += 1
            reply = large.result()
        self.assertEqual(reply.status, 200, reply.body[:300])
        self.assertEqual(len(reply.json["data"]), 100_000)
        self.assertGreater(answered, 3)
        self.server.wait_until_idle()

    def test_texts_are_counted(self):
        before = self.server.metrics().get("quire:pooled_texts_total", 0)
        self.server.answer("/v1/embeddings", {"input": ["a", "b", "c"]})
        self.assertEqual(self.server.metrics()["quire:pooled_texts_total"], before + 3)

    def test_a_model_that_embeds_ranks_by_the_cosine(self):
        answer = self.server.answer("/v1/rerank", {"query": "the cat", "documents": ["rivers run", "the cat", "a dog"]})
        self.assertEqual(answer["results"][0]["index"], 1)
        self.assertAlmostEqual(answer["results"][0]["relevance_score"], 1, places=5)

    def test_a_model_that_embeds_answers_nothing(self):
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status, 400)
        self.assertEqual(self.server.post("/classify", {"input": "a"}).status, 501)


class Reranking(harness.ServerTest):
    model = MODELS / "bert_reranker"
    arguments = EXACT

    def test_pairs_are_scored_as_the_reference_does(self):
        pairs = golden("bert_reranker")["pairs"]
        answer = self.server.answer("/v1/score", {"text_1": [one["first"] for one in pairs],
                                                  "text_2": [one["second"] for one in pairs]})
        for found, one in zip(answer["data"], pairs, strict=True):
            self.assertAlmostEqual(found["score"], 1 / (1 + math.exp(-one["logits"][0])), places=4)
        self.assertEqual(answer["usage"]["prompt_tokens"], sum(len(one["ids"]) for one in pairs))

    def test_documents_are_ranked_as_the_reference_ranks_them(self):
        pairs = [one for one in golden("bert_reranker")["pairs"] if one["first"] == "where is the cat"]
        answer = self.server.answer("/v2/rerank", {"query": "where is the cat", "top_n": 5,
                                                   "documents": [one["second"] for one in pairs]})
        expected = sorted(range(len(pairs)), key=lambda i: -pairs[i]["logits"][0])
        self.assertEqual([one["index"] for one in answer["results"]], expected)


class Programs(unittest.TestCase):
    def test_lines_are_embedded_into_a_matrix(self):
        cases = [one for one in golden("bert_cls")["texts"] if one["text"]]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "vectors.npy"
            done = harness.run("embed", str(MODELS / "bert_cls"), "-o", str(out), "--device", "cpu", *EXACT,
                               stdin="".join(one["text"] + "\n" for one in cases))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{len(cases)} texts", done.stderr)
            bytes_ = out.read_bytes()
        self.assertEqual(bytes_[:8], b"\x93NUMPY\x01\x00")
        head = ast.literal_eval(bytes_[10:128].decode())
        self.assertEqual(head, {"descr": "<f4", "fortran_order": False, "shape": (len(cases), 32)})
        numbers = array.array("f", bytes_[128:])
        for i, one in enumerate(cases):
            self.assertLess(largest_difference(numbers[32 * i:32 * i + 32], one["vector"]), 5e-5)

    def test_lines_are_embedded_into_json_lines(self):
        done = harness.run("embed", str(MODELS / "bert_mean"), "-q", "--prompt-name", "query", "--device", "cpu",
                           stdin="the cat\na dog\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["index"] for line in lines], [0, 1])
        self.assertEqual(len(lines[0]["embedding"]), 32)

    def test_a_trace_of_texts_is_planned_again_as_it_was(self):
        line = "Rivers run to the sea; mountains stand where they are. " * 3
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace"
            done = harness.run("embed", str(MODELS / "mistral_mean"), "--device", "cpu", "--trace-file", str(trace),
                               "--max-num-seqs", "2", "-q", stdin="".join(f"{line}{i % 4}\n" for i in range(30)))
            self.assertEqual(done.returncode, 0, done.stderr)
            again = harness.run("replay", str(trace))
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_what_was_there_stays_unless_all_is_embedded(self):
        with tempfile.TemporaryDirectory() as folder:
            texts, out = pathlib.Path(folder) / "texts", pathlib.Path(folder) / "vectors.npy"
            texts.write_text("the cat\n" + "the cat " * 100 + "\n")
            out.write_text("older")
            done = harness.run("embed", str(MODELS / "bert_mean"), "-i", str(texts), "-o", str(texts), "--device", "cpu")
            self.assertEqual(done.returncode, 1)
            self.assertIn("the file of the texts", done.stderr)
            self.assertTrue(texts.read_text().startswith("the cat\n"))
            done = harness.run("embed", str(MODELS / "bert_mean"), "-i", str(texts), "-o", str(out), "--device", "cpu")
            self.assertEqual(done.returncode, 1)
            self.assertEqual(out.read_text(), "older")
            self.assertEqual(sorted(path.name for path in pathlib.Path(folder).iterdir()), ["texts", "vectors.npy"])
            done = harness.run("embed", "no-such-model", "-i", str(texts), "-o", folder + "/nowhere/x.npy", "--device", "cpu")
            self.assertEqual(done.returncode, 1)

    def test_norms_of_older_files_are_found_by_their_older_names(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "bert"
            shutil.copytree(MODELS / "bert_mean", model)
            stored = (model / "model.safetensors").read_bytes()
            size = int.from_bytes(stored[:8], "little")
            head = json.loads(stored[8:8 + size])
            older = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
                     for name, value in head.items()}
            self.assertNotEqual(set(older), set(head))
            text = json.dumps(older).encode()
            (model / "model.safetensors").unlink()
            (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + stored[8 + size:])
            answers = [harness.run("embed", str(path), "-q", "--device", "cpu", *EXACT, stdin="a cat\n")
                       for path in (MODELS / "bert_mean", model)]
        self.assertEqual(answers[1].returncode, 0, answers[1].stderr)
        self.assertEqual(answers[1].stdout, answers[0].stdout)

    def test_the_sentence_file_has_older_names_and_is_heeded(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "bert"
            shutil.copytree(MODELS / "bert_mean", model)
            (model / "sentence_bert_config.json").rename(model / "sentence_roberta_config.json")
            done = harness.run("embed", str(model), "--device", "cpu", stdin="the cat " * 100 + "\n")
            self.assertIn("at most 96", done.stderr)
            (model / "sentence_roberta_config.json").write_text('{"max_seq_length": 96, "do_lower_case": true}')
            tokenizer = json.loads((model / "tokenizer_config.json").read_text())
            tokenizer["do_lower_case"] = False
            (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
            done = harness.run("embed", str(model), "--device", "cpu", stdin="the cat\n")
            self.assertEqual(done.returncode, 1)
            self.assertIn("do_lower_case", done.stderr)

    def test_texts_lose_their_beginning_where_the_tokenizer_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "bert"
            shutil.copytree(MODELS / "bert_mean", model)
            tokenizer = json.loads((model / "tokenizer_config.json").read_text())
            tokenizer["truncation_side"] = "left"
            (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
            cut = harness.run("embed", str(model), "-q", "--device", "cpu", "--truncate-prompt-tokens", "4",
                              stdin="a dog the cat\n")
            whole = harness.run("embed", str(model), "-q", "--device", "cpu", stdin="the cat\n")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertEqual(json.loads(cut.stdout)["embedding"], json.loads(whole.stdout)["embedding"])

    def test_a_text_that_is_too_long_is_told_with_its_lines(self):
        done = harness.run("embed", str(MODELS / "bert_mean"), "--device", "cpu", stdin="the cat " * 100 + "\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("lines 1 to 1: ", done.stderr)

    def test_a_batchs_lines_are_embedded(self):
        lines = [{"custom_id": f"line-{i}", "method": "POST", "url": "/v1/embeddings", "body": {"input": one["text"]}}
                 for i, one in enumerate(golden("bert_mean")["texts"])]
        with tempfile.TemporaryDirectory() as folder:
            given, out = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
            given.write_text("".join(json.dumps(line) + "\n" for line in lines))
            done = harness.run("run-batch", str(MODELS / "bert_mean"), "-i", str(given), "-o", str(out), "--device", "cpu",
                               *EXACT)
            self.assertEqual(done.returncode, 0, done.stderr)
            answers = {line["custom_id"]: line for line in map(json.loads, out.read_text().splitlines())}
        self.assertEqual(len(answers), len(lines))
        for i, one in enumerate(golden("bert_mean")["texts"]):
            vector = answers[f"line-{i}"]["response"]["body"]["data"][0]["embedding"]
            self.assertLess(largest_difference(vector, normalised(one["vector"])), 2e-5)

    def test_weights_that_are_not_numbers_fail_their_texts(self):
        import struct
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "nan"
            copy.mkdir()
            for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
                (copy / file).write_bytes((MODELS / "bert_plain" / file).read_bytes())
            weights = bytearray((MODELS / "bert_plain/model.safetensors").read_bytes())
            size = struct.unpack("<Q", weights[:8])[0]
            head = json.loads(weights[8:8 + size])
            begin, end = head["encoder.layer.0.output.dense.weight"]["data_offsets"]
            weights[8 + size + begin:8 + size + end] = struct.pack("<f", math.nan) * ((end - begin) // 4)
            (copy / "model.safetensors").write_bytes(weights)
            with harness.Server(model=copy) as server:
                self.assertEqual(server.post("/v1/embeddings", {"input": "a"}).status, 500)
                self.assertEqual(server.get("/health").status, 200)

    def test_what_does_not_go_together_is_refused_at_start(self):
        for flags, words in ((("--runner", "generate"), "no head that generates"),
                             (("--convert", "classify"), "no head that could classify"),
                             (("--task", "embed", "--runner", "pooling"), "excludes"),
                             (("--pooler-config", '{"pooling_type": "ALL"}'), "each token is not built yet"),
                             (("--pooler-config", '{"dimensions": 3}'), "dimensions")):
            done = harness.run("embed", str(MODELS / "bert_mean"), "--device", "cpu", *flags, stdin="a\n")
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    harness.main()
