// What a product of matrices takes: one head's rows, and the forms that the right side and the left must have.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <new>
#include <type_traits>
#include <vector>

#include "lanes.h"

namespace {

namespace blas = at::native::cpublas;

// Numbers of a row that a matrix unit takes at once, as many as fill a cache line; a sum over fewer is slow.
template <typename T>
constexpr int64_t kUnit = 64 / sizeof(T);

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Memory that begins with a cache line, so that a row of whole units does, too.
template <typename T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* held, size_t) { ::operator delete(held, kLine); }
  bool operator==(const Aligned&) const { return true; }
};
template <typename T>
using Memory = std::vector<T, Aligned<T>>;

// One head's rows of a tensor (samples, heads, rows, width) whose rows lie anywhere, each in one stretch.
template <typename T>
struct Rows {
  T* data;
  int64_t step;
  T* operator[](int64_t row) const { return data + row * step; }
};
template <typename T>
Rows<T> rows_of(const Tensor& x, int64_t sample, int64_t head) {
  const int64_t start = sample * x.stride(0) + head * x.stride(1);
  const int64_t step = x.size(2) > 1 ? x.stride(2) : x.size(3);  // of a single row it may be anything
  if constexpr (std::is_const_v<T>)
    return {x.const_data_ptr<std::remove_const_t<T>>() + start, step};
  else
    return {x.mutable_data_ptr<T>() + start, step};
}

// Keys as a product takes its right side: (width, step); of bf16 two neighbours of a key's numbers stay together.
template <typename T>
void transpose_keys(Rows<const T> keys, int64_t count, int64_t width, T* out, int64_t step) {
  constexpr int64_t kWord = sizeof(float) / sizeof(T);
  const auto *from = reinterpret_cast<const float*>(keys.data);
  auto* to = reinterpret_cast<float*>(out);
  at::vec::transpose_mxn<float>(
      from, keys.step / kWord, to, step, static_cast<int>(count), static_cast<int>(width / kWord));
}

// Values as a product takes its right side: float32 as it lies, of bf16 two keys' together.
Rows<const float> pair_values(Rows<const float> values, int64_t, int64_t, float*) { return values; }
Rows<const BFloat16> pair_values(Rows<const BFloat16> values, int64_t count, int64_t width, BFloat16* out) {
  auto* to = reinterpret_cast<uint32_t*>(out);
  for (int64_t key = 0; key < count; key += 2, to += width) {
    const auto* one = reinterpret_cast<const uint16_t*>(values[key]);
    const auto* two = reinterpret_cast<const uint16_t*>(values[std::min(key + 1, count - 1)]);
    const uint32_t there = key + 1 < count ? 0xffffffff : 0xffff;  // behind the last of an odd number stands 0
    for (int64_t i = 0; i < width; i++) to[i] = (static_cast<uint32_t>(two[i]) << 16 | one[i]) & there;
  }
  return {out, width};
}

// Two rows' numbers of the same columns as a product takes its right side.
void store_pair(BFloat16* to, Floats one, Floats two) {
  const __m512i low = _mm512_cvtepu16_epi32(to_bf16(one)), high = _mm512_cvtepu16_epi32(to_bf16(two));
  _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

// Rows as a product takes its left side when it sums over them: (width, count), the columns' rows ``step`` apart.
void transpose_rows(Rows<const float> rows, int64_t count, int64_t width, float* out, int64_t step) {
  at::vec::transpose_mxn<float>(rows.data, rows.step, out, step, static_cast<int>(count), static_cast<int>(width));
}
void transpose_rows(Rows<const BFloat16> rows, int64_t count, int64_t width, BFloat16* out, int64_t step) {
  constexpr int64_t kBlock = 32;
  for (int64_t row = 0; row < count; row += kBlock)
    for (int64_t i = 0; i < width; i += kBlock)
      at::vec::transpose_mxn<BFloat16>(
          rows[row] + i, rows.step, out + i * step + row, step, static_cast<int>(std::min(kBlock, count - row)),
          static_cast<int>(std::min(kBlock, width - i)));
}

// Writes a product's float32 rows to their place.
void write_rows(const float* from, int64_t count, int64_t width, Rows<BFloat16> to) {
  for (int64_t row = 0; row < count; row++, from += width)
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t some = std::min(kLanes, width - i);
      store(to[row] + i, load(from + i, some), some);
    }
}

// Writes (width, step), of which count numbers each, to rows; room: for as many numbers.
void write_transposed(const float* from, int64_t step, int64_t count, int64_t width, Rows<float> to, float*) {
  at::vec::transpose_mxn<float>(from, step, to.data, to.step, static_cast<int>(width), static_cast<int>(count));
}
void write_transposed(const float* from, int64_t step, int64_t count, int64_t width, Rows<BFloat16> to, float* room) {
  write_transposed(from, step, count, width, Rows<float>{room, width}, nullptr);
  write_rows(room, count, width, to);
}

}  // namespace
