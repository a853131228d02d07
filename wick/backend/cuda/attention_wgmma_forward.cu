// Attention's forward pass on 9.0 by wgmma. kRanged: for language models, with shared heads and ranges of keys.
#include "wick/backend/cuda/attention_ranges.cuh"
#include "wick/backend/cuda/attention_wgmma.cuh"

namespace wick {
namespace {

template <int kD>
constexpr int kKeyTile = kD == 64 ? 128 : 64;  // twice its scores fit into the registers beside the sums

struct Maps {
  CUtensorMap q, k, v;
};

template <class T>
struct Forward : AttentionForward<T> {
  RangedShape ranged;
};

// Tiles of the copy engine lie at multiples of 1024 bytes; 64 features after 64.
template <class T, int kD>
struct Shared {
  static constexpr int kOwnTiles = 2;  // the next one comes while this one is worked on
  T own[kOwnTiles][kOwn * kD];
  T keys[kStages][kKeyTile<kD> * kD], values[kStages][kKeyTile<kD> * kD];
  uint64_t own_full[kOwnTiles], own_empty[kOwnTiles], full[kStages], empty[kStages];
};

#ifdef WICK_SM90A

template <class T, int kD>
struct Rings {
  RingPlace<Shared<T, kD>::kOwnTiles> own;
  RingPlace<kStages> other;
};

struct Part {
  int head, first;
  int begin, tiles;  // of keys
};
template <int kD, bool kRanged, class T>
__device__ __forceinline__ Part part_of(const Forward<T>& a, int index) {
  const AttentionShape& s = a.shape;
  Part part{index % a.all_heads, ((s.queries + kOwn - 1) / kOwn - 1 - index / a.all_heads) * kOwn};  // longest first
  int end = s.causal ? min(s.keys, part.first + kOwn) : s.keys;
  if constexpr (kRanged) {
    part.begin = a.ranged.seen(part.head / s.heads, part.first).x;
    end = a.ranged.seen(part.head / s.heads, part.first + kOwn - 1).y;
  }
  part.tiles = (max(end - part.begin, 0) + kKeyTile<kD> - 1) / kKeyTile<kD>;
  return part;
}

template <class T, int kD, bool kRanged>
__device__ __forceinline__ void produce(Shared<T, kD>& shared, const Maps& maps, const Forward<T>& a, int index,
                                        Rings<T, kD>& rings) {
  constexpr int kN = kKeyTile<kD>;
  const Part part = part_of<kD, kRanged>(a, index);
  const int head = part.head % a.shape.heads, batch = part.head / a.shape.heads;
  const int key_head = kRanged ? head / a.ranged.shared : head;
  barrier_wait(&shared.own_empty[rings.own.place], rings.own.phase ^ 1);
  uint64_t* const own_full = &shared.own_full[rings.own.place];
  barrier_expect(own_full, int(sizeof shared.own[0]));
  load_tokens<kD, kOwn>(shared.own[rings.own.place], maps.q, own_full, part.first, head, batch);
  rings.own.advance();
  for (int tile = 0; tile < part.tiles; ++tile) {
    const int stage = rings.other.place;
    barrier_wait(&shared.empty[stage], rings.other.phase ^ 1);
    uint64_t* const full = &shared.full[stage];
    barrier_expect(full, 2 * int(sizeof shared.keys[0]));
    load_tokens<kD, kN>(shared.keys[stage], maps.k, full, part.begin + tile * kN, key_head, batch);
    load_tokens<kD, kN>(shared.values[stage], maps.v, full, part.begin + tile * kN, key_head, batch);
    rings.other.advance();
  }
}

// One block's part, 64 rows of it. While exponentials are taken the tensor cores make the next scores and end the sums
// of the tile before.
template <class T, int kD, bool kRanged>
__device__ __forceinline__ void consume(Shared<T, kD>& shared, const Forward<T>& a, int index, Rings<T, kD>& rings) {
  constexpr int kN = kKeyTile<kD>;
  const AttentionShape& s = a.shape;
  const Part part = part_of<kD, kRanged>(a, index);
  const int consumer = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) % 128 / 32, lane = int(threadIdx.x) % 32;
  const int row = part.first + consumer * 64 + warp * 16;
  T* const queries = shared.own[rings.own.place];
  const uint64_t own = wgmma_operand(queries + consumer * 64 * 64, true);
  RingPlace<kStages>& ring = rings.other;
  const auto arrived = [&] { barrier_wait(&shared.full[ring.place], ring.phase); };
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(&shared.empty[stage]);
  };
  const auto scores = [&](auto& to) {
    wgmma_fence();
    multiply_rows<T, kD>(to, own, kOwn * 128, wgmma_operand(shared.keys[ring.place], true), kN * 128);
  };

  int2 first_seen, last_seen;  // by this warp's rows
  RowLimits limits;
  int reach = s.keys;  // keys from here on are not seen by any query
  if constexpr (kRanged) {
    const int entry = part.head / s.heads;
    first_seen = a.ranged.seen(entry, row);
    last_seen = a.ranged.seen(entry, row + 15);
    limits = {{a.ranged.seen(entry, row + lane / 4), a.ranged.seen(entry, row + lane / 4 + 8)}};
    reach = a.ranged.seen(entry, s.queries - 1).y;
  }

  float sum[kD / 8][4] = {}, p[kN / 8][4], next[kN / 8][4];
  RowSum rows[2];
  barrier_wait(&shared.own_full[rings.own.place], rings.own.phase);
  if (!kRanged || part.tiles > 0) {
    arrived();
    scores(p);
    wgmma_wait<0>();
    wgmma_arrived(p);
  }
  for (int tile = 0; tile < part.tiles; ++tile) {
    const int stage = ring.place, start = part.begin + tile * kN;
    if (kRanged && start + kN > reach) clear_rows<kD, kN>(shared.values[stage], reach - start);
    ring.advance();
    if (tile + 1 < part.tiles) arrived();
    scores(next);  // of whatever lies there after the last tile: a branch around it would end the overlap
    float shrink[2];
    const Place place{row + lane / 4, start + lane % 4 * 2};
    if (kRanged && !sees_all(first_seen, last_seen, start, kN)) hide<false>(p, limits, place, -INFINITY);
    exponentials<kRanged>(p, rows, shrink, s.scale * kLog2E, s, place,
                          !kRanged && masked<false>(s, row, 16, start, kN));
    rescale(sum, shrink);
    add_product<T>(sum, p, wgmma_operand(shared.values[stage], false));
    wgmma_wait<0>();  // sums that are on their way must not cross the loop's end, or all products wait for each other
    wgmma_arrived(sum);
    wgmma_arrived(next);
    release(stage);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[j][i] = next[j][i];
  }
  named_barrier(1 + consumer, 128);  // all four warps are done with their rows of the tile, which become room to store
  float inverse[2];
  finish_rows(inverse, rows, a.lse + int64_t(part.head) * s.queries, row, s, lane);
  store_rows<T, kD>(staging_of<kD>(queries, consumer, warp), sum, inverse[0], inverse[1], a.y.at(part.head, s.heads),
                    a.y.token, row, s.queries, s.features, lane);
  fence_async();  // before the copy engine writes there again
  __syncwarp();
  if (lane == 0) barrier_arrive(&shared.own_empty[rings.own.place]);
  rings.own.advance();
}

#endif  // WICK_SM90A

template <class T, int kD, bool kRanged>
__global__ void __launch_bounds__(kThreads, 1)
    forward_by_wgmma(const __grid_constant__ Maps maps, const __grid_constant__ Forward<T> a, int parts) {
#ifdef WICK_SM90A
  extern __shared__ char memory[];
  // Aligned by a sum, so that the compiler still sees shared memory.
  auto& shared = *reinterpret_cast<Shared<T, kD>*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<T, kD>::kOwnTiles; ++i) {
      barrier_init(&shared.own_full[i], 1);
      barrier_init(&shared.own_empty[i], kWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], kWarps);
    }
    barrier_init_done();
  }
  __syncthreads();
  Rings<T, kD> rings;
  if (threadIdx.x < 128) {
    registers_shrink<40>();
    if (threadIdx.x == 0)
      for (int round = 0, part; (part = part_at(round)) < parts; ++round)
        produce<T, kD, kRanged>(shared, maps, a, part, rings);
  } else {
    registers_grow<232>();
    for (int round = 0, part; (part = part_at(round)) < parts; ++round) consume<T, kD, kRanged>(shared, a, part, rings);
  }
#endif
}

template <class T, int kD, bool kRanged>
void launch_forward(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                    View ranges) {
  const Forward<T> arguments{{y, lse, q, k, v, scale, causal}, ranged_shape(q, k, scale, causal, ranges)};
  const int parts = arguments.all_heads * ((arguments.shape.queries + kOwn - 1) / kOwn);
  launch("attention", cuda.stream(),
         {dim3(unsigned(std::min(parts, cuda.multiprocessors()))), dim3(kThreads), sizeof(Shared<T, kD>) + 1024},
         forward_by_wgmma<T, kD, kRanged>, Maps{heads_map(q), heads_map(k), heads_map(v)}, arguments, parts);
}

}  // namespace

void attention_by_wgmma(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                        View ranges) {
  const bool ranged = ranges || q.shape[2] != k.shape[2];
  const auto run = [&]<class T>(Type<T>) {
    const auto way = q.shape[3] <= 64 ? (ranged ? launch_forward<T, 64, true> : launch_forward<T, 64, false>)
                                      : (ranged ? launch_forward<T, 128, true> : launch_forward<T, 128, false>);
    way(cuda, y, lse, q, k, v, scale, causal, ranges);
  };
  q.dtype == DType::bf16 ? run(Type<bf16>()) : run(Type<f16>());
}

}  // namespace wick
