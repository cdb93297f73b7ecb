#!/usr/bin/env python3
"""The same weights in other clothes: from a GGUF file, another in F16 or F32, or a directory as Hugging Face lays it out.

    convert.py gguf SOURCE TARGET --type f16|f32
    convert.py huggingface SOURCE DIRECTORY
    convert.py facts SOURCE             what a step reads and computes at least, as JSON

Runs in the tools environment that setup.sh makes (gguf, numpy, safetensors). What is quantised is dequantised: every value is exactly the
source's as far as the target's type holds it. The directory is for models of the Llama family with a byte-level BPE vocabulary, float32.
"""

import argparse
import json
import os
import pathlib

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants


def value(reader, key, default=None):
    field = reader.get_field(key)
    return default if field is None else field.contents()


def to_gguf(source, target, numpy_type, file_type):
    """Matrices in the asked type; vectors stay float32, as llama.cpp's own conversion has them."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, value(reader, "general.architecture"))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind,
                             sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(numpy_type if len(tensor.shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
               "output.weight": "lm_head.weight"}


def huggingface_name(name):
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    block, layer, part, kind = name.split(".")
    if block != "blk":
        raise SystemExit(f"error: no place for tensor {name}: this is no model of the Llama family")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def rotation_halves(matrix, num_heads):
    """GGUF keeps a head's rotated pairs side by side (0 1, 2 3, ...), Hugging Face in two halves."""
    rows, columns = matrix.shape
    return matrix.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tokenizer_json(reader):
    if value(reader, "tokenizer.ggml.model") != "gpt2":
        raise SystemExit("error: the vocabulary is no byte-level BPE")
    tokens = value(reader, "tokenizer.ggml.tokens")
    kinds = value(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kinds[index] == gguf.TokenType.CONTROL}
             for index, token in enumerate(tokens)
             if kinds[index] in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        # Digits alone, then GPT-2's pattern: what GGUF calls "smollm".
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: index for index, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in value(reader, "tokenizer.ggml.merges")]},
    }


def config_json(reader, names):
    architecture = value(reader, "general.architecture")
    if architecture != "llama":
        raise SystemExit(f"error: the architecture is {architecture}, expected llama")

    def number(key, default=None):
        found = value(reader, f"{architecture}.{key}", default)
        if found is None:
            raise SystemExit(f"error: the file has no {architecture}.{key}")
        return found

    num_heads = int(number("attention.head_count"))
    embedding = int(number("embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu",
        "hidden_size": embedding, "intermediate_size": int(number("feed_forward_length")),
        "num_hidden_layers": int(number("block_count")), "num_attention_heads": num_heads,
        "num_key_value_heads": int(number("attention.head_count_kv", num_heads)),
        "head_dim": int(number("attention.key_length", embedding // num_heads)),
        "max_position_embeddings": int(number("context_length")),
        "rms_norm_eps": float(number("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(number("rope.freq_base", 10000.0)), "rope_scaling": None, "attention_bias": False,
        "mlp_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": len(value(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": int(value(reader, "tokenizer.ggml.bos_token_id", 0)),
        "eos_token_id": int(value(reader, "tokenizer.ggml.eos_token_id", 0)),
    }


def to_huggingface(source, directory):
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    config = config_json(reader, {tensor.name for tensor in reader.tensors})
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if part in heads:
            values = rotation_halves(values, heads[part])
        tensors[huggingface_name(tensor.name)] = np.ascontiguousarray(values)
    directory.mkdir(parents=True, exist_ok=True)
    tokens = value(reader, "tokenizer.ggml.tokens")
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"],
               "bos_token": tokens[config["bos_token_id"]], "eos_token": tokens[config["eos_token_id"]],
               "chat_template": value(reader, "tokenizer.chat_template"), "clean_up_tokenization_spaces": False}
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer_json(reader)),
                          ("tokenizer_config.json", special)):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    # Last: whoever finds it finds a whole directory.
    save_file(tensors, directory / "model.safetensors.partial", metadata={"format": "pt"})
    os.replace(directory / "model.safetensors.partial", directory / "model.safetensors")


def facts(source):
    """Bytes of weights that a step reads once, and multiply-adds of a token with and without the language model head."""
    reader = GGUFReader(source)
    names = {tensor.name for tensor in reader.tensors}
    head = "output.weight" if "output.weight" in names else "token_embd.weight"
    read = [tensor for tensor in reader.tensors if tensor.name == head or tensor.name != "token_embd.weight"]
    layers = sum(int(tensor.n_elements) for tensor in read if tensor.name != head and len(tensor.shape) > 1)
    return {"weight_bytes": sum(int(tensor.n_bytes) for tensor in read), "flop_per_token": 2 * layers,
            "flop_of_head": 2 * next(int(tensor.n_elements) for tensor in read if tensor.name == head),
            "vocab_size": len(value(reader, "tokenizer.ggml.tokens"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("gguf")
    one.add_argument("source")
    one.add_argument("target")
    one.add_argument("--type", choices=("f16", "f32"), default="f16")
    one = commands.add_parser("huggingface")
    one.add_argument("source")
    one.add_argument("directory", type=pathlib.Path)
    one = commands.add_parser("facts")
    one.add_argument("source")
    options = parser.parse_args()
    if options.command == "facts":
        print(json.dumps(facts(options.source)))
        return
    if options.command == "huggingface":
        to_huggingface(options.source, options.directory)
        return
    partial = options.target + ".partial"
    numpy_type, file_type = {"f16": (np.float16, gguf.LlamaFileType.MOSTLY_F16),
                             "f32": (np.float32, gguf.LlamaFileType.ALL_F32)}[options.type]
    to_gguf(options.source, partial, numpy_type, file_type)
    os.replace(partial, options.target)


if __name__ == "__main__":
    main()
