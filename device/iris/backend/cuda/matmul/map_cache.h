// Maps for the copy engine, and a bounded memory of those that were made: to make one is a call of
// the driver, and the launches of a program come back with the same matrices. Host only; one thread
// at a time uses a cache.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"

namespace iris::backend::cuda::matmul {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, which has no library to link. Null: the driver has none.
EncodeTiled FindEncodeTiled();

// What a map is made of: a matrix of `rows` x `columns` elements of 2 bytes, `leading` apart, in
// boxes of `box_rows` x 64. `apart_bytes`: if not 0, from it to a second such matrix, the map's
// third dimension.
struct MapKey {
  const void* base = nullptr;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t leading = 0;
  uint64_t apart_bytes = 0;
  uint32_t box_rows = 0;
  Type type = Type::kBfloat16;

  bool operator==(const MapKey& other) const;
};

// Each key has one place; a key that comes to the place of another takes it. A map says nothing
// but what its key says, so that none is ever out of date.
class MapCache {
 public:
  static constexpr uint32_t kPlaces = 128;  // some 24 KiB

  // True if it is there, and then in `*map`.
  bool Find(const MapKey& key, CUtensorMap* map) const;
  void Keep(const MapKey& key, const CUtensorMap& map);

 private:
  struct Place {
    MapKey key;  // without a base: empty
    CUtensorMap map;
  };
  static uint32_t PlaceOf(const MapKey& key);

  Place places_[kPlaces];
};

// Makes maps, by the cache where there is one.
class MapMaker {
 public:
  MapMaker(EncodeTiled encode, MapCache* cache) : encode_(encode), cache_(cache) {}

  // False: the driver refuses it.
  bool Make(Type type, const void* base, uint64_t rows, uint64_t columns, uint64_t leading,
            uint32_t box_rows, CUtensorMap* map, uint64_t apart_bytes = 0);

 private:
  EncodeTiled encode_;
  MapCache* cache_;
};

}  // namespace iris::backend::cuda::matmul
