"""check.py --correct|--fast RESULTS [MODEL PIECE...]: everything that the CUDA backend is to show on a card, in under 9
minutes ($QUIRE_CHECK_SECONDS, 520). run.sh calls it where bin/ is, the programs.

RESULTS holds two files at any time, both written anew after each part: summary.json, and logs.tar.gz with what the
parts printed. A part that fails does not stop the others; one for which no time is left is skipped by name. A benchmark
or the model's answers that failed are tried once more with --enforce-eager, as a part of its own. Without a card each
part is begun, so that its command line is tried, and told as "no card".

The model is SmolLM2-135M-Instruct.Q4_1.gguf, whole or in pieces in their order; without it the parts that want it are
skipped by name. Ends with 0 where all passed, 3 where none failed and some were skipped or had no card, else 1.

QUIRE_CHECK_PARTS=A,B: these parts alone, in the order of parts.py; the others are told as skipped.

QUIRE_CHECK_TRY=SHAPE: the same command lines on the CPU, with that one shape and a sixteenth of the batches and
prompts, so that they are tried where there is no card.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import parts
import summary
import tests

SCRIPTS = pathlib.Path(__file__).resolve().parent
TREE = SCRIPTS.parents[1]
sys.path.append(str(SCRIPTS.parent))
import make_adapters  # noqa: E402
NO_CARD = ("no card can be used", "built without CUDA")
NO_CARD_FOR_TESTS = ("this machine lacks cuda", "this machine has no cuda", "this machine has no card", "there is no card")
DIVISOR = 16  # of sizes, where the CPU tries
LONGEST_LOG = 1 << 20


class CutOff(Exception):
    pass


def sized(number, divisor):
    return max(1, number // divisor) if number > divisor else number


class Check:
    def __init__(self, mode, results, pieces):
        self.mode, self.results = mode, results
        self.started = time.monotonic()
        self.seconds = float(os.environ.get("QUIRE_CHECK_SECONDS", 520))
        self.chosen = set(filter(None, os.environ.get("QUIRE_CHECK_PARTS", "").split(",")))
        if unknown := self.chosen - {part.name for part in parts.MODES[mode]}:
            sys.exit(f"QUIRE_CHECK_PARTS: --{mode} has no {', '.join(sorted(unknown))}; it has "
                     f"{', '.join(part.name for part in parts.MODES[mode])}")
        tried = os.environ.get("QUIRE_CHECK_TRY")
        self.shape = pathlib.Path(tried).resolve() if tried else None
        self.device = "cpu" if tried else "cuda"
        self.work = pathlib.Path.cwd() / "work"
        shutil.rmtree(self.work, ignore_errors=True)
        self.logs = self.work / "logs"
        self.logs.mkdir(parents=True)
        results.mkdir(parents=True, exist_ok=True)
        self.state = {"mode": mode, "parts": {}, "reports": {}}
        self.model, self.no_model = self.join(pieces)

    def join(self, pieces):
        """The model's file, or why there is none."""
        if not pieces:
            return None, "no model was given (SmolLM2-135M-Instruct.Q4_1.gguf, whole or in pieces)"
        missing = [str(piece) for piece in pieces if not piece.exists()]
        if missing:
            return None, f"not there: {', '.join(missing)}"
        model = self.work / "model.gguf"
        digest = hashlib.sha256()
        with model.open("wb") as whole:
            for piece in pieces:
                with piece.open("rb") as source:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        whole.write(block)
        known = (TREE / "dependencies.txt").read_text() if (TREE / "dependencies.txt").exists() else ""
        if known and digest.hexdigest() not in known:
            return None, "the pieces do not make the default model: their hash is not that of dependencies.txt"
        return model, None

    def time_left(self):
        return self.seconds - (time.monotonic() - self.started)

    def write(self):
        whole = json.dumps(summary.summary(self.state, TREE, pathlib.Path.cwd() / "commit"), indent=2)
        for name, fill in (("summary.json", lambda path: path.write_text(whole + "\n")), ("logs.tar.gz", self.archive)):
            new = self.work / name
            fill(new)
            # On the same file system as it shall be: a reader sees the old one or the new one.
            shutil.copyfile(new, self.results / f".{name}")
            os.replace(self.results / f".{name}", self.results / name)

    def archive(self, path):
        with tarfile.open(path, "w:gz", compresslevel=3) as archive:
            for log in sorted(self.logs.iterdir()):
                archive.add(log, log.name)

    def tell(self, name, status, seconds, reason="", **more):
        self.state["parts"][name] = {"status": status, "seconds": round(seconds, 1),
                                     **({"reason": reason} if reason else {}), **more}
        print(f"{name}: {status.upper() if status == 'failed' else status}, {seconds:.0f} s{': ' + reason if reason else ''}",
              flush=True)
        self.write()

    def environment(self):
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, name, limit, command):
        """Returns exit code (None: cut off) and what it printed; reports it writes are read from self.work."""
        log = self.logs / f"{name}.txt"
        command = [str(word).replace("{scripts}", str(SCRIPTS)) for word in command]
        with log.open("w") as out:
            out.write("$ " + " ".join(command) + "\n")
            out.flush()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                       env=self.environment(), start_new_session=True)
            try:
                code = process.wait(timeout=limit)
            except BaseException as stop:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(stop, subprocess.TimeoutExpired):
                    raise
                code = None
        text = log.read_text(errors="replace")
        if len(text) > LONGEST_LOG:
            log.write_text(text[: LONGEST_LOG // 2] + "\n[...]\n" + text[-LONGEST_LOG // 2 :])
        return code, text

    def report_of(self, name):
        path = self.work / f"{name}.json"
        if path.exists():
            try:
                self.state["reports"][name] = json.loads(path.read_text())
            except ValueError:
                pass  # cut off while it was written

    def adapter_flags(self, part, shape):
        """One adapter under many names, each of which is read and held by itself."""
        if not part.adapters:
            return []
        folder = self.work / "adapter"
        if not folder.exists():
            config = json.loads((pathlib.Path(shape) / "config.json").read_text())
            heads = config["num_attention_heads"]
            make_adapters.write(folder, argparse.Namespace(
                rank=16, hidden_size=config["hidden_size"], intermediate_size=config["intermediate_size"],
                layers=config["num_hidden_layers"], heads=heads, kv_heads=config.get("num_key_value_heads", heads),
                head_dim=config.get("head_dim") or config["hidden_size"] // heads), seed=0)
        return ["--enable-lora", "--max-loras", part.adapters, "--lora-modules",
                *(f"a{i}={folder}" for i in range(part.adapters))]

    def command_of(self, part, eager=False):
        """A part's command line; its report is NAME.json in the working folder."""
        divisor = DIVISOR if self.shape else 1
        report = self.work / f"{part.name}.json"
        more = ["--enforce-eager"] if eager else []
        common = ["--load-format", "dummy", "--skip-tokenizer-init", "--device", self.device, "--max-num-seqs", "256",
                  "--output-json", report]
        if isinstance(part, parts.Latency):
            cases = []
            for one in part.cases:
                batch, prompt, answer, iterations = map(int, one.split("x"))
                cases.append(f"{sized(batch, divisor)}x{sized(prompt, divisor)}x{answer}x{iterations}")
            shape = self.shape or TREE / "bench/shapes" / part.shape
            return ["bin/quire", "bench", "latency", shape, "--cases", ",".join(cases), "--num-iters-warmup", "1",
                    "--max-model-len", "16384", *common, *part.flags, *more, *self.adapter_flags(part, shape)]
        if isinstance(part, parts.Throughput):
            return ["bin/quire", "bench", "throughput", self.shape or TREE / "bench/shapes" / part.shape,
                    "--disable-detokenize", "--max-model-len", "4096", "--num-prompts", sized(part.requests, divisor),
                    "--input-len", sized(part.tokens, divisor), "--output-len", sized(part.tokens, divisor),
                    "--random-range-ratio", part.spread, "--max-num-batched-tokens", "16384", "--async-scheduling",
                    *common, *part.flags, *more]
        if isinstance(part, parts.Oracle):
            return ["python3", SCRIPTS / "oracle.py", "--quire", "bin/quire", "--data", TREE / "tests/data", "--model",
                    self.model, "--output", report, *part.flags, "--", "--device", self.device, *more]
        command = [report if str(word) == f"{part.name}.json" else word for word in part.command]
        return [*command, *(["--device", self.device] if "bin/quire" in command else [])]

    def run_tests(self, part, limit):
        if part.tool and shutil.which(part.tool[0]) is None:
            return self.tell(part.name, "skipped", 0, f"this machine has no {part.tool[0]}")
        start = time.monotonic()
        with (self.logs / f"{part.name}.txt").open("w") as log:
            outcome = tests.run(tests.Program([*part.tool, f"bin/{part.program}"], part.filter, limit,
                                              part.test_seconds), log)
        seconds = time.monotonic() - start
        self.state["reports"][part.name] = {
            "selected": len(outcome.done()), "passed": len(outcome.passed), "failed": outcome.failed,
            "ended_the_program": outcome.ended_it, "skipped": outcome.skipped[:20], "num_skipped": len(outcome.skipped),
            **({"worst": outcome.worst} if outcome.worst else {})}
        reasons = sorted(outcome.reasons)
        if outcome.ended_it or outcome.failed or outcome.problem:
            told = [f"{one['test']} {one['how']}" for one in outcome.ended_it] + [f"{one} failed" for one in outcome.failed]
            self.tell(part.name, "failed", seconds, "; ".join([*told[:8], *([outcome.problem] if outcome.problem else [])]))
        elif not outcome.done():
            self.tell(part.name, "failed", seconds, "the filter selects no test")
        elif outcome.no_test_passed_or_failed():
            no_card = any(reason.startswith(NO_CARD_FOR_TESTS) for reason in reasons)  # some are skipped on any card
            self.tell(part.name, "no card" if no_card else "failed", seconds,
                      f"all {len(outcome.skipped)} tests were skipped: {'; '.join(reasons[:3])}")
        else:
            self.tell(part.name, "passed", seconds)

    def run_command(self, part, limit, eager=False):
        """Returns whether it failed."""
        name = f"{part.name}_eager_again" if eager else part.name
        if isinstance(part, parts.Oracle) and self.model is None:
            self.tell(name, "skipped", 0, self.no_model)
            return False
        if self.device == "cpu" and getattr(part, "card_only", False):
            self.tell(name, "skipped", 0, "a card's alone")
            return False
        start = time.monotonic()
        (self.work / f"{part.name}.json").unlink(missing_ok=True)
        shown = dataclasses.replace(part, name=name)
        code, text = self.run(name, limit, self.command_of(shown, eager))
        self.report_of(name)
        seconds = time.monotonic() - start
        lines = [line for line in text.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else ""
        if code == 0:
            self.tell(name, "passed", seconds)
        elif any(words in text for words in NO_CARD):
            self.tell(name, "no card", seconds, last)
        elif code == 77:
            self.tell(name, "skipped", seconds, last)
        else:
            how = f"longer than {limit:.0f} s" if code is None else f"exit code {code}"
            self.tell(name, "failed", seconds, f"{how}: {last}")
            return code is not None
        return False

    def run_part(self, part):
        limit = min(part.seconds, self.time_left())
        if limit < 5:
            return self.tell(part.name, "skipped", 0, f"no time left of {self.seconds:.0f} s")
        if isinstance(part, parts.Tests):
            return self.run_tests(part, limit)
        failed = self.run_command(part, limit)
        again = min(part.seconds, self.time_left())
        if failed and not isinstance(part, parts.Command) and "--enforce-eager" not in part.flags and again >= 5:
            self.run_command(part, again, eager=True)

    def run_all(self):
        code, text = (127, "") if shutil.which("nvidia-smi") is None else self.run(
            "card", 20, ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm",
                         "--format=csv,noheader"])
        if code == 0:
            self.state["card"] = text.splitlines()[-1].strip()
            self.tell("card", "passed", 0)
        else:
            self.tell("card", "no card", 0, "nvidia-smi tells of none")
        for part in parts.MODES[self.mode]:
            if self.chosen and part.name not in self.chosen:
                self.tell(part.name, "skipped", 0, "not among QUIRE_CHECK_PARTS")
            else:
                self.run_part(part)


def main():
    mode = sys.argv[1].removeprefix("--") if len(sys.argv) > 2 else ""
    if mode not in parts.MODES:
        sys.exit(__doc__)

    def stop(number, frame):
        raise CutOff

    signal.signal(signal.SIGTERM, stop)
    check = Check(mode, pathlib.Path(sys.argv[2]).resolve(), [pathlib.Path(piece).resolve() for piece in sys.argv[3:]])
    try:
        check.run_all()
    except (CutOff, KeyboardInterrupt):
        check.state["cut_off"] = True
        for part in parts.MODES[mode]:
            if part.name not in check.state["parts"]:
                check.state["parts"][part.name] = {"status": "skipped", "seconds": 0, "reason": "the check was cut off"}
        check.write()
    done = summary.summary(check.state, TREE, pathlib.Path.cwd() / "commit")
    print(done["verdict"])
    sys.exit(0 if done["complete"] and done["passed"] else 3 if done["passed"] else 1)


if __name__ == "__main__":
    main()
