// Reads what predictions are made from: hardware, implementations and models.
//
//   MEGATRON_ASSIGN_OR_RETURN(const PlanFacts facts, ParsePlanFacts(text));
//   MEGATRON_ASSIGN_OR_RETURN(const Hardware* gpu, FindHardware(facts, "DGX-H100"));
//
// Names are compared without case, spaces, '-', '_' and '.'.
#ifndef MEGATRON_PLAN_PLAN_FACTS_H_
#define MEGATRON_PLAN_PLAN_FACTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

// Returns kInvalidArgument with the line of the first error, or with the entry and the field that
// has an impossible value.
absl::StatusOr<PlanFacts> ParsePlanFacts(absl::string_view text);

// The facts that the program carries: plan_facts.textproto.
absl::string_view BuiltInPlanFacts();

// Each returns a pointer into `facts`, or kNotFound with the names that there are.
absl::StatusOr<const Hardware*> FindHardware(const PlanFacts& facts, absl::string_view name);
absl::StatusOr<const Implementation*> FindImplementation(const PlanFacts& facts,
                                                         absl::string_view name);
absl::StatusOr<const PlanModel*> FindPlanModel(const PlanFacts& facts, absl::string_view name);

// Returns the sentence that names the guesses among the two entries' figures: "guesses: ..."; empty
// if there are none.
std::string NameGuesses(const Hardware& hardware, const Implementation& program);

}  // namespace megatron

#endif  // MEGATRON_PLAN_PLAN_FACTS_H_
