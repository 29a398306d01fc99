#include "megatron/ops/cpu/vec_test_kernels.h"

#include "megatron/ops/cpu/philox_vec.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

template <typename In, typename Out, typename Function>
void Map(const In* in, int64_t count, Out* out, Function function) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(out + i, function(Load(in + i)));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) StorePartial(out + i, function(LoadPartial(in + i, rest)), rest);
}

void ExpOf(const float* in, int64_t count, float* out) {
  Map(in, count, out, [](Vec x) { return Exp(x); });
}
void LogOf(const float* in, int64_t count, float* out) {
  Map(in, count, out, [](Vec x) { return Log(x); });
}
void ErfOf(const float* in, int64_t count, float* out) {
  Map(in, count, out, [](Vec x) { return Erf(x); });
}
template <typename In, typename Out>
void Convert(const In* in, int64_t count, Out* out) {
  Map(in, count, out, [](Vec x) { return x; });
}
float SumOf(const float* in) { return Sum(Load(in)); }
float MaxOfLanes(const float* in) { return MaxOf(Load(in)); }
void Scales(PhiloxKey key, uint64_t sample, uint32_t position, int64_t first_column, int64_t count,
            uint32_t threshold, float scale, float* out) {
  DropoutScales({key, threshold, scale}, sample, position, first_column, count, out);
}

}  // namespace

const VecTestKernels kVecTestKernels = {kLanes,
                                        ExpOf,
                                        LogOf,
                                        ErfOf,
                                        Convert<float, BFloat16>,
                                        Convert<float, Float16>,
                                        Convert<BFloat16, float>,
                                        Convert<Float16, float>,
                                        SumOf,
                                        MaxOfLanes,
                                        Scales};

}  // namespace megatron::ops::MEGATRON_ISA
