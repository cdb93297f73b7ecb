"""Adapters: low-rank ones and soft prompts, of an LLM(enable_lora=True)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class LoRARequest:
    """lora_path: PEFT's folder or a GGUF file, from which the adapter is loaded under lora_name when it is first used; "": of
    a name that is known already. lora_int_id: vLLM's; the name is what counts here."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""


def use(engine: Any, lora_request: LoRARequest | None) -> str:
    """The adapter's name for the engine, to which it is made known. Errors: what is wrong with it."""
    if lora_request is None:
        return ""
    engine.use_adapter(lora_request.lora_name, lora_request.lora_path)
    return lora_request.lora_name


def each_of(lora_request: Any, count: int) -> Sequence[LoRARequest | None]:
    if not isinstance(lora_request, (list, tuple)):
        return [lora_request] * count
    if len(lora_request) != count:
        raise ValueError(f"there are {count} prompts and {len(lora_request)} LoRA requests: give one for all, or as many as "
                         "prompts.")
    return lora_request
