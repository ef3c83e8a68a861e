/*
 * fake_nvml.c -- a stand-in for libnvidia-ml.so.1: just enough for PyTorch's
 * expandable segments, which ask NVML whether the device sits on a fabric
 * (measured: torch 2.14.1 calls a null pointer there when NVML is missing altogether).
 * Answers: one device, no fabric, no NVLink, no processes.
 */
#define API __attribute__((visibility("default")))
enum { OK = 0, NOT_SUPPORTED = 3 };

API int nvmlInit_v2(void) { return OK; }
API int nvmlInit(void) { return OK; }
API int nvmlShutdown(void) { return OK; }
API int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return OK; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **dev) { (void)id; *dev = (void *)0x6000; return OK; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **dev) { (void)i; *dev = (void *)0x6000; return OK; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *dev, unsigned link, int *type) { (void)dev; (void)link; *type = 255; return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *dev, unsigned link, void *pci) { (void)dev; (void)link; (void)pci; return NOT_SUPPORTED; }
API int nvmlDeviceGetComputeRunningProcesses(void *dev, unsigned *n, void *v) { (void)dev; (void)v; *n = 0; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return OK; }
/* torch 2.13.0 takes only success here. State 0 (byte 28 of the record, all its versions) means: no fabric. */
API int nvmlDeviceGetGpuFabricInfoV(void *dev, char *info) { (void)dev; info[28] = 0; return OK; }
