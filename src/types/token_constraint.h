// What an answer may say, token by token: structured output as the sampler sees it. Compiled by grammar/ from a schema,
// an expression or a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "types/ids.h"

namespace quire {

// What the sampler sees. Immutable: one may serve any number of answers on any thread, each by a state of its own.
class TokenMasks {
 public:
  // How far one answer has come. Used by one thread at a time.
  class State {
   public:
    virtual ~State() = default;
    virtual std::unique_ptr<State> clone() const = 0;

    // Sets the bits of the tokens that may follow: bit i % 32 of word i / 32. mask: [ceil(vocab_size / 32)], all of it
    // is written. Rarely a token too many is set, which accept() then refuses. False: every token may follow, the mask
    // is unspecified. After the answer's end its end token may.
    virtual bool allowed(std::span<uint32_t> mask) = 0;

    // Takes note of a token of the answer. False, and nothing changes: it may not follow.
    virtual bool accept(TokenId token) = 0;

    // Why allowed() left no token, if the constraint is to blame: an invalid_argument.
    virtual Status trouble() const { return {}; }
  };

  virtual ~TokenMasks() = default;
  virtual std::unique_ptr<State> start() const = 0;
};

// The whole of it, where the answers' texts are.
class TokenConstraint : public TokenMasks {
 public:
  // Is this the whole text of an answer that was asked for? By another way than the masks', so that a fault in them
  // ends an answer with an error. Constraints that only the masks know (grammars, structural tags) have every text
  // pass. Errors: data_loss saying what is wrong with it.
  virtual Status check(std::string_view text) const = 0;
  // Must a text that a stop string cut short pass, too? So of JSON, of which a part is of no use.
  virtual bool whole_only() const = 0;
};

}  // namespace quire
