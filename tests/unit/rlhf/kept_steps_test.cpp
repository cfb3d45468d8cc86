#include "rlhf/trainer/kept_steps.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <limits>

#include "base/file.h"
#include "spec/recipe/kept_experience.h"
#include "weights/tensor_io.h"

namespace neap::rlhf {
namespace {

namespace fs = std::filesystem;
using spec::KeptField;
using testing::AllOf;
using testing::HasSubstr;

class KeptStepsTest : public testing::Test {
 protected:
  KeptStepsTest() {
    job_.task = spec::Task::kPpo;
    job_.algorithm.use_kl_in_reward = true;
    job_.data.train_batch_size = 4;
    job_.data.max_prompt_length = 3;
    job_.data.max_response_length = 2;
    fs::create_directories(folder_);
  }
  ~KeptStepsTest() override { fs::remove_all(root_); }
  KeptStepsTest(const KeptStepsTest&) = delete;
  KeptStepsTest& operator=(const KeptStepsTest&) = delete;

  [[nodiscard]] KeptStep step() const {
    KeptStep out;
    for (const spec::KeptTensor& kept : kept_tensors(job_))
      out[kept.field] = at::arange(kept.elements(), at::kFloat).view(kept.shape);
    out[KeptField::kTokens] = out[KeptField::kTokens].to(at::kInt);
    out[KeptField::kLengths] = at::tensor({4, 5, 3, 2}, at::kLong);
    out[KeptField::kResponseLengths] = at::tensor({2, 2, 1, 1}, at::kLong);
    out[KeptField::kMask] = at::tensor({1, 1, 0, 1, 1, 0, 1, 0}, at::kFloat).view({4, 2});
    out.metrics = {{"critic/score/mean", 0.1},
                   {"critic/vf_explained_var", -std::numeric_limits<double>::infinity()}};
    return out;
  }
  void write(std::int64_t number, const KeptStep& step) const {
    write_kept_step(KeptSteps::file_of(folder_, number), job_, step, origin_, {7, 3});
  }
  [[nodiscard]] KeptStep read(std::int64_t number) const {
    return read_kept_step(KeptSteps(root_).file(number), job_, origin_);
  }
  [[nodiscard]] static std::string message_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  [[nodiscard]] std::string failure(std::int64_t number) const {
    return message_of([&] { (void)read(number); });
  }
  [[nodiscard]] std::string failure_of(KeptField field, const at::Tensor& wrong) const {
    KeptStep changed = step();
    changed[field] = wrong;
    write(1, changed);
    return failure(1);
  }

  spec::Job job_;
  ExperienceOrigin origin_{"hash", "llama, 2 layers of width 8, vocabulary 20", 20};
  fs::path root_ = fs::temp_directory_path() / ("neap-kept-" + std::to_string(::getpid()));
  fs::path folder_ = root_ / kExperienceFolder;
};

TEST_F(KeptStepsTest, ReadWhatWasWritten) {
  KeptStep written = step();
  written[KeptField::kValues] = written[KeptField::kValues].to(at::kDouble) / 3;
  write(12, written);
  const KeptStep back = read(12);
  for (const spec::KeptTensor& kept : kept_tensors(job_)) {
    EXPECT_EQ(back[kept.field].scalar_type(), written[kept.field].scalar_type());
    EXPECT_TRUE(at::equal(back[kept.field], written[kept.field])) << to_string(kept.field);
  }
  EXPECT_FALSE(back[KeptField::kNoise].defined());
  EXPECT_EQ(back.metrics, (Metrics{{"critic/score/mean", 0.1}})) << "without infinity";
  const KeptSteps steps(folder_);
  EXPECT_EQ(steps.schedule().total_steps, 7);
  EXPECT_EQ(steps.schedule().steps_per_epoch, 3);
  job_.task = spec::Task::kGrpo;  // the actor alone
  EXPECT_FALSE(read(12)[KeptField::kValues].defined());
}

TEST_F(KeptStepsTest, FoldersSayWhichStepIsMissing) {
  EXPECT_THAT(
      message_of([&] { KeptSteps none(root_); }),
      HasSubstr("trainer.experience_dir: " + root_.string() + " holds no experience; name"));
  throw_if_error(write_file_atomic(folder_ / "step_x.safetensors", "x"));
  throw_if_error(write_file_atomic(folder_ / "step_0.safetensors", "x"));
  EXPECT_THAT(message_of([&] { KeptSteps none(root_ / "absent"); }), HasSubstr("no experience"));
  EXPECT_THAT(message_of([&] { KeptSteps none(root_); }), HasSubstr("no experience"));
  for (const std::int64_t number : {1, 2, 4}) write(number, step());
  const KeptSteps steps(root_);
  EXPECT_EQ(steps.steps(), (std::set<std::int64_t>{1, 2, 4}));
  steps.expect(0, 2);
  steps.expect(3, 4);
  steps.expect(4, 4);
  EXPECT_THAT(message_of([&] { steps.expect(1, 4); }),
              HasSubstr("holds 3 steps, 1 to 4, but not step 3. Set trainer.total_training_steps = "
                        "2 to train"));
  EXPECT_THAT(message_of([&] { steps.expect(2, 4); }), HasSubstr("trainer.resume_mode"));
}

TEST_F(KeptStepsTest, OfAnotherJobSayWhatDiffers) {
  write(1, step());
  ExperienceOrigin own = origin_;
  origin_.tokenizer = "other";
  EXPECT_THAT(failure(1), HasSubstr("was kept with another tokenizer; set"));
  origin_ = own;
  origin_.model = "gpt2, 1 layers of width 8, vocabulary 20";
  EXPECT_THAT(failure(1), HasSubstr("another model (llama, 2 layers"));
  origin_ = own;
  job_.data.train_batch_size = 8;
  EXPECT_THAT(failure(1), HasSubstr("tokens of 4 x 5; this job has 8 x 5. Set data.train_batch"));
  job_.data.train_batch_size = 4;
  job_.task = spec::Task::kGrpo;
  write(2, step());
  job_.task = spec::Task::kPpo;
  EXPECT_THAT(failure(2), HasSubstr("has no values: it was kept by a run without a critic. Set "
                                    "task = \"grpo\""));
  job_.actor.use_kl_loss = true;
  EXPECT_THAT(failure(1), HasSubstr("has no ref_log_probs: it was kept by a run whose updates"));
}

TEST_F(KeptStepsTest, HostileFilesAreRefused) {
  EXPECT_THAT(failure_of(KeptField::kTokens, at::full({4, 5}, 20, at::kInt)),
              HasSubstr("tokens are not in the vocabulary of 20. Keep"));
  EXPECT_THAT(failure_of(KeptField::kTokens, at::full({4, 5}, -1, at::kInt)),
              HasSubstr("tokens are not"));
  EXPECT_THAT(failure_of(KeptField::kTokens, at::zeros({4, 5})), HasSubstr("tokens is F32"));
  const std::vector<std::vector<std::int64_t>> wrong_lengths = {
      {6, 5, 3, 2}, {2, 5, 3, 2}, {-1, 5, 3, 2}};
  for (const auto& lengths : wrong_lengths)
    EXPECT_THAT(failure_of(KeptField::kLengths, at::tensor(lengths, at::kLong)),
                HasSubstr("lengths are not"));
  const std::vector<std::vector<std::int64_t>> wrong_responses = {{0, 2, 1, 1}, {3, 2, 1, 1}};
  for (const auto& lengths : wrong_responses)
    EXPECT_THAT(failure_of(KeptField::kResponseLengths, at::tensor(lengths, at::kLong)),
                HasSubstr("lengths are not"));
  EXPECT_THAT(failure_of(KeptField::kMask, at::ones({4, 2})), HasSubstr("the mask is not"));
  EXPECT_THAT(failure_of(KeptField::kMask, at::full({4, 2}, 0.5)), HasSubstr("the mask is not"));

  write(1, step());
  const fs::path file = KeptSteps(root_).file(1);
  const std::string whole = value_or_throw(read_file(file));
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, whole.size() / 2, whole.size() - 1}) {
    throw_if_error(write_file_atomic(file, whole.substr(0, size)));
    EXPECT_THAT(failure(1), AllOf(HasSubstr(file.string()), HasSubstr("Keep the experience again")))
        << size;
  }
  std::string damaged = whole;
  damaged[damaged.size() - 3] ^= 1;
  throw_if_error(write_file_atomic(file, damaged));
  EXPECT_THAT(failure(1), AllOf(HasSubstr(file.string()), HasSubstr("Keep the experience again")));
  weights::save_tensors(file, {{"tokens", at::zeros({4, 5})}});
  EXPECT_THAT(failure(1), HasSubstr("is not experience that this version keeps"));
  EXPECT_THAT(message_of([&] { (void)KeptSteps(root_).schedule(); }),
              HasSubstr("is not experience"));
}

}  // namespace
}  // namespace neap::rlhf
