// Compiles what requests ask their answers to be, on threads of its own: checked before, within a time limit, each
// output once as long as it is in the cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/check.h"
#include "grammar/vocabulary.h"
#include "text/tokenizer.h"
#include "types/structured_output.h"
#include "types/token_constraint.h"

namespace quire::grammar {

// What a output becomes; bytes: about, in memory.
struct CompiledConstraint {
  std::shared_ptr<const TokenConstraint> constraint;
  size_t bytes = 0;
};

// Takes as long as it takes, on the thread that calls it. The vocabulary is kept alive by what comes back.
// Errors: invalid_argument saying what of the output is not understood or not supported; resource_exhausted.
// REQUIRES: checked before (grammar/check.h).
Result<CompiledConstraint> compile_constraint(const StructuredOutput& output, const GrammarLimits& limits,
                                              std::shared_ptr<const GrammarVocabulary> vocabulary);

struct CompilerOptions {
  int32_t num_threads = 1;  // that compile at once
  // One that takes longer gives way to all other threads much more than before: short ones are not to wait for it, nor
  // is what computes tokens.
  std::chrono::milliseconds long_from{100};
  // A constraint that takes longer is refused. Its thread cannot be stopped: it goes on while nothing else runs, and
  // another takes its place, until there are more than max_overdue of them; then constraints that are not in the cache
  // are turned away. Before that those of a tenant that has as many of them as are left for others.
  std::chrono::milliseconds time_limit{10000};
  int32_t max_overdue = 3;
  // Requests that wait for constraints, the same or others; beyond it: turned away. A tenant may have as many as are
  // left for others: one alone half of it.
  size_t max_waiting = 1024;
  size_t cache_bytes = 64 << 20;  // of compiled constraints, the least recently used go first
  GrammarLimits limits;
  // Called on the compiler's threads, several at once.
  std::function<Result<CompiledConstraint>(const StructuredOutput&, const GrammarLimits&,
                                           std::shared_ptr<const GrammarVocabulary>)>
      compile = compile_constraint;
};

class Compiler {
 public:
  using Done = std::function<void(Result<std::shared_ptr<const TokenConstraint>>)>;

  // The tokenizer must outlive it. vocab_size, end_ids: see GrammarVocabulary. Threads that compile start with the
  // first constraint, and give way to the thread that makes this.
  Compiler(const text::Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> end_ids, CompilerOptions options);
  // Waits for what is being compiled; what waits is answered with unavailable.
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // tenant: whose request it is; they take turns at the threads, each with its first first.
  // Calls `done` exactly once: on this thread if the constraint is refused at once or in the cache, else on one of the
  // compiler's. Any thread. Errors: invalid_argument (what is wrong with the constraint), deadline_exceeded (too long),
  // resource_exhausted (too much at once), unavailable.
  void compile(const StructuredOutput& output, int32_t tenant, Done done);
  void compile(const StructuredOutput& output, Done done) { compile(output, 0, std::move(done)); }
  // The same, waiting for it.
  Result<std::shared_ptr<const TokenConstraint>> compile(const StructuredOutput& output);

  struct Stats {
    int64_t hits = 0;
    int64_t misses = 0;
    size_t cached_bytes = 0;
    int64_t cached_constraints = 0;
    int32_t overdue = 0;  // threads that are still at a constraint that was given up
  };
  Stats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::grammar
