/*
 * hip.c -- HIP's names for the device that is not there (helpers/rehearse/device.c): the same device, asked by another runtime.
 *
 * A function of HIP takes and answers what its CUDA twin does, error numbers included, so its name is an alias. All
 * declarations are written by hand; no header of AMD's is used.
 */
#include "device.c"

#define SAME(hip, cuda) API __typeof__(cuda) hip __attribute__((alias(#cuda)));
SAME(hipGetDeviceCount, cudaGetDeviceCount) SAME(hipGetDevice, cudaGetDevice) SAME(hipSetDevice, cudaSetDevice)
SAME(hipGetLastError, cudaGetLastError) SAME(hipPeekAtLastError, cudaPeekAtLastError)
SAME(hipGetErrorString, cudaGetErrorString) SAME(hipGetErrorName, cudaGetErrorName)
SAME(hipDriverGetVersion, cudaDriverGetVersion) SAME(hipRuntimeGetVersion, cudaRuntimeGetVersion)
SAME(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId) SAME(hipDeviceCanAccessPeer, cudaDeviceCanAccessPeer)
SAME(hipDeviceEnablePeerAccess, cudaDeviceEnablePeerAccess)
SAME(hipDeviceGetStreamPriorityRange, cudaDeviceGetStreamPriorityRange)
SAME(hipMalloc, cudaMalloc) SAME(hipFree, cudaFree) SAME(hipMemGetInfo, cudaMemGetInfo)
SAME(hipPointerGetAttributes, cudaPointerGetAttributes)
SAME(hipMemcpy, cudaMemcpy) SAME(hipMemcpyAsync, cudaMemcpyAsync) SAME(hipMemcpyPeerAsync, cudaMemcpyPeerAsync)
SAME(hipMemset, cudaMemset) SAME(hipMemsetAsync, cudaMemsetAsync)
SAME(hipHostFree, cudaFreeHost) SAME(hipHostMalloc, cudaHostAlloc)
SAME(hipEventCreate, cudaEventCreate) SAME(hipEventCreateWithFlags, cudaEventCreateWithFlags)
SAME(hipEventDestroy, cudaEventDestroy) SAME(hipEventRecord, cudaEventRecord) SAME(hipEventQuery, cudaEventQuery)
SAME(hipEventRecordWithFlags, cudaEventRecordWithFlags) SAME(hipEventSynchronize, cudaEventSynchronize)
SAME(hipEventElapsedTime, cudaEventElapsedTime)
SAME(hipDeviceSynchronize, cudaDeviceSynchronize) SAME(hipStreamSynchronize, cudaStreamSynchronize)
SAME(hipStreamCreateWithFlags, cudaStreamCreateWithFlags) SAME(hipStreamCreateWithPriority, cudaStreamCreateWithPriority)
SAME(hipStreamDestroy, cudaStreamDestroy) SAME(hipStreamQuery, cudaStreamQuery)
SAME(hipStreamGetPriority, cudaStreamGetPriority) SAME(hipStreamWaitEvent, cudaStreamWaitEvent)
SAME(hipStreamBeginCapture, cudaStreamBeginCapture) SAME(hipStreamEndCapture, cudaStreamEndCapture)
SAME(hipStreamIsCapturing, cudaStreamIsCapturing) SAME(hipStreamGetCaptureInfo_v2, cudaStreamGetCaptureInfo_v2)
SAME(hipThreadExchangeStreamCaptureMode, cudaThreadExchangeStreamCaptureMode)
SAME(hipLaunchHostFunc, cudaLaunchHostFunc) SAME(hipStreamAddCallback, cudaStreamAddCallback)
/* reserved ranges of addresses: expandable segments, on ROCm from torch 2.12 */
SAME(hipMemAddressReserve, cuMemAddressReserve) SAME(hipMemAddressFree, cuMemAddressFree)
SAME(hipMemCreate, cuMemCreate) SAME(hipMemRelease, cuMemRelease) SAME(hipMemMap, cuMemMap) SAME(hipMemUnmap, cuMemUnmap)
SAME(hipMemGetAddressRange, cuMemGetAddressRange)
SAME(hipMemSetAccess, cuMemSetAccess) SAME(hipMemGetAllocationGranularity, cuMemGetAllocationGranularity)
SAME(hipMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle)
SAME(hipDeviceGet, cuDeviceGet) SAME(hipDrvGetErrorString, cuGetErrorString)

/* the other backend, which is linked but not run */
SAME(hipMallocAsync, cudaMallocAsync) SAME(hipFreeAsync, cudaFreeAsync)
SAME(hipDeviceGetDefaultMemPool, cudaDeviceGetDefaultMemPool) SAME(hipMemPoolTrimTo, cudaMemPoolTrimTo)
SAME(hipMemPoolGetAttribute, cudaMemPoolGetAttribute) SAME(hipMemPoolSetAttribute, cudaMemPoolSetAttribute)
SAME(hipMemPoolSetAccess, cudaMemPoolSetAccess)

API int hipStreamGetCaptureInfo(void *s, int *st, u64 *id) { return cudaStreamGetCaptureInfo(s, st, id, NULL, NULL, NULL, NULL); }
API int hipDeviceGetAttribute(int *v, int attr, int dev) { (void)attr; (void)dev; *v = 0; return OK; } /* HIP numbers them its own way */
API int hipGetDevicePropertiesR0600(void *out, int dev) { /* begins as CUDA 12's record does, and goes on to 1472 bytes */
    memset((char *)out + 1032, 0, 1472 - 1032);
    return cudaGetDeviceProperties_v2(out, dev);
}
NOT_HERE(hipIpcGetMemHandle) NOT_HERE(hipIpcOpenMemHandle) NOT_HERE(hipIpcCloseMemHandle)
NOT_HERE(hipMemExportToShareableHandle) NOT_HERE(hipMemImportFromShareableHandle) NOT_HERE(hipMemRetainAllocationHandle)
NOT_HERE(hipMallocManaged) NOT_HERE(hipMemAdvise)
NOT_HERE(hipGraphAddEmptyNode) NOT_HERE(hipGraphNodeGetType) NOT_HERE(hipGraphNodeGetDependencies)
NOT_HERE(hipStreamUpdateCaptureDependencies)
