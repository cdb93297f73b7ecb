"""Prompts in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Union


class _Shared(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_Shared):
    prompt: str


class TokensPrompt(_Shared, total=False):
    prompt_token_ids: list[int]
    prompt: str


Prompt = Union[str, list[int], TextPrompt, TokensPrompt]

_NOT_TEXT = ("multi_modal_data", "mm_processor_kwargs", "multi_modal_uuids", "prompt_embeds", "encoder_prompt",
             "decoder_prompt", "negative_prompt")


def is_one(prompts: Any) -> bool:
    """Whether this is a prompt, not a sequence of them."""
    if isinstance(prompts, (str, dict)):
        return True
    return isinstance(prompts, (list, tuple)) and bool(prompts) and all(isinstance(item, int) for item in prompts)


def listed(prompts: Any) -> list[Any]:
    if is_one(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence):
        prompts = list(prompts)
    return list(prompts)


def parts(engine: Any, prompt: Any) -> tuple[str | None, list[int], str]:
    """A prompt's text where it has one, its token ids, its cache salt. Errors: TypeError, NotImplementedError."""
    if isinstance(prompt, str):
        return prompt, engine.encode(prompt, True), ""
    if isinstance(prompt, dict):
        for name in _NOT_TEXT:
            if prompt.get(name) is not None:
                raise NotImplementedError(f"a prompt's {name} is not built yet: prompts are texts or token ids.")
        salt = prompt.get("cache_salt") or ""
        text = prompt.get("prompt")
        if prompt.get("prompt_token_ids") is not None:
            return text, list(prompt["prompt_token_ids"]), salt
        if isinstance(text, str):
            return text, engine.encode(text, True), salt
        raise TypeError('a prompt that is a dict has "prompt", a string, or "prompt_token_ids", a list of ints; found '
                        f"{sorted(prompt)}.")
    if hasattr(prompt, "__iter__"):
        return None, [int(token) for token in prompt], ""
    raise TypeError("a prompt is a string, a list of token ids, or a dict with \"prompt\" or \"prompt_token_ids\"; found "
                    f"{type(prompt).__name__}.")


def text_or_ids(prompt: Any) -> str | list[int]:
    """The same for what is not generated from: no text is tokenized here."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, dict) and prompt.get("prompt_token_ids") is None and isinstance(prompt.get("prompt"), str):
        return prompt["prompt"]
    return parts(None, prompt)[1]
