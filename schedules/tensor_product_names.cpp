#include "schedules/tensor_product_names.h"

#include <algorithm>
#include <map>
#include <regex>
#include <string_view>

#include <fmt/format.h>

namespace tw::schedules {
namespace {

/// What both kinds of tiles have at the end: "p2h4r".
template <class Tiles>
std::string ending_of(const Tiles& tiles) {
    std::string text;
    if (tiles.split_k != 1) text += fmt::format("p{}", tiles.split_k);
    if (tiles.raster_group != Tiles{}.raster_group) text += fmt::format("h{}", tiles.raster_group);
    return text + (tiles.stage_result ? "r" : "");
}

std::string text_of(const TensorTiles& t) {
    const std::string matrices = t.block_b > 1 ? fmt::format("b{}x{}", t.block_b, t.warp_b) : "";
    return fmt::format("{}x{}x{}w{}x{}{}s{}{}", t.block_m, t.block_n, t.block_k, t.warp_m, t.warp_n, matrices, t.stages,
                       ending_of(t));
}

std::string text_of(const WarpgroupTiles& t) {
    std::string terms = t.promotion_interval ? fmt::format("k{}", t.promotion_interval) : "";
    std::string cluster = t.cluster > 1 || t.cluster_columns > 1 ? fmt::format("c{}", t.cluster) : "";
    if (t.cluster_columns > 1) cluster += fmt::format("x{}", t.cluster_columns);
    std::string turns = t.ping_pong > 1 ? fmt::format("u{}", t.ping_pong) : "";
    std::string columns = t.epilogue_columns ? fmt::format("{}", t.epilogue_columns) : "";
    return fmt::format("{}x{}x{}g{}{}{}{}s{}{}{}{}{}", t.block_m, t.block_n, t.block_k, t.warpgroups, cluster, turns,
                       terms, t.stages, ending_of(t), columns, t.store_boxes ? "b" : "", t.swap ? "t" : "");
}

std::string text_of(const ThinTiles& t) {
    return fmt::format("{}x{}x{}v{}", t.threads_long, t.threads_terms, t.results, t.terms) +
           (t.split_k != 1 ? fmt::format("p{}", t.split_k) : "") + (t.align ? "a" : "");
}

/// Reads "128x256x64g2c2u2s4p2h4r64bt" from left to right: a letter, and its number.
class TilingReader {
public:
    explicit TilingReader(std::string_view text) : rest_(text) {}

    /// All has been read, and was as expected.
    bool done() const { return !failed_ && rest_.empty(); }
    void refuse() { failed_ = true; }

    bool letter(char wanted) {
        if (!rest_.starts_with(wanted)) return false;
        rest_.remove_prefix(1);
        return true;
    }
    void expect(char wanted) { failed_ = failed_ || !letter(wanted); }
    bool at_number() const { return !rest_.empty() && rest_[0] >= '1' && rest_[0] <= '9'; }

    /// One that begins with no 0, in the range.
    int64_t number(int64_t least = 1, int64_t most = 999999) {
        int64_t value = 0;
        failed_ = failed_ || !at_number();
        while (!failed_ && !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9' && value <= most) {
            value = value * 10 + (rest_[0] - '0');
            rest_.remove_prefix(1);
        }
        failed_ = failed_ || value < least || value > most;
        return failed_ ? least : value;
    }
    int count(int64_t least = 1, int64_t most = 999999) { return static_cast<int>(number(least, most)); }
    /// Behind the letter, or `otherwise` where that does not stand.
    int64_t number_behind(char wanted, int64_t otherwise, int64_t least = 1, int64_t most = 999999) {
        return letter(wanted) ? number(least, most) : otherwise;
    }

private:
    std::string_view rest_;
    bool failed_ = false;
};

/// What both kinds of tiles begin with: "128x256x64".
template <class Tiles>
Tiles read_block(TilingReader& reader) {
    Tiles tiles;
    tiles.block_m = reader.number();
    reader.expect('x');
    tiles.block_n = reader.number();
    reader.expect('x');
    tiles.block_k = reader.number();
    return tiles;
}

template <class Tiles>
void read_ending(TilingReader& reader, Tiles& tiles) {
    reader.expect('s');
    tiles.stages = reader.count();
    tiles.split_k = reader.number_behind('p', 1);
    tiles.raster_group = reader.number_behind('h', Tiles{}.raster_group);
    tiles.stage_result = reader.letter('r');
}

std::optional<TensorTiles> read_tensor_tiles(TilingReader reader) {
    auto tiles = read_block<TensorTiles>(reader);
    reader.expect('w');
    tiles.warp_m = reader.number();
    reader.expect('x');
    tiles.warp_n = reader.number();
    if (reader.letter('b')) {
        tiles.block_b = reader.number(2);
        reader.expect('x');
        tiles.warp_b = reader.number();
        if (tiles.block_b % tiles.warp_b != 0) reader.refuse();
    }
    read_ending(reader, tiles);
    return reader.done() ? std::optional(tiles) : std::nullopt;
}

std::optional<WarpgroupTiles> read_warpgroup_tiles(TilingReader reader) {
    auto tiles = read_block<WarpgroupTiles>(reader);
    reader.expect('g');
    tiles.warpgroups = reader.count(1, 4);
    if (reader.letter('c')) {
        tiles.cluster = reader.count(1, 8);
        tiles.cluster_columns = static_cast<int>(reader.number_behind('x', 1, 2, 8));
        if (tiles.cluster == 1 && tiles.cluster_columns == 1) reader.refuse();
    }
    tiles.ping_pong = static_cast<int>(reader.number_behind('u', 1, 2, 4));
    tiles.promotion_interval = reader.number_behind('k', 0, 10);
    read_ending(reader, tiles);
    if (tiles.stage_result) {
        if (reader.at_number()) tiles.epilogue_columns = reader.number(10, 999);
        tiles.store_boxes = reader.letter('b');
    }
    tiles.swap = reader.letter('t');
    return reader.done() ? std::optional(tiles) : std::nullopt;
}

std::optional<ThinTiles> read_thin_tiles(TilingReader reader) {
    ThinTiles tiles;
    tiles.threads_long = reader.number(1, 1024);
    reader.expect('x');
    tiles.threads_terms = reader.number(1, 1024);
    reader.expect('x');
    tiles.results = reader.number(1, 64);
    reader.expect('v');
    tiles.terms = reader.number(1, 64);
    tiles.split_k = reader.number_behind('p', 1);
    tiles.align = reader.letter('a');
    return reader.done() && tiles.threads_long * tiles.threads_terms <= 1024 ? std::optional(tiles) : std::nullopt;
}

}  // namespace

std::string tiling_text(const ProductTiling& tiling) {
    return std::visit([](const auto& tiles) { return text_of(tiles); }, tiling);
}

std::optional<ProductTiling> parse_tiling(const std::string& text) {
    if (auto tiles = read_warpgroup_tiles(TilingReader(text))) return *tiles;
    if (auto tiles = read_tensor_tiles(TilingReader(text))) return *tiles;
    if (auto tiles = read_thin_tiles(TilingReader(text))) return *tiles;
    return {};
}

std::optional<NamedTensorProduct> parse_tensor_product(const std::string& name) {
    static const std::string number_text = "([0-9]{1,6})", by = "x" + number_text;
    static const std::regex form("gemm_(bf16|f16|tf32|i8|e4m3)_(?:" + number_text + "x)?" + number_text + by + by +
                                 "(_ta)?(_tb)?(_bias)?(_gelu_tanh|_gelu|_swiglu)?(?:_experts" + number_text +
                                 ")?(_masked|_lower)?(_scaled)?(_f32)?(_pad)?(?:_tile([0-9a-z]+))?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    static const std::map<std::string, Activation> activations = {{"", Activation::None},
                                                                  {"_gelu", Activation::Gelu},
                                                                  {"_gelu_tanh", Activation::GeluTanh},
                                                                  {"_swiglu", Activation::SwiGlu}};
    static const std::map<std::string, RowTerms> row_terms = {
        {"", RowTerms::All}, {"_masked", RowTerms::Masked}, {"_lower", RowTerms::Lower}};
    static const std::map<std::string, std::pair<Type, Type>> types = {
        {"bf16", {bf16, bf16}}, {"f16", {f16, f16}}, {"tf32", {tf32, f32}}, {"i8", {i8, i32}}, {"e4m3", {e4m3, bf16}}};
    auto [operand, result] = types.at(match[1]);
    auto number = [&](size_t group) { return match[group].matched ? std::stoll(match[group]) : 0; };
    TensorProductShape shape{.m = number(3),
                             .n = number(4),
                             .k = number(5),
                             .batch = number(2),
                             .operand = operand,
                             .result = match[13].matched ? f32 : result,
                             .transpose_a = match[6].matched,
                             .transpose_b = match[7].matched,
                             .add_bias = match[8].matched,
                             .activation = activations.at(match[9]),
                             .experts = number(10),
                             .row_terms = row_terms.at(match[11]),
                             .block_scales = match[12].matched};
    if (!is_float(shape.result) && (shape.add_bias || shape.activation != Activation::None)) return {};
    if (shape.activation == Activation::SwiGlu && (shape.n % 16 != 0 || bytes_of(shape.operand) == 1)) return {};
    if (shape.experts && (shape.batch || shape.transpose_a || shape.m % rows_of_block != 0)) return {};
    bool all_terms = shape.row_terms == RowTerms::All;
    if (!all_terms && (shape.k % rows_of_block != 0 || shape.experts)) return {};
    if (shape.row_terms == RowTerms::Masked && (!shape.batch || shape.transpose_a)) return {};
    shape.copy_operands = match[14].matched || (!shape.experts && wants_copied_operands(shape));
    if (shape.copy_operands && (shape.experts || !all_terms)) return {};
    if (shape.block_scales && (shape.k % block_of_scale != 0 || bytes_of(shape.operand) != 1 || shape.batch ||
                               shape.experts || !all_terms || shape.activation != Activation::None ||
                               shape.transpose_a || !shape.transpose_b || shape.add_bias || !is_float(shape.operand)))
        return {};
    if (!match[15].matched) return NamedTensorProduct{shape, {}};
    auto tiling = parse_tiling(match[15]);
    if (!tiling) return {};
    return NamedTensorProduct{shape, tiling};
}

double bytes_of_product(const TensorProductShape& s) {
    auto batch = static_cast<double>(std::max<int64_t>(s.batch, 1)), m = static_cast<double>(s.m),
         n = static_cast<double>(s.n), k = static_cast<double>(s.k);
    auto matrices = static_cast<double>(std::max<int64_t>(s.experts, 1));
    double columns = s.activation == Activation::SwiGlu ? n / 2 : n;
    return batch * ((m + matrices * n) * k * bytes_of(s.operand) + m * columns * bytes_of(s.result));
}

double terms_of_rows(const TensorProductShape& s) {
    if (s.row_terms != RowTerms::Lower) return static_cast<double>(s.m) * static_cast<double>(s.k);
    double terms = 0;
    for (int64_t row = 0; row < s.m; row += rows_of_block)
        terms += static_cast<double>(std::min(rows_of_block, s.m - row) * std::min(row + rows_of_block, s.k));
    return terms;
}

}  // namespace tw::schedules
