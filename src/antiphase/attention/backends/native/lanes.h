// Numbers as AVX-512 takes them, sixteen at a time, in float32 whatever they are kept in.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <functional>

namespace {

using at::BFloat16;
using at::Tensor;
using Floats = at::vec::Vectorized<float>;

constexpr int64_t kLanes = Floats::size();

Floats load(const float* from, int64_t count) { return Floats::loadu(from, count); }
Floats load(const BFloat16* from, int64_t count) {
  __m512 found;
  at::vec::cvtbf16_fp32(
      count == kLanes ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                      : _mm256_maskz_loadu_epi16((1 << count) - 1, from),
      found);
  return found;
}
__m256i to_bf16(Floats x) {
#ifdef __AVX512BF16__
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
  return at::vec::cvtfp32_bf16(x);
#endif
}
void store(float* to, Floats x, int64_t count) { x.store(to, count); }
void store(BFloat16* to, Floats x, int64_t count) {
  if (count == kLanes)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(x));
  else
    _mm256_mask_storeu_epi16(to, (1 << count) - 1, to_bf16(x));
}

// Folds what ``each`` returns of 0, kLanes, … below ``count``, in four chains: each step waits for the one before it.
template <typename Each, typename Two>
float fold(int64_t count, float start, Each each, Two two) {
  Floats a(start), b(start), c(start), d(start);
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a = two(a, each(i));
    b = two(b, each(i + kLanes));
    c = two(c, each(i + 2 * kLanes));
    d = two(d, each(i + 3 * kLanes));
  }
  for (; i < count; i += kLanes) a = two(a, each(i));
  return at::vec::vec_reduce_all<float>(two, two(two(a, b), two(c, d)));
}

}  // namespace
