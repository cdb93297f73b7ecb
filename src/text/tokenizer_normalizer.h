// Unicode normalisation of text before it is pre-tokenised (Unicode Standard Annex 15).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// By the name a tokenizer.json has for it ("NFC"); nullopt: no such form.
std::optional<NormalizationForm> normalization_form(std::string_view name);

class Normalizer {
 public:
  void add(NormalizationForm form) { forms_.push_back(form); }  // applied in order
  // nullopt: the text is as it was. Time O(n log n) even for endless combining marks. REQUIRES: valid UTF-8.
  std::optional<std::string> apply(std::string_view text) const;

 private:
  std::vector<NormalizationForm> forms_;
};

}  // namespace quire::text
