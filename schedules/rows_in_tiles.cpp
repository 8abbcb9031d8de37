#include "schedules/rows_in_tiles.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schedules/replace_tensors.h"
#include "schedules/tried_tiles.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_columns = 256;  // of a wgmma

/// A product, and what its tiles make of it.
struct TileRows {
    Tensor product;
    RowOperations made;  ///< producers first
    std::vector<Tensor> given, operands;

    bool is_inside(const Operation* operation) const {
        return operation == product.operation().get() || holds_operation(made, operation);
    }
    bool is_element(const Operation& operation) const {
        return operation.axes.size() == product.operation()->axes.size();
    }
    /// Made where it is read.
    bool is_inlined(const RowOperation& operation) const {
        return !has_reduction(*operation) && !makes_one_of(operation, given);
    }
};

/// Finds what tiles may make of their rows: all that reads the product, or what is made of it, at its own place.
class TileRowsFinder {
public:
    TileRowsFinder(const Tensor& product, const std::vector<Tensor>& outputs, const RowOperations& taken)
        : outputs_(outputs), all_(operations_of(outputs)), left_out_(taken) {
        found_.product = product;
    }

    std::optional<TileRows> find() {
        do {
            found_.made.clear();
            behind_.clear();
            for (const RowOperation& operation : all_)
                if (!operation->is_input() && operation != found_.product.operation()) sort_out(operation);
        } while (leave_out_what_is_not_stored());
        if (std::ranges::none_of(found_.made, [&](const RowOperation& each) { return has_reduction(*each); }))
            return {};
        find_given();
        find_operands();
        return std::move(found_);
    }

private:
    /// Made in the tile, behind it, or nothing that the product has to do with.
    void sort_out(const RowOperation& operation) {
        bool is_of_tile = false, is_of_elements = false, is_behind = false, is_own = true;
        visit_row_reads(*operation, [&](const Read& read, const Reduce* sum) {
            is_behind = is_behind || holds_operation(behind_, read.operation.get());
            if (!found_.is_inside(read.operation.get())) return;
            is_of_tile = true;
            is_of_elements = is_of_elements || found_.is_element(*read.operation);
            is_own = is_own && reads_own_place(*operation, read, sum);
        });
        if (!is_of_tile && !is_behind) return;
        const bool is_made = !is_behind && is_own && !holds_operation(left_out_, operation.get()) &&
                             (has_reduction(*operation) ? is_of_elements && reduces_row(*operation)
                                                        : is_of_row(*operation) || is_of_place(*operation));
        (is_made ? found_.made : behind_).push_back(operation);
    }

    /// The own row's number, or its element in the own column, or in the reduction's.
    bool reads_own_place(const Operation& operation, const Read& read, const Reduce* sum) const {
        const size_t rank = rank_of_rows();
        if (read.guarded || operation.axes.size() < rank || read.indices.size() < rank) return false;
        for (size_t d = 0; d < rank; ++d)
            if (!read.indices[d].same(operation.axes[d])) return false;
        if (read.indices.size() == rank) return true;
        const Expr& column = read.indices[rank];
        return sum ? operation.axes.size() == rank && sum->axes.size() == 1 && column.same(sum->axes[0])
                   : operation.axes.size() == rank + 1 && column.same(operation.axes[rank]);
    }

    bool is_of_row(const Operation& operation) const {
        return operation.outputs.size() == 1 && std::ranges::equal(operation.shape, shape_of_rows(), equal);
    }
    bool is_of_place(const Operation& operation) const {
        return operation.outputs.size() == 1 && std::ranges::equal(operation.shape, found_.product.shape(), equal);
    }
    bool reduces_row(const Operation& operation) const {
        const Reduce* sum = only_reduction(operation.outputs[0].body);
        return sum && sum->axes.size() == 1 && sum->reducer->commutative &&
               std::ranges::equal(operation.shape, shape_of_rows(), equal) &&
               equal(sum->axes[0].as<Variable>()->extent, found_.product.shape().back());
    }
    std::span<const Expr> shape_of_rows() const { return std::span(found_.product.shape()).first(rank_of_rows()); }
    size_t rank_of_rows() const { return found_.product.operation()->axes.size() - 1; }

    /// Elements and rows' numbers that others see, though the tile does not have them as its lanes share it: what reads
    /// no element of the product, and what has several outputs that others read.
    bool leave_out_what_is_not_stored() {
        const size_t before = left_out_.size();
        for (const RowOperation& operation : found_.made) {
            const bool is_read = is_read_by(operation, behind_);
            const bool is_tuple = operation->outputs.size() > 1 && is_read;
            const bool is_made_of_none =
                (is_read || makes_one_of(operation, outputs_)) && !is_of_row(*operation) && !reads_elements(*operation);
            if (is_tuple || is_made_of_none) left_out_.push_back(operation);
        }
        return left_out_.size() > before;
    }
    bool reads_elements(const Operation& operation) const {
        bool found = false;
        visit_row_reads(operation, [&](const Read& read, const Reduce*) {
            found = found || (found_.is_inside(read.operation.get()) && found_.is_element(*read.operation) &&
                              (read.operation == found_.product.operation() || reads_elements(*read.operation)));
        });
        return found;
    }
    static bool is_read_by(const RowOperation& operation, const RowOperations& readers) {
        return std::ranges::any_of(readers, [&](const RowOperation& reader) {
            bool reads = false;
            visit_row_reads(*reader,
                            [&](const Read& read, const Reduce*) { reads = reads || read.operation == operation; });
            return reads;
        });
    }

    /// Outputs in their order, so that a part that is all there is has them as they are; then what others read.
    void find_given() {
        auto give = [&](const Tensor& tensor) {
            if (found_.is_inside(tensor.operation().get()) &&
                std::ranges::none_of(found_.given, [&](const Tensor& each) { return each.same(tensor); }))
                found_.given.push_back(tensor);
        };
        for (const Tensor& output : outputs_) give(output);
        for (const RowOperation& operation : all_)
            if (is_read_by(operation, behind_)) give(Tensor(operation, 0));
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
    RowOperations left_out_, behind_;
    TileRows found_;
};

TileRows over_operands(const TileRows& part, const std::vector<Tensor>& operands) {
    Replacement over;
    for (size_t k = 0; k < operands.size(); ++k)
        if (!operands[k].same(part.operands[k])) over.put(part.operands[k], operands[k]);
    TileRows found{.product = over.of(part.product), .made = {}, .given = {}, .operands = operands};
    for (const RowOperation& each : part.made) found.made.push_back(over.of(Tensor(each, 0)).operation());
    for (const Tensor& given : part.given) found.given.push_back(over.of(given));
    return found;
}

/// Steps of a product's tiles, and of what is made of their rows.
class RowsInTile {
public:
    RowsInTile(Schedule& s, const TileRows& part, const WarpgroupTiles& tiles) : s_(s), part_(part), tiles_(tiles) {}

    void run() {
        RowOperations stored;
        for (const RowOperation& operation : part_.made)
            if (part_.is_inlined(operation))
                s_.inline_stage(s_[Tensor(operation, 0)]);
            else
                stored.push_back(operation);
        const auto unit = unit_product(part_.product);
        schedule_tensor_product(s_,
                                {.a = unit->a,
                                 .b = unit->b,
                                 .bias = {},
                                 .c = part_.product,
                                 .left = unit->a,
                                 .right = unit->b,
                                 .more = unit->more},
                                tiles_);
        const Loop tile = loop_of_tiles(unit->shape.m);
        for (const RowOperation& operation : stored) make_of_tile(*operation, s_[Tensor(operation, 0)], tile);
        stored.insert(stored.begin(), part_.product.operation());
        for (const RowOperation& operation : stored) keep(operation, tile);
    }

private:
    /// The innermost of those over tiles: below batches, groups of rows, columns and rows.
    Loop loop_of_tiles(int64_t rows) const {
        const size_t batches = part_.product.operation()->axes.size() - 2;
        const bool are_matrices_rows = batches > 0 && rows == tiles_.block_m;
        return s_.all_loops(part_.product)[batches - (are_matrices_rows ? 1 : 0) + 2 + (tiles_.cluster > 1 ? 1 : 0)];
    }

    void make_of_tile(const Operation& operation, Stage stage, const Loop& tile) {
        s_.at(stage, tile);
        share(operation, stage, has_reduction(operation));
    }

    /// By the lanes that have the elements: warpgroups have rows, and columns are those of the tile.
    void share(const Operation& operation, Stage stage, bool reduces) {
        const std::vector<Loop> data = s_.data_loops(stage);
        const bool is_element = part_.is_element(operation);
        const size_t row = data.size() - (is_element ? 2 : 1);
        auto [group, of_group] = s_.split(data[row], tiles_.block_m / tiles_.warpgroups, {"warpgroup_of_rows", "row"});
        std::vector<Loop> order(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(row)), columns;
        if (is_element) columns = columns_of(data.back());
        if (reduces) columns = columns_of(s_.reduce(stage));
        order.push_back(group);
        if (is_element) order.push_back(of_group);
        order.insert(order.end(), columns.begin(), columns.end());
        if (!is_element) order.push_back(of_group);
        s_.order(order);
        s_.bind(group, warpgroup);
    }
    std::vector<Loop> columns_of(const Loop& columns) {
        if (is_constant(s_.extent(columns), tiles_.block_n)) return {columns};
        auto [tile, in_tile] = s_.split(columns, tiles_.block_n, Tail::Mask, {"tile", "in_tile"});
        return {tile, in_tile};
    }

    /// In registers, for what the tile makes of it; in memory, for others.
    void keep(const RowOperation& operation, const Loop& tile) {
        const bool is_given = makes_one_of(operation, part_.given);
        const bool is_read = std::ranges::any_of(part_.made, [&](const RowOperation& reader) {
            bool reads = false;
            visit_row_reads(*reader,
                            [&](const Read& read, const Reduce*) { reads = reads || read.operation == operation; });
            return reads;
        });
        if (!is_given)
            s_.set_memory(Tensor(operation, 0), Memory::Registers);
        else if (is_read)
            share(*operation, s_.stage(Tensor(operation, 0), Memory::Registers, tile), false);
    }

    Schedule& s_;
    const TileRows& part_;
    const WarpgroupTiles& tiles_;
};

Schedule schedule_tiles(const TileRows& part, const WarpgroupTiles& tiles, const Target& target) {
    Schedule s(part.given, target);
    RowsInTile(s, part, tiles).run();
    return s;
}

/// As many stages as shared memory has, for two groups in ping-pong; of blocks in pairs, which share columns, where
/// there are two.
WarpgroupTiles tiles_of_rows(int64_t rows, const UnitProduct& unit, const Target& target) {
    constexpr int64_t reserved = 4 << 10, bytes_of_line = 128, bytes_of_shortest_line = 32, most_stages = 12;
    const TensorProductShape& shape = unit.shape;
    const int64_t least = shape.transpose_b ? piece : bytes_of_shortest_line / bytes_of(shape.operand);
    const int64_t columns = rounded_up(shape.n, least), products = static_cast<int64_t>(unit.more.size()) + 1;
    const int64_t stages = (target.shared_bytes - reserved) / ((rows + columns) * products * bytes_of_line);
    WarpgroupTiles tiles{.block_m = rows,
                         .block_n = columns,
                         .block_k = bytes_of_line / bytes_of(shape.operand),
                         .warpgroups = 1,
                         .cluster = shape.m > rows ? 2 : 1,
                         .ping_pong = 2,
                         .stages = static_cast<int>(std::clamp<int64_t>(stages, 2, most_stages)),
                         .stage_result = false,
                         .raster_group = 16};
    tiles.promotion_interval = promotion_interval(tiles, shape);
    return tiles;
}

/// Of those with one warpgroup or two, in turn or not, alone or in pairs, these were the fastest by the model of time,
/// or within 1 % of it, of 33 computations: of 64 rows, and of 128 where these are for all multiprocessors and sums
/// leave room for what is made of them.
std::vector<WarpgroupTiles> tiles_to_try(const UnitProduct& unit, const Target& target) {
    constexpr int64_t most_columns_of_large = 64, rows_of_large = 2 * rows_of_unit;
    std::vector<WarpgroupTiles> found{tiles_of_rows(rows_of_unit, unit, target)};
    const int64_t large = divided(unit.shape.m, rows_of_large) * std::max<int64_t>(unit.shape.batch, 1);
    if (unit.shape.n <= most_columns_of_large && large >= 2 * target.multiprocessors)
        found.push_back(tiles_of_rows(rows_of_large, unit, target));
    std::erase_if(found, [&](const WarpgroupTiles& tiles) { return !sums_fit(tiles, unit.shape); });
    return found;
}

}  // namespace

std::optional<ScheduledPart> rows_in_tiles(const Tensor& product, const std::vector<Tensor>& outputs,
                                           RowOperations& taken, const Target& target) {
    if (product.operation()->outputs.size() != 1) return {};
    const auto unit = unit_product(product);
    if (!unit || unit->rows_of_matrix > 0 || !unit->joined.empty() || unit->shape.n > most_columns ||
        !takes_warpgroups(unit->shape, target))
        return {};
    auto rows = TileRowsFinder(product, outputs, taken).find();
    if (!rows) return {};
    const std::vector<Tensor> inputs = as_inputs(rows->operands);
    auto make = [rows = *rows, target](const std::vector<Tensor>& operands, const WarpgroupTiles& tiles) {
        return schedule_tiles(over_operands(rows, operands), tiles, target);
    };
    const auto best = fastest_tiles(
        tiles_to_try(*unit, target), [&](const WarpgroupTiles& tiles) { return make(inputs, tiles); }, target);
    if (!best) return {};
    taken.push_back(product.operation());
    taken.insert(taken.end(), rows->made.begin(), rows->made.end());
    std::vector<std::string> names;
    for (const Tensor& given : rows->given) names.push_back(given.name());
    return ScheduledPart{.given = rows->given,
                         .operands = rows->operands,
                         .schedule = schedule_by_tiles(*best, inputs, make),
                         .text = fmt::format("'{}': made of rows of the product '{}' in the registers of its tiles",
                                             fmt::join(names, "', '"), product.name())};
}

}  // namespace tw::schedules
