// Models that are served for vectors and scores of texts instead of answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "types/ids.h"

namespace quire {

// What a model is served for.
enum class ModelTask : uint8_t {
  kGenerate,  // answers, token by token
  kEmbed,     // a vector for each text
  kClassify,  // the numbers of a classifying head: classes, or how well two texts go together
};

// Which hidden states of the last layer stand for the text.
enum class PoolingType : uint8_t {
  kLast,            // the last token's
  kMean,            // the mean of all
  kCls,             // the first token's
  kMax,             // of each number the largest of all
  kMeanSqrtLength,  // the sum of all over the square root of how many they are
  kWeightedMean,    // the mean of all, the n-th counted n times
};

// What a classifying head's numbers become.
enum class ScoreActivation : uint8_t { kNone, kSigmoid, kSoftmax };

// The tokens between which a model that generates judges.
struct JudgingTokens {
  TokenId no = kNoToken;
  TokenId yes = kNoToken;
};

struct PoolingConfig {
  // Not empty; several make several vectors, one behind the other.
  std::vector<PoolingType> types = {PoolingType::kLast};
  int64_t vector_size = 0;         // kEmbed: numbers of a text's vector
  bool normalize = true;           // vectors have length 1
  bool leaves_prompt_out = false;  // kEmbed: tokens of the prompt before a text are not pooled
  // Lengths to which a vector may be cut (Matryoshka; Kusupati et al., 2022): these, or any where cuts_anywhere.
  std::vector<int64_t> dimensions;
  bool cuts_anywhere = false;
  // kClassify:
  int64_t num_labels = 0;           // numbers of the head; 0: the model has none
  std::vector<std::string> labels;  // their names, [num_labels]
  ScoreActivation activation = ScoreActivation::kNone;
  // Decoders with a head: the last token is the last that is not this one, as the reference has it.
  std::optional<TokenId> padding;
  std::optional<JudgingTokens> judges_by;  // without a head; unset: the vocabulary's words "no" and "yes"

  bool takes_last_alone() const { return types.size() == 1 && types[0] == PoolingType::kLast; }
};

}  // namespace quire
