"""What requests give, with vLLM's attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Logprob(NamedTuple):
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class LogprobArrays(NamedTuple):
    """Of `arrays=True`: numpy arrays, [tokens, 1 + alternatives] each, the chosen token first, filled up with id -1."""

    token_ids: Any  # int32
    logprobs: Any  # float32
    ranks: Any  # int32


class CompletionOutput:
    """One answer. `error`: of finish_reason "error" the exception that says why; this answer alone failed."""

    __slots__ = ("index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
                 "lora_request", "error", "receipt")

    def __init__(self, index: int, text: str, token_ids: Any, cumulative_logprob: float | None = None,
                 logprobs: Any = None, finish_reason: str | None = None, stop_reason: int | str | None = None,
                 lora_request: Any = None, error: Exception | None = None, receipt: str | None = None) -> None:
        self.index = index
        self.text = text
        self.token_ids = token_ids
        self.cumulative_logprob = cumulative_logprob
        self.logprobs = logprobs
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        self.lora_request = lora_request
        self.error = error
        self.receipt = receipt

    def finished(self) -> bool:
        return self.finish_reason is not None

    def __repr__(self) -> str:
        return (f"CompletionOutput(index={self.index}, text={self.text!r}, token_ids={self.token_ids}, "
                f"cumulative_logprob={self.cumulative_logprob}, logprobs={self.logprobs}, "
                f"finish_reason={self.finish_reason}, stop_reason={self.stop_reason})")


class RequestOutput:
    __slots__ = ("request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "metrics",
                 "lora_request", "encoder_prompt", "encoder_prompt_token_ids", "num_cached_tokens")

    def __init__(self, request_id: str, prompt: str | None, prompt_token_ids: list[int] | None, prompt_logprobs: Any,
                 outputs: list[CompletionOutput], finished: bool, metrics: Any = None, lora_request: Any = None,
                 encoder_prompt: str | None = None, encoder_prompt_token_ids: list[int] | None = None,
                 num_cached_tokens: int | None = None) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.outputs = outputs
        self.finished = finished
        self.metrics = metrics
        self.lora_request = lora_request
        self.encoder_prompt = encoder_prompt
        self.encoder_prompt_token_ids = encoder_prompt_token_ids
        self.num_cached_tokens = num_cached_tokens

    def __repr__(self) -> str:
        return (f"RequestOutput(request_id={self.request_id}, prompt={self.prompt!r}, "
                f"prompt_token_ids={self.prompt_token_ids}, prompt_logprobs={self.prompt_logprobs}, "
                f"outputs={self.outputs}, finished={self.finished}, num_cached_tokens={self.num_cached_tokens})")


@dataclass
class BeamSearchSequence:
    """tokens and text: the prompt's and the answer's."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    lora_request: Any = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    sequences: list[BeamSearchSequence]  # the best first


class Update(NamedTuple):
    """What quire._engine.Channel.take() gives, in its order."""

    number: int
    answer: int
    last: bool
    text: str
    token_ids: Any
    logprobs: Any
    prompt_logprobs: Any
    finish_reason: str | None
    stop_reason: int | str | None
    cumulative_logprob: float | None
    num_cached_tokens: int | None
    error: Exception | None
    receipt: str | None


def position_dicts(positions: Any) -> list[dict[int, Logprob]]:
    """A dict for each token; the chosen one stands first."""
    dicts = []
    for tokens in positions:
        one: dict[int, Logprob] = {}
        for token, logprob, rank, text in tokens:
            if token not in one:
                one[token] = Logprob(logprob, rank, text)
        dicts.append(one)
    return dicts


def shown_logprobs(positions: Any, arrays: bool) -> Any:
    if positions is None:
        return None
    return LogprobArrays(*positions) if arrays else position_dicts(positions)


def shown_prompt_logprobs(positions: Any, arrays: bool) -> Any:
    """vLLM's list begins with None: nothing comes before the first token."""
    if positions is None:
        return None
    return LogprobArrays(*positions) if arrays else [None, *position_dicts(positions)]


def sum_of_chosen(positions: Any, arrays: bool) -> float | None:
    if positions is None:
        return None
    if arrays:
        return float(positions[1][:, 0].sum(dtype="float64"))
    return sum(tokens[0][1] for tokens in positions)
