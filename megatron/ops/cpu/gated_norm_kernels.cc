#include "megatron/ops/cpu/gated_norm_kernels.h"

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// A part's inputs, and what its gates take longest to compute.
template <typename T>
struct Inputs {
  const T *x, *z, *gamma;
  float* sigmoid;  // of z

  // What the next part reads and writes.
  struct Next {
    const T* operand[6];
    int count = 0;

    explicit Next(const GatedPart* next) {
      if (next == nullptr) return;
      const void* const all[] = {next->x, next->z, next->y, next->dy, next->dx, next->dz};
      for (const void* p : all)
        if (p != nullptr) operand[count++] = static_cast<const T*>(p);
    }
  };

  explicit Inputs(const GatedPart& part)
      : x(static_cast<const T*>(part.x)),
        z(static_cast<const T*>(part.z)),
        gamma(static_cast<const T*>(part.gamma)),
        sigmoid(part.scratch) {
    const Next next(part.next);
    ForEachVec(part.width, [&](auto access, int64_t c) {
      access.store(sigmoid + c, Sigmoid(access.load(z + c)));
      for (int i = 0; i < next.count; ++i)
        _mm_prefetch(reinterpret_cast<const char*>(next.operand[i] + c), _MM_HINT_T0);
    });
  }

  template <typename Access>
  MEGATRON_INLINE_MEMBER Vec Gate(Access access, int64_t c) const {
    return access.load(z + c) * access.load(sigmoid + c);
  }
};

template <typename T>
Inputs<T> InputsOf(const T*, const GatedPart& part) {
  return Inputs<T>(part);
}

// What is normalized at column c.
template <typename T, typename Access>
MEGATRON_INLINE Vec Normed(const GatedPart& part, Access access, const Inputs<T>& in, int64_t c) {
  const Vec value = access.load(in.x + c);
  return part.norm_before_gate ? value : value * in.Gate(access, c);
}

// The gradient behind the norm and gamma at column c.
template <typename T, typename Access>
MEGATRON_INLINE Vec Behind(const GatedPart& part, Access access, const Inputs<T>& in, int64_t c) {
  const Vec gradient = access.load(static_cast<const T*>(part.dy) + c);
  return part.norm_before_gate ? gradient * in.Gate(access, c) : gradient;
}

template <typename T>
float Squares(const GatedPart& part, const Inputs<T>& in) {
  Vec sum = Zero();
  ForEachVec(part.width, [&](auto access, int64_t c) {
    const Vec v = Normed(part, access, in, c);
    sum = Fma(v, v, sum);
  });
  return Sum(sum);
}

template <typename T>
float Products(const GatedPart& part, const Inputs<T>& in) {
  Vec sum = Zero();
  ForEachVec(part.width, [&](auto access, int64_t c) {
    sum = Fma(Behind(part, access, in, c) * access.load(in.gamma + c), Normed(part, access, in, c),
              sum);
  });
  return Sum(sum);
}

template <typename T>
float ReciprocalRms(const GatedPart& part, const Inputs<T>& in) {
  const float squares = part.squares != nullptr ? *part.squares : Squares(part, in);
  return 1 / __builtin_sqrtf(squares / static_cast<float>(part.columns) + part.epsilon);
}

template <typename T>
void Forward(const T*, const GatedPart& part) {
  const Inputs<T> in(part);
  T* const y = static_cast<T*>(part.y);
  const Vec rms = Set(ReciprocalRms(part, in));
  ForEachVec(part.width, [&](auto access, int64_t c) {
    const Vec normed = Normed(part, access, in, c) * rms * access.load(in.gamma + c);
    access.store(y + c, part.norm_before_gate ? normed * in.Gate(access, c) : normed);
  });
}

template <typename T>
void Backward(const T*, const GatedPart& part) {
  const Inputs<T> in(part);
  const T* const dy = static_cast<const T*>(part.dy);
  T *const dx = static_cast<T*>(part.dx), *const dz = static_cast<T*>(part.dz);
  const float reciprocal = ReciprocalRms(part, in);
  const Vec rms = Set(reciprocal);
  // The gradient of what is normalized, times its value over the rms, on average.
  const float products = part.products != nullptr ? *part.products : Products(part, in);
  const Vec along = Set(reciprocal * products / static_cast<float>(part.columns));
  ForEachVec(part.width, [&](auto access, int64_t c) {
    const Vec gate = access.load(in.z + c), sigmoid = access.load(in.sigmoid + c);
    const Vec gradient = access.load(dy + c), value = access.load(in.x + c);
    const Vec normalized = Normed(part, access, in, c) * rms, scale = access.load(in.gamma + c);
    const Vec behind = Behind(part, access, in, c);
    access.store(part.dgamma + c, Fma(behind, normalized, access.load(part.dgamma + c)));
    const Vec of_normed = rms * (behind * scale - normalized * along);
    const Vec slope = SiluSlope(gate, sigmoid);
    if (part.norm_before_gate) {
      access.store(dx + c, of_normed);
      access.store(dz + c, gradient * normalized * scale * slope);
    } else {
      access.store(dx + c, of_normed * (gate * sigmoid));
      access.store(dz + c, of_normed * value * slope);
    }
  });
}

}  // namespace

float GatedPartSquares(const GatedPart& part) {
  float sum = 0;
  WithType(part.dtype, [&](auto* type) { sum = Squares(part, InputsOf(type, part)); });
  return sum;
}

float GatedPartProducts(const GatedPart& part) {
  float sum = 0;
  WithType(part.dtype, [&](auto* type) { sum = Products(part, InputsOf(type, part)); });
  return sum;
}

void GatedPartForward(const GatedPart& part) {
  WithType(part.dtype, [&](auto* type) { Forward(type, part); });
}

void GatedPartBackward(const GatedPart& part) {
  WithType(part.dtype, [&](auto* type) { Backward(type, part); });
}

}  // namespace megatron::ops::MEGATRON_ISA
