// SHA-256 and HMAC-SHA256 against the vectors of FIPS 180-4 and RFC 4231. test_tcp_bootstrap.py compares with hashlib.
#include "bootstrap/sha256.h"

#include "check.h"

namespace {

std::string hex(const a2a::Digest& digest) {
  std::ostringstream text;
  for (const uint8_t byte : digest) text << "0123456789abcdef"[byte >> 4] << "0123456789abcdef"[byte & 15];
  return text.str();
}

TEST("the vectors of FIPS 180-4") {
  CHECK_EQ(hex(a2a::sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(hex(a2a::sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(hex(a2a::sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(
      hex(a2a::sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnop"
                      "qrsmnopqrstnopqrstu")),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK_EQ(hex(a2a::sha256(std::string(1'000'000, 'a'))),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST("however the message is cut, the digest is the same") {
  check::Random random(check::seed());
  for (int i = 0; i < 500; ++i) {
    std::string message(random.in(0, 400), '\0');
    for (char& c : message) c = static_cast<char>(random());
    a2a::Sha256 hash;
    for (size_t at = 0; at < message.size();) {
      const size_t part = std::min(message.size() - at, random.in(size_t{0}, size_t{150}));
      hash.add(std::string_view(message).substr(at, part));
      at += part;
    }
    CHECK_EQ(hex(hash.digest()), hex(a2a::sha256(message)));
    CHECK_EQ(hex(hash.digest()), hex(hash.digest()));
  }
}

TEST("the vectors of RFC 4231") {
  const auto hmac = [](const std::string& key, const std::string& data) { return hex(a2a::hmac_sha256(key, data)); };
  CHECK_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(hmac("Jefe", "what do ya want for nothing?"),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  CHECK_EQ(hmac(counting, std::string(50, '\xcd')), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK_EQ(hmac(std::string(131, '\xaa'),
                "This is a test using a larger than block-size key and a larger than block-size data. The key needs to "
                "be hashed before being used by the HMAC algorithm."),
           "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST("MACs are the same only when every bit is") {
  const std::string mac(32, 'm');
  CHECK(a2a::same_mac(mac, mac));
  CHECK(!a2a::same_mac(mac, mac.substr(1)));
  CHECK(!a2a::same_mac("", mac));
  for (size_t bit = 0; bit < 8 * mac.size(); ++bit) {
    std::string other = mac;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
    CHECK(!a2a::same_mac(mac, other));
  }
}

}  // namespace
