// The bias of attention's scores by the distance of key and query (attention.h), and its gradient.
//
// Lanes are rows, as in attention_blocks.h. Each row block sums the gradient on its own, over keys
// in ascending order, so the bits do not depend on how the problem was split.
#ifndef MEGATRON_OPS_CPU_ATTENTION_BIAS_H_
#define MEGATRON_OPS_CPU_ATTENTION_BIAS_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_blocks.h"
#include "megatron/ops/cpu/attention_kernels.h"

namespace megatron::ops::MEGATRON_ISA {

class BiasRows {
 public:
  BiasRows(const AttentionProblem& problem, const AttentionPiece& piece, const Geometry& shape,
           const Rows& rows)
      : problem_(problem), rows_(rows) {
    if (problem.bias == nullptr) return;
    if (problem.place_k != nullptr) key_place_ = problem.place_k + piece.k_begin;
    for (int64_t i = 0; i < rows.padded; ++i) {
      const int64_t query = rows.token[i] - piece.q_begin;
      place_[i] = problem.place_q == nullptr ? static_cast<int32_t>(query + shape.diagonal)
                                             : problem.place_q[rows.token[i]];
      column_[i] = static_cast<int32_t>(piece.group * problem.group_heads + rows.head[i]);
    }
  }

  // scores [key, row] += bias.
  void AddTo(const Keys& keys, float* scores) const {
    if (problem_.bias == nullptr) return;
    for (int64_t j = 0; j < keys.count; ++j) {
      const int32_t place = KeyPlace(keys.first + j);
      float* const row = scores + j * kRowBlock;
      for (int64_t i = 0; i < rows_.padded; ++i)
        row[i] += problem_.bias[Entry(place, i) * problem_.bias_heads + column_[i]];
    }
  }

  // Returns where row block `block` of the piece sums the gradient, filled with zeros; null if the
  // gradient is not wanted.
  float* StartSums(const AttentionPiece& piece, int64_t block) const {
    if (problem_.bias_sums == nullptr || !piece.wants_dq) return nullptr;
    const int64_t size = problem_.group_heads * Width();
    float* const sums = problem_.bias_sums + (piece.row_blocks_before + block) * size;
    for (int64_t i = 0; i < size; ++i) sums[i] = 0;
    return sums;
  }
  // sums += ds [key, row], each element into the entry of its distance.
  void Sum(const Keys& keys, const float* ds, float* sums) const {
    for (int64_t j = 0; j < keys.count; ++j) {
      const int32_t place = KeyPlace(keys.first + j);
      const float* const row = ds + j * kRowBlock;
      for (int64_t i = 0; i < rows_.count; ++i)
        sums[rows_.head[i] * Width() + Entry(place, i)] += row[i];
    }
  }

 private:
  int64_t Width() const { return 2 * int64_t{problem_.bias_reach} + 1; }
  int32_t KeyPlace(int64_t key) const {
    return key_place_ == nullptr ? static_cast<int32_t>(key) : key_place_[key];
  }
  int32_t Entry(int32_t key_place, int64_t row) const {
    const int32_t distance = key_place - place_[row], reach = problem_.bias_reach;
    return (distance < -reach ? -reach : distance > reach ? reach : distance) + reach;
  }

  const AttentionProblem& problem_;
  const Rows& rows_;
  const int32_t* key_place_ = nullptr;  // positions of the sequence's keys; null: their indices
  int32_t place_[kRowBlock], column_[kRowBlock];
};

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_BIAS_H_
