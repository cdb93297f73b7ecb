"""LangChain's LLM and chat model over the engine in its own process.    python langchain_llm.py [MODEL]"""

import sys
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.llms import BaseLLM
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult, Generation, LLMResult
from langchain_core.prompts import ChatPromptTemplate

from quire import LLM, SamplingParams

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def params_of(sampling: dict[str, Any], stop: list[str] | None) -> SamplingParams:
    return SamplingParams(**{**sampling, **({"stop": stop} if stop else {})})


class Quire(BaseLLM):
    """All prompts of a call are one batch of the engine."""

    llm: Any
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 64}

    @property
    def _llm_type(self) -> str:
        return "quire"

    def _generate(self, prompts, stop=None, run_manager=None, **kwargs) -> LLMResult:
        outputs = self.llm.generate(prompts, params_of({**self.sampling, **kwargs}, stop), use_tqdm=False)
        return LLMResult(generations=[[Generation(text=one.text, generation_info={"finish_reason": one.finish_reason})
                                       for one in output.outputs] for output in outputs])


class ChatQuire(BaseChatModel):
    llm: Any
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 64}

    @property
    def _llm_type(self) -> str:
        return "quire-chat"

    def _generate(self, messages: list[BaseMessage], stop=None, run_manager=None, **kwargs) -> ChatResult:
        conversation = [{"role": ROLES[message.type], "content": message.content} for message in messages]
        output = self.llm.chat(conversation, params_of({**self.sampling, **kwargs}, stop), use_tqdm=False)[0]
        generations = []
        for one in output.outputs:
            usage = {"input_tokens": len(output.prompt_token_ids), "output_tokens": len(one.token_ids),
                     "total_tokens": len(output.prompt_token_ids) + len(one.token_ids)}
            generations.append(ChatGeneration(message=AIMessage(content=one.text, usage_metadata=usage),
                                              generation_info={"finish_reason": one.finish_reason}))
        return ChatResult(generations=generations)


def main():
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "")
    texts = Quire(llm=llm).batch(["The capital of France is", "The capital of Italy is"], stop=["."])
    assert "Paris" in texts[0], texts
    print(texts)
    chain = ChatPromptTemplate.from_messages([("system", "You answer in one word."),
                                              ("user", "What is the capital of {country}?")]) | ChatQuire(llm=llm)
    answer = chain.invoke({"country": "France"})
    assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] > 0, answer
    print(answer.content)


if __name__ == "__main__":
    main()
