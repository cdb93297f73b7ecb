"""How the tokens of an answer are chosen: vLLM's SamplingParams, and the samplers that quire has beside them."""

from __future__ import annotations

import copy
import enum
import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from quire import _engine

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:
    dataclass_transform = lambda: lambda kind: kind

_Kind = TypeVar("_Kind", bound=type)


@dataclass_transform()
def _keyword_arguments(kind: _Kind) -> _Kind:
    """For checkers of types and for help(): what it is made of are its fields."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY if number else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                    default=getattr(kind, name), annotation=annotation)
                  for number, (name, annotation) in enumerate(kind.__annotations__.items())]
    kind.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return kind


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
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in kinds if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"StructuredOutputsParams takes exactly one of {', '.join(kinds)}; found {found}.")

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


_NOT_SENT = ("output_kind", "extra_args")


@_keyword_arguments
class SamplingParams:
    """vLLM's SamplingParams; checked when it is made. Errors: ValueError, TypeError for a name that is none."""

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    repetition_detection: dict[str, int] | None = None
    extra_args: dict[str, Any] | None = None
    # quire's own
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: list[str] | None = None
    deterministic: bool = False

    if not TYPE_CHECKING:  # which makes it of the fields

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


# With the defaults, which are not worth sending.
_FIELDS: dict[str, Any] = {name: getattr(SamplingParams, name) for name in SamplingParams.__annotations__}


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
