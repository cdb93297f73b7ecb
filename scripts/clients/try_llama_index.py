"""llama-index-llms-openai-like, unchanged, against a server: BASE_URL MODEL."""

import asyncio

import pydantic
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tries import BASE_URL, MODEL, check, run

QUESTION = "What is the capital of France?"


def model(**parameters):
    return OpenAILike(**{"api_base": BASE_URL, "api_key": "none", "model": MODEL, "temperature": 0, "max_tokens": 48,
                         "context_window": 2048, "is_chat_model": True, "is_function_calling_model": True,
                         "max_retries": 0, **parameters})


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=120)


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


TOOL = FunctionTool.from_defaults(weather)


def chat():
    answer = model().chat([ChatMessage(role="user", content=QUESTION)])
    check("Paris" in answer.message.content, answer)
    check(answer.raw.usage.completion_tokens > 0, answer.raw)


def stream():
    answer = list(model().stream_chat([ChatMessage(role="user", content=QUESTION)]))
    check("Paris" in answer[-1].message.content, answer[-1])


def without_waiting():
    async def ask():
        pieces = await model().astream_chat([ChatMessage(role="user", content=QUESTION)])
        return [piece async for piece in pieces]
    check("Paris" in asyncio.run(ask())[-1].message.content, "no Paris")


def completed_by_chat():
    check("Paris" in model().complete(QUESTION).text, "no Paris")


def completed_by_text():
    base = model(is_chat_model=False)
    whole = base.complete("The capital of France is").text
    check(whole and list(base.stream_complete("The capital of France is"))[-1].text == whole, whole)


def log_probabilities():
    answer = model(logprobs=True, top_logprobs=2).chat([ChatMessage(role="user", content=QUESTION)])
    check(len(answer.logprobs[0]) == 2, answer.logprobs)


def log_probabilities_of_text():
    answer = model(is_chat_model=False, logprobs=True, top_logprobs=2).complete("The capital of France is")
    check(len(answer.logprobs[0]) == 2, answer.logprobs)


def tools():
    llm = model(max_tokens=200)
    answer = llm.chat_with_tools([TOOL], user_msg="Is it sunny in Oslo?", tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    check(calls[0].tool_name == "weather" and isinstance(calls[0].tool_kwargs["city"], str), calls)


def tools_streamed():
    llm = model(max_tokens=200)
    answer = list(llm.stream_chat_with_tools([TOOL], user_msg="Is it sunny in Oslo?", tool_required=True))[-1]
    check(llm.get_tool_calls_from_response(answer)[0].tool_name == "weather", answer)


def called():
    check("sunny in" in str(model(max_tokens=200).predict_and_call([TOOL], "Is it sunny in Oslo?", tool_required=True)), "not called")


def structured_by_tools():
    answer = model(max_tokens=200).structured_predict(Person, PromptTemplate("{text}"), text="Bob is 42.")
    check(isinstance(answer, Person), answer)


def structured_by_schema():
    answer = model(max_tokens=200, should_use_structured_outputs=True).structured_predict(
        Person, PromptTemplate("{text}"), text="Bob is 42.")
    check(isinstance(answer, Person), answer)


run(chat, stream, without_waiting, completed_by_chat, completed_by_text, log_probabilities, log_probabilities_of_text, tools,
    tools_streamed, called, structured_by_tools, structured_by_schema)
