#include "megatron/train/configs/config_loader.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_nearest_name.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_shipped.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr char kExtension[] = ".textproto";
// Configurations are a page or two; a checkpoint given by mistake must not be read into memory.
constexpr uintmax_t kLargestFile = 1 << 20;

// One error for a file of another kind, in place of one for each of its bytes.
absl::Status CheckIsText(absl::string_view text, const std::string& path) {
  int line = 1;
  for (const char byte : text) {
    if (byte == '\n') ++line;
    if (!absl::ascii_iscntrl(static_cast<unsigned char>(byte)) || absl::ascii_isspace(byte))
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no text: line ", line, " holds the byte 0x",
                     absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2),
                     "; a configuration is written in protobuf's text format"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
  const uintmax_t size = fs::file_size(path, error);
  if (!error && size > kLargestFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", size, " bytes, which no configuration has"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kLargestFile, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() || file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  MEGATRON_RETURN_IF_ERROR(CheckIsText(text, path));
  return text;
}

absl::StatusOr<FoundConfig> FindShipped(const std::string& name, const std::string& looked_at) {
  std::vector<std::string> names;
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    if (shipped.name == name || shipped.name == absl::StrCat(name, kExtension)) {
      return FoundConfig{absl::StrCat(shipped.name, " (shipped)"), std::string(shipped.text)};
    }
    names.emplace_back(shipped.name);
  }
  std::vector<std::string> spellings = names;
  for (const std::string& full : names) {
    spellings.emplace_back(absl::StripSuffix(full, kExtension));
  }
  const std::string nearest = NearestName(name, spellings);
  return absl::NotFoundError(
      absl::StrCat("there is no configuration ", name, ": no file ", looked_at,
                   ", and none is shipped by that name",
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                   " (shipped are ", absl::StrJoin(names, ", "), ")"));
}

}  // namespace

std::string PathFromWhereTheUserStands(const std::string& path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr) return path;
  return (fs::path(directory) / path).string();  // an absolute path stays as it is
}

absl::StatusOr<FoundConfig> FindConfig(const std::string& name) {
  if (name.empty()) return absl::InvalidArgumentError("no configuration is given: --config=FILE");
  const std::string path = PathFromWhereTheUserStands(name);
  std::error_code error;
  if (fs::exists(path, error)) {
    MEGATRON_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
    return FoundConfig{name, std::move(text)};
  }
  if (fs::path(name).has_parent_path())
    return absl::NotFoundError(absl::StrCat("there is no configuration ", path));
  return FindShipped(name, fs::absolute(path, error).string());
}

namespace {

absl::StatusOr<LoadedConfig> Complete(ParsedConfig parsed, ConfigPurpose purpose) {
  std::vector<ConfigError> errors = std::move(parsed.errors);
  for (ConfigError& error : Validate(parsed.config, parsed.locations, purpose))
    errors.push_back(std::move(error));
  MEGATRON_RETURN_IF_ERROR(ToStatus(errors));
  ResolveDefaults(&parsed.config);
  return LoadedConfig{std::move(parsed.config), std::move(parsed.locations)};
}

}  // namespace

absl::StatusOr<LoadedConfig> LoadConfigFromString(absl::string_view text, absl::string_view source,
                                                  const std::vector<std::string>& overrides,
                                                  ConfigPurpose purpose) {
  return Complete(ParseConfig(text, source, overrides), purpose);
}

absl::StatusOr<LoadedConfig> LoadSavedConfig(absl::string_view text, absl::string_view source) {
  ParsedConfig parsed = ParseConfig(text, source, {}, UnknownSections::kIgnore);
  // Checkpoints may have them beside what a run refuses now. They are about how a run goes on.
  if (parsed.config.has_checkpoint()) parsed.config.mutable_checkpoint()->clear_no_load_optim();
  if (parsed.config.has_data()) parsed.config.mutable_data()->clear_data_sharding();
  return Complete(std::move(parsed), ConfigPurpose::kDryRun);
}

absl::StatusOr<LoadedConfig> LoadConfig(const std::string& name,
                                        const std::vector<std::string>& overrides,
                                        ConfigPurpose purpose) {
  MEGATRON_ASSIGN_OR_RETURN(const FoundConfig found, FindConfig(name));
  return LoadConfigFromString(found.text, found.source, overrides, purpose);
}

}  // namespace megatron
