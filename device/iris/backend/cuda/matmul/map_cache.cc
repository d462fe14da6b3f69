#include "iris/backend/cuda/matmul/map_cache.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace iris::backend::cuda::matmul {
namespace {

bool Encode(EncodeTiled encode, const MapKey& key, CUtensorMap* map) {
  const cuuint64_t sizes[] = {key.columns, key.rows, 2};
  const cuuint64_t strides[] = {key.leading * 2, key.apart_bytes};
  const cuuint32_t box[] = {64, key.box_rows, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  return encode(map,
                key.type == Type::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                key.apart_bytes == 0 ? 2 : 3, const_cast<void*>(key.base), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

bool MapKey::operator==(const MapKey& other) const {
  return base == other.base && rows == other.rows && columns == other.columns &&
         leading == other.leading && apart_bytes == other.apart_bytes &&
         box_rows == other.box_rows && type == other.type;
}

uint32_t MapCache::PlaceOf(const MapKey& key) {
  uint64_t hash = 0;
  for (const uint64_t word :
       {reinterpret_cast<uint64_t>(key.base), key.rows, key.columns, key.leading, key.apart_bytes,
        uint64_t{key.box_rows} << 8 | static_cast<uint64_t>(key.type)}) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash % kPlaces);
}

bool MapCache::Find(const MapKey& key, CUtensorMap* map) const {
  const Place& place = places_[PlaceOf(key)];
  if (key.base == nullptr || !(place.key == key)) return false;
  *map = place.map;
  return true;
}

void MapCache::Keep(const MapKey& key, const CUtensorMap& map) {
  places_[PlaceOf(key)] = {key, map};
}

bool MapMaker::Make(Type type, const void* base, uint64_t rows, uint64_t columns, uint64_t leading,
                    uint32_t box_rows, CUtensorMap* map, uint64_t apart_bytes) {
  const MapKey key = {base, rows, columns, leading, apart_bytes, box_rows, type};
  if (cache_ != nullptr && cache_->Find(key, map)) return true;
  if (!Encode(encode_, key, map)) return false;
  if (cache_ != nullptr) cache_->Keep(key, *map);
  return true;
}

}  // namespace iris::backend::cuda::matmul
