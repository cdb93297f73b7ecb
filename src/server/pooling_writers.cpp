#include "server/pooling_writers.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/pooling.h"
#include "server/json_text.h"

namespace quire::server {
namespace {

void append_numbers(const std::vector<float>& numbers, std::string& out) {
  out += '[';
  append_json_list(out, numbers, [&](float number) { append_json(out, number); });
  out += ']';
}

void append_base64(const std::vector<float>& numbers, std::string& out) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes(numbers.size() * sizeof(float));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < left ? bytes[i + j] : 0u);
    for (size_t j = 0; j < 4; ++j) out += j <= left ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
}

void append_member(std::string_view name, std::string_view text, std::string& out) {
  append_json(out, name);
  out += ':';
  append_json(out, text);
}

// Of an answer with a list: its head up to the list, and what comes behind.
std::string head_of(const PoolingAnswerContext& context) {
  std::string out = "{";
  append_member("id", context.id, out);
  out += ",\"object\":\"list\",\"created\":";
  append_json(out, context.created);
  out += ',';
  append_member("model", context.model, out);
  out += ",\"data\":[";
  return out;
}

void append_usage(int64_t num_tokens, std::string& out) {
  out += "\"usage\":{\"prompt_tokens\":";
  append_json(out, num_tokens);
  out += ",\"total_tokens\":";
  append_json(out, num_tokens);
  out += ",\"completion_tokens\":0,\"prompt_tokens_details\":null}}";
}

void append_index(size_t index, std::string& out) {
  out += "{\"index\":";
  append_json(out, index);
}

}  // namespace

void PoolingListWriter::take(size_t text, std::vector<float> numbers) {
  std::string& entry = entries_[text];
  append_index(text, entry);
  write(std::move(numbers), entry);
  entry += '}';
}

HttpResponse PoolingListWriter::whole(int64_t num_tokens) {
  std::string body = head_of(context_);
  size_t bytes = body.size() + 256;
  for (const std::string& entry : entries_) bytes += entry.size() + 1;
  body.reserve(bytes);
  bool first = true;
  for (std::string& entry : entries_) {
    if (!std::exchange(first, false)) body += ',';
    body += entry;
    entry = {};
  }
  body += "],";
  append_usage(num_tokens, body);
  return {200, "application/json", {}, std::move(body)};
}

void EmbeddingsWriter::write(std::vector<float> numbers, std::string& out) const {
  if (form_.activation) {
    engine::activate_scores(numbers, *form_.activation);
  } else {
    engine::finish_embedding(numbers, form_.dimensions, form_.normalize);
  }
  out += form_.is_pooling ? ",\"object\":\"pooling\",\"data\":" : ",\"object\":\"embedding\",\"embedding\":";
  if (!form_.base64) return append_numbers(numbers, out);
  out += '"';
  append_base64(numbers, out);
  out += '"';
}

void CohereEmbedWriter::take(size_t text, std::vector<float> numbers) {
  engine::finish_embedding(numbers, answer_.dimensions, answer_.normalize);
  vectors_[text] = std::move(numbers);
}

// Eight signs a byte, the first highest; where bytes have signs 128 is taken off.
void CohereEmbedWriter::write(CohereEmbedRequest::Form form, const std::vector<float>& vector, std::string& out) const {
  using Form = CohereEmbedRequest::Form;
  if (form == Form::kFloat) return append_numbers(vector, out);
  if (form == Form::kBase64) {
    out += '"';
    append_base64(vector, out);
    out += '"';
    return;
  }
  std::vector<int> bytes((vector.size() + 7) / 8);
  for (size_t i = 0; i < vector.size(); ++i) bytes[i / 8] |= (vector[i] > 0 ? 1 : 0) << (7 - i % 8);
  out += '[';
  append_json_list(out, bytes, [&](int byte) { append_json(out, form == Form::kBinary ? byte - 128 : byte); });
  out += ']';
}

HttpResponse CohereEmbedWriter::whole(int64_t num_tokens) {
  std::string body = "{";
  append_member("id", context_.id, body);
  const auto append_vectors = [&](CohereEmbedRequest::Form form) {
    body += '[';
    append_json_list(body, vectors_, [&](const std::vector<float>& vector) { write(form, vector, body); });
    body += ']';
  };
  body += ",\"embeddings\":";
  if (answer_.forms.empty()) {
    append_vectors(CohereEmbedRequest::Form::kFloat);
  } else {
    body += '{';
    append_json_list(body, answer_.forms, [&](CohereEmbedRequest::Form form) {
      append_json(body, name_of(form));
      body += ':';
      append_vectors(form);
    });
    body += '}';
  }
  body += ",\"texts\":[";
  append_json_list(body, answer_.texts, [&](const std::string& text) { append_json(body, std::string_view(text)); });
  body += "],\"response_type\":";
  append_json(body, std::string_view(answer_.forms.empty() ? "embeddings_floats" : "embeddings_by_type"));
  body += ",\"meta\":{\"api_version\":{\"version\":";
  append_json(body, std::string_view(answer_.second_version ? "2" : "1"));
  body += "},\"billed_units\":{\"input_tokens\":";
  append_json(body, num_tokens);
  body += "}}}";
  return {200, "application/json", {}, std::move(body)};
}

void ClassesWriter::write(std::vector<float> numbers, std::string& out) const {
  engine::activate_scores(numbers, activation_);
  const auto best = static_cast<size_t>(std::ranges::max_element(numbers) - numbers.begin());
  out += ",\"label\":";
  if (best < labels_.size()) {
    append_json(out, labels_[best]);
  } else {
    out += "null";
  }
  out += ",\"probs\":";
  append_numbers(numbers, out);
  out += ",\"num_classes\":";
  append_json(out, numbers.size());
}

void PairsWriter::take(size_t text, std::vector<float> numbers) {
  if (form_.activation) {
    engine::activate_scores(numbers, *form_.activation);
  } else {
    engine::finish_embedding(numbers, 0, /*normalize=*/true);
  }
  numbers_[text] = std::move(numbers);
}

std::vector<float> PairsWriter::scores() const {
  std::vector<float> scores;
  if (form_.activation) {
    for (const std::vector<float>& numbers : numbers_) scores.push_back(numbers.front());
  } else {
    for (const auto& [a, b] : form_.places) scores.push_back(engine::cosine(numbers_[a], numbers_[b]));
  }
  return scores;
}

HttpResponse ScoresWriter::whole(int64_t num_tokens) {
  std::string body = head_of(context_);
  const std::vector<float> all = scores();
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  append_json_list(body, order, [&](size_t index) {
    append_index(index, body);
    body += ",\"object\":\"score\",\"score\":";
    append_json(body, all[index]);
    body += '}';
  });
  body += "],";
  append_usage(num_tokens, body);
  return {200, "application/json", {}, std::move(body)};
}

HttpResponse RankingWriter::whole(int64_t num_tokens) {
  const std::vector<float> all = scores();
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return all[a] > all[b]; });
  order.resize(std::min(order.size(), top_n_));
  std::string body = "{";
  append_member("id", context_.id, body);
  body += ',';
  append_member("model", context_.model, body);
  body += ",\"results\":[";
  append_json_list(body, order, [&](size_t index) {
    append_index(index, body);
    if (!documents_.empty()) {
      body += ",\"document\":{";
      append_member("text", documents_[index], body);
      body += '}';
    }
    body += ",\"relevance_score\":";
    append_json(body, all[index]);
    body += '}';
  });
  body += "],";
  append_usage(num_tokens, body);
  return {200, "application/json", {}, std::move(body)};
}

}  // namespace quire::server
