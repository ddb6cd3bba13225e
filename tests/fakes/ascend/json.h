// As much of JSON as a strict reader of rank tables needs.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace fake {

struct Json {
  enum Kind { string, object, array, other } kind = other;
  std::string text;  // of a string, without escapes; of what is neither object nor array
  std::map<std::string, Json> members;
  std::vector<Json> elements;
};

class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}

  Json read() {
    Json value = read_value();
    if (peek() != '\0') fail("something follows the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(what + " at byte " + std::to_string(at_));
  }

  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void expect(char wanted) {
    if (peek() != wanted) fail(std::string("no '") + wanted + "'");
    ++at_;
  }

  // Reads what stands between `open` and `close`, divided by commas.
  void list(char open, char close, auto one) {
    expect(open);
    if (peek() == close) return void(++at_);
    for (one(); peek() == ','; one()) ++at_;
    expect(close);
  }

  Json read_value() {
    Json value;
    if (peek() == '{') {
      value.kind = Json::object;
      list('{', '}', [&] {
        peek();
        const std::string key = read_string();
        expect(':');
        if (!value.members.emplace(key, read_value()).second) fail("the key " + key + " stands twice");
      });
    } else if (peek() == '[') {
      value.kind = Json::array;
      list('[', ']', [&] { value.elements.push_back(read_value()); });
    } else if (peek() == '"') {
      value.kind = Json::string;
      value.text = read_string();
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                    std::string_view("+-.").find(text_[at_]) != std::string_view::npos)) {
        ++at_;
      }
      if (at_ == begin) fail("no value");
      value.text = text_.substr(begin, at_ - begin);
    }
    return value;
  }

  std::string read_string() {
    if (at_ >= text_.size() || text_[at_] != '"') fail("no string");
    std::string read;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' && ++at_ >= text_.size()) break;
      read += text_[at_];
    }
    if (at_ >= text_.size()) fail("a string has no end");
    ++at_;
    return read;
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace fake
