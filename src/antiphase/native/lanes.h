// Numbers as the processor takes them, some at a time, in float32 whatever they are kept in.
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
  return at::vec::convert<float>(at::vec::Vectorized<BFloat16>::loadu(from, count));
}
void store(float* to, Floats x, int64_t count) { x.store(to, count); }
void store(BFloat16* to, Floats x, int64_t count) { at::vec::convert<BFloat16>(x).store(to, count); }

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
