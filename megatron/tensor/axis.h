// The parallel axes and sets of them.
#ifndef MEGATRON_TENSOR_AXIS_H_
#define MEGATRON_TENSOR_AXIS_H_

#include <cstdint>
#include <initializer_list>

namespace megatron {

// The dense grid cuts ranks along kTensor, kContext, kData and kPipeline, the expert grid along
// kTensor (of experts), kExpert, kData (of experts) and kPipeline.
enum class Axis : uint8_t { kTensor, kContext, kExpert, kData, kPipeline };
constexpr int kNumAxes = 5;

constexpr const char* Name(Axis axis) {
  switch (axis) {
    case Axis::kTensor:
      return "tp";
    case Axis::kContext:
      return "cp";
    case Axis::kExpert:
      return "ep";
    case Axis::kData:
      return "dp";
    case Axis::kPipeline:
      return "pp";
  }
  return "?";
}

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) bits_ |= Bit(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & Bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr bool operator==(AxisSet a, AxisSet b) { return a.bits_ == b.bits_; }
  friend constexpr bool operator<(AxisSet a, AxisSet b) { return a.bits_ < b.bits_; }

 private:
  static constexpr uint8_t Bit(Axis axis) {
    return static_cast<uint8_t>(1u << static_cast<int>(axis));
  }
  uint8_t bits_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_AXIS_H_
