#include "plan/transients.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/format.h"

namespace neap::plan {
namespace {

// cuBLAS keeps a workspace for each thread that multiplies: 32 MiB on Hopper. Two do, the caller's and autograd's; the
// runtime makes both before the first phase.
constexpr std::int64_t kCublasWorkspace = 2 * (32 << 20);
// Micro batches after the second find the pool as the second left it.
constexpr std::int64_t kMicroBatches = 2;
constexpr std::int64_t kDecodeSteps = 48;

class PhaseStream {
 public:
  PhaseStream(TensorStream& stream, const spec::Job& job, const Execution& execution)
      : s_(stream),
        job_(job),
        e_(execution),
        length_(job.max_sequence_length()),
        response_(job.data.max_response_length) {}

  void generate(const ModelRole& role) {
    NetworkStream net(s_, role, e_);
    const std::int64_t batch = job_.rollout_batch();
    {
      const std::vector<Temporary> inputs = {longs(batch * job_.data.max_prompt_length),
                                             longs(batch), longs(batch)};
      const Temporary hidden = net.prefill(batch, job_.data.max_prompt_length);
      sample(net, batch, role.shape.vocab_size);
    }
    const std::int64_t steps = std::min(response_ - 1, kDecodeSteps);
    for (std::int64_t i = 1; i <= steps; ++i) {
      // Evenly spread, the last one included.
      const std::int64_t limit = job_.data.max_prompt_length + (response_ - 1) * i / steps;
      const std::vector<Temporary> inputs = {longs(batch), longs(batch)};
      const Temporary hidden = net.decode(batch, limit);
      sample(net, batch, role.shape.vocab_size);
    }
  }

  void log_probs(const ModelRole& role, std::int64_t micro, bool entropy) {
    NetworkStream net(s_, role, e_);
    each_micro_batch(job_.sequences_per_rank(), micro, [&](std::int64_t n) {
      const std::vector<Temporary> batch = on_device(n);
      const Temporary hidden = net.forward(n, length_);
      const Temporary rows = longs(n * response_);
      const auto out = net.log_probs(n * response_, entropy);
      const Temporary both = entropy ? floats(2 * n * response_) : Temporary();
    });
  }

  void scores(const ModelRole& role, std::int64_t micro, bool every_token) {
    NetworkStream net(s_, role, e_);
    each_micro_batch(job_.sequences_per_rank(), micro, [&](std::int64_t n) {
      const std::vector<Temporary> batch = on_device(n);
      const Temporary hidden = net.forward(n, length_);
      const std::int64_t read = every_token ? n * response_ : n;
      const Temporary rows = longs(read);
      const Temporary out = net.scores(read);
    });
  }

  void train_critic(const ModelRole& role) {
    NetworkStream net(s_, role, e_);
    const spec::CriticConfig& config = job_.critic;
    each_micro_batch(job_.sequences_per_rank() * config.ppo_epochs,
                     config.ppo_micro_batch_size_per_gpu, [&](std::int64_t n) {
                       const std::vector<Temporary> batch = on_device(n, 2);
                       NetworkStream::Tape tape = net.forward_train(n, length_);
                       const Temporary rows = longs(n * response_);
                       const Temporary values = net.scores(n * response_);
                       loss_terms(n * response_);
                       const Temporary d_values = floats(n * response_);
                       Temporary d_hidden = net.scores_backward(n * length_, n * response_);
                       net.backward(std::move(tape), std::move(d_hidden));
                     });
    optimizer(role);
  }

  void train_actor(const ModelRole& role) {
    NetworkStream net(s_, role, e_);
    const spec::ActorConfig& config = job_.actor;
    const bool entropy = config.entropy_coeff != 0;
    each_micro_batch(job_.sequences_per_rank() * config.ppo_epochs,
                     config.ppo_micro_batch_size_per_gpu, [&](std::int64_t n) {
                       const std::vector<Temporary> batch = on_device(n, 2);
                       NetworkStream::Tape tape = net.forward_train(n, length_);
                       const Temporary rows = longs(n * response_);
                       const auto out = net.log_probs(n * response_, entropy);
                       loss_terms(n * response_);
                       const Temporary d_log_probs = floats(n * response_);
                       const Temporary d_entropy = entropy ? floats(n * response_) : Temporary();
                       Temporary d_hidden =
                           net.log_probs_backward(n * length_, n * response_, entropy);
                       net.backward(std::move(tape), std::move(d_hidden));
                     });
    optimizer(role);
  }

  void sft(const ModelRole& role, bool trains) {
    NetworkStream net(s_, role, e_);
    each_micro_batch(job_.rows_per_rank(), job_.data.micro_batch_size_per_gpu, [&](std::int64_t n) {
      const std::vector<Temporary> batch = on_device(n);
      if (!trains) {
        const Temporary hidden = net.forward(n, length_);
        const Temporary rows = longs(n * response_);
        const auto out = net.log_probs(n * response_, false);
        return;
      }
      NetworkStream::Tape tape = net.forward_train(n, length_);
      const Temporary weights = floats(n * response_);
      NetworkStream::CrossEntropy out;
      {
        const Temporary rows = longs(n * response_);
        out = net.cross_entropy(n * length_, n * response_);
      }
      // The caller keeps the gradient of the hidden states while the tape walks back.
      net.backward(std::move(tape), out.d_hidden);
    });
    if (trains) optimizer(role);
  }

  void reward(const ModelRole& role, bool trains) {
    NetworkStream net(s_, role, e_);
    each_micro_batch(job_.rows_per_rank(), job_.data.micro_batch_size_per_gpu,
                     [&](std::int64_t pairs) {
                       const std::int64_t n = 2 * pairs;  // chosen and rejected
                       const std::vector<Temporary> batch = on_device(n);
                       if (!trains) {
                         const Temporary hidden = net.forward(n, length_);
                         const Temporary out = net.scores(n);
                         return;
                       }
                       NetworkStream::Tape tape = net.forward_train(n, length_);
                       const Temporary last = longs(n);
                       const Temporary out = net.scores(n);
                       loss_terms(n);
                       Temporary d_hidden = net.scores_backward(n * length_, n);
                       net.backward(std::move(tape), std::move(d_hidden));
                     });
    if (trains) optimizer(role);
  }

 private:
  [[nodiscard]] Temporary longs(std::int64_t elements) { return s_.make(elements, 8); }
  [[nodiscard]] Temporary floats(std::int64_t elements) { return s_.make(elements, 4); }
  // The sequences of a micro batch: host memory is their home, so only a GPU gets a copy. `more`
  // are float tensors of the response's shape.
  [[nodiscard]] std::vector<Temporary> on_device(std::int64_t n, int more = 0) {
    if (!e_.cuda) return {};
    std::vector<Temporary> batch = {longs(n * length_), longs(n * response_), longs(n * response_),
                                    floats(n * response_), longs(n)};
    for (int i = 0; i < more; ++i) batch.push_back(floats(n * response_));
    return batch;
  }

  void each_micro_batch(std::int64_t sequences, std::int64_t micro,
                        const std::function<void(std::int64_t)>& run) {
    std::int64_t done = 0;
    for (std::int64_t at = 0; at < sequences && done < kMicroBatches; at += micro, ++done)
      run(std::min(micro, sequences));  // the last reaches back: train::micro_batches
  }

  void sample(NetworkStream& net, std::int64_t batch, std::int64_t vocabulary) {
    Temporary logits = net.logits(batch);
    Temporary order;
    const bool ranks =
        (job_.rollout.top_k > 0 && job_.rollout.top_k < vocabulary) || job_.rollout.top_p < 1;
    if (job_.rollout.temperature <= 0) return;
    if (ranks) {
      Temporary sorted = floats(batch * vocabulary);
      order = longs(batch * vocabulary);
      logits = sorted;
    }
    const Temporary mass = floats(batch * vocabulary);
    logits.reset();
    if (job_.rollout.top_p < 1) {
      const Temporary before = floats(batch * vocabulary);
      s_.touch(batch * vocabulary, 1);
    }
    s_.touch(batch, 4);
    s_.touch(batch, 8);
  }

  // Losses over a number a token: a dozen tensors of that size at once, gradients included.
  void loss_terms(std::int64_t elements) {
    std::vector<Temporary> terms;
    for (int i = 0; i < 12; ++i) terms.push_back(floats(elements));
  }

  // Gradients and states are regions; what is left is a count a unit and, where gradients are
  // wider than the kernel's type, nothing: masters are float32 as gradients are.
  void optimizer(const ModelRole& role) {
    const auto units = role.shape.num_hidden_layers + 2;
    std::vector<Temporary> counts;
    for (std::int64_t i = 0; i < units; ++i) counts.push_back(floats(1));
  }

  TensorStream& s_;
  const spec::Job& job_;
  Execution e_;
  std::int64_t length_, response_;
};

}  // namespace

Execution execution_of(const spec::Job& job, const Target& target) {
  Execution e;
  e.cuda = target.cuda;
  e.width = compute_width(job, target);
  e.threads = target.threads;
  if (job.trainer.deterministic) e.multiprocessors = target.multiprocessors;
  return e;
}

Status stream_phase(TensorStream& stream, const spec::Job& job, const JobModels& models,
                    const Execution& execution, const std::string& phase) {
  PhaseStream p(stream, job, execution);
  const Temporary workspace = execution.cuda ? stream.make(kCublasWorkspace, 1) : Temporary();
  if (phase == "generate") {
    p.generate(*models.actor);
  } else if (phase == "actor_logp") {
    p.log_probs(*models.actor, job.rollout.log_prob_micro_batch_size_per_gpu, true);
  } else if (phase == "ref_logp") {
    p.log_probs(models.reference ? *models.reference : *models.actor, job.reference_micro_batch(),
                false);
  } else if (phase == "values") {
    p.scores(*models.critic, job.values_micro_batch(), true);
  } else if (phase == "rewards") {
    p.scores(*models.reward, job.reward_micro_batch(), false);
  } else if (phase == "train_critic") {
    p.train_critic(*models.critic);
  } else if (phase == "train_actor") {
    p.train_actor(*models.actor);
  } else if (phase != "train" && phase != "validate") {
    return {ErrorCode::kInternal, format("There is no phase \"{}\"", phase)};
  } else if (job.task == "reward") {
    p.reward(*models.reward, phase == "train");
  } else {
    p.sft(*models.actor, phase == "train");
  }
  return stream.status();
}

Result<cache::Settings> pool_settings(const spec::Job& job, const Target& target) {
  cache::Settings settings;
  settings.expandable_segments = true;
  if (target.cuda) {
    for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
      if (const char* value = std::getenv(name); value != nullptr)
        return cache::Settings::parse(value);
    }
    return settings;
  }
  if (!job.memory.alloc_conf.empty()) return cache::Settings::parse(job.memory.alloc_conf);
  settings.large_segment_size = 2_MiB;
  return settings;
}

Result<std::vector<PhasePlan>> predict_transients(const spec::Job& job, const JobModels& models,
                                                  const Target& target,
                                                  const std::vector<std::string>& phases) {
  NEAP_TRY_ASSIGN(const cache::Settings settings, pool_settings(job, target));
  const Execution execution = execution_of(job, target);
  std::vector<PhasePlan> out;
  for (const std::string& phase : phases) {
    TensorStream stream(settings);
    NEAP_TRY(stream_phase(stream, job, models, execution, phase)
                 .with_context(format("predicting phase \"{}\"", phase)));
    out.push_back({phase, stream.peak_reserved(), stream.peak_allocated()});
  }
  return out;
}

}  // namespace neap::plan
