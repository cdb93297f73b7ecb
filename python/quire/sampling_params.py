"""How the tokens of an answer are chosen: vLLM's SamplingParams, and the samplers that quire has beside them."""

from __future__ import annotations

import copy
import enum
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire import _engine


class RequestOutputKind(enum.Enum):
    """What each output of AsyncLLM.generate() holds."""

    CUMULATIVE = 0  # all so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # all, once, at the end


@dataclass
class StructuredOutputsParams:
    """What the text of an answer must be; exactly one of the first six."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        forms = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in forms if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"StructuredOutputsParams takes exactly one of {', '.join(forms)}; found {found}.")

    def _as_json(self) -> dict[str, Any]:
        schema = self.json
        if isinstance(schema, str):
            schema = json.loads(schema)
        fields = {"json": schema, "regex": self.regex, "choice": None if self.choice is None else list(self.choice),
                  "grammar": self.grammar, "json_object": self.json_object or None,
                  "structural_tag": self.structural_tag}
        return {**{name: value for name, value in fields.items() if value is not None},
                "disable_any_whitespace": self.disable_any_whitespace}


def _seed_of_64_bits(seed: int | None) -> int | None:
    if seed is None or seed == -1:
        return None
    return (seed + 2**63) % 2**64 - 2**63  # JSON's readers know signed numbers


# Everything but what is handled by name below: with the default that is not worth sending.
_FIELDS: dict[str, Any] = {
    "n": 1,
    "best_of": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "output_kind": RequestOutputKind.CUMULATIVE,
    "truncate_prompt_tokens": None,
    "structured_outputs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "repetition_detection": None,
    "extra_args": None,
    # quire's own
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": None,
    "deterministic": False,
}
_NOT_SENT = ("output_kind", "extra_args")


class SamplingParams:
    """vLLM's SamplingParams; checked when it is made. Errors: ValueError, TypeError for a name that is none."""

    n: int
    best_of: int | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    detokenize: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop_str_in_output: bool
    output_kind: RequestOutputKind
    truncate_prompt_tokens: int | None
    structured_outputs: StructuredOutputsParams | None
    logit_bias: dict[int, float] | None
    allowed_token_ids: list[int] | None
    bad_words: list[str]
    repetition_detection: dict[str, int] | None
    extra_args: dict[str, Any] | None
    typical_p: float
    top_n_sigma: float
    dynatemp_range: float
    dynatemp_exponent: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str] | None
    deterministic: bool

    def __init__(self, n: int = 1, **values: Any) -> None:
        for name in values:
            if name not in _FIELDS:
                raise TypeError(f"SamplingParams() got an unexpected keyword argument {name!r}")
        for name, default in _FIELDS.items():
            setattr(self, name, values.get(name, default))
        self.n = n
        if self.temperature is None:
            self.temperature = 1.0
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        self.stop_token_ids = list(self.stop_token_ids or ())
        self.bad_words = list(self.bad_words or ())
        # As OpenAI's chats say it: true is "the chosen token's".
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs
        if self.extra_args:
            raise ValueError("extra_args are for plugins, and code of others is never loaded; leave them out.")
        _engine.check_sampling(self._as_json())

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """The same, but that None is a name's default."""
        return cls(**{name: value for name, value in values.items() if value is not None})

    def clone(self) -> SamplingParams:
        return copy.deepcopy(self)

    def _as_json(self) -> str:
        sent: dict[str, Any] = {}
        for name, default in _FIELDS.items():
            value = getattr(self, name)
            if name in _NOT_SENT or value == default or (default is None and not isinstance(value, (bool, int, float))
                                                         and not value and name != "allowed_token_ids"):
                continue
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}.")
            sent[name] = value
        if self.seed is not None:
            sent["seed"] = _seed_of_64_bits(self.seed)
        if self.structured_outputs is not None:
            sent["structured_outputs"] = self.structured_outputs._as_json()
        if self.logit_bias:
            sent["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        return json.dumps(sent)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"SamplingParams({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIELDS)})"


@dataclass
class BeamSearchParams:
    """Of LLM.beam_search(). The temperature has no effect: nothing is drawn."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    def _as_json(self) -> str:
        if self.beam_width < 1:
            raise ValueError(f"beam_width must be at least 1, got {self.beam_width}.")
        return json.dumps({"use_beam_search": True, "n": self.beam_width, "beam_width": self.beam_width,
                           "max_tokens": self.max_tokens, "ignore_eos": self.ignore_eos,
                           "length_penalty": self.length_penalty, "temperature": 0.0, "logprobs": 0})


def merged(defaults: dict[str, Any]) -> SamplingParams:
    """Parameters that a model's makers advise."""
    return SamplingParams(**{name: value for name, value in defaults.items() if name in _FIELDS})


def each_of(params: Any, count: int) -> Sequence[Any]:
    """One parameters object for all prompts, or one for each."""
    if not isinstance(params, (list, tuple)):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"there are {count} prompts and {len(params)} sampling parameters: give one for all, or as "
                         "many as prompts.")
    return params
