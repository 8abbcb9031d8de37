// What `tw train` trains: networks with their data.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/autograd.h"

namespace tw {

/// How good a network is on what was held out.
struct Score {
    double value = 0;
    std::string text;  ///< "97.2 % of 359 images are read right"
};

/// Batches follow from the seed and the number of the step alone: a run that is resumed goes on with those that it
/// would have had.
class TrainedModel {
public:
    virtual ~TrainedModel() = default;
    virtual std::string description() const = 0;
    virtual std::vector<nn::Tensor> parameters() const = 0;
    /// What a checkpoint keeps beside parameters and the optimizer's states.
    virtual std::vector<nn::Tensor> states() const { return {}; }
    /// What tells the data that it learns from apart from others, where users give them.
    virtual std::string data() const { return {}; }
    /// The mean loss of the batch, an f32 scalar; called while the step is captured.
    virtual nn::Tensor loss() const = 0;
    /// The batch of step n, from 0 on.
    virtual void draw(int64_t step) = 0;
    virtual Score score() = 0;
};

struct ModelOptions {
    int64_t batch = 0;   ///< images or sequences; 0: as the model says
    bool small = false;  ///< a network that the emulator trains in seconds
    uint64_t seed = 1;
    std::vector<std::string> texts = {};  ///< files; none: the project's own documents
};

/// Handwritten digits of 8 x 8 pixels: a perceptron, or a convolution net with batch norm and pooling.
std::unique_ptr<TrainedModel> make_mlp(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options);
std::unique_ptr<TrainedModel> make_cnn(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options);
/// A transformer that says which character comes next. Throws Error naming a file that cannot be read, and if there is
/// too little text.
std::unique_ptr<TrainedModel> make_chars(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options);

/// Numbers below `count` in an order that follows from the seed.
std::vector<int32_t> shuffled(int64_t count, uint64_t seed);
/// A number of 64 bits for each pair (Steele, Lea, Flood: SplitMix64, 2014).
uint64_t mixed(uint64_t a, uint64_t b);

}  // namespace tw
