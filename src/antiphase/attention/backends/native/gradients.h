// The gradients of attention: each thread takes a head, makes its maps again, some queries at a time, and sums over these
// what the keys and values get. What a head gets depends on nothing else.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "attention.h"
#include "lanes.h"
#include "operands.h"

namespace {

// One query of a head: over its scores the exponentials of each branch, two may be null, and the gradient of its map.
struct Query {
  float *one, *two, *of_map;
  float share_one = 0, share_two = 0;  // times the exponentials: A1 and −λ·A2
  float mean_one = 0, mean_two = 0;  // of the gradient, under A1 and A2
};

// Of 16 keys: the map A1 − λ·A2 and the gradient of each branch's scores, A1 · (∂map − mean) and −λ·A2 · (∂map − mean).
struct Block {
  Floats map, of_one, of_two;
};
Block differentiate(const Query& query, int64_t i, float scale) {
  const Floats along = Floats::loadu(query.of_map + i), one = Floats::loadu(query.one + i) * Floats(query.share_one);
  const Floats of_one = one * (along - Floats(query.mean_one)) * Floats(scale);
  if (!query.two) return {one, of_one, of_one};
  const Floats two = Floats::loadu(query.two + i) * Floats(query.share_two);
  return {one + two, of_one, two * (along - Floats(query.mean_two)) * Floats(scale)};
}

// Makes a query's exponentials and what stands beside them; of one that may attend to nothing all is 0.
template <typename T>
Query make_query(
    float* one, float* two, float* of_map, int64_t count, int64_t padded, float scale, const float* bias, float lam,
    bool dead) {
  Query query{one, two, of_map};
  if (dead) std::fill(of_map, of_map + padded, 0);
  const auto weigh = [&](float* scores, float weight, float& share, float& mean) {
    if (dead) return std::fill(scores, scores + padded, 0);
    const float over = 1 / exponentiate<T>(scores, count, scale, bias);
    const auto along = [&](int64_t i) { return Floats::loadu(scores + i) * Floats::loadu(of_map + i); };
    share = weight * over;
    mean = over * fold(round_up(count, kLanes), 0, along, std::plus<>());
  };
  weigh(one, 1, query.share_one, query.mean_one);
  if (two) weigh(two, -lam, query.share_two, query.mean_two);
  return query;
}

// Writes maps, and over the exponentials the gradients of scores.
void finish(const Query& query, int64_t padded, float scale, float* map) {
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Block found = differentiate(query, i, scale);
    found.map.store(map + i);
    found.of_one.store(query.one + i);
    if (query.two) found.of_two.store(query.two + i);
  }
}

// Writes two queries' maps and gradients of scores as right sides, and to the left the gradients; apart: of two branches.
void finish_pair(
    const Query& even, const Query& odd, int64_t padded, float scale, int64_t apart, BFloat16* maps, BFloat16* left,
    BFloat16* right) {
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Block one = differentiate(even, i, scale), two = differentiate(odd, i, scale);
    store_pair(maps + 2 * i, one.map, two.map);
    store_pair(right + 2 * i, one.of_one, two.of_one);
    store(left + i, one.of_one, kLanes);
    store(left + padded + i, two.of_one, kLanes);
    if (!even.two) continue;
    store_pair(right + apart + 2 * i, one.of_two, two.of_two);
    store(left + apart + i, one.of_two, kLanes);
    store(left + apart + padded + i, two.of_two, kLanes);
  }
}

// What a call is given, and where it writes.
struct Call {
  const Tensor& grad;
  at::TensorList queries, keys;
  const Tensor& values;
  const float* lam;
  const std::optional<Tensor>&bias, &dead;
  at::TensorList to_queries, to_keys;
  const Tensor& to_values;
};

// A thread's memory, and what it does with a head.
template <typename T>
class Head {
 public:
  explicit Head(const Call& call)
      : call(call),
        branches(call.queries.size()),
        count(call.grad.size(2)),
        width(call.queries[0].size(3)),
        key_count(call.values.size(2)),
        value_width(call.values.size(3)),
        padded(round_up(key_count, kUnit<T>)),
        most(queries_at_once(count, padded, kUnit<T>)),
        step(round_up(count, kUnit<T>)),
        scale(1 / std::sqrt(static_cast<float>(width))),
        keys_across(branches * width * padded),
        values_across(value_width * padded),
        paired_keys(kPairs ? branches * width * padded : 0),
        queries_across(branches * width * step),
        grad_across(value_width * step),
        scores(branches * most * padded),
        of_maps(most * padded),
        of_keys(branches * width * padded),
        of_values(value_width * padded),
        maps(most * padded),
        left(kPairs ? scores.size() : 0),
        right(kPairs ? scores.size() : 0),
        room(kPairs ? std::max({most * width, key_count * width, key_count * value_width}) : 0) {}

  // Writes a head's gradients and returns λ's.
  float run(int64_t sample, int64_t head) {
    const auto upstream = rows_of<const T>(call.grad, sample, head), v = rows_of<const T>(call.values, sample, head);
    transpose_keys<T>(v, key_count, value_width, values_across.data(), padded);
    transpose_rows(upstream, count, value_width, grad_across.data(), step);
    Rows<const T> q[2], k[2];
    for (int64_t branch = 0; branch < branches; branch++) {
      q[branch] = rows_of<const T>(call.queries[branch], sample, head);
      const auto own = rows_of<const T>(call.keys[branch], sample, head);
      transpose_rows(q[branch], count, width, of(branch, queries_across, width * step), step);
      transpose_keys<T>(own, key_count, width, of(branch, keys_across, width * padded), padded);
      k[branch] = pair_values(own, key_count, width, of(branch, paired_keys, width * padded));
    }
    double of_lam = 0;
    for (int64_t first = 0; first < count; first += most) {
      const int64_t rows = std::min(most, count - first);
      for (int64_t branch = 0; branch < branches; branch++)
        multiply(
            rows, padded, width, q[branch][first], q[branch].step, of(branch, keys_across, width * padded), padded,
            false, of(branch, scores, most * padded), padded);
      multiply(
          rows, padded, value_width, upstream[first], upstream.step, values_across.data(), padded, false,
          of_maps.data(), padded);
      of_lam += make_operands(sample, head, first, rows);
      const int64_t summed = kPairs ? round_up(rows, kUnit<T>) : rows;
      multiply(
          value_width, padded, summed, grad_across.data() + first, step, maps.data(), padded, first > 0,
          of_values.data(), padded);
      for (int64_t branch = 0; branch < branches; branch++) {
        multiply(
            width, padded, summed, of(branch, queries_across, width * step) + first, step, right_of(branch), padded,
            first > 0, of(branch, of_keys, width * padded), padded);
        write_queries(left_of(branch), k[branch], rows, rows_of<T>(call.to_queries[branch], sample, head), first);
      }
    }
    for (int64_t branch = 0; branch < branches; branch++)
      write_transposed(
          of(branch, of_keys, width * padded), padded, key_count, width,
          rows_of<T>(call.to_keys[branch], sample, head), room.data());
    write_transposed(
        of_values.data(), padded, key_count, value_width, rows_of<T>(call.to_values, sample, head), room.data());
    return static_cast<float>(of_lam);
  }

 private:
  static constexpr bool kPairs = sizeof(T) == 2;

  template <typename U>
  static U* of(int64_t branch, Memory<U>& all, int64_t size) {
    return all.data() + branch * size;
  }
  T* left_of(int64_t branch) {
    if constexpr (kPairs) return of(branch, left, most * padded);
    else return of(branch, scores, most * padded);
  }
  T* right_of(int64_t branch) {
    if constexpr (kPairs) return of(branch, right, most * padded);
    else return of(branch, scores, most * padded);
  }

  // (rows, summed) by (summed, columns), each with the distance of its rows.
  static void multiply(
      int64_t rows, int64_t columns, int64_t summed, const T* one, int64_t step_one, const T* two, int64_t step_two,
      bool add, float* out, int64_t step_out) {
    blas::brgemm(rows, columns, summed, step_one, step_two, step_out, add, one, two, out, kPairs);
  }

  // Makes the maps of some queries and the gradients of their scores, and returns λ's. What is left of the last unit is
  // an earlier piece's, and meets a 0 in queries_across and grad_across.
  double make_operands(int64_t sample, int64_t head, int64_t first, int64_t rows) {
    const auto shift = call.bias ? rows_of<const float>(*call.bias, sample, head) : Rows<const float>{};
    const auto closed = call.dead ? rows_of<const bool>(*call.dead, sample, head) : Rows<const bool>{};
    double of_lam = 0;
    const auto query = [&](int64_t row) {
      float *one = scores.data() + row * padded, *two = branches == 2 ? one + most * padded : nullptr;
      const Query made = make_query<T>(
          one, two, of_maps.data() + row * padded, key_count, padded, scale, call.bias ? shift[first + row] : nullptr,
          call.lam[head], call.dead && *closed[first + row]);
      of_lam -= made.mean_two;
      return made;
    };
    for (int64_t row = 0; row < rows; row += kPairs ? 2 : 1) {
      const Query made = query(row);
      if constexpr (kPairs) {
        const Query next = row + 1 < rows ? query(row + 1) : made;
        const int64_t start = row * padded;
        finish_pair(
            made, next, padded, scale, most * padded, maps.data() + start, left.data() + start, right.data() + start);
      } else {
        finish(made, padded, scale, maps.data() + row * padded);
      }
    }
    return of_lam;
  }

  void write_queries(const T* of_scores, Rows<const T> k, int64_t rows, Rows<T> to, int64_t first) {
    float* products = nullptr;
    if constexpr (kPairs) products = room.data();
    else products = to[first];
    multiply(
        rows, width, kPairs ? padded : key_count, of_scores, padded, k.data, k.step, false, products,
        kPairs ? width : to.step);
    if constexpr (kPairs) write_rows(products, rows, width, {to[first], to.step});
  }

  const Call& call;
  const int64_t branches, count, width, key_count, value_width, padded, most, step;
  const float scale;
  Memory<T> keys_across, values_across, paired_keys, queries_across, grad_across;
  Memory<float> scores, of_maps, of_keys, of_values;
  Memory<T> maps, left, right;  // of bf16 the gradients of scores stand beside them: as left sides and as right
  Memory<float> room;
};

// Writes the gradients of queries, keys and values and returns those of λ, (samples, heads).
Tensor attention_backward(
    const Tensor& grad, at::TensorList queries, at::TensorList keys, const Tensor& values, const Tensor& lam,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& dead, at::TensorList to_queries,
    at::TensorList to_keys, const Tensor& to_values) {
  const Call call{grad, queries, keys, values, lam.const_data_ptr<float>(), bias, dead, to_queries, to_keys, to_values};
  Tensor to_lam = at::empty({grad.size(0), grad.size(1)}, lam.options());
  float* found = to_lam.mutable_data_ptr<float>();
  const auto run = [&](auto zero) {
    at::parallel_for(0, to_lam.numel(), 1, [&](int64_t begin, int64_t end) {
      Head<decltype(zero)> head(call);
      for (int64_t item = begin; item < end; item++)
        found[item] = head.run(item / grad.size(1), item % grad.size(1));
      blas::brgemm_release(sizeof(zero) == 2);
    });
  };
  grad.scalar_type() == at::kFloat ? run(0.0f) : run(BFloat16());
  return to_lam;
}

}  // namespace
