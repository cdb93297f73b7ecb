"""Vectors and scores of texts, with vLLM's attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire import _engine


@dataclass
class PoolingParams:
    """dimensions: the first so many numbers, of models that were made for it. normalize: vectors of length 1; None: as the
    model's files say. truncate_prompt_tokens: longer texts are cut to so many tokens, -1 to the context; None: refused."""

    dimensions: int | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_name: str = ""

    def _options(self) -> _engine.PoolingOptions:
        return _engine.PoolingOptions(self.dimensions or 0, self.normalize, self.truncate_prompt_tokens or 0,
                                      self.prompt_name)


@dataclass
class EmbeddingOutput:
    embedding: Any  # a list, or numpy's float32 array

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    probs: Any
    label: str = ""

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass
class ScoringOutput:
    score: float


@dataclass
class PoolingRequestOutput:
    """outputs: an EmbeddingOutput, a ClassificationOutput or a ScoringOutput."""

    request_id: str
    outputs: Any
    prompt_token_ids: list[int]
    finished: bool = True


EmbeddingRequestOutput = ClassificationRequestOutput = ScoringRequestOutput = PoolingRequestOutput
