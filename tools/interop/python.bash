# Sourced by the scripts beside it, and by tools/gpu/hopper_code.sh: the Python packages that they use,
# from the Python package index, each version pinned here.
#
#   source tools/interop/python.bash
#   use_tokenizer_packages     # or
#   use_torch_packages         # or
#   use_peft_packages          # or
#   use_index_torch            # or
#   use_tensorboard_packages   # or
#   use_tracker_packages       # or
#   use_evaluation_packages    # or
#   use_llama_packages         # or
#   use_nvdisasm
#
# Afterwards "$venv_python" is the Python of a virtual environment with those packages, and $scratch an
# empty folder, which goes when the script ends. An environment is made once, in
# ~/.cache/megatron-python, and shared by all scripts; another pin or another Python makes a new one.
# There are several: transformers wants an older tokenizers than the one that ours are compared with,
# whoever reads TensorBoard's files, those of W&B, MLflow and trackio, or machine code, needs neither,
# lm_eval brings many packages along, llama.cpp is compiled, and speed is compared with the index's
# PyTorch, which newer families of models need as well.
#
# PyTorch is that of $PYTHON, of python3 or of the system's python3. Where none has it, Debian's
# python3-torch is installed, or, without apt or the right to use it, the index's torch. use_index_torch
# takes the index's always: a download of gigabytes, since it brings the libraries for GPUs along.

# lm_eval with transformers, and openai. Debian's PyTorch is built for NumPy 1, so that pyarrow is older.
readonly EVALUATION_PACKAGES=(absl-py==2.5.1 accelerate==1.0.1 aiohappyeyeballs==2.7.1 aiohttp==3.14.5
  aiosignal==1.4.0 annotated-types==0.8.0 anyio==4.16.0 certifi==2026.10.19.post1 click==8.5.1
  cloudpickle==3.1.3 colorama==0.4.6 DataProperty==1.1.1 datasets==4.0.0 defusedxml==0.7.1 dill==0.3.8
  evaluate==0.4.6 filelock==4.3.1 frozenlist==1.8.0 fsspec==2025.3.0 h11==0.16.0 hf-xet==1.8.0
  httpcore==1.0.9 httpcore2==2.16.2 httpx==0.28.1 httpx2==2.16.2 huggingface_hub==0.36.2 idna==3.20
  Jinja2==3.1.6 jiter==0.19.0 joblib==1.6.0 lm_eval==0.4.13 lxml==6.1.3 MarkupSafe==3.0.4
  mbstrdecoder==1.1.5 more-itertools==11.2.1 multidict==7.2.1 multiprocess==0.70.16 narwhals==2.29.0
  nltk==3.10.4 numpy==1.26.4 openai==3.57.0 packaging==24.2 pandas==2.2.3 pathvalidate==3.3.1
  portalocker==4.4.2 propcache==0.5.4 pyarrow==21.0.0 pydantic==2.14.4 pydantic_core==2.50.5
  pytablewriter==1.2.1 pytz==2026.6 regex==2026.11.19 requests==2.34.2 rouge-score==0.1.2
  sacrebleu==2.6.0 safetensors==0.4.5 scikit-learn==1.9.1 scipy==1.17.1 sniffio==1.3.1
  sqlitedict==2.1.0 tabledata==1.3.5 tabulate==0.10.0 tcolorpy==0.1.7 tenacity==9.2.1
  threadpoolctl==3.8.0 tokenizers==0.20.3 tqdm==4.70.1 transformers==4.46.3 truststore==0.10.5
  typepy==1.3.5 typing_extensions==4.16.0 typing-inspection==0.4.5 tzdata==2026.6 word2number==1.1
  xxhash==4.1.0 yarl==1.25.1)
# With a transformers that has Qwen3, gpt-oss and Gemma 3, for which Debian's PyTorch is too old.
readonly INDEX_TORCH_PACKAGES=(numpy==2.2.6 torch==2.9.1 huggingface_hub==0.36.2 safetensors==0.8.0
  tokenizers==0.22.2 transformers==4.57.6)
# DeepSpeed with what it imports, beside INDEX_TORCH_PACKAGES.
readonly DEEPSPEED_PACKAGES=(annotated-types==0.8.0 deepspeed==0.19.8 einops==0.8.2 hjson==3.1.0
  msgpack==1.2.4 ninja==1.13.2 packaging==26.4 psutil==7.2.2 py-cpuinfo==9.0.0 pydantic==2.14.4
  pydantic_core==2.50.5 tqdm==4.70.1 typing-inspection==0.4.5)
# What llama-cpp-python imports, and what its source is built with.
readonly LLAMA_PACKAGES=(cmake==4.4.4 diskcache==5.6.3 Jinja2==3.1.6 MarkupSafe==3.0.4 ninja==1.13.2
  numpy==2.2.6 packaging==26.4 pathspec==1.1.1 scikit-build-core==1.1.2 typing_extensions==4.16.0)
readonly PEFT_PACKAGES=(accelerate==1.0.1 Jinja2==3.1.6 MarkupSafe==3.0.4 packaging==24.2 safetensors==0.4.5
  transformers==4.46.3)
# It wants a PyTorch that is newer than Debian's by its number alone.
readonly PEFT_PACKAGES_ALONE=(peft==0.13.2)
readonly TENSORBOARD_PACKAGES=(absl-py==2.5.1 grpcio==1.85.1 Markdown==3.11.3 MarkupSafe==3.0.4
  numpy==2.2.6 packaging==26.3 pillow==13.0.0 protobuf==7.36.2 tensorboard==2.21.0
  tensorboard-data-server==0.7.2 typing_extensions==4.16.0 Werkzeug==3.1.9)
readonly TOKENIZER_PACKAGES=(numpy==2.2.6 sentencepiece==0.2.1 tiktoken==0.14.0 tokenizers==0.23.3)
readonly TORCH_PACKAGES=(packaging==24.2 safetensors==0.4.5 transformers==4.46.3)
# All that is imported; MLflow without its server, and with what its SQLite store needs.
readonly TRACKER_PACKAGES=(alembic==1.20.1 annotated-doc==0.0.7 annotated-types==0.8.0 anyio==4.16.0
  brotli==1.2.1 cachetools==7.3.2 certifi==2026.10.18 cffi==2.1.1 charset-normalizer==3.5.2
  click==8.5.1 cloudpickle==3.1.2 cryptography==50.0.2 databricks-sdk==0.156.0 distro==1.9.0
  fastapi==0.165.0 filelock==4.2.12 fsspec==2026.9.0 gitdb==4.0.12 GitPython==3.2.1
  google-auth==2.62.2 googleapis-common-protos==1.76.0 gradio_client==2.7.2 h11==0.16.0
  httpcore==1.0.9 httpcore2==2.16.2 httpx==0.28.1 httpx2==2.16.2 huggingface_hub==2.4.0 idna==3.20
  importlib_metadata==9.1.0 Mako==1.4.3 MarkupSafe==3.0.4 mlflow-skinny==3.17.2 numpy==2.2.6
  opentelemetry-api==1.45.2 opentelemetry-exporter-http-transport==0.66b2
  opentelemetry-exporter-otlp-common==0.66b2 opentelemetry-exporter-otlp-proto-common==1.45.2
  opentelemetry-exporter-otlp-proto-http==1.45.2 opentelemetry-proto==1.45.2 opentelemetry-sdk==1.45.2
  opentelemetry-semantic-conventions==0.66b2 orjson==3.13.0 packaging==26.3 pillow==12.3.0
  platformdirs==4.14.7 protobuf==7.36.2 pyasn1==0.6.5 pyasn1_modules==0.4.2 pycparser==3.12
  pydantic==2.14.3 pydantic_core==2.50.4 python-dotenv==1.2.4 python-multipart==0.0.34 PyYAML==6.0.3
  requests==2.34.2 smmap==5.0.3 sniffio==1.3.1 SQLAlchemy==2.1.9 sqlparse==0.6.1 starlette==1.10.0
  tqdm==4.70.1 trackio==0.43.0 truststore==0.10.5 typing_extensions==4.16.0 typing-inspection==0.4.5
  urllib3==2.8.0 uvicorn==0.54.0 wandb==0.31.0 xxhash==4.1.0 zipp==4.1.2)
# Its dependencies are for training on GPUs; what is compared needs only numpy and PyTorch.
readonly TORCH_PACKAGES_ALONE=(megatron-core==0.11.0)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Prints the first Python that runs the program $1 without an error.
find_python() {
  local python
  for python in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$python" ] && "$python" -c "$1" >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  return 1
}

install_debian() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
  echo "$(basename "$0"): installing $*" >&2
  { apt-get update -q &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; } >&2
}

# Ends a script that cannot begin.
give_up() {
  echo "$(basename "$0"): $*"
  echo "0 passed, 1 failed"
  exit 1
}

# Sets venv_python to an environment that $base_python makes.
#   $1: its name; $2: an option of `venv`, or nothing
#   then the arguments of `pip install`; "--" separates several calls of it
use_environment() {
  local name=$1 option=$2 cache key folder new argument call=()
  shift 2
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/megatron-python
  key=$({ "$base_python" -c 'import platform, sys; print(sys.prefix, platform.python_version())' &&
    printf '%s\n' "$@"; } | sha256sum | cut -c1-16)
  folder=$cache/$name-$key
  venv_python=$folder/bin/python
  [ -x "$venv_python" ] && return
  mkdir -p "$cache"
  # Under its own name only when it is complete; of two scripts that make it, one keeps what it made.
  new=$(mktemp -d "$folder.XXXXXX")
  echo "$(basename "$0"): making $folder" >&2
  "$base_python" -m venv ${option:+"$option"} "$new" >&2 || give_up "$base_python cannot make $new"
  for argument in "$@" --; do
    if [ "$argument" != -- ]; then
      call+=("$argument")
      continue
    fi
    if ! "$new/bin/python" -m pip install --quiet "${call[@]}" >&2; then
      rm -rf "$new"
      give_up "pip could not install ${call[*]}"
    fi
    call=()
  done
  mv -T "$new" "$folder" 2>/dev/null || rm -rf "$new"
  [ -x "$venv_python" ] || give_up "there is no $venv_python"
}

# Sets venv_python to an environment of its own packages alone: $1 is its name, then its packages.
use_own_packages() {
  local name=$1 needed='import venv, ensurepip'
  shift
  base_python=$(find_python "$needed") ||
    { install_debian python3-venv && base_python=$(find_python "$needed"); } ||
    give_up "no Python can make virtual environments, and python3-venv could not be installed"
  use_environment "$name" "" "$@"
}

use_tokenizer_packages() { use_own_packages tokenizers "${TOKENIZER_PACKAGES[@]}"; }

use_tensorboard_packages() { use_own_packages tensorboard "${TENSORBOARD_PACKAGES[@]}"; }

use_tracker_packages() { use_own_packages trackers --no-deps "${TRACKER_PACKAGES[@]}"; }

# A disassembler of GPU code, by its hash: only a file of requirements can have one.
use_nvdisasm() {
  local pins=tools/gpu/nvdisasm.txt
  use_own_packages "nvdisasm-$(sha256sum <"$pins" | cut -c1-8)" --require-hashes -r "$pins"
}

# llama.cpp with its Python package, compiled here for this machine's processor from the source, which is
# known by its hash.
use_llama_packages() {
  local pins=tools/interop/llama_cpp/requirements.txt
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" use_own_packages \
    "llama-$(sha256sum <"$pins" | cut -c1-8)" "${LLAMA_PACKAGES[@]}" -- --no-deps --no-build-isolation \
    --no-binary=llama-cpp-python --require-hashes -r "$pins"
}

use_index_torch() {
  use_own_packages index-torch "${INDEX_TORCH_PACKAGES[@]}"
  "$venv_python" -c 'import torch, transformers' >&2 ||
    give_up "the index's PyTorch and transformers do not start here"
}

# Sets venv_python to an environment with PyTorch: $1 is its name, then the arguments of `pip install`.
use_packages_beside_torch() {
  local name=$1 torch=() needed='import numpy, torch, venv, ensurepip'
  base_python=$(find_python "$needed") ||
    { install_debian python3-torch python3-numpy python3-venv && base_python=$(find_python "$needed"); } ||
    { base_python=$(find_python 'import venv, ensurepip') && torch=(numpy torch --); } ||
    give_up "no Python can make virtual environments"
  shift
  use_environment "$name" --system-site-packages "${torch[@]}" "$@"
  "$venv_python" -c 'import numpy, torch' >&2 || give_up "there is no Python with numpy and PyTorch"
}

use_torch_packages() {
  use_packages_beside_torch torch "${TORCH_PACKAGES[@]}" -- --no-deps "${TORCH_PACKAGES_ALONE[@]}"
}

use_peft_packages() {
  use_packages_beside_torch peft "${PEFT_PACKAGES[@]}" -- --no-deps "${PEFT_PACKAGES_ALONE[@]}"
}

use_evaluation_packages() { use_packages_beside_torch evaluation "${EVALUATION_PACKAGES[@]}"; }
