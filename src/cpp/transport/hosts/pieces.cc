#include "transport/hosts/pieces.h"

#include <algorithm>
#include <exception>
#include <list>
#include <utility>

#include "transport/hosts/runs.h"

namespace a2a::hosts {
namespace {

// The least size of a piece. All pieces are large, so that they keep their order; the last one may be up to twice as
// long.
constexpr size_t kPiece = Network::kLarge;
constexpr size_t kInFlight = 4;

class InPieces final : public Transfer {
 public:
  InPieces(Network& network, Process peer, uint32_t tag, std::span<const Run> runs, bool sends)
      : network_(network), peer_(peer), tag_(tag), runs_(runs), sends_(sends), left_(bytes_of(runs)) {
    try {
      begin_pieces();
    } catch (...) {  // the network has some pieces; done() throws
      failure_ = std::current_exception();
    }
  }

  bool done() override {
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
    while (!pieces_.empty() && pieces_.front().transfer->done()) {
      finish(pieces_.front());
      pieces_.pop_front();
      begin_pieces();
    }
    return pieces_.empty();
  }

  void abandon() noexcept override {
    end();
    for (Piece& piece : pieces_) piece.transfer->abandon();
  }

  void withdraw() noexcept override {
    end();
    for (Piece& piece : pieces_) piece.transfer->withdraw();
  }

 private:
  struct Piece {
    std::unique_ptr<std::byte[]> memory;
    Run run;                             // the memory
    std::unique_ptr<Transfer> transfer;  // of it
  };

  // Begins no more pieces, and discards those that come.
  void end() noexcept {
    left_ = 0;
    ended_ = true;
  }

  void begin_pieces() {
    while (left_ > 0 && pieces_.size() < kInFlight) {
      const size_t bytes = left_ < 2 * kPiece ? left_ : kPiece;
      Piece& piece = pieces_.emplace_back();
      piece.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
      piece.run = {runs_.front().peer, piece.memory.get(), bytes};
      if (sends_) {
        pass(piece.run, [](const Run& run, size_t at, size_t count, std::byte* to) { gather(run, at, count, to); });
      }
      try {
        const std::span<const Run> run(&piece.run, 1);
        piece.transfer = sends_ ? network_.send(peer_, tag_, run) : network_.receive(peer_, tag_, run);
      } catch (...) {
        pieces_.pop_back();
        end();
        throw;
      }
      left_ -= bytes;
    }
  }

  void finish(Piece& piece) {
    if (sends_ || ended_) return;
    pass(piece.run, [](const Run& run, size_t at, size_t count, std::byte* from) { scatter(run, at, count, from); });
  }

  // Calls copy(run, at, count, the piece's memory) for the next bytes of the runs, as many as the piece has.
  template <class Copy>
  void pass(const Run& piece, Copy&& copy) {
    for (size_t done = 0; done < piece.bytes;) {
      const Run& run = runs_[index_];
      const size_t count = std::min(run.bytes - offset_, piece.bytes - done);
      copy(run, offset_, count, piece.data + done);
      done += count;
      offset_ += count;
      if (offset_ == run.bytes) ++index_, offset_ = 0;
    }
  }

  Network& network_;
  const Process peer_;
  const uint32_t tag_;
  const std::span<const Run> runs_;
  const bool sends_;
  bool ended_ = false;
  std::exception_ptr failure_;     // of the first pieces; done() throws it, once
  size_t left_;                    // bytes for which no piece was begun
  size_t index_ = 0, offset_ = 0;  // the next bytes to pack or unpack: a run, and bytes within it
  std::list<Piece> pieces_;        // in the network; a list, so that their runs do not move
};

}  // namespace

std::unique_ptr<Transfer> send_in_pieces(Network& network, Process to, uint32_t tag, std::span<const Run> runs) {
  return std::make_unique<InPieces>(network, to, tag, runs, true);
}

std::unique_ptr<Transfer> receive_in_pieces(Network& network, Process from, uint32_t tag, std::span<const Run> runs) {
  return std::make_unique<InPieces>(network, from, tag, runs, false);
}

}  // namespace a2a::hosts
