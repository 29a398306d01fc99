// The findings of from_megatron: what it says besides the configuration.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_FINDINGS_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_FINDINGS_H_

#include <string>
#include <vector>

namespace megatron {

// The effects of a flag or a key on the run, the gravest first.
enum class Effect {
  kResults,   // It changes what is learned, and the configuration cannot say it.
  kToDo,      // The configuration is not complete without the user.
  kRounding,  // Results differ by rounding.
  kSaid,      // It is said in another way, or in another unit.
  kDefault,   // It was not given, and the default here is another one.
  kSpeed,     // It changes time, memory or what is written, and has no counterpart.
  kNothing,   // It needs nothing here.
};

struct Finding {
  Effect effect;
  std::string where;    // "train.sh:12", or empty
  std::string subject;  // "--decoupled-lr 5e-4", "fp16.auto_cast"
  std::string text;     // what it means, as one sentence without a full stop
};

using Findings = std::vector<Finding>;

// Returns the text for the user: the errors, then the findings, which are sorted by their effects.
std::string FindingsReport(const Findings& findings, const std::vector<std::string>& errors);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_FINDINGS_H_
