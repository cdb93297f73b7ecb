"""Clients of vectors and ranks, unchanged, against a server of tests/data/embeddings' models: BASE_URL FOLDER.

openai, cohere (both versions), LangChain's OpenAIEmbeddings, CohereEmbeddings and CohereRerank, LlamaIndex's
OpenAILikeEmbedding, CohereEmbedding and CohereRerank: vectors are those of the reference, orders are its order. The
server has bert_mean as EMBEDDER, a name that LlamaIndex knows of Cohere, and bert_reranker as "reranker".
"""

import asyncio
import json
import math
import pathlib

import cohere
import openai
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.cohere import CohereEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank as NodeRerank

from tries import BASE_URL, MODEL as DATA, check, run

EMBEDDER = "embed-english-v3.0"
ROOT = BASE_URL.removesuffix("/v1")


def golden(name):
    return json.loads((pathlib.Path(DATA) / name / "golden.json").read_text())


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


CASES = [one for one in golden("bert_mean")["texts"] if one["text"]]
TEXTS = [one["text"] for one in CASES]
QUERY = "where is the cat"
PAIRS = [one for one in golden("bert_reranker")["pairs"] if one["first"] == QUERY]
DOCUMENTS = [one["second"] for one in PAIRS]
SCORES = [1 / (1 + math.exp(-one["logits"][0])) for one in PAIRS]
ORDER = sorted(range(len(PAIRS)), key=lambda i: -SCORES[i])


def equal(found):
    check(len(found) == len(CASES), len(found))
    for vector, one in zip(found, CASES, strict=True):
        wanted = unit(one["vector"])
        check(max(abs(a - b) for a, b in zip(vector, wanted, strict=True)) < 5e-5, one["text"])


def ranked(order, scores):
    check(list(order) == ORDER, order)
    check(all(abs(score - SCORES[i]) < 1e-4 for i, score in zip(order, scores, strict=True)), scores)


def openai_client():
    client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)
    equal([one.embedding for one in client.embeddings.create(model=EMBEDDER, input=TEXTS).data])
    answer = client.embeddings.create(model=EMBEDDER, input=TEXTS, encoding_format="float")
    equal([one.embedding for one in answer.data])
    check(answer.usage.total_tokens == sum(len(one["ids"]) for one in CASES), answer.usage)
    equal([one.embedding for one in client.embeddings.create(model=EMBEDDER, input=[one["ids"] for one in CASES]).data])


def openai_async_client():
    async def ask():
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(*(client.embeddings.create(model=EMBEDDER, input=text) for text in TEXTS))
        return [answer.data[0].embedding for answer in answers]
    equal(asyncio.run(ask()))


def cohere_client_v2():
    client = cohere.ClientV2("none", base_url=ROOT)
    answer = client.embed(model=EMBEDDER, texts=TEXTS, input_type="clustering", embedding_types=["float", "ubinary"])
    equal(answer.embeddings.float_)
    bits = [[int(byte >> (7 - i) & 1) for byte in row for i in range(8)] for row in answer.embeddings.ubinary]
    check(all(bit == (x > 0) for row, vector in zip(bits, answer.embeddings.float_) for bit, x in zip(row, vector)), bits)
    check(answer.meta.billed_units.input_tokens == sum(len(one["ids"]) for one in CASES), answer.meta)
    ranking = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS)
    ranked([one.index for one in ranking.results], [one.relevance_score for one in ranking.results])
    check(len(client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, top_n=1).results) == 1, "top_n")


def cohere_client_of_prompts():
    """What Cohere calls an input's type chooses the prompt of that name."""
    client = cohere.ClientV2("none", base_url=ROOT)
    prompted = client.embed(model=EMBEDDER, texts=["the cat"], input_type="search_query", embedding_types=["float"])
    spelt = client.embed(model=EMBEDDER, texts=["query: the cat"], input_type="clustering", embedding_types=["float"])
    check(prompted.embeddings.float_ == spelt.embeddings.float_, "the prompt")


def cohere_client_v1():
    client = cohere.Client("none", base_url=ROOT)
    equal(client.embed(model=EMBEDDER, texts=TEXTS, input_type="clustering").embeddings)
    ranking = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, return_documents=True)
    ranked([one.index for one in ranking.results], [one.relevance_score for one in ranking.results])
    check(ranking.results[0].document.text == DOCUMENTS[ORDER[0]], ranking)


def cohere_errors():
    client = cohere.ClientV2("none", base_url=ROOT)
    for bad in ({"texts": []}, {"texts": ["a"], "truncate": "START"}, {"texts": ["a"], "embedding_types": ["int8"]},
                {"texts": ["cat " * 500], "truncate": "NONE"}):
        try:
            client.embed(model=EMBEDDER, input_type="clustering", **{"embedding_types": ["float"], **bad})
        except cohere.errors.BadRequestError:
            continue
        raise AssertionError(bad)


def langchain_openai_embeddings():
    # As for every server but OpenAI's: the texts go as they are, not as its tokenizer's ids.
    embeddings = OpenAIEmbeddings(base_url=BASE_URL, api_key="none", model=EMBEDDER, check_embedding_ctx_length=False)
    equal(embeddings.embed_documents(TEXTS))
    equal([embeddings.embed_query(text) for text in TEXTS])
    equal(asyncio.run(embeddings.aembed_documents(TEXTS)))
    store = InMemoryVectorStore(embeddings)
    store.add_texts(TEXTS)
    check(store.similarity_search(TEXTS[1], k=1)[0].page_content == TEXTS[1], "the nearest")


def langchain_cohere_classes():
    embeddings = CohereEmbeddings(base_url=ROOT, cohere_api_key="none", model=EMBEDDER)
    documents = embeddings.embed_documents(TEXTS)
    equal(documents)
    reranker = CohereRerank(client=cohere.ClientV2("none", base_url=ROOT), model="reranker", top_n=3, cohere_api_key="none")
    found = reranker.rerank([Document(page_content=text) for text in DOCUMENTS], QUERY)
    ranked([one["index"] for one in found], [one["relevance_score"] for one in found])
    best = reranker.compress_documents([Document(page_content=text) for text in DOCUMENTS], QUERY)[0]
    check(best.page_content == DOCUMENTS[ORDER[0]], best)
    found = reranker.rerank(DOCUMENTS, QUERY, max_tokens_per_doc=4000)
    ranked([one["index"] for one in found], [one["relevance_score"] for one in found])


def llama_index_openai_like():
    embedding = OpenAILikeEmbedding(model_name=EMBEDDER, api_base=BASE_URL, api_key="none", embed_batch_size=4)
    equal(embedding.get_text_embedding_batch(TEXTS))
    equal([embedding.get_query_embedding(text) for text in TEXTS])
    equal(asyncio.run(embedding.aget_text_embedding_batch(TEXTS)))


def llama_index_cohere():
    embedding = CohereEmbedding(base_url=ROOT, api_key="none", model_name=EMBEDDER, input_type="clustering")
    equal(embedding.get_text_embedding_batch(TEXTS))
    rerank = NodeRerank(api_key="none", base_url=ROOT, model="reranker", top_n=len(DOCUMENTS))
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in DOCUMENTS]
    found = rerank.postprocess_nodes(nodes, query_str=QUERY)
    ranked([DOCUMENTS.index(one.node.get_content()) for one in found], [one.score for one in found])


run(openai_client, openai_async_client, cohere_client_v2, cohere_client_of_prompts, cohere_client_v1, cohere_errors,
    langchain_openai_embeddings, langchain_cohere_classes, llama_index_openai_like, llama_index_cohere)
