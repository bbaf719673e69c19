// Attention: each thread takes some queries of a head, makes the maps of both branches in its own cache, subtracts them
// and multiplies the values once. Sums are made in float32, products by oneDNN through ATen. What a query gets depends
// on nothing but its own head.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "lanes.h"
#include "norm.h"
#include "operands.h"

namespace {

constexpr int64_t kTile = 16;  // rows that a matrix unit takes together
constexpr int64_t kScores = 1 << 16;  // of a branch that are held at once: 256 KiB of a core's own cache
constexpr int64_t kSummed = 512;  // keys of a product: of more, float32 loses digits in one chain of sums
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How many queries of a head are held at once: whole steps, and as even parts of all as can be.
int64_t queries_at_once(int64_t count, int64_t keys, int64_t step) {
  const int64_t at_most = std::clamp<int64_t>(kScores / keys / step * step, step, 128);
  const int64_t parts = (count + at_most - 1) / at_most;
  return round_up((count + parts - 1) / parts, step);
}

// Writes exp(scale · scores + bias − their maximum) over the scores and returns the sum; what is not finite gives NaN,
// which neither a maximum nor an exponential here would keep.
template <typename T>
[[gnu::always_inline]] inline float exponentiate(float* scores, int64_t count, float scale, const float* bias) {
  const int64_t padded = round_up(count, kLanes);
  if (bias) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const Floats shift = load(bias + i, std::min(kLanes, count - i));
      at::vec::fmadd(Floats::loadu(scores + i), Floats(scale), shift).store(scores + i);
    }
    scale = 1;
  }
  const __m512 least = _mm512_set1_ps(-kInfinity);  // behind the last: its exponential is 0
  const auto read = [&](int64_t i) -> Floats {
    return i + kLanes <= count ? _mm512_loadu_ps(scores + i)
                               : _mm512_mask_loadu_ps(least, (1 << (count - i)) - 1, scores + i);
  };
  __mmask16 odd = 0;
  const auto look = [&](int64_t i) {
    const Floats x = read(i);
    odd |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return x;
  };
  const float top = fold(padded, -kInfinity, look, [](Floats a, Floats b) -> Floats { return _mm512_max_ps(a, b); });
  const auto power = [&](int64_t i) {
    const Floats x = (read(i) - Floats(top)) * Floats(scale);  // the largest is 0, however large
    const Floats found = sizeof(T) == 2 ? x.fexp_u20() : x.exp_u20();  // to 13 or 20 bits
    found.store(scores + i);
    return found;
  };
  const float sum = fold(padded, 0, power, std::plus<>());
  return std::isfinite(top) && !odd ? sum : std::numeric_limits<float>::quiet_NaN();
}

// Writes softmax(scale · one + bias) − λ · softmax(scale · two + bias), over the scores its exponentials; two may be null.
template <typename T>
void make_map(float* one, float* two, int64_t count, float scale, const float* bias, float lam, T* map) {
  const int64_t padded = round_up(count, kLanes);
  const Floats share(1 / exponentiate<T>(one, count, scale, bias));
  if (!two) {
    for (int64_t i = 0; i < padded; i += kLanes) store(map + i, Floats::loadu(one + i) * share, kLanes);
    return;
  }
  const Floats other(-lam / exponentiate<T>(two, count, scale, bias));
  for (int64_t i = 0; i < padded; i += kLanes)
    store(map + i, at::vec::fmadd(Floats::loadu(two + i), other, Floats::loadu(one + i) * share), kLanes);
}

// To: what the output is kept in, and the norm's weight, which there is wherever To is not T.
template <typename T, typename To>
void attend(
    at::TensorList queries, at::TensorList keys, const Tensor& values, const float* lam,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& dead, const std::optional<Tensor>& weight,
    float eps, const Tensor& out) {
  constexpr bool kPairs = sizeof(T) == 2;
  const int64_t branches = queries.size(), heads = out.size(1), count = out.size(2), width = queries[0].size(3);
  const int64_t key_count = values.size(2), value_width = values.size(3);
  const int64_t padded = round_up(key_count, kUnit<T>), summed = kPairs ? padded : key_count;
  const int64_t most = queries_at_once(count, padded, kTile), parts = (count + most - 1) / most;
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  const To* by = weight ? weight->const_data_ptr<To>() : nullptr;

  at::parallel_for(0, out.size(0) * heads * parts, 1, [&](int64_t begin, int64_t end) {
    Memory<T> right(branches * width * padded), paired_values(kPairs ? padded * value_width : 0);
    Memory<T> maps(most * padded);  // what stands behind a row's keys stays 0
    Memory<float> scores(branches * most * padded), sums(kPairs ? most * value_width : 0);
    Memory<T> rounded(std::is_same_v<T, To> ? 0 : most * value_width);
    Rows<const T> v{};
    for (int64_t item = begin, held = -1; item < end; item++) {
      const int64_t first = item % parts * most, head = item / parts % heads, sample = item / parts / heads;
      const int64_t rows = std::min(most, count - first);
      if (item / parts != held) {
        held = item / parts;
        for (int64_t branch = 0; branch < branches; branch++)
          transpose_keys<T>(
              rows_of<const T>(keys[branch], sample, head), key_count, width, right.data() + branch * width * padded,
              padded);
        v = pair_values(rows_of<const T>(values, sample, head), key_count, value_width, paired_values.data());
      }
      for (int64_t branch = 0; branch < branches; branch++) {
        const auto q = rows_of<const T>(queries[branch], sample, head);
        blas::brgemm(
            rows, padded, width, q.step, padded, padded, false, q[first], right.data() + branch * width * padded,
            scores.data() + branch * most * padded, kPairs);
      }
      const auto shift = bias ? rows_of<const float>(*bias, sample, head) : Rows<const float>{};
      const auto closed = dead ? rows_of<const bool>(*dead, sample, head) : Rows<const bool>{};
      for (int64_t row = 0; row < rows; row++) {
        float *one = scores.data() + row * padded, *two = branches == 2 ? one + most * padded : nullptr;
        T* map = maps.data() + row * padded;
        if (dead && *closed[first + row])
          std::fill(map, map + padded, T(0));
        else
          make_map(one, two, key_count, scale, bias ? shift[first + row] : nullptr, lam[head], map);
      }
      const auto to = rows_of<To>(out, sample, head);
      float* products = nullptr;
      if constexpr (kPairs)
        products = sums.data();
      else
        products = to[first];
      for (int64_t key = 0; key < key_count; key += kSummed)
        blas::brgemm(
            rows, value_width, std::min(kSummed, summed - key), padded, v.step, kPairs ? value_width : to.step, key > 0,
            maps.data() + key, v[key], products, kPairs);
      if constexpr (std::is_same_v<T, To>) {
        if constexpr (kPairs) write_rows(products, rows, value_width, {to[first], to.step});
        if (by)
          for (int64_t row = first; row < first + rows; row++) normalise_row(to[row], by, value_width, eps, to[row]);
      } else {
        write_rows(products, rows, value_width, {rounded.data(), value_width});
        for (int64_t row = 0; row < rows; row++)
          normalise_row(rounded.data() + row * value_width, by, value_width, eps, to[first + row]);
      }
    }
    blas::brgemm_release(kPairs);
  });
}

// Queries and keys: one tensor a branch, (samples, heads, tokens, width); bias and dead rows as broadcast views; weight:
// of the norm that each query's row of a head then passes, or none. The output is kept in the weight's type.
Tensor attention(
    at::TensorList queries, at::TensorList keys, const Tensor& values, const Tensor& lam,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& dead, const std::optional<Tensor>& weight,
    double eps) {
  const auto &q = queries[0], &v = values;
  const auto kept = weight ? weight->scalar_type() : v.scalar_type();
  Tensor out = at::empty({v.size(0), q.size(2), v.size(1), v.size(3)}, v.options().dtype(kept)).transpose(1, 2);
  const auto of_bf16 = kept == at::kFloat ? attend<BFloat16, float> : attend<BFloat16, BFloat16>;
  const auto run = v.scalar_type() == at::kFloat ? attend<float, float> : of_bf16;
  run(queries, keys, values, lam.const_data_ptr<float>(), bias, dead, weight, static_cast<float>(eps), out);
  return out;
}

}  // namespace
