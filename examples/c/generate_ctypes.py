"""The C ABI from Python's ctypes, with nothing installed but libquire.so.

    python generate_ctypes.py LIBQUIRE.SO MODEL [TOKEN...]
"""

import ctypes
import json
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p, sizeof


class EngineOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("model", c_char_p), ("config_json", c_char_p)]


class RequestOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("prompt", c_char_p), ("prompt_tokens", POINTER(c_int32)),
                ("num_prompt_tokens", c_size_t), ("messages_json", c_char_p), ("sampling_json", c_char_p),
                ("cache_salt", c_char_p), ("timeout_seconds", c_double), ("priority", c_int32),
                ("lora_name", c_char_p), ("lora_path", c_char_p),
                ("on_ready", c_void_p), ("user", c_void_p)]


class Update(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("index", c_int32), ("text", c_char_p), ("text_bytes", c_size_t),
                ("tokens", POINTER(c_int32)), ("num_tokens", c_size_t), ("logprob_tokens", POINTER(c_int32)),
                ("logprobs", POINTER(c_float)), ("logprobs_per_token", c_size_t), ("finish_reason", c_char_p),
                ("stop_text", c_char_p), ("stop_token", c_int32), ("error_message", c_char_p),
                ("num_prompt_tokens", c_int64), ("num_cached_tokens", c_int64), ("cumulative_logprob", c_double)]


FINISHED, UPDATE, NOTHING = range(3)


def load(path):
    quire = ctypes.CDLL(path)
    quire.quire_engine_create.argtypes = [POINTER(EngineOptions), POINTER(c_void_p), POINTER(c_void_p)]
    quire.quire_engine_destroy.argtypes = [c_void_p]
    quire.quire_submit.argtypes = [c_void_p, POINTER(RequestOptions), POINTER(c_void_p), POINTER(c_void_p)]
    quire.quire_poll.argtypes = [c_void_p, c_double, POINTER(Update)]
    quire.quire_request_destroy.argtypes = [c_void_p]
    quire.quire_error_message.argtypes = [c_void_p]
    quire.quire_error_message.restype = c_char_p
    quire.quire_error_free.argtypes = [c_void_p]
    quire.quire_abi_version.restype = c_int
    if quire.quire_abi_version() != 1:
        raise RuntimeError(f"{path} has version {quire.quire_abi_version()} of the ABI; this program knows 1")
    return quire


def call(quire, function, *arguments):
    error = c_void_p()
    if function(*arguments, byref(error)) != 0:
        message = quire.quire_error_message(error).decode()
        quire.quire_error_free(error)
        raise RuntimeError(message)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    quire = load(sys.argv[1])
    tokens = [int(token) for token in sys.argv[3:]]
    config = {"skip_tokenizer_init": True, "kv_cache_memory_bytes": 4 << 20} if tokens else {}

    engine, request = c_void_p(), c_void_p()
    options = EngineOptions(sizeof(EngineOptions), sys.argv[2].encode(), json.dumps(config).encode())
    call(quire, quire.quire_engine_create, byref(options), byref(engine))

    asked = RequestOptions(struct_size=sizeof(RequestOptions),
                           sampling_json=json.dumps({"temperature": 0, "max_tokens": 16}).encode())
    if tokens:
        asked.prompt_tokens, asked.num_prompt_tokens = (c_int32 * len(tokens))(*tokens), len(tokens)
    else:
        asked.prompt = b"The capital of France is"
    call(quire, quire.quire_submit, engine, byref(asked), byref(request))

    update = Update(struct_size=sizeof(Update))
    while quire.quire_poll(request, -1, byref(update)) == UPDATE:
        text = ctypes.string_at(update.text, update.text_bytes).decode()
        print(text or update.tokens[:update.num_tokens], end="", flush=True)
        if update.finish_reason:
            print(f" [{update.finish_reason.decode()}]")
    quire.quire_request_destroy(request)
    quire.quire_engine_destroy(engine)


if __name__ == "__main__":
    main()
