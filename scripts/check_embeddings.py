#!/usr/bin/env python3
"""Models of every family that embeds or classifies, tiny, random and oddly configured, by the real server and by the
reference: transformers, sentence-transformers (versions: scripts/make_embedding_data.py).

    check_embeddings.py QUIRE [NAME...]     (those whose names hold one of NAME; all, if none is given)

Each model is made, saved as its library saves it, served, and asked for texts and pairs. A line each: the least cosine
of vectors or the largest difference of logits, in float32 and by default. Needs torch, transformers,
sentence-transformers, gguf.
"""
import contextlib
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
import transformers  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_embedding_data as data  # noqa: E402

t = transformers
TEXTS = [text for text in data.TEXTS if text]
PAIRS = data.PAIRS
SMALL = data.SMALL
torch.set_num_threads(1)  # tiny models
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="quire-embeddings-"))
data.OUT = FOLDER
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@contextlib.contextmanager
def server(quire, model, *flags):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    log = open(FOLDER / "server.log", "wb")
    process = subprocess.Popen([quire, "serve", str(model), "--port", str(port), "--device", "cpu", "--served-model-name", "m",
                                *flags], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url + "/health", timeout=1)
                break
            if process.poll() is not None:
                lines = (FOLDER / "server.log").read_text().strip().splitlines()
                raise RuntimeError("does not start: " + (lines[-1] if lines else ""))
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def ask(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{path}: {error.code} {error.read()[:300].decode(errors='replace')}") from None


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


# What a model is to give: of texts vectors, of texts and pairs logits.
class Expected:
    def __init__(self, model, flags=(), **given):
        self.model, self.flags = model, flags
        self.texts = TEXTS
        self.vectors = given.get("vectors")  # of TEXTS
        self.logits = given.get("logits")
        self.pairs = given.get("pairs")  # the one logit of PAIRS
        self.scores = given.get("scores")  # after the activation, of PAIRS
        self.lengths = given.get("lengths", True)  # vectors are compared with their lengths
        self.extra = given.get("extra", {})

    def check(self, url):
        worst, kind = 1.0, "cosine"
        if self.vectors is not None:
            answer = ask(url, "/v1/embeddings", {"model": "m", "input": TEXTS, **self.extra})
            found = [one["embedding"] for one in answer["data"]]
            worst = min(cosine(a, b) for a, b in zip(found, self.vectors, strict=True))
            if self.lengths:
                for a, b in zip(found, self.vectors, strict=True):
                    la, lb = (math.sqrt(sum(x * x for x in v)) for v in (a, b))
                    if abs(la - lb) > 0.02 * lb:
                        raise RuntimeError(f"a vector's length is {la}, expected {lb}")
        difference = 0.0
        if self.logits is not None:
            kind = "difference"
            answer = ask(url, "/classify", {"model": "m", "input": self.texts, "use_activation": False})
            for one, wanted in zip(answer["data"], self.logits, strict=True):
                difference = max(difference, max(abs(a - b) for a, b in zip(one["probs"], wanted, strict=True)))
        for wanted, activation in ((self.pairs, False), (self.scores, True)):
            if wanted is None:
                continue
            kind = "difference"
            answer = ask(url, "/v1/score", {"model": "m", "text_1": [a for a, _ in PAIRS], "text_2": [b for _, b in PAIRS],
                                            "use_activation": activation})
            for one, score in zip(answer["data"], wanted, strict=True):
                difference = max(difference, abs(one["score"] - score))
        return kind, (worst if kind == "cosine" else difference)


def states(model, tokenizer, text):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]


def plain(name, model, tokenizer, seed, flags=(), pool="cls", core=None, stored=None):
    """Without sentence-transformers' files: the first token of encoders, the last of decoders."""
    if stored:
        data.randomise(model, seed)
        model = model.to(stored)
        seed = None
    folder = save(name, model, tokenizer, seed)
    core = (core or model).eval().float()
    vectors = []
    for text in TEXTS:
        found = states(core, tokenizer, text)
        vectors.append({"cls": found[0], "last": found[-1], "mean": found.mean(0)}[pool])
    return Expected(folder, flags, vectors=[v.tolist() for v in vectors], lengths=False)


def save(name, model, tokenizer, seed):
    if seed is not None:
        return data.save(name, model, tokenizer, seed)
    kept, data.randomise = data.randomise, lambda *_: None
    try:
        return data.save(name, model, tokenizer, 0)
    finally:
        data.randomise = kept


def classes(name, model, tokenizer, seed, pairs=True):
    """Logits of texts, one by one, and of pairs where the head gives one number."""
    folder = data.save(name, model, tokenizer, seed)
    model.eval()
    types = (getattr(model.config, "type_vocab_size", 0) or 0) > 1

    def logits(*texts):
        encoded = tokenizer.backend_tokenizer.encode(*texts)
        inputs = {"input_ids": encoded.ids, **({"token_type_ids": encoded.type_ids} if types else {})}
        return data.scores_of(model, inputs)

    one = model.config.num_labels == 1
    return Expected(folder, logits=[logits(text) for text in TEXTS],
                    pairs=[logits(a, b)[0] for a, b in PAIRS] if one and pairs else None)


def sentences(name, source, modules, normalize=True, flags=(), extra=None, encode=None, **saved):
    """The model in `source` with sentence-transformers' modules behind it; `modules` by the size of its vectors."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
    transformer = Transformer(str(source))
    behind = modules(transformer.get_embedding_dimension())
    model = SentenceTransformer(modules=[transformer, *behind, *([Normalize()] if normalize else [])], **saved)
    folder = FOLDER / name
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight.shape[0] < 65:
            torch.nn.init.normal_(module.weight, std=0.1) if module.weight.abs().max() < 1e-6 else None
    model.save(str(folder), create_model_card=False)
    vectors = model.encode(TEXTS, **(encode or {}))
    return Expected(folder, flags, vectors=[[float(x) for x in v] for v in vectors], extra=extra or {})


def bert(tokenizer, **more):
    return t.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **{**SMALL, **more})


def one_bert():
    tokenizer = data.wordpiece()
    return data.save("source_bert", t.BertModel(bert(tokenizer)), tokenizer, 1)


# 1. BERT.

for number, act in enumerate(["gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu"]):
    def bert_activation(act=act, number=number):
        tokenizer = data.wordpiece()
        return plain(f"bert_{act}", t.BertModel(bert(tokenizer, hidden_act=act)), tokenizer, number)
    CASES[f"bert_{act}"] = bert_activation


@case
def bert_one_type():
    tokenizer = data.wordpiece()
    return plain("bert_one_type", t.BertModel(bert(tokenizer, type_vocab_size=1)), tokenizer, 3)


@case
def bert_odd_sizes():
    tokenizer = data.wordpiece()
    return plain("bert_odd", t.BertModel(bert(tokenizer, hidden_size=36, num_attention_heads=3, intermediate_size=50,
                                              num_hidden_layers=3, layer_norm_eps=1e-5)), tokenizer, 4)


@case
def bert_without_pooler():
    tokenizer = data.wordpiece()
    return plain("bert_no_pooler", t.BertModel(bert(tokenizer), add_pooling_layer=False), tokenizer, 5)


@case
def bert_masked_lm():
    tokenizer = data.wordpiece()
    model = t.BertForMaskedLM(bert(tokenizer))
    return plain("bert_mlm", model, tokenizer, 6, core=model.bert)


for kind in (torch.float16, torch.bfloat16):
    def bert_stored(kind=kind):
        tokenizer = data.wordpiece()
        return plain("bert_" + str(kind)[6:], t.BertModel(bert(tokenizer)), tokenizer, 7, stored=kind)
    CASES["bert_" + str(kind)[6:]] = bert_stored

for labels, problem in ((1, None), (2, None), (5, None), (3, "multi_label_classification"), (1, "regression"),
                        (4, "single_label_classification")):
    def bert_labels(labels=labels, problem=problem):
        tokenizer = data.wordpiece()
        config = bert(tokenizer, num_labels=labels, problem_type=problem)
        return classes(f"bert_labels_{labels}", t.BertForSequenceClassification(config), tokenizer, 8)
    CASES[f"bert_labels_{labels}_{problem}"] = bert_labels


# 2. RoBERTa and XLM-RoBERTa.

for padding in (0, 1, 4):
    def roberta_padding(padding=padding):
        tokenizer = data.roberta_bpe()
        config = t.RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=140, type_vocab_size=1, **SMALL,
                                 pad_token_id=padding, bos_token_id=0, eos_token_id=2)
        model = t.RobertaModel(config)
        expected = plain(f"roberta_pad_{padding}", model, tokenizer, 9)
        # Positions by hand, so that a text's own tokens may have the padding's number.
        vectors = []
        for text in TEXTS:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            with torch.no_grad():
                positions = torch.arange(ids.shape[1])[None] + padding + 1
                vectors.append(model(input_ids=ids, position_ids=positions).last_hidden_state[0, 0].tolist())
        expected.vectors = vectors
        return expected
    CASES[f"roberta_pad_{padding}"] = roberta_padding


def xlm(tokenizer, **more):
    return t.XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=130, **SMALL, pad_token_id=1, bos_token_id=0,
                              eos_token_id=2, **{"type_vocab_size": 1, **more})


@case
def xlm_two_types():
    tokenizer = data.unigram()
    return plain("xlm_types", t.XLMRobertaModel(xlm(tokenizer, type_vocab_size=2)), tokenizer, 10)


@case
def xlm_masked_lm():
    tokenizer = data.unigram()
    model = t.XLMRobertaForMaskedLM(xlm(tokenizer))
    return plain("xlm_mlm", model, tokenizer, 11, core=model.roberta)


for labels in (1, 3):
    def xlm_labels(labels=labels):
        tokenizer = data.unigram()
        return classes(f"xlm_labels_{labels}", t.XLMRobertaForSequenceClassification(xlm(tokenizer, num_labels=labels)), tokenizer, 12)
    CASES[f"xlm_labels_{labels}"] = xlm_labels

    def roberta_labels(labels=labels):
        tokenizer = data.roberta_bpe()
        config = t.RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=140, type_vocab_size=1, **SMALL,
                                 pad_token_id=1, bos_token_id=0, eos_token_id=2, num_labels=labels)
        return classes(f"roberta_labels_{labels}", t.RobertaForSequenceClassification(config), tokenizer, 13)
    CASES[f"roberta_labels_{labels}"] = roberta_labels


# 3. ModernBERT.

def modern(tokenizer, **more):
    return t.ModernBertConfig(vocab_size=len(tokenizer), max_position_embeddings=160, pad_token_id=0, cls_token_id=2,
                              sep_token_id=3, bos_token_id=2, eos_token_id=3, attn_implementation="eager",
                              **{**SMALL, "num_hidden_layers": 4, "local_attention": 8, "global_attn_every_n_layers": 3, **more})


MODERN = {"biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True}, "odd_window": {"local_attention": 7},
          "all_global": {"global_attn_every_n_layers": 1}, "silu": {"hidden_activation": "silu"}, "eps": {"norm_eps": 1e-3}}
for variant, more in MODERN.items():
    def modern_variant(variant=variant, more=more):
        tokenizer = data.modern_bpe()
        return plain("modern_" + variant, t.ModernBertModel(modern(tokenizer, **more)), tokenizer, 14)
    CASES["modern_" + variant] = modern_variant
for pooling, more in (("cls", {}), ("mean", {"classifier_bias": True, "norm_bias": True}),
                      ("cls", {"classifier_activation": "silu"}), ("mean", {"num_labels": 3})):
    def modern_labels(pooling=pooling, more=more):
        tokenizer = data.modern_bpe()
        model = t.ModernBertForSequenceClassification(modern(tokenizer, classifier_pooling=pooling, **{"num_labels": 1, **more}))
        return classes("modern_labels", model, tokenizer, 15)
    CASES["modern_labels_" + pooling + "".join("_" + key for key in more)] = modern_labels


@case
def modern_masked_lm():
    tokenizer = data.modern_bpe()
    model = t.ModernBertForMaskedLM(modern(tokenizer))
    return plain("modern_mlm", model, tokenizer, 16, core=model.model)


# 4. Nomic BERT.

def nomic(tokenizer, **more):
    return t.NomicBertConfig(vocab_size=len(tokenizer), **{"max_position_embeddings": 128, **SMALL, **more})


NOMIC = {"plain": {}, "one_type": {"type_vocab_size": 1}, "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
         "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}},
         "head_dim": {"head_dim": 16}}
for variant, more in NOMIC.items():
    def nomic_variant(variant=variant, more=more):
        tokenizer = data.wordpiece()
        return plain("nomic_" + variant, t.NomicBertModel(nomic(tokenizer, **more)), tokenizer, 17)
    CASES["nomic_" + variant] = nomic_variant
for labels in (1, 3):
    def nomic_labels(labels=labels):
        tokenizer = data.wordpiece()
        return classes(f"nomic_labels_{labels}", t.NomicBertForSequenceClassification(nomic(tokenizer, num_labels=labels)), tokenizer, 18)
    CASES[f"nomic_labels_{labels}"] = nomic_labels


@case
def nomic_masked_lm():
    tokenizer = data.wordpiece()
    model = t.NomicBertForMaskedLM(nomic(tokenizer))
    return plain("nomic_mlm", model, tokenizer, 19, core=model.nomic_bert)


# 5. sentence-transformers' modules.

def pooling(modes, **more):
    from sentence_transformers.sentence_transformer.modules import Pooling
    return lambda size: [Pooling(size, pooling_mode=modes, **more)]


for modes in ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("mean", "max"), ("cls", "lasttoken", "weightedmean")):
    def pooled(modes=modes):
        return sentences("pooled", one_bert(), pooling(modes), normalize=isinstance(modes, tuple))
    CASES["pooling_" + ("_".join(modes) if isinstance(modes, tuple) else modes)] = pooled


def dense(*layers):
    from sentence_transformers.sentence_transformer.modules import Dense
    def made(size):
        modules = pooling("mean")(size)
        for out, more in layers:
            modules.append(Dense(size, out, **more))
            size = out
        return modules
    return made


nn = torch.nn
DENSE = {"tanh": [(16, {})], "none": [(48, {"activation_function": None, "bias": False})],
         "relu_gelu": [(40, {"activation_function": nn.ReLU()}), (24, {"activation_function": nn.GELU()})],
         "sigmoid": [(24, {"activation_function": nn.Sigmoid()})], "silu": [(24, {"activation_function": nn.SiLU()})],
         "residual": [(32, {"use_residual": True}), (20, {"use_residual": True, "activation_function": None})]}
for variant, layers in DENSE.items():
    def dense_variant(layers=layers):
        return sentences("dense", one_bert(), dense(*layers), normalize=False)
    CASES["dense_" + variant] = dense_variant


@case
def prompt_by_name():
    return sentences("prompted", one_bert(), pooling("mean"), prompts={"query": "where is ", "document": ""},
                     extra={"prompt_name": "query"}, encode={"prompt_name": "query"})


@case
def prompt_by_default():
    return sentences("prompted", one_bert(), pooling("cls"), prompts={"query": "where is ", "document": ""},
                     default_prompt_name="query")


@case
def prompt_left_out():
    return sentences("left_out", one_bert(), pooling("mean", include_prompt=False), prompts={"query": "where is "},
                     extra={"prompt_name": "query"}, encode={"prompt_name": "query"})


@case
def prompt_left_out_weighted():
    return sentences("left_out", one_bert(), pooling(("weightedmean", "max"), include_prompt=False), prompts={"query": "where is "},
                     default_prompt_name="query")


@case
def cut_at_max_seq_length():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    transformer = Transformer(str(one_bert()), max_seq_length=16)
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")])
    model.save(str(FOLDER / "cut"), create_model_card=False)
    return Expected(FOLDER / "cut", vectors=model.encode(TEXTS).tolist(), extra={"truncate_prompt_tokens": -1})


@case
def cut_to_dimensions():
    from sentence_transformers import SentenceTransformer
    expected = sentences("matryoshka", one_bert(), pooling("mean"), flags=("--pooler-config", '{"is_matryoshka": true}'),
                         extra={"dimensions": 12})
    model = SentenceTransformer(str(expected.model), truncate_dim=12)
    expected.vectors = model.encode(TEXTS, normalize_embeddings=True).tolist()
    return expected


for labels, function in ((1, None), (1, nn.Identity()), (1, nn.Sigmoid()), (0, None)):
    def cross_encoder(labels=labels, function=function):
        from sentence_transformers import CrossEncoder
        tokenizer = data.wordpiece()
        source = data.save("source_ce", t.BertForSequenceClassification(bert(tokenizer, num_labels=labels or 1)), tokenizer, 20)
        if not labels:  # a tokenizer that does not tell the two texts apart
            labels = 1
            config = json.loads((source / "tokenizer_config.json").read_text())
            del config["model_input_names"]
            (source / "tokenizer_config.json").write_text(json.dumps(config))
        model = CrossEncoder(str(source), activation_fn=function)
        model.save_pretrained(str(FOLDER / "ce"))
        return Expected(FOLDER / "ce", scores=[float(x) for x in model.predict(PAIRS)])
    CASES[f"cross_encoder_{labels}_{type(function).__name__}"] = cross_encoder


# 6. Decoders.

def decoder(tokenizer, **more):
    return {"vocab_size": len(tokenizer), "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None,
            "eos_token_id": 0, "pad_token_id": None, **SMALL, **more}


def windows(kinds):
    return {"sliding_window": 6, "layer_types": kinds}


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": []}
DECODERS = {
    "llama": ("Llama", {}), "llama_bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_yarn": ("Llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                                 "original_max_position_embeddings": 64}}),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}), "mistral_window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}), "qwen3": ("Qwen3", {"head_dim": 16}), "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": 6}),
    "gemma3": ("Gemma3", {"head_dim": 8, "num_hidden_layers": 3, **windows(["sliding_attention", "full_attention", "sliding_attention"])}),
    "phi3": ("Phi3", {"pad_token_id": 0}), "olmo2": ("Olmo2", {}), "granite": ("Granite", {}), "glm": ("Glm", {"head_dim": 8, "pad_token_id": 0}),
    "glm4": ("Glm4", {"head_dim": 8, "pad_token_id": 0}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, **MOE}), "qwen2_moe": ("Qwen2Moe", {**MOE, "shared_expert_intermediate_size": 24}),
    "gpt2": ("GPT2", {}), "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
}


def config_of(family, tokenizer, more):
    name = "Gemma3Text" if family == "Gemma3" else family
    given = decoder(tokenizer, **more)
    if family == "GPT2":
        given = {"vocab_size": len(tokenizer), "n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48,
                 "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    if family == "OPT":
        given.pop("num_key_value_heads")
    return getattr(t, name + "Config")(**{**given, **{k: v for k, v in more.items() if k == "num_labels"}})


for variant, (family, more) in DECODERS.items():
    def bare(variant=variant, family=family, more=more):
        tokenizer = data.qwen_bpe()
        model = getattr(t, ("Gemma3Text" if family == "Gemma3" else family) + "Model")(config_of(family, tokenizer, more))
        return plain("bare_" + variant, model, tokenizer, 21, pool="last")

    def headed(variant=variant, family=family, more=more):
        tokenizer = data.qwen_bpe()
        model = getattr(t, family + ("LMHeadModel" if family == "GPT2" else "ForCausalLM"))(config_of(family, tokenizer, more))
        return plain("headed_" + variant, model, tokenizer, 22, pool="last", core=model.base_model, flags=("--runner", "pooling"))
    CASES["bare_" + variant] = bare
    CASES["headed_" + variant] = headed
    if family in ("Granite", "OPT"):
        continue
    for labels, padding in ((1, None), (4, None), (1, 0)):
        def labelled(variant=variant, family=family, more=more, labels=labels, padding=padding):
            tokenizer = data.qwen_bpe()
            config = config_of(family, tokenizer, more)
            config.num_labels, config.pad_token_id = labels, padding
            model = getattr(t, ("Gemma3Text" if family == "Gemma3" else family) + "ForSequenceClassification")(config)
            return classes("labelled_" + variant, model, tokenizer, 23, pairs=False)
        CASES[f"labelled_{variant}_{labels}_{padding}"] = labelled


@case
def gemma3_both_ways():
    tokenizer = data.qwen_bpe()
    config = config_of("Gemma3", tokenizer, {**DECODERS["gemma3"][1], "use_bidirectional_attention": True})
    folder = plain("gemma3_both", t.Gemma3TextModel(config), tokenizer, 24, pool="mean",
                   flags=("--pooler-config", '{"pooling_type": "MEAN"}'))
    # The reference halves the window each time that it reads the file.
    model = t.Gemma3TextModel.from_pretrained(folder.model)
    folder.vectors = [states(model, tokenizer, text).mean(0).tolist() for text in TEXTS]
    return folder


for tied in (True, False):
    def reranker(tied=tied):
        tokenizer = data.qwen_bpe()
        config = t.Qwen3Config(head_dim=8, **decoder(tokenizer, tie_word_embeddings=tied))
        data.judge("judge", t.Qwen3ForCausalLM(config), tokenizer, 25)
        golden = json.loads((FOLDER / "judge/golden.json").read_text())["judged"]
        return Expected(FOLDER / "judge", ("--convert", "classify"), scores=[one["score"] for one in golden])
    CASES["reranker_" + ("tied" if tied else "untied")] = reranker


# 7. GGUF, as llama.cpp's converter writes it.

def gguf_file(name, architecture, config, tensors, pooling, vocabulary, more=()):
    import gguf
    writer = gguf.GGUFWriter(FOLDER / (name + ".gguf"), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    for add in more:
        add(writer)
    vocabulary(writer)
    for key, values in tensors.items():
        writer.add_tensor(key, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return FOLDER / (name + ".gguf")


def wordpiece_vocabulary(tokenizer):
    import gguf
    def add(writer):
        vocabulary = tokenizer.get_vocab()
        tokens, kinds = [], []
        for token in sorted(vocabulary, key=vocabulary.get):
            special = token.startswith("[") and token.endswith("]") and len(token) > 2
            tokens.append(token if special else token[2:] if token.startswith("##") else "\u2581" + token)
            kinds.append(gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL)
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_type_count(2)
        writer.add_unk_token_id(vocabulary["[UNK]"])
        writer.add_sep_token_id(vocabulary["[SEP]"])
        writer.add_uint32("tokenizer.ggml.cls_token_id", vocabulary["[CLS]"])
    return add


def unigram_vocabulary(tokenizer):
    import gguf
    def add(writer):
        model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        tokens, scores = zip(*model["vocab"])
        kinds = [gguf.TokenType.CONTROL if token in ("<s>", "<pad>", "</s>", "<mask>") else
                 gguf.TokenType.UNKNOWN if token == "<unk>" else gguf.TokenType.NORMAL for token in tokens]
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(list(tokens))
        writer.add_token_scores(list(scores))
        writer.add_token_types(kinds)
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_token_type_count(1)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(3)
        writer.add_sep_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
    return add


def byte_vocabulary(tokenizer):
    import gguf
    def add(writer):
        model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.CONTROL if token.startswith("<|") else gguf.TokenType.NORMAL for token in tokens])
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_eos_token_id(0)
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(True)
    return add


def renamed(weights, names, without=()):
    out = {}
    for key, values in weights.items():
        if any(word in key for word in without):
            continue
        for old, new in names:
            key = key.replace(old, new)
        out[key] = values.contiguous()
    return out


ENCODER_KEYS = [lambda w: w.add_layer_norm_eps(1e-12), lambda w: w.add_causal_attention(False)]
for pool, number in (("mean", 1), ("cls", 2), ("last", 3)):
    def gguf_bert(pool=pool, number=number):
        tokenizer = data.wordpiece()
        model = t.BertModel(bert(tokenizer))
        expected = plain("gguf_source", model, tokenizer, 26, pool=pool)
        tensors = renamed(model.state_dict(), data.GGUF_NAMES, ("pooler.", "position_ids"))
        expected.model = gguf_file("bert", "bert", model.config, tensors, number, wordpiece_vocabulary(tokenizer), ENCODER_KEYS)
        return expected
    CASES["gguf_bert_" + pool] = gguf_bert

RANK_NAMES = [("roberta.", ""), ("classifier.dense", "cls"), ("classifier.out_proj", "cls.output"), *data.GGUF_NAMES]


@case
def gguf_xlm_rank():
    tokenizer = data.unigram()
    model = t.XLMRobertaForSequenceClassification(xlm(tokenizer, num_labels=1))
    expected = classes("gguf_source", model, tokenizer, 27)
    # SentencePiece takes spaces at a text's end away, the other tokenizer does not.
    expected.texts = [text.strip() for text in TEXTS]
    expected.logits = [data.scores_of(model, {"input_ids": tokenizer(text)["input_ids"]}) for text in expected.texts]
    tensors = renamed(model.state_dict(), RANK_NAMES, ("position_ids",))
    # The converter leaves out the rows of the table that no text has.
    tensors["position_embd.weight"] = tensors["position_embd.weight"][2:].contiguous()
    config = model.config
    config.max_position_embeddings -= 2
    expected.model = gguf_file("xlm_rank", "bert", config, tensors, 4, unigram_vocabulary(tokenizer), ENCODER_KEYS)
    return expected


@case
def gguf_nomic():
    tokenizer = data.wordpiece()
    model = t.NomicBertModel(nomic(tokenizer), add_pooling_layer=False)
    expected = plain("gguf_source", model, tokenizer, 28, pool="mean")
    from safetensors.torch import load_file
    names = [("embeddings.word_embeddings", "token_embd"), ("embeddings.token_type_embeddings", "token_types"),
             ("emb_ln", "token_embd_norm"), ("encoder.layers.", "blk."), ("attn.Wqkv", "attn_qkv"), ("attn.out_proj", "attn_output"),
             ("norm1", "attn_output_norm"), ("norm2", "layer_output_norm"), ("mlp.fc11", "ffn_up"), ("mlp.fc12", "ffn_gate"),
             ("mlp.fc2", "ffn_down")]
    tensors = renamed(load_file(expected.model / "model.safetensors"), names, ("pooler.",))
    expected.model = gguf_file("nomic", "nomic-bert", model.config, tensors, 1, wordpiece_vocabulary(tokenizer),
                               [*ENCODER_KEYS, lambda w: w.add_rope_freq_base(1000.0)])
    return expected


DECODER_NAMES = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("model.layers.", "blk."), ("lm_head", "output"),
                 ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
                 ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
                 ("post_attention_layernorm", "ffn_norm"), ("input_layernorm", "attn_norm"), ("mlp.gate_proj", "ffn_gate"),
                 ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")]
QWEN_KEYS = [lambda w: w.add_head_count_kv(2), lambda w: w.add_key_length(8), lambda w: w.add_value_length(8),
             lambda w: w.add_layer_norm_rms_eps(1e-6), lambda w: w.add_rope_freq_base(10000.0)]
for pool, number in (("last", 3), ("mean", 1)):
    def gguf_qwen3(pool=pool, number=number):
        tokenizer = data.qwen_bpe()
        model = t.Qwen3ForCausalLM(t.Qwen3Config(head_dim=8, **decoder(tokenizer, tie_word_embeddings=True)))
        expected = plain("gguf_source", model, tokenizer, 29, pool=pool, core=model.model)
        tensors = renamed(model.state_dict(), DECODER_NAMES, ("lm_head",))
        expected.model = gguf_file("qwen3", "qwen3", model.config, tensors, number, byte_vocabulary(tokenizer), QWEN_KEYS)
        return expected
    CASES["gguf_qwen3_" + pool] = gguf_qwen3


@case
def gguf_qwen3_rank():
    tokenizer = data.qwen_bpe()
    model = t.Qwen3ForCausalLM(t.Qwen3Config(head_dim=8, **decoder(tokenizer, tie_word_embeddings=True)))
    data.judge("gguf_source", model, tokenizer, 30)
    golden = json.loads((FOLDER / "gguf_source/golden.json").read_text())["judged"]
    tensors = renamed(model.state_dict(), DECODER_NAMES, ("lm_head",))
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    tensors["cls.output.weight"] = tensors["token_embd.weight"][words].contiguous()
    return Expected(gguf_file("qwen3_rank", "qwen3", model.config, tensors, 4, byte_vocabulary(tokenizer), QWEN_KEYS),
                    scores=[one["score"] for one in golden])


def main():
    quire, wanted = sys.argv[1], sys.argv[2:]
    failed = []
    print(f"torch {torch.__version__}, transformers {t.__version__}", flush=True)
    for name, make in CASES.items():
        if wanted and not any(word in name for word in wanted):
            continue
        line = f"{name:42}"
        try:
            expected = make()
            for flags, least, most in ((("--dtype", "float32", "--activation-dtype", "float32"), 0.9999, 2e-3), ((), 0.999, 0.1)):
                with server(quire, expected.model, *expected.flags, *flags) as url:
                    kind, figure = expected.check(url)
                good = figure >= least if kind == "cosine" else figure <= most
                line += f" {kind} {figure:.7f}" + ("" if good else " WRONG")
                if not good and name not in failed:
                    failed.append(name)
        except Exception as error:  # noqa: BLE001  # the next one is tried all the same
            line += f" {type(error).__name__}: {error}"
            failed.append(name)
        print(line, flush=True)
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all equal")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
