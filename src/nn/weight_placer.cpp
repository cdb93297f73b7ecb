#include "nn/weight_placer.h"

#include <chrono>

#include "ops/quantise.h"

namespace quire::nn {
namespace {

size_t bytes_as(const StoredWeight& weight, DType form) {
  return static_cast<size_t>(weight.rows() * ops::quantised_row_bytes(form, weight.columns()));
}

class LoadingPlacer final : public WeightPlacer {
 public:
  explicit LoadingPlacer(ops::Backend& backend) : backend_(backend) {}

  Result<Placed> matrix(std::span<const StoredWeight> parts, HeldForm form) override {
    const auto start = std::chrono::steady_clock::now();
    std::vector<TensorView> views;
    std::vector<std::unique_ptr<uint8_t[]>> memory;  // of what does not lie in the file as it is wanted
    for (const StoredWeight& part : parts) {
      const DType wanted = form.rounded ? part.dtype() : form.dtype;
      std::optional<TensorView> view = part.in_place(wanted);
      if (!view) {
        memory.push_back(std::make_unique_for_overwrite<uint8_t[]>(bytes_as(part, wanted)));
        QUIRE_RETURN_IF_ERROR(part.read(wanted, backend_, memory.back().get()));
        view = TensorView{memory.back().get(), wanted, {part.rows(), part.columns()}};
      }
      views.push_back(*view);
    }
    Placed placed;
    QUIRE_ASSIGN_OR_RETURN(placed.matrix, form.rounded ? backend_.quantise(views, form.dtype) : backend_.pack(views));
    placed.bytes = placed.matrix->bytes();
    placed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return placed;
  }

  Result<ops::ResidentTable> table(const StoredWeight& rows, DType dtype) override {
    if (const auto view = rows.in_place(dtype)) return backend_.table(*view);
    const Shape shape = {rows.rows(), rows.columns()};
    if (!backend_.computes_in_host_memory()) {
      const auto memory = std::make_unique_for_overwrite<uint8_t[]>(bytes_as(rows, dtype));
      QUIRE_RETURN_IF_ERROR(rows.read(dtype, backend_, memory.get()));
      return backend_.table({memory.get(), dtype, shape});
    }
    auto memory = std::make_shared<Buffer>(backend_.allocator(), bytes_as(rows, dtype));
    if (memory->data() == nullptr) return resource_exhausted("no memory for a table of {} bytes", memory->bytes());
    QUIRE_RETURN_IF_ERROR(rows.read(dtype, backend_, memory->as<uint8_t>()));
    QUIRE_ASSIGN_OR_RETURN(ops::ResidentTable table, backend_.table({memory->data(), dtype, shape}));
    table.memory = std::move(memory);  // which the backend reads where it is
    return table;
  }

  std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& table, const TensorView& rows) override {
    return backend_.weight_of(table, rows);
  }
  std::vector<float> floats(FunctionRef<std::vector<float>()> make) override { return make(); }

 private:
  ops::Backend& backend_;
};

class PlanningPlacer final : public WeightPlacer {
 public:
  explicit PlanningPlacer(ops::Backend& backend) : backend_(backend) {}

  Result<Placed> matrix(std::span<const StoredWeight> parts, HeldForm form) override {
    int64_t rows = 0;
    for (const StoredWeight& part : parts) rows += part.rows();
    return Placed{.matrix = nullptr, .bytes = backend_.packed_bytes(form.dtype, rows, parts[0].columns())};
  }
  Result<ops::ResidentTable> table(const StoredWeight& rows, DType dtype) override {
    return ops::ResidentTable{.view = {rows.codes.data, dtype, {rows.rows(), rows.columns()}}};
  }
  std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& /*table*/,
                                               const TensorView& /*rows*/) override {
    return nullptr;
  }
  std::vector<float> floats(FunctionRef<std::vector<float>()> /*make*/) override { return {}; }

 private:
  ops::Backend& backend_;
};

}  // namespace

std::unique_ptr<WeightPlacer> WeightPlacer::loading(ops::Backend& backend) {
  return std::make_unique<LoadingPlacer>(backend);
}

std::unique_ptr<WeightPlacer> WeightPlacer::planning(ops::Backend& backend) {
  return std::make_unique<PlanningPlacer>(backend);
}

}  // namespace quire::nn
