"""Answers as they come, several at a time, one of them left early.    python async_streaming.py [MODEL]"""

import asyncio
import contextlib
import sys

from quire import AsyncLLM, SamplingParams
from quire.sampling_params import RequestOutputKind

PARAMS = SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.DELTA)


async def show(llm, name, prompt, most_pieces=None):
    pieces = []
    async with contextlib.aclosing(llm.generate(prompt, PARAMS)) as stream:
        async for output in stream:
            pieces.append(output.outputs[0].text)
            if most_pieces is not None and len(pieces) >= most_pieces:
                break  # the engine stops working on it
    print(f"{name}: {len(pieces)} pieces: {''.join(pieces)!r}")


async def main():
    llm = AsyncLLM(model=sys.argv[1] if len(sys.argv) > 1 else "")
    await asyncio.gather(show(llm, "one", "The capital of France is"),
                         show(llm, "two", "Once upon a time"),
                         show(llm, "left", "A list of numbers: 1, 2, 3,", most_pieces=5))
    llm.shutdown()


asyncio.run(main())
