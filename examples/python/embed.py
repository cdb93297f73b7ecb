"""Vectors of texts, and how near they are to each other.    python embed.py MODEL"""

import sys

import numpy

from quire import LLM

if len(sys.argv) != 2:
    sys.exit(__doc__)
llm = LLM(model=sys.argv[1])
texts = ["A cat sat on the mat.", "A kitten rested on a rug.", "The stock market fell."]
vectors = numpy.stack([output.outputs.embedding for output in llm.embed(texts, arrays=True)])
print(numpy.round(vectors @ vectors.T, 3))
