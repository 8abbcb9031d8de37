#include "ops/modules/dropout.h"

#include "dsl/philox.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// The place of an element in row-major order.
Expr place_of(const std::vector<Expr>& at, const std::vector<Expr>& shape) {
    Expr place = integer(0);
    for (size_t d = 0; d < at.size(); ++d) place = d == 0 ? at[0] : place * shape[d] + at[d];
    return place;
}

tw::Tensor declared_dropout(const tw::Tensor& x, const tw::Tensor& seed, double probability) {
    const Type type = x.type() == f64 ? f64 : f32;
    return compute("kept", {x.shape().begin(), x.shape().end()}, [&](const std::vector<Expr>& at) {
        const Expr element = cast(type, x.read({at.begin(), at.end()}));
        return cast(x.type(), tw::dropout(element, probability, seed(), place_of(at, x.shape())));
    });
}

void check_share(double probability, std::source_location where) {
    user_check(probability >= 0 && probability < 1, where,
               "dropout: the probability is {}; give the share of elements that are dropped, 0 <= probability < 1",
               probability);
}

/// Of the number of calls: that of the next one, and the seed of this one, the first word of Philox of it.
std::vector<tw::Tensor> declare_draw(const tw::Tensor& calls, const tw::Tensor& seed) {
    const auto word = [](int64_t value) { return constant(u32, value); };
    return compute_tuple("draw", {"calls_next", "drawn"}, {}, [&](const std::vector<Expr>&) {
        const Expr drawn = philox({calls(), word(0), word(0), word(0)}, {seed(0), seed(1)})[0];
        return std::vector<Expr>{calls() + word(1), drawn};
    });
}

HostArray words_of(uint64_t seed) {
    HostArray words = host_array(u32, {2});
    for (int64_t half : {0, 1})
        words.set({half}, make_value(u32, static_cast<int64_t>(seed >> (32 * half) & 0xffffffff)));
    return words;
}

}  // namespace

Tensor dropout(const Tensor& x, double probability, const Tensor& seed, std::source_location where) {
    check_share(probability, where);
    user_check(is_float(x.type()) && seed.type() == u32 && seed.shape().empty(), where,
               "dropout: x is {}, the seed {} {}; give floats, and a scalar of u32", name_of(x.type()),
               name_of(seed.type()), shape_text(seed.shape()));
    return operator_with("dropout", fmt::format("{}", probability), [probability](const std::vector<tw::Tensor>& in) {
        return declared_dropout(in[0], in[1], probability);
    })({x, seed}, where);
}

Dropout::Dropout(const std::shared_ptr<Backend>& backend, double probability, uint64_t seed, std::source_location where)
    : probability_(probability),
      seed_(register_buffer("seed", Tensor(backend, words_of(seed), "seed"))),
      calls_(register_buffer("calls", Tensor(backend, host_array(u32, {}), "calls"))) {
    check_share(probability, where);
    draw_ = std::make_shared<Overwriting>(std::vector<NamedTensor>{{"calls", calls_}},
                                          [](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
                                              return declare_draw(old[0], read[0]);
                                          });
}

Tensor Dropout::operator()(const Tensor& x, std::source_location where) const {
    if (!is_training() || probability_ == 0) return x;
    const Scope here = scope();
    return dropout(x, probability_, draw_->run({{"seed", seed_}}).at(0), where);
}

}  // namespace tw::nn
