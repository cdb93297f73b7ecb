"""LlamaIndex's LLM over the engine in its own process.    python llama_index_llm.py [MODEL]"""

import asyncio
import sys
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback

from quire import LLM, SamplingParams


class Quire(CustomLLM):
    llm: Any
    sampling: dict = {"temperature": 0, "max_tokens": 64}

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.llm.max_model_len, num_output=self.sampling["max_tokens"],
                           model_name="quire", is_chat_model=True)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        output = self.llm.generate(prompt, SamplingParams(**{**self.sampling, **kwargs}), use_tqdm=False)[0]
        return CompletionResponse(text=output.outputs[0].text, raw={"finish_reason": output.outputs[0].finish_reason})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any):
        answer = self.complete(prompt, formatted, **kwargs)  # streams are AsyncLLM's

        def whole():
            yield CompletionResponse(text=answer.text, delta=answer.text, raw=answer.raw)

        return whole()

    @llm_chat_callback()
    def chat(self, messages, **kwargs: Any) -> ChatResponse:
        conversation = [{"role": message.role.value, "content": message.content} for message in messages]
        output = self.llm.chat(conversation, SamplingParams(**{**self.sampling, **kwargs}), use_tqdm=False)[0]
        return ChatResponse(message=ChatMessage(role="assistant", content=output.outputs[0].text))


def main():
    llm = Quire(llm=LLM(model=sys.argv[1] if len(sys.argv) > 1 else ""))
    text = llm.complete("The capital of France is").text
    assert "Paris" in text, text
    print(text)
    answer = asyncio.run(llm.achat([ChatMessage(role="user", content="What is the capital of France? One word.")]))
    assert "Paris" in answer.message.content, answer
    print(answer.message.content)


if __name__ == "__main__":
    main()
