// Philox4x32-10, a counter-based random generator, and the normal deviates drawn from it.
//
// A *key* names a stream (one parameter's initial values, one dropout site of one layer); a
// *counter* is a position in it. Equal (key, counter) give equal bits on every device, instruction
// set and layout, in any order: nothing here has state. All of it is plain IEEE arithmetic without
// fused multiply-add, so translation units that include it must be compiled with floating-point
// contraction off (our build's default).
//
// J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
#ifndef MEGATRON_BASE_PHILOX_H_
#define MEGATRON_BASE_PHILOX_H_

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define MEGATRON_HOST_DEVICE __host__ __device__
#else
#define MEGATRON_HOST_DEVICE
#endif

namespace megatron {

struct PhiloxKey {
  uint32_t lo = 0;
  uint32_t hi = 0;
};

// Four independent uniform words.
struct PhiloxBlock {
  uint32_t word[4];
};

MEGATRON_HOST_DEVICE inline PhiloxBlock Philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {
        {static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ key.lo, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ key.hi, static_cast<uint32_t>(p0)}};
    key.lo += 0x9E3779B9u;
    key.hi += 0xBB67AE85u;
  }
  return counter;
}

// Returns the key of a sub-stream. Streams of different (purpose, a, b) under one seed are
// independent.
MEGATRON_HOST_DEVICE inline PhiloxKey DeriveKey(uint64_t seed, uint32_t purpose, uint64_t a,
                                                uint32_t b) {
  const PhiloxBlock mixed =
      Philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
             {{purpose, static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), b}});
  return {mixed.word[0], mixed.word[1]};
}

// Purposes, the first word of DeriveKey. The values are part of what a seed means: never renumber
// them.
enum PhiloxPurpose : uint32_t {
  kPhiloxInit = 1,
  kPhiloxDropout = 2,
  kPhiloxSampling = 3,
  kPhiloxTokenDropping = 4
};

// Returns a number uniform in (0, 1], with 24 bits.
MEGATRON_HOST_DEVICE inline float UniformOpenZero(uint32_t word) {
  return (static_cast<float>(word >> 8) + 1.0f) * (1.0f / 16777216.0f);
}

// Makes two standard normal deviates from two words (Box and Muller's transform).
void BoxMuller(uint32_t first, uint32_t second, float* x, float* y);

// Fills out[0, count) with elements [begin, begin + count) of the standard normal stream `key`. Any
// piece of a tensor can be drawn without the rest of it.
void FillNormal(PhiloxKey key, int64_t begin, int64_t count, float* out);

}  // namespace megatron

#endif  // MEGATRON_BASE_PHILOX_H_
