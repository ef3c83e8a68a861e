# Every verb is one line over env/bootstrap.py, which works where make does not.
# TORCH=cpu|rocm|cuda|none  TORCH_PYTHON=path  BOX=name  PLAN=file  GPU=pci address  ARGS="more arguments"  PYTHON=python3.12
# Of the oracle: RELEASE=2.12.1  SOURCE=folder, archive or clone@tag  HEADERS=folder
PYTHON ?= python3
verb = @$(PYTHON) env/bootstrap.py $@ $(if $(TORCH),--torch "$(TORCH)") $(if $(TORCH_PYTHON),--torch-python "$(TORCH_PYTHON)")

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help diagnose test test-all lab capture overnight test-browser doors faults check check-gpu cases oracle oracle-rocm gpu-proof rehearse-proof rank-proof published bench check-pins lock wheelhouse capture.pyz setup

help:        ; $(verb)
diagnose:    ; $(verb) $(if $(BOX),--box "$(BOX)") $(ARGS)
test:        ; $(verb) $(ARGS)
test-all:    ; $(verb) $(ARGS)
test-browser: ; $(verb) $(ARGS)
doors:       ; $(verb) $(ARGS)
faults:      ; $(verb) $(ARGS)
lab:         ; $(verb) $(ARGS)
capture:     ; $(verb) $(ARGS)
overnight:   ; $(verb) $(if $(PLAN),"$(PLAN)") $(ARGS)
check:       ; $(verb)
check-gpu:   ; $(verb) $(if $(GPU),--gpu "$(GPU)") $(ARGS)
cases:       ; $(verb) $(ARGS)
oracle:      ; $(verb) $(if $(RELEASE),--release "$(RELEASE)") $(ARGS)
oracle-rocm: ; $(verb) $(if $(RELEASE),--release "$(RELEASE)") $(if $(SOURCE),--source "$(SOURCE)") $(if $(HEADERS),--headers "$(HEADERS)") $(ARGS)
gpu-proof:   ; $(verb) $(ARGS)
rehearse-proof: ; $(verb) $(ARGS)
rank-proof:  ; $(verb) $(ARGS)
published:   ; $(verb) $(ARGS)
bench:       ; $(verb) $(ARGS)
check-pins:  ; $(verb) $(ARGS)
lock:        ; $(verb) $(ARGS)
wheelhouse:  ; $(verb)
capture.pyz: ; $(verb)
setup:       ; $(verb)
