#!/usr/bin/env python3
"""Writes what Hugging Face's tokenizers and SentencePiece say of small tokenizers into tests/data/tokenizers.

Needs the packages tokenizers and sentencepiece. The output depends on the seed and on their versions.

    python3 scripts/make_tokenizer_data.py            # all of it
    python3 scripts/make_tokenizer_data.py --seed 7   # other configurations
"""

import argparse
import base64
import io
import json
import os
import random
from pathlib import Path

import sentencepiece
import tokenizers

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "tokenizers"
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "Tokenizers cut text into pieces; the pieces have numbers from 0 to 4095.",
    "def add(a, b):\n    return a + b  # it's 3.14 times faster",
    "Привет, мир! Как дела сегодня?",
    "漢字とかなとカタカナを混ぜて書く。",
    "naïve café déjà vu, ﬁne ligatures ① ② ½",
    "한국어 텍스트 नमस्ते दुनिया 😀👨‍👩‍👧",
]
WORDS = "the The hello don't do not n't 's . , ! ? [MASK] <s> </s> <unk> <0x41> extra 2024 3.14 é".split(" ")
CHARACTERS = (
    "abcdefgABC  \t\n'.,!?-_<>019éÉßİıﬁ①½²あア漢字한국어\u0301\u0308\u200b\u200d\ufeff😀▁##\u00a0\u3000ĠЖΩς\u00ad"
)
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SPECIALS = ["<unk>", "<s>", "</s>"]
# Rules of SentencePiece's kind: code points, and what they become.
RULES = "\n".join(["09\t20", "0A\t20", "A0\t20", "3000\t20", "FB01\t66 69", "2460\t31", "41\t61", "41 301\tE1", "AD\t"])


def random_text(rng):
    kind = rng.random()
    if kind < 0.4:
        return "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(0, 20)))
    if kind < 0.7:
        sentence = rng.choice(SENTENCES)
        begin = rng.randint(0, len(sentence))
        return rng.choice(["", "  "]) + sentence[begin : begin + rng.randint(0, 40)] + rng.choice(["", "   "])
    return rng.choice(["", " ", "  "]).join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))


class Configurations:
    """Random tokenizer.json files whose vocabularies are small."""

    def __init__(self, rng, charsmap):
        self.rng = rng
        self.charsmap = base64.b64encode(charsmap).decode()

    def chance(self, probability):
        return self.rng.random() < probability

    def pattern(self):
        literals = [{"String": text} for text in (" ", "a", "▁", "e ")]
        regexes = [{"Regex": text} for text in (r"\s+", r"\d", r" ?\p{L}+", r"\p{N}{1,3}", r"(?i:the)", r"[^a-z]")]
        return self.rng.choice(literals + regexes)

    def normalizer(self, nested=False):
        kinds = ["NFC", "NFD", "NFKC", "NFKD", "Nmt", "Replace", "Strip", "Prepend", "Lowercase", "StripAccents"]
        kind = self.rng.choice(kinds + ["BertNormalizer", "ByteLevel", "Precompiled"] + ([] if nested else ["Sequence"]))
        fields = {
            "Replace": lambda: {"pattern": self.pattern(), "content": self.rng.choice(["▁", " ", ""])},
            "Strip": lambda: {"strip_left": self.chance(0.5), "strip_right": self.chance(0.5)},
            "Prepend": lambda: {"prepend": self.rng.choice(["▁", "x"])},
            "BertNormalizer": lambda: {
                "clean_text": self.chance(0.7),
                "handle_chinese_chars": self.chance(0.7),
                "strip_accents": self.rng.choice([None, True, False]),
                "lowercase": self.chance(0.6),
            },
            "Precompiled": lambda: {"precompiled_charsmap": self.charsmap},
            "Sequence": lambda: {"normalizers": [self.normalizer(True) for _ in range(self.rng.randint(1, 3))]},
        }
        return {"type": kind} | fields.get(kind, dict)()

    def pre_tokenizer(self, nested=False):
        kinds = ["ByteLevel", "Split", "Metaspace", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation"]
        kinds += ["Digits", "CharDelimiterSplit", "FixedLength", "UnicodeScripts"] + ([] if nested else ["Sequence"] * 3)
        kind = self.rng.choice(kinds)
        fields = {
            "ByteLevel": lambda: {
                "add_prefix_space": self.chance(0.5),
                "trim_offsets": True,
                "use_regex": self.chance(0.6),
            },
            "Split": lambda: {
                "pattern": self.pattern(),
                "behavior": self.rng.choice(BEHAVIORS),
                "invert": self.chance(0.3),
            },
            "Metaspace": lambda: {
                "replacement": self.rng.choice("▁_"),
                "prepend_scheme": self.rng.choice(["always", "first", "never"]),
                "split": self.chance(0.6),
            },
            "Punctuation": lambda: {"behavior": self.rng.choice(BEHAVIORS)},
            "Digits": lambda: {"individual_digits": self.chance(0.5)},
            "CharDelimiterSplit": lambda: {"delimiter": self.rng.choice(" e▁")},
            "FixedLength": lambda: {"length": self.rng.randint(1, 6)},
            "Sequence": lambda: {"pretokenizers": [self.pre_tokenizer(True) for _ in range(self.rng.randint(1, 3))]},
        }
        return {"type": kind} | fields.get(kind, dict)()

    def decoder(self, nested=False):
        kinds = ["ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Strip", "Replace", "WordPiece", "BPEDecoder", "CTC"]
        kind = self.rng.choice(kinds + ([] if nested else ["Sequence"] * 4))
        fields = {
            "ByteLevel": lambda: {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "Metaspace": lambda: {
                "replacement": "▁",
                "prepend_scheme": self.rng.choice(["always", "first", "never"]),
                "split": True,
            },
            "Strip": lambda: {"content": self.rng.choice(" e"), "start": self.rng.randint(0, 2), "stop": 0},
            "Replace": lambda: {"pattern": self.pattern(), "content": self.rng.choice([" ", "", "x"])},
            "WordPiece": lambda: {"prefix": "##", "cleanup": self.chance(0.5)},
            "BPEDecoder": lambda: {"suffix": self.rng.choice(["</w>", "e"])},
            "CTC": lambda: {"pad_token": "<s>", "word_delimiter_token": "▁", "cleanup": self.chance(0.5)},
            "Sequence": lambda: {"decoders": [self.decoder(True) for _ in range(self.rng.randint(1, 4))]},
        }
        return {"type": kind} | fields.get(kind, dict)()

    def spellings(self):
        text = "".join(SENTENCES)
        parts = set(text[i : i + n].replace(" ", "▁") for i in range(len(text)) for n in (2, 3, 4) if self.chance(0.15))
        characters = self.rng.sample(sorted(set(text.replace(" ", "▁"))), 90)
        return characters + self.rng.sample(sorted(parts - set(characters)), 100)

    def model(self):
        spellings = self.spellings()
        byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if self.chance(0.3) else []
        kind = self.rng.choice(["Unigram", "Unigram", "BPE", "BPE", "WordPiece", "WordLevel"])
        if kind == "Unigram":
            scores = [[token, round(self.rng.uniform(-12, -2), 3)] for token in spellings]
            head = [[token, 0.0] for token in SPECIALS]
            tail = [[token, -15.0] for token in byte_tokens]
            return {"type": kind, "unk_id": 0, "byte_fallback": bool(byte_tokens), "vocab": head + scores + tail}
        if kind == "WordPiece":
            inner = ["##" + token.replace("▁", "") for token in spellings]
            tokens = dict.fromkeys(SPECIALS + [token.replace("▁", "") for token in spellings] + inner)
            vocab = {token: i for i, token in enumerate(token for token in tokens if token not in ("", "##"))}
            limit = self.rng.choice([100, 6])
            return {
                "type": kind,
                "unk_token": "<unk>",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": limit,
                "vocab": vocab,
            }
        if kind == "WordLevel":
            return {"type": kind, "vocab": {t: i for i, t in enumerate(SPECIALS + spellings)}, "unk_token": "<unk>"}
        return self.bpe(spellings, byte_tokens)

    def bpe(self, spellings, byte_tokens):
        prefix, suffix = self.rng.choice([None, None, "##"]), self.rng.choice([None, None, "</w>"])
        tokens = dict.fromkeys(SPECIALS + byte_tokens)
        for character in [token for token in spellings if len(token) == 1]:
            for before in {"", prefix or ""}:
                for after in {"", suffix or ""}:
                    tokens[before + character + after] = None
        made = list(tokens)[len(SPECIALS) + len(byte_tokens) :]
        merges = []
        while len(merges) < 150:
            left, right = self.rng.choice(made), self.rng.choice(made)
            if (suffix and left.endswith(suffix)) or (prefix and not right.startswith(prefix)):
                continue
            merged = left + (right[len(prefix) :] if prefix else right)
            if merged not in tokens:
                made.append(merged)
            tokens[merged] = None
            if [left, right] not in merges:
                merges.append([left, right])
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": self.rng.choice([None, "<unk>"]),
            "continuing_subword_prefix": prefix,
            "end_of_word_suffix": suffix,
            "fuse_unk": self.chance(0.5),
            "byte_fallback": bool(byte_tokens),
            "ignore_merges": self.chance(0.3),
            "vocab": {token: i for i, token in enumerate(sorted(tokens, key=list(tokens).index))},
            "merges": merges,
        }

    def make(self):
        model = self.model()
        size = len(model["vocab"])
        known = set(model["vocab"] if isinstance(model["vocab"], dict) else (token for token, _ in model["vocab"]))
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        added = [
            {"id": i, "content": token, "special": True} | dict.fromkeys(flags, False)
            for i, token in enumerate(SPECIALS)
        ]
        for token in self.rng.sample(["extra", "[MASK]", "2024", "hello", "The"], self.rng.randint(0, 3)):
            if token not in known:
                token_flags = {flag: self.chance(0.3) for flag in flags}
                added.append({"id": size, "content": token, "special": self.chance(0.5)} | token_flags)
                size += 1
        template = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        }
        return {
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "padding": None,
            "added_tokens": added,
            "normalizer": self.normalizer() if self.chance(0.6) else None,
            "pre_tokenizer": self.pre_tokenizer() if self.chance(0.8) else None,
            "post_processor": self.rng.choice([None, template, {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}]),
            "decoder": self.decoder() if self.chance(0.9) else None,
            "model": model,
        }


def record(tokenizer, rng, size):
    """Some texts, ids and decodings; nothing where the reference itself fails."""
    cases = []
    while len(cases) < 12:
        text = random_text(rng)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        wrapped = tokenizer.encode(text).ids
        some = ids if rng.random() < 0.6 else [rng.randrange(size) for _ in range(rng.randint(1, 8))]
        decoded = [tokenizer.decode(some, skip_special_tokens=skip) for skip in (False, True)]
        cases.append({"text": text, "ids": ids, "wrapped": wrapped, "some": some, "decoded": decoded[0], "clean": decoded[1]})
    return cases


def write_configurations(rng, count, charsmap):
    configurations = Configurations(rng, charsmap)
    with open(DATA / "configurations.jsonl", "w", encoding="utf-8") as file:
        written = 0
        while written < count:
            config = configurations.make()
            try:
                reference = tokenizers.Tokenizer.from_str(json.dumps(config))
                reference.no_truncation()
                cases = record(reference, rng, len(config["model"]["vocab"]) + len(config["added_tokens"]) - 3)
            except BaseException as error:  # the reference panics on some of its own configurations
                print(f"passed over: {str(error)[:80]}")
                continue
            file.write(json.dumps({"tokenizer": config, "cases": cases}, ensure_ascii=False) + "\n")
            written += 1


SENTENCEPIECE = {
    "unigram": {},
    "unigram_bytes": {"byte_fallback": True, "remove_extra_whitespaces": False},
    "unigram_symbols": {"user_defined_symbols": ["<tool>", "ver", "  "]},
    "unigram_suffix": {"treat_whitespace_as_suffix": True},
    "bpe": {},
    "bpe_bytes": {"byte_fallback": True, "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "bpe_symbols": {"user_defined_symbols": ["<tool>", "the "], "remove_extra_whitespaces": False},
    "bpe_suffix": {"treat_whitespace_as_suffix": True, "byte_fallback": True},
}


def train(name, options):
    rules = DATA / "rules.tsv"
    rules.write_text(RULES + "\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for sentence in SENTENCES * 3 for line in sentence.split("\n")]),
        model_writer=model,
        vocab_size=420 if options.get("byte_fallback") else 200,
        model_type=name.split("_")[0],
        hard_vocab_limit=False,
        normalization_rule_tsv=os.path.relpath(rules),  # the model records it
        minloglevel=2,
        **options,
    )
    rules.unlink()
    return model.getvalue()


def write_sentencepiece(rng):
    folder = DATA / "sentencepiece"
    folder.mkdir(exist_ok=True)
    for name, options in SENTENCEPIECE.items():
        path = folder / f"{name}.model"
        path.write_bytes(train(name, options))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(60):
                text = random_text(rng) + rng.choice(["", "<tool>", "  <tool> x"])
                ids = processor.encode(text)
                some = [rng.randrange(processor.get_piece_size()) for _ in range(rng.randint(1, 8))]
                line = {"text": text, "ids": ids, "decoded": processor.decode(ids)}
                line |= {"some": some, "some_decoded": processor.decode(some)}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def charsmap_of(model):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    return proto.normalizer_spec.precompiled_charsmap


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--configurations", type=int, default=80)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    write_sentencepiece(rng)
    charsmap = charsmap_of((DATA / "sentencepiece" / "unigram.model").read_bytes())
    write_configurations(rng, arguments.configurations, charsmap)


if __name__ == "__main__":
    main()
