#include "megatron/ops/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

// Compilers differ in the names that they have for the newer extensions.
struct Leaf7 {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Leaf7 CpuidLeaf7(unsigned subleaf) {
  Leaf7 words;
  if (__get_cpuid_count(7, subleaf, &words.eax, &words.ebx, &words.ecx, &words.edx) == 0) return {};
  return words;
}

bool HasAvx512Bf16() { return HasAvx512() && (CpuidLeaf7(1).eax & 1u << 5) != 0; }

// Linux saves the tiles of AMX only for a process that asked for them.
bool HasAmx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  const unsigned bits = CpuidLeaf7(0).edx;
  return HasAvx512() && (bits & kAmxBf16) != 0 && (bits & kAmxTile) != 0 &&
         syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

struct Isa {
  const char* name;
  CpuIsa isa;
  Bf16Products bf16_products;
  bool (*supported)();
  const char* what;  // the extensions that it needs
};

// Only the first two are ever chosen by default.
constexpr Isa kIsas[] = {
    {"avx2", CpuIsa::kAvx2, Bf16Products::kWidened, HasAvx2, "AVX2 and FMA"},
    {"avx512", CpuIsa::kAvx512, Bf16Products::kWidened, HasAvx512,
     "AVX-512 (F, BW, CD, DQ and VL)"},
    {"avx512_bf16", CpuIsa::kAvx512, Bf16Products::kAvx512Bf16, HasAvx512Bf16, "AVX512-BF16"},
    {"amx_bf16", CpuIsa::kAvx512, Bf16Products::kAmx, HasAmx,
     "AMX (TILE and BF16), or its operating system does not offer it"},
};

absl::StatusOr<Isa> Choose() {
  if (!HasAvx2()) {
    return absl::FailedPreconditionError(
        "this processor (or its hypervisor) offers no AVX2 and FMA, which the CPU backend needs; "
        "any x86-64 server since 2014 has them");
  }
  const Isa& best = HasAvx512() ? kIsas[1] : kIsas[0];
  const char* wanted = std::getenv("MEGATRON_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (const Isa& isa : kIsas) {
    if (absl::string_view(wanted) != isa.name) continue;
    if (isa.supported()) return isa;
    return absl::FailedPreconditionError(absl::StrCat("MEGATRON_CPU_ISA is '", wanted,
                                                      "', but this processor lacks ", isa.what,
                                                      "; it can run '", best.name, "'"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("MEGATRON_CPU_ISA is '", wanted,
                   "'; it may be 'avx2', 'avx512', 'avx512_bf16' or 'amx_bf16'"));
}

const absl::StatusOr<Isa>& Choice() {
  static const auto& choice = *new absl::StatusOr<Isa>(Choose());
  return choice;
}

const Isa& Active() {
  CHECK(Choice().ok()) << Choice().status();
  return *Choice();
}

}  // namespace

absl::Status CheckCpu() { return Choice().status(); }

CpuIsa ActiveIsa() { return Active().isa; }

Bf16Products ActiveBf16Products() { return Active().bf16_products; }

const char* IsaName() { return Active().name; }

}  // namespace megatron::ops
