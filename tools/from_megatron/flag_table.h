// The differences between Megatron-LM's flags and the fields of config.proto.
//
// A flag `--some-name` sets the field `some_name`, wherever it is. The table has only the flags of
// which that is not true, and the fields whose defaults differ.

#ifndef MEGATRON_TOOLS_FROM_MEGATRON_FLAG_TABLE_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_FLAG_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/from_megatron/findings.h"

namespace megatron {

// One thing that a flag does. Several rows of a flag all count.
struct FlagRow {
  absl::string_view flag;   // "use-flash-attn"; "wandb-*" is every flag that begins with "wandb-"
  absl::string_view value;  // The row counts only for this value; empty: for those without a row.
  absl::string_view path;   // the field that is set, or empty
  absl::string_view sets;   // the field's value; empty: the flag's own
  Effect effect;            // kNothing with an empty `why` is not worth a word
  absl::string_view why;
};

// The `why` of flags that from_megatron.cc reads together with others, and reports itself.
constexpr absl::string_view kReadWithOthers = "it is read together with other flags";

// Returns the rows that count for the flag, without its dashes, and its value. Underscores count as
// dashes.
std::vector<const FlagRow*> FindRows(absl::string_view flag, absl::string_view value);

// Returns the path of the field that is named as the flag, or empty if there is none. Fields that
// are not Megatron's are not found.
std::string FindField(absl::string_view flag);

// Returns the names of all flags that are known, without the dashes before them.
const std::vector<std::string>& KnownFlags();

// A field that has another default in Megatron.
struct DefaultRow {
  absl::string_view path;
  // Megatron's defaults in the three programs.
  absl::string_view gpt;
  absl::string_view bert;
  absl::string_view t5;
  absl::string_view ours;  // the default here, in words
};

absl::Span<const DefaultRow> DefaultRows();

// Returns whether no flag of Megatron's sets the field: "parallel.ranks_as".
bool IsOurOwnField(absl::string_view path);

// Returns all rows, for tests.
absl::Span<const FlagRow> AllFlagRows();

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_FLAG_TABLE_H_
