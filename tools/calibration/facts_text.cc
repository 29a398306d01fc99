#include "tools/calibration/facts_text.h"

#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "google/protobuf/text_format.h"

namespace megatron {
namespace {

using google::protobuf::TextFormat;

constexpr int kTabWidth = 8;  // columns, as protobuf's tokenizer counts them

size_t OffsetOf(absl::string_view text, TextFormat::ParseLocation place) {
  size_t offset = 0;
  for (int line = 0; line < place.line; ++line) offset = text.find('\n', offset) + 1;
  for (int column = 0; column < place.column; ++offset)
    column = text[offset] == '\t' ? (column / kTabWidth + 1) * kTabWidth : column + 1;
  return offset;
}

// Returns the program's number among the implementations; their number if it is not there.
int IndexOf(const PlanFacts& facts, const std::string& program) {
  int index = 0;
  while (index < facts.implementation_size() && facts.implementation(index).name() != program)
    ++index;
  return index;
}

// Returns the text with the field in the program's entry, which is there: in its old place, or in
// front of the name.
std::string WithField(const std::string& text, const std::string& program, const std::string& name,
                      double value) {
  PlanFacts facts;
  TextFormat::ParseInfoTree places;
  TextFormat::Parser parser;
  parser.WriteLocationsTo(&places);
  CHECK(parser.ParseFromString(text, &facts));
  const TextFormat::ParseInfoTree* const entry = places.GetTreeForNested(
      PlanFacts::descriptor()->FindFieldByName("implementation"), IndexOf(facts, program));
  const auto range = [&](const std::string& field) {
    return entry->GetLocationRange(Implementation::descriptor()->FindFieldByName(field),
                                   /*index=*/-1);
  };
  std::string field = absl::StrFormat("%s: %.9g", name, value);
  TextFormat::ParseLocationRange place = range(name);
  if (place.start.line < 0) {
    place = range("name");
    absl::StrAppend(&field, "\n", std::string(place.start.column, ' '));
    place.end = place.start;
  }
  return absl::StrCat(text.substr(0, OffsetOf(text, place.start)), field,
                      text.substr(OffsetOf(text, place.end)));
}

}  // namespace

std::string WithFittedConstants(const std::string& text, const Implementation& program) {
  PlanFacts facts;
  CHECK(TextFormat::ParseFromString(text, &facts));
  if (IndexOf(facts, program.name()) == facts.implementation_size()) {
    PlanFacts added;
    *added.add_implementation() = program;
    std::string entry;
    TextFormat::PrintToString(added, &entry);
    return absl::StrCat(text, absl::EndsWith(text, "\n") ? "" : "\n", entry);
  }
  return WithField(
      WithField(text, program.name(), "measured_efficiency", program.measured_efficiency()),
      program.name(), "step_seconds", program.step_seconds());
}

}  // namespace megatron
