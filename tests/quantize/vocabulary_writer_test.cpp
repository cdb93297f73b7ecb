#include "quantize/vocabulary_writer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "text/tokenizer.h"

namespace quire::quantize {
namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ModelConfig model_of(int64_t vocab_size) {
  ModelConfig config;
  config.vocab_size = vocab_size;
  return config;
}

void expect_same_ids(const TextSource& text, int64_t vocab_size, std::string_view model) {
  const auto vocabulary = make_vocabulary(text, model_of(vocab_size));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  ASSERT_TRUE(vocabulary->has_value());
  EXPECT_EQ((*vocabulary)->model, model);
  EXPECT_GE(std::ssize((*vocabulary)->tokens), vocab_size);
  const auto own = text::Tokenizer::from_source(text).value();
  const auto made = text::Tokenizer::from_vocabulary(**vocabulary).value();
  for (const char* sample : {"Ships that pass in the night, 1873 of them.", "  two  spaces\n\nand lines",
                             "\xC3\xA9t\xC3\xA9", "def f(x):\n    return x ** 2  # 42"}) {
    EXPECT_EQ(own->encode(sample, true), made->encode(sample, true)) << sample;
    EXPECT_EQ(own->decode(own->encode(sample, false), true), made->decode(made->encode(sample, false), true)) << sample;
  }
}

TEST(VocabularyWriter, FindsThePreTokenizerByWhatItDoes) {
  const std::string folder = std::string(QUIRE_TEST_DATA) + "/tokenizers/";
  for (const auto& [name, model] : {std::pair<const char*, const char*>{"gpt2_style_bpe", "gpt2"},
                                    {"llama3_style_bpe", "gpt2"},
                                    {"qwen_style_bpe_nfc", "gpt2"},
                                    {"llama2_style_spm_bpe", "llama"}}) {
    SCOPED_TRACE(name);
    TextSource text;
    text.tokenizer_json = text_of_file(folder + name + ".json");
    expect_same_ids(text, 1, model);
  }
}

TEST(VocabularyWriter, RefusesWhatGgufCannotSay) {
  TextSource text;
  text.tokenizer_json = text_of_file(std::string(QUIRE_TEST_DATA) + "/tokenizers/unigram_nfkc.json");
  const auto unigram = make_vocabulary(text, model_of(1));
  ASSERT_FALSE(unigram.ok());
  EXPECT_NE(unigram.status().message().find("Unigram"), std::string::npos) << unigram.status().message();
}

TEST(VocabularyWriter, KeepsSentencePiecesScores) {
  const std::string folder = std::string(QUIRE_TEST_DATA) + "/tokenizers/sentencepiece/";
  TextSource text;
  text.sentencepiece_model = text_of_file(folder + "bpe_bytes.model");
  // It was trained on normalised text, of which GGUF knows nothing.
  const auto normalised = make_vocabulary(text, model_of(10));
  ASSERT_FALSE(normalised.ok());
  EXPECT_NE(normalised.status().message().find("gives the checkpoint's ids"), std::string::npos);
  // As Llama's is: normalizer_spec (field 3) once more, with no rules (2) and all white space kept (4).
  text.sentencepiece_model += std::string("\x1a\x04\x12\x00\x20\x00", 6);
  expect_same_ids(text, 2000, "llama");
  text.sentencepiece_model = text_of_file(folder + "unigram.model");
  const auto unigram = make_vocabulary(text, model_of(10));
  ASSERT_FALSE(unigram.ok());
  EXPECT_NE(unigram.status().message().find("other than BPE"), std::string::npos) << unigram.status().message();
}

TEST(VocabularyWriter, NoTokenizerIsNone) {
  const auto none = make_vocabulary({}, model_of(10));
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

}  // namespace
}  // namespace quire::quantize
