/* quire's C ABI: an engine, requests, what they answer. One header, one library (libquire.so: `pkg-config --libs
 * quire`, or find_package(quire) and quire::quire).
 *
 *   quire_engine_options options = {.struct_size = sizeof options, .model = "model.gguf"};
 *   quire_engine* engine = NULL;
 *   quire_error* error = NULL;
 *   if (quire_engine_create(&options, &engine, &error) != QUIRE_OK) ...quire_error_message(error)...
 *
 *   quire_request_options asked = {.struct_size = sizeof asked, .prompt = "Once upon a time"};
 *   quire_request* request = NULL;
 *   if (quire_submit(engine, &asked, &request, &error) != QUIRE_OK) ...
 *   quire_update update = {.struct_size = sizeof update};
 *   while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) fwrite(update.text, 1, update.text_bytes, stdout);
 *   quire_request_destroy(request);
 *   quire_engine_destroy(engine);
 *
 * Structs begin with their size, which says what the caller knows of them: later versions append fields, whose zero
 * means what was before. Set a struct to zero, then its struct_size. Texts are UTF-8. Any number of engines may live in
 * a process. Functions may be called by any thread, those of one request by one thread at a time unless they say
 * otherwise. No function is to be called with an object of a process that has forked since.
 */
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when something that was there changes its meaning or goes; what is added is told by sizes. */
#define QUIRE_ABI_VERSION 1

typedef struct quire_engine quire_engine;
typedef struct quire_request quire_request;
typedef struct quire_error quire_error;

typedef enum quire_code {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1,   /* what was given is wrong, and will be wrong again */
  QUIRE_NOT_FOUND = 2,          /* a named thing does not exist */
  QUIRE_RESOURCE_EXHAUSTED = 3, /* a bound is reached now; may succeed later */
  QUIRE_UNIMPLEMENTED = 4,      /* understood, not built */
  QUIRE_DATA_LOSS = 5,          /* a file is corrupt or truncated */
  QUIRE_CANCELLED = 6,
  QUIRE_DEADLINE_EXCEEDED = 7,
  QUIRE_UNAVAILABLE = 8, /* the engine has stopped or failed */
  QUIRE_INTERNAL = 9     /* a fault of quire's own */
} quire_code;

/* "0.1.0" */
QUIRE_API const char* quire_version(void);
/* QUIRE_ABI_VERSION of the library, to be compared with the header's. */
QUIRE_API int quire_abi_version(void);

/* Errors: functions that can fail return a code and, where `error` is not NULL and the code not QUIRE_OK, give an error
 * that is the caller's to free. Texts live as long as the error. */
QUIRE_API quire_code quire_error_code(const quire_error* error);
QUIRE_API const char* quire_error_message(const quire_error* error);
/* The field at fault ("temperature"); "" when no single one is. */
QUIRE_API const char* quire_error_param(const quire_error* error);
QUIRE_API void quire_error_free(quire_error* error); /* NULL: nothing */

typedef struct quire_engine_options {
  size_t struct_size;
  const char* model;       /* a .gguf file, or a folder with config.json and safetensors */
  const char* config_json; /* NULL, or an object: {"max_model_len": 2048, "dtype": "bfloat16"}; names and defaults are
                              those of `quire serve`'s options, with underscores (docs/c_api.md) */
} quire_engine_options;

/* Loads the model and starts the engine's threads. *engine is set only with QUIRE_OK. */
QUIRE_API quire_code quire_engine_create(const quire_engine_options* options, quire_engine** engine,
                                         quire_error** error);
/* Ends every request with "abort" and the engine's threads. Requests that are left may still be polled, and are still
 * the caller's to destroy. Not from a callback. NULL: nothing. */
QUIRE_API void quire_engine_destroy(quire_engine* engine);
/* Tokens of prompt and answer together. */
QUIRE_API int64_t quire_engine_max_model_len(const quire_engine* engine);

typedef struct quire_request_options {
  size_t struct_size;
  /* One of these three. */
  const char* prompt;           /* text */
  const int32_t* prompt_tokens; /* [num_prompt_tokens], as they are */
  size_t num_prompt_tokens;
  const char* messages_json; /* OpenAI's list of {"role", "content"}, put through the model's chat template */

  const char* sampling_json; /* NULL, or an object: {"temperature": 0, "max_tokens": 64}; names and defaults are those
                                of vLLM's SamplingParams (docs/c_api.md) */
  const char* cache_salt;    /* NULL, or: cached prefixes are shared with requests of the same salt alone */
  double timeout_seconds;    /* until the last token; 0: the engine's */
  int32_t priority;          /* with "scheduling_policy": "priority"; lower goes first */

  const char* lora_name; /* NULL, or an adapter by its name, with "enable_lora": true */
  const char* lora_path; /* NULL, or its folder or file, from which it is loaded under the name when it is first used */

  /* NULL, or: called whenever quire_poll() would give something, on a thread of the engine, perhaps before
   * quire_submit() has returned. Must return soon and call no function of this library: wake whoever polls. */
  void (*on_ready)(void* user);
  void* user;
} quire_request_options;

/* Starts a request; does not wait for its answers. *request is set only with QUIRE_OK, and the caller's to destroy. */
QUIRE_API quire_code quire_submit(quire_engine* engine, const quire_request_options* options, quire_request** request,
                                  quire_error** error);

/* What one answer has newly produced. Pointers are valid until the request's next poll, or its end. */
typedef struct quire_update {
  size_t struct_size;
  int32_t index;    /* of the answer, in [0, n) */
  const char* text; /* never NULL; text_bytes bytes and a zero byte */
  size_t text_bytes;
  const int32_t* tokens; /* [num_tokens]; text may run behind them */
  size_t num_tokens;
  /* Where "logprobs" was asked for, else NULL: of each token first the chosen one, then the likeliest in falling order;
   * rows of tokens with fewer are filled with token -1. */
  const int32_t* logprob_tokens; /* [num_tokens, logprobs_per_token] */
  const float* logprobs;         /* the same shape */
  size_t logprobs_per_token;
  const char*
      finish_reason;     /* NULL, or with the answer's last update: "stop", "length", "repetition", "abort", "error" */
  const char* stop_text; /* NULL, or the stop string that was hit */
  int32_t stop_token;    /* -1, or the token of "stop_token_ids" that was hit */
  const char* error_message; /* of finish_reason "error", else NULL */
  int64_t num_prompt_tokens; /* of the request */
  int64_t num_cached_tokens; /* of these, found in the prefix cache; -1: not known yet */
  double cumulative_logprob; /* of a beam search's answer, else 0 */
  /* Once, where "prompt_logprobs" was asked for, else NULL: of the prompt's tokens but the first, as above. */
  const int32_t* prompt_logprob_tokens; /* [num_prompt_logprobs, prompt_logprobs_per_token] */
  const float* prompt_logprobs;         /* the same shape */
  size_t num_prompt_logprobs;
  size_t prompt_logprobs_per_token;
  /* With the answer's last update where "deterministic" was asked for, else NULL: a hash of its tokens and their
   * log-probabilities, 16 hexadecimal digits. */
  const char* receipt;
} quire_update;

typedef enum quire_poll_result {
  QUIRE_POLL_FINISHED = 0, /* nothing follows */
  QUIRE_POLL_UPDATE = 1,   /* *update was written */
  QUIRE_POLL_NOTHING = 2   /* nothing came within the time */
} quire_poll_result;

/* What came since the last poll, waiting up to so many seconds for it; below 0: as long as it takes. Returns
 * QUIRE_POLL_FINISHED also for a struct_size that is too small for version 1. */
QUIRE_API quire_poll_result quire_poll(quire_request* request, double timeout_seconds, quire_update* update);
/* The request's answers end with "abort", those that are not finished. By any thread. */
QUIRE_API void quire_cancel(quire_request* request);
/* Cancels it, if need be. Its on_ready is not called any more once this has returned. NULL: nothing. */
QUIRE_API void quire_request_destroy(quire_request* request);

#ifdef __cplusplus
}
#endif

#endif
