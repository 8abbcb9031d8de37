// What choose_schedule makes of convolutions of images: the kernels that declare_convolution has by name.
#include <regex>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/find_convolution.h"
#include "schedules/halo_convolution.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

std::string text_of(const ConvolutionShape& s, ConvolutionPass pass) {
    return fmt::format(
        "pass {}: {} images of {} x {} x {}, {} filters of {} x {}, stride {}, padding {}, dilation {}, "
        "{} groups",
        static_cast<int>(pass), s.images, s.height, s.width, s.channels, s.filters, s.kernel_h, s.kernel_w, s.stride,
        s.padding, s.dilation, s.groups);
}

/// A layer as networks declare it, or a gradient that is derived of it.
Tensor layer(const ConvolutionShape& s, ConvolutionPass pass, const Tensor& bias = {}) {
    const Tensor x = input("x", s.type, {s.images, s.height, s.width, s.channels}),
                 w = input("w", s.type, {s.filters, s.kernel_h, s.kernel_w, s.channels / s.groups});
    const Tensor y = convolve(
        "y", x, w, bias, {.stride = {s.stride}, .dilation = {s.dilation}, .padding = {s.padding}, .groups = s.groups});
    if (pass == ConvolutionPass::Forward) return y;
    const Tensor dy = input("dy", s.type, {s.images, s.rows(), s.columns(), s.filters});
    return gradients(y, dy, {pass == ConvolutionPass::DataGradient ? x : w})[0];
}

/// Kernels without comments, tensors and what is named after them by numbers in the order of their appearance.
std::string without_names(const std::string& cuda) {
    std::string text, result;
    for (size_t at = 0; at < cuda.size();) {
        const size_t end = std::min(cuda.find('\n', at), cuda.size());
        const std::string line = cuda.substr(at, end - at);
        const std::string code = line.substr(0, line.find("//"));
        if (code.find_first_not_of(' ') != std::string::npos)
            text += code.substr(0, code.find_last_not_of(' ') + 1) + "\n";
        at = end + 1;
    }
    static const std::regex word("[A-Za-z_][A-Za-z_0-9]*");
    std::map<std::string, size_t> numbers;
    size_t last = 0;
    for (std::sregex_iterator found(text.begin(), text.end(), word), none; found != none; ++found) {
        const auto at = static_cast<size_t>(found->position());
        const bool is_library = at >= 2 && text.compare(at - 2, 2, "::") == 0;
        result += text.substr(last, at - last);
        result += is_library ? found->str()
                             : fmt::format("n{}", numbers.try_emplace(found->str(), numbers.size()).first->second);
        last = at + found->str().size();
    }
    result += text.substr(last);
    std::erase_if(result, [](char c) { return c == ' ' || c == '\n'; });  // lines break where names are longer
    return result;
}

class ChooseConvolutions : public RandomCases {
protected:
    ChooseConvolutions() : RandomCases(23) {}

    int64_t random_channels() { return chance() ? 8 * between(1, 10) : between(1, 40); }
    ConvolutionShape random_shape() {
        ConvolutionShape s{.images = between(1, 3),
                           .height = between(1, 12),
                           .width = between(1, 12),
                           .channels = random_channels(),
                           .filters = random_channels(),
                           .kernel_h = between(1, 5),
                           .kernel_w = between(1, 5),
                           .stride = chance() ? 1 : between(2, 3),
                           .padding = between(0, 3),
                           .dilation = between(0, 2) ? 1 : 2,
                           .type = chance() ? bf16 : f16};
        if (between(0, 2) == 0) s.groups = between(2, 6), s.channels *= s.groups, s.filters *= s.groups;
        s.height = std::max(s.height, (s.kernel_h - 1) * s.dilation + 1 - 2 * s.padding);
        s.width = std::max(s.width, (s.kernel_w - 1) * s.dilation + 1 - 2 * s.padding);
        return s;
    }
};
TW_ON_EACH_DEVICE(ChooseConvolutions);

TEST(ChooseConvolution, TakesTheKernelsThatHaveNames) {
    std::mt19937 random(7);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    int same = 0, other = 0;
    const Target h200 = target("sm_90a");
    for (int round = 0; round < 60; ++round) {
        constexpr int64_t channels[] = {3, 16, 24, 36, 64, 72, 96, 128, 256};
        ConvolutionShape s{.images = 1LL << between(0, 6),
                           .height = between(7, 60),
                           .width = between(7, 60),
                           .channels = channels[between(0, 8)],
                           .filters = channels[between(0, 8)],
                           .kernel_h = 2 * between(0, 2) + 1,
                           .kernel_w = 2 * between(0, 2) + 1,
                           .stride = between(0, 2) ? 1 : 2,
                           .padding = between(0, 2),
                           .dilation = between(0, 4) ? 1 : 2};
        if (between(0, 3) == 0)
            s.groups = 1LL << between(1, 3), s.channels = 4 * s.groups * between(1, 8), s.filters = s.channels;
        if (!s.has_pixels()) continue;
        for (ConvolutionPass pass : passes) {
            SCOPED_TRACE(text_of(s, pass));
            try { build(convolution_schedule({s, pass, {}, {}}, h200)); } catch (const std::exception& e) { fmt::print("THROWS {} {}\n", text_of(s, pass), e.what()); continue; }
            const std::string chosen = without_names(build(choose_schedule({layer(s, pass)}, h200)).cuda()),
                              named = without_names(build(convolution_schedule({s, pass, {}, {}}, h200)).cuda());
            if (chosen == named)
                ++same;
            else {
                ++other;
                fmt::print("OTHER {}\n", text_of(s, pass));
                if (other < 4) {
                    FILE* f = fopen(fmt::format("/tmp/a{}.txt", other).c_str(), "w");
                    fmt::print(f, "{}", chosen);
                    fclose(f);
                    f = fopen(fmt::format("/tmp/b{}.txt", other).c_str(), "w");
                    fmt::print(f, "{}", named);
                    fclose(f);
                }
            }
        }
    }
    fmt::print("same {} other {}\n", same, other);
}

/// Bit for bit: sums of whole numbers are exact in any order.
TEST_P(ChooseConvolutions, OfAnyShapeAreTheDeclared) {
    const int rounds = GetParam() == "cuda" ? 30 : 8;
    int found = 0;
    for (int round = 0; round < rounds; ++round) {
        const ConvolutionShape shape = random_shape();
        Target some = device_target();
        some.multiprocessors = between(1, 6);  // so that blocks have several tiles in turn
        for (ConvolutionPass pass : passes) {
            SCOPED_TRACE(text_of(shape, pass));
            const bool is_forward = pass == ConvolutionPass::Forward;
            const Tensor given =
                layer(shape, pass, is_forward && chance() ? input("bias", f32, {shape.filters}) : Tensor());
            const auto convolution = find_convolution(given, {given});
            if (convolution) ++found;
            if (convolution) {
                EXPECT_EQ(convolution->pass, pass);
            }
            const Schedule s = choose_schedule({given}, some);
            const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
            Executable executable(build(s), device_);
            EXPECT_EQ(
                difference("result", run_on(executable, bindings)[0], interpret_plain({given}, bindings)[0], bitwise),
                std::nullopt);
        }
    }
    EXPECT_GE(found, rounds * 2) << found;
}

}  // namespace
}  // namespace tw::schedules
