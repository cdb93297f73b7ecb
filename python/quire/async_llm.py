"""AsyncLLM: the same engine for programs with an event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import weakref
from collections.abc import AsyncGenerator
from typing import Any

from quire import _engine, inputs
from quire.llm import _BY_NAME, EngineArgs, make_engine
from quire.lora import request as lora
from quire.outputs import (
    CompletionOutput,
    RequestOutput,
    position_dicts,
    shown_prompt_logprobs,
)
from quire.sampling_params import RequestOutputKind, SamplingParams, merged
from quire.tokenizer import Tokenizer


class _Answer:
    __slots__ = ("text", "token_ids", "logprobs", "cumulative", "finish_reason", "stop_reason", "receipt")

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[Any] | None = None
        self.cumulative: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.receipt: str | None = None


class _Stream:
    """What has come of one request since its consumer looked."""

    __slots__ = ("answers", "changed", "prompt_logprobs", "cached", "error", "done", "waiter")

    def __init__(self, count: int) -> None:
        self.answers = [_Answer() for _ in range(count)]
        self.changed: set[int] = set()
        self.prompt_logprobs: Any = None
        self.cached: int | None = None
        self.error: Exception | None = None
        self.done = False
        self.waiter: asyncio.Future[None] | None = None

    def take(self, update: Any) -> None:
        (_, index, last, text, token_ids, logprobs, prompt_logprobs, finish_reason, stop_reason, cumulative, cached,
         error, receipt) = update
        answer = self.answers[index]
        answer.text += text
        answer.token_ids += token_ids
        if logprobs is not None:
            answer.logprobs = (answer.logprobs or []) + position_dicts(logprobs)
            answer.cumulative = (answer.cumulative or 0.0) + sum(tokens[0][1] for tokens in logprobs)
        if cumulative is not None:
            answer.cumulative = cumulative
        if finish_reason is not None:
            answer.finish_reason, answer.stop_reason, answer.receipt = finish_reason, stop_reason, receipt
        if prompt_logprobs is not None:
            self.prompt_logprobs = shown_prompt_logprobs(prompt_logprobs, False)
        if cached is not None:
            self.cached = cached if self.cached is None else min(self.cached, cached)
        self.error = self.error or error
        self.done = self.done or last
        self.changed.add(index)
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def outputs(self, delta: bool) -> list[CompletionOutput]:
        outputs = []
        for index in sorted(self.changed) if delta else range(len(self.answers)):
            answer = self.answers[index]
            outputs.append(CompletionOutput(index, answer.text, answer.token_ids if delta else answer.token_ids.copy(),
                                            answer.cumulative, answer.logprobs, answer.finish_reason,
                                            answer.stop_reason, None, None, answer.receipt))
            if delta:
                answer.text, answer.token_ids, answer.logprobs = "", [], None
        self.changed.clear()
        return outputs


class _Pump:
    """The requests of one event loop: one descriptor wakes it for all of them."""

    def __init__(self, engine: _engine.Engine) -> None:
        self.channel = _engine.Channel(engine, False, False)
        self.streams: dict[int, _Stream] = {}

    def add(self, number: int, stream: _Stream, loop: asyncio.AbstractEventLoop) -> None:
        if not self.streams:
            loop.add_reader(self.channel.fileno(), self.drain)
        self.streams[number] = stream

    def remove(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        if self.streams.pop(number, None) is None:
            return
        self.channel.cancel(number)
        if not self.streams and not loop.is_closed():
            loop.remove_reader(self.channel.fileno())

    def drain(self) -> None:
        for update in self.channel.take(-1.0):
            stream = self.streams.get(update[0])
            if stream is not None:
                stream.take(update)


class AsyncLLM:
    """A model in this process, its answers as async generators. Arguments and errors: LLM's."""

    def __init__(self, model: str = "", **arguments: Any) -> None:
        self._engine = make_engine(model, arguments)
        self._numbers = itertools.count()
        self._pumps: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pump] = weakref.WeakKeyDictionary()
        self._by_id: dict[str, tuple[_Pump, int, _Stream]] = {}
        self._finalizer = weakref.finalize(self, self._engine.close)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        return cls(**vars(engine_args))

    async def generate(self, prompt: Any, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
                       lora_request: Any = None, priority: int = 0,
                       timeout: float = 0.0) -> AsyncGenerator[RequestOutput, None]:
        """Yields what there is of the answers whenever there is more: all so far, or what sampling_params.output_kind
        says. Whoever is slower than the engine gets several tokens at once. Leaving the loop (break, an exception, a
        cancelled task) ends the request, if the generator is closed then: use contextlib.aclosing where that must not
        wait for the collector. timeout: seconds until the last token; 0: the engine's. Errors: LLM.generate's; what fails
        later is raised out of the generator.
        """
        params = sampling_params or self.get_default_sampling_params()
        loop = asyncio.get_running_loop()
        request_id = str(next(self._numbers)) if request_id is None else request_id
        if request_id in self._by_id:
            raise ValueError(f"request_id {request_id!r} is in use: give another, or none.")
        pump = self._pumps.get(loop)
        if pump is None:
            pump = self._pumps[loop] = _Pump(self._engine)
        text, ids, salt = inputs.parts(self._engine, prompt)
        # A grammar may take long to compile.
        prepared = (await asyncio.to_thread(self._engine.prepare, params._as_json()) if params.structured_outputs
                    else self._engine.prepare(params._as_json()))
        adapter = "" if lora_request is None else await asyncio.to_thread(lora.use, self._engine, lora_request)
        number = pump.channel.submit(ids, prepared, priority, salt, timeout, adapter, False)
        stream = _Stream(params.n)
        pump.add(number, stream, loop)
        self._by_id[request_id] = (pump, number, stream)
        kind = params.output_kind
        delta = kind is RequestOutputKind.DELTA
        try:
            while True:
                if not stream.changed or (kind is RequestOutputKind.FINAL_ONLY and not stream.done):
                    if stream.done:
                        return
                    stream.waiter = loop.create_future()
                    await stream.waiter
                    stream.waiter = None
                    continue
                if stream.error is not None:
                    raise stream.error
                done = stream.done
                if done:
                    self._forget(request_id, loop)
                yield RequestOutput(request_id, text, ids, stream.prompt_logprobs, stream.outputs(delta), done,
                                    num_cached_tokens=stream.cached)
                if done:
                    return
        finally:
            self._forget(request_id, loop)

    def _forget(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        entry = self._by_id.pop(request_id, None)
        if entry is not None:
            entry[0].remove(entry[1], loop)

    async def abort(self, request_id: str | list[str]) -> None:
        """Ends requests: their generators give a last output with finish_reason "abort". Of ids that are not under way:
        nothing."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            entry = self._by_id.get(one)
            if entry is None:
                continue
            pump, number, stream = entry
            pump.channel.cancel(number)
            for index, answer in enumerate(stream.answers):
                if answer.finish_reason is None:
                    answer.finish_reason = "abort"
                    stream.changed.add(index)
            stream.done = True
            stream.wake()

    async def encode(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("AsyncLLM generates; " + _BY_NAME)

    async def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine)

    def get_default_sampling_params(self) -> SamplingParams:
        return merged(json.loads(self._engine.default_sampling()))

    async def reset_prefix_cache(self) -> bool:
        self._engine.reset_prefix_cache()
        return True

    @property
    def max_model_len(self) -> int:
        return int(self._engine.max_model_len)

    @property
    def errored(self) -> bool:
        return not self._engine.closed and not self._engine.healthy

    @property
    def is_running(self) -> bool:
        return not self._engine.closed and self._engine.healthy

    async def check_health(self) -> None:
        if self.errored:
            raise RuntimeError("the engine has failed; see the log above. Make another.")

    def metrics(self) -> str:
        return str(self._engine.metrics())

    def shutdown(self) -> None:
        """As LLM.shutdown()."""
        self._finalizer()
