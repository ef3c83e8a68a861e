// The caching allocator of the library that this is compiled into, for ctypes. Written in CUDA's names; torch's own hipify turns
// them into those of the release. Every function answers 0, 1 (out of memory) or 2 (refused); `words` then says why.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define START_PEERS c10::cuda::detail::init_p2p_access_cache(1);
#else
#define START_PEERS
#endif
#include <sstream>

using namespace c10::cuda;
typedef uint64_t u64;
static std::string text;

template <class F> static int guarded(F f) {
  try {
    f();
    return 0;
  } catch (const c10::OutOfMemoryError &e) {
    text = e.what();
    return 1;
  } catch (const std::exception &e) {
    text = e.what();
    return 2;
  }
}
static CUDAStream stream_of(u64 handle) {
  return handle ? getStreamFromExternal((cudaStream_t)handle, 0) : getDefaultCUDAStream(0);
}
template <class S> static std::string four(const S &s) {
  std::ostringstream o;
  o << "{\"current\":" << s.current << ",\"peak\":" << s.peak << ",\"allocated\":" << s.allocated << ",\"freed\":" << s.freed << "}";
  return o.str();
}
template <class A> static std::string pools(const A &a) {
  return "{\"all\":" + four(a[0]) + ",\"small_pool\":" + four(a[1]) + ",\"large_pool\":" + four(a[2]) + "}";
}
template <class A> static void mark_capture(A *allocator, bool on) { // releases that tell a capture from use_mem_pool
  if constexpr (requires { allocator->markCaptureBegin(0); }) on ? allocator->markCaptureBegin(0) : allocator->markCaptureEnd(0);
}
template <class S> static std::string rejections(const S &s) {
  if constexpr (requires { s.num_oom_rejections; }) return std::to_string(s.num_oom_rejections);
  else return "null";
}

extern "C" {
const char *words() { return text.c_str(); }
int start() { return guarded([] { START_PEERS CUDACachingAllocator::init(1); }); }
int allocate(u64 size, u64 stream, u64 *at) {
  return guarded([=] { *at = (u64)CUDACachingAllocator::raw_alloc_with_stream(size, (cudaStream_t)stream); });
}
int give_back(u64 at) { return guarded([=] { CUDACachingAllocator::raw_delete((void *)at); }); }
int make_tensor(u64 size, u64 stream, u64 *held, u64 *at) { // as torch.empty under torch.cuda.stream
  return guarded([=] {
    struct Current {
      CUDAStream before = getCurrentCUDAStream(0);
      ~Current() { setCurrentCUDAStream(before); }
    } current;
    setCurrentCUDAStream(stream_of(stream));
    auto *data = new c10::DataPtr(CUDACachingAllocator::get()->allocate(size));
    *held = (u64)data;
    *at = (u64)data->get();
  });
}
int drop_tensor(u64 held) { return guarded([=] { delete (c10::DataPtr *)held; }); }
int record_stream(u64 held, u64 stream) {
  return guarded([=] { CUDACachingAllocator::recordStream(*(c10::DataPtr *)held, stream_of(stream)); });
}
int begin_pool(u64 pool) {
  return guarded([=] { CUDACachingAllocator::beginAllocateToPool(0, {0, pool}, [](cudaStream_t) { return true; }); });
}
int end_pool(u64 pool) { return guarded([=] { CUDACachingAllocator::endAllocateToPool(0, {0, pool}); }); }
int release_pool(u64 pool) { return guarded([=] { CUDACachingAllocator::releasePool(0, {0, pool}); }); }
int begin_capture(u64 pool, u64 stream) { // as at::cuda::CUDAGraph, which is not part of c10
  return guarded([=] {
    CUDACachingAllocator::beginAllocateToPool(0, {0, pool}, [](cudaStream_t) { return true; });
    mark_capture(CUDACachingAllocator::get(), true);
    C10_CUDA_CHECK(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeGlobal));
  });
}
int end_capture(u64 pool, u64 stream) {
  return guarded([=] {
    cudaGraph_t graph;
    C10_CUDA_CHECK(cudaStreamEndCapture((cudaStream_t)stream, &graph));
    CUDACachingAllocator::endAllocateToPool(0, {0, pool});
    mark_capture(CUDACachingAllocator::get(), false);
  });
}
int empty_cache() { return guarded([] { CUDACachingAllocator::emptyCache(); }); }
int set_fraction(double fraction) { return guarded([=] { CUDACachingAllocator::setMemoryFraction(fraction, 0); }); }
int reset_peak() { return guarded([] { CUDACachingAllocator::resetPeakStats(0); }); }
int synchronize() { return guarded([] { device_synchronize(); }); }
int settings(const char *conf) { return guarded([=] { CUDACachingAllocator::setAllocatorSettings(conf); }); }

int statistics() { // into words: JSON as torch._C._cuda_memoryStats gives it
  return guarded([] {
    const auto s = CUDACachingAllocator::getDeviceStats(0);
    std::ostringstream o;
#define COUNT(name) "\"" #name "\":" << s.name << ","
#define POOLS(name) ",\"" #name "\":" << pools(s.name)
    o << "{" << COUNT(num_alloc_retries) COUNT(num_ooms) COUNT(num_sync_all_streams) COUNT(num_device_alloc) COUNT(num_device_free)
      << "\"num_oom_rejections\":" << rejections(s) << ",\"oversize_allocations\":" << four(s.oversize_allocations)
      << ",\"oversize_segments\":" << four(s.oversize_segments)
      << POOLS(allocation) << POOLS(segment) << POOLS(active) << POOLS(inactive_split) << POOLS(allocated_bytes)
      << POOLS(reserved_bytes) << POOLS(active_bytes) << POOLS(inactive_split_bytes) << POOLS(requested_bytes) << "}";
    text = o.str();
  });
}
int segments() { // into words: JSON as torch.cuda.memory_snapshot gives it
  return guarded([] {
    std::ostringstream o;
    const char *comma = "[";
    const auto all = CUDACachingAllocator::snapshot();
    for (const auto &s : all.segments) {
      o << comma << "{\"address\":" << (u64)s.address << ",\"total_size\":" << s.total_size << ",\"stream\":" << (u64)s.stream
        << ",\"segment_type\":\"" << (s.is_large ? "large" : "small") << "\",\"blocks\":[";
      comma = "";
      for (const auto &b : s.blocks) {
        o << comma << "{\"size\":" << b.size << ",\"requested_size\":" << b.requested_size << ",\"state\":\""
          << (b.allocated ? "active_allocated" : b.active ? "active_pending_free" : "inactive") << "\"}";
        comma = ",";
      }
      o << "]}";
      comma = ",";
    }
    text = *comma == '[' ? "[]" : o.str() + "]";
  });
}
}
