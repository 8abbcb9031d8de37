#include "schedules/convolution_space.h"

#include <algorithm>

#include "schedules/choose_windows.h"
#include "schedules/halo_convolution.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr size_t most_tilings = 60;
constexpr size_t most_of_a_kind = 40;  // of tiles for each tap, or of rasters, without variants
constexpr size_t varied_tilings = 6;   // whose stages, turns and way out vary, too
constexpr int most_stages = 8;

struct Rated {
    ConvolutionTiling tiling;
    double cycles;
};

void keep_best(std::vector<Rated>& rated, size_t count) {
    std::ranges::stable_sort(rated, {}, &Rated::cycles);
    if (rated.size() > count) rated.resize(count, rated[0]);
}

/// Of tilings that differ in parts alone, one after another, the fastest; and the fastest of parts that all have as
/// many steps, as boxes of some layers need it, or else of clearly fewer or more parts.
class FewParts {
public:
    /// Of so many steps; 0: the raster has whole tiles for any number of parts.
    template <class Tiles>
    void add(const Tiles& tiles, double cycles, int64_t steps) {
        if (tiles.parts == 1) take();
        steps_ = steps;
        same_.push_back({tiles, cycles});
    }
    std::vector<Rated> all() {
        take();
        return std::move(taken_);
    }

private:
    static int64_t parts_of(const Rated& rated) {
        return std::visit([](const auto& tiles) { return tiles.parts; }, rated.tiling);
    }
    void take() {
        keep_best(same_, same_.size());
        if (!same_.empty()) taken_.push_back(same_[0]);
        const auto other = std::ranges::find_if(same_, [&](const Rated& each) {
            const int64_t best = parts_of(same_[0]), parts = parts_of(each);
            if (steps_ % best != 0) return steps_ % parts == 0;
            return 4 * parts < 3 * best || 3 * parts > 4 * best;
        });
        if (other != same_.end()) taken_.push_back(*other);
        same_.clear();
    }
    std::vector<Rated> same_, taken_;
    int64_t steps_ = 1;
};

std::vector<Rated> rated_tiles(const ConvolutionForm& form, const Target& target) {
    FewParts found;
    visit_convolution_tiles(form, target, [&](const ConvolutionTiles& tiles, double cycles) {
        found.add(tiles, cycles, divided(form.extents.terms, tiles.terms));
    });
    return found.all();
}

std::vector<Rated> rated_halos_of_terms(const ConvolutionShape& shape, const Target& target) {
    constexpr ConvolutionPass pass = ConvolutionPass::WeightGradient;
    FewParts found;
    for (int64_t places : {192, 160, 128, 96, 64, 48, 32})
        for (int stages = 6; stages >= 2; --stages) {  // fewer only wait longer
            HaloTiles tiles{.places = places, .leaving = 0, .stages = stages, .ping_pong = 1};
            if (!takes_halo(shape, pass, tiles, target)) continue;
            const int64_t steps = divided(shape.images * shape.height * shape.width, places),
                          most_parts = std::min<int64_t>(steps, target.multiprocessors);
            for (tiles.parts = 1; tiles.parts <= most_parts; ++tiles.parts)
                found.add(tiles, halo_cycles(shape, pass, tiles, target), 0);
            break;
        }
    return found.all();
}

std::vector<Rated> rated_halos(const ConvolutionShape& shape, ConvolutionPass pass, const Target& target) {
    if (pass == ConvolutionPass::WeightGradient) return rated_halos_of_terms(shape, target);
    std::vector<Rated> found;
    for (const auto& [places, leaving] :
         {std::pair(256, 32), {256, 64}, {240, 48}, {224, 32}, {192, 48}, {192, 64}, {160, 32}, {128, 32}, {128, 64}})
        for (const auto& [warpgroups, turns] : {std::pair(1, 2), {1, 1}, {2, 1}})
            for (int weight_stages : {0, 4}) {
                const bool has_rows = warpgroups == 1 || weight_stages > 0;  // else 64 filters are all there are
                const HaloTiles tiles{.places = places,
                                      .leaving = leaving,
                                      .ping_pong = turns,
                                      .warpgroups = warpgroups,
                                      .weight_stages = weight_stages};
                if (has_rows && takes_halo(shape, pass, tiles, target))
                    found.push_back({tiles, halo_cycles(shape, pass, tiles, target)});
            }
    return found;
}

class Space {
public:
    Space(const ConvolutionShape& shape, ConvolutionPass pass, const ConvolutionForm& form, const Target& target)
        : shape_(shape), pass_(pass), form_(form), target_(target) {}

    std::vector<ConvolutionTiling> with_variants(const std::vector<Rated>& rated) {
        for (size_t place = 0; place < rated.size(); ++place) {
            add(rated[place].tiling);
            if (place < varied_tilings)
                std::visit([&](const auto& tiles) { add_variants(tiles); }, rated[place].tiling);
        }
        return std::move(space_);
    }

private:
    void add(const ConvolutionTiling& tiling) {
        if (space_.size() < most_tilings && std::ranges::find(space_, tiling) == space_.end()) space_.push_back(tiling);
    }
    void add_fitting(ConvolutionTiles tiles) {
        tiles.stages = std::min(tiles.stages, convolution_stages(tiles, target_));
        if (tiles.stages >= 2) add(tiles);
    }

    /// A stage less, warpgroups in turn, and other ways out of the block.
    void add_variants(const ConvolutionTiles& tiles) {
        ConvolutionTiles other = tiles;
        if (--other.stages >= 3) add_fitting(other);
        other = tiles;
        other.ping_pong = 2;
        if (tiles.warpgroups == 1) add_fitting(other);
        const bool boxes = may_leave_as_boxes(form_) && form_.extents.rows >= tiles.rows &&
                           form_.extents.columns >= tiles.columns && tiles.parts == 1;
        if (!boxes) return;
        for (int64_t columns : {int64_t{0}, int64_t{32}, int64_t{64}, tiles.columns}) {
            constexpr int64_t longest_box = 256;
            if (columns > 0 && (tiles.columns % columns != 0 || tiles.rows > longest_box)) continue;
            other = tiles;
            other.stages = most_stages;
            other.box_columns = columns, other.box_stages = 1;
            add_fitting(other);
            other.box_stages = 2;
            if (columns > 0 && tiles.columns / columns % 2 == 0) add_fitting(other);
        }
    }
    /// A stage less or more, of tiles and of weights.
    void add_variants(const HaloTiles& tiles) {
        for (int more : {-1, 1}) {
            HaloTiles other = tiles;
            other.stages += more;
            if (other.stages >= 2 && takes_halo(shape_, pass_, other, target_)) add(other);
            other = tiles;
            other.weight_stages += 2 * more;
            if (tiles.weight_stages > 0 && takes_halo(shape_, pass_, other, target_)) add(other);
        }
    }

    const ConvolutionShape& shape_;
    const ConvolutionPass pass_;
    const ConvolutionForm& form_;
    const Target& target_;
    std::vector<ConvolutionTiling> space_;
};

}  // namespace

std::vector<ConvolutionTiling> convolution_space(const ConvolutionShape& shape, ConvolutionPass pass,
                                                 const Target& target) {
    if (!takes_warpgroups(shape, target) || shape.layout == Layout::ChannelsFirst) return {};
    const Convolution c = declare_convolution(shape, pass);
    const auto product = window_product(c.product, {c.result});
    if (!product) return {};
    std::vector<Rated> rated = rated_tiles(product->form, target), halos = rated_halos(shape, pass, target);
    keep_best(rated, most_of_a_kind);
    keep_best(halos, most_of_a_kind / 2);
    rated.insert(rated.end(), halos.begin(), halos.end());
    keep_best(rated, rated.size());
    return Space(shape, pass, product->form, target).with_variants(rated);
}

}  // namespace tw::schedules
