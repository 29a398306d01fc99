#include "megatron/train/metrics/outer_round.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/quantity.h"

namespace megatron {
namespace {

std::string Traffic(const IslandLink::Round& round) {
  return absl::StrFormat("; %s sent, %s received, %.2f s", FormatBytes(round.sent_bytes),
                         FormatBytes(round.received_bytes), absl::ToDoubleSeconds(round.time));
}

std::string Privacy(const IslandLink::Round& round) {
  if (!round.epsilon) return "";
  return absl::StrFormat(
      "; epsilon %.4g at delta %.3g%s", *round.epsilon, round.delta,
      round.budget_spent ? ", and the privacy budget allows no more rounds" : "");
}

std::string Costs(const IslandLink::Round& round) {
  return absl::StrCat(Privacy(round), Traffic(round));
}

}  // namespace

std::string DescribeRound(const IslandLink::Round& round) {
  const std::string number = absl::StrCat("outer round ", round.round);
  if (round.stopped) return absl::StrCat("no outer step: this run is to stop");
  if (!round.left_out.empty()) {
    return absl::StrCat(number, ": this island's update is left out (", round.left_out,
                        "), and it goes on from the global copy", Costs(round));
  }
  if (!round.took_part) {
    return absl::StrCat(number,
                        ": the round before ended without this island, whose update is lost; it "
                        "goes on from the global copy",
                        Costs(round));
  }
  if (round.present.empty()) {
    return absl::StrCat(number, ": no outer step (", round.note, ")", Costs(round));
  }
  return absl::StrCat(number, ": islands ", absl::StrJoin(round.present, ", "), Costs(round));
}

std::string DescribeJoining(const IslandLink::Round& round) {
  if (round.stopped) return "the outer server was not joined: this run is to stop";
  return absl::StrCat("joined the outer server at round ", round.round, ", ",
                      round.has_copy ? "from the global copy there" : "with this run's copy",
                      Costs(round));
}

}  // namespace megatron
