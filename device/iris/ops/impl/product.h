// Product: the TileProduct of the fused kernels.
#pragma once

#include "iris/ops/impl/layout.h"
#include "iris/tile_product.h"

namespace iris::ops::impl {

using iris::impl::ElementOf;
using iris::impl::LoadPack;
template <typename T>
using Product = TileProduct<T>;
template <typename T>
using Source = ProductOperand<T>;
static_assert(Product<Half>::kRows == kTile.rows && Product<Half>::kColumns == kTile.columns &&
              Product<Half>::kThreads == kTile.threads && iris::impl::kProductPack == kPack);

}  // namespace iris::ops::impl
