"""mteb's own client of servers (OpenAIAPIEncodeWrapper), unchanged, on two tasks of its classes that need no hub:
BASE_URL MODEL_FOLDER.

Retrieval: the sections of docs/*.md by their headings (nDCG at 10). Similarity: pairs of their sentences, by the words that
they share (Spearman's correlation of the cosine). Scores are those of the same model under sentence-transformers, to
0.005. The server has the model as "embedder".
"""

import pathlib
import random
import re
import time

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import OpenAIAPIEncodeWrapper
from sentence_transformers import SentenceTransformer

from tries import BASE_URL, MODEL as FOLDER, check, run

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
ABOUT = {"description": "Made of this repository's documents.", "reference": None, "dataset": {"path": "local", "revision": "1"},
         "category": "t2t", "eval_splits": ["test"], "eval_langs": ["eng-Latn"], "date": ("2026-01-01", "2026-12-31"),
         "dialect": [], "domains": ["Programming"], "task_subtypes": [], "license": "apache-2.0",
         "annotations_creators": "derived", "modalities": ["text"], "sample_creation": "found", "bibtex_citation": ""}


def sections():
    found = []
    for file in sorted(DOCS.glob("*.md")):
        for part in re.split(r"\n(?=#+ )", file.read_text()):
            head, _, body = part.partition("\n")
            body = re.sub(r"\s+", " ", body).strip()
            if head.startswith("#") and len(body) > 80:
                found.append((f"{file.stem}: {head.lstrip('# ')}", body[:600]))
    return found


def sentences():
    found = []
    for _, body in sections():
        found += [one.strip() for one in re.split(r"(?<=[.:;]) ", body) if 40 < len(one) < 200]
    return sorted(set(found))


class Sections(AbsTaskRetrieval):
    metadata = TaskMetadata(type="Retrieval", name="QuireSections", main_score="ndcg_at_10", **ABOUT)

    def load_data(self, num_proc=None, **kwargs):
        found = sections()
        split = RetrievalSplitData(
            queries=Dataset.from_list([{"id": f"q{i}", "text": head} for i, (head, _) in enumerate(found)]),
            corpus=Dataset.from_list([{"id": f"d{i}", "text": body, "title": ""} for i, (_, body) in enumerate(found)]),
            relevant_docs={f"q{i}": {f"d{i}": 1} for i in range(len(found))}, top_ranked=None)
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


class Sentences(AbsTaskSTS):
    metadata = TaskMetadata(type="STS", name="QuireSentences", main_score="cosine_spearman", **ABOUT)
    min_score, max_score = 0, 1

    def load_data(self, num_proc=None, **kwargs):
        draw = random.Random(0)
        found = sentences()
        words = [set(re.findall(r"\w+", one.lower())) for one in found]
        rows = {"sentence1": [], "sentence2": [], "score": []}
        while len(rows["score"]) < 1000:
            i, j = draw.randrange(len(found)), draw.randrange(len(found))
            share = len(words[i] & words[j]) / len(words[i] | words[j])
            if i == j or (share < 0.05 and draw.random() < 0.7):
                continue
            rows["sentence1"].append(found[i])
            rows["sentence2"].append(found[j])
            rows["score"].append(share)
        self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
        self.data_loaded = True


def score(model, task):
    start = time.monotonic()
    result = mteb.evaluate(model, task(), cache=None, show_progress_bar=False, co2_tracker=False)
    return result.task_results[0].get_score(), time.monotonic() - start


def compare(task):
    served = OpenAIAPIEncodeWrapper(endpoint_url=BASE_URL.removesuffix("/v1"), model_name="embedder", use_chat_template=False)
    found, seconds = score(served, task)
    wanted, wanted_seconds = score(SentenceTransformer(FOLDER, device="cpu"), task)
    print(f"  {task.metadata.name} {task.metadata.main_score}: {found:.5f} in {seconds:.1f} s, sentence-transformers {wanted:.5f} in "
          f"{wanted_seconds:.1f} s", flush=True)
    check(abs(found - wanted) < 0.005, (found, wanted))


def retrieval():
    compare(Sections)


def similarity():
    compare(Sentences)


print(f"  mteb {mteb.__version__}, {len(sections())} sections, {len(sentences())} sentences", flush=True)
run(retrieval, similarity)
