// Which schemas nothing satisfies, as far as it shows. Private to grammar/.
#pragma once

#include <unordered_map>

#include <boost/json.hpp>

#include "grammar/schema.h"

namespace quire::grammar {

class EmptySchemas {
 public:
  // schema: where references lead; must outlive this.
  explicit EmptySchemas(const Schema& schema) : schema_(schema) {}

  // True: no value satisfies `part`, which is of the schema or made of its parts. False: one does, or it is not known.
  bool is_empty(const boost::json::value& part);

 private:
  bool is_empty(const boost::json::object& part);
  bool is_empty_place(const boost::json::object& reference);
  bool has_no_type(const boost::json::object& part);
  bool has_no_array(const boost::json::object& part);
  bool has_no_object(const boost::json::object& part);

  const Schema& schema_;
  std::unordered_map<const boost::json::value*, bool> places_;  // that references lead to
  int depth_ = 0;
};

}  // namespace quire::grammar
