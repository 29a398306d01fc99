// Legend: M rows, N columns, K the summed dim; gemm_pack.h has panels and steps, gemm_multiply.h
// tiles.
#include "megatron/ops/cpu/gemm_kernels.h"

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/gemm_few_rows.h"
#include "megatron/ops/cpu/gemm_multiply.h"
#include "megatron/ops/cpu/gemm_pack.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// A block of B is packed, and a group of A's panels, whole cache lines at a time; then each panel
// of one is multiplied by each of the other. The sums of a block are kept in memory between blocks
// of K.
#if defined(MEGATRON_ISA_AVX512)
// A panel of A stays in the first-level cache while the block of B passes, which stays in the
// second level.
constexpr bool kColumnsOutside = false;
constexpr int64_t kBlockColumns = 384, kGroupRowPanels = kPanelRows > kLanes ? 4 : 8;
constexpr int64_t kBlockRowPanels = kPanelRows > kLanes ? 32 : 96;
#else
// A panel of B stays in the first-level cache while the group of A passes, which stays in the
// second level; a block of B may be larger.
constexpr bool kColumnsOutside = true;
constexpr int64_t kBlockColumns = 768, kGroupRowPanels = 16, kBlockRowPanels = 176;
#endif
constexpr int64_t kBlockColumnPanels = kBlockColumns / kPanelColumns;
constexpr int64_t kBlockK = kBlockSteps * kStepElements;

constexpr int64_t kFloatsA = kGroupRowPanels * kPanelFloatsA;
constexpr int64_t kFloatsB = kBlockColumnPanels * kPanelFloatsB;
constexpr int64_t kFloatsTiles = kBlockRowPanels * kBlockColumnPanels * kTileFloats;

// The place of a finished tile in the result.
struct Place {
  int64_t m, n;           // row and column of its first element
  int64_t rows, columns;  // the part of the tile inside the matrix
};

// Calls body(i, j, lanes) for each (partial) vector of the tile.
template <typename Body>
MEGATRON_INLINE void ForEachVec(const Place& place, Body body) {
  if (place.rows == kPanelRows && place.columns == kPanelColumns) {
    for (int64_t i = 0; i < kPanelRows; ++i) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < kPanelColumns; j += kLanes) body(i, j, kPanelColumns - j);
    }
    return;
  }
  for (int64_t i = 0; i < place.rows; ++i) {
    for (int64_t j = 0; j < place.columns; j += kLanes) body(i, j, place.columns - j);
  }
}

template <typename T>
MEGATRON_INLINE void StoreUpTo(T* p, Vec a, int64_t available) {
  if (available >= kLanes) {
    Store(p, a);
  } else {
    StorePartial(p, a, static_cast<int>(available));
  }
}

template <typename T>
MEGATRON_INLINE Vec AddBias(const Gemm& gemm, Vec sum, int64_t n, int64_t left) {
  if (gemm.bias == nullptr) return sum;
  return sum + LoadUpTo(static_cast<const T*>(gemm.bias) + n, left);
}

template <typename T>
MEGATRON_INLINE T* RowOf(const GemmResult& result, const Place& place, int64_t i) {
  return static_cast<T*>(result.data) + (place.m + i) * result.stride + place.n;
}

template <typename T>
void FinishStore(const Gemm& gemm, const Place& place, const float* tile) {
  ForEachVec(place, [&](int64_t i, int64_t j, int64_t left) {
    const Vec sum = Set(gemm.scale) * Load(tile + i * kPanelColumns + j);
    StoreUpTo(RowOf<T>(gemm.c, place, i) + j, AddBias<T>(gemm, sum, place.n + j, left), left);
  });
}

void FinishAccumulate(const Gemm& gemm, const Place& place, const float* tile) {
  ForEachVec(place, [&](int64_t i, int64_t j, int64_t left) {
    float* out = RowOf<float>(gemm.c, place, i) + j;
    const Vec sum = Set(gemm.scale) * Load(tile + i * kPanelColumns + j);
    StoreUpTo(out, LoadUpTo(out, left) + sum, left);
  });
}

// The activation is applied to the stored, rounded `pre`, as ActivationForward would.
template <typename T, Activation kActivation>
void FinishActivate(const Gemm& gemm, const Place& place, const float* tile) {
  ForEachVec(place, [&](int64_t i, int64_t j, int64_t left) {
    const Vec sum = Load(tile + i * kPanelColumns + j);
    T* pre = RowOf<T>(gemm.pre, place, i) + j;
    const Vec rounded = RoundTo(pre, AddBias<T>(gemm, sum, place.n + j, left));
    StoreUpTo(pre, rounded, left);
    StoreUpTo(RowOf<T>(gemm.c, place, i) + j, Activate<kActivation>(rounded), left);
  });
}

template <typename T, Activation kActivation>
void FinishSlope(const Gemm& gemm, const Place& place, const float* tile) {
  ForEachVec(place, [&](int64_t i, int64_t j, int64_t left) {
    const Vec pre = LoadUpTo(RowOf<T>(gemm.pre, place, i) + j, left);
    const Vec sum = Load(tile + i * kPanelColumns + j);
    StoreUpTo(RowOf<T>(gemm.c, place, i) + j, sum * ActivationSlope<kActivation>(pre), left);
  });
}

template <typename T, Activation kActivation>
void FinishWith(const Gemm& gemm, const Place& place, const float* tile) {
  if (gemm.epilogue == GemmEpilogue::kActivate) {
    FinishActivate<T, kActivation>(gemm, place, tile);
  } else {
    FinishSlope<T, kActivation>(gemm, place, tile);
  }
}

template <typename T>
void Finish(const Gemm& gemm, const Place& place, const float* tile) {
  if (gemm.epilogue == GemmEpilogue::kAccumulate) return FinishAccumulate(gemm, place, tile);
  if (gemm.epilogue == GemmEpilogue::kStore) return FinishStore<T>(gemm, place, tile);
  switch (gemm.activation) {
    case Activation::kNone:
      return FinishWith<T, Activation::kNone>(gemm, place, tile);
    case Activation::kGeluTanh:
      return FinishWith<T, Activation::kGeluTanh>(gemm, place, tile);
    case Activation::kGeluErf:
      return FinishWith<T, Activation::kGeluErf>(gemm, place, tile);
    case Activation::kSquaredRelu:
      return FinishWith<T, Activation::kSquaredRelu>(gemm, place, tile);
    case Activation::kTanh:
      return FinishWith<T, Activation::kTanh>(gemm, place, tile);
    case Activation::kRelu:
      return FinishWith<T, Activation::kRelu>(gemm, place, tile);
    case Activation::kSilu:
      return FinishWith<T, Activation::kSilu>(gemm, place, tile);
    case Activation::kQuickGelu:
      return FinishWith<T, Activation::kQuickGelu>(gemm, place, tile);
    case Activation::kSigmoid:
      return FinishWith<T, Activation::kSigmoid>(gemm, place, tile);
  }
}

// The cache lines of the result are fetched while the tile is computed.
template <typename T>
void PrefetchResult(const Gemm& gemm, const Place& place) {
  const bool wide = gemm.epilogue == GemmEpilogue::kAccumulate;
  const int64_t size = wide ? sizeof(float) : sizeof(T);
  for (int64_t i = 0; i < place.rows; ++i) {
    const char* row =
        static_cast<const char*>(gemm.c.data) + ((place.m + i) * gemm.c.stride + place.n) * size;
    for (int64_t byte = 0; byte < place.columns * size; byte += 64) {
      __builtin_prefetch(row + byte, /*rw=*/1);
    }
  }
}

template <typename T>
void PackA(const Gemm& gemm, const Place& group, int64_t k, int64_t depth, float* panels) {
  const T* a =
      static_cast<const T*>(gemm.a.data) + group.m * gemm.a.row_stride + k * gemm.a.column_stride;
  if (gemm.a.row_stride != 1) {
    PackRowsOfA(a, gemm.a.row_stride, group.rows, depth, panels);
  } else {
    const bool first_columns = gemm.row_sums != nullptr && group.n == 0;
    PackColumnsOfA<kGroupRowPanels>(a, gemm.a.column_stride, group.rows, depth, panels,
                                    first_columns ? gemm.row_sums + group.m : nullptr);
  }
}

template <typename T>
void PackB(const Gemm& gemm, const Place& block, int64_t k, int64_t depth, float* panels) {
  const T* b =
      static_cast<const T*>(gemm.b.data) + k * gemm.b.row_stride + block.n * gemm.b.column_stride;
  if (gemm.b.column_stride == 1) {
    PackRowsOfB(b, gemm.b.row_stride, block.columns, depth, panels);
  } else {
    PackColumnsOfB(b, gemm.b.column_stride, block.columns, depth, panels);
  }
}

struct BlockOfK {
  int64_t depth;
  bool first, last;
};

// One group of A's panels times all panels of B's block, for one block of K.
template <typename T>
void RunGroup(const Gemm& gemm, const Place& group, const BlockOfK& of_k, const float* a,
              const float* b, float* tiles) {
  const int64_t steps = (of_k.depth + kStepElements - 1) / kStepElements;
  const int64_t row_panels = (group.rows + kPanelRows - 1) / kPanelRows;
  const int64_t column_panels = (group.columns + kPanelColumns - 1) / kPanelColumns;
  for (int64_t outer = 0; outer < (kColumnsOutside ? column_panels : row_panels); ++outer) {
    for (int64_t inner = 0; inner < (kColumnsOutside ? row_panels : column_panels); ++inner) {
      const int64_t i = kColumnsOutside ? inner : outer, j = kColumnsOutside ? outer : inner;
      const Place place = {group.m + i * kPanelRows, group.n + j * kPanelColumns,
                           Smaller(kPanelRows, group.rows - i * kPanelRows),
                           Smaller(kPanelColumns, group.columns - j * kPanelColumns)};
      if (of_k.last) PrefetchResult<T>(gemm, place);
      if (!of_k.first) Prefetch(tiles, kTileFloats);
      MultiplyFor(place.rows, gemm.a.row_stride != 1)(steps, a + i * kPanelFloatsA,
                                                      b + j * kPanelFloatsB, !of_k.first, tiles);
      if (of_k.last) Finish<T>(gemm, place, tiles);
      if (!(of_k.first && of_k.last)) tiles += kTileFloats;
    }
  }
}

template <typename T>
void RunBlock(const Gemm& gemm, const Place& block, float* workspace) {
  float* const a = workspace;
  float* const b = a + kFloatsA;
  float* const tiles = b + kFloatsB;
  const int64_t column_panels = (block.columns + kPanelColumns - 1) / kPanelColumns;
  constexpr int64_t kGroupRows = kGroupRowPanels * kPanelRows;
  int64_t k = 0;
  do {  // runs once even if K is 0: the result is then the epilogue of 0
    const int64_t depth = Smaller(kBlockK, gemm.k - k);
    const BlockOfK of_k = {depth, k == 0, k + depth == gemm.k};
    PackB<T>(gemm, block, k, depth, b);
    for (int64_t i = 0; i < block.rows; i += kGroupRows) {
      const Place group = {block.m + i, block.n, Smaller(kGroupRows, block.rows - i),
                           block.columns};
      PackA<T>(gemm, group, k, depth, a);
      const bool kept = !(of_k.first && of_k.last);
      RunGroup<T>(gemm, group, of_k, a, b,
                  tiles + (kept ? i / kPanelRows * column_panels * kTileFloats : 0));
    }
    k += depth;
  } while (k < gemm.k);
}

// The product of few rows of A with a B whose columns are contiguous, as the weights of a linear
// layer are: reading B takes the time, so nothing of it is written.
template <typename T>
void RunFewRows(const Gemm& gemm, const Place& block, float* workspace) {
  float* const a = workspace;
  float* const room = a + kFloatsA;
  float* const tiles = room + kFloatsB;
  const int64_t row_panels = (block.rows + kPanelRows - 1) / kPanelRows;
  int64_t k = 0;
  do {
    const int64_t depth = Smaller(kBlockK, gemm.k - k);
    PackA<T>(gemm, block, k, depth, a);
    const float* const rows = PrepareFewRows(a, block.rows, depth, room);
    float* tile = tiles;
    for (int64_t n = 0; n < block.columns; n += kPanelColumns) {
      const Place panel = {block.m, block.n + n, block.rows,
                           Smaller(kPanelColumns, block.columns - n)};
      const T* const b = static_cast<const T*>(gemm.b.data) + panel.n * gemm.b.column_stride + k;
      MultiplyFewRows(b, gemm.b.column_stride, panel.columns, depth, rows, block.rows, k > 0, tile);
      for (int64_t i = 0; i < row_panels; ++i, tile += kTileFloats) {
        if (k + depth < gemm.k) continue;
        const int64_t row = i * kPanelRows;
        Finish<T>(gemm,
                  {panel.m + row, panel.n, Smaller(kPanelRows, block.rows - row), panel.columns},
                  tile);
      }
    }
    k += depth;
  } while (k < gemm.k);
}

bool HasFewRows(const Gemm& gemm) {
  return gemm.m <= kFewRows && gemm.k > 0 && gemm.a.row_stride != 1 && gemm.b.column_stride != 1;
}

template <typename T>
void RunRegion(const Gemm& gemm, const GemmRegion& region, float* workspace) {
  const int64_t m_end = Smaller(gemm.m, region.end_row_panel * kPanelRows);
  const int64_t n_end = Smaller(gemm.n, region.end_column_panel * kPanelColumns);
  // With only one block of K, nothing is kept between blocks, and B is packed once for all rows.
  const int64_t block_rows = gemm.k <= kBlockK ? gemm.m : kBlockRowPanels * kPanelRows;
  const auto run = HasFewRows(gemm) ? RunFewRows<T> : RunBlock<T>;
  for (int64_t n = region.first_column_panel * kPanelColumns; n < n_end; n += kBlockColumns) {
    for (int64_t m = region.first_row_panel * kPanelRows; m < m_end; m += block_rows) {
      run(gemm, {m, n, Smaller(block_rows, m_end - m), Smaller(kBlockColumns, n_end - n)},
          workspace);
    }
  }
}

void Run(const Gemm& gemm, const GemmRegion& region, float* workspace) {
#if defined(MEGATRON_ISA_BF16_PRODUCTS)
#if defined(MEGATRON_ISA_AMX)
  const MatrixRegisters registers;
#endif
  RunRegion<BFloat16>(gemm, region, workspace);
#else
  switch (gemm.dtype) {
    case DType::kFloat32:
      return RunRegion<float>(gemm, region, workspace);
    case DType::kBFloat16:
      return RunRegion<BFloat16>(gemm, region, workspace);
    case DType::kFloat16:
      return RunRegion<Float16>(gemm, region, workspace);
    default:
      __builtin_trap();  // the ops check dtypes
  }
#endif
}

}  // namespace

const GemmKernels kGemmKernels = {kPanelRows, kPanelColumns, kFloatsA + kFloatsB + kFloatsTiles,
                                  Run};

}  // namespace megatron::ops::MEGATRON_ISA
