"""Makes tests/data/beam_search/ with transformers' generate(), whose beam search ours must equal:

    python scripts/make_beam_data.py CHECKPOINT_FOLDER...

table.json: over a language of 12 tokens, so that the test needs no model: the logit of token t at position p behind the
token l is logits[l][t] + drift[(5 * p + t) % 31].
checkpoints.json: over real (tiny) checkpoints, for the test of the whole program.

Needs transformers and torch. Cases that float64 decides otherwise than float32, or where two answers have the same
score, are left out: there a rounding, not the algorithm, would be compared.
"""

import json
import pathlib
import random
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "beam_search"
VOCABULARY = 12


class TableConfig(PretrainedConfig):
    model_type = "table"

    def __init__(self, **options):
        super().__init__(**options)
        self.vocab_size = VOCABULARY
        self.hidden_size = 1
        self.num_attention_heads = 1
        self.num_hidden_layers = 1


class TableModel(PreTrainedModel, GenerationMixin):
    """Logits as said above."""

    config_class = TableConfig

    def __init__(self, table, drift):
        super().__init__(TableConfig())
        self.table = torch.nn.Parameter(torch.tensor(table, dtype=torch.float64), requires_grad=False)
        self.drift = torch.nn.Parameter(torch.tensor(drift, dtype=torch.float64), requires_grad=False)

    def forward(self, input_ids, **_):
        places = 5 * torch.arange(input_ids.shape[1])[:, None] + torch.arange(VOCABULARY)  # [positions, tokens]
        return CausalLMOutput(logits=self.table[input_ids] + self.drift[places % len(self.drift)])


def search(model, prompt, case):
    """The answers of one case: token ids (the one that ended it included) and scores, the best first."""
    config = GenerationConfig(
        num_beams=case["num_beams"],
        num_return_sequences=case["num_beams"],
        length_penalty=float(case["length_penalty"]),
        early_stopping=case["early_stopping"],
        max_new_tokens=case["max_new_tokens"],
        min_new_tokens=case["min_new_tokens"] or None,
        eos_token_id=case["eos_token_ids"] or None,
        pad_token_id=0,
        do_sample=False,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    model.generation_config = config
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    answers = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
        tokens = row[len(prompt) :]
        for place, token in enumerate(tokens):
            if token in case["eos_token_ids"]:
                tokens = tokens[: place + 1]
                break
        answers.append({"tokens": tokens, "score": round(score, 6)})
    return answers


def decided(a, b):
    """Whether single and double precision agree, and by more than their rounding."""
    scores = [answer["score"] for answer in a]
    return [x["tokens"] for x in a] == [y["tokens"] for y in b] and all(
        higher - lower > 1e-5 for higher, lower in zip(scores, scores[1:]))


def draw_case(rng, max_new_tokens):
    return {
        "num_beams": rng.choice([2, 3, 4, 5]),
        "length_penalty": rng.choice([1, 1, 0, 2, -1]),
        "early_stopping": rng.choice([False, True, "never"]),
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": rng.choice([0, 0, 0, 2, 5]),
    }


def table_cases(rng):
    languages = []
    for _ in range(6):
        sharpness = rng.choice([1.0, 2.0, 3.0])
        # Few digits, so that the file is small and says exactly what was computed.
        table = [[round(rng.gauss(0, sharpness), 3) for _ in range(VOCABULARY)] for _ in range(VOCABULARY)]
        drift = [round(rng.gauss(0, 0.3), 3) for _ in range(31)]
        single, double = TableModel(table, drift).float(), TableModel(table, drift).double()
        cases = []
        while len(cases) < 25:
            case = draw_case(rng, rng.choice([1, 2, 4, 8, 16, 24]))
            case["eos_token_ids"] = rng.sample(range(VOCABULARY), rng.choice([0, 1, 1, 2, 3]))
            case["first_token"] = rng.randrange(VOCABULARY)
            answers = search(single, [case["first_token"]], case)
            if decided(answers, search(double, [case["first_token"]], case)):
                cases.append(case | {"answers": answers})
        languages.append({"logits": table, "drift": drift, "cases": cases})
    return languages


def checkpoint_cases(rng, folder):
    single = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    double = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    vocabulary = single.config.vocab_size
    cases = []
    ended_early = 0
    while len(cases) < 16:
        case = draw_case(rng, rng.randint(8, 24))
        prompt = [rng.randrange(3, vocabulary) for _ in range(rng.choice([1, 3, 8, 20]))]
        # End ids that the answers really meet: tokens that they contain when nothing ends them.
        free = search(single, prompt, case | {"eos_token_ids": []})
        said = sorted({token for answer in free for token in answer["tokens"][1:]})
        case["eos_token_ids"] = rng.sample(said, min(len(said), rng.choice([0, 1, 2, 3])))
        answers = search(single, prompt, case)
        if not decided(answers, search(double, prompt, case)):
            continue
        met = any(answer["tokens"][-1] in case["eos_token_ids"] for answer in answers)
        if case["eos_token_ids"] and not met:
            continue
        ended_early += met
        cases.append({"checkpoint": folder.name, "prompt": prompt} | case | {"answers": answers})
    print(f"{folder.name}: {len(cases)} cases, in {ended_early} of them an end id was met")
    return cases


def write(name, value):
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value | {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}"},
                      separators=(",", ":"))
    (FOLDER / name).write_text(text.replace('{"num_beams"', '\n{"num_beams"').replace('{"checkpoint"', '\n{"checkpoint"') + "\n")


def main():
    rng = random.Random(20)
    write("table.json", {"languages": table_cases(rng)})
    checkpoints = [pathlib.Path(name) for name in sys.argv[1:]]
    if checkpoints:
        write("checkpoints.json", {"cases": [case for one in checkpoints for case in checkpoint_cases(rng, one)]})


if __name__ == "__main__":
    main()
