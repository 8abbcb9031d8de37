// What TMA delivers of windows of images, as boxes or as walks over pixels, against the elements that the declaration
// reads. No kernel runs: requests and tensor maps are looked at where the analysis makes them.
// TW_FUZZ_COPIES sets how many copies there are (1000), TW_FUZZ_SEED the seed.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "codegen/async/choose_tma.h"
#include "codegen/async/tensor_box.h"
#include "codegen/mapping/bind_unbound.h"
#include "codegen/mapping/tidy_nest.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/evaluate.h"
#include "dsl/host_array.h"
#include "dsl/simplify.h"
#include "tests/codegen/window_copy.h"
#include "tests/verify/fuzz_seed.h"

namespace tw::codegen {
namespace {

constexpr int64_t unwritten = -2, zero = -1;

/// Has the tile lie in lines of up to 128 bytes, as wgmma reads matrices, where that is possible.
void lay_in_lines(SharedBuffer& tile) {
    const std::vector<int64_t> shape = constant_shape(tile.buffer);
    for (size_t slow = shape.size() - 1; slow-- > 0;) {
        if (shape[slow] == 1) continue;
        const Layout lines =
            in_lines(shape, static_cast<int>(shape.size()) - 1, {static_cast<int>(slow)}, bytes_of(tile.buffer->type));
        if (!lines.digits.empty()) tile = {tile.buffer, lines, true, 1024};
        return;
    }
}

std::string no_citation(int) { return ""; }

/// Before anything is chosen of how the copy is made.
TileKernel tiles_of(const Schedule& s) {
    std::vector<std::string> notes;
    const Tree tree = s.tree();
    const Nest nest = bind_unbound(tidied(tree.nests[0]), s.target(), no_citation, notes);
    return discharge_masks(mask_padding(make_tiles(tree, nest, s.target(), no_citation)));
}

/// Of a loop of the copy, beside one around it that may have the same name.
std::string own_name(const OpLoop& loop) { return "copy's " + loop.variable.as<Variable>()->name; }

/// Integer expressions over variables that are given by name.
class NamedExprs {
public:
    explicit NamedExprs(const std::vector<OpLoop>& own = {}) : own_(own) {}

    void add(const Expr& expr) {
        exprs_.emplace_back(expr, slots_, [](const ExprNode&) { return nullptr; });
        visit(expr, [&](const Expr& node) {
            const Variable* variable = node.as<Variable>();
            if (!variable) return;
            const auto own = std::ranges::find_if(own_, [&](const OpLoop& loop) { return loop.variable.same(node); });
            names_.emplace_back(own == own_.end() ? variable->name : own_name(*own), slots_.slot(node));
        });
    }
    void add(const std::vector<Expr>& exprs) {
        for (const Expr& expr : exprs) add(expr);
    }
    std::vector<int64_t> at(const LoopValues& values) {
        registers_.assign(static_cast<size_t>(slots_.size()), {});
        for (const auto& [name, slot] : names_) registers_[static_cast<size_t>(slot)].integer = values.at(name);
        std::vector<int64_t> result;
        for (const CompiledExpr& expr : exprs_) result.push_back(expr.run_integer(registers_));
        return result;
    }

private:
    std::vector<OpLoop> own_;
    SlotMap slots_;
    std::vector<CompiledExpr> exprs_;
    std::vector<std::pair<std::string, int>> names_;
    std::vector<Register> registers_;
};

/// The requests for one copy, and what they bring.
class Requests {
public:
    Requests(const TileKernel& kernel, const TileOp& copy)
        : use_(kernel.maps.at(0)), shape_(constant_shape(use_.tensor)), tile_(copy.stores[0].buffer) {
        for (const SharedBuffer& shared : kernel.shared)
            if (shared.buffer == tile_) layout_ = shared.layout;
        const Expr stage = integer(0);
        for (const Instruction& instruction : tma_request(kernel, copy, tile_, tile_, stage).instructions) {
            const TmaLoad& load = std::get<TmaLoad>(instruction);
            NamedExprs& exprs = loads_.emplace_back();
            exprs.add(load.coordinates);
            exprs.add(load.offsets);
            const std::vector<Expr>& place = load.to.place.indices;
            exprs.add(std::vector<Expr>(place.begin() + 1, place.end()));
        }
    }

    bool walks() const { return use_.im2col.has_value(); }
    int64_t address(const std::vector<int64_t>& in_tile) const { return plain(layout_).address(in_tile); }

    /// The elements of the tensor, by their numbers, in each place of the tile.
    std::vector<int64_t> delivered(const LoopValues& around) {
        std::vector<int64_t> tile(static_cast<size_t>(layout_.elements()), unwritten);
        for (NamedExprs& load : loads_) {
            const std::vector<int64_t> numbers = load.at(around);
            const auto coordinates = numbers.begin(), offsets = coordinates + static_cast<int64_t>(shape_.size()),
                       place = offsets + (walks() ? static_cast<int64_t>(shape_.size()) - 2 : 0);
            const std::vector<int64_t> first(coordinates, offsets), from_base(offsets, place);
            int64_t to = address({place, numbers.end()});
            for (const std::vector<int64_t>& row : walks() ? walked(first, from_base) : boxed(first)) {
                for (int64_t e = 0; e < width(); ++e) tile.at(static_cast<size_t>(to + e)) = number_of(row, e);
                to += layout_.swizzle > 16 ? layout_.swizzle / bytes_of(tile_->type) : width();
            }
        }
        return tile;
    }

private:
    /// Pieces of 16 bytes are exchanged within lines; requests and readers both do so, which tests of the emulator see.
    static Layout plain(Layout layout) {
        layout.swizzle = 0;
        return layout;
    }
    int64_t width() const { return walks() ? use_.im2col->channels : use_.box[0]; }

    /// An element of a row that begins at these coordinates, innermost first.
    int64_t number_of(const std::vector<int64_t>& row, int64_t further) const {
        int64_t number = 0;
        for (size_t d = 0; d < shape_.size(); ++d) {
            const size_t inner = shape_.size() - 1 - d;
            const int64_t index = row[inner] + (inner == 0 ? further : 0);
            if (index < 0 || index >= shape_[d]) return zero;
            number = number * shape_[d] + index;
        }
        return number;
    }

    std::vector<std::vector<int64_t>> boxed(const std::vector<int64_t>& first) const {
        std::vector<std::vector<int64_t>> rows = {first};
        for (size_t d = 1; d < first.size(); ++d) {
            std::vector<std::vector<int64_t>> more;
            for (int64_t k = 0; k < use_.box[d]; ++k)
                for (std::vector<int64_t> row : rows) {
                    row[d] += k;
                    more.push_back(std::move(row));
                }
            rows = std::move(more);
        }
        return rows;
    }

    /// Base pixels go from corner to corner, row after row; the last dimension is that of images.
    std::vector<std::vector<int64_t>> walked(std::vector<int64_t> base, const std::vector<int64_t>& offsets) const {
        std::vector<std::vector<int64_t>> rows;
        const size_t last = base.size() - 1;
        for (int64_t pixel = 0; pixel < use_.im2col->pixels; ++pixel) {
            rows.push_back(base);
            for (size_t d = 1; d < last; ++d) rows.back()[d] += offsets[d - 1];
            size_t d = 1;
            for (; d < last; ++d) {
                base[d] += use_.traversal_strides[d];
                if (base[d] < shape_[last - d] + use_.im2col->upper[d - 1]) break;
                base[d] = use_.im2col->lower[d - 1];
            }
            if (d == last) base[last] += use_.traversal_strides[last];
        }
        return rows;
    }

    const TensorMapUse& use_;
    std::vector<int64_t> shape_;
    Buffer tile_;
    Layout layout_;
    std::vector<NamedExprs> loads_;
};

class WindowCopies : public testing::Test {
protected:
    enum class Outcome { Box, Walk, Refused };

    static const TileOp* copy_of(const TileKernel& kernel) {
        const TileOp* found = nullptr;
        visit_ops(kernel.body, [&](const TileOp& op) {
            if (op.is<TmaCopyOp>()) found = &op;
        });
        return found;
    }

    static int64_t number_in_x(const WindowCopy& copy, const std::vector<int64_t>& indices) {
        int64_t number = 0;
        for (size_t d = 0; d < indices.size(); ++d) {
            const bool is_image = d == 0, is_channel = d + 1 == indices.size();
            const int64_t extent = is_image     ? copy.images
                                   : is_channel ? copy.channels * copy.groups
                                                : copy.dimensions[d - 1].extent;
            if (indices[d] < 0 || indices[d] >= extent) return zero;
            number = number * extent + indices[d];
        }
        return number;
    }

    /// What stands in the tile, as the number of an element of x: as the declaration says; or, where the copy's loops
    /// are not those of the declaration's tiles, as it is for several blocks together, as the copy itself says. Nothing
    /// where nobody reads.
    class Expected {
    public:
        Expected(const WindowCopy& copy, const TileOp& op) : copy_(copy), op_(op), exprs_(op.loops) {
            exprs_.add(op.mask);
            exprs_.add(op.stores[0].value.as<Load>()->indices);
            for (const OpLoop& loop : op.loops) is_declared_ = is_declared_ && !declared_name(loop).empty();
        }
        bool is_declared() const { return is_declared_; }
        /// Loops around the copy are taken apart.
        std::optional<int64_t> operator()(const LoopValues& at) {
            if (!is_declared_) {
                std::vector<int64_t> numbers = exprs_.at(at);
                const bool is_there = numbers[0] != 0;
                numbers.erase(numbers.begin());
                return is_there ? number_in_x(copy_, numbers) : zero;
            }
            LoopValues declared = at;
            for (const OpLoop& loop : op_.loops) declared[declared_name(loop)] = at.at(own_name(loop));
            const WindowCopy::Element element = copy_.element(declared);
            if (!element.is_read) return {};
            return number_in_x(copy_, element.indices);
        }

    private:
        /// Empty if it is none of a tile's.
        std::string declared_name(const OpLoop& loop) const {
            const std::string& name = loop.variable.as<Variable>()->name;
            const size_t rank = copy_.dimensions.size();
            if (name == "m" || name == WindowCopy::axis_of_image || name == WindowCopy::axis(rank - 1)) return "pixel";
            if (rank > 1 && name == WindowCopy::axis(rank - 2))
                return copy_.pixels == PixelLoops::Patch ? "row" : "pixel";
            if (name == "c") return "k";
            return name == "pixel" || name == "row" || name == "k" || name.starts_with("r") ? name : "";
        }

        const WindowCopy& copy_;
        const TileOp& op_;
        NamedExprs exprs_;
        bool is_declared_ = true;
    };

    /// Of a row's elements, the first of every eight and the last.
    void expect_elements(const WindowCopy& copy, const TileOp& op, Requests& requests, const LoopValues& around) {
        const std::vector<int64_t> tile = requests.delivered(around);
        Expected expected(copy, op);
        declared_ += expected.is_declared();
        ++looked_at_;
        NamedExprs place(op.loops);
        place.add(op.stores[0].indices);
        const LoopValues apart = copy.taken_apart(around);
        std::vector<int64_t> extents, index(op.loops.size(), 0);
        for (const OpLoop& loop : op.loops) extents.push_back(require_constant(loop.extent));
        do {
            if (index.back() % 8 != 0 && index.back() + 1 != extents.back()) continue;
            LoopValues at = apart;
            for (size_t l = 0; l < op.loops.size(); ++l) at[own_name(op.loops[l])] = index[l];
            const std::optional<int64_t> number = expected(at);
            if (!number) continue;
            ++elements_;
            ASSERT_EQ(tile.at(static_cast<size_t>(requests.address(place.at(at)))), *number) << text_of(at);
        } while (advance(index, extents));
    }

    static std::string text_of(const LoopValues& values) {
        std::string text;
        for (const auto& [name, value] : values) text += fmt::format(", {} = {}", name, value);
        return text;
    }

    /// The copy in some iterations of the loops around it, the first and the last among them.
    Outcome examine(const WindowCopy& copy, const TileKernel& tiles, const Target& target) {
        TileKernel kernel;
        try {
            kernel = choose_tma(tiles, target, no_citation);
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), testing::HasSubstr("x_shared cannot be copied by the tensor memory accelerator"));
            return Outcome::Refused;
        }
        const TileOp* op = copy_of(kernel);
        Requests requests(kernel, *op);
        const std::vector<WindowCopy::Digit> around = copy.around();
        for (int sample = 0; sample < 6 && !HasFailure(); ++sample) {
            LoopValues at;
            for (const auto& [name, extent] : around)
                at[name] = sample == 0   ? 0
                           : sample == 1 ? extent - 1
                                         : std::uniform_int_distribution<int64_t>(0, extent - 1)(random_);
            expect_elements(copy, *op, requests, at);
        }
        return requests.walks() ? Outcome::Walk : Outcome::Box;
    }

    std::mt19937 random_;
    int64_t elements_ = 0, looked_at_ = 0, declared_ = 0;
};

TEST_F(WindowCopies, BringWhatIsDeclared) {
    const int64_t count = fuzz::number_from_environment("TW_FUZZ_COPIES", 1000);
    random_.seed(static_cast<unsigned>(fuzz::fuzz_seed()));
    std::map<Outcome, int64_t> outcomes;
    for (int64_t n = 0; n < count && !HasFailure();) {
        const WindowCopy copy = random_window_copy(random_);
        const Schedule s = copy.schedule();
        TileKernel tiles = tiles_of(s);
        for (bool in_lines : {false, true}) {  // as tensor cores want it
            SCOPED_TRACE(fmt::format("copy {}: {}{}", n, copy.text(), in_lines ? ", lines" : ""));
            if (in_lines) lay_in_lines(tiles.shared.at(0));
            ++outcomes[examine(copy, tiles, s.target())];
            ++n;
        }
    }
    std::printf("%lld boxes, %lld walks, %lld refused; %lld elements\n", static_cast<long long>(outcomes[Outcome::Box]),
                static_cast<long long>(outcomes[Outcome::Walk]), static_cast<long long>(outcomes[Outcome::Refused]),
                static_cast<long long>(elements_));
    EXPECT_GT(outcomes[Outcome::Box], count / 8);
    EXPECT_GT(outcomes[Outcome::Walk], count / 3);
    EXPECT_GT(declared_, looked_at_ * 9 / 10);
}

}  // namespace
}  // namespace tw::codegen
