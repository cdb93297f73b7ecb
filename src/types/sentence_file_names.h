// Files that sentence-transformers writes beside a model: the hub fetches them, the checkpoint reads them.
#pragma once

#include <array>
#include <string_view>

namespace quire {

inline constexpr std::string_view kModulesFile = "modules.json";  // what a text goes through, in order
inline constexpr std::string_view kSentenceModelFile = "config_sentence_transformers.json";

// Of how the transformer is used; the first of them that there is counts, as sentence-transformers looks for it.
inline constexpr auto kSentenceTransformerFiles = std::to_array<std::string_view>(
    {"sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
     "sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json",
     "sentence_xlnet_config.json"});

}  // namespace quire
