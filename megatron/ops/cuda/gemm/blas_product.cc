#include "megatron/ops/cuda/gemm/blas_product.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <limits>

#include "glog/logging.h"

namespace megatron::ops::cuda {
namespace {

// Number of runs in one timing: a single run of a small product is too short for events to measure.
constexpr int kRunsAtOnce = 4;

void Check(cublasStatus_t status, const char* call) {
  CHECK(status == CUBLAS_STATUS_SUCCESS) << call << ": " << cublasGetStatusString(status);
}
#define MEGATRON_CHECK_BLAS(call) Check(call, #call)

void Check(cudaError_t error, const char* call) {
  CHECK(error == cudaSuccess) << call << ": " << cudaGetErrorString(error);
}
#define MEGATRON_CHECK_CUDA(call) Check(call, #call)

cudaDataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      LOG(FATAL) << "no matrix product in " << Name(dtype);
  }
  return CUDA_R_32F;
}

// The type of an operand; `format` says which 8-bit floats kUInt8 stands for.
cudaDataType TypeOf(DType dtype, Float8Format format) {
  if (dtype != DType::kUInt8) return TypeOf(dtype);
  return format == Float8Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cublasLtMatmulMatrixScale_t ScaleMode(Float8Scaling scaling) {
  switch (scaling) {
    case Float8Scaling::kVectors:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Float8Scaling::kBlocks:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

cublasLtEpilogue_t EpilogueOf(const Gemm& gemm) {
  const bool vector = gemm.bias_alignment > 0;
  switch (gemm.epilogue) {
    case GemmEpilogue::kBias:
      return vector ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kGelu:
      return vector ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::kGeluSlope:
      return vector ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  LOG(FATAL) << "no epilogue";
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <typename T>
void Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  MEGATRON_CHECK_BLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

template <typename T>
int64_t Get(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = 0;
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? static_cast<int64_t>(value) : 0;
}

GemmKernel KernelOf(const cublasLtMatmulAlgo_t& algorithm) {
  GemmKernel kernel;
  kernel.id = Get<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID);
  kernel.tile = Get<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID);
  kernel.stages = Get<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  kernel.split_k = Get<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  kernel.reduction = Get<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  kernel.swizzle = Get<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  kernel.custom = Get<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  kernel.inner_shape = Get<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  kernel.cluster_shape = Get<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return kernel;
}

cudaStream_t Handle(const CudaStream& stream) { return static_cast<cudaStream_t>(stream.handle()); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

// What is asked of the library.
struct BlasProduct::Search {
  int most;
  int64_t workspace_bytes;
};

struct BlasProduct::Descriptions {
  explicit Descriptions(const Gemm& gemm);
  ~Descriptions();
  void SetEpilogue(const Gemm& gemm);
  void FindAlgorithms(cublasLtHandle_t handle, const Gemm& gemm, const Search& search);
  void FindAlgorithmsWith(uint32_t reductions, cublasLtHandle_t handle, const Gemm& gemm,
                          const Search& search);

  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, c;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
};

BlasProduct::Descriptions::Descriptions(const Gemm& gemm) {
  MEGATRON_CHECK_BLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, gemm.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (gemm.epilogue != GemmEpilogue::kBias || gemm.bias_alignment > 0) SetEpilogue(gemm);
  if (gemm.in == DType::kUInt8) {  // addresses as of the epilogue
    for (auto scale : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
      Set(operation, scale, uintptr_t{16});
    Set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, ScaleMode(gemm.a_scaling));
    Set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, ScaleMode(gemm.b_scaling));
    // Sums are kept in fp32; by default Hopper's matrix units would use fewer bits.
    Set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
  }
  const int64_t a_rows = gemm.transpose_a ? gemm.k : gemm.m;
  const int64_t a_columns = gemm.transpose_a ? gemm.m : gemm.k;
  const int64_t b_rows = gemm.transpose_b ? gemm.n : gemm.k;
  const int64_t b_columns = gemm.transpose_b ? gemm.k : gemm.n;
  MEGATRON_CHECK_BLAS(
      cublasLtMatrixLayoutCreate(&a, TypeOf(gemm.in, gemm.a_format), a_rows, a_columns, gemm.lda));
  MEGATRON_CHECK_BLAS(
      cublasLtMatrixLayoutCreate(&b, TypeOf(gemm.in, gemm.b_format), b_rows, b_columns, gemm.ldb));
  MEGATRON_CHECK_BLAS(cublasLtMatrixLayoutCreate(&c, TypeOf(gemm.out), gemm.m, gemm.n, gemm.ldc));
}

void BlasProduct::Descriptions::SetEpilogue(const Gemm& gemm) {
  Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(gemm));
  // The search for kernels uses addresses only for their alignment.
  if (gemm.bias_alignment > 0) {
    Set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(gemm.out));
    Set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<uintptr_t>(gemm.bias_alignment));
  }
  if (gemm.epilogue == GemmEpilogue::kGelu || gemm.epilogue == GemmEpilogue::kGeluSlope) {
    Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.m);
    Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
        static_cast<uintptr_t>(gemm.alignment));
  }
}

BlasProduct::Descriptions::~Descriptions() {
  for (cublasLtMatrixLayout_t layout : {a, b, c})
    MEGATRON_CHECK_BLAS(cublasLtMatrixLayoutDestroy(layout));
  MEGATRON_CHECK_BLAS(cublasLtMatmulDescDestroy(operation));
}

void BlasProduct::Descriptions::FindAlgorithms(cublasLtHandle_t handle, const Gemm& gemm,
                                               const Search& search) {
  // Parts of a sum are added up in fp32, by a separate step, if there is a kernel that does.
  // Results in fp32 are added up in fp32 by two schemes.
  uint32_t in_fp32 = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (gemm.out == DType::kFloat32) in_fp32 |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  for (const uint32_t reductions : {in_fp32, uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK}}) {
    if (algorithms.empty()) FindAlgorithmsWith(reductions, handle, gemm, search);
  }
}

void BlasProduct::Descriptions::FindAlgorithmsWith(uint32_t reductions, cublasLtHandle_t handle,
                                                   const Gemm& gemm, const Search& search) {
  cublasLtMatmulPreference_t preference;
  MEGATRON_CHECK_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    MEGATRON_CHECK_BLAS(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(search.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, static_cast<uint32_t>(gemm.alignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(search.most));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, operation, a, b, c, c, preference, search.most, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) MEGATRON_CHECK_BLAS(status);
  MEGATRON_CHECK_BLAS(cublasLtMatmulPreferenceDestroy(preference));
  results.resize(static_cast<size_t>(found));
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= static_cast<size_t>(search.workspace_bytes))
      algorithms.push_back(result.algo);
  }
}

BlasProduct::BlasProduct(void* handle, const Gemm& gemm, int most_candidates,
                         int64_t workspace_bytes)
    : gemm_(gemm),
      workspace_bytes_(workspace_bytes),
      descriptions_(std::make_unique<Descriptions>(gemm)) {
  descriptions_->FindAlgorithms(static_cast<cublasLtHandle_t>(handle), gemm,
                                {most_candidates, workspace_bytes});
  for (const cublasLtMatmulAlgo_t& algorithm : descriptions_->algorithms)
    kernels_.push_back(KernelOf(algorithm));
}

BlasProduct::~BlasProduct() = default;

bool BlasProduct::Run(CudaStream* stream, int candidate, const GemmOperands& operands) const {
  const Descriptions& at = *descriptions_;
  void* const workspace = stream->Workspace(workspace_bytes_);
  const float alpha = 1, beta = gemm_.accumulate ? 1 : 0;
  std::lock_guard<std::mutex> lock(turn_);
  const void* const vector = operands.bias != nullptr ? operands.bias : operands.sums;
  if (vector != nullptr) Set(at.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  if (operands.aux != nullptr)
    Set(at.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
  if (gemm_.in == DType::kUInt8) {
    Set(at.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_inverse_scale);
    Set(at.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_inverse_scale);
  }
  const cublasStatus_t status =
      cublasLtMatmul(static_cast<cublasLtHandle_t>(stream->blas()), at.operation, &alpha,
                     operands.a, at.a, operands.b, at.b, &beta, operands.c, at.c, operands.c, at.c,
                     &at.algorithms[static_cast<size_t>(candidate)], workspace,
                     static_cast<size_t>(workspace_bytes_), Handle(*stream));
  return status == CUBLAS_STATUS_SUCCESS;
}

TimedProduct::TimedProduct(const BlasProduct* product, CudaStream* stream,
                           const GemmOperands& operands)
    : product_(product), stream_(stream), operands_(operands) {}

TimedProduct::~TimedProduct() {
  if (scratch_ == nullptr) return;
  MEGATRON_CHECK_CUDA(cudaFree(scratch_));
  for (void* event : {begin_, end_}) MEGATRON_CHECK_CUDA(cudaEventDestroy(Event(event)));
}

bool TimedProduct::Prepare() {
  if (prepared_) return scratch_ != nullptr;
  prepared_ = true;
  const Gemm& gemm = product_->gemm();
  const auto bytes = static_cast<size_t>(gemm.ldc * gemm.n * SizeOf(gemm.out));
  if (cudaMalloc(&scratch_, bytes) != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the next caller would get
    scratch_ = nullptr;
    LOG(WARNING) << "no " << bytes << " bytes on cuda:" << stream_->device()
                 << " to time the kernels of a " << gemm << ": taking cuBLASLt's first choice";
    return false;
  }
  MEGATRON_CHECK_CUDA(cudaMemsetAsync(scratch_, 0, bytes, Handle(*stream_)));
  operands_.c = scratch_;
  for (void** event : {&begin_, &end_}) {
    cudaEvent_t created;
    MEGATRON_CHECK_CUDA(cudaEventCreate(&created));
    *event = created;
  }
  return true;
}

double TimedProduct::Seconds(int candidate) {
  constexpr double kFailed = std::numeric_limits<double>::infinity();
  if (!Prepare()) return kFailed;
  MEGATRON_CHECK_CUDA(cudaEventRecord(Event(begin_), Handle(*stream_)));
  for (int i = 0; i < kRunsAtOnce; ++i) {
    if (!product_->Run(stream_, candidate, operands_)) return kFailed;
  }
  MEGATRON_CHECK_CUDA(cudaEventRecord(Event(end_), Handle(*stream_)));
  MEGATRON_CHECK_CUDA(cudaEventSynchronize(Event(end_)));
  float milliseconds = 0;
  MEGATRON_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, Event(begin_), Event(end_)));
  return milliseconds * 1e-3 / kRunsAtOnce;
}

bool MayWaitFor(const CudaStream& stream) {
  cudaStreamCaptureStatus status;
  MEGATRON_CHECK_CUDA(cudaStreamIsCapturing(Handle(stream), &status));
  return status == cudaStreamCaptureStatusNone;
}

GemmPlace PlaceOfDevice(int device) {
  cudaDeviceProp properties;
  MEGATRON_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  return {properties.name, static_cast<int64_t>(cublasLtGetVersion())};
}

}  // namespace megatron::ops::cuda
