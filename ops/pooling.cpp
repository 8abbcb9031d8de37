#include "ops/pooling.h"

#include <fmt/ranges.h>

namespace tw::nn {
namespace {

std::string text_of(const PoolingOptions& o) {
    std::string text = fmt::format("window {} stride {} dilation {} padding", o.window, o.stride, o.dilation);
    for (const schedules::Sides& sides : o.padding) text += fmt::format(" {}+{}", sides.before, sides.after);
    return text + (o.ceil_mode ? " ceil_mode" : "");
}

}  // namespace

Tensor max_pool(const Tensor& x, const PoolingOptions& options, std::source_location where) {
    return operator_with("max_pool", text_of(options), [options](const std::vector<tw::Tensor>& in) {
        return schedules::max_pool("y", in[0], options);
    })({x}, where);
}

MaxPool max_pool_with_places(const Tensor& x, const PoolingOptions& options, std::source_location where) {
    const Operator& places = operator_with(
        "max_pool_places", text_of(options),
        [options](const std::vector<tw::Tensor>& in) { return schedules::max_pool_places("y", in[0], options); });
    return {max_pool(x, options, where), places({x}, where)};
}

Tensor average_pool(const Tensor& x, const PoolingOptions& options, CountPadding count, std::source_location where) {
    const std::string text = text_of(options) + (count == CountPadding::Yes ? " counted" : "");
    return operator_with("average_pool", text, [options, count](const std::vector<tw::Tensor>& in) {
        return schedules::average_pool("y", in[0], options, count);
    })({x}, where);
}

Tensor adaptive_average_pool(const Tensor& x, const std::vector<int64_t>& results, std::source_location where) {
    return operator_with("adaptive_average_pool", fmt::format("{}", results),
                         [results](const std::vector<tw::Tensor>& in) {
                             return schedules::adaptive_average_pool("y", in[0], results);
                         })({x}, where);
}

Tensor upsample_nearest(const Tensor& x, const std::vector<int64_t>& factors, std::source_location where) {
    return operator_with("upsample_nearest", fmt::format("{}", factors), [factors](const std::vector<tw::Tensor>& in) {
        return schedules::upsample_nearest("y", in[0], factors);
    })({x}, where);
}

Tensor upsample_linear(const Tensor& x, const std::vector<int64_t>& factors, std::source_location where) {
    return operator_with("upsample_linear", fmt::format("{}", factors), [factors](const std::vector<tw::Tensor>& in) {
        return schedules::upsample_linear("y", in[0], factors);
    })({x}, where);
}

}  // namespace tw::nn
