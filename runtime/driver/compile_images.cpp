#include "runtime/driver/compile_images.h"

namespace tw {

std::vector<std::shared_ptr<const CompiledKernel>> compile_images(std::span<const KernelImage> images) {
    std::vector<CompileRequest> requests;
    std::vector<size_t> image_of;
    for (size_t i = 0; i < images.size(); ++i) {
        if (!images[i].cubin.empty()) continue;
        requests.push_back(
            {.source = images[i].source, .name = images[i].name, .arch = images[i].arch, .options = images[i].options});
        image_of.push_back(i);
    }
    std::vector<std::shared_ptr<const CompiledKernel>> kernels(images.size());
    std::vector<CompileOutcome> outcomes = compile_all(requests);
    for (size_t r = 0; r < outcomes.size(); ++r) {
        const KernelImage& image = images[image_of[r]];
        kernels[image_of[r]] = std::make_shared<const CompiledKernel>(outcomes[r].get());
        kernels[image_of[r]]->of(image.entry);  // says which entries there are, where this is none
    }
    return kernels;
}

}  // namespace tw
