# llmrack: one Makefile, not recursive. `make help` lists the targets.
#
# Variables: SAN=address,undefined|thread  V=1  T=name (one test)  MODEL=path  SHARED=../shared

VERSION := 0.1.0
comma := ,
SAN ?=
V ?= 0
SHARED ?= ../shared
T ?=
PORT ?= 8080
CC := gcc

B := build
O := $(B)/$(if $(SAN),san-$(firstword $(subst $(comma), ,$(SAN))),rel)
BIN := $(if $(SAN),$(O),$(B))
Q := $(if $(filter 1,$(V)),,@)

PKGS := libmicrohttpd jansson sqlite3 libpcre2-8 libutf8proc libcurl
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
CFLAGS := -std=gnu11 -O2 -g -fno-strict-aliasing -D_GNU_SOURCE $(WARN) -I. -I$(O) \
	-DLLMRACK_VERSION='"$(VERSION)"' $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
LDFLAGS := -pthread $(if $(SAN),-fsanitize=$(SAN))
LIBS = $(shell pkg-config --libs $(PKGS)) -lreadline -lm
INCS = $(shell pkg-config --cflags $(PKGS))

# ---- floors: a file includes its own floor or lower (make layers) ----
BASE := $(wildcard base/*.c)
FLOOR1 := $(wildcard kernels/*.c) $(wildcard state/*.c)
SERVE := $(wildcard daemon/serve/*.c)
CTRL := $(wildcard daemon/ctrl/*.c)
API := $(wildcard daemon/api/*.c)
CTL := $(wildcard ctl/*.c)
OPTS := $(wildcard daemon/options.c)
LIB_SRC := $(BASE) $(FLOOR1) $(SERVE) $(CTRL) $(API) $(OPTS)
obj = $(patsubst %.c,$(O)/%.o,$(1))

UNIT := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/unit/test_*.c tests/ops/test_*.c \
	tests/model/test_*.c tests/fault/test_*.c))
FUZZ := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

all: $(BIN)/llmrackd $(BIN)/llmrack-engine $(BIN)/llmctl

$(BIN)/llmrackd: $(call obj,daemon/main.c) $(O)/libllmrack.a
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
$(BIN)/llmrack-engine: $(call obj,daemon/engine_main.c) $(O)/libllmrack.a
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
$(BIN)/llmctl: $(call obj,$(CTL) $(BASE))
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)

$(O)/libllmrack.a: $(call obj,$(LIB_SRC))
	$(Q)rm -f $@ && ar rcs $@ $^

$(O)/%.o: %.c | $(B)/deps.ok
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(INCS) $(ISA_FLAGS) -MMD -MP -c -o $@ $<

# One binary for every machine: only these files may use wider instructions.
$(O)/kernels/%_avx2.o: ISA_FLAGS := -O3 -mavx2 -mfma -mf16c
$(O)/kernels/%_avx512.o: ISA_FLAGS := -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq \
	-mavx512vnni -mavx512bf16 -mfma -mf16c
$(O)/kernels/%.o: CFLAGS += -O3

$(O)/state/store.o: $(O)/schema.h
$(O)/schema.h: state/schema.sql
	@mkdir -p $(@D)
	$(Q)sed 's/[\\"]/\\&/g; s/^/"/; s/$$/\\n"/' $< > $@

# ---- tests ----
$(O)/tests/%: tests/%.c $(O)/libllmrack.a tests/test.h | $(B)/deps.ok
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Wno-missing-prototypes $(INCS) -MMD -MP -o $@ $< $(EXTRA_$(notdir $*)) \
		$(O)/libllmrack.a $(LDFLAGS) -lcmocka $(LIBS)


# ---- set-up ----
$(B)/deps.ok:
	@mkdir -p $(@D) && touch $@

-include $(shell find $(O) -name '*.d' 2>/dev/null)
