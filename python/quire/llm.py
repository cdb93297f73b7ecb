"""LLM: an engine in this process, asked in batches."""

from __future__ import annotations

import itertools
import json
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from quire import _engine, _program, inputs
from quire.lora import request as lora
from quire.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    RequestOutput,
    Update,
    position_dicts,
    shown_logprobs,
    shown_prompt_logprobs,
    sum_of_chosen,
)
from quire.pooling import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from quire.sampling_params import BeamSearchParams, SamplingParams, each_of, merged
from quire.tokenizer import Tokenizer

# Of vLLM's arguments those that are about lines that are not written here.
_CHANGE_NOTHING = ("disable_log_stats",)

_BY_NAME = "texts are pooled by embed(), classify() and score(), each of a model that is served for it; ask for one of them."


def make_engine(model: str, arguments: dict[str, Any]) -> _engine.Engine:
    """An engine by LLM's keyword arguments, which are vLLM's. None is a name's default."""
    given: list[tuple[str, Any]] = []
    for name, value in arguments.items():
        if value is None or name in _CHANGE_NOTHING:
            continue
        if isinstance(value, bool):
            given.append((name, value))
        elif isinstance(value, (list, tuple)):
            given.append((name, [str(item) for item in value]))
        elif isinstance(value, dict):
            given.append((name, json.dumps(value)))
        else:
            given.append((name, str(value)))
    engine = _engine.Engine(str(model), given, _program.path())
    for note in engine.notes:
        logging.getLogger("quire").info(note)
    return engine


class EngineArgs:
    """LLM's arguments by name, as vLLM's EngineArgs holds them: LLM(**vars(args)), AsyncLLM.from_engine_args(args)."""

    def __init__(self, model: str = "", **arguments: Any) -> None:
        names = set(_engine.argument_names()) | set(_CHANGE_NOTHING)
        for name in arguments:
            if name not in names:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
        self.model = model
        self.__dict__.update(arguments)


class AsyncEngineArgs(EngineArgs):
    pass


class _NoBar:
    def update(self, count: int) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        pass

    def close(self) -> None:
        pass


def _bar(use_tqdm: bool | Callable[..., Any], total: int) -> Any:
    if not use_tqdm:
        return _NoBar()
    make: Any = use_tqdm
    if use_tqdm is True:
        from tqdm.auto import tqdm

        make = tqdm
    return make(total=total, desc="Processed prompts", dynamic_ncols=True, unit=" prompts")


class _Batch:
    """Any number of prompts, of which as many are under way at a time as keep the engine busy."""

    def __init__(self, engine: _engine.Engine, arrays: bool) -> None:
        self._engine = engine
        self._arrays = arrays
        self._channel = _engine.Channel(engine, True, arrays)
        self._most_sequences = 2 * engine.max_num_seqs
        self._prepared: dict[int, _engine.Params] = {}
        self._running: dict[int, int] = {}  # place in the batch, by number
        self._sequences = 0
        self._full = False

    def run(self, prompts: Sequence[Any], params: Sequence[Any], priorities: Sequence[int], adapters: Sequence[str],
            bar: Any) -> tuple[list[tuple[str | None, list[int]]], list[list[Update]]]:
        total = len(prompts)
        asked: list[tuple[str | None, list[int]]] = []
        answers: list[list[Update]] = [[] for _ in range(total)]
        done = 0
        waiting: tuple[str | None, list[int], str] | None = None
        try:
            while done < total:
                while len(asked) < total and not self._full:
                    place = len(asked)
                    prepared = self._prepare(params[place])
                    if self._running and self._sequences + prepared.num_sequences > self._most_sequences:
                        break
                    waiting = waiting or inputs.parts(self._engine, prompts[place])
                    if self._submit(place, waiting, prepared, priorities[place], adapters[place]):
                        asked.append(waiting[:2])
                        waiting = None
                finished = self._take(answers, params)
                done += finished
                if finished:
                    bar.set_postfix_str(f"{self._channel.num_tokens} tokens", refresh=False)
                    bar.update(finished)
        except BaseException:
            for number in self._running:
                self._channel.cancel(number)
            raise
        return asked, answers

    def _prepare(self, params: Any) -> _engine.Params:
        key = id(params)  # alive as long as the batch
        if key not in self._prepared:
            self._prepared[key] = self._engine.prepare(params._as_json())
        return self._prepared[key]

    def _submit(self, place: int, prompt: tuple[str | None, list[int], str], prepared: _engine.Params,
                priority: int, adapter: str) -> bool:
        try:
            number = self._channel.submit(prompt[1], prepared, priority, prompt[2], 0.0, adapter, not self._running)
        except MemoryError:
            if not self._running:
                raise
            self._full = True  # until one of them is done
            return False
        self._running[number] = place
        self._sequences += prepared.num_sequences
        return True

    def _take(self, answers: list[list[Update]], params: Sequence[Any]) -> int:
        finished = 0
        for item in self._channel.take(3600.0):
            update = Update._make(item)
            place = self._running[update.number]
            answers[place].append(update)
            if update.last:
                del self._running[update.number]
                self._sequences -= self._prepare(params[place]).num_sequences
                self._full = False
                finished += 1
        return finished


class LLM:
    """A model in this process. Arguments are vLLM's, and the options of `quire serve` that concern the engine.

    model: a .gguf file, a folder with config.json and safetensors, or a name on the Hugging Face Hub; "" is quire's
    default model. Errors: ValueError, FileNotFoundError, OSError, MemoryError; TypeError for an argument that there is
    not. Any thread may ask at any time; all requests share the engine's batch. A process that forks keeps the engine to
    itself: in the fork every call raises RuntimeError.
    """

    def __init__(self, model: str = "", **arguments: Any) -> None:
        self._engine = make_engine(model, arguments)
        self._numbers = itertools.count()
        self._finalizer = weakref.finalize(self, self._engine.close)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        return cls(**vars(engine_args))

    def generate(self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool | Callable[..., Any] = True, lora_request: Any = None,
                 priority: Sequence[int] | None = None, arrays: bool = False) -> list[RequestOutput]:
        """Answers all prompts, in their order. A prompt is a string, a list of token ids, or a dict of vLLM's.

        arrays: token ids and log-probabilities come as numpy arrays over the memory that the engine wrote. Errors: those
        of the first prompt or parameters that are refused (nothing is given then). An answer that fails alone has
        finish_reason "error" and the exception in `error`.
        """
        listed = inputs.listed(prompts)
        params = each_of(sampling_params or self.get_default_sampling_params(), len(listed))
        asked, answers = self._run(listed, params, priority, lora_request, use_tqdm, arrays)
        return [self._output(text, ids, updates, arrays) for (text, ids), updates in zip(asked, answers)]

    def chat(self, messages: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool | Callable[..., Any] = True, lora_request: Any = None, chat_template: str | None = None,
             chat_template_content_format: str = "auto", add_generation_prompt: bool = True,
             continue_final_message: bool = False, tools: list[dict[str, Any]] | None = None,
             chat_template_kwargs: dict[str, Any] | None = None, *, arrays: bool = False) -> list[RequestOutput]:
        """The same for a conversation, or a list of them, through the model's chat template."""
        if chat_template_content_format not in ("auto", "string"):
            raise NotImplementedError(f"chat_template_content_format {chat_template_content_format!r} is not built: a "
                                      'message\'s parts become one string ("string", "auto").')
        conversations = messages if messages and isinstance(messages[0], (list, tuple)) else [messages]
        variables = dict(chat_template_kwargs or {})
        if tools is not None:
            variables["tools"] = tools
        prompts = []
        for conversation in conversations:
            text, ids = self._engine.render_chat(json.dumps(conversation), json.dumps(variables), add_generation_prompt,
                                                 continue_final_message, chat_template or "")
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, arrays=arrays)

    def beam_search(self, prompts: Any, params: BeamSearchParams, lora_request: Any = None,
                    use_tqdm: bool | Callable[..., Any] = False) -> list[BeamSearchOutput]:
        """The most likely answers of each prompt, the best first."""
        listed = inputs.listed(prompts)
        asked, answers = self._run(listed, [params] * len(listed), None, lora_request, use_tqdm, False)
        outputs = []
        for (_, ids), updates in zip(asked, answers):
            sequences = []
            for update in sorted(updates, key=lambda one: one.answer):
                if update.error is not None:
                    raise update.error
                tokens = [*ids, *update.token_ids]
                text = self._engine.decode(tokens, True) if self._engine.has_tokenizer else None
                sequences.append(BeamSearchSequence(tokens, position_dicts(update.logprobs or ()), None,
                                                    update.cumulative_logprob or 0.0, text, update.finish_reason,
                                                    update.stop_reason))
            outputs.append(BeamSearchOutput(sequences))
        return outputs

    def encode(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(_BY_NAME)

    reward = encode

    def embed(self, prompts: Any, *, pooling_params: PoolingParams | None = None,
              arrays: bool = False) -> list[PoolingRequestOutput]:
        """The vectors of texts or token ids, in their order, of a model that embeds."""
        options = (pooling_params or PoolingParams())._options()
        found = self._engine.embed(self._texts(prompts), options, arrays)
        return [self._pooled(EmbeddingOutput(vector), ids) for ids, vector in found]

    def classify(self, prompts: Any, *, pooling_params: PoolingParams | None = None,
                 arrays: bool = False) -> list[PoolingRequestOutput]:
        """What a classifying head says of each."""
        options = (pooling_params or PoolingParams())._options()
        found = self._engine.classify(self._texts(prompts), options, arrays)
        return [self._pooled(ClassificationOutput(probabilities, label), ids) for ids, probabilities, label in found]

    def score(self, data_1: str | Sequence[str], data_2: str | Sequence[str], *,
              pooling_params: PoolingParams | None = None) -> list[PoolingRequestOutput]:
        """How well texts go together: one with each of several, or pair by pair."""
        left = [data_1] if isinstance(data_1, str) else list(data_1)
        right = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(left) == 1:
            left *= len(right)
        if len(left) != len(right):
            raise ValueError(f"there are {len(left)} texts on one side and {len(right)} on the other: give one, or as many.")
        options = (pooling_params or PoolingParams())._options()
        scores = self._engine.score(list(zip(left, right)), options)
        return [self._pooled(ScoringOutput(score), []) for score in scores]

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers advise (generation_config.json); else SamplingParams()."""
        return merged(json.loads(self._engine.default_sampling()))

    def reset_prefix_cache(self) -> bool:
        self._engine.reset_prefix_cache()
        return True

    @property
    def max_model_len(self) -> int:
        return int(self._engine.max_model_len)

    def metrics(self) -> str:
        """The engine's metrics, in Prometheus' text format."""
        return str(self._engine.metrics())

    def shutdown(self) -> None:
        """Ends what is under way with finish_reason "abort" and gives memory back. Again: nothing.

        A call in another thread that has prompts left to hand over raises RuntimeError."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    def _texts(self, prompts: Any) -> list[Any]:
        return [inputs.text_or_ids(prompt) for prompt in inputs.listed(prompts)]

    def _pooled(self, outputs: Any, ids: list[int]) -> PoolingRequestOutput:
        return PoolingRequestOutput(str(next(self._numbers)), outputs, ids)

    def unload_lora(self, lora_name: str) -> None:
        """Requests no longer find the adapter; those that use it go on. Errors: FileNotFoundError."""
        self._engine.unload_adapter(lora_name)

    def _run(self, prompts: list[Any], params: Sequence[Any], priority: Sequence[int] | None,
             lora_request: Any, use_tqdm: bool | Callable[..., Any], arrays: bool) -> Any:
        priorities = [0] * len(prompts) if priority is None else list(priority)
        if len(priorities) != len(prompts):
            raise ValueError(f"there are {len(prompts)} prompts and {len(priorities)} priorities: give one for each.")
        adapters = [lora.use(self._engine, one) for one in lora.each_of(lora_request, len(prompts))]
        bar = _bar(use_tqdm, len(prompts))
        try:
            return _Batch(self._engine, arrays).run(prompts, params, priorities, adapters, bar)
        finally:
            bar.close()

    def _output(self, text: str | None, ids: list[int], updates: list[Update], arrays: bool) -> RequestOutput:
        outputs = [CompletionOutput(one.answer, one.text, one.token_ids, sum_of_chosen(one.logprobs, arrays),
                                    shown_logprobs(one.logprobs, arrays), one.finish_reason, one.stop_reason, None,
                                    one.error, one.receipt)
                   for one in sorted(updates, key=lambda one: one.answer)]
        prompt_logprobs = next((one.prompt_logprobs for one in updates if one.prompt_logprobs is not None), None)
        # Of several answers those but the first share the prompt with it, which is not what is meant.
        cached = [one.num_cached_tokens for one in updates if one.num_cached_tokens is not None]
        return RequestOutput(str(next(self._numbers)), text, ids, shown_prompt_logprobs(prompt_logprobs, arrays), outputs,
                             True, num_cached_tokens=min(cached, default=0))
