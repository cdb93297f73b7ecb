/* One prompt, streamed; then three in one batch, polled by turns.
 *   cc generate.c $(pkg-config --cflags --libs quire) -o generate && ./generate MODEL [TOKEN...]
 * Where token ids are given they are the prompt, for models without a tokenizer. */
#include <quire/quire.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_TOKENS 64

static int failed(quire_error* error) {
  fprintf(stderr, "%s\n", quire_error_message(error));
  quire_error_free(error);
  return 1;
}

static void show(const quire_update* update) {
  if (update->text_bytes > 0) {
    fwrite(update->text, 1, update->text_bytes, stdout);
  } else {
    for (size_t i = 0; i < update->num_tokens; ++i) printf("%d ", update->tokens[i]);
  }
  if (update->finish_reason != NULL) printf("[%s]\n", update->finish_reason);
  fflush(stdout);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: generate MODEL [TOKEN...]\n");
    return 2;
  }
  int32_t tokens[MOST_TOKENS];
  size_t num_tokens = 0;
  for (int i = 2; i < argc && num_tokens < MOST_TOKENS; ++i) tokens[num_tokens++] = atoi(argv[i]);

  quire_error* error = NULL;
  quire_engine* engine = NULL;
  const quire_engine_options options = {
      .struct_size = sizeof options,
      .model = argv[1],
      .config_json = num_tokens > 0 ? "{\"skip_tokenizer_init\": true, \"kv_cache_memory_bytes\": 4194304}" : NULL,
  };
  if (quire_engine_create(&options, &engine, &error) != QUIRE_OK) return failed(error);

  quire_request_options asked = {.struct_size = sizeof asked,
                                 .sampling_json = "{\"temperature\": 0, \"max_tokens\": 16}"};
  if (num_tokens > 0) {
    asked.prompt_tokens = tokens;
    asked.num_prompt_tokens = num_tokens;
  } else {
    asked.prompt = "The capital of France is";
  }
  quire_request* request = NULL;
  if (quire_submit(engine, &asked, &request, &error) != QUIRE_OK) return failed(error);
  quire_update update = {.struct_size = sizeof update};
  while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) show(&update);
  quire_request_destroy(request);

  quire_request* requests[3];
  for (int i = 0; i < 3; ++i) {
    if (quire_submit(engine, &asked, &requests[i], &error) != QUIRE_OK) return failed(error);
  }
  for (int left = 3; left > 0;) {
    left = 0;
    for (int i = 0; i < 3; ++i) {
      const quire_poll_result result = quire_poll(requests[i], 0.01, &update);
      if (result != QUIRE_POLL_FINISHED) ++left;
      if (result == QUIRE_POLL_UPDATE && update.finish_reason != NULL) printf("%d: [%s]\n", i, update.finish_reason);
    }
  }
  for (int i = 0; i < 3; ++i) quire_request_destroy(requests[i]);
  quire_engine_destroy(engine);
  return 0;
}
