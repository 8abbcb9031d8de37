#include "ops/optimizer.h"

#include "dsl/schedule.h"
#include "ops/capture.h"
#include "support/error.h"

namespace tw::nn {
namespace {

std::vector<Operand> operands(const std::vector<Expr>& indices) { return {indices.begin(), indices.end()}; }

/// hyper: [rate, momentum]
tw::Tensor speed_by(const tw::Tensor& velocity, const tw::Tensor& grad, const tw::Tensor& hyper) {
    return compute("speed", {grad.shape().begin(), grad.shape().end()}, [&](const std::vector<Expr>& at) {
        return hyper(1) * velocity.read(operands(at)) + grad.read(operands(at));
    });
}
tw::Tensor moved_by(const tw::Tensor& parameter, const tw::Tensor& speed, const tw::Tensor& hyper) {
    return compute("updated", {speed.shape().begin(), speed.shape().end()}, [&](const std::vector<Expr>& at) {
        return parameter.read(operands(at)) - hyper(0) * speed.read(operands(at));
    });
}

/// One kernel: the new velocity over the old one, and behind it the parameter.
Schedule schedule_update(const std::vector<int64_t>& extents, const Target& target) {
    Shape shape(extents.begin(), extents.end());
    tw::Tensor parameter = input("parameter", f32, shape), velocity = input("velocity", f32, shape);
    tw::Tensor hyper = input("hyper", f32, {2});
    tw::Tensor speed = speed_by(velocity, input("grad", f32, shape), hyper);
    tw::Tensor updated = moved_by(parameter, speed, hyper);
    Schedule s({speed, updated}, target);
    auto [block, element] = s.split(s.fuse(s.data_loops(speed), "all"), 256, Tail::Mask, {"block", "element"});
    s.bind(block, grid.x);
    s.bind(element, thread);
    s.at(updated, element);
    s.in_place(speed, velocity);
    s.in_place(updated, parameter);
    return s;
}

}  // namespace

Sgd::Sgd(std::vector<Tensor> parameters, double rate, double momentum)
    : parameters_(std::move(parameters)), momentum_(momentum) {
    if (parameters_.empty()) throw_error(Error, "Sgd: no parameters; give those of the layers");
    for (const Tensor& parameter : parameters_) {
        if (parameter.shape().empty())
            throw_error(Error, "Sgd: parameter '{}' is a scalar; give it the shape [1]", parameter.name());
        velocities_.emplace_back(parameter.backend(), host_array(f32, parameter.shape()), "velocity");
    }
    hyper_ = Tensor(parameters_[0].backend(), f32, {2}, "hyper");
    set_rate(rate);
}

void Sgd::set_rate(double rate) {
    hyper_.data().write(std::vector<float>{static_cast<float>(rate), static_cast<float>(momentum_)});
}

void Sgd::step() {
    for (size_t p = 0; p < parameters_.size(); ++p) {
        const Tensor& parameter = parameters_[p];
        if (!parameter.grad().defined())
            throw_error(Error, "Sgd: parameter '{}' {} has no gradient; call backward() before step()",
                        parameter.name(), shape_text(parameter.shape()));
        Backend& backend = *parameter.backend();
        if (Capture* capture = backend.capture()) {
            const tw::Tensor hyper = capture->symbol_of(hyper_), grad = capture->symbol_of(parameter.grad());
            const tw::Tensor speed =
                capture->overwrite(velocities_[p], speed_by(capture->symbol_of(velocities_[p]), grad, hyper));
            capture->overwrite(parameter, moved_by(capture->symbol_of(parameter), speed, hyper));
            continue;
        }
        const Executable& update = backend.built("sgd " + shape_text(parameter.shape()), [&](const Target& target) {
            return schedule_update(parameter.shape(), target);
        });
        backend.run(update, {.buffers = {{"parameter", parameter.data()},
                                         {"velocity", velocities_[p].data()},
                                         {"grad", parameter.grad().data()},
                                         {"hyper", hyper_.data()}},
                             .sizes = {},
                             .scalars = {}});
    }
}

}  // namespace tw::nn
