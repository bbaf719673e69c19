// The RMSNorm behind each head, forward and backward, every row by itself and in float32.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "lanes.h"

namespace {

constexpr int64_t kRows = 256;  // summed together, whatever the number of threads: the weight's gradient stays the same

// Rows are done in functions of their own: what a thread shares would be read again behind every writing.

// Returns inverse = 1 / √(mean(x²) + eps) and writes x · inverse · weight.
template <typename T, typename To>
float normalise_row(const T* x, const To* weight, int64_t width, float eps, To* out) {
  const auto square = [&](int64_t i) {
    const Floats some = load(x + i, std::min(kLanes, width - i));
    return some * some;
  };
  const float inverse = 1 / std::sqrt(fold(width, 0, square, std::plus<>()) / static_cast<float>(width) + eps);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t some = std::min(kLanes, width - i);
    store(out + i, load(x + i, some) * Floats(inverse) * load(weight + i, some), some);
  }
  return inverse;
}

template <typename T>
void normalise(const Tensor& x, const Tensor& weight, double eps, const Tensor& out, const Tensor& inverse) {
  const int64_t width = x.size(-1);
  const T *from = x.const_data_ptr<T>(), *by = weight.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  float* found = inverse.mutable_data_ptr<float>();
  at::parallel_for(0, inverse.numel(), kRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      found[row] = normalise_row(from + row * width, by, width, static_cast<float>(eps), to + row * width);
  });
}

// With u = kept · of_kept · of_row, which is x · inverse: ∂x = inverse · (grad · weight − u · mean(grad · weight · u)), and
// ∂weight = Σ grad · u, which is added to sums unless these are null.
template <typename T>
void differentiate_row(
    const T* grad, const T* kept, const float* of_kept, float of_row, float inverse, const float* weight, int64_t width,
    T* to_x, float* sums) {
  const auto unit = [&](int64_t i, int64_t some) {
    return load(kept + i, some) * load(of_kept + i, some) * Floats(of_row);
  };
  const auto correlate = [&](int64_t i) {
    const int64_t some = std::min(kLanes, width - i);
    const Floats along = load(grad + i, some) * unit(i, some);
    if (sums) store(sums + i, load(sums + i, some) + along, some);
    return along * load(weight + i, some);
  };
  const Floats mean(fold(width, 0, correlate, std::plus<>()) / static_cast<float>(width));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t some = std::min(kLanes, width - i);
    const Floats along = load(grad + i, some) * load(weight + i, some);
    store(to_x + i, (along - unit(i, some) * mean) * Floats(inverse), some);
  }
}

// kept: the output, where it can be divided by the weight, or x; to_weight: a sum for each kRows rows, or null.
template <typename T>
void differentiate(
    const Tensor& grad, const Tensor& kept, const Tensor& inverse, const Tensor& weight, bool divide, const Tensor& to_x,
    float* to_weight) {
  const int64_t width = kept.size(-1), rows = inverse.numel();
  const T *arrived = grad.const_data_ptr<T>(), *held = kept.const_data_ptr<T>();
  const float* over = inverse.const_data_ptr<float>();
  T* found = to_x.mutable_data_ptr<T>();
  std::vector<float> by(width), of_kept(width);
  for (int64_t i = 0; i < width; i++) {
    by[i] = weight.const_data_ptr<T>()[i];
    of_kept[i] = divide ? 1 / by[i] : 1;
  }
  at::parallel_for(0, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kRows; row < std::min(rows, end * kRows); row++)
      differentiate_row(
          arrived + row * width, held + row * width, of_kept.data(), divide ? 1 : over[row], over[row], by.data(), width,
          found + row * width, to_weight ? to_weight + row / kRows * width : nullptr);
  });
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  Tensor out = at::empty(x.sizes(), x.options());
  auto of_rows = x.sizes().vec();
  of_rows.back() = 1;
  Tensor inverse = at::empty(of_rows, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? normalise<float> : normalise<BFloat16>;
  run(x, weight, eps, out, inverse);
  return {out, inverse};
}

// Returns the gradients of x and, where it is trained, the weight.
std::tuple<Tensor, std::optional<Tensor>> rms_norm_backward(
    const Tensor& grad, const Tensor& kept, const Tensor& inverse, const Tensor& weight, bool divide, bool trained) {
  const int64_t width = kept.size(-1), parts = trained ? (inverse.numel() + kRows - 1) / kRows : 0;
  Tensor to_x = at::empty(kept.sizes(), kept.options());
  std::vector<float> sums(parts * width);
  const auto run = kept.scalar_type() == at::kFloat ? differentiate<float> : differentiate<BFloat16>;
  run(grad, kept, inverse, weight, divide, to_x, trained ? sums.data() : nullptr);
  if (!trained) return {to_x, std::nullopt};
  Tensor to_weight = at::zeros({width}, inverse.options());
  float* total = to_weight.mutable_data_ptr<float>();
  for (int64_t i = 0; i < parts * width; i++) total[i % width] += sums[i];
  return {to_x, to_weight.to(weight.scalar_type())};
}

}  // namespace
