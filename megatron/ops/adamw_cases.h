// Operands of AdamW for tests of its bits, and its definition applied to them.
#ifndef MEGATRON_OPS_ADAMW_CASES_H_
#define MEGATRON_OPS_ADAMW_CASES_H_

#include <cstdint>
#include <vector>

#include "megatron/ops/host_tensor.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct AdamWCase {
  HostTensor grad, m, v, master, out;

  std::vector<HostTensor*> tensors() { return {&grad, &m, &v, &master, &out}; }
};

struct AdamWDTypes {
  DType out = DType::kFloat32, m = DType::kFloat32, v = DType::kFloat32;
};

// Types of which some moment is bf16, and of which some are 8-bit floats.
std::vector<AdamWDTypes> WithMomentsInBFloat16();
std::vector<AdamWDTypes> WithMomentsInFloat8();

// `count` elements: first all combinations of special values (zeros, denormals, infinities, NaN,
// the largest and smallest), as many as there is room for; then in turn values of the sizes that
// training has and any bits.
AdamWCase MakeAdamWCase(int64_t count, const AdamWDTypes& dtypes, uint32_t seed);

// Returns element i of a moment, and sets it; Format is that of its codes if it is kUInt8.
template <typename Format>
float GetMoment(const HostTensor& moment, int64_t i);
template <typename Format>
void SetMoment(float x, int64_t i, HostTensor* moment);

// Returns the case with remainders in place of its masters, and their weights as `out`, in bf16.
AdamWCase WithRemainders(AdamWCase whole);
// Fails the test unless weights and remainders are those of the other's masters, and moments are
// the other's.
void ExpectSameMasters(const AdamWCase& with_remainders, const AdamWCase& want);

// Applies AdamWElement to the elements of the segment.
void UpdateByElement(const AdamWOptions& options, const OptimizerSegment& segment,
                     AdamWCase* elements);

// Fails the test where bits of the tensors differ, but for those of a NaN.
void ExpectSameBits(const HostTensor& got, const HostTensor& want);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ADAMW_CASES_H_
