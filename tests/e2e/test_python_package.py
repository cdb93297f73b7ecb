"""The Python package: vLLM's names on the engine in this process, on tiny checkpoints and the default model."""

import asyncio
import contextlib
import gc
import inspect
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import harness

try:
    import quire
    from quire import AsyncLLM, LLM, SamplingParams, _engine
    from quire.sampling_params import BeamSearchParams, RequestOutputKind, StructuredOutputsParams
except ModuleNotFoundError as missing:  # built without: QUIRE_PYTHON
    print(f"SKIPPED: the package was not built here ({missing})")
    sys.exit(harness.SKIPPED)

TINY = harness.DATA / "e2e" / "tiny" / "llama" if harness.DATA else None
SMALL = {"skip_tokenizer_init": True, "kv_cache_memory_bytes": 4 << 20, "threads": 1}
LONG = dict(max_tokens=100_000, ignore_eos=True)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def tiny(**arguments):
    return LLM(model=TINY, **{**SMALL, **arguments})


def greedy(max_tokens, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def golden():
    return json.loads((TINY / "golden.json").read_text())["cases"]


def clear_steps(case):
    """Those before the first whose two best logits are too close to call."""
    return next((i for i, margin in enumerate(case["greedy_margin"]) if margin < 0.01), len(case["greedy"]))


def ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def script(text, **popen):
    """A Python program of its own, with the tiny model's path as its argument."""
    return subprocess.Popen([sys.executable, "-c", text, str(TINY)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **popen)


PREAMBLE = """
import os, signal, sys, threading, time
from quire import LLM, SamplingParams
llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 24, threads=1)
long = SamplingParams(max_tokens=100_000, ignore_eos=True)
"""


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = tiny()
        cls.prompts = [case["prompt"] for case in golden()]

    @classmethod
    def tearDownClass(cls):
        cls.llm.shutdown()

    def generate(self, prompts, params, **more):
        return self.llm.generate(prompts, params, use_tqdm=False, **more)

    def test_they_are_the_references_in_the_order_of_the_prompts(self):
        outputs = self.generate(self.prompts, greedy(16))
        self.assertEqual([output.prompt_token_ids for output in outputs], self.prompts)
        for case, output in zip(golden(), outputs):
            steps = min(16, clear_steps(case))
            self.assertEqual(output.outputs[0].token_ids[:steps], case["greedy"][:steps])
            self.assertEqual(output.outputs[0].finish_reason, "length")
            self.assertTrue(output.finished)
        self.assertEqual(len({output.request_id for output in outputs}), len(outputs))

    def test_prompts_may_have_vllms_shapes(self):
        prompt = self.prompts[-1]
        for shape in (prompt, [prompt], {"prompt_token_ids": prompt}, [quire.TokensPrompt(prompt_token_ids=prompt)]):
            self.assertEqual(ids(self.generate(shape, greedy(4))), ids(self.generate([prompt], greedy(4))))
        self.assertEqual(self.generate([], greedy(4)), [])

    def test_each_prompt_may_have_parameters_of_its_own(self):
        outputs = self.generate(self.prompts[:2], [greedy(2), greedy(5)])
        self.assertEqual([len(tokens) for tokens in ids(outputs)], [2, 5])
        with self.assertRaisesRegex(ValueError, "2 prompts and 1 sampling parameters"):
            self.generate(self.prompts[:2], [greedy(2)])

    def test_logprobs_begin_with_the_chosen_token_and_add_up(self):
        output = self.generate(self.prompts[-1], greedy(4, logprobs=3, prompt_logprobs=1))[0]
        answer = output.outputs[0]
        for token, position in zip(answer.token_ids, answer.logprobs):
            self.assertEqual(next(iter(position)), token)
            self.assertEqual(position[token].rank, 1)
            self.assertEqual(len(position), 3)
        self.assertAlmostEqual(answer.cumulative_logprob,
                               sum(position[token].logprob for token, position in zip(answer.token_ids, answer.logprobs)))
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(len(output.prompt_logprobs), len(self.prompts[-1]))
        for token, position, expected in zip(self.prompts[-1][1:], output.prompt_logprobs[1:],
                                             golden()[-1]["logprob_of_prompt"]):
            self.assertAlmostEqual(position[token].logprob, expected, delta=1e-3)

    def test_arrays_hold_what_lists_do(self):
        import numpy
        params = greedy(4, logprobs=2, prompt_logprobs=0)
        lists, arrays = (self.generate(self.prompts[-1], params, arrays=wanted)[0] for wanted in (False, True))
        answer = arrays.outputs[0]
        self.assertEqual((answer.token_ids.dtype, answer.logprobs.logprobs.dtype), (numpy.int32, numpy.float32))
        self.assertEqual(answer.token_ids.tolist(), lists.outputs[0].token_ids)
        self.assertEqual(answer.logprobs.logprobs.shape, (4, 3))
        self.assertFalse(answer.token_ids.flags.owndata)  # over the engine's memory, not a copy of it
        for row, position in enumerate(lists.outputs[0].logprobs):
            for token, logprob in zip(answer.logprobs.token_ids[row].tolist(), answer.logprobs.logprobs[row].tolist()):
                self.assertEqual(position[token].logprob, logprob)
        self.assertAlmostEqual(answer.cumulative_logprob, lists.outputs[0].cumulative_logprob, places=5)
        self.assertEqual(len(arrays.prompt_logprobs.logprobs), len(lists.prompt_logprobs) - 1)

    def test_there_may_be_several_answers(self):
        output = self.generate(self.prompts[0], SamplingParams(n=3, max_tokens=6, seed=1, ignore_eos=True))[0]
        self.assertEqual([answer.index for answer in output.outputs], [0, 1, 2])
        self.assertEqual([len(answer.token_ids) for answer in output.outputs], [6, 6, 6])
        self.assertGreater(len({tuple(answer.token_ids) for answer in output.outputs}), 1)

    def test_a_stop_token_says_which_it_was(self):
        first = self.generate(self.prompts[0], greedy(3))[0].outputs[0].token_ids
        answer = self.generate(self.prompts[0], greedy(9, stop_token_ids=[first[1]]))[0].outputs[0]
        self.assertEqual((answer.finish_reason, answer.stop_reason), ("stop", first[1]))

    def test_beams_come_the_best_first_with_the_prompt_before_them(self):
        beams = self.llm.beam_search([{"prompt_token_ids": self.prompts[-1]}],
                                     BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True))[0].sequences
        self.assertEqual(len(beams), 3)
        self.assertEqual([beam.tokens[:len(self.prompts[-1])] for beam in beams], [self.prompts[-1]] * 3)
        self.assertEqual([beam.cum_logprob for beam in beams], sorted((b.cum_logprob for b in beams), reverse=True))

    def test_more_prompts_than_may_wait_are_all_answered(self):
        with tiny(max_num_seqs=4, max_num_queued_reqs=3) as llm:
            outputs = llm.generate([self.prompts[0]] * 40, greedy(3), use_tqdm=False)
        self.assertEqual(ids(outputs), [ids(outputs)[0]] * 40)

    def test_progress_is_told_to_any_bar(self):
        told = []

        class Bar:
            def __init__(self, total, **_):
                told.append(total)

            def update(self, count):
                told.append(count)

            set_postfix_str = close = lambda *_, **__: None

        self.llm.generate(self.prompts[:3], greedy(2), use_tqdm=Bar)
        self.assertEqual((told[0], sum(told[1:])), (3, 3))

    def test_threads_ask_at_once_and_python_runs_meanwhile(self):
        expected = [ids(self.generate([prompt], greedy(8))) for prompt in self.prompts]
        found = {}

        def ask(place):
            found[place] = ids(self.generate([self.prompts[place]], greedy(8)))

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(self.prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found[place] for place in range(len(self.prompts))], expected)

        ended, ticks = threading.Event(), 0
        thread = threading.Thread(target=lambda: (self.generate(self.prompts[:1] * 64, greedy(200)), ended.set()))
        thread.start()
        while not ended.is_set():
            ticks += 1
            time.sleep(0.0005)
        thread.join()
        self.assertGreater(ticks, 3)


class Adapters(unittest.TestCase):
    def test_each_prompt_may_have_one(self):
        folder = harness.DATA / "e2e" / "lora" / "llama"
        case = json.loads((folder / "qv" / "golden.json").read_text())["cases"][-1]
        mine = quire.LoRARequest("qv", 1, str(folder / "qv"))
        with tiny(enable_lora=True, kv_cache_dtype="float32") as llm:
            plain = ids(llm.generate([case["prompt"]], greedy(8), use_tqdm=False))[0]
            outputs = llm.generate([case["prompt"]] * 2, greedy(8), lora_request=[mine, None], use_tqdm=False)
            steps = min(8, clear_steps(case))
            self.assertGreater(steps, 0)
            self.assertEqual(ids(outputs)[0][:steps], case["greedy"][:steps])
            self.assertEqual(ids(outputs)[1], plain)
            again = llm.generate([case["prompt"]], greedy(8), lora_request=quire.LoRARequest("qv"), use_tqdm=False)
            self.assertEqual(ids(again)[0], ids(outputs)[0])
            llm.unload_lora("qv")
            with self.assertRaisesRegex(FileNotFoundError, "qv"):
                llm.generate([case["prompt"]], greedy(8), lora_request=quire.LoRARequest("qv"), use_tqdm=False)


class Poolings(unittest.TestCase):
    def test_vectors_are_the_references(self):
        import numpy
        folder = harness.DATA / "embeddings" / "bert_mean"
        texts = json.loads((folder / "golden.json").read_text())["texts"]
        with LLM(folder, threads=1) as llm:
            lists = llm.embed([one["text"] for one in texts])
            arrays = llm.embed([one["ids"] for one in texts], arrays=True)
            for one, output, array in zip(texts, lists, arrays):
                vector = numpy.array(one["vector"]) / numpy.linalg.norm(one["vector"])
                self.assertLess(numpy.abs(numpy.array(output.outputs.embedding) - vector).max(), 2e-5)
                self.assertEqual(array.outputs.embedding.dtype, numpy.float32)
                self.assertEqual(array.outputs.embedding.tolist(), output.outputs.embedding)
                self.assertEqual(output.prompt_token_ids, one["ids"])
            first, second = (numpy.array(output.outputs.embedding) for output in lists[:2])
            (score,) = llm.score(texts[0]["text"], texts[1]["text"])
            self.assertAlmostEqual(score.outputs.score, float(first @ second), places=4)
            with self.assertRaises(ValueError):
                llm.generate("text", use_tqdm=False)


class Errors(unittest.TestCase):
    def test_kinds_are_pythons_and_sentences_quires(self):
        with self.assertRaisesRegex(FileNotFoundError, "no/such/model.gguf"):
            LLM("no/such/model.gguf")
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'modle'"):
            LLM(TINY, modle=1)
        with self.assertRaisesRegex(ValueError, "dtype"):
            tiny(dtype="int3")
        with self.assertRaisesRegex(ValueError, "temperature must be in"):
            SamplingParams(temperature=3)
        with self.assertRaisesRegex(TypeError, "'temprature'"):
            SamplingParams(temprature=1)
        with self.assertRaisesRegex(ValueError, "exactly one of"):
            StructuredOutputsParams(regex="a", choice=["b"])

    def test_what_changes_nothing_is_taken(self):
        with self.assertLogs("quire", "INFO") as log:
            tiny(trust_remote_code=True, tensor_parallel_size=1, disable_log_stats=True, tokenizer=None).shutdown()
        self.assertIn("no code of a checkpoint is ever run", log.output[0])

    def test_a_refused_prompt_ends_the_call_and_nothing_else(self):
        with tiny() as llm:
            with self.assertRaisesRegex(ValueError, "vocabulary"):
                llm.generate([[1, 2], [1 << 30]], SamplingParams(**LONG), use_tqdm=False)
            with self.assertRaisesRegex(ValueError, "tokenizer"):
                llm.generate("a text", use_tqdm=False)
            self.assertEqual(len(ids(llm.generate([[1, 2]], greedy(3), use_tqdm=False))[0]), 3)

    def test_what_is_not_built_says_so(self):
        with tiny() as llm:
            with self.assertRaisesRegex(NotImplementedError, "embed\\(\\), classify"):
                llm.encode("text")
            with self.assertRaisesRegex(ValueError, "generate"):
                llm.embed([[1, 2]])
            with self.assertRaisesRegex(NotImplementedError, "enable_lora"):
                llm.generate([[1]], lora_request=quire.LoRARequest("sql", 1, "path"), use_tqdm=False)
            with self.assertRaisesRegex(NotImplementedError, "multi_modal_data"):
                llm.generate({"prompt_token_ids": [1], "multi_modal_data": {"image": 1}}, use_tqdm=False)


class Lives(unittest.TestCase):
    def ends(self, process, within=30):
        try:
            out, err = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"it hangs: {process.communicate()}")
        return process.returncode, out, err

    def test_several_engines_live_in_a_process(self):
        with tiny() as first, tiny(seed=1) as second:
            prompt = golden()[0]["prompt"]
            self.assertEqual(ids(first.generate(prompt, greedy(5), use_tqdm=False)),
                             ids(second.generate(prompt, greedy(5), use_tqdm=False)))

    def test_they_come_and_go_and_leave_nothing(self):
        before = len(os.listdir("/proc/self/task"))
        for _ in range(20):
            llm = tiny()
            llm.generate([[1, 2, 3]], greedy(2), use_tqdm=False)
            del llm
        gc.collect()
        until = time.monotonic() + 30  # threads that have nothing to do any more may still be ending
        while len(os.listdir("/proc/self/task")) > before and time.monotonic() < until:
            time.sleep(0.01)
        self.assertLessEqual(len(os.listdir("/proc/self/task")), before)

    def test_a_shut_down_engine_ends_what_runs_and_refuses_more(self):
        llm = tiny(kv_cache_memory_bytes=1 << 24)
        found = []
        thread = threading.Thread(target=lambda: found.append(llm.generate([[1]] * 8, SamplingParams(**LONG), use_tqdm=False)))
        thread.start()
        while count(llm, "num_requests_running") < 8:  # all are handed over: a call that has some left raises
            time.sleep(0.001)
        llm.shutdown()
        thread.join(30)
        self.assertEqual(found[0][-1].outputs[0].finish_reason, "abort")
        with self.assertRaisesRegex(RuntimeError, "shut down"):
            llm.generate([[1]], greedy(1))
        llm.shutdown()

    def test_ctrl_c_ends_a_call_and_the_engine_goes_on(self):
        process = script(PREAMBLE + """
def strike():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=strike).start()
try:
    while True:
        llm.generate([[1, 2]] * 64, long, use_tqdm=False)
except KeyboardInterrupt:
    print(len(llm.generate([[1]], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids))
""")
        self.assertEqual(self.ends(process)[:2], (0, "3\n"))

    def test_a_process_ends_with_an_engine_at_work(self):
        process = script(PREAMBLE + """
threading.Thread(target=lambda: llm.generate([[1]] * 512, long, use_tqdm=False), daemon=True).start()
time.sleep(0.1)
""")
        self.assertEqual(self.ends(process)[0], 0)

    def test_in_a_fork_an_engine_refuses_and_dies_without_hanging(self):
        process = script(PREAMBLE + """
from quire import _engine
channel = _engine.Channel(llm._engine, False, False)
channel.submit([1, 2], llm._engine.prepare(long._as_json()), 0, "", 0.0, "", False)
child = os.fork()
if child == 0:
    try:
        llm.generate([[1]], long)
    except RuntimeError as error:
        print(error, flush=True)
    del channel
    llm.shutdown()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), channel.cancel(0), flush=True)
""")
        code, out, err = self.ends(process)
        self.assertEqual(code, 0, err)
        self.assertIn("forked from", out)
        self.assertIn("7 True", out)


class Workers(unittest.TestCase):
    """A model in processes of the package's own program."""

    def expect_references(self, llm):
        outputs = llm.generate([case["prompt"] for case in golden()], greedy(16), use_tqdm=False)
        for case, output in zip(golden(), outputs):
            steps = min(16, clear_steps(case))
            self.assertEqual(output.outputs[0].token_ids[:steps], case["greedy"][:steps])

    def test_ranks_stages_and_engines_answer_as_one_process(self):
        for sizes, expected in (({"tensor_parallel_size": 2}, 2), ({"pipeline_parallel_size": 2}, 2),
                                ({"distributed_executor_backend": "mp"}, 1),
                                ({"data_parallel_size": 2, "tensor_parallel_size": 2}, 4)):
            with self.subTest(sizes):
                with tiny(max_model_len=256, **sizes) as llm:
                    workers = harness.workers_of(os.getpid())
                    self.assertEqual(len(workers), expected)
                    self.expect_references(llm)
                self.assertFalse([worker for worker in workers if harness.is_alive(worker)])

    def test_workers_may_die_and_answers_go_on(self):
        with tiny(max_model_len=256, tensor_parallel_size=2) as llm:
            for _ in range(2):
                before = harness.workers_of(os.getpid())
                os.kill(before[1], signal.SIGKILL)
                harness.wait_until(lambda: not harness.is_alive(before[1]), lambda: "a killed worker lives")
                self.expect_references(llm)
                self.assertFalse(set(before) & set(harness.workers_of(os.getpid())))

    def test_they_end_with_their_process_however_it_ends(self):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            process = script(PREAMBLE.replace("threads=1", "threads=1, tensor_parallel_size=2") + """
print("ready", flush=True)
llm.generate([[1]] * 512, long, use_tqdm=False)
""")
            self.assertEqual(process.stdout.readline(), "ready\n")
            workers = harness.workers_of(process.pid)
            self.assertEqual(len(workers), 2)
            process.send_signal(number)
            process.communicate(timeout=30)
            harness.wait_until(lambda: not any(harness.is_alive(worker) for worker in workers),
                               lambda: f"{workers} live")

    def test_a_package_without_its_program_says_so(self):
        with unittest.mock.patch("quire._program.path", lambda: "/no/such/quire"):
            with self.assertRaisesRegex(FileNotFoundError, "processes of the quire program.*/no/such/quire"):
                tiny(tensor_parallel_size=2)

    def test_a_program_that_waits_for_all_its_children_takes_nothing_from_them(self):
        with tiny(max_model_len=256, tensor_parallel_size=2) as llm:
            victim = harness.workers_of(os.getpid())[0]
            os.kill(victim, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # the engine was quicker
                os.waitpid(victim, 0)
            self.expect_references(llm)


def count(llm, metric, labels=""):
    found = re.findall(rf"^vllm:{metric}\{{[^}}]*{labels}[^}}]*\}} ([0-9.]+)", llm.metrics(), re.M)
    return sum(map(float, found))


def aborted(llm):
    return count(llm, "request_success_total", 'finished_reason="abort"')


class Streams(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        # With room for answers that are still going on when a busy machine has begun the last of many.
        cls.folder = tempfile.TemporaryDirectory()
        shutil.copytree(TINY, cls.folder.name, dirs_exist_ok=True)
        config = pathlib.Path(cls.folder.name) / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 8192}))
        cls.llm = AsyncLLM(cls.folder.name, **{**SMALL, "kv_cache_memory_bytes": 1 << 28})
        cls.prompt = golden()[-1]["prompt"]

    @classmethod
    def tearDownClass(cls):
        cls.llm.shutdown()
        cls.folder.cleanup()

    async def outputs(self, params, **more):
        return [output async for output in self.llm.generate(self.prompt, params, **more)]

    async def until(self, condition):
        for _ in range(5000):
            if condition():
                return
            await asyncio.sleep(0.002)
        self.fail("it never came")

    async def test_each_output_holds_all_so_far(self):
        with tiny() as llm:
            expected = ids(llm.generate(self.prompt, greedy(12), use_tqdm=False))[0]
        outputs = await self.outputs(greedy(12))
        for output in outputs:
            tokens = output.outputs[0].token_ids
            self.assertEqual(tokens, expected[:len(tokens)])
        self.assertEqual(outputs[-1].outputs[0].token_ids, expected)
        self.assertEqual([output.finished for output in outputs], [False] * (len(outputs) - 1) + [True])

    async def test_or_what_is_new_or_nothing_until_the_end(self):
        whole = (await self.outputs(greedy(12)))[-1].outputs[0].token_ids
        pieces = await self.outputs(greedy(12, output_kind=RequestOutputKind.DELTA))
        self.assertEqual([token for piece in pieces for token in piece.outputs[0].token_ids], whole)
        (only,) = await self.outputs(greedy(12, output_kind=RequestOutputKind.FINAL_ONLY))
        self.assertEqual(only.outputs[0].token_ids, whole)

    async def test_many_at_once_each_as_alone(self):
        alone = (await self.outputs(greedy(8)))[-1].outputs[0].token_ids
        together = await asyncio.gather(*(self.outputs(greedy(8)) for _ in range(64)))
        self.assertEqual([outputs[-1].outputs[0].token_ids for outputs in together], [alone] * 64)

    async def test_several_answers_are_all_in_the_last_output(self):
        outputs = await self.outputs(SamplingParams(n=2, max_tokens=5, ignore_eos=True, seed=3, logprobs=0))
        self.assertEqual([len(answer.token_ids) for answer in outputs[-1].outputs], [5, 5])
        self.assertEqual([len(answer.logprobs) for answer in outputs[-1].outputs], [5, 5])

    @contextlib.asynccontextmanager
    async def crowd(self):
        """So many at once that none is soon over; they are cancelled at the end."""
        tasks = [asyncio.create_task(self.outputs(SamplingParams(**LONG))) for _ in range(96)]
        await self.until(lambda: count(self.llm, "num_requests_running") >= 96)
        before = aborted(self.llm)
        yield lambda: aborted(self.llm) - before
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        self.assertTrue(all(isinstance(one, asyncio.CancelledError) for one in ended))
        await self.until(lambda: aborted(self.llm) - before >= len(tasks))  # a cancelled task ends its request
        self.assertEqual(self.llm._by_id, {})

    async def test_breaking_out_ends_the_request_and_so_does_cancelling_its_task(self):
        async with self.crowd() as ended:
            async with contextlib.aclosing(self.llm.generate(self.prompt, SamplingParams(**LONG))) as stream:
                async for _ in stream:
                    break
            await self.until(lambda: ended() == 1)

    async def test_abort_ends_a_stream_with_what_it_has(self):
        async with self.crowd() as ended:
            task = asyncio.create_task(self.outputs(SamplingParams(**LONG), request_id="one"))
            await self.until(lambda: "one" in self.llm._by_id)
            with self.assertRaisesRegex(ValueError, "'one' is in use"):
                await self.outputs(greedy(1), request_id="one")
            await self.llm.abort("one")
            last = (await task)[-1]
            self.assertEqual((last.outputs[0].finish_reason, last.finished), ("abort", True))
            await self.llm.abort("one")
            await self.until(lambda: ended() == 1)

    async def test_what_is_refused_is_raised(self):
        with self.assertRaisesRegex(ValueError, "vocabulary"):
            async for _ in self.llm.generate([1 << 30], greedy(1)):
                pass
        with self.assertRaises(TimeoutError):
            await self.outputs(SamplingParams(max_tokens=None, ignore_eos=True), timeout=0.001)

    def test_event_loops_may_follow_one_another(self):
        for _ in range(2):
            self.assertEqual(len(asyncio.run(self.outputs(greedy(3)))[-1].outputs[0].token_ids), 3)


@harness.needs_default_model
class Conversations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(max_model_len=1024)

    @classmethod
    def tearDownClass(cls):
        cls.llm.shutdown()

    def test_text_goes_in_and_comes_out(self):
        output = self.llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8, logprobs=1),
                                   use_tqdm=False)[0]
        answer = output.outputs[0]
        self.assertIn("Paris", answer.text)
        self.assertEqual(output.prompt, "The capital of France is")
        self.assertEqual(self.llm.get_tokenizer().decode(answer.token_ids, skip_special_tokens=True), answer.text)
        self.assertEqual("".join(position[token].decoded_token
                                 for token, position in zip(answer.token_ids, answer.logprobs)), answer.text)

    def test_a_chat_goes_through_the_template(self):
        messages = [{"role": "user", "content": "What is the capital of France? One word."}]
        one, two = self.llm.chat([messages, messages], SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
        self.assertIn("Paris", one.outputs[0].text)
        self.assertEqual(one.outputs[0].text, two.outputs[0].text)
        self.assertIn("<|im_start|>user", one.prompt)
        self.assertEqual(self.llm.get_tokenizer().apply_chat_template(messages, tokenize=False,
                                                                      add_generation_prompt=True), one.prompt)

    def test_a_prompt_that_begins_as_one_before_is_found_in_the_cache(self):
        prefix = "A long preface, which is the same for all. " * 12
        params = SamplingParams(temperature=0, max_tokens=4)
        self.llm.reset_prefix_cache()
        first, second = (self.llm.generate(prefix + end, params, use_tqdm=False)[0] for end in ("One.", "Two."))
        self.assertEqual(first.num_cached_tokens, 0)
        self.assertGreater(second.num_cached_tokens, 64)

    def test_answers_keep_to_the_structured_output_asked_for(self):
        def answer(**constraint):
            params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=StructuredOutputsParams(**constraint))
            return self.llm.generate("Is the sky blue?", params, use_tqdm=False)[0].outputs[0].text

        self.assertIn(answer(choice=["positive", "negative"]), ("positive", "negative"))
        self.assertRegex(answer(regex=r"[a-z]{3,5}\d"), r"\A[a-z]{3,5}\d\Z")
        schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],
                  "additionalProperties": False}
        self.assertIsInstance(json.loads(answer(json=schema))["blue"], bool)
        self.assertEqual(json.loads(answer(json=json.dumps(schema))), json.loads(answer(json=schema)))

    def test_a_stop_string_ends_the_text_before_it(self):
        answer = self.llm.generate("One, two, three,", SamplingParams(temperature=0, max_tokens=30, stop="five"),
                                   use_tqdm=False)[0].outputs[0]
        self.assertNotIn("five", answer.text)
        self.assertEqual((answer.finish_reason, answer.stop_reason), ("stop", "five"))

    def test_the_seed_decides(self):
        params = SamplingParams(temperature=1, max_tokens=12, seed=2**63 + 5)
        one, two = (self.llm.generate("Once upon", params, use_tqdm=False)[0].outputs[0].text for _ in range(2))
        self.assertEqual(one, two)
        self.assertEqual(params, params.clone())

    def test_the_program_is_the_packages_own(self):
        found = subprocess.run([sys.executable, "-m", "quire", "--version"], capture_output=True, text=True)
        self.assertEqual(found.stdout, f"quire {quire.__version__}\n")


class Table(unittest.TestCase):
    """docs/python.md against the package, both ways."""

    @classmethod
    def setUpClass(cls):
        cls.sections, rows = {}, None
        for line in (ROOT / "docs" / "python.md").read_text().splitlines():
            if line.startswith("### "):
                rows = cls.sections.setdefault(line[4:].strip(" `"), {})
            elif line.startswith("#"):
                rows = None
            found = re.fullmatch(r"\| `(\w+)` \| (same|narrower|missing|refused|own) \| .* \|", line)
            if found and rows is not None:
                assert found[1] not in rows, f"{found[1]} is there twice"
                rows[found[1]] = found[2]

    def held(self, section, names):
        rows = self.sections[section]
        self.assertGreater(len(rows), 2, section)
        there = {name for name, verdict in rows.items() if verdict != "missing"}
        self.assertEqual(sorted(there - set(names)), [], f"{section}: in the table, not in the package")
        self.assertEqual(sorted(set(names) - there), [], f"{section}: in the package, not in the table")
        missing = {name for name, verdict in rows.items() if verdict == "missing"}
        self.assertEqual(sorted(missing & set(names)), [], f"{section}: not missing at all")

    @staticmethod
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    @staticmethod
    def parameters(function):
        return set(inspect.signature(function).parameters) - {"self"}

    def test_classes_have_the_attributes_that_it_says(self):
        self.held("LLM", self.public(LLM))
        self.held("AsyncLLM", self.public(AsyncLLM))
        self.held("SamplingParams", set(SamplingParams.__annotations__) | self.public(SamplingParams))
        self.assertEqual(self.parameters(SamplingParams), set(SamplingParams.__annotations__))
        for kind in (quire.RequestOutput, quire.CompletionOutput):
            self.held(kind.__name__, self.public(kind))
        self.held("PoolingRequestOutput", set(quire.PoolingRequestOutput.__dataclass_fields__))
        for kind in (quire.PoolingParams, quire.LoRARequest, quire.BeamSearchSequence, quire.BeamSearchParams, StructuredOutputsParams):
            self.held(kind.__name__, set(kind.__dataclass_fields__))
        self.held("Logprob", set(quire.Logprob._fields))

    def test_calls_take_the_arguments_that_it_says(self):
        for name in ("generate", "chat", "beam_search"):
            self.held(f"LLM.{name}", self.parameters(getattr(LLM, name)))
        self.held("AsyncLLM.generate", self.parameters(AsyncLLM.generate))

    def test_what_it_calls_refused_raises(self):
        with tiny() as llm:
            for name, verdict in self.sections["LLM"].items():
                if verdict == "refused":
                    with self.assertRaises(NotImplementedError, msg=name):
                        getattr(llm, name)("x")

    def test_an_engines_arguments_are_those_of_the_programs_table(self):
        text = (ROOT / "docs" / "arguments.md").read_text()
        listed = {name.replace("-", "_") for name in re.findall(r"`--([a-z0-9-]+)", text)}
        listed |= {name.replace("-", "_") for name in re.findall(r"--([a-z0-9-]+)", harness.run("serve", "--help").stdout)}
        older_names = {"cuda_graph_sizes"}  # of vLLM's
        self.assertEqual(sorted(set(_engine.argument_names()) - listed), sorted(older_names))


if __name__ == "__main__":
    harness.main()
