"""The engine's tokenizer, by the names of transformers' that programs call most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class Tokenizer:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def vocab_size(self) -> int:
        return int(self._engine.vocab_size)

    @property
    def bos_token_id(self) -> int | None:
        return self._engine.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        ids = self._engine.eos_token_ids
        return ids[0] if ids else None

    @property
    def eos_token_ids(self) -> list[int]:
        return list(self._engine.eos_token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._engine.encode(text, add_special_tokens)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text, add_special_tokens)}

    def decode(self, token_ids: Sequence[int] | int, skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else [int(token) for token in token_ids]
        return self._engine.decode(ids, skip_special_tokens)

    def apply_chat_template(self, conversation: list[dict[str, Any]], *, tokenize: bool = True,
                            add_generation_prompt: bool = False, continue_final_message: bool = False,
                            chat_template: str | None = None, tools: list[dict[str, Any]] | None = None,
                            **variables: Any) -> str | list[int]:
        if tools is not None:
            variables["tools"] = tools
        text, ids = self._engine.render_chat(json.dumps(conversation), json.dumps(variables), add_generation_prompt,
                                             continue_final_message, chat_template or "")
        return ids if tokenize else text
