// What ranks read from TCP connections: greetings, proofs, frames, tables of strings. Whoever sends them knows the
// secret here, or nobody would get past the first MAC.
#include "bootstrap/tcp/frames.h"
#include "input.h"

namespace {

using namespace a2a;
using fuzz::Input;
using fuzz::require;

const std::string kSecret = "the secret of the fuzzer";

void shake_hands(Input& input) {
  const std::string hello(input.take_bytes(input.take<uint8_t>()));
  const bool greets = wire::may_be_greeting(hello);
  for (size_t bytes = 0; greets && bytes < hello.size(); ++bytes) {
    require(wire::may_be_greeting(hello.substr(0, bytes)), "the beginning of a greeting is none");
  }
  const wire::Introduction said{input.take<uint32_t>(), input.take<int32_t>(), input.take<int32_t>(),
                                input.take<uint32_t>(), wire::label(std::string(input.take_bytes(200)))};
  std::string proof = wire::make_proof(kSecret, hello, said);
  require(proof.size() == wire::kProofBytes, "a proof of another length");
  const auto heard = wire::check_proof(kSecret, hello, proof);
  require(heard && heard->protocol == said.protocol && heard->rank == said.rank && heard->size == said.size &&
              heard->pid == said.pid && said.job.starts_with(heard->job),
          "a proof says something else than was said");
  require(!wire::check_proof("another secret", hello, proof), "a proof without the secret");
  const std::string any(input.take_bytes(wire::kProofBytes));
  require(!wire::check_proof(kSecret, hello, any) || any == proof, "a forged proof");
}

// Frames with some of their bytes changed, in portions of any size.
void receive_frames(Input& input) {
  wire::Sealer sealer({1});
  wire::Opener opener({1});
  std::string sealed, sent;
  for (int i = input.take<uint8_t>() % 4; i > 0; --i) {
    const std::string payload(input.take_bytes(input.take<uint8_t>()));
    sealed += sealer.seal(wire::piece(static_cast<wire::PieceKind>(input.take<uint8_t>() % 6), payload));
    sent += payload;
  }
  for (int i = input.take<uint8_t>() % 4; i > 0 && !sealed.empty(); --i) {
    sealed[input.take<uint16_t>() % sealed.size()] ^= static_cast<char>(input.take<uint8_t>());
  }
  sealed += input.take_bytes(input.take<uint16_t>());
  std::string received;
  for (std::string_view rest = sealed; !rest.empty() && !opener.forged();) {
    const size_t portion = std::min({rest.size(), opener.room(), size_t{input.take<uint16_t>()} + 1});
    require(portion > 0, "an opener that takes nothing and gives nothing");
    opener.feed(rest.substr(0, portion));
    rest.remove_prefix(portion);
    while (const auto frame = opener.next()) {
      received += frame->payload;
      require(frame->kind >= wire::PieceKind::welcome && frame->kind <= wire::PieceKind::last, "a kind that is none");
    }
  }
  require(sent.starts_with(received), "a frame that nobody sealed");
}

void unpack(Input& input) {
  const size_t n = input.take<uint8_t>();
  const std::string message(input.take_bytes(size_t{1} << 16));
  if (const auto strings = wire::unpack_strings(message, n)) {
    require(strings->size() == n && wire::pack_strings(*strings) == message, "a table that is none");
  }
  const Error error = wire::unpack_refusal(message);
  require(error.code() >= Code::invalid_argument && error.code() <= Code::backend, "an error of no kind");
  std::string joined;
  for (const auto& piece : wire::pieces(message)) joined += piece.payload;
  require(joined == message, "pieces that are not the whole");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Input input(data, bytes);
  switch (input.take<uint8_t>() % 3) {
    case 0:
      shake_hands(input);
      break;
    case 1:
      receive_frames(input);
      break;
    default:
      unpack(input);
  }
  return 0;
}
