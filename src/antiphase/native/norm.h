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

template <typename T>
void normalise(const Tensor& x, const Tensor& weight, double eps, const Tensor& out, const Tensor& inverse) {
  const int64_t width = x.size(-1);
  const T *from = x.const_data_ptr<T>(), *by = weight.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  float* kept = inverse.mutable_data_ptr<float>();
  at::parallel_for(0, inverse.numel(), std::max<int64_t>(1, (1 << 15) / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const T* values = from + row * width;
      const auto square = [&](int64_t i) {
        const Floats some = load(values + i, std::min(kLanes, width - i));
        return some * some;
      };
      const float mean = fold(width, 0, square, std::plus<>()) / static_cast<float>(width);
      kept[row] = 1 / std::sqrt(mean + static_cast<float>(eps));
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t some = std::min(kLanes, width - i);
        store(to + row * width + i, load(values + i, some) * Floats(kept[row]) * load(by + i, some), some);
      }
    }
  });
}

// unit = x · inverse is kept / weight where the output is kept, kept · inverse where x is. With u = unit:
// ∂x = inverse · (grad · weight − u · mean(grad · weight · u)), ∂weight = Σ grad · u, here a sum for each kRows rows.
template <typename T>
void differentiate(
    const Tensor& grad, const Tensor& kept, const Tensor& inverse, const Tensor& weight, bool divide, const Tensor& to_x,
    float* to_weight) {
  const int64_t width = kept.size(-1), rows = inverse.numel();
  std::vector<float> by(width), of_kept(width);
  for (int64_t i = 0; i < width; i++) {
    by[i] = weight.const_data_ptr<T>()[i];
    of_kept[i] = divide ? 1 / by[i] : 1;
  }
  at::parallel_for(0, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kRows; row < std::min(rows, end * kRows); row++) {
      const T *arrived = grad.const_data_ptr<T>() + row * width, *held = kept.const_data_ptr<T>() + row * width;
      const float over = inverse.const_data_ptr<float>()[row];
      float* sums = to_weight ? to_weight + row / kRows * width : nullptr;
      const auto unit = [&](int64_t i, int64_t some) {
        return load(held + i, some) * load(of_kept.data() + i, some) * Floats(divide ? 1 : over);
      };
      const auto correlate = [&](int64_t i) {
        const int64_t some = std::min(kLanes, width - i);
        const Floats along = load(arrived + i, some) * unit(i, some);
        if (sums) store(sums + i, load(sums + i, some) + along, some);
        return along * load(by.data() + i, some);
      };
      const Floats mean(fold(width, 0, correlate, std::plus<>()) / static_cast<float>(width));
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t some = std::min(kLanes, width - i);
        const Floats found = load(arrived + i, some) * load(by.data() + i, some) - unit(i, some) * mean;
        store(to_x.mutable_data_ptr<T>() + row * width + i, found * Floats(over), some);
      }
    }
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
