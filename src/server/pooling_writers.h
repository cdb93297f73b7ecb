// The answers to requests for vectors and scores, put together number by number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/pooling_answer.h"
#include "server/pooling_schema.h"
#include "types/pooling.h"

namespace quire::server {

// What all answers say of themselves.
struct PoolingAnswerContext {
  std::string id;
  std::string model;
  int64_t created = 0;
};

// A list with an entry for each text, each written as soon as its numbers are there.
class PoolingListWriter : public PoolingWriter {
 public:
  PoolingListWriter(PoolingAnswerContext context, size_t num_texts)
      : context_(std::move(context)), entries_(num_texts) {}
  void take(size_t text, std::vector<float> numbers) override;
  HttpResponse whole(int64_t num_tokens) override;

 protected:
  // What stands in the entry behind its index: ,"object":...
  virtual void write(std::vector<float> numbers, std::string& out) const = 0;

 private:
  const PoolingAnswerContext context_;
  std::vector<std::string> entries_;
};

// OpenAI's embeddings; `object`: "embedding" with its vector so named, "pooling" with its numbers as "data".
class EmbeddingsWriter final : public PoolingListWriter {
 public:
  struct Form {
    bool is_pooling = false;
    bool base64 = false;     // of little-endian floats
    int64_t dimensions = 0;  // 0: all
    bool normalize = true;
    std::optional<ScoreActivation> activation;  // of scores: instead of the two above
  };
  EmbeddingsWriter(PoolingAnswerContext context, size_t num_texts, const Form& form)
      : PoolingListWriter(std::move(context), num_texts), form_(form) {}

 private:
  void write(std::vector<float> numbers, std::string& out) const override;
  const Form form_;
};

// Cohere's: vectors in several forms, a list of each; in none the first version's plain list.
class CohereEmbedWriter final : public PoolingWriter {
 public:
  struct Answer {
    std::vector<CohereEmbedRequest::Form> forms;
    std::vector<std::string> texts;  // shown again
    int64_t dimensions = 0;          // 0: all
    bool normalize = true;
    bool second_version = true;
  };
  CohereEmbedWriter(PoolingAnswerContext context, Answer answer)
      : context_(std::move(context)), answer_(std::move(answer)), vectors_(answer_.texts.size()) {}
  void take(size_t text, std::vector<float> numbers) override;
  HttpResponse whole(int64_t num_tokens) override;

 private:
  void write(CohereEmbedRequest::Form form, const std::vector<float>& vector, std::string& out) const;

  const PoolingAnswerContext context_;
  const Answer answer_;
  std::vector<std::vector<float>> vectors_;
};

class ClassesWriter final : public PoolingListWriter {
 public:
  ClassesWriter(PoolingAnswerContext context, size_t num_texts, std::vector<std::string> labels,
                ScoreActivation activation)
      : PoolingListWriter(std::move(context), num_texts), labels_(std::move(labels)), activation_(activation) {}

 private:
  void write(std::vector<float> numbers, std::string& out) const override;
  const std::vector<std::string> labels_;
  const ScoreActivation activation_;
};

// Scores of pairs: each a text of its own, whose first number it is; or, of vectors, the cosine of two texts.
struct PairsForm {
  std::optional<ScoreActivation> activation;  // unset: of vectors
  // Of vectors, by pair: the places of its texts.
  std::vector<std::pair<size_t, size_t>> places;
};

class PairsWriter : public PoolingWriter {
 public:
  PairsWriter(PoolingAnswerContext context, size_t num_texts, PairsForm form)
      : context_(std::move(context)), form_(std::move(form)), numbers_(num_texts) {}
  void take(size_t text, std::vector<float> numbers) override;

 protected:
  std::vector<float> scores() const;
  const PoolingAnswerContext context_;

 private:
  const PairsForm form_;
  std::vector<std::vector<float>> numbers_;
};

class ScoresWriter final : public PairsWriter {
 public:
  using PairsWriter::PairsWriter;
  HttpResponse whole(int64_t num_tokens) override;
};

// The best first; texts of documents where they are wanted.
class RankingWriter final : public PairsWriter {
 public:
  RankingWriter(PoolingAnswerContext context, size_t num_texts, PairsForm form, size_t top_n,
                std::vector<std::string> documents)
      : PairsWriter(std::move(context), num_texts, std::move(form)), top_n_(top_n), documents_(std::move(documents)) {}
  HttpResponse whole(int64_t num_tokens) override;

 private:
  const size_t top_n_;
  const std::vector<std::string> documents_;  // empty: they are not shown
};

}  // namespace quire::server
