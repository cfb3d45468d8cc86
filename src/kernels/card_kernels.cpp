#include "kernels/card_kernels.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/format.h"
#include "base/parallel_for.h"
#include "kernels/cubins.h"
#include "kernels/per_card.h"

namespace neap::kernels {
namespace {

namespace cuda = device::cuda;

Result<std::unique_ptr<CardKernels>> open_kernels(int ordinal) {
  NEAP_TRY_ASSIGN(const Compiler* const compiler, load_compiler());
  NEAP_TRY_ASSIGN(const cuda::Card card, cuda::open_card(ordinal));
  int major = 0, minor = 0;
  const auto ask = [&](int& value, int attribute) {
    return to_status(*card.driver, card.driver->device_attribute(&value, attribute, card.device),
                     "asking for the GPU's compute capability");
  };
  NEAP_TRY(ask(major, cuda::kAttributeCapabilityMajor));
  NEAP_TRY(ask(minor, cuda::kAttributeCapabilityMinor));
  return std::make_unique<CardKernels>(*compiler, card, 10 * major + minor, cubin_folder());
}

}  // namespace

Result<CardKernels*> CardKernels::of(int ordinal) {
  return per_card<CardKernels>(ordinal, open_kernels);
}

CardKernels::CardKernels(const Compiler& compiler, const cuda::Card& card, int architecture,
                         std::filesystem::path folder)
    : compiler_(compiler), card_(card), architecture_(architecture), folder_(std::move(folder)) {}

Result<CardKernels::File> CardKernels::load(const Source& source) const {
  const cuda::ContextScope scope(card_);
  NEAP_TRY(scope.status());
  const cuda::Driver& driver = *card_.driver;
  File file;
  const auto cubin = [&](const std::filesystem::path& folder) {
    return cubin_of(compiler_, source, architecture_, driver.version, folder);
  };
  NEAP_TRY_ASSIGN(const std::string kept, cubin(folder_));
  if (driver.module_load(&file.module, kept.data()) == 0) return file;
  // The file may come from another machine.
  NEAP_TRY_ASSIGN(const std::string compiled, cubin({}));
  NEAP_TRY(to_status(driver, driver.module_load(&file.module, compiled.data()),
                     format("loading the kernels of {}.cu", source.name)));
  return file;
}

Status CardKernels::load_all() {
  const auto all = sources();
  std::vector<File> files(all.size());
  std::vector<Status> loaded(all.size());
  const std::lock_guard lock(mutex_);
  parallel_for(all.size(), all.size(), [&](std::size_t i) {
    if (files_.contains(all[i].name)) return;
    Result<File> file = load(all[i]);
    loaded[i] = file.status();
    if (file.ok()) files[i] = *std::move(file);
  });
  for (const Status& status : loaded) NEAP_TRY(status);
  for (std::size_t i = 0; i < all.size(); ++i)
    files_.try_emplace(std::string(all[i].name), std::move(files[i]));
  return {};
}

Result<CardKernels::File*> CardKernels::load(std::string_view source) {
  if (const auto found = files_.find(source); found != files_.end()) return &found->second;
  const auto all = sources();
  const auto wanted = std::ranges::find(all, source, &Source::name);
  if (wanted == all.end())
    return Status(ErrorCode::kInternal, format("there is no file of kernels named {}", source));
  NEAP_TRY_ASSIGN(File file, load(*wanted));
  return &files_.emplace(source, std::move(file)).first->second;
}

Result<cuda::Function> CardKernels::find(std::string_view source, std::string_view kernel,
                                         std::int64_t shared) {
  const cuda::Driver& driver = *card_.driver;
  NEAP_TRY_ASSIGN(File* const file, load(source));
  auto found = file->kernels.find(kernel);
  if (found == file->kernels.end()) {
    const std::string name(kernel);
    Kernel made;
    NEAP_TRY(to_status(driver, driver.module_function(&made.function, file->module, name.c_str()),
                       format("finding the kernel {} of {}.cu", kernel, source)));
    found = file->kernels.emplace(name, made).first;
  }
  Kernel& known = found->second;
  if (shared > known.shared) {
    NEAP_TRY(to_status(driver,
                       driver.function_attribute(known.function, cuda::kFunctionMostShared,
                                                 static_cast<int>(shared)),
                       format("taking {} bytes of shared memory for the kernel {} of {}.cu", shared,
                              kernel, source)));
    known.shared = shared;
  }
  return known.function;
}

Status CardKernels::launch_with(std::string_view source, std::string_view kernel, const Grid& grid,
                                cuda::Stream stream, void** parameters) {
  const cuda::ContextScope scope(card_);
  NEAP_TRY(scope.status());
  cuda::Function function = nullptr;
  {
    const std::lock_guard lock(mutex_);
    NEAP_TRY_ASSIGN(function, find(source, kernel, grid.shared));
  }
  const auto size = [](std::int64_t n) { return static_cast<unsigned>(n); };
  const cuda::Driver& driver = *card_.driver;
  const bool early = grid.early && architecture_ >= kEarlyArchitecture;
  int result = 0;
  if ((early || grid.cluster > 1) && driver.launch_with != nullptr) {
    std::array<cuda::LaunchAttribute, 2> attributes;
    unsigned count = 0;
    if (early) attributes[count++] = cuda::LaunchAttribute(cuda::kLaunchAttributeEarly, {1});
    if (grid.cluster > 1)
      attributes[count++] =
          cuda::LaunchAttribute(cuda::kLaunchAttributeCluster, {size(grid.cluster), 1, 1});
    cuda::LaunchConfig config;
    config.grid_x = size(grid.x);
    config.grid_y = size(grid.y);
    config.grid_z = size(grid.z);
    config.block_x = size(grid.threads);
    config.shared_bytes = size(grid.shared);
    config.stream = stream;
    config.attributes = attributes.data();
    config.attribute_count = count;
    result = driver.launch_with(&config, function, parameters, nullptr);
  } else if (grid.cluster > 1) {
    return Status(ErrorCode::kUnsupported,
                  format("the kernel {} of {}.cu needs a driver for CUDA 11.8", kernel, source));
  } else {
    result = driver.launch(function, size(grid.x), size(grid.y), size(grid.z), size(grid.threads),
                           1, 1, size(grid.shared), stream, parameters, nullptr);
  }
  return to_status(driver, result, format("starting the kernel {} of {}.cu", kernel, source));
}

}  // namespace neap::kernels
