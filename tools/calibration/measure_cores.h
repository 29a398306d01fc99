// Measures what training needs of this machine's cores, for the planner (megatron/plan).
//
// Kernels are measured as ranks of one thread run them: each core has a rank, and all of them run
// the same kernel at once, so that they share memory, caches and the clock's rate as in a step.
#ifndef TOOLS_CALIBRATION_MEASURE_CORES_H_
#define TOOLS_CALIBRATION_MEASURE_CORES_H_

#include <vector>

#include "megatron/plan/measured_kernels.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

struct KernelRate {
  KernelShape shape;
  double flops_per_s = 0;  // one rank's rate
};

struct CoreRates {
  double peak_flops_per_s = 0;        // one core's rate of fused multiply-adds in fp32
  double bf16_products = 0;           // speed of products in bf16 as a share of those in fp32
  double thread_efficiency = 0;       // see Hardware.thread_efficiency
  double thread_meeting_seconds = 0;  // see Hardware.thread_meeting_us
  double memory_bytes_per_s = 0;      // read and written, of one core
  double far_memory_efficiency = 1;   // see Hardware.far_memory_efficiency
  // Share of the memory's rate that kernels between products reach, by the planner's count of their
  // bytes; they are above 1 where caches hold the operands.
  double memory_efficiency = 0;
  double gated_memory_efficiency = 0;  // of layers whose MLPs have gates
  // Seconds of these kernels in both passes of a layer beside those of their bytes.
  double layer_overhead_seconds = 0;
  double optimizer_efficiency = 0;
  double routing_score_seconds = 0;   // see Implementation.routing_score_seconds
  double permutation_efficiency = 0;  // see Implementation.permutation_efficiency
  std::vector<KernelRate> kernels;    // products, attention and recurrences
};

// Takes about `seconds`. The less time there is, the more of the large kernels are left out. No
// other work should run on the machine.
CoreRates MeasureCores(int cores, double seconds);

// A product of a small layer, by which machines are compared with themselves.
KernelShape ProbeShape();

// What each core reaches while all cores run the same.
struct ProbeRates {
  double flops_per_s = 0;         // in the product of ProbeShape()
  double memory_bytes_per_s = 0;  // read and written, as CoreRates has them
};

// Takes `seconds` for each of them. Cores of a virtual machine may lose half of their speed to
// others on the same processor, of which nothing tells but their speed.
ProbeRates MeasureProbe(int cores, double seconds);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_MEASURE_CORES_H_
