"""What people tell of holders, leaks, ranks, access and caches, in words of many kinds, and the tables that "
"they post with it."""

from __future__ import annotations

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence

OOM = "CUDA out of memory (text not posted)"
BARE = "RuntimeError: CUDA error: out of memory"
TOLD = [
    ("external-holder", BARE, {}, "The card is also used by a colleague's notebook, which had taken most of it."),
    ("external-holder", OOM, {"nvidia-smi": "22 of 24 GB taken by another user's python (described)"},
        "The script stops at its first .cuda() call."),
    ("external-holder", OOM, {}, "A game was left running in the background while training."),
    ("external-holder", BARE, {},
        "Every attempt fails on the first tensor. Somebody had started a long job on this GPU overnight."),
    ("external-holder", BARE, {},
        "The GPU was occupied by other programs at the time; on an idle GPU the same command works."),
    ("external-holder", OOM, {}, "The miner was still running on the card while the render was started."),
    ("external-holder", BARE, {},
        "On the cluster's login node the GPU is used by everyone; on a compute node the test passes."),
    ("external-holder", "cuBLAS: CUBLAS_STATUS_NOT_INITIALIZED", {},
        "Another training occupied the GPU nearly completely."),
    ("external-holder", OOM, {"gpustat": "GPU 0 full, GPUs 1 to 3 free (described)"},
        "The script uses the default device, which is taken by others."),
    ("external-holder", BARE, {}, "Somebody's job was on the GPU, switching to an unused GPU helped."),
    ("stale-holder", "", {"nvidia-smi": "memory in use, no process (described)"},
        "Training was stopped with ctrl-C; its data loader workers are still running and have to be killed by hand."),
    ("stale-holder", "", {},
        "After the notebook tab is closed its kernel lives on and the card stays full until the kernel is shut down."),
    ("stale-holder", "", {},
        "When the API server is terminated, the engine's child process survives it, reparented to init, with "
        "all of the weights on the card."),
    ("stale-holder", "", {"nvidia-smi": "18 GB used, No running processes found"},
        "fuser -v /dev/nvidia* lists four python processes of the aborted run; killing them frees the card."),
    ("stale-holder", "", {},
        "Old runners from before the restart of the service are still alive and each holds a copy of the model."),
    ("stale-holder", OOM, {},
        "The last job timed out in the scheduler, but its processes were never cleaned up on the node."),
    ("stale-holder", "", {},
        "A parallel run was aborted and four of eight processes did not stop; their cards remain occupied."),
    ("stale-holder", "", {"nvidia-smi": "no process, 9 GB used (described)"},
        "After a kill -9 of the launcher the spawned workers remain, found with fuser."),
    ("stale-holder", "", {}, "When the pod is deleted its process is stuck in the driver and the GPU stays allocated."),
    ("stale-holder", OOM, {},
        "Hot reload of the web server starts a new worker without ending the first, and both hold the model."),
    ("driver-leak", "", {},
        "VRAM in use goes up by 300 MB with every suspend and resume and is only cleared by a reboot."),
    ("driver-leak", "", {},
        "The slab caches grow by gigabytes per day while the display driver is in use; no process accounts for it."),
    ("driver-leak", "", {},
        "System memory shrinks with each GPU job and no process owns it; a reboot restores it. With an older "
        "kernel the problem is absent."),
    ("driver-leak", "", {},
        "After the crash of the process the memory is shown as used for ever; fuser and lsof as root find "
        "nobody. Only a power cycle helps."),
    ("driver-leak", "", {}, "Each failed job leaves about 1 GiB of VRAM that no process owns."),
    ("driver-leak", "", {"free": "available falls, slab unreclaimable grows (described)"},
        "A box that does nothing but play video."),
    ("driver-leak", "", {}, "After 20 starts and stops of the same program 6 GB are missing though nothing runs."),
    ("driver-leak", "", {},
        "Opening and closing a terminal window makes the video memory of the compositor increase permanently."),
    ("user-leak", OOM, {}, "Epoch one passes, epoch two is out of memory, at an unchanged batch size."),
    ("user-leak", OOM, {}, "In the inference loop the forward pass is not wrapped in torch.no_grad()."),
    ("user-leak", OOM, {},
        "Processing the first hundred images goes well, then memory is exhausted; each image adds a little."),
    ("user-leak", OOM, {}, "The hidden state is carried from batch to batch without being detached."),
    ("user-leak", OOM, {}, "GPU memory grows linearly with the number of steps."),
    ("user-leak", OOM, {}, "Calling backward with retain_graph=True in each iteration."),
    ("user-leak", OOM, {},
        "A cache of compiled functions with no upper bound keeps device buffers for each new shape."),
    ("user-leak", OOM, {}, "Every prompt takes some more VRAM that is not given back until the UI is restarted."),
    ("user-leak", OOM, {}, "The evaluation runs with gradients enabled."),
    ("user-leak", OOM, {}, "A running average of the loss is computed without .item()."),
    ("multi-gpu-imbalance", OOM, {}, "With DataParallel the first card runs out while the others are half empty."),
    ("multi-gpu-imbalance", OOM, {},
        "torch.cuda.set_device is never called, so that each rank opens a context on device 0."),
    ("multi-gpu-imbalance", "", {"nvidia-smi": "eight python processes on GPU 0 (described)"},
        "A launch on eight cards."),
    ("multi-gpu-imbalance", OOM, {},
        "The layers are not spread evenly: the output head and the embeddings are both on the last GPU, which fills up first."),
    ("multi-gpu-imbalance", "", {}, "Rank 0 uses 8 GB more than its siblings, because gathering happens there."),
    ("multi-gpu-imbalance", OOM, {},
        "Two cards are in the machine but only one is used and it runs full; the second sits idle."),
    ("multi-gpu-imbalance", OOM, {}, "Only GPU 0 overflows; the seven others have room."),
    ("multi-gpu-imbalance", "", {"nvidia-smi": "each of four ranks appears on card 0 as well (described)"},
        "Distributed training."),
    ("multi-gpu-imbalance", OOM, {}, "In DataParallel mode the outputs are gathered on one device."),
    ("multi-gpu-imbalance", OOM, {}, "The validation runs on rank 0 only and needs everything there."),
    ("permission", "", {}, "The GPU is detected with sudo only."),
    ("permission", "No HIP GPUs are available", {}, "Inside the container /dev/kfd belongs to an unknown group id."),
    ("permission", "", {"ls": "/dev/kfd crw------- root root (described)"}, "No GPU is found by ROCm."),
    ("permission", "", {}, "SELinux blocks access of the container to the device; with label=disable it works."),
    ("permission", "", {}, "A fresh login was needed after usermod -aG render."),
    ("permission", "", {}, "rocm-smi works, but rocminfo as an ordinary user cannot open the KFD device."),
    ("permission", "", {}, "The group id of render differs between the host and the container."),
    ("permission", "", {}, "The user had to be added to the video group."),
    ("permission", "", {}, "HIP sees no device unless the program is started with sudo."),
    ("allocator-cache-not-returned", OOM, {},
        "PyTorch keeps freed blocks in its cache, so that CuPy in the same program finds nothing left."),
    ("allocator-cache-not-returned", OOM, {}, "Calling torch.cuda.empty_cache() between the two phases makes it work."),
    ("allocator-cache-not-returned", "", {"nvidia-smi": "23 of 24 GB in use right after import (described)"},
        "JAX takes three quarters of the card at first use, another process then fails."),
    ("allocator-cache-not-returned", OOM, {}, "allow_growth is not set, so the first session maps the entire card."),
    ("allocator-cache-not-returned", OOM, {}, "XLA_PYTHON_CLIENT_PREALLOCATE=false cures it."),
    ("allocator-cache-not-returned", "", {"nvidia-smi": "all four cards full (described)"},
        "A Keras program that trains a tiny network."),
    ("allocator-cache-not-returned", OOM, {}, "With set_memory_growth the program leaves room for the other."),
    ("allocator-cache-not-returned", "ncclSystemError", {},
        "Reducing the memory fraction of torch leaves space for NCCL's buffers and helps."),
    ("allocator-fragmentation", OOM, {}, "Setting max_split_size_mb makes the error go away."),
    ("allocator-fragmentation", OOM, {}, "The free space is scattered in small pieces, none as large as the tensor."),
    ("allocator-fragmentation", OOM, {}, "inactive_split_bytes is several gigabytes when the error comes."),
    ("allocator-fragmentation", OOM, {}, "8 GB are reserved and unused, and a request of 2 GB fails."),
    ("allocator-fragmentation", OOM, {}, "The error is gone with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."),
    ("allocator-fragmentation", OOM, {}, "garbage_collection_threshold:0.6 made it run."),
    ("allocator-fragmentation", OOM, {},
        "Memory is cut into many small blocks after the model has been sharded and loaded layer by layer."),
    ("external-holder", BARE, {},
        "A batch job of another department had been placed on the same GPU by the scheduler."),
    ("external-holder", OOM, {"nvidia-smi": "process of user anna with 15 GB (described)"},
        "The text model does not load."),
    ("external-holder", OOM, {},
        "Shutting down the vision model that was loaded in LM Studio left enough for this one."),
    ("external-holder", "", {"server log": "requires 20 GB, 6 GB available at startup (described)"},
        "A container of someone else runs on that GPU."),
    ("external-holder", OOM, {}, "On a shared workstation; at night it runs, by day it does not."),
    ("stale-holder", OOM, {},
        "The crash of the first attempt left its memory occupied, a second start cannot load the model."),
    ("stale-holder", "", {},
        "Closing the UI window leaves the backend server alive in the background with the model in VRAM."),
    ("stale-holder", "", {},
        "Multiprocessing children survive when the parent is killed, and one of them has a CUDA context."),
    ("stale-holder", OOM, {}, "A debugger session that was never ended still occupies the GPU."),
    ("stale-holder", "", {},
        "The GPU shows 100 % use and 12 GB although the training was stopped an hour ago; ps finds workers."),
    ("stale-holder", "", {},
        "On timeout the test harness abandons the subprocess, which goes on running and blocks the memory for "
        "later tests."),
    ("stale-holder", "", {}, "Stopping the service sends SIGTERM to the parent only; the engine stays."),
    ("driver-leak", "", {},
        "Running the sample a hundred times, the free memory reported at its start gets smaller every time."),
    ("driver-leak", "", {}, "The machine's RAM is eaten by the kernel while a 3D program runs; user space is small."),
    ("driver-leak", "", {}, "A driver update introduced a leak: every mode switch of the display costs 30 MB."),
    ("user-leak", OOM, {}, "VRAM rises from 6 to 22 GB over an hour of chatting with the bot."),
    ("user-leak", OOM, {}, "The training loop adds the loss of each step to a total that is kept."),
    ("user-leak", OOM, {}, "Out of memory in the validation loop, no problem in the training loop."),
    ("user-leak", OOM, {}, "It works for one video but not for a folder of them."),
    ("user-leak", OOM, {}, "Each fold's model remains in memory, the fifth one does not fit."),
    ("user-leak", OOM, {}, "An LSTM whose state is fed back and whose graph becomes longer with each step."),
    ("user-leak", OOM, {}, "The metric object stores all predictions of the epoch on the device."),
    ("user-leak", OOM, {}, "The generator keeps the history of every conversation on the GPU and never trims it."),
    ("multi-gpu-imbalance", OOM, {}, "Rank 0 has 4 GB more in use than ranks 1 to 3 and fails first."),
    ("multi-gpu-imbalance", OOM, {}, "The first GPU fills while the other three are at half."),
    ("multi-gpu-imbalance", "", {"nvidia-smi": "card 0: 4 processes, cards 1-3: 1 process each (described)"},
        "A launch with torchrun."),
    ("multi-gpu-imbalance", OOM, {}, "All eight workers load the weights to GPU 0 first and move them afterwards."),
    ("multi-gpu-imbalance", OOM, {}, "Only one of two GPUs is used, and it overflows."),
    ("multi-gpu-imbalance", OOM, {}, "With nn.DataParallel memory is distributed unevenly."),
    ("permission", "", {},
        "Plex in a container cannot use /dev/dri since the id of the render group is another one there."),
    ("permission", "", {}, "As root the GPU is listed, as the login user there is none."),
    ("permission", "", {}, "The library reports no agents, since the account lacks the groups video and render."),
    ("permission", "", {}, "The CI user may not open /dev/kfd."),
    ("permission", "", {}, "Access rights of the device were lost after a reboot; chmod 666 helps."),
    ("allocator-cache-not-returned", OOM, {},
        "Torch frees its tensors, yet OpenCL in the same process cannot allocate, since the blocks stay in "
        "torch's pool."),
    ("allocator-cache-not-returned", OOM, {}, "A Keras model is built first and afterwards the PyTorch one fails."),
    ("allocator-cache-not-returned", "", {}, "JAX takes 75 % of the memory of the GPU at the start by design."),
    ("allocator-fragmentation", OOM, {},
        "The allocator cannot find a block that is large enough, although 6 GiB are cached."),
    ("allocator-fragmentation", OOM, {},
        "Audio clips of 1 to 30 s; after some hundred steps it fails, with clips of one length it never does."),
    ("allocator-fragmentation", OOM, {}, "Reserved exceeds allocated by 10 GB at the time of the error."),
    ("allocator-fragmentation", OOM, {}, "PYTORCH_NO_CUDA_MEMORY_CACHING=1 or expandable segments make it pass."),
]  # fmt: skip
OTHERS = [
    (OOM, {}, "The model's weights alone need 30 GB and the card has 24."),
    (OOM, {}, "At 1024x1024 it fails, at 512x512 it works on the same card."),
    (OOM, {}, "Full fine-tuning of a 13B model on one 40 GB GPU; with LoRA it fits."),
    (OOM, {}, "With a context of 128k tokens the KV cache does not fit beside the weights."),
    (OOM, {}, "The second stage of the pipeline uses a larger resolution and runs out of memory."),
    (OOM, {}, "Eight GPUs with 24 GB each, DeepSpeed ZeRO-2, a 30B model; optimizer states are too large."),
    (OOM, {}, "Batch size 32 fails in the first step, 8 works."),
    (OOM, {}, "Gradient checkpointing and a smaller batch made it run."),
    (OOM, {}, "The whole video is decoded and sent through the network at once; long clips fail."),
    (OOM, {}, "Loading the model in fp32 instead of fp16 runs out of memory on a 16 GB card."),
    (OOM, {}, "Training with images of different sizes; the largest ones need more than the card has."),
    ("Killed", {}, "System memory runs full while the checkpoint is loaded; the kernel kills the process."),
    ("", {}, "RAM grows with every epoch because the data loader's workers copy the list, until the pod is evicted."),
    ("Killed", {}, "The container's limit is 16 GB, and eight workers exceed it."),
    ("DataLoader worker (pid 4021) is killed by signal: Bus error", {}, "The default /dev/shm of docker is too small."),
    ("", {}, "Converting the weights fills all RAM and swap, the desktop freezes."),
    ("", {}, "Host memory climbs during training though the GPU's use stays constant; it ends with the OOM killer."),
    ("cannot allocate memory", {}, "Pinned buffers hit the locked-memory ulimit."),
    ("", {"rocm-smi": "VRAM used above the total (described)"}, "The tool prints more than the card has."),
    ("", {"nvtop": "0 MiB used while a model answers (described)"}, "Only the tool is wrong, the program runs well."),
    ("", {"task manager": "shared GPU memory counts RAM (described)"}, "The monitor adds two pools."),
    ("", {}, "The exporter gives the same memory for all GPUs, while rocm-smi gives different ones."),
    ("", {}, "free memory reported by hipMemGetInfo does not change after an allocation."),
    ("", {"nvidia-smi": "N/A in the memory column (described)"}, "On the integrated GPU no memory is printed."),
    ("", {}, "The process list of the tool shows the memory of each process twice."),
    ("", {}, "The scheduler thinks that the GPU has 4 GB free, since it reads the wrong card."),
    ("", {}, "Since driver 555 the kernel launch fails with invalid device function; 550 is fine."),
    (OOM, {}, "After upgrading torch from 2.1 to 2.2 the same script runs out of memory; going back cures it."),
    ("undefined symbol", {}, "The extension was compiled against another torch."),
    ("", {}, "An out-of-memory error came with transformers 4.40 and is gone in 4.41."),
    ("", {}, "The wheel needs CUDA 12.8 and the driver only supports 12.2."),
    ("", {}, "Memory use doubled with the new release of the library."),
    ("CUDA error: device-side assert triggered", {},
        "A label is out of range; every later call fails until the kernel is restarted."),
    ("illegal memory access", {}, "After the first fault all processes on the GPU die until the driver resets it."),
    ("HIP error: unspecified launch failure", {}, "The GPU hangs in the middle of sampling and the desktop restarts."),
    ("", {"dmesg": "amdgpu: GPU reset begin (described)"}, "A ring timeout ends the game and the desktop."),
    ("", {}, "A page fault is logged, afterwards each allocation reports out of memory."),
    (OOM, {}, "The variable is exported in the wrong shell; the service does not see it."),
    (OOM, {}, "CUDA_VISIBLE_DEVICES is set after torch has been imported, so that the job uses GPU 0."),
    ("", {}, "The flag --lowvram has no effect with this sampler."),
    ("", {}, "OLLAMA_NUM_PARALLEL in the user's .bashrc is ignored by the systemd service."),
    (OOM, {}, "PYTORCH_HIP_ALLOC_CONF is spelled wrongly and nothing changes."),
    ("", {}, "gpu_memory_utilization=0.5 is given, yet the server takes 90 percent."),
    ("", {}, "The APU offers only the dedicated 4 GB to ROCm although 64 GB of RAM are installed."),
    (OOM, {}, "hipMalloc fails above the UMA frame buffer of 2 GB."),
    ("", {}, "The BIOS setting of 512 MB is all that the backend detects."),
    ("", {}, "Allocations end at 31 GB of 64, the GTT default; raising pages_limit helps."),
    ("", {}, "With ttm.pages_limit doubled the larger model loads."),
    ("", {}, "The driver shows 96 GB and the HSA runtime offers 62."),
    ("", {}, "rocminfo's pool is half of the memory, although the kernel's limit was raised."),
    ("", {}, "gfx1103 is not in the list of targets, so the library falls back to the CPU."),
    ("HIP error: invalid device function", {}, "With HSA_OVERRIDE_GFX_VERSION it starts and then crashes."),
    ("", {}, "The old card's compute capability is no longer supported by the wheel."),
    ("", {}, "With expandable_segments:True CUDA IPC between the processes fails."),
    ("", {}, "The warning says that expandable segments are not supported on this platform."),
    ("", {}, "Checkpoint loading hangs only if expandable segments are on."),
    ("CUDNN_STATUS_ALLOC_FAILED", {}, "cuDNN's benchmark mode asks for a workspace of 6 GB for one convolution."),
    ("MIOpen Error", {}, "The find step of MIOpen wants more scratch than there is; a smaller tile works."),
    ("CUBLAS_STATUS_ALLOC_FAILED", {}, "The handle is created when the card is nearly full."),
    ("", {}, "The disk is full and the download of the model ends."),
    ("", {}, "A bug in the tokenizer makes an infinite loop."),
    ("", {}, "The web page shows a blank picture although the process runs."),
    ("", {}, "How can I see how much memory my model uses?"),
    ("", {}, "Feature request: please free the model after some minutes without a request."),
    (OOM, {}, "It does not work on my machine."),
    (OOM, {}, "It works on a friend's computer with the same card."),
    (OOM, {}, "I tried a smaller batch and got the same error."),
    (OOM, {}, "Any help is welcome."),
    (OOM, {}, "The script was running well yesterday."),
    (OOM, {}, "I am training on Colab."),
    (OOM, {}, "I have two GPUs and use the first one."),
    (OOM, {}, "I run it in docker with --gpus all and --ipc=host."),
    (BARE, {}, "The demo stops with this message after the model has been loaded."),
    ("", {}, "I restarted the computer, and it still fails."),
    (OOM, {}, "I have read the FAQ about fragmentation, which did not help."),
    (OOM, {}, "I closed everything else and still get the error."),
    (OOM, {}, "My user is in the render and video groups."),
    (OOM, {}, "nvidia-smi shows nothing else running, and the error stays."),
    (OOM, {}, "torch.cuda.empty_cache() did not change anything."),
    (OOM, {}, "It is a server with eight GPUs and DDP."),
    (OOM, {}, "The card is an 8 GB one and the desktop edition of the model needs ten."),
    (OOM, {}, "Increasing the number of parallel requests from 4 to 16 makes the KV cache overflow."),
    (OOM, {}, "It fails in the second stage, the upscaler, where the picture is four times larger."),
    (OOM, {}, "DDP on four GPUs; each rank holds the whole model and its optimizer, which is more than 16 GB."),
    (OOM, {}, "A 3D volume of 512 cubed in one piece."),
    (OOM, {}, "The same model works with a batch of one."),
    (OOM, {}, "The evaluation uses the full image instead of crops and is too large."),
    (OOM, {}, "Flash attention is off, so the attention matrix of a long prompt does not fit."),
    (OOM, {}, "Loading two LoRAs and a ControlNet next to SDXL is too much for 12 GB."),
    (OOM, {}, "After adding a new head to the network it no longer fits."),
    ("", {}, "The process is killed by the kernel after the tokenizer has filled 64 GB."),
    ("Killed", {}, "Eight ranks each load the whole checkpoint into RAM."),
    ("", {}, "The RSS of the main process increases by 200 MB per epoch while VRAM is stable."),
    ("", {}, "Caching the data set in memory uses all of the RAM and the machine swaps."),
    ("std::bad_alloc", {}, "Quantising a 70B model on a 32 GB machine."),
    ("", {}, "The Slurm job is ended for its memory limit, the GPU is nearly unused."),
    ("", {"nvidia-smi": "process list empty in the container (described)"},
        "The total is right, the processes are not shown."),
    ("", {"rocm-smi": "VRAM% 99 with nothing running (described)"}, "A restart of the tool gives 1 %."),
    ("", {"psutil": "RSS 40 GB, shared pages counted for each process (described)"}, "The sum is above the RAM."),
    ("", {}, "The dashboard shows the GPU memory of the first card for every card."),
    ("", {}, "btop prints a total of 0 for the second GPU."),
    ("", {}, "The number in the log is in MB, the one in the tool in MiB."),
    ("", {}, "torch's memory_allocated does not count what NCCL takes."),
    ("", {}, "The program's estimate of free memory ignores other allocations of its own."),
    ("", {}, "It began with driver 560; going back to 555 cures it."),
    ("", {}, "The container's CUDA is newer than the host's driver."),
    (OOM, {}, "After an update of diffusers the same pipeline needs 4 GB more."),
    ("", {}, "Kernel 6.11 broke ROCm, with 6.8 it works."),
    ("symbol lookup error", {}, "Two versions of the runtime are installed."),
    ("", {}, "The first kernel writes out of bounds, and everything after that fails until the process is ended."),
    ("", {"dmesg": "Xid 79, GPU has fallen off the bus (described)"}, "Only a reboot brings the card back."),
    ("", {}, "The game hangs, the driver resets the GPU and the compositor is restarted."),
    ("an illegal memory access was encountered", {}, "It occurs after some hundred iterations at random."),
    ("", {}, "MES fails to respond, then the ring times out."),
    ("", {}, "The option is written in the config file but the launcher overwrites it."),
    (OOM, {}, "CUDA_VISIBLE_DEVICES=1 is ignored and the job goes to GPU 0."),
    ("", {}, "amdgpu.gttsize has no effect on this kernel."),
    ("", {}, "Environment variables of the shell are not passed to the container."),
    ("", {}, "keep_alive is set to 0 and the model is still kept for five minutes."),
    ("", {}, "Of 128 GB only the 8 GB set in the BIOS are used by the backend."),
    ("", {}, "The pool ends at half of the memory until pages_limit is given."),
    ("", {}, "ROCm offers 15.5 GB where Vulkan offers 46."),
    ("", {}, "The integrated GPU is found but its gfx version has no kernels."),
    ("", {}, "rocBLAS has no Tensile library for this card."),
    ("", {}, "With expandable segments NCCL registration fails."),
    ("", {}, "Windows builds ignore expandable_segments with a warning."),
    ("", {}, "cuDNN picks an algorithm with a workspace of several gigabytes in the first convolution."),
    (OOM, {}, "Turning cudnn.benchmark off makes the out-of-memory error disappear."),
    ("", {}, "The program deadlocks when two workers open the same file."),
    ("", {}, "A question about how to unload a model."),
    ("", {}, "Please add a button that clears the queue."),
    ("", {}, "The result is black, there is no error."),
    (OOM, {}, "Help please."),
    (OOM, {}, "I have an RTX 3060 and 32 GB of RAM."),
    (OOM, {}, "It happened once and never again."),
    (OOM, {}, "I use the default settings of the notebook."),
    (OOM, {}, "On another machine with the same card it works."),
    (OOM, {}, "I reinstalled everything in a new environment."),
    (OOM, {}, "The author says that 8 GB are enough."),
    (BARE, {}, "It fails directly after the start of the program."),
    (OOM, {}, "My colleague has no such problem."),
    (OOM, {}, "The process is started by systemd in a container as the user node."),
    (OOM, {}, "I run two models one after the other."),
]  # fmt: skip
RETOLD = [
    ("external-holder",
        "My training dies at the first cuda call. htop shows that labmate started a hyperparam search an hour"
        " ago and he uses all cards."),
    ("external-holder",
        "A Kubernetes node has time-slicing on; four pods got the same physical GPU and the last one to come "
        "up is refused its memory."),
    ("external-holder",
        "The Frigate detector and the LLM share one RTX 3060. At night, when the detector is idle, there is "
        "no trouble with the LLM."),
    ("external-holder",
        "Before anything is launched nvidia-smi shows 3.1 GB used by Xorg, gnome-shell, Teams and Firefox on "
        "a 4 GB card."),
    ("external-holder",
        "Folding@home was running on that machine, I completely forgot. Paused it and my fine tune went "
        "through."),
    ("external-holder",
        "The text generation UI and the image UI are both set to autostart. If I disable one of them, the "
        "other has no problem."),
    ("external-holder",
        "CI runner: two pipelines are executed at the same time on the one GPU of the runner, with "
        "concurrency 1 the tests are green."),
    ("stale-holder",
        "Interrupting the multiprocess launcher with Ctrl-C leaves spawned children; `ps aux | grep train` "
        "lists five of them still."),
    ("stale-holder",
        "An old gunicorn worker with the loaded model is not terminated at redeploy, two generations of "
        "workers coexist and the card overflows."),
    ("stale-holder",
        "A crashed X session left a process 'krunner' which still has /dev/dri/card0 opened with 2 GB."),
    ("stale-holder",
        "Ray actors of the previous trial are alive though the trial ended, and hence the next trial gets no "
        "room."),
    ("stale-holder",
        "PyCharm debugger was stopped with the red button, its python stays in the background with 7 GiB on "
        "the card."),
    ("stale-holder",
        "On Windows a hidden python.exe of the earlier launch occupies VRAM, it is visible only in Details "
        "tab; after ending it all is normal."),
    ("stale-holder",
        "The Triton server did not unload the previous version of the model after the failed reload. Its stub"
        " processes hang around in nvidia-smi."),
    ("driver-leak",
        "The hypervisor guest was shut off, yet the vGPU host still counts its frame buffer as used until the"
        " host is power cycled."),
    ("driver-leak",
        "A compositor's memory on the card climbs as windows are opened and closed; dmabuf handles are not "
        "released by the proprietary driver. A newer driver release notes the fix."),
    ("driver-leak",
        "VRAM occupancy at idle is 300 MB after boot and 4 GB after a week of uptime, nothing but the "
        "desktop; logging out does not bring it back, a restart does."),
    ("driver-leak",
        "GTT usage of amdgpu rises each time the display goes to sleep and wakes, roughly 50 MB per cycle, "
        "with kernel 6.12; kernel 6.11 was fine."),
    ("driver-leak",
        "On the passthrough host the memory of the guest remains accounted after VM destroy, and next VM "
        "start says no memory; only host reboot."),
    ("driver-leak",
        "The Vulkan driver leaks about 1 MB each time a swapchain is recreated, shown with a 40 lines test "
        "program; fixed in Mesa 24.2."),
    ("driver-leak",
        "A stress test opens a context and closes it in a loop. After 3000 rounds cudaMalloc fails, with free"
        " memory having fallen by 2 MB per round, although no process remains."),
    ("user-leak",
        "Retain_graph=True in a loop over time steps, memory is doubling and finally OOM at iteration 35."),
    ("user-leak",
        "The metric object stores the outputs with their grad history, each step 50MB more, until the error "
        "in step 420."),
    ("user-leak",
        "My discord bot's memory on the card increases a bit with each picture it makes and after some 60 "
        "pictures it falls over."),
    ("user-leak",
        "GAN training: generator loss was added to a running total for the tensorboard, without item(), and "
        "the card was full at epoch 3."),
    ("user-leak",
        "In RL the replay buffer is stored as cuda tensors and grows until nothing is left at 200k steps."),
    ("user-leak",
        "After every checkpoint save the memory is 1.2 GB higher because the state dict copy stays on GPU in "
        "a list of best models."),
    ("user-leak",
        "Backward hook with closures makes a reference cycle; freed only by gc, memory zigzags upward and "
        "dies after 2 k iterations."),
    ("multi-gpu-imbalance",
        "Rank zero also runs the reward model and the evaluation, thus it OOMs while ranks one to seven sit "
        "at half."),
    ("multi-gpu-imbalance",
        "SLURM gave each task all GPUs, and every task picked cuda:0."),
    ("multi-gpu-imbalance",
        "24 GB + 12 GB cards, layers split fifty-fifty, the small card overflows."),
    ("multi-gpu-imbalance",
        "FSDP full state dict is gathered at rank 0 on save and this rank fails; with offload to cpu it "
        "passes."),
    ("multi-gpu-imbalance",
        "The vocabulary projection of 256k tokens lives on the last GPU only, which has run out, the first "
        "ones are at 55%."),
    ("multi-gpu-imbalance",
        "ollama loads the whole model to GPU 1 although GPU 0 has more free; ends with OOM."),
    ("multi-gpu-imbalance",
        "Without local_rank being given to init, NCCL says duplicate GPU and the memory is used twice on the "
        "same board."),
    ("permission",
        "The pod has no /dev/dri mapped, only root can access the renderD128 on host, mode 0660."),
    ("permission",
        "Jellyfin in unprivileged LXC: hardware acceleration fails, renderD128 belongs to gid 104 and inside "
        "it is group 'ssl-cert'."),
    ("permission",
        "rocm-smi works, but as my user python sees no device; `id` shows no render group."),
    ("permission",
        "Kubernetes device plugin missing so pod has no /dev/kfd; privileged mode helps."),
    ("permission",
        "Flatpak sandbox: the app can not open /dev/dri, with --device=all it can."),
    ("permission",
        "Snap package of ollama finds only the CPU, connecting the hardware-observe and opengl interfaces "
        "made it work."),
    ("permission",
        "HPC: cgroup device controller forbids the second GPU, open() returns EPERM."),
    ("allocator-cache-not-returned",
        "vLLM in sleep mode hands back its weights, but reserved stays and the trainer in the same RLHF job "
        "OOMs at its update step."),
    ("allocator-cache-not-returned",
        "Whisper and a TTS model alternate in one process; after the first the caching allocator retains "
        "nearly the full card and CTranslate2 cannot allocate."),
    ("allocator-cache-not-returned",
        "TF process takes 23.5 of 24 GB at start though model is 200 MB; a second TF process says no memory. "
        "allow_growth resolved."),
    ("allocator-cache-not-returned",
        "After training ends in the notebook, `torch.cuda.memory_reserved()` 20 GB, `memory_allocated()` 0.1 "
        "GB, llama.cpp in the same python cannot load."),
    ("allocator-cache-not-returned",
        "cudf's rmm pool was made with 90 % of the device, so xgboost fails."),
    ("allocator-cache-not-returned",
        "ONNX runtime arena extends by powers of two and never shrinks, leaving the other session without "
        "memory; kSameAsRequested and arena shrinkage helped."),
    ("allocator-cache-not-returned",
        "Julia: GC'd arrays stay in CUDA.jl's pool; CUDA.reclaim() before calling the C library made it pass."),
    ("allocator-fragmentation",
        "Memory is 24 GB, it says 14 GB allocated, 9 reserved but unallocated and it cannot allocate 2 GB. "
        "max_split_size_mb:256 makes it run through."),
    ("allocator-fragmentation",
        "With sequences of very different lengths the job fails after hours though sum of live tensors is "
        "constant; padding all to the same length keeps it stable."),
    ("allocator-fragmentation",
        "There is enough free memory in total but no contiguous piece; expandable segments made the error go "
        "away."),
    ("allocator-fragmentation",
        "Buckets of variable image sizes make the reserved number grow to the limit while allocated stays at "
        "8 GB."),
    ("allocator-fragmentation",
        "Long fine-tuning run ends at step 18,342 with a failure to get 3 GiB, while 5 GiB lies reserved and "
        "unused. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True has not failed since."),
    ("allocator-fragmentation",
        "Each new resolution in the diffusion UI raises reserved memory, the used part returns to 7 GB each "
        "time; finally out of memory."),
    ("library-workspace",
        "cusolver's batched SVD asks a scratch buffer of 11 GB for a small matrix; with the magma backend it "
        "works."),
    ("library-workspace",
        "cuDNN could not create its handle: CUDNN_STATUS_NOT_INITIALIZED, since the framework had grabbed all"
        " the memory before."),
    ("library-workspace",
        "faiss GPU index reserves 1.5 GB temp memory at init, StandardGpuResources; with setTempMemory(0) ok."),
    ("library-workspace",
        "hipBLASLt wants a workspace of 128MB per stream and handle, with 32 streams nothing left for the "
        "model."),
    ("library-workspace",
        "The cuFFT plan creation fails with CUFFT_ALLOC_FAILED at 4096^3 sizes, the plan's work area is as "
        "large as data."),
    ("library-workspace",
        'At TensorRT engine build: "Could not find any implementation for node", the tactic needs more '
        "workspace than allowed; enlarging the workspace limit lets it build."),
    ("library-workspace",
        "MIOpen searching for convolution solutions on first run needs 9 GB of temp for VAE decode; set "
        "MIOPEN_FIND_MODE=FAST and it stays under 2 GB."),
    ("context-corruption",
        "After the laptop wakes from sleep the CUDA runtime says unknown error until nvidia_uvm is reloaded."),
    ("context-corruption",
        "HW Exception by GPU node-1 reason: GPU Hang, and the next allocation gets hipErrorOutOfMemory."),
    ("context-corruption",
        "A triggered assert in a loss with labels of -1 makes the next memory call fail; running on CPU shows"
        " IndexError."),
    ("context-corruption",
        "Firmware hang (MES failed to respond) then the compute queue is evicted and every hipMalloc fails "
        "till reboot."),
    ("context-corruption",
        "After the OOM exception vLLM engine is dead, any further call returns CUDA error: an illegal memory "
        "access was encountered."),
    ("context-corruption",
        "TDR: the display driver stopped responding and has recovered; Blender says then CUDA error: out of "
        "memory / launch failed."),
    ("context-corruption",
        "eGPU cable wobble, GPU lost from the bus, program reports allocation failed."),
    ("external-holder",
        "The render farm's node shares its A6000 with an interactive workstation session; artists with Maya "
        "open make the night's frames fail."),
    ("external-holder",
        "Someone from the neighbouring group launched his job with the same device index, mine was refused a "
        "few MB right at the beginning."),
    ("external-holder",
        "My OBS recording with NVENC and the webcam filter take 2 GB of the 6, quitting OBS makes the "
        "upscaler work."),
    ("external-holder",
        "Kohya stops with not enough VRAM when the A1111 window is left open on the same PC."),
    ("external-holder",
        "Our tests fail on the shared CI GPU only in the afternoon, when the other team's nightly benchmark "
        "still occupies it."),
    ("stale-holder",
        "I pressed the stop button in the web UI, the generation thread lives on and the next start says CUDA"
        " out of memory."),
    ("stale-holder",
        "The supervisor restarted our worker; the former one hung in exit and was still listed with 11 GB."),
    ("stale-holder",
        "VS Code lost its ssh connection, the python it had started went on running on the server and had the"
        " whole card."),
    ("stale-holder",
        "Accelerate launch was killed by the scheduler; orphaned python processes with ppid 1 had to be "
        "cleaned up with pkill."),
    ("stale-holder",
        "A screen session from last week was still holding the model, I had forgotten it."),
    ("driver-leak",
        "Every sleep-wake cycle of the laptop costs 120 MB of VRAM, no app owns it, until reboot."),
    ("driver-leak",
        "nvidia-smi reports 9 GB used on a machine with no X and no process; persistence mode off and module "
        "reload solved it."),
    ("driver-leak",
        "Amdgpu 6.14 does not give GTT pages back after a process has died, 6.13 did."),
    ("driver-leak",
        "Opening and closing a video in the browser 20 times leaves 2 GB in use by nobody, logged as a bug of"
        " the driver."),
    ("driver-leak",
        "After the VM with passthrough is stopped the vfio card still shows 5 GB used. Only power cycling the"
        " host clears this."),
    ("user-leak",
        "Memory in the simulator rises with every episode since observations are appended to a list of CUDA "
        "tensors."),
    ("user-leak",
        "Our chat server never evicts the sessions' caches, VRAM is exhausted after about 300 users."),
    ("user-leak",
        "After every prompt the diffusion UI needs 150 MB more, by the 40th it fails."),
    ("user-leak",
        "Using loss in the progress bar without converting to float keeps each graph, memory climbs until the"
        " crash at step 900."),
    ("user-leak",
        "Validation was run with gradients enabled, fails at the 200th batch; no_grad fixed."),
    ("multi-gpu-imbalance",
        "The first GPU is full with 79 GB while the seven others have 41 GB, OOM on the first."),
    ("multi-gpu-imbalance",
        "Everything is placed on GPU 0 although there are two; the second sits at 4 MB."),
    ("multi-gpu-imbalance",
        "nn.DataParallel gathers the logits of all replicas on cuda:0 and that runs out."),
    ("permission",
        "podman rootless: rocminfo says unable to open /dev/kfd, keep-groups annotation solved it."),
    ("permission",
        "Normal user: hipErrorNoDevice. root: fine."),
    ("permission",
        "nvidia-smi inside the container: Failed to initialize NVML: Insufficient Permissions."),
    ("permission",
        "udev rule missing after distro upgrade so that renderD128 is root only, mode 0600."),
    ("permission",
        "User not in the video group, clinfo lists 0 devices."),
    ("allocator-cache-not-returned",
        "tf.data in the input pipeline reserved 22 GB of the 24, JAX then died at its first op."),
    ("allocator-cache-not-returned",
        "After model.to('cpu') nvidia-smi stays at 14 GB; torch.cuda.empty_cache() brings it to 1 GB and the "
        "second program can load."),
    ("allocator-cache-not-returned",
        "Two JAX processes on a card: second one fails; with XLA_PYTHON_CLIENT_MEM_FRACTION=.4 both run."),
    ("allocator-cache-not-returned",
        "SGLang's rollout holds its KV pool while the actor trains, the update step goes OOM; releasing "
        "memory occupation before helps."),
    ("allocator-fragmentation",
        "Reserved grows to 78 GB, allocated never above 50, sequence lengths differ widely; with expandable "
        "segments it stays at 55."),
    ("allocator-fragmentation",
        "6 GiB are free inside torch's cache but scattered, 2 GiB request fails."),
    ("allocator-fragmentation",
        "Dies after many hours with dynamic image shapes, bucketing the sizes cured it."),
    ("library-workspace",
        "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate, batch halved and it is gone."),
    ("library-workspace",
        "VAE decode spikes by 8 GB because cuDNN picks an algorithm with a big workspace; deterministic mode "
        "avoids that."),
    ("library-workspace",
        "MIOpen complains workspace size 4 GB not available, falls to a slow solver, then fails."),
    ("context-corruption",
        "device-side assert triggered by a target class of 80 with 80 classes, afterwards everything fails."),
    ("context-corruption",
        "GPU hang in dmesg, mode1 reset, then HIP says out of memory for any size."),
    ("context-corruption",
        "Overclocked card: illegal memory access after minutes and from then on each malloc is an error."),
    ("context-corruption",
        "After resume from hibernation CUDA initialisation fails with error 999."),
]  # fmt: skip
UNTROUBLED = [
    "The training script stops because the dataset folder is missing.",
    "Closing the browser helps against the noise of the fans.",
    "A second user asks for a feature; another user agrees.",
    "The server was restarted with a new certificate, and it works again.",
    "The plot of the loss goes up from 2 to 3 after epoch 9.",
    "The driver 550 has a bug with HDR colours and 555 fixes it.",
    "The kernel log lists the USB devices after the reset.",
    "Each run writes a new folder and the old ones are never deleted.",
    "When the monitor is off, the screen saver does not start.",
    "He moved the tensors to the CPU to plot them, which works.",
    "The child process is killed after 10 s because of a timeout in the test.",
    "A convolution without padding gives a different shape.",
    "Every worker picks its own shard; the last one is smaller.",
    "The cache is shared with the second machine by NFS.",
    "With two GPUs the training is twice as fast.",
    "Loading and unloading of the plugin takes 3 seconds.",
    "The queue holds results of earlier jobs until the user opens them.",
    "The desktop app shows the card's temperature and 4 GB as its size.",
    "In the container the time zone is wrong.",
    "The group added a render of the new logo to the README.",
    "After an update of the driver the game looks better.",
    "The process lists its children in a table.",
    "Training works; the user asks which batch size to choose.",
    "A question how to install the CUDA toolkit on Fedora.",
    "The window does not redraw after resizing; a shader compile error is in the log.",
    "The model gives wrong answers at temperature 0.",
    "Restarting the server makes it lose the session cookies.",
    "The process was killed by the user because it was too slow.",
    "The desktop compositor stutters when a video plays on the second monitor.",
    "The list of losses is printed at the end of every epoch and memory stays flat at 5 GB.",
    "nvidia-smi shows no running processes because nobody uses the machine; 3 MiB of 24 GB are in use.",
    "Four cards are all at 20 GB of 24 and the speed is the same on each.",
    "My container has been restarted and everything works again since an update of the docs.",
    "The group meeting on permission to use the cluster was moved to Monday.",
    "A new release adds a memory view to the monitor.",
    "After closing the browser tab the chat history is lost.",
    "The driver update changed the fan curve and nothing else.",
    "Second GPU idle because the user configured it so; all good.",
    "The library prints its workspace size of 32 MB in the log and the program works.",
    "The laptop wakes from sleep and everything continues.",
    "The group of developers moved the repository; CI logs are kept for a month.",
    "He closed the other program and then posted the log of the speed test.",
    "Old checkpoints are never deleted and the disk is 80 % full.",
    "The image viewer keeps thumbnails in a cache on disk.",
    "Rank 0 writes the log, the other ranks are silent; this is on purpose.",
    "The user quit the game and restarted it to change the language.",
]  # fmt: skip
OURS = {
    "external-holder",
    "stale-holder",
    "driver-leak",
    "user-leak",
    "multi-gpu-imbalance",
    "permission",
    "allocator-cache-not-returned",
    "allocator-fragmentation",
}


def verdict(error: str, tools: dict[str, str], narrative: str = ""):
    return diagnose(
        case_evidence({"error_text": error, "tool_outputs": tools, "narrative": narrative})
    )


@pytest.mark.parametrize(("cause", "error", "tools", "narrative"), TOLD)
def test_the_cause_is_read_from_what_is_told(cause, error, tools, narrative):
    got = verdict(error, tools, narrative)
    assert (got.cause, got.confidence) == (cause, "weak")


@pytest.mark.parametrize(("error", "tools", "narrative"), OTHERS)
def test_what_is_told_of_other_causes_names_no_holder_leak_or_cache(error, tools, narrative):
    assert verdict(error, tools, narrative).cause not in OURS


@pytest.mark.parametrize(("cause", "narrative"), RETOLD)
def test_the_cause_is_read_from_a_short_story_without_an_error_text(cause, narrative):
    got = verdict("", {}, narrative)
    assert (got.cause, got.confidence) == (cause, "weak")


@pytest.mark.parametrize("narrative", UNTROUBLED)
def test_a_story_in_which_no_memory_runs_out_names_no_cause(narrative):
    assert verdict("", {}, narrative).cause == "cannot-tell"


# -- tables ----------------------------------------------------------------------------------------
def test_a_holder_without_a_name_is_a_process_that_is_gone():
    table = "|    0     41007    C   Unknown Error                                 7300MiB |"
    assert verdict("", {"nvidia-smi": table}).cause == "stale-holder"


def test_a_program_whose_parent_is_gone_outlived_what_started_it():
    table = "    PID    PPID STAT COMMAND\n  51234       1 Sl   python serve.py\n"
    assert verdict("", {"ps -o pid,ppid,stat,args": table}).cause == "stale-holder"


def test_a_service_that_the_system_started_is_no_orphan():
    table = "    PID    PPID STAT COMMAND\n    812       1 Ss   /usr/sbin/sshd\n"
    assert verdict("", {"ps -o pid,ppid,stat,args": table}).cause != "stale-holder"


def test_a_row_of_holders_without_its_type_is_read():
    table = "0  4100  trainer::rank0  9000 MiB\n0  4101  trainer::rank1  9010 MiB\n"
    table += "0  4102  trainer::rank2  9020 MiB"
    assert verdict("", {"nvidia-smi": table}).cause == "multi-gpu-imbalance"


def test_a_temperature_before_a_power_state_is_no_process():
    table = "\n".join(
        f"|   {gpu}  Tesla T4   On   | 00000000:00:0{gpu}.0 Off | 64C  P0  60W / 70W |  {used}MiB / 15360MiB |"
        for gpu, used in enumerate((15100, 0, 0))
    )
    assert verdict(BARE, {"nvidia-smi": table}).cause == "external-holder"


def test_what_is_reserved_grows_is_not_what_is_allocated():
    tools = {
        "torch.cuda.memory_reserved per epoch (MiB)": "400, 2100, 4000, 6100, 8300",
        "torch.cuda.memory_allocated (MiB)": "between 90 and 240",
    }
    assert verdict("", tools).cause == "allocator-fragmentation"


def test_reserved_memory_without_a_live_tensor_is_a_cache():
    tools = {"torch": "after del model: reserved= 20480 MB  allocated=     0 MB"}
    assert verdict("", tools).cause == "allocator-cache-not-returned"


def test_the_path_in_a_message_of_jax_is_no_second_framework():
    message = "E external/org_tensorflow/tensorflow/compiler/xla/client.cc:1] "
    message += "Out of memory while trying to allocate 5 bytes."
    one = verdict(message, {}, "The program uses jax.")
    assert not [row for row in one.evidence if row.id.startswith("other-library")]
