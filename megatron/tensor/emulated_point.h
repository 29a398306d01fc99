// EmulatedPoint: how far the streams of the emulated device are at a moment.
#ifndef MEGATRON_TENSOR_EMULATED_POINT_H_
#define MEGATRON_TENSOR_EMULATED_POINT_H_

#include <cstdint>
#include <map>

namespace megatron {

// The number of operations of each stream, by the stream's number, that have happened at a point.
using EmulatedPoint = std::map<int64_t, int64_t>;

}  // namespace megatron

#endif  // MEGATRON_TENSOR_EMULATED_POINT_H_
