"""Storms and bad input for vectors, scores and ranks: one server with models of all three kinds, where nothing that one
client sends is lost or disturbs another."""

import concurrent.futures
import json
import math
import pathlib
import random
import socket
import struct
import tempfile
import threading
import unittest

import harness

MODELS = harness.DATA / "embeddings"
QUERY = "where is the cat"
DOCUMENTS = ["The cat sat on the mat.", "Rivers run to the sea.", "a dog", "no"]


def of_nan(source, folder, weight):
    """A copy of the model in `source` one of whose weights holds NaN."""
    for file in source.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    weights = bytearray((source / "model.safetensors").read_bytes())
    size = struct.unpack("<Q", weights[:8])[0]
    begin, end = json.loads(weights[8:8 + size])[weight]["data_offsets"]
    weights[8 + size + begin:8 + size + end] = struct.pack("<f", math.nan) * ((end - begin) // 4)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


class Storms(harness.ServerTest):
    arguments = ("--model", f"chat={MODELS / 'qwen3_reranker'}", "--model", f"embedder={MODELS / 'bert_mean'}", "--model",
                 f"reranker={MODELS / 'bert_reranker'}", "--model", f"classes={MODELS / 'bert_classes'}", "--max-num-seqs", "8",
                 "--device", "cpu")

    def ask(self, kind, number):
        """One request of a kind, and what of its answer must always be the same."""
        if kind == "generation":
            answer = self.server.answer("/v1/completions", {"model": "chat", "prompt": [5 + number % 7, 9, 11], "max_tokens": 12,
                                                            "temperature": 0, "ignore_eos": True})
            return answer["choices"][0]["text"]
        if kind == "embeddings":
            texts = [DOCUMENTS[(number + i) % 4] for i in range(1 + number % 20)]
            return [one["embedding"] for one in self.server.answer("/v1/embeddings", {"model": "embedder", "input": texts})["data"]]
        if kind == "rerank":
            answer = self.server.answer("/v2/rerank", {"model": "reranker", "query": QUERY, "documents": DOCUMENTS * (1 + number % 9)})
            return [(one["index"], one["relevance_score"]) for one in answer["results"]]
        if kind == "score":
            answer = self.server.answer("/v1/score", {"model": "reranker", "text_1": QUERY, "text_2": DOCUMENTS})
            return [one["score"] for one in answer["data"]]
        answer = self.server.answer("/classify", {"model": "classes", "input": DOCUMENTS})
        return [(one["label"], one["probs"]) for one in answer["data"]]

    KINDS = ("generation", "embeddings", "rerank", "score", "classes")

    def test_a_storm_of_all_kinds_gives_everybody_what_they_get_alone(self):
        wanted = [(kind, number) for kind in self.KINDS for number in range(12)]
        alone = {one: self.ask(*one) for one in wanted}
        jobs = wanted * 4
        random.Random(7).shuffle(jobs)
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for job, answer in zip(jobs, pool.map(lambda job: self.ask(*job), jobs), strict=True):
                self.assertEqual(answer, alone[job], job)
        self.server.wait_until_idle()

    def test_a_hundred_thousand_strings_are_embedded_while_others_are_answered(self):
        many = [f"{DOCUMENTS[i % 4][:12]} {i % 97}" for i in range(100_000)]
        before = self.ask("embeddings", 3)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            large = pool.submit(self.server.post, "/v1/embeddings", {"model": "embedder", "input": many, "encoding_format": "base64"})
            answered = 0
            while not large.done():
                self.assertEqual(self.ask("embeddings", 3), before)
                self.ask("rerank", 2)
                answered += 1
            reply = large.result()
        self.assertEqual(reply.status, 200, reply.body[:300])
        data = reply.json["data"]
        self.assertEqual([one["index"] for one in data], list(range(len(many))))
        vectors = {}
        for text, one in zip(many, data, strict=True):
            self.assertEqual(vectors.setdefault(text, one["embedding"]), one["embedding"], text)
        self.assertGreater(answered, 3)
        self.server.wait_until_idle()

    def test_ten_thousand_documents_are_ranked(self):
        documents = [f"{DOCUMENTS[i % 4]} {i}" for i in range(10_000)]
        answer = self.server.answer("/v1/rerank", {"model": "reranker", "query": QUERY, "documents": documents, "top_n": 5,
                                                   "return_documents": True})
        self.assertEqual(len(answer["results"]), 5)
        for one in answer["results"]:
            self.assertEqual(one["document"]["text"], documents[one["index"]])
        scores = [one["relevance_score"] for one in answer["results"]]
        self.assertEqual(scores, sorted(scores, reverse=True))

    def test_bad_input_is_refused_by_name_while_good_input_goes_on(self):
        bad = [("/v1/embeddings", {"model": "embedder", **body}, param) for body, param in (
            ({}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"), ({"input": [1, -1]}, "input"),
            ({"input": [180]}, "input"), ({"input": [["a"]]}, "input"), ({"input": [1.5]}, "input"), ({"input": ["a", [1]]}, "input"),
            ({"input": {"text": "a"}}, "input"), ({"input": None}, "input"), ({"input": [1 << 40]}, "input"),
            ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 33}, "dimensions"),
            ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
            ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
            ({"input": "a", "truncate_prompt_tokens": 1 << 20}, "truncate_prompt_tokens"),
            ({"input": "a", "prompt_name": "nobody's"}, "prompt_name"), ({"input": "cat " * 300}, "input"))]
        bad += [("/v1/rerank", {"model": "reranker", **body}, param) for body, param in (
            ({"query": QUERY, "documents": []}, "documents"), ({"query": QUERY}, "documents"), ({"documents": ["a"]}, "query"),
            ({"query": [QUERY, QUERY], "documents": ["a"]}, "query"), ({"query": QUERY, "documents": [1]}, "documents"),
            ({"query": QUERY, "documents": [{"title": "a"}]}, "documents"), ({"query": QUERY, "documents": ["a"], "top_n": -1}, "top_n"),
            ({"query": QUERY, "documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
            ({"query": QUERY, "documents": ["cat " * 300]}, "documents"))]
        bad += [("/v1/score", {"model": "reranker", **body}, param) for body, param in (
            ({"text_1": [], "text_2": ["a"]}, "text_1"), ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
            ({"text_1": "a"}, "text_2"), ({"text_1": "a", "text_2": []}, "text_2"))]
        bad += [("/classify", {"model": "classes", "input": []}, "input"), ("/classify", {"model": "classes", "input": [[999]]}, "input"),
                ("/pooling", {"model": "classes", "input": [-3]}, "input"),
                ("/pooling", {"model": "embedder", "input": "a", "task": "classify"}, "task"),
                ("/v2/embed", {"model": "embedder", "texts": []}, "texts"),
                ("/v2/embed", {"model": "embedder", "texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
                ("/v2/embed", {"model": "embedder", "texts": ["a", 1]}, "texts"),
                ("/v2/embed", {"model": "embedder", "texts": ["a"], "output_dimension": 5}, "output_dimension"),
                ("/v2/embed", {"model": "embedder", "texts": ["cat " * 300], "truncate": "NONE"}, "texts")]
        good = {one: self.ask(*one) for one in (("embeddings", 5), ("rerank", 4), ("classes", 0))}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            going_on = [pool.submit(lambda one=one: self.assertEqual(self.ask(*one), good[one])) for one in list(good) * 20]
            for reply, (path, body, param) in zip(pool.map(lambda one: self.server.post(one[0], one[1]), bad), bad, strict=True):
                self.assertEqual(reply.status, 400, (path, str(body)[:200], reply.body[:300]))
                self.assertEqual(reply.json["error"]["param"], param, (path, str(body)[:200], reply.json))
            for one in going_on:
                one.result()
        self.server.wait_until_idle()

    def test_models_of_another_kind_say_so(self):
        for path, body in (("/v1/embeddings", {"model": "reranker", "input": "a"}), ("/v2/embed", {"model": "classes", "texts": ["a"]}),
                           ("/classify", {"model": "embedder", "input": "a"}), ("/v1/rerank", {"model": "chat", "query": "a", "documents": ["b"]}),
                           ("/v1/embeddings", {"model": "chat", "input": "a"})):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 501, (path, body, reply.body))
        for path in ("/v1/score", "/v1/rerank"):
            body = {"model": "classes", "text_1": "a", "text_2": "b", "query": "a", "documents": ["b"]}
            self.assertEqual(self.server.post(path, body).status, 400)

    def test_clients_that_leave_take_their_texts_with_them(self):
        texts = [[2, 5 + i % 100, 3] for i in range(50_000)]
        body = json.dumps({"model": "embedder", "input": texts}).encode()
        head = (f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()

        def leave():
            with socket.create_connection((harness.HOST, self.server.port)) as connection:
                connection.sendall(head + body)
                connection.settimeout(0.05)
                try:
                    connection.recv(1)
                except TimeoutError:
                    pass
        leaving = [threading.Thread(target=leave) for _ in range(4)]
        for one in leaving:
            one.start()
        for one in leaving:
            one.join()
        self.assertEqual(len(self.ask("embeddings", 7)), 8)
        self.server.wait_until_idle()


class Faults(unittest.TestCase):
    def test_a_model_of_no_numbers_fails_its_own_requests_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "embedder").mkdir()
            (root / "reranker").mkdir()
            of_nan(MODELS / "bert_plain", root / "embedder", "encoder.layer.1.output.dense.weight")
            of_nan(MODELS / "bert_reranker", root / "reranker", "classifier.weight")
            models = {"good": MODELS / "bert_mean", "embedder": root / "embedder", "reranker": root / "reranker"}
            flags = [flag for name, path in models.items() for flag in ("--model", f"{name}={path}")]
            with harness.Server(*flags, "--device", "cpu") as server:
                asked = [("/v1/embeddings", {"model": "good", "input": DOCUMENTS}, 200),
                         ("/v1/embeddings", {"model": "embedder", "input": DOCUMENTS}, 500),
                         ("/v1/rerank", {"model": "reranker", "query": QUERY, "documents": DOCUMENTS}, 500),
                         ("/v1/score", {"model": "reranker", "text_1": QUERY, "text_2": DOCUMENTS}, 500)] * 10
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    for reply, (path, body, status) in zip(pool.map(lambda one: server.post(one[0], one[1]), asked), asked, strict=True):
                        self.assertEqual(reply.status, status, (path, body["model"], reply.body[:200]))
                server.wait_until_idle()


if __name__ == "__main__":
    harness.main()
