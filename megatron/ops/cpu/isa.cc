#include "megatron/ops/cpu/isa.h"

#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron::ops {
namespace {

// These checks include the operating system: whether it saves the wide registers. Every processor
// with AVX2 has F16C.
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}

absl::StatusOr<CpuIsa> Choose() {
  if (!HasAvx2()) {
    return absl::FailedPreconditionError(
        "this processor (or its hypervisor) offers no AVX2 and FMA, which the CPU backend needs; "
        "any x86-64 server since 2014 has them");
  }
  const char* wanted = std::getenv("MEGATRON_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return HasAvx512() ? CpuIsa::kAvx512 : CpuIsa::kAvx2;
  if (std::string(wanted) == "avx2") return CpuIsa::kAvx2;
  if (std::string(wanted) != "avx512") {
    return absl::InvalidArgumentError(
        absl::StrCat("MEGATRON_CPU_ISA is '", wanted, "'; it may be 'avx2' or 'avx512'"));
  }
  if (HasAvx512()) return CpuIsa::kAvx512;
  return absl::FailedPreconditionError(
      "MEGATRON_CPU_ISA is 'avx512', but this processor lacks AVX-512 (F, BW, CD, DQ and VL); it "
      "can run 'avx2'");
}

const absl::StatusOr<CpuIsa>& Choice() {
  static const auto& choice = *new absl::StatusOr<CpuIsa>(Choose());
  return choice;
}

}  // namespace

absl::Status CheckCpu() { return Choice().status(); }

CpuIsa ActiveIsa() {
  CHECK(Choice().ok()) << Choice().status();
  return *Choice();
}

const char* IsaName() { return ActiveIsa() == CpuIsa::kAvx512 ? "avx512" : "avx2"; }

}  // namespace megatron::ops
