// Tutorial 22: your own layer at speed. Tutorial 21's layer, a convolution whose channels are weighed by what the whole
// image is like (squeeze-and-excitation: Hu, Shen, Sun 2018), in bf16 on tensor cores, with a residual:
//
//   y = conv(x, w)    weight[n, f] = sigmoid(up relu(down mean_pq y))    z = y weight + residual
//
// As declared, the mean reads all of y once more. Here each tile of the convolution sums its pixels while they are in
// shared memory: `rfactor` makes these sums a stage of their own, and `at` puts it behind the tile. What is left of the
// mean is a number for each tile, image and filter. Declaration, schedule, gradients and training are in this file.
#include <cmath>
#include <optional>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/layers.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "tutorials/digits.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

/// y, whose adjoint is rounded as y itself is. Adjoints within a declaration are f32, which tensor cores do not take;
/// between operators of a network, they are rounded anyway.
Tensor with_rounded_adjoint(const Tensor& y, const std::vector<Tensor>& inputs) {
    return with_gradient(y, inputs, [=](const Tensor&, const Tensor& dy) {
        const auto& e = y.shape();
        const Tensor rounded = compute("y_adjoint", {e[0], e[1], e[2], e[3]},
                                       [&](Expr i, Expr j, Expr k, Expr l) { return cast(y.type(), dy(i, j, k, l)); });
        return gradients(y, rounded, inputs);
    });
}

/// x [images, height, width, channels], w [filters, 3, 3, channels], down [hidden, filters], up [filters, hidden],
/// residual, z [images, height, width, filters]. down and up are f32; x, w, residual and z of one type.
Tensor weighed_convolution(const std::vector<Tensor>& in) {
    const Tensor &x = in[0], &w = in[1], &down = in[2], &up = in[3], &residual = in[4];
    Tensor y = with_rounded_adjoint(schedules::convolve("y", x, w, {}, {.padding = {1}}), {x, w});
    const Expr images = y.shape()[0], height = y.shape()[1], width = y.shape()[2], filters = y.shape()[3];
    Axis p = reduce_axis("p", height), q = reduce_axis("q", width);
    Axis f = reduce_axis("f", filters), h = reduce_axis("h", down.shape()[0]);
    Tensor found = compute("found", {images, filters}, [&](Expr n, Expr c) {
        return sum(cast(f32, y(n, p, q, c)), {p, q}) / cast(f32, height * width);
    });
    Tensor hidden = compute("hidden", {images, down.shape()[0]},
                            [&](Expr n, Expr i) { return relu(sum(found(n, f) * down(i, f), f)); });
    Tensor weight =
        compute("weight", {images, filters}, [&](Expr n, Expr c) { return sigmoid(sum(hidden(n, h) * up(c, h), h)); });
    return compute("z", {images, height, width, filters}, [&](Expr n, Expr i, Expr j, Expr c) {
        return cast(x.type(), cast(f32, y(n, i, j, c)) * weight(n, c) + cast(f32, residual(n, i, j, c)));
    });
}

/// A tensor of the declaration, by its name. An operator's inputs are called x0, x1, ...
Tensor named(const std::vector<Tensor>& outputs, const std::string& name) {
    for (const auto& operation : operations_of(outputs))
        if (operation->name == name) return Tensor(operation, 0);
    throw std::runtime_error("no tensor " + name);
}

/// Sums over four rows of pixels, as a stage of its own behind the tile that makes them. Threads share pairs of filters
/// and the pixels.
void sum_tile(Schedule& s, const Stage& part, Loop tile) {
    s.at(part, tile);
    Loop pixels = s.fuse(s.all_loops(part)[3], s.all_loops(part)[4], "pixels");
    auto [rows, image, f] = s.loops<3>(part);
    auto [pair, of_pair] = s.split(f, 2, {"pair", "of_pair"});
    auto [step, share] = s.split(pixels, 4, {"step", "share"});
    s.order({rows, image, share, pair, step, of_pair});
    s.bind(share, thread);
    s.bind(pair, thread);
    s.bind(of_pair, vector);
}

/// Kernel 1: the convolution of tutorial 19, four rows of pixels and 64 filters a block. `part`, if there is one,
/// stands behind each tile.
void convolve(Schedule& s, const Tensor& x, const Tensor& w, const Tensor& y, const std::optional<Stage>& part) {
    auto [n, p, q, f] = s.loops<4>(y);
    auto [po, pi] = s.split(p, 4, Tail::Mask, {"po", "pi"});
    Loop pixels = s.fuse(pi, q, "pixels");
    auto [fo, fi] = s.split(f, 64, {"fo", "fi"});
    auto [wi, row] = s.split(fi, 64, {"wi", "row"});
    auto [co, ci] = s.split(s.reduce(y, 2), 32, {"co", "ci"});
    Loop ko = s.fuse({s.reduce(y, 0), s.reduce(y, 1), co}, "ko");
    s.order({n, po, fo, wi, ko, row, pixels, ci});
    s.persistent({n, po, fo});
    s.bind(wi, warpgroup);
    if (part) sum_tile(s, *part, fo);
    const Stage xs = s.stage(y, x, Memory::Shared, ko, As::Matrix), ws = s.stage(y, w, Memory::Shared, ko);
    s.via(s.stage(y, Memory::Shared, fo), Copy::Tma);
    s.mma(y, wgmma, {.m = row, .n = pixels, .k = ci});
    s.pipeline(ko, {.stages = 3, .in_flight = 1});
    s.roles({{"load", warps(1), registers(40), {xs, ws}}, {"math", warpgroups(1), registers(232), {y}}});
}

/// Kernel 2: what is left of the mean and the two small layers, a block an image.
void excite(Schedule& s, const Tensor& found, const Tensor& hidden, const Tensor& weight) {
    auto [n, f] = s.loops<2>(weight);
    s.bind(n, grid.x);
    s.bind(f, thread);
    for (const Tensor& inside : {hidden, found}) {
        s.at(inside, n);
        s.set_memory(inside, Memory::Shared);
        s.bind(s.loops<2>(inside)[1], thread);
    }
}

/// Kernel 3: eight neighbours a thread.
void weigh(Schedule& s, const Tensor& z) {
    auto [all, element] = s.split(s.fuse(s.data_loops(z), "all"), 8, {"all", "element"});
    auto [block, t] = s.split(all, 256, Tail::Mask, {"block", "t"});
    s.bind(block, grid.x);
    s.bind(t, thread);
    s.bind(element, vector);
}

/// With the mean as it was declared, kernel 2 reads all of y for it.
Schedule in_three_kernels(const std::vector<Tensor>& outputs, const Target& target, bool sum_tiles) {
    Schedule s(outputs, target);
    const Tensor y = named(outputs, "y"), found = named(outputs, "found");
    std::optional<Stage> part;
    if (sum_tiles) {
        const Loop band = s.split(s.reduce(found, 0), 4, Tail::Mask, {"band", "row"})[0];
        part = s.rfactor(found, band);  // found_partial[band, n, f]
    }
    convolve(s, named(outputs, "x0"), named(outputs, "x1"), y, part);
    excite(s, found, named(outputs, "hidden"), named(outputs, "weight"));
    weigh(s, outputs[0]);
    return s;
}

Schedule fused(const std::vector<Tensor>& outputs, const Target& target) {
    return in_three_kernels(outputs, target, true);
}

/// Extents of the layer's tensors.
struct Extents {
    int64_t images, side, channels, filters, hidden;

    std::vector<std::vector<int64_t>> shapes() const {
        return {{images, side, side, channels},
                {filters, 3, 3, channels},
                {hidden, filters},
                {filters, hidden},
                {images, side, side, filters}};
    }
    std::vector<Tensor> inputs(Type type) const {
        std::vector<Tensor> result;
        for (const std::vector<int64_t>& shape : shapes())
            result.push_back(
                input(fmt::format("x{}", result.size()), shape.size() == 2 ? f32 : type, {shape.begin(), shape.end()}));
        return result;
    }
};

/// What the kernels of a schedule move through global memory, by threads and by boxes of TMA; their results are checked
/// against the declaration in float64.
uint64_t bytes_moved(Lesson& lesson, const std::string& name, const Schedule& s) {
    const auto device = std::make_shared<EmulatedDevice>("sm_90a");
    emulator::Options options;
    options.statistics = true;
    device->set_options(options);
    const Bindings bindings = random_bindings(s.outputs(), 1);
    const Program program = build(s);
    Executable executable(program, device);
    const std::vector<HostArray> got = run_on(executable, bindings);
    for (size_t k = 0; k < got.size(); ++k) {
        const CheckResult check = check_output(s.outputs()[k], bindings, got[k], {.samples = 64});
        lesson.expect(check.ok, fmt::format("{}: {}: {}", name, s.outputs()[k].name(), check.text));
    }
    const auto counts = device->statistics();
    fmt::print("    {} kernels, {} bytes by threads, {} by boxes\n", program.kernels().size(), counts.global_bytes,
               counts.box_bytes);
    return counts.global_bytes;
}

/// The derived formulas, in float64, against central differences of sum(dz z). Casts round nothing there.
void check_gradients(Lesson& lesson) {
    const Extents small{.images = 2, .side = 4, .channels = 3, .filters = 4, .hidden = 2};
    const std::vector<Tensor> inputs = small.inputs(f32);
    const Tensor z = weighed_convolution(inputs), dz = input("dz", f32, {2, 4, 4, 4});
    const std::vector<Tensor> derived = gradients(z, dz, inputs);
    std::vector<Tensor> all = derived;
    all.push_back(z);
    Bindings bindings = random_bindings(all, 5);
    for (auto& [name, array] : bindings.inputs)
        for (auto at = std::vector<int64_t>(array.shape.size(), 0);;) {  // few bits, so that a step is exact
            array.set(at, make_value(f32, std::round(array.at(at).real * 1024) / 1024));
            if (!advance(at, array.shape)) break;
        }
    auto weighted = [&](const Bindings& given) {
        const HostArray result = interpret_plain({z}, given, Precision::Float64)[0];
        double total = 0;
        for (std::vector<int64_t> at(4, 0);;) {
            total += result.at(at).real * bindings.inputs.at("dz").at(at).real;
            if (!advance(at, result.shape)) return total;
        }
    };
    for (size_t k = 0; k < inputs.size(); ++k) {
        const HostArray got = interpret_plain({derived[k]}, bindings, Precision::Float64)[0];
        constexpr double Step = 1.0 / 1024;
        double worst = 0;
        int count = 0;
        for (auto at = std::vector<int64_t>(got.shape.size(), 0);; ++count) {
            Bindings more = bindings, less = bindings;
            const double here = bindings.inputs.at(inputs[k].name()).at(at).real;
            more.inputs.at(inputs[k].name()).set(at, make_value(f32, here + Step));
            less.inputs.at(inputs[k].name()).set(at, make_value(f32, here - Step));
            const double slope = (weighted(more) - weighted(less)) / (2 * Step);
            worst = std::max(worst, std::fabs(slope - got.at(at).real) / (1 + std::fabs(slope)));
            if (!advance(at, got.shape)) break;
        }
        lesson.expect(worst < 1e-5,
                      fmt::format("d_{}: {} elements are at most {:.1e} off", inputs[k].name(), count + 1, worst));
    }
}

// The layer for networks: the declaration, and the schedule of its forward pass. Backward is scheduled by rule.
const nn::Operator weighed("weighed_convolution", weighed_convolution, fused);

// Parameters are f32; the layer multiplies in bf16. The adjoint of a cast is the cast back.
const nn::Operator to_bf16("to_bf16", [](const std::vector<Tensor>& in) {
    const auto& e = in[0].shape();
    return compute("rounded", {e[0], e[1], e[2], e[3]},
                   [&](Expr i, Expr j, Expr k, Expr l) { return cast(bf16, in[0](i, j, k, l)); });
});

/// The mean square of the distance from a target.
const nn::Operator distance("distance", [](const std::vector<Tensor>& in) {
    std::vector<Axis> axes;
    double count = 1;
    for (const Expr& extent : in[0].shape()) {
        axes.push_back(reduce_axis("k", extent));
        count *= static_cast<double>(require_constant(extent));
    }
    const std::vector<Operand> at(axes.begin(), axes.end());
    return compute("loss", {}, [&] {
        Expr off = cast(f32, in[0].read(at)) - cast(f32, in[1].read(at));
        return sum(off * off, axes) / static_cast<float>(count);
    });
});

/// Learns what a layer of other parameters makes of the same images.
void train(Lesson& lesson, const Extents& extents) {
    auto backend = std::make_shared<nn::Backend>(lesson.device());
    const std::vector<std::vector<int64_t>> shapes = extents.shapes();
    auto random = [&](size_t k, double most, uint64_t seed) {
        HostArray host = host_array(f32, shapes[k]);
        fill_uniform(host, -most, most, seed);
        return nn::Tensor(backend, host, fmt::format("x{}", k));
    };
    auto layer = [&](const nn::Tensor& x, const nn::Tensor& w, const nn::Tensor& down, const nn::Tensor& up,
                     const nn::Tensor& residual) {
        return weighed({to_bf16({x}), to_bf16({w}), down, up, to_bf16({residual})});
    };
    const nn::Tensor x = random(0, 1, 1), residual = random(4, 1, 2);
    const nn::Tensor target = layer(x, random(1, 0.1, 3), random(2, 1, 4), random(3, 1, 5), residual);
    const nn::Tensor w = random(1, 0.1, 6), down = random(2, 1, 7), up = random(3, 1, 8);
    for (const nn::Tensor& parameter : {w, down, up}) parameter.set_requires_grad();
    nn::Sgd sgd({w, down, up}, /*rate=*/1.0, /*momentum=*/0.9);
    double first = 0, last = 0;
    for (int step = 0; step < 12; ++step) {
        const nn::Tensor loss = distance({layer(x, w, down, up, residual), target});
        last = loss.to_host().at({}).real;
        if (step == 0) first = last;
        nn::backward(loss);
        sgd.step();
    }
    lesson.expect(last < 0.5 * first, fmt::format("the loss falls from {:.4f} to {:.4f} in 12 steps", first, last));
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "22. Fusing your own layer");
    const Extents extents{.images = 2, .side = 8, .channels = 32, .filters = 64, .hidden = 8};
    const std::vector<Tensor> inputs = extents.inputs(bf16);
    const Tensor z = weighed_convolution(inputs);
    lesson.say("The layer as it was declared:");
    lesson.show(z);

    const Target hopper = target("sm_90a");
    const Schedule by_hand = fused({z}, hopper);
    lesson.say("Three kernels. The sums of a tile's pixels stand behind its product, and read it in shared memory:");
    lesson.show(by_hand);
    lesson.show_notes(by_hand, {"by the tensor memory accelerator", "[1] the terms of 'found'"});

    lesson.say("What they move, with the mean as it was declared and by tiles:");
    const uint64_t declared = bytes_moved(lesson, "as declared", in_three_kernels({z}, hopper, false));
    const uint64_t by_tiles = bytes_moved(lesson, "by tiles", by_hand);
    // Instead of y, kernel 2 reads a sum for each of two tiles, image and filter, which kernel 1 has written.
    const uint64_t bytes_of_y = 2 * 8 * 8 * 64 * 2, bytes_of_sums = 2 * 2 * 64 * 4;
    lesson.expect(declared - by_tiles == bytes_of_y - 2 * bytes_of_sums,
                  fmt::format("y, {} bytes, is read once less, for {} bytes of sums", bytes_of_y, bytes_of_sums));
    lesson.say("Left to rules, a kernel for each stage:");
    bytes_moved(lesson, "by rule", schedules::choose_schedule({z}, hopper));

    lesson.say("Gradients, of the declaration. Each derived formula against slopes, in float64:");
    check_gradients(lesson);
    lesson.say("and those of x and w as kernels, by rule, on tensor cores:");
    const Tensor dz = input("dz", bf16, {extents.images, extents.side, extents.side, extents.filters});
    const Schedule backward = schedules::choose_schedule(gradients(z, dz, {inputs[0], inputs[1]}), hopper);
    bytes_moved(lesson, "gradients", backward);
    // Of f32 adjoints no tensor core would take, each tap of each pixel would be read by threads.
    lesson.show_notes(backward, {"is computed by wgmma"});

    lesson.say("A network takes it as any other layer. It learns what another one makes of the same images:");
    train(lesson, extents);
    return lesson.finish();
}
