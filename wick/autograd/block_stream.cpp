#include "wick/autograd/block_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "wick/core/error.h"

namespace wick {
namespace {

// The blocks that are streamed if each has streamed its part of `all` bytes by its turn, blocks taking equally long.
std::vector<size_t> spread(const std::vector<size_t>& bytes, double all) {
  std::vector<size_t> chosen;
  double streamed = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (streamed + double(bytes[i]) > all * double(i + 1) / double(bytes.size()) * (1 + 1e-9)) continue;
    streamed += double(bytes[i]);
    chosen.push_back(i);
  }
  return chosen;
}

std::vector<size_t> evenly(const std::vector<size_t>& bytes, size_t count) {
  double few = 0, enough = 1;
  while (spread(bytes, enough).size() < count) enough *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (few + enough) / 2;
    (spread(bytes, middle).size() < count ? few : enough) = middle;
  }
  std::vector<size_t> chosen = spread(bytes, enough);
  chosen.resize(count);
  return chosen;
}

}  // namespace

BlockStream::BlockStream(Memory& device, const std::vector<size_t>& bytes, size_t count, MasterPlace masters)
    : device_(device), place_(std::move(masters)), streamed_(bytes.size()) {
  check(count <= bytes.size(), "--stream-blocks: expected at most {}, or all, the blocks of the model, found {}",
        bytes.size(), count);
  size_t number = 0, largest = 0;
  for (const size_t block : evenly(bytes, count)) {
    streamed_[block] = number++;
    largest = std::max(largest, bytes[block]);
  }
  masters_.resize(count);
  const auto room = [&] {
    const MemoryScope scope(Purpose::weights);
    return Tensor::empty({int64_t(largest)}, DType::u8, device);
  };
  for (size_t i = 0; i < std::min(kSlots, count); ++i)
    slots_.push_back(
        {.room = room(),
         .fetch = place_.staged ? device.make_staged_transfer(largest) : device.make_transfer(Direction::to_device)});
  device_.add_mover(*this);
}

BlockStream::~BlockStream() {
  device_.remove_mover(*this);
  if (place_.shared) await_all();
}

// Another thread may give the masters back, and nothing may be on its way from them then.
void BlockStream::await_all() noexcept try {
  for (Slot& slot : slots_) settle(slot);
  std::byte last{};
  if (!slots_.empty() && masters_.front()) device_.read(&last, slots_.front().room.view().data, 1);
} catch (const std::exception&) {  // a device that is lost fetches nothing more
}

Tensor BlockStream::room(size_t block, const Shape& shape, DType dtype) {
  const Tensor& slot = slot_of(*streamed_[block]).room;
  const Tensor room = slot.part(int64_t(filled_), dtype, shape);
  filled_ += rounded_up(size_t(bytes_of(dtype, shape)));
  return room;
}

void BlockStream::keep(size_t block, bool has_values) {
  const size_t number = *streamed_[block];
  Slot& slot = slot_of(number);
  check(!masters_[number], "streaming: the tensors of block {} were not loaded together", block);
  const auto make = [&] { return master_of(slot, has_values); };
  masters_[number] = place_.shared && has_values
                         ? place_.shared->find_or_make(fmt::format("block {} of {}", block, place_.name), filled_, make)
                         : std::make_shared<const Tensor>(make());
  slot.holds = number;
  filled_ = 0;
}

Tensor BlockStream::master_of(const Slot& slot, bool has_values) const {
  const MemoryScope scope(Purpose::weights);
  Memory& host = place_.staged ? device_.staging_side() : device_.host_side();
  Tensor master = Tensor::empty({int64_t(filled_)}, DType::u8, host);
  if (has_values) device_.read(master.view().data, slot.room.view().data, filled_);
  return master;
}

void BlockStream::enter(size_t block, Way way) {
  const std::optional<size_t> number = streamed_[block];
  if (number && number == current_) return;
  if (current_) leave(way);
  if (!number) return;
  if (slot_of(*number).holds != number) fetch(*number);
  settle(slot_of(*number));
  current_ = number;
}

// The slot's next block is on its way. Without a tape there is no backward, and the next pass begins with the first.
void BlockStream::leave(Way way) {
  const size_t number = *current_, step = slots_.size();
  current_.reset();
  if (way == Way::backward && number >= step)
    fetch(number - step);
  else if (way == Way::forward && number + step < count())
    fetch(number + step);
  else if (way == Way::forward && !Tape::active())
    fetch(number % step);
}

void BlockStream::fetch(size_t number) {
  Slot& slot = slot_of(number);
  if (slot.holds == number) return;
  const Tensor& master = *masters_[number];
  slot.fetch->begin(slot.room.view().data, master.view().data, size_t(master.numel()));
  slot.holds = number;
  slot.arriving = true;
}

void BlockStream::settle(Slot& slot) {
  if (slot.arriving) slot.fetch->await();
  slot.arriving = false;
}

void BlockStream::rest() {
  current_.reset();
  for (size_t i = 0; i < slots_.size(); ++i) fetch(i);
  for (Slot& slot : slots_) settle(slot);
}

Tensor with_arrival(const std::shared_ptr<BlockStream>& stream, size_t block, const Tensor& y) {
  return record(kArrival, y, {y}, [=, x = Input(y)](const Tensor& dy, Grads& grads) {
    stream->enter(block, BlockStream::Way::backward);
    grads.add(x, dy);
  });
}

}  // namespace wick
