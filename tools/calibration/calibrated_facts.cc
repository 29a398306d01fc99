#include "tools/calibration/calibrated_facts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

// Ranks of one machine are all joined by its memory.
constexpr int kDomain = 1 << 16;
// MeasuredKernels refuses shares that are larger. Attention, which counts what a mask hides, has up
// to twice the peak; more says that the clock was slower while products were measured.
constexpr double kMostShare = 2;

// Returns the rate of fused multiply-adds, or that of the fastest product where the clock was
// slower while those were measured.
double Peak(const CoreRates& core) {
  double peak = core.peak_flops_per_s;
  for (const KernelRate& rate : core.kernels) {
    if (rate.shape.kernel == "product") peak = std::max(peak, rate.flops_per_s);
  }
  return peak;
}

double MeanShare(const MeasuredMachine& machine, const char* kernel) {
  double logs = 0;
  int count = 0;
  for (const KernelRate& rate : machine.core.kernels) {
    if (rate.shape.kernel != kernel || rate.shape.m < 512) continue;
    logs += std::log(rate.flops_per_s / Peak(machine.core));
    ++count;
  }
  return count == 0 ? 0.5 : std::min(1.5, std::exp(logs / count));
}

}  // namespace

PlanFacts CalibratedFacts(const MeasuredMachine& machine, const Implementation& program) {
  PlanFacts facts;
  const CoreRates& core = machine.core;
  Hardware* hardware = facts.add_hardware();
  hardware->set_name(machine.name);
  hardware->set_cores(machine.cores);
  hardware->set_thread_efficiency(machine.cores == 1 ? 1 : core.thread_efficiency);
  hardware->set_thread_meeting_us(1e6 * core.thread_meeting_seconds);
  hardware->set_far_memory_efficiency(core.far_memory_efficiency);
  hardware->set_fp32_tflops(Peak(core) * 1e-12);
  hardware->set_bf16_tflops(Peak(core) * 1e-12 * core.bf16_products);
  hardware->set_memory_gib(machine.memory_gib);
  hardware->set_memory_gb_per_s(core.memory_bytes_per_s * 1e-9);
  hardware->set_domain(kDomain);
  hardware->set_link_gb_per_s(machine.threads.bytes_per_s * 1e-9);
  hardware->set_link_latency_us(machine.threads.latency_us);
  hardware->set_link_rank_latency_us(machine.threads.rank_latency_us);
  hardware->set_lane_latency_us(machine.threads.lane_us);
  hardware->set_network_gb_per_s(machine.processes.bytes_per_s * 1e-9);
  hardware->set_network_latency_us(machine.processes.latency_us);
  Implementation* calibrated = facts.add_implementation();
  *calibrated = program;
  calibrated->set_measured_efficiency(1);
  calibrated->set_product_efficiency(MeanShare(machine, "product"));
  calibrated->set_attention_efficiency(MeanShare(machine, "attention"));
  calibrated->set_attention_half_heads(0);
  calibrated->set_attention_half_heads_backward(0);
  calibrated->set_memory_efficiency(core.memory_efficiency);
  calibrated->set_gated_memory_efficiency(core.gated_memory_efficiency);
  calibrated->set_layer_overhead_seconds(core.layer_overhead_seconds);
  calibrated->set_routing_score_seconds(core.routing_score_seconds);
  calibrated->set_permutation_efficiency(core.permutation_efficiency);
  calibrated->set_turn_seconds(machine.turn_seconds);
  calibrated->set_optimizer_efficiency(core.optimizer_efficiency);
  calibrated->set_link_efficiency(1);
  calibrated->set_network_efficiency(1);
  // What is left of the program's figures.
  calibrated->clear_guess();
  for (const char* field : {"product_half_size", "grouped_half_rows"}) calibrated->add_guess(field);
  return facts;
}

CsvTable CalibratedKernels(const MeasuredMachine& machine) {
  CsvTable table;
  table.columns = {"gpu", "kernel", "pass", "m", "n", "k", "share_of_peak"};
  const double peak = Peak(machine.core);
  for (const KernelRate& rate : machine.core.kernels) {
    const KernelShape& shape = rate.shape;
    const double share = std::min(kMostShare, rate.flops_per_s / peak);
    const auto add = [&](const std::string& kernel) {
      table.rows.push_back({machine.name, kernel, shape.pass, absl::StrCat(shape.m),
                            absl::StrCat(shape.n), absl::StrCat(shape.k),
                            absl::StrCat(std::max(1e-6, share))});
    };
    add(shape.kernel);
    if (shape.kernel == "product") add("grouped");
  }
  return table;
}

}  // namespace megatron
