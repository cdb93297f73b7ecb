"""langchain-openai, unchanged, against a server: BASE_URL MODEL."""

import asyncio
import typing

import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from tries import BASE_URL, MODEL, check, run


def chat_model(**parameters):
    return ChatOpenAI(**{"base_url": BASE_URL, "api_key": "none", "model": MODEL, "temperature": 0, "max_tokens": 48,
                         "max_retries": 0, **parameters})


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather of a city on the next days."""
    return f"sunny in {city}"


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=120)
    pet: typing.Optional[typing.Literal["cat", "dog"]] = None


QUESTION = "What is the capital of France?"
ASKED_FOR_PERSON = "Bob is 42 and has a dog."


def chat():
    answer = chat_model().invoke(QUESTION)
    check("Paris" in answer.content, answer.content)
    check(answer.usage_metadata["output_tokens"] > 0, answer.usage_metadata)
    check(answer.response_metadata["finish_reason"] in ("stop", "length"), answer.response_metadata)


def conversation():
    answer = chat_model().invoke([("system", "You are brief."), ("human", "Hi."), ("ai", "Hello."), ("human", QUESTION)])
    check(answer.content and answer.usage_metadata["input_tokens"] > 20, answer)


def stream():
    pieces = list(chat_model(stream_usage=True).stream(QUESTION))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    check(whole.content == chat_model().invoke(QUESTION).content, whole.content)
    check(whole.usage_metadata["input_tokens"] > 0, whole.usage_metadata)


def at_once():
    answers = asyncio.run(chat_model().abatch([QUESTION] * 8))
    check(len({answer.content for answer in answers}) == 1, answers)


def log_probabilities():
    answer = chat_model().bind(logprobs=True, top_logprobs=3).invoke(QUESTION)
    content = answer.response_metadata["logprobs"]["content"]
    check(len(content[0]["top_logprobs"]) == 3, content[0])


def text():
    answer = OpenAI(base_url=BASE_URL, api_key="none", model=MODEL, temperature=0, max_tokens=8)
    whole = answer.invoke("The capital of France is")
    check(whole and "".join(answer.stream("The capital of France is")) == whole, whole)


def tool_required():
    answer = chat_model(max_tokens=200).bind_tools([weather], tool_choice="required").invoke("Is it sunny in Oslo?")
    check([call["name"] for call in answer.tool_calls] == ["weather"] * len(answer.tool_calls) != [], answer)
    check(isinstance(answer.tool_calls[0]["args"]["city"], str), answer.tool_calls)


def tool_named_and_streamed():
    model = chat_model(max_tokens=200).bind_tools([weather], tool_choice="weather")
    whole = None
    for piece in model.stream("Is it sunny in Oslo?"):
        whole = piece if whole is None else whole + piece
    check(whole.tool_calls and whole.tool_calls[0]["args"] == model.invoke("Is it sunny in Oslo?").tool_calls[0]["args"], whole)


def tool_answered():
    model = chat_model(max_tokens=200)
    asked = model.bind_tools([weather], tool_choice="required").invoke("Is it sunny in Oslo?")
    results = [weather.invoke(call) for call in asked.tool_calls]
    answer = model.bind_tools([weather]).invoke([("human", "Is it sunny in Oslo?"), asked, *results])
    check(answer.content or answer.tool_calls, answer)


def tool_not_needed():
    answer = chat_model().bind_tools([weather]).invoke(QUESTION)
    check(answer.content or answer.tool_calls, answer)


def structured(method):
    def asked():
        answer = chat_model(max_tokens=200).with_structured_output(Person, method=method).invoke(ASKED_FOR_PERSON)
        check(isinstance(answer, Person), answer)
    asked.__name__ = f"structured_by_{method}"
    return asked


def structured_by_json_mode():
    model = chat_model(max_tokens=200).with_structured_output(Person, method="json_mode", include_raw=True)
    answer = model.invoke("As JSON with name and age: " + ASKED_FOR_PERSON)
    check(answer["raw"].content.lstrip().startswith("{"), answer)


def structured_strictly_and_streamed():
    model = chat_model(max_tokens=200).with_structured_output(Person, method="json_schema", strict=True)
    check(isinstance(list(model.stream(ASKED_FOR_PERSON))[-1], Person), "no person")


def responses():
    model = chat_model(use_responses_api=True)
    answer = model.invoke(QUESTION)
    check("Paris" in answer.text, answer)
    check("".join(piece.text for piece in model.stream(QUESTION)) == answer.text, answer)


def responses_with_tools():
    model = chat_model(use_responses_api=True, max_tokens=200).bind_tools([weather], tool_choice="required")
    check(model.invoke("Is it sunny in Oslo?").tool_calls, "no call")


run(chat, conversation, stream, at_once, log_probabilities, text, tool_required, tool_named_and_streamed, tool_answered, tool_not_needed,
    structured("json_schema"), structured("function_calling"), structured_by_json_mode, structured_strictly_and_streamed,
    responses, responses_with_tools)
