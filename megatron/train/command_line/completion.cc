#include "megatron/train/command_line/completion.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "megatron/train/command_line/command_line.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"

namespace megatron {
namespace {

using google::protobuf::FieldDescriptor;

// Both scripts have the same structure. `flag` is the flag whose value is completed, and `value` is
// the part of the value that stands before the cursor.
//
// Bash breaks words at '=' too, but not for everybody: it depends on COMP_WORDBREAKS. So the script
// finds the words in the line itself, and its replies leave out what bash does not replace.
constexpr char kBash[] =
    R"script(# Completes the command line of PROGRAM. To have it in every shell, put this into ~/.bashrc:
#   source <(PROGRAM --completion=bash)
_PROGRAM() {
  local IFS=$' \t\n'
  local line=${COMP_LINE:0:COMP_POINT}
  local word=${line##*[[:space:]]}
  local before=${line%"$word"} flag='' head='' words='' candidate
  before=${before%"${before##*[![:space:]]}"}
  case ${before##*[[:space:]]} in
    --config | --set | --explain | --completion) flag=${before##*[[:space:]]} ;;
    -*) ;;
    *) [[ $before == *[[:space:]]--explain[[:space:]=]* ]] && flag=--explain ;;
  esac
  local value=$word
  case $word in
    --*=*) flag=${word%%=*} head=$flag= value=${word#*=} ;;
    -*) flag='' ;;
  esac
  case $flag in
    --config) words='CONFIGS' ;;
    --set)
      case $value in
        *=*)
          local field=${value%%=*}
          head+=$field=
          value=${value#*=}
          if [[ $value == *,* ]]; then
            head+=${value%,*},
            value=${value##*,}
          fi
          case $field in
VALUES
          esac ;;
        *) words='ASSIGNMENTS' ;;
      esac ;;
    --explain) words='FIELDS' ;;
    --completion) words='bash zsh' ;;
    --dry_run) words='full' ;;
    *) words='FLAGS' ;;
  esac
  local fixed=''
  [[ $COMP_WORDBREAKS == *=* && $head == *=* ]] && fixed=${head%=*}=
  COMPREPLY=()
  for candidate in $words; do
    [[ $candidate == "$value"* ]] && COMPREPLY+=("${head#"$fixed"}$candidate")
  done
  if [[ $flag == --config ]]; then
    while IFS= read -r candidate; do
      COMPREPLY+=("${head#"$fixed"}$candidate")
    done < <(compgen -f -X '!*.textproto' -- "$value"; compgen -d -S / -- "$value")
  fi
  case ${COMPREPLY[0]-} in
    *= | */) compopt -o nospace 2> /dev/null ;;
  esac
}
complete -F _PROGRAM PROGRAM
)script";

constexpr char kZsh[] = R"script(#compdef PROGRAM
# Completes the command line of PROGRAM. To have it in every shell, put this into ~/.zshrc after
# compinit:
#   source <(PROGRAM --completion=zsh)
_PROGRAM() {
  local flag='' field
  local -a candidates
  case $PREFIX in
    --*=*) flag=${PREFIX%%=*}; compset -P 1 '*=' ;;
    -*) ;;
    *)
      case $words[CURRENT-1] in
        --config|--set|--explain|--completion) flag=$words[CURRENT-1] ;;
        *) (( ${words[(I)--explain*]} )) && flag=--explain ;;
      esac ;;
  esac
  case $flag in
    --config)
      candidates=(CONFIGS)
      compadd -a candidates
      _files -g '*.textproto' ;;
    --set)
      if [[ $PREFIX != *=* ]]; then
        candidates=(ASSIGNMENTS)
        compadd -S '' -a candidates
        return
      fi
      field=${PREFIX%%=*}
      compset -P 1 '*='
      compset -P '*,'
      case $field in
VALUES
      esac
      compadd -a candidates ;;
    --explain)
      candidates=(FIELDS)
      compadd -a candidates ;;
    --completion) compadd bash zsh ;;
    --dry_run) compadd full ;;
    *)
      candidates=(FLAGS)
      compadd -S '' -- ${(M)candidates:#*=}
      compadd -- ${candidates:#*=} ;;
  esac
}
if [[ $funcstack[1] == _PROGRAM ]]; then
  _PROGRAM
else
  compdef _PROGRAM PROGRAM
fi
)script";

std::string Flags() {
  return absl::StrJoin(CommandLineFlags(), " ", [](std::string* out, const CommandLineFlag& flag) {
    absl::StrAppend(out, flag.name, flag.value == CommandLineFlag::Value::kRequired ? "=" : "");
  });
}

// Returns the names that the field accepts, with spaces between them; empty if it takes others.
std::string NamedValues(const FieldDescriptor& field) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "true false";
  return absl::StrJoin(AcceptedNames(field), " ");
}

// Returns one branch of a shell's `case` for each list of names, with all the fields that have it.
// `assignment` is what the branch does, with NAMES for the list.
std::string ValueBranches(absl::string_view assignment) {
  std::map<std::string, std::vector<std::string>> fields;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const FieldDescriptor& field = *Resolve(config::PretrainConfig::default_instance(), path).field;
    const std::string names = NamedValues(field);
    if (!names.empty()) fields[names].push_back(path);
  }
  return absl::StrJoin(fields, "\n", [&](std::string* out, const auto& branch) {
    absl::StrAppend(out, "        ", absl::StrJoin(branch.second, "|"), ") ",
                    absl::StrReplaceAll(assignment, {{"NAMES", branch.first}}), " ;;");
  });
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(absl::string_view shell, absl::string_view program,
                                             const std::vector<std::string>& configs) {
  if (shell != "bash" && shell != "zsh") {
    return absl::InvalidArgumentError(
        absl::StrCat("--completion=", shell, ": there is one for bash and one for zsh"));
  }
  const google::protobuf::Descriptor& schema = *config::PretrainConfig::descriptor();
  const bool bash = shell == "bash";
  return absl::StrReplaceAll(
      bash ? kBash : kZsh,
      {{"PROGRAM", program},
       {"CONFIGS", absl::StrJoin(configs, " ")},
       {"VALUES", ValueBranches(bash ? "words='NAMES'" : "candidates=(NAMES)")},
       {"ASSIGNMENTS", absl::StrCat(absl::StrJoin(LeafPaths(schema), "= "), "=")},
       {"FIELDS", absl::StrJoin(AllPaths(schema), " ")},
       {"FLAGS", Flags()}});
}

}  // namespace megatron
