// A small strict JSON reader (RFC 8259) for configuration files. Its messages name the path of the mistake.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace a2a::atb {

struct Json {
  enum class Kind { null, boolean, number, string, array, object };
  struct Member;

  Kind kind = Kind::null;
  std::string text;             // of a string, decoded; of a number or boolean as in the file
  std::vector<Json> items;      // of an array
  std::vector<Member> members;  // of an object, in the order of the file; no name twice

  // Returns the member of that name, or nullptr.
  const Json* find(std::string_view name) const;
};

struct Json::Member {
  std::string name;
  Json value;
};

// "an object", "a string", ...
const char* to_string(Json::Kind kind);

// Throws Error(invalid_argument): "NAME: $.a[1].b: line 3, column 7: expected ...".
Json parse_json(std::string_view text, const std::string& name);

// Return the steps of a path: ".name", or ["a name"] for names that are no words, and [3].
std::string member_path(std::string_view name);
std::string item_path(size_t index);

// Returns a value for a message: without control characters, and cut when it is long. It is not called quoted(),
// because argument-dependent lookup would then find std::quoted.
std::string in_quotes(std::string_view value);

}  // namespace a2a::atb
