// The same loops with AVX2, where this processor has it.
#include "core/fold/fold.h"
#include "core/fold/fold_kernels.h"

namespace a2a {

#if defined(__AVX2__)
const FoldKernels* fold_kernels_avx2(Fold fold, DType dtype) {
  static const bool has = __builtin_cpu_supports("avx2");
  return has ? fold_kernels::find(fold, dtype) : nullptr;
}
#else
const FoldKernels* fold_kernels_avx2(Fold, DType) { return nullptr; }
#endif

}  // namespace a2a
