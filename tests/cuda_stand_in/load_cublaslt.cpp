// The function table over the stand-in.
#include "kernels/cuda/cublaslt.h"

namespace transload::kernels::cuda {

const CublasLt& cublaslt() {
  static const CublasLt table = {.create = &::cublasLtCreate,
                                 .destroy = &::cublasLtDestroy,
                                 .version = &::cublasLtGetVersion,
                                 .status_name = &::cublasLtGetStatusName,
                                 .desc_create = &::cublasLtMatmulDescCreate,
                                 .desc_destroy = &::cublasLtMatmulDescDestroy,
                                 .desc_set = &::cublasLtMatmulDescSetAttribute,
                                 .layout_create = &::cublasLtMatrixLayoutCreate,
                                 .layout_destroy = &::cublasLtMatrixLayoutDestroy,
                                 .layout_set = &::cublasLtMatrixLayoutSetAttribute,
                                 .preference_create = &::cublasLtMatmulPreferenceCreate,
                                 .preference_destroy = &::cublasLtMatmulPreferenceDestroy,
                                 .preference_set = &::cublasLtMatmulPreferenceSetAttribute,
                                 .heuristic = &::cublasLtMatmulAlgoGetHeuristic,
                                 .matmul = &::cublasLtMatmul};
  return table;
}

}  // namespace transload::kernels::cuda
