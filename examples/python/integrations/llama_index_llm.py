"""LlamaIndex's LLM over the engine in its own process, answers whole or as they come.    python llama_index_llm.py [MODEL]"""

import asyncio
import queue
import sys
import threading
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from pydantic import PrivateAttr

from quire import AsyncLLM, SamplingParams
from quire.sampling_params import RequestOutputKind


class Quire(CustomLLM):
    """All callers' prompts share the engine's batch: an event loop on a thread of its own takes what it answers."""

    llm: Any
    sampling: dict = {"temperature": 0, "max_tokens": 64}
    _loop: Any = PrivateAttr(default_factory=asyncio.new_event_loop)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.llm.max_model_len, num_output=self.sampling["max_tokens"],
                           model_name="quire", is_chat_model=True)

    def _pieces(self, prompt: Any, kwargs: dict[str, Any]):
        """What comes of the answer, as it comes. Whoever stops listening ends the request."""
        pieces: queue.SimpleQueue = queue.SimpleQueue()
        params = SamplingParams(**{**self.sampling, **kwargs}, output_kind=RequestOutputKind.DELTA)

        async def answer():
            try:
                async for output in self.llm.generate(prompt, params):
                    pieces.put(output.outputs[0])
            finally:
                pieces.put(None)

        running = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            running.result()  # raises what ended it
        finally:
            running.cancel()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        pieces = list(self._pieces(prompt, kwargs))
        return CompletionResponse(text="".join(piece.text for piece in pieces),
                                  raw={"finish_reason": pieces[-1].finish_reason})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any):
        def responses():
            text = ""
            for piece in self._pieces(prompt, kwargs):
                text += piece.text
                yield CompletionResponse(text=text, delta=piece.text, raw={"finish_reason": piece.finish_reason})

        return responses()

    def _prompt(self, messages) -> dict[str, Any]:
        conversation = [{"role": message.role.value, "content": message.content} for message in messages]
        tokenizer = asyncio.run_coroutine_threadsafe(self.llm.get_tokenizer(), self._loop).result()
        return {"prompt_token_ids": tokenizer.apply_chat_template(conversation, add_generation_prompt=True)}

    @llm_chat_callback()
    def chat(self, messages, **kwargs: Any) -> ChatResponse:
        text = "".join(piece.text for piece in self._pieces(self._prompt(messages), kwargs))
        return ChatResponse(message=ChatMessage(role="assistant", content=text))

    @llm_chat_callback()
    def stream_chat(self, messages, **kwargs: Any):
        def responses():
            text = ""
            for piece in self._pieces(self._prompt(messages), kwargs):
                text += piece.text
                yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=piece.text)

        return responses()


def main():
    llm = Quire(llm=AsyncLLM(model=sys.argv[1] if len(sys.argv) > 1 else ""))
    text = llm.complete("The capital of France is").text
    assert "Paris" in text, text
    print(text)
    pieces = list(llm.stream_complete("The capital of France is"))
    assert len(pieces) > 1 and "".join(piece.delta for piece in pieces) == pieces[-1].text == text, pieces
    question = [ChatMessage(role="user", content="What is the capital of France? One word.")]
    answer = asyncio.run(llm.achat(question))
    assert "Paris" in answer.message.content, answer
    streamed = list(llm.stream_chat(question))
    assert streamed[-1].message.content == answer.message.content, streamed
    print(answer.message.content)


if __name__ == "__main__":
    main()
