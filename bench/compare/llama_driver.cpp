// Drives llama.cpp's library for bench/compare; linked by setup.sh. Prompts come as token ids, one prompt a line.
//
//   llama-driver speed MODEL THREADS UBATCH FLASH KV PROMPTS MEASURE...
//       MEASURE is start:TOKENS (a prompt's first token, nothing warmed up), prefill:TOKENS or
//       decode:SEQUENCES:INPUT:OUTPUT (after the prompts); a line "MEASURE SECONDS TOKENS" as soon as each is done.
//       FLASH is on or off, KV f32, f16 or q8_0.
//   llama-driver quantize SOURCE TARGET TYPE
//       TYPE as Q8_0 or Q4_K_M.
//   llama-driver score MODEL THREADS IDS TOP
//       a line of IDS is "P id id id ...": the first P are computed as one batch, the rest one at a time, as in
//       decoding. One line of JSON each: the log-probability of every token after the first, and after every token the
//       TOP likeliest.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Ids = std::vector<llama_token>;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "llama-driver: %s\n", message.c_str());
  std::exit(1);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Ids> read_ids(const char* path) {
  std::ifstream file(path);
  if (!file) fail(std::string("cannot read ") + path);
  std::vector<Ids> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Ids ids;
    for (llama_token id; words >> id;) ids.push_back(id);
    if (!ids.empty()) lines.push_back(std::move(ids));
  }
  return lines;
}

llama_model* load(const char* path) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (!model) fail(std::string("cannot load ") + path);
  return model;
}

struct ContextOptions {
  int threads = 1;
  int max_sequences = 1;
  int tokens_per_sequence = 2048;
  int ubatch = 512;
  bool flash = true;
  ggml_type kv = GGML_TYPE_F16;
};

llama_context* make_context(llama_model* model, const ContextOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.max_sequences * options.tokens_per_sequence);
  params.n_batch = static_cast<uint32_t>(std::max(2048, options.ubatch));
  params.n_ubatch = static_cast<uint32_t>(options.ubatch);
  params.n_seq_max = static_cast<uint32_t>(options.max_sequences);
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  params.flash_attn_type = options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = options.kv;
  params.type_v = options.kv;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail("cannot make a context");
  return context;
}

// A batch whose tokens each name their place, their sequence and whether logits are wanted.
class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch_.n_tokens = 0; }
  int size() const { return batch_.n_tokens; }
  // Returns the token's index, by which its logits are asked for.
  int add(llama_token id, int position, int sequence, bool logits) {
    const int index = batch_.n_tokens++;
    batch_.token[index] = id;
    batch_.pos[index] = position;
    batch_.n_seq_id[index] = 1;
    batch_.seq_id[index][0] = sequence;
    batch_.logits[index] = logits ? 1 : 0;
    return index;
  }
  void compute(llama_context* context) {
    if (llama_decode(context, batch_) != 0) fail("llama_decode failed");
    llama_synchronize(context);
  }

 private:
  llama_batch batch_;
};

llama_token likeliest(llama_context* context, int index, int vocab_size) {
  const float* logits = llama_get_logits_ith(context, index);
  return static_cast<llama_token>(std::max_element(logits, logits + vocab_size) - logits);
}

const Ids& prompt(const std::vector<Ids>& prompts, int index, int length) {
  if (index >= static_cast<int>(prompts.size()) || static_cast<int>(prompts[index].size()) < length) {
    fail("too few or too short prompts");
  }
  return prompts[index];
}

// Computes the prompts, whole prompts together up to the batch's capacity; returns each one's first token.
Ids prefill(llama_context* context, Batch& batch, int capacity, const std::vector<Ids>& prompts, int sequences,
            int input, int vocab_size) {
  Ids next(static_cast<size_t>(sequences));
  std::vector<std::pair<int, int>> wanted;  // sequence, index in the batch
  const auto flush = [&] {
    if (batch.size() == 0) return;
    batch.compute(context);
    for (const auto& [sequence, index] : wanted) next[sequence] = likeliest(context, index, vocab_size);
    wanted.clear();
    batch.clear();
  };
  batch.clear();
  for (int sequence = 0; sequence < sequences; ++sequence) {
    if (batch.size() + input > capacity) flush();
    const Ids& ids = prompt(prompts, sequence, input);
    for (int i = 0; i < input; ++i) {
      const int index = batch.add(ids[i], i, sequence, i == input - 1);
      if (i == input - 1) wanted.emplace_back(sequence, index);
    }
  }
  flush();
  return next;
}

void measure(llama_model* model, ContextOptions options, const std::vector<Ids>& prompts, const std::string& what) {
  int sequences = 1;
  int input = 0;
  int output = 1;
  const bool decode = std::sscanf(what.c_str(), "decode:%d:%d:%d", &sequences, &input, &output) == 3;
  const bool start = std::sscanf(what.c_str(), "start:%d", &input) == 1;
  if (!decode && !start && std::sscanf(what.c_str(), "prefill:%d", &input) != 1) fail("no such measure: " + what);

  const int vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
  options.max_sequences = sequences;
  options.tokens_per_sequence = (input + output + 255) / 256 * 256;
  llama_context* context = make_context(model, options);
  const int capacity = static_cast<int>(llama_n_batch(context));
  Batch batch(std::max(capacity, input));

  // A first time, for pages and buffers.
  if (!start) prefill(context, batch, capacity, prompts, 1, input, vocab_size);
  llama_memory_clear(llama_get_memory(context), true);

  double begin = seconds_now();
  Ids next = prefill(context, batch, capacity, prompts, sequences, input, vocab_size);
  if (decode) {
    begin = seconds_now();
    for (int step = 1; step < output; ++step) {
      batch.clear();
      for (int sequence = 0; sequence < sequences; ++sequence) {
        batch.add(next[sequence], input + step - 1, sequence, true);
      }
      batch.compute(context);
      for (int sequence = 0; sequence < sequences; ++sequence)
        next[sequence] = likeliest(context, sequence, vocab_size);
    }
  }
  const double seconds = seconds_now() - begin;
  std::printf("%s %.6f %d\n", what.c_str(), seconds, decode ? sequences * (output - 1) : input);
  std::fflush(stdout);
  llama_free(context);
}

int speed(int count, char** arguments) {
  if (count < 8) fail("speed MODEL THREADS UBATCH FLASH KV PROMPTS MEASURE...");
  ContextOptions options;
  options.threads = std::atoi(arguments[3]);
  options.ubatch = std::atoi(arguments[4]);
  options.flash = std::strcmp(arguments[5], "on") == 0;
  const std::string kv = arguments[6];
  options.kv = kv == "f32" ? GGML_TYPE_F32 : kv == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  llama_model* model = load(arguments[2]);
  const std::vector<Ids> prompts = read_ids(arguments[7]);
  for (int i = 8; i < count; ++i) measure(model, options, prompts, arguments[i]);
  return 0;
}

// What follows one token: log-probabilities from logits.
class Distribution {
 public:
  Distribution(const float* logits, int size) : logits_(logits), size_(size) {
    const float largest = *std::max_element(logits, logits + size);
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
    log_sum_ = largest + std::log(sum);
  }
  double logprob(llama_token id) const { return logits_[id] - log_sum_; }
  void print_top(int count) const {
    Ids order(static_cast<size_t>(size_));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + count, order.end(),
                      [this](llama_token a, llama_token b) { return logits_[a] > logits_[b]; });
    std::printf("[");
    for (int i = 0; i < count; ++i) std::printf("%s[%d,%.6f]", i ? "," : "", order[i], logprob(order[i]));
    std::printf("]");
  }

 private:
  const float* logits_;
  int size_;
  double log_sum_;
};

void score_line(llama_context* context, int vocab_size, const Ids& line, int top) {
  const Ids ids(line.begin() + 1, line.end());
  const int total = static_cast<int>(ids.size());
  const int together = std::min<int>(line[0], total);
  llama_memory_clear(llama_get_memory(context), true);
  Batch batch(std::max(together, 1));
  std::vector<double> logprobs;
  std::printf("{\"top\":[");
  const auto take = [&](int position, int index) {
    const Distribution after(llama_get_logits_ith(context, index), vocab_size);
    if (position + 1 < total) logprobs.push_back(after.logprob(ids[position + 1]));
    if (top == 0) return;
    if (position > 0) std::printf(",");
    after.print_top(top);
  };
  for (int i = 0; i < together; ++i) batch.add(ids[i], i, 0, true);
  batch.compute(context);
  for (int i = 0; i < together; ++i) take(i, i);
  for (int i = together; i < total; ++i) {
    batch.clear();
    batch.add(ids[i], i, 0, true);
    batch.compute(context);
    take(i, 0);
  }
  std::printf("],\"logprobs\":[");
  for (size_t i = 0; i < logprobs.size(); ++i) std::printf("%s%.6f", i ? "," : "", logprobs[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}

int score(int count, char** arguments) {
  if (count != 6) fail("score MODEL THREADS IDS TOP");
  llama_model* model = load(arguments[2]);
  const std::vector<Ids> lines = read_ids(arguments[4]);
  size_t longest = 0;
  for (const Ids& line : lines) longest = std::max(longest, line.size());
  ContextOptions options;
  options.threads = std::atoi(arguments[3]);
  options.tokens_per_sequence = static_cast<int>((longest + 255) / 256 * 256);
  if (longest > 2049) fail("a line has more than 2048 tokens");
  llama_context* context = make_context(model, options);
  const int vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (const Ids& line : lines) score_line(context, vocab_size, line, std::atoi(arguments[5]));
  return 0;
}

int quantize(int count, char** arguments) {
  if (count != 5) fail("quantize SOURCE TARGET TYPE");
  static const std::map<std::string, llama_ftype> kTypes = {
      {"BF16", LLAMA_FTYPE_MOSTLY_BF16},     {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
      {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},     {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
      {"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},     {"Q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
      {"Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K},     {"Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M},
      {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M}, {"Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M},
      {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},     {"IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL},
      {"IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS}};
  const auto type = kTypes.find(arguments[4]);
  if (type == kTypes.end()) fail(std::string("no such type: ") + arguments[4]);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = type->second;
  params.nthread = 1;
  params.allow_requantize = true;
  if (llama_model_quantize(arguments[2], arguments[3], &params) != 0) fail("llama_model_quantize failed");
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "speed") return speed(count, arguments);
  if (mode == "score") return score(count, arguments);
  if (mode == "quantize") return quantize(count, arguments);
  fail("expected speed, score or quantize");
}
