#include "json.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "a2a/types.h"

namespace a2a::atb {
namespace {

constexpr size_t kDeepest = 64;  // levels of nesting: the reader recurses

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the length of the UTF-8 sequence at the beginning of `text`, 0 when it is invalid. Overlong forms, surrogates
// and code points above 10FFFF are invalid.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool outside = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  return overlong || outside ? 0 : length;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto push = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xc0 | code >> 6), push(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    push(0xe0 | code >> 12), push(0x80 | (code >> 6 & 0x3f)), push(0x80 | (code & 0x3f));
  } else {
    push(0xf0 | code >> 18), push(0x80 | (code >> 12 & 0x3f)), push(0x80 | (code >> 6 & 0x3f)),
        push(0x80 | (code & 0x3f));
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Json document() {
    Json json = value();
    skip_blanks();
    if (at_ < text_.size()) fail("expected the end of the text, found " + found());
    return json;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const auto before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t column = at_ - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    throw Error(Code::invalid_argument, name_ + ": " + path_ + ": line " + std::to_string(line) + ", column " +
                                            std::to_string(column) + ": " + what);
  }

  std::string found() const {
    return at_ < text_.size() ? in_quotes(text_.substr(at_, std::max<size_t>(utf8_length(text_.substr(at_)), 1)))
                              : "the end of the text";
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Json value() {
    skip_blanks();
    if (++depth_ > kDeepest) fail("more than " + std::to_string(kDeepest) + " levels of nesting");
    Json json;
    if (peek() == '{') {
      json = object();
    } else if (peek() == '[') {
      json = array();
    } else if (peek() == '"') {
      json.kind = Json::Kind::string;
      json.text = string();
    } else if (peek() == '-' || is_digit(peek())) {
      json.kind = Json::Kind::number;
      json.text = number();
    } else {
      json = word();
    }
    --depth_;
    return json;
  }

  Json object() {
    Json json;
    json.kind = Json::Kind::object;
    std::set<std::string> names;
    list('}', [&] {
      skip_blanks();
      if (peek() != '"') fail("expected a name in quotes, found " + found());
      const size_t start = at_;
      std::string name = string();
      if (!names.insert(name).second) {
        at_ = start;
        fail("the name " + in_quotes(name) + " stands in this object twice");
      }
      skip_blanks();
      if (!take(':')) fail("expected ':' after " + in_quotes(name) + ", found " + found());
      Json member = value_at(member_path(name));
      json.members.push_back({std::move(name), std::move(member)});
    });
    return json;
  }

  Json array() {
    Json json;
    json.kind = Json::Kind::array;
    list(']', [&] { json.items.push_back(value_at(item_path(json.items.size()))); });
    return json;
  }

  // Reads the entries between two brackets, separated by commas.
  template <class Entry>
  void list(char close, Entry entry) {
    ++at_;
    skip_blanks();
    if (take(close)) return;
    do {
      entry();
      skip_blanks();
    } while (take(','));
    if (!take(close)) fail(std::string("expected ',' or '") + close + "', found " + found());
  }

  // Reads a value whose path is this one followed by `step`.
  Json value_at(const std::string& step) {
    const size_t outer = path_.size();
    path_ += step;
    Json json = value();
    path_.resize(outer);
    return json;
  }

  std::string string() {
    std::string out;
    take('"');
    while (!take('"')) {
      if (at_ >= text_.size()) fail("a string does not end");
      if (static_cast<uint8_t>(peek()) < 0x20) fail("a control character in a string");
      if (take('\\')) {
        escape(out);
        continue;
      }
      const size_t length = utf8_length(text_.substr(at_));
      if (length == 0) fail("a byte that is not UTF-8");
      out += text_.substr(at_, length);
      at_ += length;
    }
    return out;
  }

  void escape(std::string& out) {
    static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const size_t index = at_ < text_.size() ? kLetters.find(peek()) : std::string_view::npos;
    if (index != std::string_view::npos) {
      ++at_;
      out.push_back(kMeanings[index]);
      return;
    }
    if (peek() != 'u') fail("no escape begins with " + found());
    uint32_t code = unit();
    if (code >= 0xdc00 && code < 0xe000) fail("half of a surrogate pair");
    if (code >= 0xd800 && code < 0xdc00) {
      if (!take('\\') || peek() != 'u') fail("half of a surrogate pair");
      const uint32_t low = unit();
      if (low < 0xdc00 || low >= 0xe000) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, code);
  }

  // Reads four hexadecimal digits after a 'u'.
  uint32_t unit() {
    take('u');
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek(), lower = static_cast<char>(c | 0x20);
      if (!is_digit(c) && !(lower >= 'a' && lower <= 'f')) fail("expected four hexadecimal digits, found " + found());
      code = code * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  std::string number() {
    const size_t start = at_;
    const auto digits = [this] {
      if (!is_digit(peek())) fail("expected a digit, found " + found());
      while (is_digit(peek())) ++at_;
    };
    take('-');
    const bool zero = peek() == '0';
    const size_t first = at_;
    digits();
    if (zero && at_ > first + 1) fail("a number begins with 0");
    if (take('.')) digits();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      digits();
    }
    return std::string(text_.substr(start, at_ - start));
  }

  Json word() {
    for (const std::string_view known : {"null", "true", "false"}) {
      if (text_.substr(at_, known.size()) != known) continue;
      at_ += known.size();
      Json json;
      json.kind = known == "null" ? Json::Kind::null : Json::Kind::boolean;
      json.text = known;
      return json;
    }
    fail("expected a value, found " + found());
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0, depth_ = 0;
  std::string path_ = "$";
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &Member::name);
  return found == members.end() ? nullptr : &found->value;
}

const char* to_string(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::null:
      return "null";
    case Json::Kind::boolean:
      return "a boolean";
    case Json::Kind::number:
      return "a number";
    case Json::Kind::string:
      return "a string";
    case Json::Kind::array:
      return "an array";
    case Json::Kind::object:
      return "an object";
  }
  return "nothing";
}

Json parse_json(std::string_view text, const std::string& name) { return Parser(text, name).document(); }

std::string member_path(std::string_view name) {
  const bool plain = !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return is_digit(c) || c == '_' || c == '-' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  });
  return plain ? std::string(".").append(name) : std::string("[").append(in_quotes(name)).append("]");
}

std::string item_path(size_t index) { return std::string("[").append(std::to_string(index)).append("]"); }

std::string in_quotes(std::string_view value) {
  constexpr size_t kLongest = 80;
  std::string out = "\"";
  for (size_t i = 0; i < value.size() && out.size() < kLongest;) {
    const size_t length = utf8_length(value.substr(i));
    const auto byte = static_cast<uint8_t>(value[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      ++i;
    } else {
      if (value[i] == '"' || value[i] == '\\') out += '\\';
      out += value.substr(i, length);
      i += length;
    }
  }
  return out + (out.size() < kLongest ? "\"" : "...\"");
}

}  // namespace a2a::atb
