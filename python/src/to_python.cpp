#include "to_python.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "python_errors.h"

namespace quire::python {
namespace nb = nanobind;
namespace {

// An array over the vector's own memory.
template <typename T>
nb::object as_array(std::vector<T> values, size_t columns = 0) {
  auto* owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  if (columns == 0) return nb::ndarray<nb::numpy, T>(owned->data(), {owned->size()}, owner).cast();
  return nb::ndarray<nb::numpy, T>(owned->data(), {owned->size() / columns, columns}, owner).cast();
}

nb::object logprob_arrays(const std::vector<PositionLogprobs>& positions) {
  size_t columns = 1;
  for (const PositionLogprobs& position : positions) columns = std::max(columns, 1 + position.top.size());
  const size_t size = columns * positions.size();
  std::vector<int32_t> ids(size, kNoToken), ranks(size, 0);
  std::vector<float> logprobs(size, 0.0f);
  for (size_t row = 0; row < positions.size(); ++row) {
    const PositionLogprobs& position = positions[row];
    for (size_t column = 0; column <= position.top.size(); ++column) {
      const TokenLogprob& entry = column == 0 ? position.chosen : position.top[column - 1];
      ids[row * columns + column] = entry.id;
      logprobs[row * columns + column] = entry.logprob;
      ranks[row * columns + column] = entry.rank;
    }
  }
  return nb::make_tuple(as_array(std::move(ids), columns), as_array(std::move(logprobs), columns),
                        as_array(std::move(ranks), columns));
}

nb::object logprob_list(const std::vector<PositionLogprobs>& positions, const text::Tokenizer* tokenizer) {
  nb::list list;
  const auto entry = [tokenizer](const TokenLogprob& one) {
    const nb::object text = tokenizer != nullptr ? nb::object(to_text(tokenizer->token_bytes(one.id))) : nb::none();
    return nb::make_tuple(one.id, static_cast<double>(one.logprob), one.rank, text);
  };
  for (const PositionLogprobs& position : positions) {
    nb::list tokens;
    tokens.append(entry(position.chosen));
    for (const TokenLogprob& other : position.top) tokens.append(entry(other));
    list.append(std::move(tokens));
  }
  return list;
}

nb::object logprobs_of(const std::vector<PositionLogprobs>& positions, const text::Tokenizer* tokenizer, bool arrays) {
  if (positions.empty()) return nb::none();
  return arrays ? logprob_arrays(positions) : logprob_list(positions, tokenizer);
}

nb::object stop_reason_of(const engine::OutputDelta& delta) {
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) return to_text(*text);
  if (const auto* token = std::get_if<TokenId>(&delta.stop_reason)) return nb::int_(*token);
  return nb::none();
}

}  // namespace

nb::str to_text(const std::string& utf8) {
  PyObject* text = PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

nb::object to_numbers(const std::vector<float>& numbers, bool arrays) {
  return arrays ? as_array(numbers) : nb::cast(numbers);
}

nb::tuple to_tuple(Update update, const text::Tokenizer* tokenizer, bool arrays) {
  engine::OutputDelta& delta = update.delta;
  const nb::object logprobs = logprobs_of(delta.logprobs, tokenizer, arrays);
  const nb::object prompt_logprobs = logprobs_of(delta.prompt_logprobs, tokenizer, arrays);
  const nb::object tokens = arrays ? as_array(std::move(delta.tokens)) : nb::cast(delta.tokens);
  const auto if_any = [](const auto& value) { return value ? nb::cast(*value) : nb::none(); };
  const nb::object finish =
      delta.finish == FinishReason::kNone ? nb::none() : nb::cast(std::string(to_string(delta.finish)));
  const nb::object error = delta.finish == FinishReason::kError ? exception_of(delta.error) : nb::none();
  const nb::object receipt = delta.receipt.empty() ? nb::none() : nb::cast(delta.receipt);
  return nb::make_tuple(update.number, update.index, update.last, to_text(delta.text), tokens, logprobs,
                        prompt_logprobs, finish, stop_reason_of(delta), if_any(delta.cumulative_logprob),
                        if_any(delta.num_cached_tokens), error, receipt);
}

}  // namespace quire::python
