#include "core/fold/fold.h"

#include <algorithm>
#include <string>

#include "core/fold/fold_kernels.h"

namespace a2a {

const FoldKernels* fold_kernels_avx2(Fold fold, DType dtype);  // nullptr where this processor or this build has none

namespace {

// Float8 is folded without tables, which would not be faster. It is rare, so its code is the same for every processor.
const FoldKernels* find_float8(Fold fold, DType dtype) {
  using namespace fold_kernels;
  if (dtype.bits != 8) return nullptr;
  switch (dtype.code) {
    case 7:
      return of_float<Eight<kE3m4>>(fold);
    case 8:
      return of_float<Eight<kE4m3>>(fold);
    case 9:
      return of_float<Eight<kE4m3b11fnuz>>(fold);
    case 10:
      return of_float<Eight<kE4m3fn>>(fold);
    case 11:
      return of_float<Eight<kE4m3fnuz>>(fold);
    case 12:
      return of_float<Eight<kE5m2>>(fold);
    case 13:
      return of_float<Eight<kE5m2fnuz>>(fold);
    default:
      return nullptr;
  }
}

const FoldKernels* find_kernels(Fold fold, DType dtype) {
  if (dtype.lanes != 1) return nullptr;
  if (const FoldKernels* found = fold_kernels_avx2(fold, dtype)) return found;
  if (const FoldKernels* found = fold_kernels::find(fold, dtype)) return found;
  return find_float8(fold, dtype);
}

}  // namespace

void require_defined(Fold fold, DType dtype) { Folder(fold, dtype); }

Folder::Folder(Fold fold, DType dtype) : kernels_(find_kernels(fold, dtype)), elem_bytes_(dtype.bytes()) {
  if (kernels_ != nullptr) return;
  throw Error(Code::invalid_argument,
              std::string("op \"") + to_string(fold) + "\" is not defined for " + to_string(dtype));
}

size_t Folder::acc_bytes() const { return kernels_->acc_bytes; }

void Folder::start(const std::byte* part, size_t elems, std::byte* acc) const { kernels_->start(part, elems, acc); }

void Folder::add(const std::byte* part, size_t elems, std::byte* acc) const { kernels_->add(part, elems, acc); }

void Folder::merge(const std::byte* more, size_t elems, std::byte* acc) const { kernels_->merge(more, elems, acc); }

void Folder::finish(const std::byte* acc, size_t elems, int ranks, std::byte* out) const {
  kernels_->finish(acc, elems, ranks, out);
}

bool Folder::scales() const { return kernels_->start_scaled != nullptr; }

void Folder::start(const std::byte* part, size_t elems, float weight, std::byte* acc) const {
  kernels_->start_scaled(part, elems, weight, acc);
}

void Folder::add(const std::byte* part, size_t elems, float weight, std::byte* acc) const {
  kernels_->add_scaled(part, elems, weight, acc);
}

void Folder::fold(std::span<const std::byte* const> parts, size_t elems, std::byte* out) const {
  if (parts.size() == 2) return kernels_->two(parts[0], parts[1], elems, out);
  // The accumulators fit in the L1 cache.
  constexpr size_t kAccBytes = size_t{8} << 10;
  alignas(64) std::byte acc[kAccBytes];
  const size_t most = kAccBytes / kernels_->acc_bytes;
  for (size_t done = 0; done < elems; done += most) {
    const size_t now = std::min(most, elems - done), at = done * elem_bytes_;
    kernels_->start(parts[0] + at, now, acc);
    for (const std::byte* part : parts.subspan(1)) kernels_->add(part + at, now, acc);
    kernels_->finish(acc, now, static_cast<int>(parts.size()), out + at);
  }
}

}  // namespace a2a
