#!/usr/bin/env python3
"""Texts a second of quire, of onnxruntime as fastembed drives it, of sentence-transformers on torch and of llama.cpp's
embedding server, with one model on one machine, one after the other; and whether they give the same vectors.

    embeddings.py --model FOLDER --quire PROGRAM [--onnx FILE.onnx] [--llama PROGRAM --gguf FILE.gguf] [--threads 2]

FOLDER is a sentence-transformers model (all-MiniLM-L6-v2). FILE.onnx: its transformer alone, inputs input_ids,
attention_mask and token_type_ids, output last_hidden_state (`--export FILE.onnx` makes one with torch and fuses it as
onnxruntime's own optimizer does). Needs numpy, tokenizers and, for each of the others, its package. Texts are made of
English words, of so many tokens with the special ones; each program is warmed up, then the best of two runs counts,
for throughput batches as it takes them best, for latency the median of 30 texts one by one.

--processor-time: what a text takes of the processors instead (user and system time of the program's own process, two
seconds' worth of each length and batch size), for a machine that others use, too; onnxruntime's threads sleep then where
they would spin.
"""
import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import numpy

WORDS = ("time year people way day man thing woman life child world school state family student group country problem "
         "hand part place case week matter system program question work government number night point home water room "
         "mother area money story fact month lot right study book eye job word business issue side kind head house").split()
LENGTHS = (16, 128, 512)
COUNTS = {16: 512, 128: 128, 512: 32}


def make_texts(tokenizer, length, count, seed):
    """Texts of exactly `length` tokens, special ones included."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        text = " ".join(draw.choice(WORDS) for _ in range(length - 2))
        assert len(tokenizer.encode(text).ids) == length, length
        texts.append(text)
    return texts


def normalised(rows):
    return rows / numpy.linalg.norm(rows, axis=1, keepdims=True)


class Onnx:
    name = "onnxruntime"

    def __init__(self, options, tokenizer):
        import onnxruntime
        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = options.threads
        if options.processor_time:
            session.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(options.onnx, session, providers=["CPUExecutionProvider"])
        self.inputs = {value.name for value in self.session.get_inputs()}
        self.tokenizer = tokenizer

    def embed(self, texts, batch):
        rows = []
        self.tokenizer.enable_padding()
        for begin in range(0, len(texts), batch):
            encoded = self.tokenizer.encode_batch(texts[begin:begin + batch])
            given = {"input_ids": numpy.array([e.ids for e in encoded], dtype=numpy.int64),
                     "attention_mask": numpy.array([e.attention_mask for e in encoded], dtype=numpy.int64),
                     "token_type_ids": numpy.array([e.type_ids for e in encoded], dtype=numpy.int64)}
            states = self.session.run(None, {key: value for key, value in given.items() if key in self.inputs})[0]
            mask = given["attention_mask"][:, :, None].astype(numpy.float32)
            rows.append((states * mask).sum(1) / mask.sum(1))
        self.tokenizer.no_padding()
        return normalised(numpy.concatenate(rows))

    batches = (16, 64)
    processor_seconds = staticmethod(time.process_time)

    def close(self):
        pass


class SentenceTransformers:
    name = "sentence-transformers"
    batches = (32,)
    processor_seconds = staticmethod(time.process_time)

    def __init__(self, options, _tokenizer):
        import sentence_transformers
        import torch
        torch.set_num_threads(options.threads)
        self.model = sentence_transformers.SentenceTransformer(options.model, device="cpu")
        self.model.max_seq_length = 512

    def embed(self, texts, batch):
        return self.model.encode(texts, batch_size=batch, normalize_embeddings=True, show_progress_bar=False)

    def close(self):
        pass


class Server:
    """Whatever answers /v1/embeddings."""
    batches = (128, 512)

    def __init__(self, command, port):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{command[0]} ended with {self.process.returncode}")
                time.sleep(0.1)
        sys.exit(f"{command[0]} does not answer")

    def embed(self, texts, batch):
        import base64
        rows = []
        for begin in range(0, len(texts), batch):
            body = json.dumps({"input": texts[begin:begin + batch], "model": "m", "encoding_format": "base64"}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/embeddings", body,
                                             {"Content-Type": "application/json"})
            data = json.load(urllib.request.urlopen(request))["data"]
            for one in sorted(data, key=lambda entry: entry["index"]):
                rows.append(numpy.frombuffer(base64.b64decode(one["embedding"]), dtype=numpy.float32))
        return numpy.stack(rows)

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.terminate()
        self.process.wait()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def quire(options, _tokenizer, extra=()):
    port = free_port()
    server = Server([options.quire, "serve", options.model, "--port", str(port), "--max-model-len", "512", "--threads",
                     str(options.threads), "--served-model-name", "m", *extra], port)
    server.name = " ".join(["quire", *extra])
    return server


def llama(options, _tokenizer):
    port = free_port()
    server = Server([options.llama, "-m", options.gguf, "--embedding", "--port", str(port), "-t", str(options.threads),
                     "-tb", str(options.threads), "-c", "8192", "-b", "4096", "-ub", "4096", "-np", "16"], port)
    server.name = "llama.cpp server"
    return server


def measure(program, texts_of):
    figures = {}
    vectors = {}
    for length, texts in texts_of.items():
        program.embed(texts[:32], 32)
        best = 0
        for batch in program.batches:
            for _ in range(2):
                start = time.perf_counter()
                rows = program.embed(texts, batch)
                best = max(best, len(texts) / (time.perf_counter() - start))
        vectors[length] = rows
        times = []
        for text in texts[:30]:
            start = time.perf_counter()
            program.embed([text], 1)
            times.append(time.perf_counter() - start)
        figures[length] = (best, statistics.median(times) * 1e3)
    return figures, vectors


def measure_processor_time(program, texts_of):
    """Milliseconds of a processor a text: in the batches that it takes best, and one by one."""
    figures, vectors = {}, {}
    for length, texts in texts_of.items():
        vectors[length] = program.embed(texts, program.batches[0])
        found = []
        for count, batch in [(len(texts), batch) for batch in program.batches] + [(16, 1)]:
            begin, done = program.processor_seconds(), 0
            while program.processor_seconds() - begin < 2:
                program.embed(texts[:count], batch)
                done += count
            found.append((program.processor_seconds() - begin) / done * 1e3)
        figures[length] = (min(found[:-1]), found[-1])
    return figures, vectors


def export(options):
    import torch
    import transformers
    model = transformers.AutoModel.from_pretrained(options.model, attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask, types):
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    tokens = torch.ones((2, 8), dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(States().eval(), (tokens, tokens, tokens * 0), options.export, input_names=names,
                      output_names=["last_hidden_state"], opset_version=17, dynamo=False,
                      dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]})
    from onnxruntime.transformers import optimizer
    fused = optimizer.optimize_model(options.export, model_type="bert", num_heads=model.config.num_attention_heads,
                                     hidden_size=model.config.hidden_size)
    fused.save_model_to_file(options.export)
    print("fused:", fused.get_fused_operator_statistics())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--quire")
    parser.add_argument("--quire-flags", action="append", default=[], help="a run more, with these flags")
    parser.add_argument("--onnx")
    parser.add_argument("--export")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--llama")
    parser.add_argument("--gguf")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.export:
        return export(options)
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(options.model) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts_of = {length: make_texts(tokenizer, length, COUNTS[length], length) for length in LENGTHS}
    makers = []
    if options.onnx:
        makers.append(Onnx)
    if options.torch:
        makers.append(SentenceTransformers)
    if options.llama:
        makers.append(llama)
    if options.quire:
        makers.append(quire)
        makers += [lambda o, t, flags=flags: quire(o, t, tuple(flags.split())) for flags in options.quire_flags]
    reference = None
    what = "ms of a processor, alone " if options.processor_time else "texts/s, p50 ms "
    print(f"{'':28}" + "".join(f"{length:>5} tokens: {what}" for length in LENGTHS) + " least cosine")
    for make in makers:
        program = make(options, tokenizer)
        figures, vectors = (measure_processor_time if options.processor_time else measure)(program, texts_of)
        program.close()
        reference = reference or vectors
        least = min(float((normalised(reference[length]) * normalised(vectors[length])).sum(1).min()) for length in LENGTHS)
        print(f"{program.name:28}" + "".join(f"{figures[length][0]:>14.{3 if options.processor_time else 1}f}{figures[length][1]:>14.2f}" for length in LENGTHS) +
              f"{least:>14.6f}", flush=True)


if __name__ == "__main__":
    main()
