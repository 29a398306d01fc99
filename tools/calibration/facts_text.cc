#include "tools/calibration/facts_text.h"

#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
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

// Returns the number of the entry of that name; their number if it is not there.
template <typename Entries>
int IndexOf(const Entries& entries, const std::string& name) {
  int index = 0;
  while (index < entries.size() && entries[index].name() != name) ++index;
  return index;
}

// Returns the text with the field in the entry of the list with that index, which is there: in its
// old place, or in front of the name.
std::string WithField(const std::string& text, const char* list, int index, const std::string& name,
                      const std::string& value) {
  PlanFacts facts;
  TextFormat::ParseInfoTree places;
  TextFormat::Parser parser;
  parser.WriteLocationsTo(&places);
  CHECK(parser.ParseFromString(text, &facts));
  const auto* const entries = PlanFacts::descriptor()->FindFieldByName(list);
  const TextFormat::ParseInfoTree* const entry = places.GetTreeForNested(entries, index);
  const auto range = [&](const std::string& field) {
    return entry->GetLocationRange(entries->message_type()->FindFieldByName(field), /*index=*/-1);
  };
  std::string field = absl::StrCat(name, ": ", value);
  TextFormat::ParseLocationRange place = range(name);
  if (place.start.line < 0) {
    place = range("name");
    absl::StrAppend(&field, "\n", std::string(place.start.column, ' '));
    place.end = place.start;
  }
  return absl::StrCat(text.substr(0, OffsetOf(text, place.start)), field,
                      text.substr(OffsetOf(text, place.end)));
}

std::string ToText(double value) { return absl::StrFormat("%.9g", value); }

}  // namespace

std::string WithFittedConstants(const std::string& text, const Implementation& program) {
  PlanFacts facts;
  CHECK(TextFormat::ParseFromString(text, &facts));
  const int index = IndexOf(facts.implementation(), program.name());
  if (index == facts.implementation_size()) {
    PlanFacts added;
    *added.add_implementation() = program;
    std::string entry;
    TextFormat::PrintToString(added, &entry);
    return absl::StrCat(text, absl::EndsWith(text, "\n") ? "" : "\n", entry);
  }
  constexpr const char* kList = "implementation";
  return WithField(
      WithField(text, kList, index, "measured_efficiency", ToText(program.measured_efficiency())),
      kList, index, "step_seconds", ToText(program.step_seconds()));
}

std::string WithDisk(const std::string& text, const Hardware& hardware) {
  PlanFacts facts;
  CHECK(TextFormat::ParseFromString(text, &facts));
  const int index = IndexOf(facts.hardware(), hardware.name());
  CHECK_LT(index, facts.hardware_size()) << hardware.name();
  std::string changed = text;
  for (const auto& [name, value] :
       {std::make_pair("disk_read_gb_per_s", ToText(hardware.disk_read_gb_per_s())),
        std::make_pair("disk_write_gb_per_s", ToText(hardware.disk_write_gb_per_s())),
        std::make_pair("disk_gb", ToText(hardware.disk_gb())),
        std::make_pair("disk_directory",
                       absl::StrCat("\"", absl::CEscape(hardware.disk_directory()), "\""))}) {
    changed = WithField(changed, "hardware", index, name, value);
  }
  return changed;
}

}  // namespace megatron
