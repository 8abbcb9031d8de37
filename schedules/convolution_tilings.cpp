#include "schedules/convolution_tilings.h"

#include <limits>
#include <regex>

#include <fmt/format.h>

#include "codegen/lower.h"
#include "dsl/edit.h"
#include "schedules/choose_windows.h"
#include "schedules/halo_convolution.h"
#include "schedules/tuned_records.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

std::string text_of(const ConvolutionTiles& t) {
    std::string text =
        fmt::format("{}x{}x{}w{}s{}p{}t{}", t.rows, t.columns, t.terms, t.warpgroups, t.stages, t.parts, t.ping_pong);
    if (t.box_columns > 0) text += fmt::format("b{}", t.box_columns);
    if (t.box_columns > 0 && t.box_stages > 1) text += fmt::format("x{}", t.box_stages);
    if (t.taps > 1) text += fmt::format("k{}", t.taps);
    return text;
}

std::string text_of(const HaloTiles& t) {
    if (t.leaving == 0) return fmt::format("halo{}s{}p{}", t.places, t.stages, t.parts);
    std::string text = fmt::format("halo{}b{}s{}t{}", t.places, t.leaving, t.stages, t.ping_pong);
    if (t.weight_stages > 0) text += fmt::format("w{}r{}", t.warpgroups, t.weight_stages);
    return text;
}

/// A form with numbers of up to six digits for each '#'.
std::regex with_numbers(const std::string& form) {
    return std::regex(std::regex_replace(form, std::regex("#"), "([0-9]{1,6})"));
}

/// What was matched, or the other where the group is not there.
int64_t read(const std::smatch& match, size_t group, int64_t otherwise = 0) {
    return match[group].matched ? std::stoll(match[group].str()) : otherwise;
}
int read_int(const std::smatch& match, size_t group, int64_t otherwise = 0) {
    return static_cast<int>(read(match, group, otherwise));
}

std::optional<ConvolutionTiles> read_tiles(const std::string& text) {
    static const std::regex form = with_numbers("#x#x#w([1-3])s([1-9])p#t([12])(?:b#(?:x#)?)?(?:k#)?");
    std::smatch match;
    if (!std::regex_match(text, match, form)) return {};
    return ConvolutionTiles{.rows = read(match, 1),
                            .columns = read(match, 2),
                            .terms = read(match, 3),
                            .warpgroups = read_int(match, 4),
                            .stages = read_int(match, 5),
                            .parts = read(match, 6),
                            .ping_pong = read_int(match, 7),
                            .box_columns = read(match, 8),
                            .box_stages = read_int(match, 9, 1),
                            .taps = read(match, 10, 1)};
}

std::optional<HaloTiles> read_halo(const std::string& text) {
    static const std::regex form = with_numbers("halo#b#s([1-9])t([12])(?:w([1-3])r([2-9]))?"),
                            of_terms = with_numbers("halo#s([1-9])p#");
    std::smatch match;
    HaloTiles tiles;
    if (std::regex_match(text, match, form))
        tiles = {.places = read(match, 1),
                 .leaving = read(match, 2),
                 .stages = read_int(match, 3),
                 .ping_pong = read_int(match, 4),
                 .warpgroups = read_int(match, 5, 1),
                 .weight_stages = read_int(match, 6)};
    else if (std::regex_match(text, match, of_terms))
        tiles = {.places = read(match, 1),
                 .leaving = 0,
                 .stages = read_int(match, 2),
                 .ping_pong = 1,
                 .parts = read(match, 3)};
    else
        return {};
    if (tiles.whole_places() < 1) return {};
    return tiles;
}

}  // namespace

std::string tiling_text(const ConvolutionTiling& tiling) {
    return std::visit([](const auto& tiles) { return text_of(tiles); }, tiling);
}

std::optional<ConvolutionTiling> parse_convolution_tiling(const std::string& text) {
    if (const auto tiles = read_tiles(text)) return *tiles;
    if (const auto halo = read_halo(text)) return *halo;
    return {};
}

Schedule convolution_schedule(const ConvolutionShape& shape, ConvolutionPass pass, const ConvolutionTiling& tiling,
                              const Target& target, std::source_location where) {
    CalledFrom caller(where);
    user_check(takes_warpgroups(shape, target), where,
               "convolution: tiling {} is of warpgroups, which {} has not, or there is nothing to multiply; leave the "
               "tiling out",
               tiling_text(tiling), target.arch);
    const HaloTiles* halo = std::get_if<HaloTiles>(&tiling);
    user_check(!halo || shape.layout == Layout::ChannelsLast, where,
               "convolution: tiling {} is of a raster, whose channels come last; choose another, or another layout",
               tiling_text(tiling));
    if (halo) return halo_schedule(declare_halo_convolution(shape, pass, halo->whole_places()), *halo, target);
    return convolution_schedule(declare_convolution(shape, pass), shape, std::get<ConvolutionTiles>(tiling), target);
}

namespace {

std::vector<ConvolutionTiling> tilings_by_model(const ConvolutionShape& shape, ConvolutionPass pass,
                                                const Target& target) {
    const Convolution c = declare_convolution(shape, pass);
    const auto product = window_product(c.product, {c.result});
    const auto tiles = product ? convolution_tiles(product->form, target) : std::nullopt;
    const double tapwise =
        tiles ? convolution_cycles(product->form, *tiles, target) : std::numeric_limits<double>::max();
    std::vector<ConvolutionTiling> tilings;
    if (const auto halo = halo_tiles(shape, pass, tapwise, target)) tilings.emplace_back(*halo);
    if (product)
        for (const ConvolutionTiles& each : tilings_of(*product, target)) tilings.emplace_back(each);
    return tilings;
}

}  // namespace

std::optional<ChosenConvolution> choose_convolution(const ConvolutionShape& shape, ConvolutionPass pass,
                                                    const Target& target, std::string* left_out,
                                                    std::source_location where) {
    CalledFrom caller(where);
    if (!takes_warpgroups(shape, target) || shape.layout == Layout::ChannelsFirst) return {};
    std::string refused;
    auto built = [&](const ConvolutionTiling& tiling, const std::string& from,
                     const std::string& what) -> std::optional<ChosenConvolution> {
        try {
            ChosenConvolution chosen{tiling, convolution_schedule(shape, pass, tiling, target)};
            codegen::lower(chosen.schedule.tree(), target);  // passes say what no step does, as where masks may be
            Edit::note(chosen.schedule, fmt::format("tiling {}, {}{}", tiling_text(tiling), from, refused));
            return chosen;
        } catch (const Error& error) {  // the next ones ask for less
            refused += fmt::format("; {}, {}, cannot be built: {}", what, tiling_text(tiling), error.what());
            return {};
        }
    };
    if (const auto tuned = tuned_tiling(shape, pass, target))
        if (auto chosen = built(*tuned, "from its record", "that of its record")) return chosen;
    for (const ConvolutionTiling& tiling : tilings_by_model(shape, pass, target))
        if (auto chosen = built(tiling, "by the model of its time", "the model's")) return chosen;
    if (left_out) *left_out = refused;
    return {};
}

}  // namespace tw::schedules
