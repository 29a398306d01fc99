// Messages of elements as small signed integers, in which every group of neighbouring elements has
// a scale of its own.
//
// With c = 127 for codes of 8 bits and 7 for codes of 4, a group whose largest magnitude is A has
// the scale A / c. An element x is sent as the integer nearest to x / scale (ties to even), which
// lies in [-c, c], and received as that integer times the scale: off by A / (2 c) at most, besides
// fp32's own rounding. Zeros stay zeros. A group that has a NaN or an infinity is received as NaNs.
//
// A message is the fp32 scales of its groups, and then the codes in two's complement; of two codes
// in one byte the first is in the low bits. Its size is rounded up to 16 bytes. Legend: N elements,
// M bytes. x is fp32, bf16 or fp16; all tensors are contiguous. A GPU writes the bits that the CPU
// does.
#ifndef MEGATRON_OPS_COMPRESSION_GROUP_CODES_H_
#define MEGATRON_OPS_COMPRESSION_GROUP_CODES_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The bits of a code.
enum class CodeBits { k4, k8 };

// The number of elements of a group; the last group of a message may be smaller.
constexpr int64_t GroupSize(CodeBits bits) { return bits == CodeBits::k8 ? 256 : 64; }
// The bytes of a message of so many elements.
int64_t GroupMessageBytes(CodeBits bits, int64_t elements);

void EncodeGroups(const Stream& stream, CodeBits bits, const Tensor& x_N, const Tensor& message_M);
// x = the elements of the message.
void DecodeGroups(const Stream& stream, CodeBits bits, const Tensor& message_M, const Tensor& x_N);
// x += the elements of the message, in fp32.
void AddDecodedGroups(const Stream& stream, CodeBits bits, const Tensor& message_M,
                      const Tensor& x_N);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_COMPRESSION_GROUP_CODES_H_
