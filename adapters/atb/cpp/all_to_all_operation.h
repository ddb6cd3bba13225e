// The common part of AllToAllV and AllToAllVV2: the life cycle of an operation. They differ in the source of their
// counts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "a2a/plan.h"
#include "checks.h"
#include "group.h"

namespace a2a::atb {

class AllToAllOperation : public Operation {
 public:
  uint32_t GetOutputNum() const override { return 1; }
  Status InferShape(const SVector<TensorDesc>& in, SVector<TensorDesc>& out) const override;
  Status Setup(const VariantPack& pack, uint64_t& workspace_size, Context* context) override;
  Status Execute(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size, Context* context) override;

  // Does what Execute does, and does not wait.
  Status start(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size, Context* context,
               std::shared_ptr<Work>& work);
  // Takes the number of the refused exchange, so that the peers' calls fail and do not wait.
  void tell_peers(const std::string& reason);

  const Group& group() const { return group_; }
  void use(std::shared_ptr<Communicator> communicator);
  bool has_communicator() const;

 protected:
  explicit AllToAllOperation(Group group) : group_(std::move(group)) {}
  // Resets the operation to its state after construction.
  void reset(Group group);

  // Checks dtype and format of input i.
  virtual void check_input_kind(const TensorDesc& desc, size_t i) const = 0;
  // Returns the output for inputs that passed the general checks.
  virtual TensorDesc infer(const SVector<TensorDesc>& in) const = 0;
  // Returns the counts of these tensors, checked as far as that is possible without the size of the input.
  virtual Counts counts_of(const VariantPack& pack) const = 0;

 private:
  // The results of a successful Setup, for Execute.
  struct Ready {
    std::optional<Plan> plan;
    Call call;
    std::vector<uint64_t> in_bytes;
    uint64_t out_bytes = 0;
    Context* context = nullptr;
  };

  // Makes all checks of Setup on the tensors.
  Ready check(const VariantPack& pack) const;
  Ready prepare(const Counts& counts, const SVector<TensorDesc>& in, const TensorDesc& out, int64_t elems,
                int64_t sum) const;
  void check_execute(const VariantPack& pack, const uint8_t* workspace, uint64_t workspace_size,
                     Context* context) const;
  void require_stream(Context* context) const;

  Group group_;
  std::shared_ptr<Communicator> communicator_;
  std::optional<Ready> ready_;  // empty unless the last Setup succeeded
  std::string setup_failure_ = "Setup has not run";
};

// "inTensor[1]"
std::string name_of(const char* list, size_t i);

// Returns the output for an input and `elems` elements.
TensorDesc output_of(const TensorDesc& input, int64_t elems);

}  // namespace a2a::atb
