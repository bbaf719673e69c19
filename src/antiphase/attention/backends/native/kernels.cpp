// What Python sees of the kernels: torch.ops.antiphase.
#include <torch/library.h>

#include <exception>

#include "attention.h"
#include "gradients.h"
#include "norm.h"

namespace {

// Whether oneDNN has a product of bf16 in pairs here: it needs AVX512-BF16 and to be allowed it (ONEDNN_MAX_CPU_ISA).
bool multiplies_bf16() {
  static const bool found = [] {
    constexpr int64_t kSide = kUnit<BFloat16>;
    const Memory<BFloat16> one(kSide * kSide), two(kSide * kSide);
    Memory<float> sums(kSide * kSide);
    try {
      blas::brgemm(
          kSide, kSide, kSide, kSide, kSide, kSide, false, one.data(), two.data(), sums.data(), true);
      blas::brgemm_release(true);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }();
  return found;
}

}  // namespace

TORCH_LIBRARY(antiphase, library) {
  library.def(
      "attention(Tensor[] queries, Tensor[] keys, Tensor values, Tensor lam, Tensor? bias, Tensor? dead, "
      "Tensor? weight, float eps) -> Tensor");
  library.def(
      "attention_backward(Tensor grad, Tensor[] queries, Tensor[] keys, Tensor values, Tensor lam, Tensor? bias, "
      "Tensor? dead, Tensor(a!)[] to_queries, Tensor(b!)[] to_keys, Tensor(c!) to_values) -> Tensor");
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def(
      "rms_norm_backward(Tensor grad, Tensor kept, Tensor inverse, Tensor weight, bool divide, bool trained) "
      "-> (Tensor, Tensor?)");
  library.def("multiplies_bf16() -> bool");
  library.impl("attention", c10::DispatchKey::CPU, attention);
  library.impl("attention_backward", c10::DispatchKey::CPU, attention_backward);
  library.impl("rms_norm", c10::DispatchKey::CPU, rms_norm);
  library.impl("rms_norm_backward", c10::DispatchKey::CPU, rms_norm_backward);
  library.impl("multiplies_bf16", c10::DispatchKey::CompositeExplicitAutograd, multiplies_bf16);
}
