#include "schedules/product_rows.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cost/known_nests.h"
#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "schedules/declared_as.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

using RowOperation = std::shared_ptr<const Operation>;
using RowOperations = std::vector<RowOperation>;

bool has(const RowOperations& operations, const Operation* one) {
    return std::ranges::any_of(operations, [&](const RowOperation& each) { return each.get() == one; });
}
bool makes_one_of(const RowOperation& operation, const std::vector<Tensor>& tensors) {
    return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.operation() == operation; });
}

/// Calls `see` with each read of what the operation's elements are made of, and whether a reduction holds it.
void visit_row_reads(const Operation& operation, const std::function<void(const Read&, const Reduce*)>& see) {
    std::function<void(const Expr&, const Reduce*)> walk = [&](const Expr& e, const Reduce* inside) {
        if (const Read* read = e.as<Read>()) see(*read, inside);
        const Reduce* own = e.as<Reduce>();
        for (const Expr& kid : children(e)) walk(kid, own ? own : inside);
    };
    for (const Operation::Output& output : operation.outputs)
        if (output.body.defined()) walk(output.body, nullptr);
}

/// A product, and what reduces its rows.
struct ProductRows {
    Tensor product;
    RowOperations rows;     ///< reduce it, those that others read first
    RowOperations inlined;  ///< between, of elements and of rows
    std::vector<Tensor> given, operands;

    bool is_inside(const Operation* operation) const {
        return operation == product.operation().get() || has(rows, operation) || has(inlined, operation);
    }
};

/// Finds what all readers of one product make of it.
class RowReaders {
public:
    RowReaders(const Tensor& product, const std::vector<Tensor>& outputs)
        : outputs_(outputs), all_(operations_of(outputs)) {
        found_.product = product;
    }

    std::optional<ProductRows> find() {
        for (const RowOperation& operation : all_)
            if (!operation->is_input() && !found_.is_inside(operation.get()) && !take(operation)) return {};
        if (found_.rows.empty()) return {};
        drop_what_no_row_needs();
        for (const RowOperation& row : found_.rows)
            if (is_read_outside(row) || makes_one_of(row, outputs_))
                for (int k = 0; k < static_cast<int>(row->outputs.size()); ++k) {
                    if (row->outputs.size() > 1 && is_read_outside(row)) return {};
                    if (is_wanted(Tensor(row, k))) found_.given.emplace_back(row, k);
                }
        find_operands();
        return std::move(found_);
    }

private:
    bool is_wanted(const Tensor& tensor) const {
        return tensor.operation()->outputs.size() == 1 ||
               std::ranges::any_of(outputs_, [&](const Tensor& each) { return each.same(tensor); });
    }

    /// Whether the operation has nothing to do with the product, or is taken.
    bool take(const RowOperation& operation) {
        bool of_elements = false, of_rows = false, is_whole = true;
        visit_row_reads(*operation, [&](const Read& read, const Reduce* sum) {
            if (has(found_.rows, read.operation.get()) ||
                (has(found_.inlined, read.operation.get()) && read.operation->shape.size() == 1))
                of_rows = true;
            else if (found_.is_inside(read.operation.get()))
                of_elements = true, is_whole = is_whole && is_own_row(*operation, read, sum);
        });
        if (of_elements && !is_whole) return false;
        const bool reduced = std::ranges::any_of(operation->outputs, [](const auto& o) { return reduces(o.body); });
        if (of_elements && reduced) return take_row(operation);
        const bool between = !reduced && operation->outputs.size() == 1 && !makes_one_of(operation, outputs_);
        if (of_elements) {
            if (!between) return false;
            found_.inlined.push_back(operation);
        } else if (of_rows && between && operation->shape.size() == 1 && reads_at_own_place(*operation))
            found_.inlined.push_back(operation);
        return true;
    }

    /// An element of the own row and of the reduction's column; or of the own place, of what reduces nothing.
    static bool is_own_row(const Operation& operation, const Read& read, const Reduce* sum) {
        const bool of_row = sum && sum->axes.size() == 1 && operation.axes.size() == 1;
        if (read.guarded || read.indices.size() != 2 || (!of_row && (sum || operation.axes.size() != 2))) return false;
        const Expr &row = operation.axes[0], &column = of_row ? sum->axes[0] : operation.axes[1];
        return read.indices[0].same(row) && read.indices[1].same(column);
    }
    static bool reads_at_own_place(const Operation& operation) {
        bool own = true;
        visit_row_reads(operation, [&](const Read& read, const Reduce*) {
            own = own && read.indices.size() == 1 && read.indices[0].same(operation.axes[0]);
        });
        return own;
    }

    /// One reduction over all columns.
    bool take_row(const RowOperation& operation) {
        const Reduce* sum = only_reduction(operation->outputs[0].body);
        if (!sum || operation->shape.size() != 1 || !equal(operation->shape[0], found_.product.shape()[0]) ||
            sum->axes.size() != 1 || extent_of(sum->axes[0]) != as_constant(found_.product.shape()[1]) ||
            !sum->reducer->commutative)
            return false;
        found_.rows.push_back(operation);
        return true;
    }

    /// Elements of rows that are no terms: they are the rest's.
    void drop_what_no_row_needs() {
        for (bool changed = true; std::exchange(changed, false);)
            for (size_t k = found_.inlined.size(); k-- > 0;) {
                const RowOperation one = found_.inlined[k];
                if (one->shape.size() == 2 || !is_read_outside(one)) continue;
                found_.inlined.erase(found_.inlined.begin() + static_cast<std::ptrdiff_t>(k));
                changed = true;
            }
    }
    bool is_read_outside(const RowOperation& operation) const {
        return std::ranges::any_of(all_, [&](const RowOperation& reader) {
            bool reads = false;
            if (!reader->is_input() && !found_.is_inside(reader.get()))
                visit_row_reads(*reader,
                                [&](const Read& read, const Reduce*) { reads = reads || read.operation == operation; });
            return reads;
        });
    }

    void find_operands() {
        for (const RowOperation& operation : all_)
            if (!operation->is_input() && found_.is_inside(operation.get()))
                visit_row_reads(*operation, [&](const Read& read, const Reduce*) {
                    if (!found_.is_inside(read.operation.get()) && !makes_one_of(read.operation, found_.operands))
                        found_.operands.emplace_back(read.operation, 0);
                });
    }

    const std::vector<Tensor>& outputs_;
    const RowOperations all_;
    ProductRows found_;
};

bool reads_row(const Operation& operation, const RowOperation& row) {
    bool found = false;
    visit_row_reads(operation, [&](const Read& read, const Reduce*) { found = found || read.operation == row; });
    return found;
}

/// Steps of a product's tiles, and of what is made of them.
class RowsOfTiles {
public:
    RowsOfTiles(Schedule& s, const ProductRows& part, const WarpgroupTiles& tiles)
        : s_(s), part_(part), tiles_(tiles) {}

    void run() {
        for (const RowOperation& operation : part_.inlined) s_.inline_stage(s_[Tensor(operation, 0)]);
        const bool in_a_chain = part_.rows.size() > 1 && reads_row(*part_.rows.back(), part_.rows.front());
        std::vector<Stage> parts;
        if (in_a_chain)
            parts = parts_of(part_.rows);
        else
            for (const RowOperation& row : part_.rows) parts.push_back(parts_of({row}).front());
        const auto unit = unit_product(part_.product);
        schedule_tensor_product(s_, part_.product, unit->a, unit->b, tiles_);
        const size_t ranks = tiles_.cluster > 1 ? 1 : 0;
        const Loop tile = s_.all_loops(part_.product)[2 + ranks];  // below raster groups, columns and rows
        for (const Stage& each : parts) make_of_tile(each, tile);
        s_.set_memory(part_.product, Memory::Registers);
        if (in_a_chain)
            combine(part_.rows);
        else
            for (const RowOperation& row : part_.rows) combine({row});
    }

private:
    std::vector<Stage> parts_of(const RowOperations& rows) {
        std::vector<StageRef> named;
        for (const RowOperation& row : rows) named.emplace_back(Tensor(row, 0));
        const Loop columns = s_.reduce(named.back());
        const Loop tile = s_.split(columns, tiles_.block_n, Tail::Mask, {"tile", "in_tile"})[0];
        return rows.size() > 1 ? s_.rfactor(named, tile) : std::vector<Stage>{s_.rfactor(named.back(), tile)};
    }

    /// Of a row, by the lanes that have its elements.
    void make_of_tile(const Stage& parts, const Loop& tile) {
        s_.at(parts, tile);
        auto [own_tile, row] = s_.loops<2>(parts);
        auto [group, of_group] = s_.split(row, tiles_.block_m / tiles_.warpgroups, {"warpgroup_of_rows", "row"});
        s_.order({own_tile, group, s_.reduce(parts), of_group});
        s_.bind(group, warpgroup);
    }

    /// The parts of rows: many rows are a thread's each, of fewer the lanes of a warp share the parts.
    void combine(const RowOperations& rows) {
        constexpr int64_t threads = 128, rows_of_block = 4, lanes = 32, many_rows = 16384, few_parts = 8;
        const Tensor last(rows.back(), 0);
        const int64_t count = require_constant(last.shape()[0]), parts = require_constant(s_.extent(s_.reduce(last)));
        const bool by_threads = count >= many_rows || parts <= few_parts;
        auto [i] = s_.loops<1>(last);
        auto [block, row] =
            s_.split(i, by_threads ? threads : rows_of_block, Tail::Mask, {"block", by_threads ? "t" : "row"});
        s_.bind(block, grid.x);
        s_.bind(row, by_threads ? thread : warp);
        for (const RowOperation& operation : rows) {
            const Tensor one(operation, 0);
            if (!one.same(last)) {
                s_.at(one, row);
                if (!makes_one_of(operation, part_.given)) s_.set_memory(one, Memory::Registers);
            }
            if (!by_threads) s_.bind(s_.split(s_.reduce(one), lanes, Tail::Mask)[1], lane);
        }
    }

    Schedule& s_;
    const ProductRows& part_;
    const WarpgroupTiles& tiles_;
};

/// The part over other operands.
ProductRows over_operands(const ProductRows& part, const std::vector<Tensor>& operands) {
    Replacement over;
    for (size_t k = 0; k < operands.size(); ++k)
        if (!operands[k].same(part.operands[k])) over.put(part.operands[k], operands[k]);
    ProductRows found{.product = over.of(part.product), .rows = {}, .inlined = {}, .given = {}, .operands = operands};
    for (const RowOperation& row : part.rows) found.rows.push_back(over.of(Tensor(row, 0)).operation());
    for (const RowOperation& each : part.inlined) found.inlined.push_back(over.of(Tensor(each, 0)).operation());
    for (const Tensor& given : part.given) found.given.push_back(over.of(given));
    return found;
}

Schedule schedule_rows_of_tiles(const ProductRows& part, const WarpgroupTiles& tiles, const Target& target) {
    Schedule s(part.given, target);
    RowsOfTiles(s, part, tiles).run();
    return s;
}

/// As many stages as shared memory has, in ping-pong where a group's sums leave room for it.
WarpgroupTiles tiles_of_width(int64_t columns, int cluster, Type operand, const Target& target) {
    constexpr int64_t reserved = 4 << 10, rows = 128, bytes_of_line = 128, most_stages = 8, most_in_turns = 192;
    const int64_t stages = (target.shared_bytes - reserved) / ((rows + columns) * bytes_of_line);
    const bool in_turns = columns <= most_in_turns;
    return {.block_m = rows,
            .block_n = columns,
            .block_k = bytes_of_line / bytes_of(operand),
            .warpgroups = in_turns ? 1 : 2,
            .cluster = cluster,
            .ping_pong = in_turns ? 2 : 1,
            .stages = static_cast<int>(std::clamp<int64_t>(stages, 2, most_stages)),
            .stage_result = false,
            .raster_group = 16};
}

/// Those that are not much wider than the product, by themselves and in pairs that share columns: a few that are fast
/// for the product alone.
std::vector<WarpgroupTiles> tiles_of_rows(const TensorProductShape& shape, const Target& target) {
    constexpr size_t most_tried = 4;
    const int64_t width = rounded_up(shape.n, 8);
    std::vector<int64_t> widths{64};
    if (width < widths[0]) widths.push_back(width);
    for (const int64_t columns : {96, 128, 160, 192, 256})
        if (columns < width + 32) widths.push_back(columns);
    std::vector<WarpgroupTiles> found;
    for (const int cluster : {1, 2})
        for (const int64_t columns : widths) found.push_back(tiles_of_width(columns, cluster, shape.operand, target));
    std::ranges::sort(found, {}, [&](const WarpgroupTiles& tiles) { return predicted_cycles(tiles, shape, target); });
    found.resize(std::min(found.size(), most_tried));
    return found;
}

/// The tiles that the model of time puts first; nothing if none can be built.
std::optional<WarpgroupTiles> best_tiles(const ProductRows& part, const UnitProduct& unit, const Target& target) {
    std::optional<WarpgroupTiles> best;
    double least = 0;
    for (const WarpgroupTiles& tiles : tiles_of_rows(unit.shape, target)) try {
            const Schedule s = made_with_trees_later([&] { return schedule_rows_of_tiles(part, tiles, target); });
            const double seconds = codegen::predict_time(s.tree(), target).seconds;
            if (best && seconds >= least) continue;
            best = tiles;
            least = seconds;
        } catch (const Error&) {
            continue;  // other tiles may be legal
        }
    return best;
}

std::optional<ScheduledPart> scheduled_part(const Tensor& product, const std::vector<Tensor>& outputs,
                                            const Target& target) {
    if (product.operation()->outputs.size() != 1 || product.rank() != 2 || makes_one_of(product.operation(), outputs))
        return {};
    const auto unit = unit_product(product);
    if (!unit || !unit->more.empty() || unit->rows_of_matrix > 0 || !unit->joined.empty() || unit->shape.batch > 0 ||
        !takes_warpgroups(unit->shape, target))
        return {};
    auto rows = RowReaders(product, outputs).find();
    if (!rows) return {};
    const auto tiles = best_tiles(over_operands(*rows, as_inputs(rows->operands)), *unit, target);
    if (!tiles) return {};
    std::vector<std::string> names;
    for (const RowOperation& row : rows->rows) names.push_back(row->name);
    return ScheduledPart{.given = rows->given,
                         .operands = rows->operands,
                         .schedule =
                             [rows = *rows, tiles = *tiles, target](const std::vector<Tensor>& operands) {
                                 return schedule_rows_of_tiles(over_operands(rows, operands), tiles, target);
                             },
                         .text = fmt::format("'{}' reduces rows of the product '{}' in registers, tile by tile: it "
                                             "has no memory",
                                             fmt::join(names, "', '"), product.name())};
}

/// Elements of the product that are read beside its rows, as sums of their own; tensors as they were where there are
/// none.
class ProductElements {
public:
    explicit ProductElements(const std::vector<Tensor>& outputs) : given_(outputs) {}

    std::vector<Tensor> apart_from(const Tensor& product) {
        for (const RowOperation& operation : operations_of(given_)) {
            const Tensor now = changed_.of(Tensor(operation, 0));
            if (operation->is_input() || operation->outputs.size() != 1 || operation->shape.size() != 1) continue;
            const Expr body = with_sums_for(now, product);
            if (!body.same(body_of(now))) changed_.put(Tensor(operation, 0), declared_as(now, body));
        }
        std::vector<Tensor> found;
        for (const Tensor& output : given_) found.push_back(changed_.of(output));
        return found;
    }

private:
    /// The element with a tensor for each element of the product that it reads beside its reduction.
    Expr with_sums_for(const Tensor& tensor, const Tensor& product) {
        const std::vector<Expr>& axes = tensor.operation()->axes;
        std::vector<Expr> beside;
        visit_row_reads(*tensor.operation(), [&](const Read& read, const Reduce* sum) {
            if (!sum && read.operation == product.operation() && !read.guarded)
                beside.push_back(make_expr(product.type(), read));
        });
        if (beside.empty()) return body_of(tensor);
        auto named = [&](const std::string& suffix, const Expr& body) {
            return compute(tensor.name() + suffix, {tensor.shape().begin(), tensor.shape().end()},
                           [&](const std::vector<Expr>& at) { return over(axes, body, at); });
        };
        int number = 0;
        return transform(body_of(tensor), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || std::ranges::none_of(beside, [&](const Expr& each) { return equal(each, e); })) return {};
            const std::string suffix = fmt::format("_beside{}", number++ == 0 ? "" : std::to_string(number));
            const std::vector<Expr> at(read->indices.begin(), read->indices.end());
            return named(suffix, over(product.operation()->axes, body_of(product), at))(axes[0]);
        });
    }

    const std::vector<Tensor>& given_;
    Replacement changed_;
};

}  // namespace

std::optional<Schedule> with_product_rows(const std::vector<Tensor>& outputs, const Target& target,
                                          const ChooseRest& choose_rest) {
    if (!target.has_wgmma || !target.has_tma) return {};
    std::vector<Tensor> now = outputs;
    std::vector<ScheduledPart> parts;
    for (const RowOperation& operation : operations_of(outputs)) {
        const Tensor product(operation, 0);
        if (operation->is_input() || operation->shape.size() != 2) continue;
        const std::vector<Tensor> apart = ProductElements(now).apart_from(product);
        if (auto part = scheduled_part(product, apart, target)) {
            now = apart;
            parts.push_back(std::move(*part));
        }
    }
    if (parts.empty()) return {};
    try {
        Schedule s = composed_of(parts, now, target, choose_rest);
        codegen::counted_kernels(s.tree(), target);
        return s;
    } catch (const Error&) {
        return {};
    }
}

}  // namespace tw::schedules
