#include "schedules/rows_by_tiles.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/tried_tiles.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

/// A product, and what reduces its rows.
struct ProductRows {
    Tensor product;
    RowOperations rows;     ///< reduce it, those that others read first
    RowOperations inlined;  ///< between, of elements and of rows
    std::vector<Tensor> given, operands;

    bool is_inside(const Operation* operation) const {
        return operation == product.operation().get() || holds_operation(rows, operation) ||
               holds_operation(inlined, operation);
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
            if (holds_operation(found_.rows, read.operation.get()) ||
                (holds_operation(found_.inlined, read.operation.get()) && read.operation->shape.size() == 1))
                of_rows = true;
            else if (found_.is_inside(read.operation.get()))
                of_elements = true, is_whole = is_whole && is_own_row(*operation, read, sum);
        });
        if (of_elements && !is_whole) return false;
        const bool reduced = has_reduction(*operation);
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

    /// The parts of rows: many rows are a thread's each, of fewer the lanes of a warp share the parts. The last one has
    /// the loops, unless others are read by it and given: these lead, as no output is made under its reader.
    void combine(const RowOperations& rows) {
        constexpr int64_t threads = 128, rows_of_block = 4, lanes = 32, many_rows = 16384, few_parts = 8;
        const auto is_given = [&](const RowOperation& each) { return makes_one_of(each, part_.given); };
        const bool follow = std::any_of(rows.begin(), rows.end() - 1, is_given);
        const Tensor leader(follow ? rows.front() : rows.back(), 0);
        const int64_t count = require_constant(leader.shape()[0]),
                      parts = require_constant(s_.extent(s_.reduce(leader)));
        const bool by_threads = count >= many_rows || parts <= few_parts;
        auto [i] = s_.loops<1>(leader);
        auto [block, row] =
            s_.split(i, by_threads ? threads : rows_of_block, Tail::Mask, {"block", by_threads ? "t" : "row"});
        s_.bind(block, grid.x);
        s_.bind(row, by_threads ? thread : warp);
        const auto keep = [&](const RowOperation& operation) {
            const Tensor one(operation, 0);
            if (!is_given(operation) && !one.same(leader)) s_.set_memory(one, Memory::Registers);
            if (is_given(operation) && follow && operation != rows.back()) s_.stage(one, Memory::Registers, row);
        };
        for (const RowOperation& operation : rows)
            if (const Tensor one(operation, 0); !one.same(leader)) {
                s_.at(one, row);
                if (!follow) keep(operation);
            }
        if (follow) std::ranges::for_each(rows, keep);
        for (const RowOperation& operation : rows)
            if (!by_threads) s_.bind(s_.split(s_.reduce(Tensor(operation, 0)), lanes, Tail::Mask)[1], lane);
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
WarpgroupTiles tiles_of_width(int64_t columns, const TensorProductShape& shape, const Target& target) {
    constexpr int64_t reserved = 4 << 10, rows = 128, bytes_of_line = 128, most_stages = 8, most_in_turns = 192;
    const int64_t stages = (target.shared_bytes - reserved) / ((rows + columns) * bytes_of_line);
    const bool in_turns = columns <= most_in_turns;
    WarpgroupTiles tiles{.block_m = rows,
                         .block_n = columns,
                         .block_k = bytes_of_line / bytes_of(shape.operand),
                         .warpgroups = in_turns ? 1 : 2,
                         .cluster = shape.m > rows ? 2 : 1,
                         .ping_pong = in_turns ? 2 : 1,
                         .stages = static_cast<int>(std::clamp<int64_t>(stages, 2, most_stages)),
                         .stage_result = false,
                         .raster_group = 16};
    tiles.promotion_interval = promotion_interval(tiles, shape);
    return tiles;
}

/// Those that are the fastest for the product alone; if they do not divide its columns, so that some tiles make what is
/// masked, also the fastest that do, or else the second: of those not much wider than the product, in pairs of blocks,
/// which share columns, where there are two. By the model of time, none of the others was faster with what is made of
/// rows.
std::vector<WarpgroupTiles> tiles_of_rows(const TensorProductShape& shape, const Target& target) {
    const int64_t width = rounded_up(shape.n, 8);
    std::vector<int64_t> widths{64};
    if (width < widths[0]) widths.push_back(width);
    for (const int64_t columns : {96, 128, 160, 192, 256})
        if (columns < width + 32) widths.push_back(columns);
    std::vector<WarpgroupTiles> found;
    for (const int64_t columns : widths) found.push_back(tiles_of_width(columns, shape, target));
    std::erase_if(found, [&](const WarpgroupTiles& tiles) { return !sums_fit(tiles, shape); });
    std::ranges::stable_sort(found, {},
                             [&](const WarpgroupTiles& tiles) { return predicted_cycles(tiles, shape, target); });
    auto divides = [&](const WarpgroupTiles& tiles) { return shape.n % tiles.block_n == 0; };
    if (!found.empty()) {
        const auto whole = std::ranges::find_if(found, divides);
        if (whole != found.begin() && whole != found.end()) std::rotate(found.begin() + 1, whole, whole + 1);
        found.resize(std::min<size_t>(found.size(), whole == found.begin() ? 1 : 2));
    }
    return found;
}

}  // namespace

std::optional<ScheduledPart> rows_by_tiles(const Tensor& product, const std::vector<Tensor>& outputs,
                                           RowOperations& taken, const Target& target) {
    if (product.operation()->outputs.size() != 1 || product.rank() != 2 || makes_one_of(product.operation(), outputs))
        return {};
    const auto unit = unit_product(product);
    if (!unit || !unit->more.empty() || unit->rows_of_matrix > 0 || !unit->joined.empty() || unit->shape.batch > 0 ||
        !takes_warpgroups(unit->shape, target))
        return {};
    auto rows = RowReaders(product, outputs).find();
    if (!rows || std::ranges::any_of(taken, [&](const RowOperation& each) { return rows->is_inside(each.get()); }))
        return {};
    const std::vector<Tensor> inputs = as_inputs(rows->operands);
    auto make = [rows = *rows, target](const std::vector<Tensor>& operands, const WarpgroupTiles& tiles) {
        return schedule_rows_of_tiles(over_operands(rows, operands), tiles, target);
    };
    const auto best = fastest_tiles(
        tiles_of_rows(unit->shape, target), [&](const WarpgroupTiles& tiles) { return make(inputs, tiles); }, target);
    if (!best) return {};
    taken.push_back(product.operation());
    for (const RowOperations* made : {&rows->rows, &rows->inlined})
        taken.insert(taken.end(), made->begin(), made->end());
    std::vector<std::string> names;
    for (const RowOperation& row : rows->rows) names.push_back(row->name);
    return ScheduledPart{.given = rows->given,
                         .operands = rows->operands,
                         .schedule = schedule_by_tiles(*best, inputs, make),
                         .text = fmt::format("'{}' reduces rows of the product '{}' in registers, tile by tile: it "
                                             "has no memory",
                                             fmt::join(names, "', '"), product.name())};
}

}  // namespace tw::schedules
