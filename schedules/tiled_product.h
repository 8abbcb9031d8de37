// Products and reductions with their tiles, as choose_schedule tries them.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "schedules/long_reductions.h"
#include "schedules/lying_pixels.h"
#include "schedules/product.h"
#include "schedules/redeclare_convolutions.h"
#include "schedules/register_product.h"
#include "schedules/tensor_product.h"
#include "schedules/unit_product.h"

namespace tw::schedules {

struct TiledWindows {
    WindowProduct product;
    ConvolutionTiles tiles;
    Tensor totals = {};                      ///< sums over all pixels of what it makes, made with it; or undefined
    std::vector<Tensor> beside = {};         ///< WindowNeighbours::beside
    std::vector<Tensor> beside_behind = {};  ///< WindowNeighbours::beside_behind
};
/// With sums over all pixels of what it makes, if there are such among those, and with pieces of a tensor that lies in
/// memory and is read at each element's own place, to try one after another; none where there is neither.
std::vector<TiledWindows> tilings_with_neighbours(const WindowProduct& windows,
                                                  const std::vector<SummedWindowResult>& summed,
                                                  const std::vector<Tensor>& outputs, const Target& target);
/// A product and what is made of its sums where they are.
struct TiledRegisters {
    RegisterProduct with;
    ProductTiling tiling;
};
/// A product, or a reduction, and its tiles: of a tensor core, of windows in registers, or of threads.
struct TiledProduct {
    Tensor c, a, b;  ///< without operands where these are not tiled
    std::variant<ProductTiling, TiledRegisters, TiledWindows, LyingPixels, RedeclaredHalo, RedeclaredDepthwise,
                 ProductTiles, ColumnReduction>
        tiles;
    bool is_from_record = false;                   ///< tiles of a tensor core, which come from a model otherwise
    std::vector<std::array<Tensor, 2>> more = {};  ///< of a tensor core: see UnitProduct
    std::vector<JoinedAxes> joined = {};           ///< the same
    std::vector<Tensor> elements = {};             ///< made of c in its kernel: see elements_of_product.h

    /// Of a tensor core, or of what was declared anew for its tiles.
    bool is_on_units() const {
        const ProductTiling* product = std::get_if<ProductTiling>(&tiles);
        return !std::holds_alternative<ProductTiles>(tiles) && !std::holds_alternative<ColumnReduction>(tiles) &&
               !(product && std::holds_alternative<ThinTiles>(*product));
    }
};

/// Of what it makes, made with it: sums over all pixels; undefined if there are none.
Tensor totals_of(const TiledProduct& product);

/// Whether the stage is one of those that it schedules.
bool makes(const TiledProduct& product, const Schedule& s, Stage stage);

/// Computed tensors that its tiles are read from, many times, or that they are made of: none of them is inlined.
std::vector<Tensor> stored_for(const TiledProduct& product);

/// Operands that are others' elements in the order in which they lie (reshaped_from in views.h): tiles are loaded from
/// there, so they are inlined once all is scheduled. Not outputs; behind `others`, each once.
std::vector<Tensor> views_for(const std::vector<TiledProduct>& products, const std::vector<Tensor>& outputs,
                              std::vector<Tensor> others);

/// What tiles of windows are read from, of tensors that are computed.
std::vector<Tensor> operands_of_windows(const std::vector<TiledProduct>& products);

/// Before all other steps: neighbouring dimensions that products take as one.
void join_axes(Schedule& s, const std::vector<TiledProduct>& products);

/// The tensor as a product on tensor cores, with what is made of its sums in its kernel, and without, to try one after
/// another.
std::vector<TiledProduct> products_on_units(const Tensor& c, const std::vector<Tensor>& outputs, const Target& target);
/// The tensor as a product of two matrices, or as a reduction of any terms that are made of an element of each
/// (distances, shortest paths), of one pair or a batch of them, or of a matrix and few vectors of any type, or as a
/// reduction of many rows to columns, in tiles of threads.
std::optional<TiledProduct> product_of_threads(const Tensor& c, const Target& target);
std::optional<TiledProduct> column_reduction(const Tensor& c);
/// Adds it behind others that may make c, with what its kernel can store beside, and without; before a row of odd
/// length in tiles of threads, which copy the matrix element by element though nothing of it is read again (1 x 3151 x
/// 47584: 0.195 ms, 0.170 as sums of columns).
void add_column_reductions(std::vector<TiledProduct>& found, const Tensor& c, const std::vector<Tensor>& outputs);

void schedule_tiled(Schedule& s, const TiledProduct& product);
/// "tiling 128x256x64w2s4p1t1, from its record", of a tensor core.
std::string tiling_of(const TiledProduct& product);

}  // namespace tw::schedules
