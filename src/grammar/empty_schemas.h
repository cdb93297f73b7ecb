// Which schemas nothing satisfies, as far as it shows. Private to grammar/.
#pragma once

#include <string_view>
#include <unordered_set>

#include <boost/json.hpp>

#include "grammar/schema.h"

namespace quire::grammar {

class EmptySchemas {
 public:
  // schema: where references lead; must outlive this.
  explicit EmptySchemas(const Schema& schema) : schema_(schema) {}

  // True: no finite value satisfies `part`, which is of the schema or made of its parts. False: one does, or it is not
  // known.
  bool is_empty(const boost::json::value& part);
  // The same of values of one type.
  bool has_none(const boost::json::object& part, std::string_view type);

 private:
  bool looks_empty(const boost::json::value& part);
  bool looks_empty(const boost::json::object& part);
  bool looks_empty_at(const boost::json::object& reference);
  bool no_array(const boost::json::object& part);
  bool no_object(const boost::json::object& part);
  template <typename Look>
  bool settled(const Look& look);

  const Schema& schema_;
  // Places that references lead to.
  std::unordered_set<const boost::json::value*> satisfied_, empty_;
  std::unordered_set<const boost::json::value*> looked_at_;  // in this round
  bool in_round_ = false;
  int depth_ = 0;
};

}  // namespace quire::grammar
