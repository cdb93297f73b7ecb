#!/usr/bin/env python3
"""Makes tests/data/embeddings: tiny random models that embed, classify and rerank, one of each family, with what the
reference gives for some texts (golden.json). Weights and arithmetic are float32. Run by hand; needs torch,
transformers, tokenizers and gguf: made with torch 2.15.0 and transformers 5.24.0; other modules by
sentence-transformers 6.2.0.

    make_embedding_data.py [FOLDER]
"""
import json
import pathlib
import random
import shutil
import sys

import gguf
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/data/embeddings"

TEXTS = [
    "The cat sat on the mat.",
    "A dog ran across the long green field, and nobody could say where it was going.",
    "Café au lait, please!",
    "no",
    "Rivers run to the sea; mountains stand where they are. " * 3,
    "今日は good weather",
    "",
]
PAIRS = [("where is the cat", "The cat sat on the mat."), ("where is the cat", "Rivers run to the sea."),
         ("a dog", "A dog ran across the long green field, and nobody could say where it was going.")]
CORPUS = ["yes", "no"] * 50 + TEXTS + [text for pair in PAIRS for text in pair] + [
    "yes no the of and to in is it was for on are as with his they at be this have from or one had by word but not what",
    "all were we when your can said there use an each which she do how their if will up other about out many then them"]


def fast(tokenizer, **special):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def wordpiece():
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=180, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.decoder = decoders.WordPiece()
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
    return fast(tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
                mask_token="[MASK]")


def unigram():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=180, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], unk_token="<unk>"))
    bos, eos = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", bos), ("</s>", eos)])
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
                sep_token="</s>", mask_token="<mask>")


def byte_bpe(specials, post=None, **names):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=330, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if post is not None:
        tokenizer.post_processor = post(tokenizer)
    return fast(tokenizer, **names)


def roberta_bpe():
    return byte_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
                    lambda t: processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>"))),
                    bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
                    sep_token="</s>", mask_token="<mask>")


def modern_bpe():
    return byte_bpe(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                    lambda t: processors.TemplateProcessing(
                        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
                        special_tokens=[("[CLS]", t.token_to_id("[CLS]")), ("[SEP]", t.token_to_id("[SEP]"))]),
                    unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")


def qwen_bpe():
    """With the end token behind a text, as Qwen3-Embedding's."""
    return byte_bpe(["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                    lambda t: processors.TemplateProcessing(
                        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))]),
                    eos_token="<|endoftext|>", pad_token="<|endoftext|>")


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            drawn = torch.randn(values.shape, generator=generator)
            is_norm = values.dim() == 1 and name.endswith("weight")
            values.copy_(1 + 0.2 * drawn if is_norm else drawn * (0.3 if values.dim() == 1 else 1.5 / values.shape[-1] ** 0.5))


def write_sentence_files(folder, pooling, normalize, size, max_length=None, prompts=None):
    kind = "sentence_transformers.models."
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind + "Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": kind + "Pooling"}]
    if normalize:
        modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": kind + "Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules, indent=1))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({
        "word_embedding_dimension": size, "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False, "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": pooling == "last", "include_prompt": True}, indent=1))
    if max_length:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length}))
    if prompts:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))


def tells_segments(model):
    return "Classification" in type(model).__name__ and type(model).__name__.startswith(("Bert", "NomicBert"))


def save(name, model, tokenizer, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    randomise(model, seed)
    model.save_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast",
         # By itself a tokenizer of no class in particular does not say which text of a pair a token is of.
         **({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if tells_segments(model) else {}),
         **{key: str(getattr(tokenizer, key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token",
                                                          "sep_token", "mask_token") if getattr(tokenizer, key, None)}}))
    return folder


def pooled(model, tokenizer, text, pooling):
    ids = tokenizer(text)["input_ids"]
    if not ids:
        return None
    with torch.no_grad():
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    vector = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    return {"text": text, "ids": ids, "vector": vector.tolist()}


def write_golden(folder, golden):
    (folder / "golden.json").write_text(json.dumps(golden))


def embedding_model(name, model, tokenizer, pooling, seed, normalize=True, sentence=True, strip=None, **files):
    folder = save(name, model, tokenizer, seed)
    if sentence:
        write_sentence_files(folder, pooling, normalize, model.config.hidden_size, **files)
    if strip:  # names without the name of the whole, as sentence-transformers writes them
        weights = {key.removeprefix(strip): value for key, value in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    core = model.model if hasattr(model, "lm_head") else model
    cases = [case for text in TEXTS if (case := pooled(core.eval(), tokenizer, text, pooling)) is not None]
    write_golden(folder, {"normalize": normalize, "texts": cases})


def with_modules(name, source, modes, dense=(), normalize=True, residual=False):
    """The model in `source` with other modules behind it; vectors by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    transformer = Transformer(str(OUT / source))
    size = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(size, pooling_mode=modes)]
    size *= 1 if isinstance(modes, str) else len(modes)
    for out, bias, activation in dense:
        modules.append(Dense(size, out, bias=bias, activation_function=activation, use_residual=residual))
        size = out
    model = SentenceTransformer(modules=modules + ([Normalize()] if normalize else []))
    model.save(str(folder), create_model_card=False)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(OUT / source / file, folder / file)
    cases = []
    for text in TEXTS:
        if ids := transformer.tokenizer(text)["input_ids"]:
            cases.append({"text": text, "ids": ids, "vector": model.encode([text])[0].tolist()})
    write_golden(folder, {"normalize": normalize, "texts": cases})


GGUF_NAMES = [("embeddings.word_embeddings", "token_embd"), ("embeddings.position_embeddings", "position_embd"),
              ("embeddings.token_type_embeddings", "token_types"), ("embeddings.LayerNorm", "token_embd_norm"),
              ("encoder.layer.", "blk."), ("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
              ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
              ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
              ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm")]


def write_gguf(source, name):
    """The model in `source` as llama.cpp's converter writes one of BERT."""
    folder = OUT / source
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(OUT / name, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens, kinds = [], []
    for token in sorted(vocabulary, key=vocabulary.get):
        special = token.startswith("[") and token.endswith("]") and len(token) > 2
        tokens.append(token if special else token[2:] if token.startswith("##") else "\u2581" + token)
        kinds.append(gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_unk_token_id(vocabulary["[UNK]"])
    writer.add_sep_token_id(vocabulary["[SEP]"])
    writer.add_uint32("tokenizer.ggml.cls_token_id", vocabulary["[CLS]"])
    for key, values in load_file(folder / "model.safetensors").items():
        if key.startswith("pooler."):
            continue
        for old, new in GGUF_NAMES:
            key = key.replace(old, new)
        writer.add_tensor(key, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def scores_of(model, inputs):
    with torch.no_grad():
        return model(**{key: torch.tensor([value]) for key, value in inputs.items()
                        if key in ("input_ids", "token_type_ids")}).logits[0].tolist()


def classifier(name, model, tokenizer, seed, pairs=True):
    """Logits, as they are."""
    folder = save(name, model, tokenizer, seed)
    model.eval()
    types = getattr(model.config, "type_vocab_size", 0) or 0
    golden = {"texts": [], "pairs": []}

    def encode(*texts):
        encoded = tokenizer.backend_tokenizer.encode(*texts)
        return {"input_ids": encoded.ids, **({"token_type_ids": encoded.type_ids} if types > 1 else {})}

    for text in TEXTS:
        inputs = encode(text)
        if inputs["input_ids"]:
            golden["texts"].append({"text": text, "ids": inputs["input_ids"], "logits": scores_of(model, inputs)})
    for first, second in PAIRS if pairs else []:
        inputs = encode(first, second)
        golden["pairs"].append({"first": first, "second": second, "ids": inputs["input_ids"],
                                "logits": scores_of(model, inputs)})
    write_golden(folder, golden)


def judge(name, model, tokenizer, seed):
    """Qwen3-Reranker's way: the logits of two words behind a prompt of its own."""
    folder = save(name, model, tokenizer, seed)
    model.eval()
    before = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
              'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a '
              "web search query, retrieve relevant passages that answer the query\n<Query>: ")
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    golden = []
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    for first, second in PAIRS:
        ids = encode(before) + encode(first) + encode("\n<Document>: ") + encode(second) + encode(after)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        probability = torch.softmax(logits[torch.tensor(words)].double(), 0)[1].item()
        golden.append({"first": first, "second": second, "ids": ids, "score": probability})
    write_golden(folder, {"judged": golden})


def main():
    t = transformers
    bert = lambda tok, **more: t.BertConfig(vocab_size=len(tok), max_position_embeddings=128, **SMALL, **more)  # noqa: E731
    tok = wordpiece()
    embedding_model("bert_mean", t.BertModel(bert(tok), add_pooling_layer=True), tok, "mean", 1, max_length=96,
                    prompts={"query": "query: ", "document": ""})
    write_gguf("bert_mean", "bert_mean.gguf")
    embedding_model("bert_cls", t.BertModel(bert(tok), add_pooling_layer=False), tok, "cls", 2, normalize=False)
    embedding_model("bert_plain", t.BertModel(bert(tok, hidden_act="relu")), tok, "cls", 3, sentence=False)
    classifier("bert_classes", t.BertForSequenceClassification(bert(tok, num_labels=3)), tok, 4)
    classifier("bert_reranker", t.BertForSequenceClassification(bert(tok, num_labels=1)), tok, 5)

    tok = unigram()
    xlm = lambda **more: t.XLMRobertaConfig(vocab_size=len(tok), max_position_embeddings=130, type_vocab_size=1, **SMALL,  # noqa: E731
                                            pad_token_id=1, bos_token_id=0, eos_token_id=2, **more)
    embedding_model("xlm_roberta", t.XLMRobertaModel(xlm()), tok, "cls", 6)
    classifier("xlm_roberta_reranker", t.XLMRobertaForSequenceClassification(xlm(num_labels=1)), tok, 7)

    tok = roberta_bpe()
    embedding_model("roberta", t.RobertaModel(t.RobertaConfig(
        vocab_size=len(tok), max_position_embeddings=130, type_vocab_size=1, **SMALL, pad_token_id=1, bos_token_id=0,
        eos_token_id=2)), tok, "mean", 8)

    # Positions begin behind the padding's number, whatever that is.
    embedding_model("roberta_padded", t.RobertaModel(t.RobertaConfig(
        vocab_size=len(tok), max_position_embeddings=140, type_vocab_size=1, **SMALL, pad_token_id=4, bos_token_id=0,
        eos_token_id=2)), tok, "cls", 17)

    tok = modern_bpe()
    modern = lambda **more: t.ModernBertConfig(vocab_size=len(tok), max_position_embeddings=128, **{**SMALL, "num_hidden_layers": 4},  # noqa: E731
                                               local_attention=8, global_attn_every_n_layers=3, pad_token_id=0,
                                               cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
                                               attn_implementation="eager", **more)
    embedding_model("modern_bert", t.ModernBertModel(modern()), tok, "mean", 9)
    classifier("modern_bert_reranker", t.ModernBertForSequenceClassification(modern(num_labels=1, classifier_pooling="mean")),
               tok, 10)
    classifier("modern_bert_biased", t.ModernBertForSequenceClassification(modern(
        num_labels=3, classifier_pooling="cls", classifier_bias=True, classifier_activation="silu", norm_bias=True,
        attention_bias=True, mlp_bias=True)), tok, 18, pairs=False)
    if hasattr(t, "NomicBertModel"):
        tok = wordpiece()
        classifier("nomic_bert_reranker", t.NomicBertForSequenceClassification(t.NomicBertConfig(
            vocab_size=len(tok), max_position_embeddings=128, num_labels=1, head_dim=16, **SMALL)), tok, 19)
        embedding_model("nomic_bert", t.NomicBertModel(t.NomicBertConfig(vocab_size=len(tok), max_position_embeddings=128,
                                                                       **SMALL)), tok, "mean", 11)

    tok = qwen_bpe()
    decoder = {"vocab_size": len(tok), "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None,
               "eos_token_id": 0, "pad_token_id": 0, **SMALL}
    embedding_model("qwen3_embedding", t.Qwen3ForCausalLM(t.Qwen3Config(head_dim=8, tie_word_embeddings=True, **decoder)),
                    tok, "last", 12, strip="model.", prompts={"query": "Instruct: find\nQuery:"})
    embedding_model("mistral_mean", t.MistralModel(t.MistralConfig(head_dim=8, sliding_window=None, **decoder)), tok, "mean",
                    13, normalize=False)
    # The reference takes the last token that is no padding; here no token is.
    decoder["pad_token_id"] = None
    classifier("qwen2_classes", t.Qwen2ForSequenceClassification(t.Qwen2Config(num_labels=4, **decoder)), tok, 14,
               pairs=False)
    classifier("llama_reward", t.LlamaForSequenceClassification(t.LlamaConfig(num_labels=1, **decoder)), tok, 15, pairs=False)
    with_modules("bert_dense", "bert_mean", "mean", [(48, True, torch.nn.Tanh()), (24, False, None)])
    torch.manual_seed(20)
    with_modules("bert_residual", "bert_mean", "mean", [(32, True, torch.nn.Tanh()), (24, False, None)], residual=True)
    with_modules("bert_joined", "bert_mean", ("cls", "max", "mean", "mean_sqrt_len_tokens"), normalize=False)
    with_modules("qwen3_weighted", "qwen3_embedding", ("weightedmean", "lasttoken"))
    judge("qwen3_reranker", t.Qwen3ForCausalLM(t.Qwen3Config(head_dim=8, tie_word_embeddings=True, **decoder)), tok, 16)


if __name__ == "__main__":
    random.seed(0)
    main()
