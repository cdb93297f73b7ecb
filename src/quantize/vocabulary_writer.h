// The tokenizer of a Hugging Face checkpoint as GGUF keeps one.
#pragma once

#include <optional>

#include "base/status.h"
#include "quantize/gguf_header.h"
#include "types/model_config.h"
#include "types/text_source.h"
#include "types/vocabulary.h"

namespace quire::quantize {

// From tokenizer.json (BPE of bytes, or SentencePiece's) or tokenizer.model. GGUF names its pre-tokenizers instead of
// spelling them out: the name is found by trying those that quire knows on texts that tell them apart, and none is
// written whose ids are not the checkpoint's own. nullopt: the checkpoint has no tokenizer. Errors: unimplemented for a
// tokenizer that GGUF cannot say.
Result<std::optional<Vocabulary>> make_vocabulary(const TextSource& text, const ModelConfig& config);

// The first token, and all tokens that end an answer: eos and eot where they are known, the others of the configuration
// where a place is left. Of those that have none it warns.
void set_special_ids(std::optional<TokenId> bos, std::optional<TokenId> eos, std::optional<TokenId> eot,
                     const ModelConfig& config, GgufHeader& header);

void set_vocabulary(const Vocabulary& vocabulary, const ModelConfig& config, const std::string& chat_template,
                    GgufHeader& header);

}  // namespace quire::quantize
