// Dropout of attention's probabilities; attention.h says which random word belongs to which
// probability.
//
// Lanes are rows, as in attention_blocks.h. Each lane has its own Philox key and counter, and one
// Philox block serves four keys.
#ifndef MEGATRON_OPS_CPU_ATTENTION_DROPOUT_H_
#define MEGATRON_OPS_CPU_ATTENTION_DROPOUT_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_blocks.h"
#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/philox_vec.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

inline Words LoadLanes(const uint32_t* p) {
  Words words;
  __builtin_memcpy(&words, p, sizeof(words));
  return words;
}

// The Philox of base/philox.h, with a separate key and counter in each lane.
MEGATRON_INLINE void PhiloxLanes(Words key_lo, Words key_hi, Words counter[4]) {
  const Words m0 = SetWords(0xD2511F53u), m1 = SetWords(0xCD9E8D57u);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    Words low0, high0, low1, high1;
    Multiply(counter[0], m0, &low0, &high0);
    Multiply(counter[2], m1, &low1, &high1);
    counter[0] = Xor(high1, counter[1], key_lo);
    counter[1] = low1;
    counter[2] = Xor(high0, counter[3], key_hi);
    counter[3] = low0;
    key_lo = AddWords(key_lo, SetWords(0x9E3779B9u));
    key_hi = AddWords(key_hi, SetWords(0xBB67AE85u));
  }
}

// The parts of Philox's key and counter that belong to each row of a block.
struct DropoutRows {
  uint32_t key_lo[kRowBlock], key_hi[kRowBlock], sample_lo[kRowBlock], sample_hi[kRowBlock],
      position[kRowBlock];
  const int32_t* place = nullptr;  // positions of the sequence's keys; null: their indices

  int64_t PlaceOf(int64_t key) const { return place == nullptr ? key : place[key]; }

  DropoutRows(const AttentionProblem& problem, const AttentionPiece& piece, const Rows& rows) {
    if (problem.place_k != nullptr) place = problem.place_k + piece.k_begin;
    if (!problem.dropout) return;
    for (int64_t i = 0; i < rows.padded; ++i) {
      const uint32_t* key =
          problem.dropout_keys + 2 * (piece.group * problem.group_heads + rows.head[i]);
      const uint64_t sample = static_cast<uint64_t>(problem.sample[rows.token[i]]);
      key_lo[i] = key[0];
      key_hi[i] = key[1];
      sample_lo[i] = static_cast<uint32_t>(sample);
      sample_hi[i] = static_cast<uint32_t>(sample >> 32);
      position[i] = static_cast<uint32_t>(problem.position[rows.token[i]]);
    }
  }
};

// factor [key, row] = the multiplier of each probability: 0 or dropout_scale.
inline void DropoutFactors(const AttentionProblem& problem, const DropoutRows& random,
                           const Rows& rows, const Keys& keys, float* factor) {
  const DropoutRule rule = {{}, problem.dropout_threshold, problem.dropout_scale};
  for (int64_t j = 0, end; j < keys.count; j = end) {
    // Keys [j, end) take consecutive words of one block.
    const int64_t place = random.PlaceOf(keys.first + j), first_word = place % 4;
    for (end = j + 1; end < keys.count && first_word + end - j < 4; ++end) {
      if (random.PlaceOf(keys.first + end) != place + end - j) break;
    }
    const uint32_t block = static_cast<uint32_t>(place / 4);
    for (int64_t i = 0; i < rows.padded; i += kLanes) {
      Words words[4] = {LoadLanes(random.sample_lo + i), LoadLanes(random.sample_hi + i),
                        LoadLanes(random.position + i), SetWords(block)};
      PhiloxLanes(LoadLanes(random.key_lo + i), LoadLanes(random.key_hi + i), words);
      for (int64_t key = j; key < end; ++key) {
        Store(factor + key * kRowBlock + i, KeepScale(words[first_word + key - j], rule));
      }
    }
  }
}

// values [key, row] *= factor.
inline void MultiplyByFactors(const Rows& rows, const Keys& keys, const float* factor,
                              float* values) {
  for (int64_t j = 0; j < keys.count; ++j) {
    for (int64_t i = 0; i < rows.padded; i += kLanes) {
      float* p = values + j * kRowBlock + i;
      Store(p, Load(p) * Load(factor + j * kRowBlock + i));
    }
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_DROPOUT_H_
